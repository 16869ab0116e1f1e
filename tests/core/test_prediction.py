"""Predictions equal the dense formulas, in the user's units, whatever is done inside."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp import ExactGPRegressor, SSGPRegressor
from tests import reference
from tests.core.same import with_parameters_of
from tests.tolerances import EVIDENCE, PREDICTION


def make_data(rng, n=120, d=3, q=None):
    x = rng.normal(size=(n, d)) * [1.0, 10.0, 0.1][:d] + 5.0
    f = np.sin(x[:, 0]) + 0.1 * x[:, 1]
    y = 7.0 + 3.0 * f + 0.3 * rng.normal(size=n)
    return x, (y if q is None else np.column_stack([y, -2.0 * y + rng.normal(size=n)]))


FIXED = {
    "lengthscale": [1.5, 12.0, 0.3],
    "signal_variance": 9.0,
    "noise_variance": 0.2,
    "mean": 6.0,
    "optimize": False,
}


def dense(model, x, y, x_test, k):
    """Oracle prediction from a kernel function k(a, b) of unit variance."""
    s, noise, mean = model.signal_variance_, model.noise_variance_, model.mean_
    return reference.predict(s * k(x, x), s * k(x, x_test), s * k(x_test, x_test), noise, y, mean)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("chunk_size", ["auto", 13])
def test_ssgp_prediction(rng, normalize, chunk_size):
    x, y = make_data(rng)
    x_test = make_data(rng, 40)[0]
    model = SSGPRegressor(11, **FIXED, normalize=normalize, chunk_size=chunk_size, random_state=3).fit(x, y)

    def k(a, b):
        return reference.spectral_kernel(model.frequencies_, a, b, model.lengthscale_)

    mean, cov = dense(model, x, y, x_test, k)
    got_mean, got_std = model.predict(x_test, return_std=True)
    _, got_function_std = model.predict(x_test, return_std=True, include_noise=False)
    _, got_cov = model.predict(x_test, return_cov=True)
    _, got_function_cov = model.predict(x_test, return_cov=True, include_noise=False)
    tolerance = {"rtol": PREDICTION, "atol": PREDICTION * 10}
    np.testing.assert_allclose(got_mean, mean, **tolerance)
    np.testing.assert_allclose(got_function_std**2, np.diag(cov), **tolerance)
    np.testing.assert_allclose(got_std**2, np.diag(cov) + 0.2, **tolerance)
    np.testing.assert_allclose(got_function_cov, cov, **tolerance)
    np.testing.assert_allclose(got_cov, cov + 0.2 * np.eye(len(x_test)), **tolerance)
    expected = reference.log_density(y, 6.0, 9.0 * k(x, x) + 0.2 * np.eye(len(x)))
    assert model.log_evidence_ == pytest.approx(expected, rel=EVIDENCE)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_exact_prediction(rng, name, normalize):
    x, y = make_data(rng)
    x_test = make_data(rng, 40)[0]
    model = ExactGPRegressor(kernel=name, **FIXED, normalize=normalize).fit(x, y)
    mean, cov = dense(model, x, y, x_test, lambda a, b: reference.kernel(name, a, b, model.lengthscale_))
    got_mean, got_cov = model.predict(x_test, return_cov=True, include_noise=False)
    _, got_std = model.predict(x_test, return_std=True)
    tolerance = {"rtol": PREDICTION, "atol": PREDICTION * 10}
    np.testing.assert_allclose(got_mean, mean, **tolerance)
    np.testing.assert_allclose(got_cov, cov, **tolerance)
    np.testing.assert_allclose(got_std**2, np.diag(cov) + 0.2, **tolerance)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_exact_agrees_with_scikit_learn(rng, name):
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    x, y = make_data(rng)
    x_test = make_data(rng, 30)[0]
    base = RBF(FIXED["lengthscale"]) if name == "rbf" else Matern(FIXED["lengthscale"], nu=int(name[-2]) / 2)
    theirs = GaussianProcessRegressor(ConstantKernel(9.0) * base + WhiteKernel(0.2), alpha=0.0, optimizer=None)
    theirs.fit(x, y - 6.0)
    ours = ExactGPRegressor(kernel=name, **FIXED).fit(x, y)
    assert ours.log_evidence_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=EVIDENCE)
    mean, std = theirs.predict(x_test, return_std=True)
    got_mean, got_std = ours.predict(x_test, return_std=True)
    np.testing.assert_allclose(got_mean, mean + 6.0, rtol=PREDICTION, atol=1e-7)
    np.testing.assert_allclose(got_std, std, rtol=PREDICTION, atol=1e-7)


@pytest.mark.parametrize("normalize", [True, False])
def test_partial_fit_equals_one_fit(rng, normalize):
    x, y = make_data(rng, 200)
    options = {**FIXED, "normalize": normalize, "random_state": 0}
    whole = SSGPRegressor(9, **options).fit(x, y)
    parts = SSGPRegressor(9, **options).fit(x[:70], y[:70])
    for a, b in ((70, 71), (71, 150), (150, 200)):
        parts.partial_fit(x[a:b], y[a:b])
    x_test = make_data(rng, 50)[0]
    for got, expected in zip(
        parts.predict(x_test, return_std=True), whole.predict(x_test, return_std=True), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)
    assert parts.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-8)
    assert parts.fit_status_["rows"] == 200


def test_partial_fit_after_learning_keeps_parameters(rng):
    x, y = make_data(rng, 300)
    model = SSGPRegressor(12, random_state=0).fit(x[:200], y[:200])
    before = model.lengthscale_.copy(), model.noise_variance_, model.mean_
    model.partial_fit(x[200:], y[200:])
    np.testing.assert_array_equal(model.lengthscale_, before[0])
    assert (model.noise_variance_, model.mean_) == before[1:]
    again = with_parameters_of(model).fit(x, y)
    np.testing.assert_allclose(model.predict(x), again.predict(x), rtol=1e-8, atol=1e-8)


def test_outputs_do_not_disturb_each_other(rng):
    """At fixed parameters, two outputs together equal each on its own."""
    x, y = make_data(rng, q=2)
    options = {**FIXED, "signal_variance": [9.0, 20.0], "noise_variance": [0.2, 1.0], "mean": [6.0, -12.0]}
    both = SSGPRegressor(8, **options, random_state=0).fit(x, y)
    exact = ExactGPRegressor(**options).fit(x, y)
    assert both.predict(x).shape == y.shape
    assert both.predict(x, return_cov=True)[1].shape == (len(x), len(x), 2)
    for o in range(2):
        single = {k: (v[o] if k not in ("lengthscale", "optimize") else v) for k, v in options.items()}
        alone = SSGPRegressor(8, **single, random_state=0).fit(x, y[:, o])
        alone_exact = ExactGPRegressor(**single).fit(x, y[:, o])
        for model, one in ((both, alone), (exact, alone_exact)):
            for got, expected in zip(model.predict(x, return_std=True), one.predict(x, return_std=True), strict=True):
                np.testing.assert_allclose(got[:, o], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_learned_noise_is_per_output(rng):
    x = rng.normal(size=(600, 2))
    f = np.sin(2 * x[:, 0])
    y = np.column_stack([f + 0.05 * rng.normal(size=600), f + 0.5 * rng.normal(size=600)])
    model = SSGPRegressor(24, random_state=0).fit(x, y)
    np.testing.assert_allclose(np.sqrt(model.noise_variance_), [0.05, 0.5], rtol=0.15)


def test_function_draws(rng):
    """Draws are functions: the same at shared points in any call; their moments are the posterior's."""
    x, y = make_data(rng)
    model = SSGPRegressor(10, **FIXED, random_state=0).fit(x, y)
    x_test = make_data(rng, 6)[0]
    draws = model.sample_y(x_test, 4000, random_state=1)
    assert draws.shape == (6, 4000)
    np.testing.assert_allclose(draws[:, :5], model.sample_y(x_test, 5, random_state=1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(draws[2:4], model.sample_y(x_test[2:4], 4000, random_state=1), rtol=1e-12)
    mean, cov = model.predict(x_test, return_cov=True, include_noise=False)
    spread = np.sqrt(np.diag(cov))
    assert np.all(np.abs(draws.mean(1) - mean) < 5 * spread / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.12 * spread.max() ** 2)
    assert model.sample_y(x_test, 2).shape == (6, 2)


def test_exact_draws_follow_the_posterior(rng):
    x, y = make_data(rng)
    model = ExactGPRegressor(**FIXED).fit(x, y)
    x_test = make_data(rng, 5)[0]
    draws = model.sample_y(x_test, 4000, random_state=1)
    mean, cov = model.predict(x_test, return_cov=True, include_noise=False)
    spread = np.sqrt(np.diag(cov))
    assert np.all(np.abs(draws.mean(1) - mean) < 5 * spread / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.12 * spread.max() ** 2)
