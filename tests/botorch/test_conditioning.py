"""Conditioning and fantasies of PrismModel."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from botorch.models import ModelListGP
from botorch.sampling import SobolQMCNormalSampler

from prismgp import ExactGPRegressor
from prismgp.botorch import PrismModel
from prismgp.exceptions import DataError
from tests.botorch.small import BATCHED, UPDATABLE, assert_close, fit, model, moments, points, targets
from tests.prism.small import data
from tests.tolerances import PREDICTION

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", UPDATABLE)
def test_conditioning_is_partial_fit(kind, q):
    regressor = fit(kind, q)
    x, y, at = points(6, seed=4), targets(6, q or 1), points(5)
    conditioned = PrismModel(regressor).condition_on_observations(x, y)
    twice = PrismModel(regressor).condition_on_observations(x[:2], y[:2]).condition_on_observations(x[2:], y[2:])
    updated = PrismModel(deepcopy(regressor).partial_fit(x.numpy(), y.numpy() if q else y[:, 0].numpy()))
    expected = moments(updated.posterior(at, observation_noise=True))
    assert_close(moments(conditioned.posterior(at, observation_noise=True)), expected, PREDICTION)
    if kind != "local":  # whose rows have residuals that depend on what was known when they came
        assert_close(moments(twice.posterior(at, observation_noise=True)), expected, PREDICTION)


@pytest.mark.parametrize("q", [1, 2])
def test_conditioning_the_exact_gp_is_a_fit_to_all_rows(q):
    parameters = {"lengthscale": [1.0, 9.0], "signal_variance": 4.0, "noise_variance": 0.05, "mean": 5.0}
    regressor = ExactGPRegressor(kernel="matern32", optimize=False, **parameters)
    x, y = data(n=40, q=q)
    new_x, new_y = points(6, seed=4), targets(6, q)
    wrapped = PrismModel(regressor.fit(x, y))
    found = wrapped.condition_on_observations(new_x[:2], new_y[:2]).condition_on_observations(new_x[2:], new_y[2:])
    all_rows = PrismModel(regressor.fit(np.vstack([x, new_x]), np.vstack([y, new_y])))
    at = points(5)
    assert_close(moments(found.posterior(at)), moments(all_rows.posterior(at)), PREDICTION)


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", BATCHED)
def test_batches_of_observations_are_taken_one_by_one(kind, q):
    wrapped = model(kind, q)
    x, y, at = points(3, 4, seed=4), targets(2, 3, 4, q or 1), points(3, 5)
    batch = wrapped.condition_on_observations(x, y)
    assert batch.batch_shape == (2, 3)
    more = batch.condition_on_observations(points(3, 2, seed=6), targets(2, 3, 2, q or 1, seed=7))
    assert more.batch_shape == (2, 3)
    mean, covariance = moments(batch.posterior(at))
    assert mean.shape == (2, 3, 5, q or 1)
    last = moments(more.posterior(at))
    for i in range(2):
        for j in range(3):
            single = wrapped.condition_on_observations(x[j], y[i, j])
            assert_close((mean[i, j], covariance[i, j]), moments(single.posterior(at[j])), PREDICTION)
    single = single.condition_on_observations(points(3, 2, seed=6)[2], targets(2, 3, 2, q or 1, seed=7)[1, 2])
    assert_close([each[1, 2] for each in last], moments(single.posterior(at[2])), PREDICTION)
    # Points without the batch dimensions of the model, and with more.
    assert wrapped.condition_on_observations(x, y).posterior(at[0]).mean.shape == (2, 3, 5, q or 1)
    assert batch.posterior(points(4, 1, 1, 2)).mean.shape == (4, 2, 3, 2, q or 1)


@pytest.mark.parametrize("kind", [kind for kind in BATCHED if kind != "prism"])  # a mixture is not jointly normal
def test_noise_of_observations_can_be_given(kind):
    """The conditional normal distribution, from joint predictions of the model before; NaN says nothing."""
    wrapped = model(kind)
    x, y, at = points(4, seed=4), targets(4, 1), points(5)
    noise = torch.tensor([0.01, 0.5, 1.0, 2.0], dtype=torch.float64)[:, None]
    missing = y.clone()
    missing[2] = torch.nan
    found = wrapped.condition_on_observations(x, missing, noise=noise)
    seen = [0, 1, 3]
    mean, covariance = (each[..., 0] for each in moments(wrapped.posterior(torch.cat([x[seen], at]))))
    inner = covariance[:3, :3] + torch.diag(noise[seen, 0])
    gain = torch.linalg.solve(inner, covariance[:3, 3:]).T
    expected = mean[3:] + gain @ (y[seen, 0] - mean[:3]), covariance[3:, 3:] - gain @ covariance[:3, 3:]
    assert_close([each[..., 0] for each in moments(found.posterior(at))], expected, PREDICTION)


@pytest.mark.parametrize("kind", BATCHED)
def test_some_outputs_can_be_observed_alone(kind):
    wrapped = model(kind, 2)
    x, y, at = points(3, 4, seed=4), targets(3, 4, 2), points(3, 5)
    both = moments(wrapped.condition_on_observations(x, y).posterior(at))
    alone = wrapped.subset_output([1]).condition_on_observations(x, y[..., 1:])
    assert_close(moments(alone.posterior(at)), [each[..., 1:] for each in both], PREDICTION)


@pytest.mark.parametrize("kind", BATCHED)
def test_fantasies(kind):
    wrapped = model(kind, 2)
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    x = points(3, 2, seed=4).requires_grad_()
    fantasy = wrapped.fantasize(x, sampler)
    assert fantasy.batch_shape == (4, 3)
    at = points(3, 5)
    posterior = fantasy.posterior(at)
    assert posterior.mean.shape == (4, 3, 5, 2)
    if kind != "prism":  # whose variance has the spread of the experts' means
        assert_close((posterior.variance[0],), (posterior.variance[3],), 1e-12)  # what is seen does not change it
        less = (wrapped.posterior(at).variance - posterior.variance[0]).detach()
        assert float(less.min()) > -1e-12  # none where hard gates separate the points
        assert float(less.max()) > 0.0
        nearly_exact = torch.full((3, 2, 2), 1e-6, dtype=torch.float64)
        seen = wrapped.fantasize(x.detach(), sampler, observation_noise=nearly_exact)
        assert float(seen.posterior(x.detach()).variance.max()) < 1e-5
    (gradient,) = torch.autograd.grad(posterior.variance.sum(), x)
    assert bool(gradient.isfinite().all())
    assert float(gradient.abs().max()) > 0.0


def test_gradients_by_the_observations():
    wrapped = model("ssgp")
    at = points(2)

    def conditioned(x, y):
        return moments(wrapped.condition_on_observations(x, y).posterior(at))

    inputs = points(3, seed=4).requires_grad_(), targets(3, 1).requires_grad_()
    assert torch.autograd.gradcheck(conditioned, inputs, atol=1e-4)


@pytest.mark.parametrize("kind", ["neighbors", "local"])
def test_neighbours_take_no_batches(kind):
    wrapped = model(kind)
    with pytest.raises(DataError, match=r'one set of observations.*local="never"'):
        wrapped.fantasize(points(2), SobolQMCNormalSampler(torch.Size([2])))
    with pytest.raises(DataError, match="leave noise out"):
        wrapped.condition_on_observations(points(2), targets(2, 1), noise=targets(2, 1))
    with pytest.raises(DataError, match="detach"):
        wrapped.condition_on_observations(points(2).requires_grad_(), targets(2, 1))


def test_observations_of_another_shape_are_refused():
    with pytest.raises(DataError, match=r"Y must have shape \(..., 3, 2\)"):
        model("ssgp", 2).condition_on_observations(points(3), targets(3, 1))
    with pytest.raises(TypeError, match="unknown arguments: weights"):
        model("ssgp").condition_on_observations(points(3), targets(3, 1), weights=None)


def test_lists_of_models():
    parts = [model("ssgp"), model("exact")]
    both = ModelListGP(*parts)
    x, at = points(3, 2, seed=4), points(3, 4)
    mean, covariance = moments(both.posterior(at, observation_noise=True))
    for k, part in enumerate(parts):
        expected = moments(part.posterior(at, observation_noise=True))
        assert_close((mean[..., k : k + 1], covariance[..., k : k + 1]), expected, PREDICTION)
    fantasy = both.fantasize(x, SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasy.posterior(at).mean.shape == (4, 3, 4, 2)
    y = targets(3, 2, 2)
    conditioned = both.condition_on_observations([x, x], y)
    mean, covariance = moments(conditioned.posterior(at))
    for k, part in enumerate(parts):
        expected = moments(part.condition_on_observations(x, y[..., k : k + 1]).posterior(at))
        assert_close((mean[..., k : k + 1], covariance[..., k : k + 1]), expected, PREDICTION)
