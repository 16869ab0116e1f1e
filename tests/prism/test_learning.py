"""PrismGPRegressor learns what networks can learn, and does no harm where there is nothing to learn."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import PrismGPWarning
from prismgp.prism import RevisedMap
from tests.prism.small import has_members, nightly_seeds

# The neighbours beside the networks are tested in test_local.py.
pytestmark = pytest.mark.usefixtures("short_local")

# -- it learns -------------------------------------------------------------------------------------


LEARNING = {
    "n_members": 1,
    "lengthscale": 1.0,
    "max_steps": 150,
    "hidden": (16, 16),
    "latent_dim": 4,
    "n_components": 4,
    "batch_size": 128,
    "max_iter": 30,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_seeds(2))
def test_a_discontinuity(seed):
    """Few frequencies of the inputs cannot jump; a network can."""
    rng = np.random.default_rng(seed)

    def truth(x):
        return np.where(x[:, 0] + x[:, 1] > 0.3, 1.5, -1.5) + np.sin(x[:, 0])

    x, new = rng.uniform(-2, 2, (600, 2)), rng.uniform(-2, 2, (1_000, 2))
    y = truth(x) + 0.1 * rng.normal(size=600)
    plain = SSGPRegressor(8, lengthscale=1.0, max_iter=30, random_state=seed).fit(x, y)
    fit = PrismGPRegressor(8, **LEARNING, random_state=seed).fit(x, y)
    errors = [np.sqrt(np.mean((each.predict(new) - truth(new)) ** 2)) for each in (fit, plain)]
    assert has_members(fit)
    assert errors[0] < 0.75 * errors[1]  # about 0.45 on average
    observed = truth(new) + 0.1 * rng.normal(size=1_000)
    assert fit.log_density(new, observed).mean() > plain.log_density(new, observed).mean() + 0.2


@pytest.mark.slow
def test_noise_that_depends_on_the_inputs():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (600, 2))
    level = np.where(x[:, 1] > 0, 0.5, 0.05) + 0.1 * np.abs(x[:, 1])
    y = np.sin(x[:, 0]) + level * rng.normal(size=600)
    fit = PrismGPRegressor(8, **{**LEARNING, "max_steps": 100, "hidden": 16}, random_state=0).fit(x, y)
    std = fit.predict(x, return_std=True)[1]
    assert np.corrcoef(std, level)[0, 1] > 0.7
    assert std[x[:, 1] > 0.2].mean() > 1.5 * std[x[:, 1] < -0.2].mean()


@pytest.mark.slow
@pytest.mark.parametrize(("jump", "rows", "error"), [(0.0, 300, 0.25), (1.5, 600, 0.4)], ids=["smooth", "jump"])
def test_irrelevant_inputs(jump, rows, error):
    """The search for length-scales gives them small scales before the network is trained."""
    rng = np.random.default_rng(0)

    def truth(x):
        return np.sin(2 * x[:, 0]) + np.where(x[:, 0] > 0.3, jump, -jump)

    x, new = rng.normal(size=(rows, 12)), rng.normal(size=(500, 12))
    y = truth(x) + 0.1 * rng.normal(size=rows)
    changes = {"lengthscale": None, "max_steps": 150, "max_iter": 10, "local": "never"}
    fit = PrismGPRegressor(8, **{**LEARNING, **changes}, random_state=0).fit(x, y)
    assert np.sqrt(np.mean((fit.predict(new) - truth(new)) ** 2)) < error
    if jump:
        network = next(expert.map for expert in fit.model_.predictor.experts if isinstance(expert.map, RevisedMap))
        scales = network.log_input_scale.exp().numpy()
        assert scales[0] > 3 * scales[1:].max()


# -- it does no harm where there is nothing to learn -----------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the fit explains no more than noise:prismgp.exceptions.PrismGPWarning")
@pytest.mark.parametrize("seed", [0, 1])
def test_pure_noise_costs_little(seed):
    """Nothing to learn: the stack must not trust members that have memorised."""
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(300, 3)), rng.normal(size=(1_000, 3))
    y, observed = rng.normal(size=300), rng.normal(size=1_000)
    plain = SSGPRegressor(6, lengthscale=1.0, max_iter=20, random_state=seed).fit(x, y)
    changes = {"n_members": 2, "max_steps": 50, "hidden": 16, "latent_dim": 2, "n_components": 3, "max_iter": 20}
    fit = PrismGPRegressor(6, **{**LEARNING, **changes}, random_state=seed).fit(x, y)
    errors = [np.sqrt(np.mean((each.predict(new) - observed) ** 2)) for each in (fit, plain)]
    assert errors[0] < 1.1 * errors[1]
    assert fit.log_density(new, observed).mean() > plain.log_density(new, observed).mean() - 0.3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noise", "linear"])
def test_never_worse_than_the_plain_ssgp_where_there_is_nothing_to_gain(kind):
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (260, 4))
    y = rng.normal(size=260) + (x @ [1.0, -2.0, 0.5, 0.0] if kind == "linear" else 0.0)
    fit = PrismGPRegressor(8, n_members=2, max_steps=50, hidden=16, random_state=0).fit(x[:200], y[:200])
    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    assert "plain SSGP" in fit.fit_status_["message"]
    (plain,) = fit.model_.predictor.experts
    same = SSGPRegressor(
        8,
        lengthscale=fit.lengthscale_,
        signal_variance=fit.signal_variance_,
        noise_variance=fit.noise_variance_,
        mean=fit.mean_,
        frequencies=fit.frequencies_,
        optimize=False,
    ).fit(x[:200], y[:200])
    for got, expected in zip(fit.predict(x, return_std=True), same.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7)
    assert plain.name == "ssgp"


def test_left_alone_it_is_the_plain_ssgp_of_the_same_seed():
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(120, 3)), rng.normal(size=120)
    fit = PrismGPRegressor(4, n_members=1, max_steps=25, hidden=8, random_state=3).fit(x, y)
    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    with pytest.warns(PrismGPWarning, match="no more than noise"):
        plain = SSGPRegressor(4, random_state=3).fit(x, y)
    (mean, std), (expected, narrow) = (each.predict(x, return_std=True) for each in (fit, plain))
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-12)
    # Rows that its parameters have not seen may make all variances larger or smaller, by one factor.
    np.testing.assert_allclose(std / narrow, std[0] / narrow[0], rtol=1e-9)
