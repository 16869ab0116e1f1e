"""Small fits of every kind, each made once."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from prismgp import ExactGPRegressor, NeighborGPRegressor, SSGPRegressor
from prismgp.botorch import PrismModel
from prismgp.prism import LocalMixture, local_fit
from tests.prism.small import data, has_members
from tests.prism.small import model as prism

KINDS = ["ssgp", "hard", "soft", "exact", "neighbors", "prism", "local"]
BATCHED = ["ssgp", "hard", "soft", "exact", "prism"]  # kinds that take batches of observations
UPDATABLE = [kind for kind in KINDS if kind != "exact"]  # with partial_fit


@cache
def _fit(kind, q):
    x, y = data(n=220, q=q)
    spectrum = {"n_frequencies": 8, "max_iter": 5, "n_components": 3, "random_state": 0}
    if kind in ("ssgp", "hard", "soft"):
        return SSGPRegressor(**spectrum, gating="none" if kind == "ssgp" else kind).fit(x, y)
    if kind == "exact":
        return ExactGPRegressor(kernel="matern52", max_iter=5).fit(x[:120], y[:120])
    if kind == "neighbors":
        return NeighborGPRegressor(n_neighbors=12, max_iter=10, random_state=0).fit(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_fit, "FEW", replace(local_fit.FEW, steps=5, searches=1, batch_rows=64))
        fit = prism(local="always" if kind == "local" else "never", n_neighbors=12).fit(x, y)
    assert has_members(fit)
    assert isinstance(fit.model_.predictor, LocalMixture) == (kind == "local")
    return fit


def fit(kind, q=None):
    """A fitted regressor that the test may change."""
    return deepcopy(_fit(kind, q))


def model(kind, q=None):
    return PrismModel(_fit(kind, q))


def points(*shape, seed=1):
    """Points (..., 2) among the training inputs, and none of them."""
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.uniform(-2, 2, (*shape, 2)) * np.array([1.0, 10.0]) + 3.0)


def targets(*shape, seed=2):
    """Observations, in the units of the training targets."""
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape) * 2.0 + 5.0)


def moments(posterior):
    """Mean, (..., n, q), and covariance of each output, (..., n, n, q), of a posterior."""
    mean, distribution = posterior.mean, posterior.distribution
    n, q = mean.shape[-2:]
    whole = distribution.covariance_matrix
    blocks = [whole[..., k * n : (k + 1) * n, k * n : (k + 1) * n] for k in range(q)]
    between = whole.clone()
    for k in range(q):
        between[..., k * n : (k + 1) * n, k * n : (k + 1) * n] = 0.0
    assert bool((between == 0).all())  # outputs are independent
    return mean, torch.stack(blocks, -1)


def assert_close(found, expected, tolerance):
    """Equal relative to the largest value."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance * float(b.detach().abs().max()))
