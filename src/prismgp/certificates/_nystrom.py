"""A certified part of the kernel: ``L L' <= K`` from a few rows, the pivots.

With pivots Z and any ``C C' >= K_ZZ``, the map ``l(x) = C^-1 k(Z, x)`` has

    0 <= K - L L' <= t I,    t = n - |L|_F^2                                                            (N1)

on any rows, those of a test set included: ``K_XZ (C C')^-1 K_ZX <= K_XZ K_ZZ^-1 K_ZX <= K``. Pivots are chosen greedily
by the largest remaining diagonal (pivoted Cholesky), by whole blocks: the first m of them are the choice for rank m,
so that a larger rank knows all that a smaller one does (up to 50,000 rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.certificates._reference import ReferenceKernel
from prismgp.certificates._rounding import growth

__all__ = ["NystromMap", "select_pivots"]

_CANDIDATES = 50_000  # rows among which pivots are sought; their columns are held in memory
_BLOCK = 48  # candidates looked at together, so that the work is in matrix products
_ENOUGH = 0.2  # of the largest remaining diagonal at which a candidate of the block still becomes a pivot
_MEASURED = 32  # rows of a chunk whose rounding errors are measured
_EXHAUSTED = 1e-13  # remaining share of the diagonal below which nothing but rounding is left


def select_pivots(
    kernel: ReferenceKernel, rank: int, *, weight: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Indices of at most ``rank`` pivots, and the trace that remains among the rows that could have been one.

    Beyond 50,000 rows pivots are sought among a random part of the rows, and the last tenth among those that
    the others describe worst, so that no outlying row is left out.

    Parameters
    ----------
    weight : Tensor, (n,), or None
        Of each row's remaining variance.
    """
    n = kernel.n
    device = kernel.points.device
    if n <= _CANDIDATES:
        return _greedy(kernel, rank, weight)
    some = torch.randperm(n, generator=generator)[:_CANDIDATES].to(device)
    own = None if weight is None else weight[some]
    first, _ = _greedy(kernel.rows(some), rank - rank // 10, own)
    pivots = some[first]
    left = NystromMap.of(kernel.rows(pivots)).remaining(kernel)
    worst = (left if weight is None else left * weight).topk(_CANDIDATES // 5).indices
    # Continue from the pivots found: they come first among the rows looked at, and are taken again.
    pool = torch.cat([pivots, worst])
    more, trace = _greedy(kernel.rows(pool), rank, None if weight is None else weight[pool], given=len(pivots))
    return pool[more], trace


def _greedy(kernel: ReferenceKernel, rank: int, weight: Tensor | None, *, given: int = 0) -> tuple[Tensor, float]:
    """Pivoted Cholesky by blocks of candidates; ``given``: the first rows are pivots whatever they are worth."""
    n = kernel.n
    left = kernel.points.new_ones(n)
    factor = kernel.points.new_zeros(min(rank, n), n)  # a row for each pivot: all that follows goes along rows
    here = kernel.side
    pivots: list[int] = []
    while len(pivots) < min(rank, n):
        done = len(pivots)
        room = min(rank, n) - done
        if done < given:
            candidates = torch.arange(done, min(done + min(_BLOCK, room), given), device=left.device)
        else:
            worth = left if weight is None else left * weight
            # At first all rows are worth the same: a stable order is the same on every device.
            candidates = worth.sort(descending=True, stable=True).indices[:_BLOCK]
            if float(left[candidates].max()) < _EXHAUSTED:
                break
        known = factor[:done]
        columns = kernel.tile(kernel.rows(candidates).side, here).addmm_(known[:, candidates].T, known, alpha=-1.0)
        local = columns[:, candidates]
        local.diagonal().copy_(left[candidates])  # at first exactly alike: the first is taken on every device
        own = None if weight is None else weight[candidates]
        # A block is looked at in full even where it does not fit: its first pivots are those of a larger rank.
        order, corner = _pivot_block(local, own, most=room, everything=done < given)
        new = torch.linalg.solve_triangular(corner, columns[order], upper=False)
        factor[done : done + len(order)] = new
        left -= new.square_().sum(0)
        pivots.extend(candidates[order].tolist())
        left[candidates[order]] = 0.0  # exactly: it is only rounding that remains
        left.clamp_(min=0.0)
    index = torch.as_tensor(pivots, dtype=torch.long, device=left.device)
    return index, float((left if weight is None else left * weight).sum())


def _pivot_block(local: Tensor, weight: Tensor | None, *, most: int, everything: bool) -> tuple[Tensor, Tensor]:
    """Greedy order within a block of candidates, at most so many, and the Cholesky factor in that order.

    In NumPy: hundreds of steps on vectors of some dozens, of which each is over before a tensor would have begun.
    """
    block = local.cpu().numpy()
    worth_each = np.ones(len(block)) if weight is None else weight.cpu().numpy()
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
    """``l(x) = C^-1 k(Z, x)`` with ``C C' = K_ZZ + jitter I``, (N1).

    Attributes
    ----------
    pivots : ReferenceKernel
        The kernel on the rows Z.
    lower : Tensor, (m, m)
        ``C``.
    inverse_norm : float
        ``|C^-1|_2``, from above.
    """

    pivots: ReferenceKernel
    lower: Tensor
    inverse_norm: float

    @classmethod
    def of(cls, pivots: ReferenceKernel, *, jitter: float = 0.0) -> NystromMap:
        """The map of given pivots.

        The jitter keeps the computed C on the safe side, ``C C' >= K_ZZ`` in spite of rounding:        (N2)
        the factorisation is exact for a matrix within ``m growth(m)`` of the one given, whose entries are in
        turn within their own error of the true ones. More of it makes ``C^-1`` smaller.
        """
        m = pivots.n
        gram = pivots.block(pivots)
        gram = 0.5 * (gram + gram.T)
        eye = torch.eye(m, dtype=gram.dtype, device=gram.device)
        wrong = pivots.row_error
        entries = float(((wrong[:, None] + wrong) * gram).square().sum().sqrt())
        least = 2.0 * (m * growth(m) + entries)
        jitter = max(jitter, 2.0 * least)
        lower, info = torch.linalg.cholesky_ex(gram + jitter * eye)
        while int(info):  # only where rounding has the upper hand: repeated or nearly repeated rows
            jitter *= 10.0
            lower, info = torch.linalg.cholesky_ex(gram + jitter * eye)
        smallest = float(torch.linalg.eigvalsh(gram)[0]) if m else 1.0
        return cls(pivots, lower, max(smallest + jitter - least, jitter - least) ** -0.5)

    @property
    def rank(self) -> int:
        return self.pivots.n

    def features(self, rows: ReferenceKernel) -> tuple[Tensor, Tensor, Tensor]:
        """``L``, (n, m), and bounds on the rounding error of each row, its norm and its largest entry, (n,).   (U3)

        What the triangular solve leaves, ``C l - k``, is measured on some rows; a row may have 16 times
        the largest of them. Worst-case bounds are hundreds of times larger than anything that happens.
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
        """Slices of rows whose features stay in the processor's cache, but for large ranks."""
        step = max(512, 2**18 // max(self.rank, 1))
        return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def remaining(self, rows: ReferenceKernel) -> Tensor:
        """Diagonal of ``K - L L'``, (n,), not below zero."""
        parts = [1.0 - self.features(rows.rows(part))[0].square().sum(1) for part in self.chunks(rows.n)]
        return torch.cat(parts).clamp_min_(0.0)
