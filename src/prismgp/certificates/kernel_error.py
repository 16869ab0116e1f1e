"""How far the model's kernel matrix is from the exact one: ``E = K - K'`` in spectral and Frobenius norm."""

from __future__ import annotations

import math

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.certificates.certificate import Interval
from prismgp.certificates.kernel_matrix import KernelMatrix, growth
from prismgp.certificates.krylov import Lanczos, Task, lanczos, random_starts, ritz_shortfall
from prismgp.certificates.lowrank import LowRank
from prismgp.certificates.problem import Problem

_LONGEST = 4e12  # multiply-adds beyond which the eigenvalues of the difference of L L' and F F' are not computed
_QR_NUMBERS = 2**23  # of the matrix that is triangularised at a time; fewer repeat more work


def spectral_by_rank(problem: Problem, low: LowRank) -> Interval:
    """Norm of E from ``L L' - F F'``, from which E differs by a matrix between ``-slack I`` and ``excess I``.   (F1)

    O(n (m + 2p)^2). The eigenvalues of ``B D B'``, B = [L, F], D = diag(1, -1), are those of ``R D R'`` with
    ``R'R = B'B``.
    """
    limits, size = problem.rows.limits, low.rank + problem.features.width
    if size > limits.widest or problem.n * size**2 > _LONGEST:
        return Interval(0.0, math.inf, 1.0, f"not attempted: {size:,} columns")
    gram = _gram(problem, low)
    of_low, of_model = gram[: low.rank, : low.rank], gram[low.rank :, low.rank :]
    largest = low.largest if low.root_weight is None else _largest_eigenvalue(of_low)
    known = float(of_low.trace())
    slack, trace_error = low.plain_error.of_product(problem.n + low.rank, known, largest)
    excess = max(problem.n - known, 0.0) + trace_error + slack
    whole, every = (largest + _largest_eigenvalue(of_model)) ** 0.5, float(gram.trace())  # |B| at most, and |B|_F^2
    # (F1b) The factor of B'B + j I is that of B with rows below it whose Gram matrix is j I and rounding. B D B' is a
    # corner of the matrix whose eigenvalues are computed: its own extremes lie between them, and no further than the
    # norm of the blocks beside it.
    jitter = 4.0 * growth(problem.n + size) * every
    beside = (2.0 * jitter) ** 0.5 * whole + 2.0 * jitter
    rounding = 2.0 * growth(problem.n + size) * every
    factor, failed = torch.linalg.cholesky_ex(gram.diagonal_scatter(gram.diagonal() + jitter), upper=True)
    ends = None if int(failed) else _extremes(factor, low.rank)
    if ends is None or beside > max(limits.gram_share * excess, limits.gram_share_of_norm * max(ends[0], -ends[1])):
        # By orthogonal steps, as B'B loses half of the digits where L and F span the same space.
        ends, beside = _extremes(_triangle(problem, low), low.rank), 0.0
    top, bottom = ends
    lower = max(top - beside - slack, -(bottom + beside + excess), 0.0) - rounding
    upper = max(top + excess, slack - bottom) + rounding
    return Interval(max(lower, 0.0), upper, 1.0, f"pivoted Cholesky of rank {low.rank}")


def _columns(problem: Problem, low: LowRank, part: slice) -> tuple[Tensor, Tensor]:
    """L and F of some rows, without weights: those belong to the noise."""
    own = low.features(part) if low.root_weight is None else low.features(part) / low.root_weight[part]
    return own, problem.features.rows(part).expand()


def _gram(problem: Problem, low: LowRank) -> Tensor:
    """``B'B`` for ``B = [L, F]``."""
    size = low.rank + problem.features.width
    gram = problem.target.new_zeros(size, size)
    if low.root_weight is None:
        gram[: low.rank, : low.rank] = (low.vectors * low.values) @ low.vectors.T
    for part in low.map.chunks(problem.n):
        own, model = _columns(problem, low, part)
        if low.root_weight is not None:
            gram[: low.rank, : low.rank] += own.T @ own
        gram[: low.rank, low.rank :] += own.T @ model
        gram[low.rank :, low.rank :] += model.T @ model
    gram[low.rank :, : low.rank] = gram[: low.rank, low.rank :].T
    return gram


