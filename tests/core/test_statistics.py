"""Any chunking and any merge order give the same statistics."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from prismgp.core.features import projection
from prismgp.core.models import Standardiser
from prismgp.core.statistics import SpectralStatistics
from prismgp.data import ArraySource, Chunks, fit_standardiser
from tests.tolerances import FLOAT32, STATISTICS

CPU = torch.device("cpu")


def statistics(x, y, standardiser, w, *, rows):
    chunks = Chunks(ArraySource(x, y), standardiser, rows=rows, dtype=w.dtype, device=CPU)
    return SpectralStatistics(w).over(chunks, rows=chunks.rows, q=y.shape[1])


@pytest.fixture
def problem(rng):
    x, y = rng.normal(size=(1000, 4)) * 3 + 5, rng.normal(size=(1000, 2))
    standardiser = fit_standardiser(ArraySource(x, y), normalize=True)
    w = projection(rng.normal(size=(9, 4)), np.ones(4), dtype=torch.float64, device=CPU)
    return x, y, standardiser, w


def close(a, b, tolerance):
    scale = float(b.moments.abs().max())
    assert a.n == b.n
    assert float((a.moments - b.moments).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("rows", [1, 7, 100, 999, 1000, 5000])
def test_chunking(problem, rows):
    x, y, standardiser, w = problem
    close(statistics(x, y, standardiser, w, rows=rows), statistics(x, y, standardiser, w, rows=1000), STATISTICS)


def test_merge_order(problem, rng):
    x, y, standardiser, w = problem
    whole = statistics(x, y, standardiser, w, rows=1000)
    edges = [0, *sorted(rng.choice(np.arange(1, 1000), 6, replace=False)), 1000]
    parts = [statistics(x[a:b], y[a:b], standardiser, w, rows=64) for a, b in itertools.pairwise(edges)]
    for _ in range(5):
        order = rng.permutation(len(parts))
        close(functools.reduce(lambda a, b: a.merge(b), [parts[i] for i in order]), whole, STATISTICS)
    tree = parts[0].merge(parts[1]).merge(parts[2].merge(parts[3])).merge(parts[4].merge(parts[5].merge(parts[6])))
    close(tree, whole, STATISTICS)


def test_blocks_are_what_they_say(problem):
    x, y, standardiser, w = problem
    stats = statistics(x, y, standardiser, w, rows=128)
    z = ((x - x.mean(0)) / x.std(0)) @ w.numpy()
    phi = np.hstack([np.cos(z), np.sin(z)]) / 3.0
    targets = (y - y.mean(0)) / y.std(0)
    np.testing.assert_allclose(stats.gram, phi.T @ phi, atol=1e-9)
    np.testing.assert_allclose(stats.feature_sum, phi.sum(0), atol=1e-9)
    np.testing.assert_allclose(stats.feature_target, phi.T @ targets, atol=1e-9)
    np.testing.assert_allclose(stats.target_sum, targets.sum(0), atol=1e-9)
    np.testing.assert_allclose(stats.target_square, (targets**2).sum(0), rtol=1e-12)


def test_float32_is_accumulated_in_float64(problem):
    x, y, standardiser, w = problem
    single = statistics(x, y, standardiser, w.float(), rows=64)
    assert single.moments.dtype == torch.float64
    close(single, statistics(x, y, standardiser, w, rows=64), FLOAT32)


def test_many_float32_chunks_do_not_drift():
    """Adding 2^14 chunks of ones in float32 would lose counts beyond 2^24."""
    n = 1 << 14
    x = np.zeros((n, 1), dtype=np.float32)
    y = np.full((n, 1), 4097.0, dtype=np.float32)
    identity = Standardiser(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1), np.zeros(1))
    w = torch.zeros(1, 1, dtype=torch.float32)
    stats = statistics(x, y, identity, w, rows=16)
    assert float(stats.target_sum[0]) == 4097.0 * n


def test_different_maps_do_not_merge(problem):
    x, y, standardiser, w = problem
    with pytest.raises(ValueError, match="different feature maps"):
        statistics(x, y, standardiser, w, rows=64).merge(statistics(x, y, standardiser, w[:, :5], rows=64))
