"""Hostile data for the revised SSGP: fits finish, predictions are finite, deviations positive, without warnings."""

from __future__ import annotations

import json

import numpy as np
import pytest

from prismgp import PrismGPRegressor
from tests.prism.small import has_members

SMALL = {
    "n_members": 2,
    "max_steps": 8,
    "hidden": 8,
    "batch_size": 32,
    "latent_dim": 2,
    "n_components": 3,
    "max_iter": 3,
    "random_state": 0,
}


def data(n=60, d=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)


def constant_column():
    x, y = data()
    x[:, 1] = 3.25
    return x, y


def one_value(place, value):
    def make():
        x, y = data()
        (x[:, 0] if place == "x" else y)[7] = value
        return x, y

    return make


def scaled(x_scale=1.0, y_scale=1.0, x_shift=0.0, y_shift=0.0):
    def make():
        x, y = data()
        return x * x_scale + x_shift, y * y_scale + y_shift

    return make


def with_rows(n, d=3):
    return lambda: data(n, d)


CASES = {
    "constant column": constant_column,
    "constant columns": lambda: (np.full((60, 3), 2.0), data()[1]),
    "duplicate rows": lambda: (data()[0][np.arange(60) % 7], data()[1]),
    "duplicate columns": lambda: (data()[0][:, [0, 0, 0]], data()[1]),
    "50 rows": with_rows(50),
    "51 rows": with_rows(51),
    "1 row": with_rows(1),
    "2 rows": with_rows(2),
    "4 rows": with_rows(4),
    "1 input": with_rows(60, 1),
    "60 inputs": with_rows(60, 60),
    "large inputs": scaled(x_scale=1e12),
    "small inputs": scaled(x_scale=1e-12),
    "large targets": scaled(y_scale=1e12),
    "small targets": scaled(y_scale=1e-12),
    "huge inputs and targets": scaled(x_scale=1e100, y_scale=1e100),
    "inputs far from zero": scaled(x_shift=1e12),
    "targets far from zero": scaled(y_shift=1e12),
    "outlier in x": one_value("x", 1e9),
    "outlier in y": one_value("y", 1e9),
    "extreme outlier in x": one_value("x", -1e140),
    "extreme outlier in y": one_value("y", -1e140),
    "integers": lambda: ((data()[0] * 3).astype(int), (data()[1] * 10).astype(int)),
    "booleans": lambda: (data()[0] > 0, data()[1] > 0),
    "single precision": lambda: (data()[0].astype("f4"), data()[1].astype("f4")),
    "constant target": lambda: (data()[0], np.full(60, 4.5)),
    "zero target": lambda: (data()[0], np.zeros(60)),
    "spike": lambda: (data()[0], np.where(np.arange(60) == 0, 1.0, 0.0)),
    "exact line": lambda: (data()[0], 2.0 * data()[0][:, 0] + 1.0),
    "outputs of different scale": lambda: (data()[0], np.column_stack([data()[1], 1e12 * data()[1], np.ones(60)])),
}


# Cases where held-out rows do not decide for the members: too few rows, or nothing that networks could improve.
WITHOUT_MEMBERS = {"1 row", "2 rows", "4 rows", "1 input", "constant target", "zero target"}


def fixed(y, **changes):
    """Settings with fixed kernel parameters, which save most of the time of a fit; the networks are trained.

    The noise is far too low for the data, which only members can correct: held-out rows decide for them.
    """
    spread = float(np.var(np.asarray(y, dtype=float).reshape(len(y), -1)[:, 0]))
    return {"n_frequencies": 3, **SMALL, "optimize": False, "noise_variance": 1e-4 * spread or 1e-4, **changes}


def check(model, x, y):
    model.fit(x, y)
    x = np.asarray(x, dtype=float)
    new = np.vstack([x[:5], 3.0 * x[:5], 1e6 * x[:5]])
    mean, std = model.predict(new, return_std=True)
    function_std = model.predict(new, return_std=True, include_noise=False)[1]
    for values in (mean, std, function_std, model.sample_y(new, 2, random_state=0), model.log_density(x, y)):
        assert np.isfinite(values).all()
    assert (function_std > 0).all()
    assert (std > function_std).all()
    assert np.isfinite(model.log_evidence_)
    json.dumps([model.fit_status_, model.history_], allow_nan=False)
    return mean, std


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_hostile_data(case):
    x, y = CASES[case]()
    model = PrismGPRegressor(**fixed(y))
    check(model, x, y)
    assert has_members(model) == (case not in WITHOUT_MEMBERS)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_hostile_data_and_the_paper_recipe(case):
    x, y = CASES[case]()
    check(PrismGPRegressor(3, **SMALL, recipe="paper", optimize=False), x, y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the target is constant:prismgp.exceptions.PrismGPWarning")
@pytest.mark.parametrize(
    "case", ["constant column", "51 rows", "60 inputs", "targets far from zero", "outlier in y", "constant target"]
)
def test_hostile_data_with_learned_parameters(case):
    x, y = CASES[case]()
    first = check(PrismGPRegressor(3, **SMALL), x, y)
    second = check(PrismGPRegressor(3, **SMALL), x, y)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", ["constant column", "outlier in x", "outlier in y", "duplicate rows", "large targets"])
def test_hostile_data_in_single_precision(case):
    x, y = CASES[case]()
    model = PrismGPRegressor(**fixed(y, dtype="float32"))
    check(model, x, y)
    assert has_members(model)


# One held-out row decides nothing, and without any noise the networks leave the range of floating-point numbers.
PLAIN_SETTINGS = [{"validation_fraction": 1e-6}, {"noise_variance": 1e-300}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"validation_fraction": 0.99},
        {"validation_fraction": 1e-6},
        {"batch_size": 1},
        {"dropout": 0.95},
        {"latent_dim": 30},
        {"n_components": 1},
        {"n_components": 30},
        {"latent_dim": 1},
        {"n_frequencies": 1},
        {"hidden": []},
        {"hidden": (1, 1, 1)},
        {"gating": "hard", "n_components": 12},
        {"alpha": 0.0, "beta": 0.0, "elbo_weight": 0.0},
        {"alpha": 1e6, "elbo_weight": 10.0},
        {"kernel": "matern12"},
        {"max_steps": 1},
        {"normalize": False},
        {"noise_variance": 1e-300},
        {"noise_variance": 1e12},
        {"signal_variance": 1e100},
        {"lengthscale": 1e-30},
        {"lengthscale": 1e60},
    ],
    ids=str,
)
@pytest.mark.usefixtures("short_local")
def test_extreme_settings(changes):
    x, y = data()
    model = PrismGPRegressor(**fixed(y, **changes))
    check(model, x, y + 100.0)
    assert has_members(model) == (changes not in PLAIN_SETTINGS)


def test_constant_column_and_given_lengthscales():
    x, y = constant_column()
    check(PrismGPRegressor(3, **SMALL, lengthscale=1.0), x, y)


def test_constant_column_leaves_the_other_inputs_on():
    x, y = constant_column()
    model = PrismGPRegressor(**fixed(y, lengthscale=1.0)).fit(x, y)
    network = model.model_.predictor.experts[0].map
    assert float(network.log_input_scale.exp()[0]) > 0.5


def test_constant_inputs_are_ignored_at_prediction():
    """A column that never varied in training must not wreck predictions when it moves later."""
    x, y = constant_column()
    moved = x.copy()
    moved[:, 1] = 1e6
    model = PrismGPRegressor(**fixed(y)).fit(x, y)
    assert has_members(model)
    for got, expected in zip(model.predict(moved, return_std=True), model.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-8)
