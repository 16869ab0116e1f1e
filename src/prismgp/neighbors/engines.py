"""The scaled space of a search, and engines that find candidates fast in it, with bounds on what they leave out.

``find_nearest(placed, count)`` takes placed queries (:meth:`ScaledPoints.place`) and returns rows of candidates,
(m, count), -1 for none, and a lower bound on the squared distances of all other points, (m,). Candidates have no order,
and of points at equal distances any may be among them: the caller ranks them by exact distances, and looks again where
the bound does not exclude that something is missing.

Distances, which decide every order, are ``sum_j ((x_j - p_j) scale_j)^2`` in float64, by differences. Every operation
is elementwise and the sum follows a fixed tree, so a distance has the same bits on CPU and CUDA, alone or in a block,
on any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from prismgp._types import Tensor
from prismgp.exceptions import DataError

_ROUNDOFF = 2.0**-53  # of float64
BLOCK = 2**21  # numbers of a block of differences, 16 MB
_SAMPLE = 4096  # rows that place the centre
_FARTHEST = 1e140  # of a query, in units of the farthest point; beyond, squares overflow
_RELEVANT = 0.05  # share of the largest spread, for a coordinate to count
CPU_NUMBERS = 2**23  # of a block of distances: 32 MB in float32, 64 MB in float64
_CUDA_NUMBERS = 2**27  # 1 GB
CPU_POINTS, _CUDA_POINTS = 2**17, 2**20  # of a block: long rows are cheaper to select from
_TINY = 1e-30  # what underflow in float32 may lose, in units of the farthest point
_SINGLE_RANGE = 1e30  # of squared norms of queries in float32


class ScaledPoints:
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
            kept = torch.zeros_like(scale[:1], dtype=torch.int64)  # one coordinate, of scale zero
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
        return max(1, BLOCK // (width * self.d))

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
        return (2 * self.d + 64) * _ROUNDOFF


class Engine(Protocol):
    """What finds candidates."""

    attempts: int  # with four times the candidates each time, before all points are looked at

    def find_nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]: ...


def select_smallest(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` smallest of each row and their columns, in no order.

    Minima of groups come first: the smallest lie in the ``count`` groups of the smallest minima. This costs a cheap
    pass over the row and two short selections, instead of a long one.
    """
    m, n = keys.shape
    size = int(math.sqrt(n / count))
    if size < 4:
        values, columns = torch.topk(keys, count, largest=False, sorted=False)
        return values, columns
    groups = n // size
    # Members of a group lie ``groups`` columns apart, so the minimum runs along memory.
    minima = keys[:, : groups * size].view(m, size, groups).amin(1)
    chosen = torch.topk(minima, count, largest=False, sorted=False).indices
    steps = torch.arange(0, groups * size, groups, device=keys.device)
    columns = (chosen[:, None, :] + steps[:, None]).flatten(1)
    if groups * size < n:
        columns = torch.cat([columns, torch.arange(groups * size, n, device=keys.device).expand(m, -1)], 1)
    values, places = torch.topk(keys.gather(1, columns), count, largest=False, sorted=False)
    return values, columns.gather(1, places)


def single_is_single() -> bool:
    """Whether float32 products are computed in float32, not in a shorter format that the user allowed."""
    backend = getattr(torch.backends.mkldnn, "matmul", None)  # with a setting of its own since torch 2.9
    if getattr(backend, "fp32_precision", "none") not in ("none", "ieee"):
        return False
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # the old setting and the new one contradict each other
        return False


