"""The kernel of the exact GP: its entries between any rows, and how far they may be off.

``K_uv = k(|a_u - a_v|^2) g_u'g_v`` for scaled inputs a and, where the model gates its kernel, gates g of norm one.
Unit diagonal, entries in [0, 1], but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from prismgp._types import Tensor
from prismgp.certificates._rounding import UNIT, growth
from prismgp.core.kernels import Kernel

__all__ = ["ReferenceKernel", "Side"]

# Of a block between all rows and some others: what stays in a processor's cache, but so many columns that products with
# it are worth their start, and never more than the last number of bytes.
_CROSS_BYTES, _CROSS_COLUMNS, _CROSS_MOST = {"cpu": 2**21, "cuda": 2**26}, 192, 2**26
# Squared norm of a row above which distances are taken by differences: slower, and right however far out rows are.
_FAR = 1e6


@dataclass(frozen=True)
class Side:
    """Rows of a tile: distances are products of what they are on the left with what others are on the right."""

    points: Tensor
    first: Tensor
    second: Tensor
    gates: Tensor | None

    def part(self, rows: slice) -> Side:
        """Some of the rows."""
        gates = None if self.gates is None else self.gates[rows]
        return Side(self.points[rows], self.first[rows], self.second[rows], gates)


@dataclass(frozen=True)
class ReferenceKernel:
    """The exact kernel on given rows.

    Attributes
    ----------
    kernel : Kernel
    points : Tensor, (n, d), float64
        Inputs divided by their length-scales, and centred: digits are lost far from the origin.
    gates : Tensor, (n, b), or None
    differences : bool
        Distances by differences, always so for matern12: the root of a cancelled difference would be wrong by 1e-8.
    """

    kernel: Kernel
    points: Tensor
    gates: Tensor | None = None
    differences: bool = False

    @classmethod
    def on(cls, kernel: Kernel, points: Tensor, gates: Tensor | None = None) -> ReferenceKernel:
        """The kernel on training rows, in the form that is accurate for them."""
        far = float(points.square().sum(1).max()) > _FAR if len(points) else False
        return cls(kernel, points, gates, kernel.degrees == 1 or far)

    @property
    def n(self) -> int:
        return len(self.points)

    @cached_property
    def row_error(self) -> Tensor:
        """Rounding: the entry (u, v) is right to ``row_error[u] + row_error[v]`` of itself, (n,).        (U2)

        In the product form the exponent of a pair has an absolute error e proportional to the squared norms of its
        two rows. An outlying row has large errors, but only in entries that are next to nothing. The entry is then
        right to a factor ``exp(e_u + e_v)``, which is less than the mean of ``exp(2 e_u)`` and ``exp(2 e_v)``.
        """
        d = self.points.shape[1]
        gates = 0 if self.gates is None else self.gates.shape[1]
        always = 0.5 * (growth(gates + 1) + 8.0 * UNIT)
        norms = self.points.square().sum(1)
        if self.differences:  # |dk/k| <= r |dr/r| or s |dr/r|, and k < 1e-300 where either is beyond 1400
            return torch.full_like(norms, 700.0 * growth(d + 4) + always)
        slope = 1.0 if self.kernel.degrees is None else 3.0
        # A row that is further out than this shares nothing with rows whose distances are not by differences.
        return 0.5 * torch.expm1(2.0 * (slope * growth(d + 2) * norms).clamp_max(30.0)) + always

    def at(self, points: Tensor, gates: Tensor | None) -> ReferenceKernel:
        """The same kernel on other rows."""
        return replace(self, points=points, gates=gates)

    def rows(self, index: Tensor | slice) -> ReferenceKernel:
        """The same kernel on some of the rows."""
        return replace(self, points=self.points[index], gates=None if self.gates is None else self.gates[index])

    def block(self, other: ReferenceKernel) -> Tensor:
        """Kernel between these rows and others, (n, m)."""
        return self.tile(self.side, other.side)

    def paired(self, other: ReferenceKernel) -> Tensor:
        """Kernel between each row and the same row of the other, (n,)."""
        values = self.kernel.value((self.points - other.points).square().sum(1))
        if self.gates is not None and other.gates is not None:
            values = values * (self.gates * other.gates).sum(1)
        return values

    def cross(self, other: ReferenceKernel, use: Callable[[slice, Tensor], None]) -> None:
        """Hand out ``K(self, other[j])``, (n, m_j), for slices j of the other rows: ``use(j, block)``.

        The block may be overwritten, and is not to be kept.
        """
        row = 8 * max(self.n, 1)
        step = max(1, _CROSS_BYTES[self.points.device.type] // row, min(_CROSS_COLUMNS, _CROSS_MOST // row))
        here, there = self.side, other.side
        buffers = self.points.new_empty(min(step, other.n), self.n), self.points.new_empty(min(step, other.n), self.n)
        for start in range(0, other.n, step):
            j = slice(start, min(start + step, other.n))
            use(j, self.tile(there.part(j), here, buffers).T)  # in this order in memory, sums over the rows are fast

    @property
    def side(self) -> Side:
        """These rows, in the form in which :meth:`tile` takes them."""
        half = self.points.square().sum(1, keepdim=True).mul_(-0.5)
        one = torch.ones_like(half)
        first, second = torch.cat([self.points, half, one], 1), torch.cat([self.points, one, half], 1)
        return Side(self.points, first, second, self.gates)

    def tile(self, left: Side, right: Side, buffers: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Kernel between two sets of rows, in the first buffer; valid until the next call that uses it."""
        shape = (len(left.points), len(right.points))
        if buffers is None:
            buffers = left.points.new_empty(shape), left.points.new_empty(shape)
        tile, scratch = (buffer.reshape(-1)[: shape[0] * shape[1]].view(shape) for buffer in buffers)
        if self.differences:
            tile.copy_(torch.cdist(left.points, right.points, compute_mode="donot_use_mm_for_euclid_dist"))
            if self.kernel.degrees != 1:
                tile.square_().mul_(-0.5)
        else:
            # -s/2 in one product: [a, -|a|^2/2, 1] [b, 1, -|b|^2/2]'.
            torch.mm(left.first, right.second.T, out=tile)
            if (
                self.kernel.degrees is not None
            ):  # of which a root is taken; the exponential does not mind the last digit
                tile.clamp_(max=0.0)
        if self.kernel.degrees is None:
            tile.exp_()
        elif self.kernel.degrees == 1:
            tile.neg_().exp_()
        else:
            _matern_(tile, self.kernel.degrees, scratch)
        if left.gates is not None and right.gates is not None:
            tile.mul_(torch.mm(left.gates, right.gates.T, out=scratch))
        return tile


def _matern_(tile: Tensor, degrees: int, scratch: Tensor) -> None:
    """The Matern kernel of -s/2, in place: temporaries of a tile's size would cost more than the arithmetic."""
    r = tile.mul_(-2.0 * degrees).sqrt_()
    if degrees == 3:
        torch.add(r, 1.0, out=scratch)
    else:
        torch.mul(r, 1.0 / 3.0, out=scratch).add_(1.0).mul_(r).add_(1.0)
    r.neg_().exp_().mul_(scratch)
