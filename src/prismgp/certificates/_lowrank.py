"""``P = L L' + s2 I``, the part of ``Q = K + s2 I`` that is known, and functions of it.

Rows may be weighted: with noise variances ``s2 v_u`` that differ between rows, everything is written for the kernel
``K_uv / sqrt(v_u v_v)``, so that the noise is ``s2 I`` again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from prismgp._types import Tensor
from prismgp.certificates._matrix import summed
from prismgp.certificates._nystrom import NystromMap, select_pivots
from prismgp.certificates._reference import ReferenceKernel
from prismgp.certificates._rounding import UNIT, growth
from prismgp.certificates._thin import times_thin

__all__ = ["FeatureError", "LowRank", "Solved"]

_KEPT_BYTES = 4 * 2**30  # of features held in memory; beyond, they are made again for every use


@dataclass
class FeatureError:
    """What rounding has done to L, gathered row by row.                                                    (U4)

    The computed L is the true one plus a matrix whose Frobenius norm is known. Its spectral norm is that of independent
    errors: at most a few times the largest norm of a row plus that of a column (Latala, 2005). The roundings of
    ``|a|^2 / 2``, which the entries of a row share, are 16 times smaller than what is charged for the entries; with
    the factor of four that covers ranks of some thousands even where all entries are alike.
    """

    squares: float = 0.0
    columns: float = 0.0
    furthest: float = 0.0

    def add(self, rows: Tensor, entries: Tensor) -> None:
        """Norms and largest entries of the errors of some rows."""
        self.squares += float(rows.square().sum())
        self.columns += float(entries.square().sum())
        self.furthest = max(self.furthest, float(rows.max()))

    def of_product(self, size: int, known: float, largest: float) -> tuple[float, float]:
        """How far ``L L'`` is off, in spectral and in trace norm, with its computed eigenvalues.

        ``known``: ``|L|_F^2``; ``largest``: the largest eigenvalue; ``size``: numbers summed in them.
        """
        frobenius = self.squares**0.5
        spectral = min(frobenius, 4.0 * (self.furthest + self.columns**0.5))
        slack = 2.0 * largest**0.5 * spectral + spectral**2 + growth(size) * largest
        return slack, 2.0 * known**0.5 * frobenius + self.squares + growth(size) * known


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
    def form_below(self) -> Tensor:
        """``v'P^-1 v``, from below."""
        return ((self.v * self.z).sum(0) - self._wrong).clamp_min(0.0)

    @property
    def form_above(self) -> Tensor:
        """``v'P^-1 v``, from above."""
        return ((self.v * self.z).sum(0) + self._wrong).clamp_min(0.0)

    @property
    def _wrong(self) -> Tensor:
        return self.v.square().sum(0).sqrt() * self.off / self.level


@dataclass(frozen=True)
class LowRank:
    """The features of all training rows and what rounding may have done to them.

    Attributes
    ----------
    map : NystromMap
    rows : ReferenceKernel
    root_weight : Tensor, (n, 1), or None
        ``v^-1/2``.
    values, vectors : Tensor, (m,), (m, m)
        Eigenvalues and eigenvectors of ``L'L``, ascending.
    left : Tensor, (n,)
        Diagonal of ``K - L L'``, from above.
    slack : float
        ``K >= L L' - slack I`` for the features as computed.
    excess : float
        ``K <= L L' + excess I``: the trace that is left, and rounding.
    trace_error : float
        Of ``tr L L'``, from rounding.
    product_error : float
        Norm of what rounding does to a product with K, for a vector of norm one.
    plain_error : FeatureError
        Of the features without weights.
    """

    map: NystromMap
    rows: ReferenceKernel
    root_weight: Tensor | None
    values: Tensor
    vectors: Tensor
    left: Tensor
    slack: float
    excess: float
    trace_error: float
    product_error: float
    plain_error: FeatureError
    _kept: Tensor | None

    @classmethod
    def by_pivots(
        cls, rows: ReferenceKernel, weight: Tensor | None, *, rank: int, noise: float, generator: torch.Generator
    ) -> LowRank:
        """Of as many pivots as the rank, for use beside this noise; ``weight`` as for :meth:`of`."""
        pivots, remaining = select_pivots(rows, rank, weight=weight, generator=generator)
        # Jitter j takes some n j from what the pivots explain, and rounding takes e / sqrt(j) per row. Too little to be
        # seen beside what is left, and enough for the slack, 8 sqrt(|K|) (1 + sqrt(n / m)) e / sqrt(j) by (U4), to
        # stay at a few percent of the noise.
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
        kept = rows.points.new_empty(m, n).T if 8 * n * m <= _KEPT_BYTES else None  # in the order they are made in
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
        product_error = 2.0 * norm**0.5 * float(error.square().sum().sqrt()) + growth(summed(rows)) * norm
        return cls(nystrom, rows, root, values, vectors, left, slack, excess, trace_error, product_error, plain, kept)

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def rank(self) -> int:
        return self.map.rank

    @property
    def largest(self) -> float:
        """The largest eigenvalue of ``L L'``; zero without pivots."""
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
        """Norm of what rounding does in :meth:`rest`, for a vector of norm one."""
        return self.product_error + 2.0 * growth(self.n + self.rank) * self.frobenius * math.sqrt(self.largest)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their weighted features."""
        for part in self.map.chunks(self.n):
            yield part, self.features(part)

    def transposed(self, v: Tensor) -> Tensor:
        """``L'v``."""
        if self._kept is not None:
            return times_thin(self._kept.T, v)
        total = v.new_zeros(self.rank, v.shape[1])
        for part, features in self.chunks():
            total += times_thin(features.T, v[part])
        return total

    def times(self, c: Tensor) -> Tensor:
        """``L c``."""
        if self._kept is not None:
            return times_thin(self._kept, c)
        return torch.cat([times_thin(features, c) for _, features in self.chunks()])

    def rest(self, v: Tensor, product: Tensor) -> Tensor:
        """``(K - L L') v``, K weighted as L is, from ``K v``."""
        return product - self.times(self.transposed(v))

    def subtract_from(self, k: Tensor, c: Tensor) -> Tensor:
        """``k - L c``, which may be where k was."""
        if self._kept is not None:
            return k.addmm_(self._kept, c, alpha=-1.0)
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
        inner = self.vectors @ (coefficient * (self.vectors.T @ self.transposed(v)))
        return function(noise) * v + self.times(inner)

    def solve(self, noise: Tensor, v: Tensor) -> Tensor:
        """``(L L' + s2 I)^-1 v``."""
        return self.apply(torch.reciprocal, noise, v)

    def multiply(self, noise: Tensor, v: Tensor) -> Tensor:
        """``(L L' + s2 I) v``."""
        return self.times(self.transposed(v)) + noise * v

    def logdet(self, noise: float) -> float:
        """``log |L L' + s2 I|``, for noise above zero."""
        return float(torch.log1p(self.values / noise).sum()) + self.n * math.log(noise)

    def checked_solve(self, level: Tensor, v: Tensor) -> Solved:
        """``z = (L L' + level I)^-1 v`` as computed, and what is known of it whatever rounding did."""
        z = self.solve(level, v)
        off = (v - self.multiply(level, z)).square().sum(0).sqrt()
        return Solved(level, v, z, off + growth(self.n + self.rank) * z.square().sum(0).sqrt() * (self.largest + level))

    def features(self, part: slice) -> Tensor:
        """Weighted features of some rows."""
        if self._kept is not None:
            return self._kept[part]
        features, _, _ = self.map.features(self.rows.rows(part))
        return features if self.root_weight is None else features * self.root_weight[part]
