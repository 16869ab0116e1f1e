"""The known part of the kernel matrix: ``P = L L' + s2 I <= Q = K + s2 I`` from a few rows, the pivots.

With pivots Z and any ``C C' >= K_ZZ``, the map ``l(x) = C^-1 k(Z, x)`` has

    0 <= K - L L' <= t I,    t = n - |L|_F^2                                                            (N1)

on any rows, those of a test set included: ``K_XZ (C C')^-1 K_ZX <= K_XZ K_ZZ^-1 K_ZX <= K``. Pivots are chosen greedily
by the largest remaining diagonal (pivoted Cholesky), by whole blocks: the first m of them are the choice for rank m,
so that a larger rank knows all that a smaller one does (up to 50,000 rows).

Rows may be weighted: with noise variances ``s2 v_u`` that differ between rows, everything is written for the kernel
``K_uv / sqrt(v_u v_v)``, so that the noise is ``s2 I`` again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.certificates.kernel_matrix import UNIT, FeatureError, ReferenceKernel, growth, times_thin

_BLOCK = 48  # candidates looked at together, so that the work is in matrix products
_ENOUGH = 0.2  # of the largest remaining diagonal at which a candidate of the block still becomes a pivot
_MEASURED = 32  # rows of a chunk whose rounding errors are measured
_EXHAUSTED = 1e-13  # remaining share of the diagonal below which nothing but rounding is left


def select_pivots(
    kernel: ReferenceKernel,
    rank: int,
    *,
    weight: Tensor | None,
    generator: torch.Generator,
    enough: float = 0.0,
    least_rank: int = 0,
) -> tuple[Tensor, float]:
    """Indices of at most ``rank`` pivots, and the trace that remains among the rows that could have been one.

    ``weight``, (n,), is that of each row's remaining variance; beyond ``least_rank`` there are no more pivots than it
    takes for its mean to fall to ``enough``. Beyond 50,000 rows pivots are sought among a random part of the rows, and
    the last tenth among those that the others describe worst, so that no outlying row is left out.
    """
    most = kernel.limits.candidates
    if weight is None:
        weight = torch.ones_like(kernel.points[:, 0])
    if kernel.n <= most:
        return _choose_greedily(kernel, rank, weight, enough=enough, least=least_rank)
    some = torch.randperm(kernel.n, generator=generator)[:most].to(kernel.points.device)
    least = least_rank - least_rank // 10
    first, _ = _choose_greedily(kernel.rows(some), rank - rank // 10, weight[some], enough=enough, least=least)
    pivots = some[first]
    rank = min(rank, len(pivots) + -(-len(pivots) // 9))
    known = NystromMap.of(kernel.rows(pivots))
    explained = [known.features(kernel.rows(part))[0].square().sum(1) for part in known.chunks(kernel.n)]
    worst = ((1.0 - torch.cat(explained)).clamp_min_(0.0) * weight).topk(most // 5).indices
    # Continue from the pivots found: they come first among the rows looked at, and are taken again.
    pool = torch.cat([pivots, worst])
    more, trace = _choose_greedily(kernel.rows(pool), rank, weight[pool], given=len(pivots))
    return pool[more], trace


def _choose_greedily(
    kernel: ReferenceKernel, rank: int, weight: Tensor, *, given: int = 0, enough: float = 0.0, least: int = 0
) -> tuple[Tensor, float]:
    """Pivoted Cholesky by blocks of candidates; the first ``given`` rows are pivots in any case."""
    n = kernel.n
    left = kernel.points.new_ones(n)
    factor = kernel.points.new_zeros(min(rank, n), n)  # a row for each pivot: all that follows goes along rows
    pivots: list[int] = []
    while len(pivots) < min(rank, n):
        done = len(pivots)
        room = min(rank, n) - done
        if done < given:
            candidates = torch.arange(done, min(done + min(_BLOCK, room), given), device=left.device)
        else:
            # At first all rows are worth the same: a stable order is the same on every device.
            remaining = left * weight
            candidates = remaining.sort(descending=True, stable=True).indices[:_BLOCK]
            if float(left[candidates].max()) < _EXHAUSTED or (done >= least and float(remaining.mean()) <= enough):
                break
        known = factor[:done]
        columns = kernel.rows(candidates).block(kernel).addmm_(known[:, candidates].T, known, alpha=-1.0)
        local = columns[:, candidates]
        local.diagonal().copy_(left[candidates])  # at first exactly alike: the first is taken on every device
        # A block is looked at in full even where it does not fit: its first pivots are those of a larger rank.
        order, corner = _pivot_block(local, weight[candidates], most=room, everything=done < given)
        new = torch.linalg.solve_triangular(corner, columns[order], upper=False)
        factor[done : done + len(order)] = new
        left -= new.square_().sum(0)
        pivots.extend(candidates[order].tolist())
        left[candidates[order]] = 0.0  # exactly: only rounding remains
        left.clamp_(min=0.0)
    index = torch.as_tensor(pivots, dtype=torch.long, device=left.device)
    return index, float((left * weight).sum())


def _pivot_block(local: Tensor, weight: Tensor, *, most: int, everything: bool) -> tuple[Tensor, Tensor]:
    """Greedy order within a block of candidates, at most a given number, and the Cholesky factor in that order.

    In NumPy: hundreds of steps on vectors of some dozens of numbers, for which tensors have too much overhead.
    """
    block, worth_each = local.cpu().numpy(), weight.cpu().numpy()
    left = block.diagonal().copy()
    lower = np.zeros_like(block)
    order: list[int] = []
    taken = np.zeros(len(block), dtype=bool)
    best = (left * worth_each).max()
    for k in range(min(len(block), most)):
        worth = np.where(taken, -1.0, left * worth_each)
        i = k if everything else int(worth.argmax())
        if not everything and order and worth[i] < _ENOUGH * best:
            break
        column = (block[:, i] - lower[:, :k] @ lower[i, :k]) / max(left[i], _EXHAUSTED) ** 0.5
        lower[:, k] = column
        left -= column**2
        order.append(i)
        taken[i] = True
    factor = np.tril(lower[order, : len(order)])
    np.fill_diagonal(factor, np.maximum(factor.diagonal(), _EXHAUSTED**0.5))
    return torch.as_tensor(order, dtype=torch.long, device=local.device), torch.as_tensor(factor, device=local.device)


@dataclass(frozen=True)
class NystromMap:
    """``l(x) = C^-1 k(Z, x)`` with ``C C' = K_ZZ + jitter I``, (N1)."""

    pivots: ReferenceKernel  # the kernel on the rows Z
    lower: Tensor  # C, (m, m)
    inverse_norm: float  # |C^-1|_2, from above

    @classmethod
    def of(cls, pivots: ReferenceKernel, *, jitter: float = 0.0) -> NystromMap:
        """The map of given pivots.

        The jitter keeps the computed C on the safe side, ``C C' >= K_ZZ`` in spite of rounding:        (N2)
        the factorisation is exact for a matrix within ``m growth(m)`` of the one given, whose entries are in
        turn within their own error of the true ones. More of it makes ``C^-1`` smaller.
        """
        m = pivots.n
        gram = pivots.block(pivots)
        gram, wrong = 0.5 * (gram + gram.T), pivots.row_error
        eye = torch.eye(m, dtype=gram.dtype, device=gram.device)
        entries = float(((wrong[:, None] + wrong) * gram).square().sum().sqrt())
        least = 2.0 * (m * growth(m) + entries)
        jitter = max(jitter, 2.0 * least)
        lower, info = torch.linalg.cholesky_ex(gram + jitter * eye)
        while int(info):  # only where rounding dominates: repeated or nearly repeated rows
            jitter *= 10.0
            lower, info = torch.linalg.cholesky_ex(gram + jitter * eye)
        smallest = float(torch.linalg.eigvalsh(gram)[0]) if m else 1.0
        return cls(pivots, lower, max(smallest + jitter - least, jitter - least) ** -0.5)

    @property
    def rank(self) -> int:
        return self.pivots.n

    def features(self, rows: ReferenceKernel) -> tuple[Tensor, Tensor, Tensor]:
        """``L``, (n, m), and bounds on the rounding error of each row, its norm and its largest entry, (n,).   (U3)

        The residual of the triangular solve, ``C l - k``, is measured on some rows; a row may have 16 times
        the largest of them. Worst-case bounds are hundreds of times larger than what is observed.
        """
        block = self.pivots.block(rows)
        wrong = block * (self.pivots.row_error[:, None] + rows.row_error)
        features = torch.linalg.solve_triangular(self.lower, block, upper=False).T
        some = slice(None, None, max(1, rows.n // _MEASURED))
        off = (self.lower @ features[some].T - block[:, some]).square().sum(0).sqrt()
        own = (16.0 * float(off.max()) + growth(1)) if rows.n else 0.0
        norm, largest = wrong.square().sum(0).sqrt(), wrong.amax(0)
        return features, self.inverse_norm * (own + norm), self.inverse_norm * (own * self.rank**-0.5 + largest)

    def chunks(self, rows: int) -> list[slice]:
        """Slices of rows whose features stay in the processor's cache, except for large ranks."""
        limits = self.pivots.limits
        step = max(limits.chunk_rows, limits.chunk_numbers // max(self.rank, 1))
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@dataclass(frozen=True)
class Solved:
    """``z`` with ``|v - P z| <= off``, P no less than ``level I``, by column.

    For any z, ``v'P^-1 v = v'z + v'P^-1 (v - P z)``, which is ``v'z`` to ``|v| |v - P z| / level``.        (L2)
    """

    level: Tensor
    v: Tensor
    z: Tensor
    off: Tensor

    @property
    def form(self) -> tuple[Tensor, Tensor]:
        """``v'P^-1 v``, from below and from above."""
        value, wrong = (self.v * self.z).sum(0), self.v.square().sum(0).sqrt() * self.off / self.level
        return (value - wrong).clamp_min(0.0), (value + wrong).clamp_min(0.0)


@dataclass(frozen=True)
class LowRank:
    """The features of all training rows and their rounding errors."""

    map: NystromMap
    rows: ReferenceKernel
    root_weight: Tensor | None  # v^-1/2, (n, 1)
    values: Tensor  # eigenvalues of L'L, ascending, (m,)
    vectors: Tensor  # and eigenvectors, (m, m)
    left: Tensor  # diagonal of K - L L', from above, (n,)
    slack: float  # K >= L L' - slack I for the features as computed
    excess: float  # K <= L L' + excess I: the remaining trace, and rounding
    trace_error: float  # of tr L L', from rounding
    product_error: float  # norm of the rounding error of a product with K, for a vector of norm one
    plain_error: FeatureError  # of the features without weights
    kept: Tensor | None  # the features, (n, m); None where they are too large for memory

    @classmethod
    def by_pivots(
        cls,
        rows: ReferenceKernel,
        weight: Tensor | None,
        *,
        rank: int,
        noise: float,
        generator: torch.Generator,
        enough: float = 0.0,
        least_rank: int = 0,
    ) -> LowRank:
        """The part that as many pivots as the rank explain, for use with this noise; ``weight`` as for :meth:`of`.

        ``enough``: share of the noise that may remain of a row, on average; then no more than ``least_rank`` is used.
        """
        ends: dict[str, Any] = {"enough": enough * noise, "least_rank": least_rank}
        pivots, remaining = select_pivots(rows, rank, weight=weight, generator=generator, **ends)
        # Jitter j takes some n j from what the pivots explain, and rounding takes e / sqrt(j) per row. The jitter is
        # small compared with the remaining trace, and large enough for the slack, 8 sqrt(|K|) (1 + sqrt(n / m)) e /
        # sqrt(j) by (U4), to stay at a few percent of the noise.
        trace = float(rows.n) if weight is None else float(weight.sum())
        m = max(len(pivots), 1)
        each = m**0.5 * (16.0 * UNIT + float(rows.row_error.mean()))
        spread = trace**0.5 * (1.0 + (rows.n / m) ** 0.5)
        jitter = max(1e-3 * remaining / trace, each ** (2.0 / 3.0), (150.0 * spread * each / noise) ** 2)
        return cls.of(NystromMap.of(rows.rows(pivots), jitter=min(jitter, 1.0)), rows, weight)

    @classmethod
    def of(cls, nystrom: NystromMap, rows: ReferenceKernel, weight: Tensor | None) -> LowRank:
        """One pass over the rows; ``weight``: ``1 / v``, (n,)."""
        m, n = nystrom.rank, rows.n
        root = None if weight is None else weight.sqrt()[:, None]
        # In the order of NystromMap.features.
        kept = rows.points.new_empty(m, n).T if 8 * n * m <= rows.limits.feature_bytes else None
        gram = rows.points.new_zeros(m, m)
        left = torch.ones_like(rows.points[:, 0]) if weight is None else weight.clone()
        wrong, plain = FeatureError(), FeatureError()
        for part in nystrom.chunks(n):
            features, error, entries = nystrom.features(rows.rows(part))
            plain.add(error, entries)
            if root is not None:
                features, error, entries = features * root[part], error * root[part, 0], entries * root[part, 0]
            if kept is not None:
                kept[part] = features
            gram += features.T @ features
            squares = features.square().sum(1)
            left[part] += (2.0 * squares.sqrt() + error) * error + growth(m) * left[part] - squares
            wrong.add(error, entries)
        values, vectors = torch.linalg.eigh(gram)
        values = values.clamp_min(0.0)
        known, largest = float(values.sum()), float(values[-1:].sum())
        slack, trace_error = wrong.of_product(n + m, known, largest)
        left = left.clamp_min_(0.0)
        excess = float(left.sum()) * (1.0 + growth(n)) + slack
        # Entries of K are right to row errors e, so K itself to 2 |e| sqrt(|K|): its diagonal is one.
        error = rows.row_error if root is None else rows.row_error * root[:, 0]
        norm = largest + excess
        product_error = 2.0 * norm**0.5 * float(error.square().sum().sqrt()) + growth(rows.longest_sum) * norm
        return cls(nystrom, rows, root, values, vectors, left, slack, excess, trace_error, product_error, plain, kept)

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def rank(self) -> int:
        return self.map.rank

    @property
    def largest(self) -> float:
        """The largest eigenvalue of ``L L'``."""
        return float(self.values[-1:].sum())

    @property
    def norm(self) -> float:
        """``|K|``, from above."""
        return self.largest + self.excess

    @property
    def frobenius(self) -> float:
        """``|L|_F``."""
        return math.sqrt(float(self.values.sum()))

    @property
    def turn_error(self) -> float:
        """Rounding of a product with U, of the norm of what is multiplied."""
        return growth(self.rank) * math.sqrt(self.rank)

    @property
    def rest_error(self) -> float:
        """Norm of the rounding error of :meth:`rest`, for a vector of norm one."""
        return self.product_error + 2.0 * growth(self.n + self.rank) * self.frobenius * math.sqrt(self.largest)

    def weight(self, v: Tensor) -> Tensor:
        """Multiply rows by the root of their weights."""
        return v if self.root_weight is None else v * self.root_weight

    def features(self, part: slice) -> Tensor:
        """Weighted features of some rows."""
        if self.kept is not None:
            return self.kept[part]
        features, _, _ = self.map.features(self.rows.rows(part))
        return features if self.root_weight is None else features * self.root_weight[part]

    def times_transpose(self, v: Tensor) -> Tensor:
        """``L'v``."""
        if self.kept is not None:
            return times_thin(self.kept.T, v)
        total = v.new_zeros(self.rank, v.shape[1])
        for part in self.map.chunks(self.n):
            total += times_thin(self.features(part).T, v[part])
        return total

    def times(self, c: Tensor) -> Tensor:
        """``L c``."""
        if self.kept is not None:
            return times_thin(self.kept, c)
        return torch.cat([times_thin(self.features(part), c) for part in self.map.chunks(self.n)])

    def rest(self, v: Tensor, product: Tensor) -> Tensor:
        """``(K - L L') v``, K weighted as L is, from ``K v``."""
        return product - self.times(self.times_transpose(v))

    def subtract_from(self, k: Tensor, c: Tensor) -> Tensor:
        """``k - L c``, computed in place of k."""
        if self.kept is not None:
            return k.addmm_(self.kept, c, alpha=-1.0)
        return k.sub_(self.times(c))

    def apply(self, function: Callable[[Tensor], Tensor], noise: Tensor, v: Tensor) -> Tensor:
        """``f(L L' + s2 I) v``, for a noise s2 per column, (k,).

        ``f(L L' + s2 I) = f(s2) I + L U diag((f(g + s2) - f(s2)) / g) U'L'`` with ``L'L = U diag(g) U'``.  (L1)
        """
        if not self.rank:
            return function(noise) * v
        g = self.values[:, None]
        change = function(g + noise) - function(noise)
        # Below this the eigenvalue itself is rounding; the function is flat there, and nothing is lost.
        known = g > 1e-14 * float(self.values[-1])
        coefficient = torch.where(known, change / g.clamp_min(1e-300), torch.zeros_like(change))
        inner = self.vectors @ (coefficient * (self.vectors.T @ self.times_transpose(v)))
        return function(noise) * v + self.times(inner)

    def solve(self, noise: Tensor, v: Tensor) -> Tensor:
        """``(L L' + s2 I)^-1 v``."""
        return self.apply(torch.reciprocal, noise, v)

    def logdet(self, noise: float) -> float:
        """``log |L L' + s2 I|``, for noise above zero."""
        return float(torch.log1p(self.values / noise).sum()) + self.n * math.log(noise)

    def checked_solve(self, level: Tensor, v: Tensor) -> Solved:
        """``z = (L L' + level I)^-1 v`` as computed, and a bound on its residual."""
        z = self.solve(level, v)
        off = (v - (self.times(self.times_transpose(z)) + level * z)).square().sum(0).sqrt()
        return Solved(level, v, z, off + growth(self.n + self.rank) * z.square().sum(0).sqrt() * (self.largest + level))
