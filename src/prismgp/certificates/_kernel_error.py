"""How far the model's kernel matrix is from the exact one: ``E = K - K'`` in spectral and Frobenius norm."""

from __future__ import annotations

import math

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.certificates._interval import Interval
from prismgp.certificates._krylov import Lanczos, lanczos, random_starts, ritz_shortfall
from prismgp.certificates._lowrank import LowRank
from prismgp.certificates._matrix import KernelMatrix, summed
from prismgp.certificates._passes import Task
from prismgp.certificates._problem import Problem
from prismgp.certificates._rounding import growth
from prismgp.certificates._thin import times_thin

__all__ = [
    "FrobeniusSum",
    "frobenius_by_pairs",
    "frobenius_exact",
    "spectral_by_lanczos",
    "spectral_by_rank",
    "spectral_task",
]

_WIDEST = 6_000  # columns of [L F] beyond which the eigenvalues of their difference are not computed
_LONGEST = 4e12  # multiply-adds beyond which neither are they
_QR_NUMBERS = 2**23  # of the matrix that is triangularised at a time; the fewer, the more often what is done is redone
_BESIDE, _OF_NORM = 1e-2, 1e-4  # of what the rank leaves, or of the norm: what B'B in place of B may cost
_NUMBERS = 2**25  # features of sampled pairs at a time


def spectral_by_rank(problem: Problem, low: LowRank) -> Interval:
    """Norm of E from ``L L' - F F'``, of which E differs by something between ``-slack`` and ``excess``.   (F1)

    O(n (m + 2p)^2). The eigenvalues of ``B D B'``, B = [L, F], D = diag(1, -1), are those of ``R D R'`` with
    ``R'R = B'B``.
    """
    size = low.rank + problem.width
    if size > _WIDEST or problem.n * size**2 > _LONGEST:
        return Interval(0.0, math.inf, 1.0, f"not attempted: {size:,} columns")
    gram = _gram(problem, low)
    of_low, of_model = gram[: low.rank, : low.rank], gram[low.rank :, low.rank :]
    largest = low.largest if low.root_weight is None else _largest(of_low)
    known = float(of_low.trace())
    slack, trace_error = low.plain_error.of_product(problem.n + low.rank, known, largest)
    excess = max(problem.n - known, 0.0) + trace_error + slack
    whole, every = (largest + _largest(of_model)) ** 0.5, float(gram.trace())  # |B| at the most, and |B|_F^2
    # (F1b) The factor of B'B + j I is that of B with rows below it whose Gram matrix is j I and rounding. B D B' is a
    # corner of what is then looked at: its ends lie within, and no further than the norm of what is beside it.
    jitter = 4.0 * growth(problem.n + size) * every
    beside = (2.0 * jitter) ** 0.5 * whole + 2.0 * jitter
    rounding = 2.0 * growth(problem.n + size) * every
    factor, failed = torch.linalg.cholesky_ex(gram.diagonal_scatter(gram.diagonal() + jitter), upper=True)
    ends = None if int(failed) else _extremes(factor, low.rank)
    if ends is None or beside > max(_BESIDE * excess, _OF_NORM * max(ends[0], -ends[1])):
        # By orthogonal steps, as B'B loses half of the digits where L and F span the same.
        ends, beside = _extremes(_triangle(problem, low), low.rank), 0.0
    top, bottom = ends
    lower = max(top - beside - slack, -(bottom + beside + excess), 0.0) - rounding
    upper = max(top + excess, slack - bottom) + rounding
    return Interval(max(lower, 0.0), upper, 1.0, f"pivoted Cholesky of rank {low.rank}")


def _columns(problem: Problem, low: LowRank, part: slice) -> tuple[Tensor, Tensor]:
    """L and F of some rows; of the plain kernel: weights are the noise's."""
    own = low.features(part) if low.root_weight is None else low.features(part) / low.root_weight[part]
    return own, problem.features(part).wide()


