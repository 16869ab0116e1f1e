"""The kernel of the exact GP, of which no matrix is ever held: products with it, tile by tile.

``K_uv = k(|a_u - a_v|^2) g_u'g_v`` for scaled inputs a and, where the model gates its kernel, gates g of norm one.
Unit diagonal, entries in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from prismgp._types import Tensor
from prismgp.guarantees._rounding import UNIT, growth
from prismgp.kernels import Kernel

__all__ = ["Look", "ReferenceKernel"]

Look = Callable[[slice, slice, Tensor], None]  # rows, columns, tile

# A tile and what it is multiplied with should stay in the processor's cache: a product is then bound by
# the exponentials, not by memory.
_TILE = {"cpu": (512, 1024), "cuda": (8192, 8192)}
_CROSS_BYTES = 2**26
# Squared norm of a row above which distances are taken by differences: slower, and right however far out rows are.
_FAR = 1e6


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

    @property
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

    @property
    def summed(self) -> int:
        """How many numbers a product with K adds up, one after the other, at the most: those of a tile, and tiles."""
        rows, columns = _TILE[self.points.device.type]
        return max(rows, columns) + self.n // rows + 1

    def at(self, points: Tensor, gates: Tensor | None) -> ReferenceKernel:
        """The same kernel on other rows."""
        return replace(self, points=points, gates=gates)

    def rows(self, index: Tensor | slice) -> ReferenceKernel:
        """The same kernel on some of the rows."""
        return replace(self, points=self.points[index], gates=None if self.gates is None else self.gates[index])

    def block(self, other: ReferenceKernel) -> Tensor:
        """Kernel between these rows and others, (n, m)."""
        return self._tile(_augmented(self), _augmented(other))

    def paired(self, other: ReferenceKernel) -> Tensor:
        """Kernel between each row and the same row of the other, (n,)."""
        values = self.kernel.value((self.points - other.points).square().sum(1))
        if self.gates is not None and other.gates is not None:
            values = values * (self.gates * other.gates).sum(1)
        return values

    def product(self, v: Tensor, *, look: Look | None = None) -> Tensor:
        """``K v``, (n, k). O(n^2 (d + k)) time; memory of one tile beside the vectors.

        Every tile serves twice, as the matrix is symmetric; then ``look`` is shown it, as in :meth:`tiles`.
        """
        across = v.T.contiguous()  # with few columns, v'K is two to three times as fast as K v
        out = torch.zeros_like(across)

        def use(i: slice, j: slice, tile: Tensor) -> None:
            out[:, i].addmm_(across[:, j], tile.T)
            if i != j:
                out[:, j].addmm_(across[:, i], tile)
            if look is not None:
                look(i, j, tile)

        self.tiles(use)
        return out.T.contiguous()

    def tiles(self, use: Look) -> None:
        """Hand out every tile on and above the diagonal, once; ``use(rows, columns, tile)`` may overwrite it."""
        rows, columns = _TILE[self.points.device.type]
        sides = _augmented(self)
        buffers = self.points.new_empty(rows, columns), self.points.new_empty(rows, columns)
        for start in range(0, self.n, rows):  # a square tile on the diagonal, wide ones beside it
            i = slice(start, min(start + rows, self.n))
            left = _part(sides, i)
            use(i, i, self._tile(left, left, buffers))
            for first in range(i.stop, self.n, columns):
                j = slice(first, min(first + columns, self.n))
                use(i, j, self._tile(left, _part(sides, j), buffers))

    def bounded_product(
        self, v: Tensor, *, closely: int, norm: float, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        """``K v``, and a bound on the norm of what rounding has done to each of its columns, (k,).          (U5)

        Entry by entry for the first ``closely`` columns, which takes two more columns for each. For the others from
        ``norm``, an upper bound of ``|K|``: with e the row errors, ``|K (e * v)| <= |K| |e * v|`` and
        ``|e * (K v)| <= sqrt(|K|) |e| |v|``.
        """
        k, size, error = v.shape[1], v[:, :closely].abs(), self.row_error[:, None]
        done = self.product(torch.cat([v, size, error * size], 1), look=look)
        sums = growth(self.summed)
        near = (error + sums) * done[:, k : k + closely] + done[:, k + closely :]
        rest = v[:, closely:]
        length = rest.square().sum(0).sqrt()
        far = (sums * norm + norm**0.5 * float(error.square().sum().sqrt())) * length
        far = far + norm * (error * rest).square().sum(0).sqrt()
        return done[:, :k], torch.cat([near.square().sum(0).sqrt(), far])

    def cross(self, other: ReferenceKernel, use: Callable[[slice, Tensor], None], *, columns: int = 0) -> None:
        """Hand out ``K(self, other[j])``, (n, m_j), for slices j of the other rows; ``use(j, block)``."""
        step = columns or max(1, _CROSS_BYTES // (8 * max(self.n, 1)))
        for start in range(0, other.n, step):
            j = slice(start, min(start + step, other.n))
            use(j, self.block(other.rows(j)))

    def _tile(self, left: _Side, right: _Side, buffers: tuple[Tensor, Tensor] | None = None) -> Tensor:
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


@dataclass(frozen=True)
class _Side:
    points: Tensor
    first: Tensor
    second: Tensor
    gates: Tensor | None


def _augmented(k: ReferenceKernel) -> _Side:
    half = k.points.square().sum(1, keepdim=True).mul_(-0.5)
    one = torch.ones_like(half)
    return _Side(k.points, torch.cat([k.points, half, one], 1), torch.cat([k.points, one, half], 1), k.gates)


def _part(side: _Side, rows: slice) -> _Side:
    gates = None if side.gates is None else side.gates[rows]
    return _Side(side.points[rows], side.first[rows], side.second[rows], gates)


def _matern_(tile: Tensor, degrees: int, scratch: Tensor) -> None:
    """The Matern kernel of -s/2, in place: temporaries of a tile's size would cost more than the arithmetic."""
    r = tile.mul_(-2.0 * degrees).sqrt_()
    if degrees == 3:
        torch.add(r, 1.0, out=scratch)
    else:
        torch.mul(r, 1.0 / 3.0, out=scratch).add_(1.0).mul_(r).add_(1.0)
    r.neg_().exp_().mul_(scratch)