def _triangle(problem: Problem, low: LowRank) -> Tensor:
    """R of ``B = O R`` with orthogonal O."""
    size = low.rank + problem.features.width
    factor = problem.target.new_zeros(0, size)
    step = max(2 * size, _QR_NUMBERS // size)
    for start in range(0, problem.n, step):
        part = slice(start, min(start + step, problem.n))
        rows = torch.cat([factor, torch.cat(_columns(problem, low, part), 1)])
        factor = torch.linalg.qr(rows, mode="r").R
    return factor


def _extremes(factor: Tensor, rank: int) -> tuple[float, float]:
    """Largest and smallest eigenvalue of ``R D R'`` and zero."""
    signs = torch.ones(factor.shape[1], dtype=factor.dtype, device=factor.device)
    signs[rank:] = -1.0
    found = torch.linalg.eigvalsh((factor * signs) @ factor.T)
    return max(float(found[-1]), 0.0), min(float(found[0]), 0.0)


def _largest_eigenvalue(gram: Tensor) -> float:
    return float(torch.linalg.eigvalsh(gram)[-1:].sum())


def spectral_task(problem: Problem, *, steps: int, starts: int, generator: torch.Generator) -> Task:
    """Lanczos on E from random starts."""
    start = random_starts(problem.n, starts, generator, like=problem.target)

    def after(v: Tensor, product: Tensor) -> Tensor:
        return product - problem.features.times(v)

    return lanczos(start, before=lambda v: v, after=after, steps=steps)


def spectral_by_lanczos(found: Lanczos | None, problem: Problem, *, delta: float) -> Interval | None:
    """The largest Ritz value is a lower bound; an upper one follows with probability ``1 - delta``.       (F2)

    2k steps with E contain k steps with the psd matrix ``E^2``.
    """
    if found is None:
        return None
    least, most = found.extremes()
    ritz = max(abs(least), abs(most))
    n, entries = problem.n, float(problem.rows.row_error.square().sum())
    shortfall = ritz_shortfall(n, found.steps // 2, found.starts, delta)
    rounding = 2.0 * growth(problem.rows.longest_sum + problem.features.width) * n + 2.0 * math.sqrt(n * entries)
    upper = math.inf if shortfall >= 1.0 else ritz / math.sqrt(1.0 - shortfall) + rounding
    method = f"Lanczos, {found.steps} products, {found.starts} starts"
    return Interval(max(ritz - rounding, 0.0), upper, 1.0 - delta, method)


class FrobeniusSum:
    """All entries of E, from the tiles of a pass over K: O(n^2 (d + 2p)) time, memory of a tile."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._squares = problem.target.new_zeros(())
        self._scratch = problem.target.new_empty(0)
        self._tiles = 0

    def add(self, i: slice, j: slice, tile: Tensor) -> None:
        """Add a tile on or above the diagonal."""
        # In memory that is used again: fresh memory takes longer than the arithmetic.
        if len(self._scratch) < tile.numel():
            self._scratch = tile.new_empty(tile.numel())
        error = self._scratch[: tile.numel()]
        own = self.problem.features
        own.rows(i).subtract_from(tile, own.rows(j), error.view(tile.shape))
        self._squares += error.dot(error) * (1.0 if i == j else 2.0)
        self._tiles += 1

    def interval(self) -> Interval:
        """The norm, once all tiles have been added."""
        norm = math.sqrt(float(self._squares))
        entries = 2.0 * float(self.problem.rows.row_error.square().mean().sqrt())
        wrong = self.problem.n * (entries + 2.0 * growth(self.problem.features.phi.shape[1]))
        wrong += growth(len(self._scratch) + self._tiles) * norm
        return Interval(max(norm - wrong, 0.0), norm + wrong, 1.0, "all entries")


def frobenius_exact(problem: Problem) -> Interval:
    """The norm from all entries, in a pass of its own."""
    entries = FrobeniusSum(problem)
    for tile in KernelMatrix(problem.rows).tiles():
        entries.add(*tile)
    return entries.interval()


def frobenius_by_pairs(problem: Problem, *, pairs: int, delta: float, seed: int) -> Interval:
    """A random sample of pairs; empirical Bernstein (Maurer and Pontil, 2009), both sides.                 (F3)

    Squared entries lie in [0, 4]; the diagonal is added as it is. Apart from that the cost is independent of n.
    """
    n, own = problem.n, problem.features
    rng = np.random.default_rng(seed)
    squares = []
    step = max(1, problem.rows.limits.pair_numbers // (2 * own.phi.shape[1]))
    for start in range(0, pairs, step):
        count = min(step, pairs - start)
        u = rng.integers(0, n, count)
        v = rng.integers(0, n - 1, count)
        v = v + (v >= u)
        first, second = (torch.as_tensor(each, device=problem.target.device) for each in (u, v))
        exact = problem.rows.rows(first).pair(problem.rows.rows(second))
        squares.append((exact - own.rows(first).pair(own.rows(second))).square())
    z = torch.cat(squares)
    log = math.log(4.0 / delta)
    mean, variance = float(z.mean()), float(z.var())
    margin = math.sqrt(2.0 * variance * log / pairs) + 7.0 * 4.0 * log / (3.0 * (pairs - 1))
    count_all = n * (n - 1)
    known = float((1.0 - own.pair(own)).square().sum())
    lower, upper = (math.sqrt(known + count_all * max(mean + sign * margin, 0.0)) for sign in (-1.0, 1.0))
    return Interval(lower, upper, 1.0 - delta, f"{pairs:,} pairs of rows")
