"""Acquisition functions of BoTorch on PrismModel, from start to end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    PosteriorMean,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qNegIntegratedPosteriorVariance,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from prismgp import SSGPRegressor
from prismgp.botorch import PrismModel
from tests.botorch.small import BATCHED, KINDS, model, points

pytestmark = pytest.mark.slow

BOUNDS = torch.tensor([[1.0, -17.0], [5.0, 23.0]], dtype=torch.float64)
SAMPLER = SobolQMCNormalSampler(torch.Size([16]), seed=0)
BASELINE = points(6, seed=4)


def log_ei(wrapped):
    return LogExpectedImprovement(wrapped, best_f=9.0)


def q_log_ei(wrapped):
    return qLogExpectedImprovement(wrapped, best_f=9.0, sampler=SAMPLER)


def q_log_nei(wrapped):
    kept = wrapped._supports_cache_root
    return qLogNoisyExpectedImprovement(wrapped, BASELINE, sampler=SAMPLER, prune_baseline=False, cache_root=kept)


def variance(wrapped):
    # In a unit in which derivatives are not taken for zero by the optimiser.
    unit = ScalarizedPosteriorTransform(torch.tensor([100.0], dtype=torch.float64))
    return qNegIntegratedPosteriorVariance(wrapped, mc_points=points(20, seed=5), posterior_transform=unit)


def thompson(wrapped):
    torch.manual_seed(0)
    return PathwiseThompsonSampling(wrapped)


def optimise(acquisition, q):
    torch.manual_seed(0)
    options = {"maxiter": 15}
    return optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=16, options=options)


# Neighbours take no fantasies, see test_neighbours_take_no_batches.
CASES = [
    (kind, make, q)
    for make, q, kinds in [
        (log_ei, 1, KINDS),
        (q_log_ei, 2, ["ssgp", "prism"]),
        (q_log_nei, 2, ["ssgp", "prism", "neighbors"]),
        (variance, 2, BATCHED),
        (thompson, 2, ["ssgp", "exact", "neighbors", "prism"]),
    ]
    for kind in kinds
]


@pytest.mark.parametrize(("kind", "make", "q"), CASES)
@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # at jumps, of neighbours and hard gates
@pytest.mark.filterwarnings("ignore:A not p.d.")  # two points of a function of few frequencies
def test_optimised_points_are_better_than_random_ones(kind, make, q):
    acquisition = make(model(kind))
    with torch.no_grad():
        random = torch.stack([acquisition(each) for each in points(16, q, seed=6)])
    candidate, value = optimise(acquisition, q)
    assert candidate.shape == (q, 2)
    assert bool(((candidate >= BOUNDS[0]) & (candidate <= BOUNDS[1])).all())
    torch.testing.assert_close(acquisition(candidate).reshape(()), value.reshape(()))
    assert float(value) >= float(random.max())


def test_cached_roots_change_nothing():
    wrapped = model("ssgp")
    settings = {"X_baseline": BASELINE, "prune_baseline": False, "sampler": SAMPLER}
    with_root, without = (
        qLogNoisyExpectedImprovement(wrapped, cache_root=cached, **settings) for cached in (True, False)
    )
    x = points(5, 2, seed=6)
    torch.testing.assert_close(with_root(x), without(x), rtol=1e-4, atol=1e-4)  # jitter


def test_a_loop_finds_the_maximum():
    """Bayesian optimisation of a paraboloid: conditioned after every evaluation, never fitted again."""
    best = np.array([0.3, 0.7])

    def function(x):
        return 1.0 - ((x - best) ** 2).sum(-1)

    x = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = function(x.numpy())
    wrapped = PrismModel(SSGPRegressor(n_frequencies=16, max_iter=50, random_state=0).fit(x, y))
    torch.manual_seed(0)
    unit = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for _ in range(6):
        acquisition = LogExpectedImprovement(wrapped, best_f=float(y.max()))
        new, _ = optimize_acqf(acquisition, unit, q=1, num_restarts=2, raw_samples=32, options={"maxiter": 30})
        value = function(new.numpy())
        wrapped = wrapped.condition_on_observations(new, torch.as_tensor(value)[:, None])
        y = np.append(y, value)
    assert y.max() > 1.0 - 5e-3  # with so few rows the model assumes some noise
    found, _ = optimize_acqf(PosteriorMean(wrapped), unit, q=1, num_restarts=2, raw_samples=32)
    np.testing.assert_allclose(found[0], best, atol=0.05)