class Products:
    """Blocks of distances by matrix products, ``|x|^2 + |p|^2 - 2 x'p``.

    The key of a pair is a *lower bound* of the squared distance, less the query's own part. The error of the product
    form is at most ``g (|x|^2 + |p|^2)`` in any order of summation, so it disappears into the squared norms, which
    are multiplied by ``1 - g``: an outlier worsens no bound but its own.

    Parameters
    ----------
    space : ScaledPoints
        The points.
    dtype : torch.dtype
        Of the products.
    keep : bool, default=True
        Keep the placed points, or else place them again in every pass.
    """

    attempts = 1

    def __init__(self, space: ScaledPoints, dtype: torch.dtype, *, keep: bool = True) -> None:
        self.space, self.dtype = space, dtype
        cuda = space.points.is_cuda
        self._numbers, self._points = (_CUDA_NUMBERS, _CUDA_POINTS) if cuda else (CPU_NUMBERS, CPU_POINTS)
        # Rounding of placed coordinates and their norms in float64, then of what the products add.
        gap = (2 * space.d + 32) * _ROUNDOFF + (space.d + 8) * torch.finfo(dtype).eps / 2
        self._shrink = 1.0 - gap
        self._placed = [self._place(block) for block in space.blocks(self._points)] if keep else None

    def _place(self, points: Tensor) -> tuple[Tensor, Tensor]:
        placed = self.space.place(points)
        norms = placed.square().sum(1).mul_(self._shrink)
        return placed.mul_(-2.0).to(self.dtype), norms.to(self.dtype)

    @property
    def queries_per_block(self) -> int:
        """Queries of a block of distances."""
        return max(1, self._numbers // min(self._points, self.space.n))

    def keys(self, placed: Tensor) -> Iterator[tuple[int, Tensor]]:
        """First row of each block of points, and the keys (m, rows), which the next block overwrites."""
        x = placed.to(self.dtype)
        blocks = self._placed or (self._place(block) for block in self.space.blocks(self._points))
        memory = x.new_empty(len(x) * min(self._points, self.space.n))
        start = 0
        for points, norms in blocks:
            keys = memory[: len(x) * len(norms)].view(len(x), len(norms))
            torch.addmm(norms[None, :], x, points.T, out=keys)
            yield start, keys
            start += len(norms)

    def bound(self, placed: Tensor) -> Tensor:
        """What makes bounds on squared distances of keys, (m,)."""
        norms = placed.square().sum(1)
        bound = norms * self._shrink - _TINY * (1.0 + norms)
        if self.dtype == torch.float64:
            return bound
        # The user may have changed the setting since the engine was chosen: then every query is repeated in float64.
        return bound.masked_fill_((norms > _SINGLE_RANGE) | (not single_is_single()), -math.inf)

    def find_nearest(
        self, placed: Tensor, count: int, groups: Tensor | None = None, own: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Candidates of all queries; those left out, if any, have infinite keys."""
        step = self.queries_per_block
        parts = [
            self._find_nearest(placed[s : s + step], count, groups, None if own is None else own[s : s + step])
            for s in range(0, len(placed), step)
        ]
        return torch.cat([rows for rows, _ in parts]), torch.cat([bound for _, bound in parts])

    def _find_nearest(
        self, placed: Tensor, count: int, groups: Tensor | None, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        best: tuple[Tensor, Tensor] | None = None
        for start, keys in self.keys(placed):
            if groups is not None and own is not None:
                keys.masked_fill_(mark_excluded(groups[start : start + keys.shape[1]][None, :], own), math.inf)
            values, rows = select_smallest(keys, min(count, keys.shape[1]))
            rows += start
            if best is not None:
                values, rows = torch.cat([best[0], values], 1), torch.cat([best[1], rows], 1)
                values, places = torch.topk(values, min(count, values.shape[1]), largest=False, sorted=False)
                rows = rows.gather(1, places)
            best = values, rows
        assert best is not None  # there is at least one point
        values, rows = best
        if rows.shape[1] == self.space.n:
            return rows, values.new_full((len(rows),), math.inf, dtype=torch.float64)
        return rows, values.amax(1).double() + self.bound(placed)


def mark_excluded(groups: Tensor, own: Tensor) -> Tensor:
    """Which points a query must not find; groups (1 or m, c), own (m,)."""
    return (groups == own[:, None]) & (own != -1)[:, None]


class Tree:
    """SciPy's k-d tree, for few coordinates."""

    attempts = 3

    def __init__(self, space: ScaledPoints) -> None:
        # Imported here, as it is slow to import and brute force does not need it.
        from scipy.spatial import cKDTree

        self.space = space
        placed = torch.empty(space.n, space.d, dtype=torch.float64)
        step = space.rows_per_block()
        for begin, block in zip(range(0, space.n, step), space.blocks(step), strict=True):  # no copy of all points
            placed[begin : begin + step] = space.place(block)
        self._tree: Any = cKDTree(placed.numpy(), leafsize=32)  # which refers to them

    def find_nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Candidates of all queries."""
        distances, rows = self._tree.query(placed.numpy(), k=count, workers=torch.get_num_threads())
        shape = len(placed), count
        found = torch.as_tensor(rows.reshape(shape), dtype=torch.int64)
        if count == self.space.n:
            return found, torch.full(shape[:1], math.inf, dtype=torch.float64)
        # A placed point is wrong by a share of its norm, which is at most the query's norm and the distance.
        slack = self.space.slack
        farthest = torch.as_tensor(distances.reshape(shape)[:, -1]) * (1.0 - slack)
        return found, (farthest - 2.0 * slack * placed.square().sum(1).sqrt()).clamp_(min=0.0).square_()


def faiss_is_there() -> bool:
    """Whether the optional package can be imported."""
    try:
        import faiss  # noqa: F401  (an installed package may still fail to load)
    except ImportError:
        return False
    return True


class Lists:
    """faiss ``IVFFlat``: only the lists whose centres are nearest to a query are searched, so points may be missed."""

    attempts = 3

    def __init__(self, space: ScaledPoints) -> None:
        # From the optional extra "ann".
        import faiss

        n, d = space.n, space.d
        self.lists = max(1, min(int(4 * math.sqrt(n)), n // 39))  # faiss asks for 39 rows to train a centre
        self.probes = min(8, self.lists)
        self._quantizer: Any = faiss.IndexFlatL2(d)
        self._index: Any = faiss.IndexIVFFlat(self._quantizer, d, self.lists)
        # Every 1/64-th row or so, by a fixed rule; the seed of the clustering is fixed in faiss.
        sample = space.points[:: max(1, n // (64 * self.lists))]
        self._index.train(space.place(sample).float().numpy())
        for block in space.blocks(space.rows_per_block()):
            self._index.add(space.place(block).float().numpy())

    def find_nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Candidates of all queries; the bound says that none is missing, although some may be."""
        self._index.nprobe = self.probes
        _, rows = self._index.search(placed.float().numpy(), count)
        return torch.as_tensor(rows), torch.full((len(placed),), math.inf, dtype=torch.float64)
