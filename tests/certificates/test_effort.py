"""The default effort: as much rank as the random vectors need, and no more."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp import ExactGPRegressor, SSGPRegressor, certify
from prismgp.certificates import predictions, problem
from prismgp.certificates.kernel_matrix import Limits, ReferenceKernel
from prismgp.certificates.lowrank import select_pivots
from prismgp.certificates.problem import Effort
from prismgp.core.kernels import get_kernel


def effort(n, **given):
    asked = {"rank": None, "products": None, "delta": 0.01, "tolerance": 0.01, "seconds": None, "seed": 0, **given}
    return Effort.auto(n, **asked)


def test_defaults():
    usual = effort(10_000)
    assert (usual.rank, usual.products) == (3_000, 40)
    assert usual.enough == pytest.approx(0.003)
    assert effort(100_000).rank == 2_236
    assert effort(10_000, tolerance=0.1).enough == pytest.approx(0.03)
    # More rank than the random vectors need, where it takes less time than products.
    assert (usual.least_rank, effort(100_000).least_rank, effort(1_000).least_rank) == (350, 1_106, 0)
    # Without random vectors the bounds are as good as the rank.
    for few in ({"delta": 0.0}, {"products": 0}):
        assert (effort(10_000, **few).rank, effort(10_000, **few).enough) == (1_050, 0.0)
    assert (effort(10_000, rank=70).rank, effort(10_000, rank=70).enough) == (70, 0.0)
    assert (effort(400).rank, effort(400).enough) == (250, 0.0)
    assert effort(30).rank == 30


@pytest.mark.parametrize("many", [False, True])
def test_pivots_end_where_little_remains(many, rng):
    points = torch.as_tensor(rng.normal(size=(400, 2)))
    kernel = ReferenceKernel.on(get_kernel("rbf"), points)
    if many:  # so that pivots are sought among some of the rows first
        kernel = ReferenceKernel.on(get_kernel("rbf"), points, limits=Limits(candidates=200))
    generator = torch.Generator().manual_seed(0)
    pivots, _ = select_pivots(kernel, 400, weight=None, generator=generator, enough=1e-2)
    assert 5 < len(pivots) < 200
    chosen = kernel.rows(pivots)
    known = chosen.block(kernel)
    rest = 1.0 - (known * torch.linalg.solve(chosen.block(chosen), known)).sum(0)
    assert float(rest.mean()) <= (2e-2 if many else 1e-2)
    fewer, _ = select_pivots(kernel, 3, weight=None, generator=generator, enough=1e-2)
    assert len(fewer) == 3
    more = len(pivots) + 20
    longer, _ = select_pivots(kernel, 400, weight=None, generator=generator, enough=1e-2, least_rank=more)
    assert more <= len(longer) <= more + 60  # pivots come in blocks


def test_default_rank_follows_the_noise(rng, monkeypatch):
    """The same function with more noise needs fewer pivots, and both are known to the tolerance."""
    x = rng.uniform(-3, 3, (400, 2))
    monkeypatch.setattr(problem, "FEW_ROWS", 300)
    f = np.sin(2 * x[:, 0]) + x[:, 1]
    ranks = []
    for noise in (0.5, 0.02):
        model = SSGPRegressor(16, lengthscale=1.0, signal_variance=1.0, noise_variance=noise**2, optimize=False)
        y = f + noise * rng.normal(size=400)
        found = certify(model.fit(x, y), x, y, x[:50] + 0.1, random_state=0)
        ranks.append(found.spent["rank"])
        assert max(found.mean.width.max(), found.std.width.max()) < 0.05 * noise
    assert ranks[0] < ranks[1] < 250


def test_fewer_random_vectors_where_less_is_left_than_may_be(rng, monkeypatch):
    """More rank than the variances need makes vectors superfluous; the exact GP stays inside, within the tolerance."""
    x, there = rng.uniform(-3, 3, (400, 2)), rng.uniform(-3, 3, (60, 2))
    y = np.sin(2 * x[:, 0]) + x[:, 1]
    monkeypatch.setattr(problem, "FEW_ROWS", 300)
    fixed = {"lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 0.04, "optimize": False, "normalize": False}
    model = SSGPRegressor(16, random_state=0, **fixed).fit(x, y)
    mean, std = ExactGPRegressor(**fixed).fit(x, y).predict(there, return_std=True)
    counts, sketch_task = [], predictions.sketch_task

    def recorded(*args, count, **options):
        counts.append(count)
        return sketch_task(*args, count=count, **options)

    monkeypatch.setattr(predictions, "sketch_task", recorded)
    for least in (0.0, 10.0):
        monkeypatch.setattr(problem, "LEAST_RANK", least)
        found = certify(model, x, y, there, tolerance=0.05, parts="predictions", random_state=0)
        for each, truth in ((found.mean, mean), (found.std, std)):
            assert each.contains(truth).all()
            assert each.width.max() / 2 <= 0.05 * 0.2
    assert counts[0] > 2 * counts[1]
    assert counts[1] == 24
