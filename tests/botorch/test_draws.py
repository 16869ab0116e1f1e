"""Function draws of PrismModel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.models import ModelListGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.posterior_samplers import get_matheron_path_model

from prismgp import ExactGPRegressor
from prismgp.botorch import PrismModel
from prismgp.exceptions import DataError
from tests.botorch.small import BATCHED, KINDS, model, moments, points, targets
from tests.prism.small import data

pytestmark = pytest.mark.slow

COUNT = 4_000


def draw(wrapped, *shape, seed=0):
    torch.manual_seed(seed)
    return draw_matheron_paths(wrapped, torch.Size(shape))


def conditioned(kind):
    return model(kind).condition_on_observations(points(6, seed=4), targets(6, 1))


# Neighbours are left out: their draws have the covariance of each point's own neighbours.
@pytest.mark.parametrize("make", [model, conditioned])
@pytest.mark.parametrize("kind", BATCHED)
def test_draws_have_the_moments_of_the_posterior(kind, make):
    wrapped = make(kind)
    x = points(3)
    mean, covariance = (each[..., 0] for each in moments(wrapped.posterior(x)))
    values = draw(wrapped, COUNT)(x)
    assert values.shape == (COUNT, 3)
    spread = covariance.diagonal().sqrt()
    # Five standard errors; those of the exact GP's prior, of 1,024 frequencies, are a few percent.
    slack = 0.15 if kind == "exact" else 0.0
    assert bool(((values.mean(0) - mean).abs() < (5 * COUNT**-0.5 + slack) * spread).all())
    difference = (torch.cov(values.T) - covariance).abs() / torch.outer(spread, spread)
    tails = 3.0 if kind == "prism" else 1.0  # a mixture of normal distributions has a larger fourth moment
    assert float(difference.max()) < 5 * tails * (2 / COUNT) ** 0.5 + slack


def test_draws_know_the_weights_of_the_rows():
    """Rows of weight 100 are hardly noisy: draws of the posterior vary there as the posterior says."""
    x, y = data(n=120)
    options = {"lengthscale": [1.0, 10.0], "signal_variance": 4.0, "noise_variance": 1.0, "optimize": False}
    fit = ExactGPRegressor(**options).fit(x, y, sample_weight=np.where(np.arange(120) < 60, 100.0, 0.25))
    wrapped, at = PrismModel(fit), torch.as_tensor(x[[0, 1, 100]])
    covariance = moments(wrapped.posterior(at))[1][..., 0]
    spread = covariance.diagonal().sqrt()
    found = torch.cov(draw(wrapped, COUNT)(at).T)
    assert float(((found - covariance).abs() / torch.outer(spread, spread)).max()) < 5 * (2 / COUNT) ** 0.5 + 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_a_function(kind):
    wrapped = model(kind)
    x = points(2, 3, 4)
    path = draw(wrapped, 5)
    whole = path(x[:, :, None])
    assert whole.shape == (2, 3, 5, 4)
    torch.testing.assert_close(path(x[1, 2]), whole[1, 2])
    torch.testing.assert_close(draw(wrapped, 5)(x[0, 0]), whole[0, 0])  # by the seed of torch
    assert not torch.allclose(draw(wrapped, 5, seed=1)(x[0, 0]), whole[0, 0])
    # Every function at points of its own, as in Thompson sampling.
    own = points(3, 5, 1)
    found = path(own)
    assert found.shape == (3, 5, 1)
    for k in range(5):
        torch.testing.assert_close(found[:, k], path(own[:, k, None])[:, k])
    at = points(2, seed=3).requires_grad_()
    eps, atol = (1e-4, 2e-2) if kind == "local" else (1e-6, 1e-4)
    assert torch.autograd.gradcheck(path, (at,), eps=eps, atol=atol)


def test_shapes_of_botorch():
    x = points(4, 3)
    assert draw(model("ssgp"))(x).shape == (4, 3)
    assert draw(model("ssgp"), 2, 5)(x[:, None, None]).shape == (4, 2, 5, 3)
    several = model("ssgp", 2)
    path = draw(several, 5)
    assert path(x[0]).shape == (5, 2, 3)
    torch.manual_seed(0)
    values = get_matheron_path_model(several, torch.Size([5]))(x[:, None])
    assert values.shape == (4, 5, 3, 2)
    torch.testing.assert_close(values[0].mT, path(x[0]))
    torch.manual_seed(0)
    chosen = draw_matheron_paths(several.subset_output([1]), torch.Size([5]))
    torch.testing.assert_close(chosen(x[0]), path(x[0])[:, 1])
    both = ModelListGP(model("ssgp"), model("prism"))
    assert get_matheron_path_model(both, torch.Size([5]))(x[:, None]).shape == (4, 5, 3, 2)


def test_a_batch_of_models_is_refused():
    batch = model("ssgp").condition_on_observations(points(2, 1), targets(2, 1, 1))
    with pytest.raises(DataError, match=r"batch of models, shape \(2,\)"):
        draw(batch, 1)
