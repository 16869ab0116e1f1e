"""Hostile data: the fit finishes, predictions are finite, variances are sane, and runs repeat bit for bit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.preprocessing import StandardScaler

from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.core.models import Standardiser
from prismgp.data import ArraySource, fit_standardiser
from tests import short

INPUTS = ("normal", "constant", "duplicate columns", "duplicate rows", "collinear", "binary", "one outlier", "grid")
TARGETS = ("smooth", "noise", "constant", "outlier", "spike", "exact line")
SCALES = (1e-12, 1e-6, 1.0, 1e6, 1e12)


def make_inputs(kind, n, d, rng):
    x = rng.normal(size=(n, d))
    if kind == "constant":
        x[:, : max(1, d // 2)] = 3.25
    elif kind == "duplicate columns":
        x[:] = x[:, :1]
    elif kind == "duplicate rows":
        x[:] = x[rng.integers(0, max(1, n // 4), n)]
    elif kind == "collinear":
        x = np.outer(x[:, 0], rng.normal(size=d))
    elif kind == "binary":
        x = (x > 0).astype(float)
    elif kind == "one outlier":
        x[0, 0] = 1e9
    elif kind == "grid":
        x = np.round(x)
    return x


def make_targets(kind, x, rng):
    n = len(x)
    if kind == "constant":
        return np.full(n, 4.5)
    if kind == "outlier":
        y = rng.normal(size=n)
        y[-1] = 1e9
        return y
    if kind == "spike":
        return np.where(np.arange(n) == 0, 1.0, 0.0)
    if kind == "exact line":
        return 2.0 * x[:, 0] + 1.0
    if kind == "noise":
        return rng.normal(size=n)
    return np.sin(x[:, 0]) + 0.1 * rng.normal(size=n)


def check(model, x, y, x_new):
    model.fit(x, y)
    mean, std = model.predict(x_new, return_std=True)
    _, function_std = model.predict(x_new, return_std=True, include_noise=False)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert np.isfinite(model.log_evidence_)
    assert np.isfinite(model.lengthscale_).all()
    assert (function_std > 0).all()
    assert (std > 0).all()
    prior = np.sqrt(model.signal_variance_)
    assert (function_std <= prior * (1 + 1e-9)).all()
    assert (std <= np.sqrt(model.signal_variance_ + model.noise_variance_) * (1 + 1e-9)).all()
    assert np.isfinite(model.sample_y(x_new, 2, random_state=0)).all()
    return mean, std, model.log_evidence_


@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
@pytest.mark.slow
@settings(max_examples=25)  # make soak has thousands
@given(
    inputs=st.sampled_from(INPUTS),
    targets=st.sampled_from(TARGETS),
    n=st.sampled_from([1, 2, 3, 4, 5, 12, 60, 200]),
    d=st.sampled_from([1, 2, 7]),
    x_scale=st.sampled_from(SCALES),
    y_scale=st.sampled_from(SCALES),
    dtype=st.sampled_from(["float32", "float64"]),
    kernel=st.sampled_from(["rbf", "matern12", "matern52"]),
    model=st.sampled_from(["ssgp", "learned", "hard", "soft", "exact"]),
    normalize=st.booleans(),
    seed=st.integers(0, 10**6),
)
@example("normal", "exact line", 200, 1, 1.0, 1.0, "float64", "rbf", "ssgp", True, 0)
@example("duplicate rows", "smooth", 60, 7, 1e12, 1e-12, "float32", "rbf", "ssgp", False, 1)
@example("collinear", "outlier", 60, 2, 1e-12, 1e12, "float64", "rbf", "exact", False, 2)
@example("duplicate rows", "spike", 12, 2, 1e12, 1e-12, "float32", "rbf", "hard", True, 4)
@example("one outlier", "outlier", 200, 7, 1e-12, 1.0, "float64", "matern12", "soft", False, 5)
@example("one outlier", "outlier", 200, 7, 1.0, 1.0, "float32", "matern12", "exact", True, 3)
def test_hostile_data(inputs, targets, n, d, x_scale, y_scale, dtype, kernel, model, normalize, seed):
    rng = np.random.default_rng(seed)
    x = make_inputs(inputs, n, d, rng)
    y = (make_targets(targets, x, rng) * y_scale).astype(dtype)
    x_new = np.vstack([x[:5], make_inputs("normal", 5, d, rng) * 3]) * x_scale
    x = (x * x_scale).astype(dtype)
    options = {"kernel": kernel, "dtype": dtype, "normalize": normalize, "random_state": seed, "max_iter": 25}
    make = {
        "ssgp": lambda: SSGPRegressor(24, **options),
        "learned": lambda: SSGPRegressor(3, learn_frequencies=True, **options),
        "hard": lambda: SSGPRegressor(12, gating="hard", n_components=5, **options),
        "soft": lambda: SSGPRegressor(6, gating="soft", n_components=5, **options),
        "exact": lambda: ExactGPRegressor(**options),
    }[model]
    with pytest.MonkeyPatch.context() as patch:  # a fixture would be one for all examples
        short.race(patch)
        first = check(make(), x, y, x_new.astype(dtype))
        second = check(make(), x, y, x_new.astype(dtype))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("make", [lambda **k: SSGPRegressor(16, **k), ExactGPRegressor], ids=["ssgp", "exact"])
def test_five_hundred_inputs(make, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 500)).astype(dtype)
    y = (x[:, 0] + 0.1 * rng.normal(size=80)).astype(dtype)
    check(make(dtype=dtype, random_state=0, max_iter=15), x, y, x[:20] * 2)


@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_far_fewer_rows_than_features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 2))
    check(SSGPRegressor(128, random_state=0), x, rng.normal(size=6), rng.normal(size=(30, 2)))


@pytest.mark.parametrize("noise", [1e-300, 1e-30, 1e-12, 1e12])
def test_extreme_fixed_parameters_do_not_fail(noise):
    """No Cholesky failure even where the user asks for a hopeless ratio of signal to noise."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(20, 2)), 5, axis=0)
    y = rng.normal(size=100)
    options = {"lengthscale": 5.0, "signal_variance": 1.0, "noise_variance": noise, "optimize": False}
    models = (SSGPRegressor(64, random_state=0), ExactGPRegressor(), NeighborGPRegressor(8), NeighborGPRegressor(100))
    for model in (each.set_params(**options) for each in models):
        mean, std = model.fit(x, y).predict(x, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert model.fit_status_["factorisation"] in ("cholesky", "cholesky+jitter", "eigen")


@pytest.mark.usefixtures("short_race")
def test_constant_inputs_are_ignored_at_prediction():
    """A column that never varied in training must not wreck predictions when it moves later."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = np.sin(2 * x[:, 0])
    x[:, 1] = 0.1 + 0.2
    moved = x.copy()
    moved[:, 1] = 1e6
    for model in (
        SSGPRegressor(24, random_state=0),
        ExactGPRegressor(),
        NeighborGPRegressor(8, max_iter=5, random_state=0),
    ):
        model.fit(x, y)
        np.testing.assert_allclose(model.predict(moved), model.predict(x), atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
@pytest.mark.parametrize(
    ("n", "others", "names", "standardised"),
    [
        (300, [0.8], None, False),
        (300, [-0.8], ["first", "second"], True),
        (900, [0.8, 1.4, 0.31], ["first", "second"], False),
        (600, [0.8, 1.4], None, True),
    ],
)
def test_an_input_that_few_rows_have_is_ignored(n, others, names, standardised):
    """Nothing can be learned of it; a row that has it again, and more of it, must not be sent astray."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    y = np.sin(2 * x[:, 0])
    x[:, 1] = 0.3
    x[17 : 17 + len(others), 1] = others
    if standardised:  # whose mean is rounding
        x = StandardScaler().fit_transform(x)
    rows = x if names is None else pd.DataFrame(x, columns=names)
    moved = rows.copy()
    moved[names[1] if names else np.s_[:, 1]] = 1e6
    gated = SSGPRegressor(8, gating="soft", n_components=3, lengthscale=1.0, max_iter=5, random_state=0)
    local = "auto" if n == 300 else "never"  # neighbours see what the mixture sees
    exact, prism = ExactGPRegressor(max_iter=5), PrismGPRegressor(4, max_steps=20, max_iter=5, local=local)
    for model in (SSGPRegressor(16, max_iter=5, random_state=0), gated, exact, prism):
        model.fit(rows, y)
        np.testing.assert_allclose(model.predict(moved), model.predict(rows), atol=1e-9)
        assert model.fit_status_["ignored_inputs"] == [names[1] if names else 1]


def test_inputs_that_say_something_are_kept():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x[:, 0] + rng.normal(size=300)
    x[:, 1] = 0.0
    x[[17, 18], 1] = 1.0  # two of three hundred rows have it
    x[:, 2] *= 1e-3
    x[17, 2] = 1e3  # and one row is far from the others, which differ
    assert SSGPRegressor(4, random_state=0).fit(x, y).fit_status_["ignored_inputs"] == []
    few = x[10:60]
    few[:, 1] = 0.0
    few[17, 1] = 1.0  # one of few rows
    assert SSGPRegressor(4, random_state=0).fit(few, y[10:60]).fit_status_["ignored_inputs"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_given_lengthscales_hold_for_every_input():
    """The kernel is then the user's, to the last row."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 2)), rng.normal(size=400)
    x[:, 1] = 0.0
    x[17, 1] = 1.0
    fixed = {"lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 0.1, "mean": 0.0, "optimize": False}
    model = ExactGPRegressor(**fixed).fit(x, y)
    squares = ((x[:, None] - x[None]) ** 2).sum(2)
    density = multivariate_normal(np.zeros(400), np.exp(-0.5 * squares) + 0.1 * np.eye(400)).logpdf(y)
    assert model.log_evidence_ == pytest.approx(density, rel=1e-10)
    moved = x + np.array([0.0, 2.0])
    for each in (ExactGPRegressor, lambda **rest: SSGPRegressor(8, random_state=0, **rest), _small_prism):
        for arguments in (fixed, {"optimize": False}):
            fitted = each(**arguments).fit(x, y)
            assert fitted.fit_status_["ignored_inputs"] == []
            assert np.abs(fitted.predict(moved) - fitted.predict(x)).max() > 0.01


def _small_prism(**arguments):
    return PrismGPRegressor(4, max_steps=20, random_state=0, **arguments)


def test_a_column_whose_mean_is_rounding_is_no_constant():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 2)), rng.normal(size=50)
    x[:, 1] = np.resize([1.0, -1.0], 50)
    fit = Standardiser(np.array([0.0, 1e-22]), np.ones(2), np.zeros(1), np.ones(1), np.zeros(1))
    assert fit.constant_inputs.tolist() == [False, True]  # so such a shift must not be made
    moments = ArraySource(x, y[:, None])
    moments.moments[0]._mean[1] = 1e-22
    assert fit_standardiser(moments, normalize=True).constant_inputs.tolist() == [False, False]


def test_inputs_are_left_alone():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    kept = x.copy(), y.copy()
    for model in (SSGPRegressor(4, random_state=0), ExactGPRegressor()):
        model.fit(x, y).predict(x, return_std=True)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    x.flags.writeable = False
    SSGPRegressor(4, random_state=0).fit(x, y).predict(x[::-1])
