"""How far the model's kernel matrix is from the exact one: ``E = K - K'`` in spectral and Frobenius norm."""

from __future__ import annotations

import math

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.guarantees._interval import Interval
from prismgp.guarantees._krylov import Lanczos, lanczos, ritz_shortfall
from prismgp.guarantees._lowrank import LowRank
from prismgp.guarantees._passes import Task
from prismgp.guarantees._problem import Problem
from prismgp.guarantees._rounding import growth

__all__ = ["frobenius_by_pairs", "frobenius_exact", "spectral_by_lanczos", "spectral_by_rank", "spectral_task"]

_WIDEST = 6_000  # columns of [L F] beyond which the eigenvalues of their difference are not computed
_PAIRS = 200_000  # pairs of rows at a time


def spectral_by_rank(problem: Problem, low: LowRank) -> Interval:
    """Norm of E from ``L L' - F F'``, of which E differs by something between ``-slack`` and ``excess``.   (S1)

    O(n (m + 2p)^2); the eigenvalues of ``B D B'``, B = [L, F], D = diag(1, -1), are those of
    ``G^1/2 D G^1/2`` with ``G = B'B``.
    """
    size = low.rank + problem.width
    if size > _WIDEST:
        return Interval(0.0, math.inf, 1.0, f"not attempted: {size:,} columns")
    gram = problem.target.new_zeros(size, size)
    for part, own in low.chunks():
        plain = own if low.root_weight is None else own / low.root_weight[part]
        both = torch.cat([plain, problem.features(part).wide()], 1)
        gram += both.T @ both
    values, vectors = torch.linalg.eigh(gram)
    root = vectors * values.clamp_min(0.0).sqrt()
    signs = torch.ones(size, dtype=gram.dtype, device=gram.device)
    signs[low.rank :] = -1.0
    found = torch.linalg.eigvalsh(root.T @ (signs[:, None] * root))
    rounding = growth(problem.n + size) * float(values[-1]) * 4.0
    top, bottom = max(float(found[-1]), 0.0), min(float(found[0]), 0.0)
    # What the low rank leaves was measured for weighted rows; the plain kernel has its own, no larger than n.
    excess, slack = _plain_excess(problem, low)
    lower = max(top - slack, -(bottom + excess), 0.0) - rounding
    upper = max(top + excess, slack - bottom) + rounding
    return Interval(max(lower, 0.0), upper, 1.0, f"pivoted Cholesky of rank {low.rank}")


def _plain_excess(problem: Problem, low: LowRank) -> tuple[float, float]:
    """``excess`` and ``slack`` of the kernel without weights."""
    if low.root_weight is None:
        return low.excess, low.slack
    plain = LowRank.of(low.map, problem.rows, None)
    return plain.excess, plain.slack


def spectral_task(problem: Problem, *, steps: int, starts: int, generator: torch.Generator) -> Task:
    """Lanczos on E from random starts."""
    start = torch.randn(problem.n, starts, generator=generator, dtype=torch.float64).to(problem.target)

    def after(v: Tensor, product: Tensor) -> Tensor:
        return product - _times(problem, v)

    return lanczos(start, before=lambda v: v, after=after, steps=steps)


def _times(problem: Problem, v: Tensor) -> Tensor:
    """``K'v``, in two passes over the features."""
    parts = [slice(i, min(i + 8192, problem.n)) for i in range(0, problem.n, 8192)]
    inner = v.new_zeros(problem.width, v.shape[1])
    for part in parts:
        inner += problem.features(part).wide().T @ v[part]
    return torch.cat([problem.features(part).wide() @ inner for part in parts])


def spectral_by_lanczos(found: Lanczos | None, problem: Problem, *, delta: float) -> Interval | None:
    """The largest Ritz value is a lower bound; an upper one follows with probability ``1 - delta``.       (S2)

    2k steps with E contain k steps with the psd matrix ``E^2``.
    """
    if found is None:
        return None
    least, most = found.extremes()
    ritz = max(abs(least), abs(most))
    shortfall = ritz_shortfall(problem.n, found.steps // 2, found.starts, delta)
    rounding = 2.0 * growth(2048 + problem.n // 512) * problem.n
    upper = math.inf if shortfall >= 1.0 else ritz / math.sqrt(1.0 - shortfall) + rounding
    method = f"Lanczos, {found.steps} products, {found.starts} starts"
    return Interval(max(ritz - rounding, 0.0), upper, 1.0 - delta, method)


def frobenius_exact(problem: Problem) -> Interval:
    """All entries, tile by tile: O(n^2 (d + 2p)) time, memory of a tile."""
    every = problem.features(slice(None))
    total = [0.0]

    def use(i: slice, j: slice, tile: Tensor) -> None:
        tile -= every.rows(i).block(every.rows(j))
        total[0] += float(tile.square_().sum()) * (1.0 if i == j else 2.0)

    problem.rows.tiles(use)
    norm = math.sqrt(total[0])
    wrong = problem.n * (2.0 * float(problem.rows.row_error.square().mean().sqrt()) + 2.0 * growth(every.phi.shape[1]))
    return Interval(max(norm - wrong, 0.0), norm + wrong, 1.0, "all entries")


def frobenius_by_pairs(problem: Problem, *, pairs: int, delta: float, seed: int) -> Interval:
    """A random sample of pairs; empirical Bernstein (Maurer and Pontil, 2009), both sides.                 (S3)

    Squared entries lie in [0, 4]; the diagonal is added as it is. Cost independent of n but for that.
    """
    n = problem.n
    own = problem.features(slice(None))
    diagonal = 1.0 - own.phi.square().sum(1) * (1.0 if own.gates is None else own.gates.square().sum(1))
    rng = np.random.default_rng(seed)
    device = problem.target.device
    squares = []
    for start in range(0, pairs, _PAIRS):
        count = min(_PAIRS, pairs - start)
        u = rng.integers(0, n, count)
        v = rng.integers(0, n - 1, count)
        v = v + (v >= u)
        index = torch.as_tensor(np.concatenate([u, v]), device=device)
        rows = problem.rows.rows(index)
        features = problem.features(index)
        exact = rows.rows(slice(0, count)).paired(rows.rows(slice(count, None)))
        ours = (features.phi[:count] * features.phi[count:]).sum(1)
        if features.gates is not None:
            ours = ours * (features.gates[:count] * features.gates[count:]).sum(1)
        squares.append((exact - ours).square())
    z = torch.cat(squares)
    log = math.log(4.0 / delta)
    mean, variance = float(z.mean()), float(z.var())
    margin = math.sqrt(2.0 * variance * log / pairs) + 7.0 * 4.0 * log / (3.0 * (pairs - 1))
    count_all = n * (n - 1)
    known = float(diagonal.square().sum())
    lower, upper = (math.sqrt(known + count_all * max(mean + sign * margin, 0.0)) for sign in (-1.0, 1.0))
    return Interval(lower, upper, 1.0 - delta, f"{pairs:,} pairs of rows")
