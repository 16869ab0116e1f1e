"""Data that break careless neighbour methods: equal rows, ties, outliers, hardly any rows, constant columns."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp import ExactGPRegressor, NeighborGPRegressor

SMALL = {"max_iter": 5, "random_state": 0}


def normal(n, d=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=n)


def repeated(times=200):
    """Three places, with hundreds of conflicting targets each."""
    rng = np.random.default_rng(0)
    x = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]], times, axis=0)
    return x, x[:, 0] + rng.normal(size=len(x))


def constant_columns():
    x, y = normal(200, 4)
    x[:, 1], x[:, 3] = 7.0, 0.0
    return x, y


def outlier():
    x, y = normal(200)
    x[17], y[17] = 1e9, -1e6
    return x, y


def grid():
    a, b, c = np.meshgrid(np.arange(8), np.arange(8), np.arange(8))
    x = np.column_stack([a.ravel(), b.ravel(), c.ravel()])
    return x, np.sin(x[:, 0]) + x[:, 1]


CASES = {
    "repeated rows": repeated,
    "all rows equal": lambda: (np.full((100, 3), 2.5), np.random.default_rng(0).normal(size=100)),
    "all rows and targets equal": lambda: (np.full((100, 3), 2.5), np.full(100, -4.0)),
    "more neighbours than rows": lambda: normal(9),
    "constant columns": constant_columns,
    "one outlier": outlier,
    "ties": grid,
    "200 inputs": lambda: normal(150, 200),
    "one row": lambda: normal(1),
    "two rows": lambda: normal(2),
    "two equal rows": lambda: (np.ones((2, 2)), np.array([1.0, 2.0])),
    "constant target": lambda: (normal(100)[0], np.full(100, 3.0)),
    "zero target": lambda: (normal(100)[0], np.zeros(100)),
    "no noise": lambda: (normal(300, 1)[0], np.round(normal(300, 1)[0][:, 0])),
    "huge numbers": lambda: (1e140 * normal(100)[0], 1e140 * normal(100)[1]),
    "tiny numbers": lambda: (1e-140 * normal(100)[0], 1e-140 * normal(100)[1]),
}


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.filterwarnings("ignore:.*(too few to learn|target is constant):prismgp.exceptions.PrismGPWarning")
def test_predictions_are_finite_and_uncertain(case, dtype):
    """Warnings are errors in the tests."""
    x, y = CASES[case]()
    model = NeighborGPRegressor(16, dtype=dtype, **SMALL).fit(x, y)
    assert np.isfinite(model.log_evidence_)
    far = x[:3] + 1e3 * (1.0 + np.abs(x).max())
    for where in (x[:300], 0.5 * x[:50] + 0.1, far):
        for noise in (True, False):
            mean, std = model.predict(where, return_std=True, include_noise=noise)
            assert np.isfinite(mean).all()
            assert np.isfinite(std).all()
            assert (std > 0).all()
    covariance = model.predict(x[:20], return_cov=True)[1]
    assert np.linalg.eigvalsh(covariance).min() > -1e-9 * covariance.max()
    assert np.isfinite(model.sample_y(x[:5], 2, random_state=0)).all()
    assert np.isfinite(model.partial_fit(x[:3], y[:3]).predict(x[:9])).all()


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("n_neighbors", [8, 200])
def test_far_away_is_the_prior(kernel, n_neighbors):
    x, y = normal(100)
    given = {"lengthscale": 1.0, "signal_variance": 4.0, "noise_variance": 0.25, "mean": -7.0, "optimize": False}
    model = NeighborGPRegressor(n_neighbors, kernel=kernel, **given).fit(x, y)
    for far in (1e3, 1e9, 1e100, 1e149):
        mean, std = model.predict([[far, 0.0], [-far, far]], return_std=True)
        np.testing.assert_allclose(mean, -7.0, rtol=1e-12)
        np.testing.assert_allclose(std, np.sqrt(4.25), rtol=1e-12)
        _, latent = model.predict([[far, 0.0], [-far, far]], return_std=True, include_noise=False)
        np.testing.assert_allclose(latent, 2.0, rtol=1e-12)


@pytest.mark.parametrize("case", ["one outlier", "200 inputs", "constant columns"])
def test_order_of_rows_without_ties(case):
    x, y = CASES[case]()
    order = np.random.default_rng(1).permutation(len(x))
    given = {"lengthscale": 2.0, "noise_variance": 0.1, "optimize": False}
    first, second = (NeighborGPRegressor(8, **given).fit(x[i], y[i]) for i in (np.arange(len(x)), order))
    for found, expected in zip(first.predict(x, return_std=True), second.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(y).max())


def test_equal_rows_are_averaged():
    """With all rows as neighbours, hundreds of equal rows know their mean: as an exact GP does."""
    x, y = repeated(700)
    x, y = x[::5], y[::5]
    given = {"kernel": "matern32", "lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 1.0, "optimize": False}
    model, exact = NeighborGPRegressor(420, **given).fit(x, y), ExactGPRegressor(**given).fit(x, y)
    np.testing.assert_allclose(model.predict(x[::50]), exact.predict(x[::50]), atol=1e-9)
    assert abs(model.predict([[1.0, 0.0]])[0] - y[140:280].mean()) < 0.05


def test_outlier_does_not_spoil_the_others():
    x, y = normal(400)
    far = np.vstack([x, [[1e6, 1e6]]]), np.append(y, 0.0)
    given = {"lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 0.01, "mean": 0.0, "optimize": False}
    with_outlier, without = NeighborGPRegressor(**given).fit(*far), NeighborGPRegressor(**given).fit(x, y)
    np.testing.assert_allclose(with_outlier.predict(x), without.predict(x), atol=1e-6)
