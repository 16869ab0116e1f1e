"""The kernel matrix of the exact GP: its entries, products with it, and how far rounding moves them.

``K_uv = k(|a_u - a_v|^2) g_u'g_v`` for scaled inputs a and, where the model gates its kernel, gates g of norm one. The
diagonal is one and entries are in [0, 1], up to rounding.

A computed sum of k products is off by at most ``k u`` of the sum of their absolute values, u the unit roundoff; that
needs every error to have the same sign. We charge ``8 sqrt(k) u``: under the model of Higham and Mary
(SIAM J. Sci. Comput. 41, 2019; errors independent, of mean zero) it is exceeded with a probability below
1e-13, and below k = 64 it is the larger of the two anyway.                                            (U1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from prismgp._types import Tensor
from prismgp.core.kernels import Kernel

UNIT = 2.0**-53
_THIN = 64  # columns beyond which the order of a product does not matter
_MOST_CROSS_BYTES = 2**26  # of a block between all rows and some others
# Squared norm of a row above which distances are computed by differences: slower, and right however far out rows are.
_FAR = 1e6

VisitTile = Callable[[slice, slice, Tensor], None]  # rows, columns, tile


def growth(k: int) -> float:
    """Relative error of a sum of k products, (U1)."""
    return 8.0 * math.sqrt(k) * UNIT


def times_thin(matrix: Tensor, v: Tensor) -> Tensor:
    """``A v``, by ``v'A'``: for some 2 to 60 columns two to three times as fast, with either layout of A."""
    if v.shape[1] > _THIN:
        return matrix @ v
    return (v.T.contiguous() @ matrix.T).T.contiguous()


@dataclass(frozen=True)
class Limits:
    """Sizes of pieces, and sizes beyond which a computation takes a sample or a shortcut; no bound relies on them."""

    # Rows and columns of a tile of K: it stays in the processor's cache with the vectors it is multiplied with, so that
    # a product is bound by the exponentials, not by memory. And tiles kept between passes: those of some 8,000 rows.
    tile: tuple[int, int] = (512, 1024)
    held_bytes: float = 2**28
    # Block between all rows and some others: in the processor's cache, but with enough columns for a fast product.
    cross_bytes: int = 2**21
    cross_columns: int = 192
    feature_bytes: int = 4 * 2**30  # features of the low rank kept in memory; beyond, computed again for every use
    # Features of the low rank that are computed together: at least so many rows, or so many numbers.
    chunk_rows: int = 512
    chunk_numbers: int = 2**18
    candidates: int = 50_000  # rows among which pivots are sought; their columns are held in memory
    # Rows up to which the Frobenius norm is computed from all entries: in any case, and along with a product. Beyond,
    # pairs of rows in a sample, and numbers of their features that are held at a time.
    few_rows: int = 2_000
    every_entry_rows: int = 50_000
    pairs: int = 1_000_000
    pair_numbers: int = 2**25
    widest: int = 6_000  # columns of [L F] beyond which the spectral norm of the difference is not computed (F1)
    harmless: float = 1e-4  # share of the noise variance that rounding may take by (E12b) with c = 0: half of the std's
    # Share of what the rank leaves, or of the norm, that B'B in place of B may cost (F1b).
    gram_share: float = 1e-2
    gram_share_of_norm: float = 1e-4

    @classmethod
    def on(cls, device: torch.device) -> Limits:
        return cls(tile=(8192, 8192), cross_bytes=2**26) if device.type == "cuda" else cls()


@dataclass(frozen=True)
class ReferenceKernel:
    """The exact kernel on given rows."""

    kernel: Kernel
    points: Tensor  # (n, d), float64: inputs over length-scales, centred, as digits are lost far from the origin
    gates: Tensor | None = None  # (n, b)
    # Distances by differences, always so for matern12: the root of a cancelled difference would be wrong by 1e-8.
    differences: bool = False
    limits: Limits = Limits()

    @classmethod
    def on(
        cls, kernel: Kernel, points: Tensor, gates: Tensor | None = None, *, limits: Limits | None = None
    ) -> ReferenceKernel:
        """The kernel on training rows, in the form that is accurate for them."""
        far = float(points.square().sum(1).max()) > _FAR if len(points) else False
        return cls(kernel, points, gates, kernel.degrees == 1 or far, limits or Limits.on(points.device))

    @property
    def n(self) -> int:
        return len(self.points)

    @property
    def longest_sum(self) -> int:
        """Numbers that a product with K adds up one after the other, at most: those of a tile, and the tiles."""
        height, width = self.limits.tile
        return max(height, width) + self.n // height + 1

    @cached_property
    def row_error(self) -> Tensor:
        """Rounding: the entry (u, v) is right to ``row_error[u] + row_error[v]`` of itself, (n,).        (U2)

        In the product form the exponent of a pair has an absolute error e proportional to the squared norms of its
        two rows. An outlying row has large errors, but only in entries that are nearly zero. The entry is then
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
        return self.at(self.points[index], None if self.gates is None else self.gates[index])

    def pair(self, other: ReferenceKernel) -> Tensor:
        """Kernel between each row and the same row of the other, (n,)."""
        values = self.kernel.value((self.points - other.points).square().sum(1))
        if self.gates is not None and other.gates is not None:
            values = values * (self.gates * other.gates).sum(1)
        return values

    def cross(self, other: ReferenceKernel) -> Iterator[tuple[slice, Tensor]]:
        """Slices j of the other rows, with ``K(self, other[j])``, (n, m_j), which may be overwritten; one at a time."""
        row = 8 * max(self.n, 1)
        step = max(1, self.limits.cross_bytes // row, min(self.limits.cross_columns, _MOST_CROSS_BYTES // row))
        buffers = self.points.new_empty(min(step, other.n), self.n), self.points.new_empty(min(step, other.n), self.n)
        for start in range(0, other.n, step):
            j = slice(start, min(start + step, other.n))
            yield j, other.rows(j).block(self, buffers).T  # in this order in memory, sums over the rows are fast

    # Distances are products of ``first`` of the rows on the left with ``second`` of those on the right.

    @cached_property
    def first(self) -> Tensor:
        half = self.points.square().sum(1, keepdim=True).mul_(-0.5)
        return torch.cat([self.points, half, torch.ones_like(half)], 1)

    @cached_property
    def second(self) -> Tensor:
        half = self.points.square().sum(1, keepdim=True).mul_(-0.5)
        return torch.cat([self.points, torch.ones_like(half), half], 1)

    def block(self, other: ReferenceKernel, buffers: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Kernel between these rows and others, (n, m); in the first buffer, valid until the next call that uses it."""
        degrees, shape = self.kernel.degrees, (self.n, other.n)
        if buffers is None:
            buffers = self.points.new_empty(shape), self.points.new_empty(shape)
        tile, scratch = (buffer.reshape(-1)[: shape[0] * shape[1]].view(shape) for buffer in buffers)
        if self.differences:
            tile.copy_(torch.cdist(self.points, other.points, compute_mode="donot_use_mm_for_euclid_dist"))
            if degrees != 1:
                tile.square_().mul_(-0.5)
        else:
            # -s/2 in one product: [a, -|a|^2/2, 1] [b, 1, -|b|^2/2]'.
            torch.mm(self.first, other.second.T, out=tile)
            if degrees is not None:  # a root is taken of it; the exponential does not need the last digit
                tile.clamp_(max=0.0)
        if degrees is None:
            tile.exp_()
        elif degrees == 1:
            tile.neg_().exp_()
        else:  # in place: temporaries of a tile's size would cost more than the arithmetic
            r = tile.mul_(-2.0 * degrees).sqrt_()
            if degrees == 3:
                torch.add(r, 1.0, out=scratch)
            else:
                torch.mul(r, 1.0 / 3.0, out=scratch).add_(1.0).mul_(r).add_(1.0)
            r.neg_().exp_().mul_(scratch)
        if self.gates is not None and other.gates is not None:
            tile.mul_(torch.mm(self.gates, other.gates.T, out=scratch))
        return tile


class KernelMatrix:
    """K on the training rows, computed tile by tile; the tiles are kept where they are small.

    Every tile on or above the diagonal serves twice, as the matrix is symmetric.
    """

    def __init__(self, rows: ReferenceKernel) -> None:
        self.rows = rows
        self._tiles: list[tuple[slice, slice, Tensor]] = []

    def product(self, v: Tensor, *, visit: VisitTile | None = None) -> Tensor:
        """``K v``, (n, k). O(n^2 (d + k)) time; ``visit``, which only reads, is called with every tile."""
        across = v.T.contiguous()  # with few columns, v'K is two to three times as fast as K v
        out = torch.zeros_like(across)
        for i, j, tile in self.tiles():
            out[:, i].addmm_(across[:, j], tile.T)
            if i != j:
                out[:, j].addmm_(across[:, i], tile)
            if visit is not None:
                visit(i, j, tile)
        return out.T.contiguous()

    def bounded_product(
        self, v: Tensor, *, closely: int, norm: float, visit: VisitTile | None = None
    ) -> tuple[Tensor, Tensor]:
        """``K v``, and a bound on the norm of the rounding error of each of its columns, (k,).              (U5)

        Entry by entry for the first ``closely`` columns, which takes two more columns for each. For the others from
        ``norm``, an upper bound of ``|K|``: with e the row errors, ``|K (e * v)| <= |K| |e * v|`` and
        ``|e * (K v)| <= sqrt(|K|) |e| |v|``.
        """
        k, size, error = v.shape[1], v[:, :closely].abs(), self.rows.row_error[:, None]
        done = self.product(torch.cat([v, size, error * size], 1), visit=visit)
        sums = growth(self.rows.longest_sum)
        near = (error + sums) * done[:, k : k + closely] + done[:, k + closely :]
        rest = v[:, closely:]
        length = rest.square().sum(0).sqrt()
        far = (sums * norm + norm**0.5 * float(error.square().sum().sqrt())) * length
        far = far + norm * (error * rest).square().sum(0).sqrt()
        return done[:, :k], torch.cat([near.square().sum(0).sqrt(), far])

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows, columns and entries of every tile on and above the diagonal; valid until the next one."""
        if self._tiles:
            yield from self._tiles
            return
        n, points, (height, width) = self.rows.n, self.rows.points, self.rows.limits.tile
        keep = 4 * n * (n + height) <= self.rows.limits.held_bytes
        buffers = None if keep else (points.new_empty(height, width), points.new_empty(height, width))
        made = []
        for start in range(0, n, height):  # a square tile on the diagonal, wide ones beside it
            i = slice(start, min(start + height, n))
            left, beside = self.rows.rows(i), [slice(first, min(first + width, n)) for first in range(i.stop, n, width)]
            for j in (i, *beside):
                tile = left.block(self.rows.rows(j), buffers)
                if keep:
                    made.append((i, j, tile))
                yield i, j, tile
        self._tiles = made


@dataclass
class FeatureError:
    """Rounding errors of L, gathered row by row.                                                           (U4)

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
