"""The kernel matrix of the exact GP on the training rows: passes over its tiles, and products with it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from prismgp._types import Tensor
from prismgp.certificates._reference import ReferenceKernel
from prismgp.certificates._rounding import growth

__all__ = ["KernelMatrix", "Look", "summed"]

Look = Callable[[slice, slice, Tensor], None]  # rows, columns, tile

# A tile and what it is multiplied with should stay in the processor's cache: a product is then bound by
# the exponentials, not by memory.
_TILE = {"cpu": (512, 1024), "cuda": (8192, 8192)}
_HELD_BYTES = 2**28  # of tiles that are kept from one pass to the next: those of some 8,000 rows


def summed(rows: ReferenceKernel) -> int:
    """How many numbers a product with K adds up, one after the other, at the most: those of a tile, and tiles."""
    height, width = _TILE[rows.points.device.type]
    return max(height, width) + rows.n // height + 1


class KernelMatrix:
    """K, of which no more than a tile is made at a time; all of them are held where that is little.

    Every tile on or above the diagonal serves twice, as the matrix is symmetric.
    """

    def __init__(self, rows: ReferenceKernel) -> None:
        self.rows = rows
        self._tiles: list[tuple[slice, slice, Tensor]] = []

    @property
    def _small(self) -> bool:
        height, _ = _TILE[self.rows.points.device.type]
        return 4 * self.rows.n * (self.rows.n + height) <= _HELD_BYTES

    def product(self, v: Tensor, *, look: Look | None = None) -> Tensor:
        """``K v``, (n, k). O(n^2 (d + k)) time; ``look`` is shown every tile, as in :meth:`tiles`."""
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

    def bounded_product(
        self, v: Tensor, *, closely: int, norm: float, look: Look | None = None
    ) -> tuple[Tensor, Tensor]:
        """``K v``, and a bound on the norm of what rounding has done to each of its columns, (k,).          (U5)

        Entry by entry for the first ``closely`` columns, which takes two more columns for each. For the others from
        ``norm``, an upper bound of ``|K|``: with e the row errors, ``|K (e * v)| <= |K| |e * v|`` and
        ``|e * (K v)| <= sqrt(|K|) |e| |v|``.
        """
        k, size, error = v.shape[1], v[:, :closely].abs(), self.rows.row_error[:, None]
        done = self.product(torch.cat([v, size, error * size], 1), look=look)
        sums = growth(summed(self.rows))
        near = (error + sums) * done[:, k : k + closely] + done[:, k + closely :]
        rest = v[:, closely:]
        length = rest.square().sum(0).sqrt()
        far = (sums * norm + norm**0.5 * float(error.square().sum().sqrt())) * length
        far = far + norm * (error * rest).square().sum(0).sqrt()
        return done[:, :k], torch.cat([near.square().sum(0).sqrt(), far])

    def tiles(self, use: Look) -> None:
        """Hand out every tile on and above the diagonal, once: ``use(rows, columns, tile)``, which only reads it."""
        if self._tiles:
            for i, j, tile in self._tiles:
                use(i, j, tile)
            return
        n, points, kept = self.rows.n, self.rows.points, self._small
        height, width = _TILE[points.device.type]
        sides = self.rows.side
        buffers = None if kept else (points.new_empty(height, width), points.new_empty(height, width))

        made = []

        def hand_out(i: slice, j: slice) -> None:
            tile = self.rows.tile(sides.part(i), sides.part(j), buffers)
            if kept:
                made.append((i, j, tile))
            use(i, j, tile)

        for start in range(0, n, height):  # a square tile on the diagonal, wide ones beside it
            i = slice(start, min(start + height, n))
            hand_out(i, i)
            for first in range(i.stop, n, width):
                hand_out(i, slice(first, min(first + width, n)))
        self._tiles = made