def _gram(problem: Problem, low: LowRank) -> Tensor:
    """``B'B`` for ``B = [L, F]``."""
    gram = problem.target.new_zeros(low.rank + problem.width, low.rank + problem.width)
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
    size = low.rank + problem.width
    factor = problem.target.new_zeros(0, size)
    step = max(2 * size, _QR_NUMBERS // size)
    for start in range(0, problem.n, step):
        part = slice(start, min(start + step, problem.n))
        rows = torch.cat([factor, torch.cat(_columns(problem, low, part), 1)])
        factor = torch.linalg.qr(rows, mode="r").R
    return factor


def _extremes(factor: Tensor, rank: int) -> tuple[float, float]:
    """Largest and smallest eigenvalue of ``R D R'``, zero being among them."""
    signs = torch.ones(factor.shape[1], dtype=factor.dtype, device=factor.device)
    signs[rank:] = -1.0
    found = torch.linalg.eigvalsh((factor * signs) @ factor.T)
    return max(float(found[-1]), 0.0), min(float(found[0]), 0.0)


def _largest(gram: Tensor) -> float:
    return float(torch.linalg.eigvalsh(gram)[-1:].sum())


def spectral_task(problem: Problem, *, steps: int, starts: int, generator: torch.Generator) -> Task:
    """Lanczos on E from random starts."""
    start = random_starts(problem.n, starts, generator, like=problem.target)

    def after(v: Tensor, product: Tensor) -> Tensor:
        return product - _times(problem, v)

    return lanczos(start, before=lambda v: v, after=after, steps=steps)


def _times(problem: Problem, v: Tensor) -> Tensor:
    """``K'v``, in two passes over the features."""
    parts = [slice(i, min(i + 8192, problem.n)) for i in range(0, problem.n, 8192)]
    inner = v.new_zeros(problem.width, v.shape[1])
    for part in parts:
        inner += times_thin(problem.features(part).wide().T, v[part])
    return torch.cat([times_thin(problem.features(part).wide(), inner) for part in parts])


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
    rounding = 2.0 * growth(summed(problem.rows) + problem.width) * n + 2.0 * math.sqrt(n * entries)
    upper = math.inf if shortfall >= 1.0 else ritz / math.sqrt(1.0 - shortfall) + rounding
    method = f"Lanczos, {found.steps} products, {found.starts} starts"
    return Interval(max(ritz - rounding, 0.0), upper, 1.0 - delta, method)


class FrobeniusSum:
    """All entries of E, from the tiles of a pass over K: O(n^2 (d + 2p)) time, memory of a tile."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._every = problem.features(slice(None))
        self._squares = problem.target.new_zeros(())
        self._scratch = problem.target.new_empty(0)
        self._tiles = 0

    def look(self, i: slice, j: slice, tile: Tensor) -> None:
        """Take note of a tile on or above the diagonal."""
        # In memory that is used again: fresh memory takes longer than the arithmetic.
        if len(self._scratch) < tile.numel():
            self._scratch = tile.new_empty(tile.numel())
        error = self._scratch[: tile.numel()]
        self._every.rows(i).less(tile, self._every.rows(j), error.view(tile.shape))
        self._squares += error.dot(error) * (1.0 if i == j else 2.0)
        self._tiles += 1

    def interval(self) -> Interval:
        """The norm, once all tiles were shown."""
        norm = math.sqrt(float(self._squares))
        entries = 2.0 * float(self.problem.rows.row_error.square().mean().sqrt())
        wrong = self.problem.n * (entries + 2.0 * growth(self._every.phi.shape[1]))
        wrong += growth(len(self._scratch) + self._tiles) * norm
        return Interval(max(norm - wrong, 0.0), norm + wrong, 1.0, "all entries")


def frobenius_exact(problem: Problem) -> Interval:
    """All entries, in a pass of their own."""
    entries = FrobeniusSum(problem)
    KernelMatrix(problem.rows).tiles(entries.look)
    return entries.interval()


def frobenius_by_pairs(problem: Problem, *, pairs: int, delta: float, seed: int) -> Interval:
    """A random sample of pairs; empirical Bernstein (Maurer and Pontil, 2009), both sides.                 (F3)

    Squared entries lie in [0, 4]; the diagonal is added as it is. Cost independent of n but for that.
    """
    n = problem.n
    own = problem.features(slice(None))
    diagonal = 1.0 - own.phi.square().sum(1) * (1.0 if own.gates is None else own.gates.square().sum(1))
    rng = np.random.default_rng(seed)
    device = problem.target.device
    squares = []
    step = max(1, _NUMBERS // (2 * own.phi.shape[1]))
    for start in range(0, pairs, step):
        count = min(step, pairs - start)
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
