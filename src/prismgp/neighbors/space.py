"""The scaled space of a search: exact distances, which decide every order, and bounds on rounding.

Distances are ``sum_j ((x_j - p_j) scale_j)^2`` in float64, by differences. Every operation is elementwise and the sum
follows a fixed tree, so a distance has the same bits on CPU and CUDA, alone or in a block, on any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from prismgp._types import Tensor
from prismgp.exceptions import DataError

ROUNDOFF = 2.0**-53  # of float64
_BLOCK = 2**21  # numbers of a block of differences, 16 MB
_SAMPLE = 4096  # rows that place the centre
_FARTHEST = 1e140  # of a query, in units of the farthest point; beyond, squares overflow
_RELEVANT = 0.05  # share of the largest spread, for a coordinate to count


class Space:
    """Points with the scale of their coordinates.

    Parameters
    ----------
    points : Tensor of shape (n, D)
        Unscaled coordinates, float32 or float64. Copied only if the scale of a coordinate is zero.
    scale : Tensor of shape (D,)
        Factors of the coordinates; zero leaves a coordinate out.
    """

    def __init__(self, points: Tensor, scale: Tensor) -> None:
        scale = scale.detach().to(device=points.device, dtype=torch.float64)
        if points.ndim != 2 or 0 in points.shape or not points.dtype.is_floating_point:
            raise DataError(f"points must be a matrix of numbers, at least one row, got shape {tuple(points.shape)}")
        if scale.shape != (points.shape[1],) or not bool(scale.isfinite().all()):
            raise DataError(f"scale must hold {points.shape[1]} finite numbers, one for each coordinate")
        kept = scale.nonzero()[:, 0]
        if len(kept) == 0:
            kept = torch.zeros_like(scale[:1], dtype=torch.int64)  # one coordinate that counts nothing
        self.width = len(scale)
        self.kept = None if len(kept) == self.width else kept
        self.points = self._columns(points.detach())
        self.n, self.d = self.points.shape
        self.scale = scale if self.kept is None else scale[kept]
        # A median, because one outlier would move the mean away from all points, and products lose their digits.
        ordered = self.points[:: -(-self.n // _SAMPLE)].double().sort(0).values
        rows = len(ordered)
        self.centre = ordered[rows // 2].contiguous()
        spread = (ordered[rows - 1 - rows // 20] - ordered[rows // 20]) * self.scale.abs()
        self.relevant = int((spread > _RELEVANT * spread.max()).sum())  # coordinates that matter to a search
        # A power of two brings the farthest point near one: no rounding, and squares stay in range.
        largest = max(float(self.place(block).abs().max()) for block in self.blocks(self.rows_per_block()))
        if not math.isfinite(largest):
            raise DataError("points hold infinite or missing values, or overflow when scaled")
        self.exponent = math.frexp(largest)[1] if largest > 0 else 0
        self.scale = self.scale * 2.0**-self.exponent

    def rows_per_block(self, width: int = 1) -> int:
        """Rows of a block of ``width`` differences for each row."""
        return max(1, _BLOCK // (width * self.d))

    def blocks(self, rows: int) -> Iterator[Tensor]:
        """The points, a number of rows at a time."""
        return (self.points[s : s + rows] for s in range(0, self.n, rows))

    def _columns(self, rows: Tensor) -> Tensor:
        return rows if self.kept is None else rows[:, self.kept]

    def queries(self, x: Tensor) -> Tensor:
        """Check queries, and keep the coordinates that count, in float64."""
        if x.ndim != 2 or x.shape[1] != self.width:
            raise DataError(f"queries must have shape (m, {self.width}), got {tuple(x.shape)}")
        x = self._columns(x.detach().to(device=self.points.device, dtype=torch.float64))
        if len(x) and not float(self.place(x).abs().max()) <= _FARTHEST:
            raise DataError("queries hold infinite or missing values, or are too far from all points to measure")
        return x

    def place(self, rows: Tensor) -> Tensor:
        """Centred and scaled coordinates, (m, D), float64; each has a relative error of at most 3 units of roundoff."""
        return (rows.double() - self.centre) * self.scale

    def distances(self, x: Tensor, rows: Tensor) -> Tensor:
        """Squared distances of queries (m, D) to the points of the given rows, (m, c)."""
        found = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        step = self.rows_per_block(max(1, rows.shape[1]))
        for s in range(0, len(rows), step):
            part = rows[s : s + step]
            taken = self.points.index_select(0, part.reshape(-1)).double().view(*part.shape, self.d)
            found[s : s + step] = self._sum_squares(taken.sub_(x[s : s + step, None, :]))
        return found

    def pair_distances(self, x: Tensor, which: Tensor, rows: Tensor) -> Tensor:
        """Squared distances of the queries ``x[which]`` to the points ``rows``, (c,)."""
        found = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        step = self.rows_per_block()
        for s in range(0, len(rows), step):
            taken = self.points.index_select(0, rows[s : s + step]).double()
            found[s : s + step] = self._sum_squares(taken.sub_(x.index_select(0, which[s : s + step])))
        return found

    def _sum_squares(self, difference: Tensor) -> Tensor:
        """Sum of the scaled squares over the last axis; overwrites its argument."""
        # Products and sums are calls of their own: a fused one would skip a rounding on some devices.
        difference *= self.scale
        difference *= difference
        width = self.d
        while width > 1:  # halves onto each other, because the order in which sum() adds depends on the device
            half = (width + 1) // 2
            difference[..., : width - half] += difference[..., half:width]
            width = half
        return difference[..., 0]

    @property
    def slack(self) -> float:
        """Bound on the relative error of a distance or its square by differences, generously."""
        return (2 * self.d + 64) * ROUNDOFF
