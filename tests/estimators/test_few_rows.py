"""Few rows: warnings, and intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.core.kernels import FEW_ROWS, Prior, default_start, widen
from prismgp.exceptions import PrismGPWarning

MODELS = {
    "exact": ExactGPRegressor(),
    "ssgp": SSGPRegressor(16, random_state=0),
    "neighbors": NeighborGPRegressor(random_state=0),
    "prism": PrismGPRegressor(random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("y", [[3.0], [3.0, 3.1, 2.9], [2.0, 2.0, 2.0]], ids=["one", "three", "constant"])
def test_few_rows_warn_and_say_little(name, y):
    x = np.arange(len(y))[:, None] * 1.0
    with pytest.warns(PrismGPWarning, match="too few to learn"):
        model = MODELS[name].fit(x, y)
    lower, upper = model.predict_interval([[10.0]])[0]
    spread = np.std(y) or 0.01 * np.mean(y)
    assert lower < np.mean(y) - 2 * spread
    assert upper > np.mean(y) + 2 * spread
    assert upper - lower < 100 * np.mean(y)
    assert model.log_density([[10.0]], [np.mean(y) + spread]) > -10


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("small_defaults")
def test_a_constant_target_warns(name):
    x = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.warns(PrismGPWarning, match="target is constant"):
        model = MODELS[name].fit(x, np.full(40, 5.0))
    np.testing.assert_allclose(model.predict(x), 5.0)
    lower, upper = model.predict_interval(x).T
    assert (lower < 5.0).all()
    assert (upper > 5.0).all()
    assert (upper - lower < 50.0).all()


def covered(model, rng, n, noise, d):
    """Share of new observations of a smooth random function in their 95% intervals."""
    x = rng.uniform(size=(n + 30, d))
    lengthscale = np.exp(rng.uniform(np.log(0.1), np.log(2.0)))
    kernel = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(2) / lengthscale**2) + 1e-9 * np.eye(n + 30)
    y = np.linalg.cholesky(kernel) @ rng.normal(size=n + 30) + noise * rng.normal(size=n + 30)
    lower, upper = model.fit(x[:n], y[:n]).predict_interval(x[n:]).T
    return np.mean((lower <= y[n:]) & (y[n:] <= upper))


SIZES = {"exact": [1, 2, 3, 5, 10, 19], "ssgp": [3, 15], "neighbors": [2, 5, 10, 19], "prism": [3, 15]}
EVERY_TIME = (1, 2, 3, 10)
DRAWS = {"exact": 12, "ssgp": 3, "neighbors": 6, "prism": 2}  # of each noise and dimension: what they cost differs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*too few to learn:prismgp.exceptions.PrismGPWarning")
@pytest.mark.parametrize(
    ("name", "n"),
    [
        pytest.param(name, n, marks=() if n in EVERY_TIME else pytest.mark.nightly)
        for name in MODELS
        for n in SIZES[name]
    ],
)
def test_intervals_of_few_rows_cover(name, n):
    rng = np.random.default_rng(n)
    draws = [(noise, d) for noise in (0.0, 0.1, 0.3) for d in (1, 2)] * DRAWS[name]
    inside = [covered(MODELS[name], rng, n, *each) for each in draws]
    # The standard error of few draws is allowed for.
    assert np.mean(inside) > 0.9 - (0.0 if name == "exact" else np.std(inside) / len(inside) ** 0.5)


def test_priors_fade():
    layout = default_start(2, 1)
    assert Prior.of(FEW_ROWS, layout) is None
    assert widen(layout, FEW_ROWS) is layout
    vector = layout.pack() + 1.0
    strength = [-Prior.of(n, layout).log_density(vector)[0] for n in (1, 50, 99)]
    np.testing.assert_allclose(strength[1] / strength[0], 50 / 99)
    assert strength[2] < 0.02 * strength[0]
    wider = [float(widen(layout, n).noise[0] / layout.noise[0]) for n in (1, 2, 3, 10, 99)]
    assert np.all(np.diff(wider) < 0)
    assert wider[-1] - 1 < 1e-3
    # Mean and variance of a normal sample: n - 1 degrees of freedom.
    step = 1e-6 * np.eye(len(vector))
    prior = Prior.of(5, layout)
    numeric = [(prior.log_density(vector + e)[0] - prior.log_density(vector - e)[0]) / 2e-6 for e in step]
    np.testing.assert_allclose(prior.log_density(vector)[1], numeric, rtol=1e-6, atol=1e-9)
