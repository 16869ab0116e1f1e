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
from prismgp.guarantees._nystrom import NystromMap
from prismgp.guarantees._reference import ReferenceKernel
from prismgp.guarantees._rounding import growth

__all__ = ["LowRank"]

_KEPT_BYTES = 4 * 2**30  # of features held in memory; beyond, they are made again for every use


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
    trace : float
        Of ``K``.
    slack : float
        ``K >= L L' - slack I`` for the features as computed.
    excess : float
        ``K <= L L' + excess I``: the trace that is left, and rounding.
    trace_error : float
        Of ``tr L L'``, from rounding.
    """

    map: NystromMap
    rows: ReferenceKernel
    root_weight: Tensor | None
    values: Tensor
    vectors: Tensor
    trace: float
    slack: float
    excess: float
    trace_error: float
    _kept: Tensor | None

    @classmethod
    def of(cls, nystrom: NystromMap, rows: ReferenceKernel, weight: Tensor | None) -> LowRank:
        """One pass over the rows; ``weight``: ``1 / v``, (n,)."""
        m, n = nystrom.rank, rows.n
        root = None if weight is None else weight.sqrt()[:, None]
        kept = rows.points.new_empty(n, m) if 8 * n * m <= _KEPT_BYTES else None
        gram = rows.points.new_zeros(m, m)
        wrong = columns = furthest = 0.0
        for part in nystrom.chunks(n):
            features, error, largest_error = nystrom.features(rows.rows(part))
            if root is not None:
                features, error = features * root[part], error * root[part, 0]
                largest_error = largest_error * root[part, 0]
            if kept is not None:
                kept[part] = features
            gram += features.T @ features
            wrong += float(error.square().sum())
            columns += float(largest_error.square().sum())
            furthest = max(furthest, float(error.max()))
        values, vectors = torch.linalg.eigh(gram)
        values = values.clamp_min(0.0)
        trace = float(n) if weight is None else float(weight.sum())
        known = float(values.sum())
        largest = float(values[-1]) if m else 0.0
        size, sized = wrong**0.5, known**0.5
        # L as computed is the true one plus a matrix of Frobenius norm `size`. Its spectral norm is that of independent
        # errors: at most a few times the largest norm of a row plus that of a column (Latala, 2005).      (U4)
        norm = min(size, 4.0 * (furthest + columns**0.5))
        slack = 2.0 * largest**0.5 * norm + norm**2 + growth(n + m) * largest
        trace_error = 2.0 * sized * size + wrong + growth(n + m) * trace
        left = max(trace - known, 0.0)
        return cls(nystrom, rows, root, values, vectors, trace, slack, left + trace_error + slack, trace_error, kept)

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def rank(self) -> int:
        return self.map.rank

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows and their weighted features."""
        for part in self.map.chunks(self.n):
            yield part, self._features(part)

    def transposed(self, v: Tensor) -> Tensor:
        """``L'v``."""
        if self._kept is not None:
            return self._kept.T @ v
        total = v.new_zeros(self.rank, v.shape[1])
        for part, features in self.chunks():
            total += features.T @ v[part]
        return total

    def times(self, c: Tensor) -> Tensor:
        """``L c``."""
        if self._kept is not None:
            return self._kept @ c
        return torch.cat([features @ c for _, features in self.chunks()])

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

    def quadratic_above(self, noise: Tensor, v: Tensor) -> Tensor:
        """Upper bound on ``v'(L L' + (s2 - slack) I)^-1 v`` by column, whatever rounding does to the solution.   (L2)

        For any z, ``v'P^-1 v = v'z + v'P^-1 (v - P z) <= v'z + |v| |v - P z| / s2``.
        """
        least = noise - self.slack
        z = self.solve(least, v)
        off = (v - self.multiply(least, z)).square().sum(0).sqrt()
        size = v.square().sum(0).sqrt()
        hidden = growth(self.n + self.rank) * z.square().sum(0).sqrt() * (float(self.values[-1:].sum()) + least)
        return ((v * z).sum(0) + size * (off + hidden) / least).clamp_min(0.0)

    def _features(self, part: slice) -> Tensor:
        if self._kept is not None:
            return self._kept[part]
        features, _, _ = self.map.features(self.rows.rows(part))
        return features if self.root_weight is None else features * self.root_weight[part]
