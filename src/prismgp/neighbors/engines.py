"""Engines that find candidates fast, and bound the distance of every point they leave out.

``nearest(placed, count)`` takes placed queries (:meth:`Space.place`) and returns rows of candidates, (m, count), -1
for none, and a lower bound on the squared distances of all other points, (m,). Candidates have no order, and of points
at equal distances any may be among them: the caller ranks them by exact distances, and looks again where the bound
does not exclude that something is missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from prismgp._types import Tensor
from prismgp.neighbors.space import ROUNDOFF, Space

_CPU_NUMBERS = 2**23  # of a block of distances: 32 MB in float32, 64 MB in float64
_CUDA_NUMBERS = 2**27  # 1 GB
_CPU_POINTS, _CUDA_POINTS = 2**17, 2**20  # of a block: long rows are cheaper to select from
_TINY = 1e-30  # what underflow in float32 may lose, in units of the farthest point
_SINGLE_RANGE = 1e30  # of squared norms of queries in float32


class Engine(Protocol):
    """What finds candidates."""

    attempts: int  # with four times the candidates each time, before all points are looked at

    def nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]: ...


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
    space : Space
        The points.
    dtype : torch.dtype
        Of the products.
    keep : bool, default=True
        Keep the placed points, or else place them again in every pass.
    """

    attempts = 1

    def __init__(self, space: Space, dtype: torch.dtype, *, keep: bool = True) -> None:
        self.space, self.dtype = space, dtype
        cuda = space.points.is_cuda
        self._numbers, self._points = (_CUDA_NUMBERS, _CUDA_POINTS) if cuda else (_CPU_NUMBERS, _CPU_POINTS)
        # Rounding of placed coordinates and their norms in float64, then of what the products add.
        gap = (2 * space.d + 32) * ROUNDOFF + (space.d + 8) * torch.finfo(dtype).eps / 2
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

    def nearest(
        self, placed: Tensor, count: int, groups: Tensor | None = None, own: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Candidates of all queries; those left out, if any, have infinite keys."""
        step = self.queries_per_block
        parts = [
            self._nearest(placed[s : s + step], count, groups, None if own is None else own[s : s + step])
            for s in range(0, len(placed), step)
        ]
        return torch.cat([rows for rows, _ in parts]), torch.cat([bound for _, bound in parts])

    def _nearest(self, placed: Tensor, count: int, groups: Tensor | None, own: Tensor | None) -> tuple[Tensor, Tensor]:
        best: tuple[Tensor, Tensor] | None = None
        for start, keys in self.keys(placed):
            if groups is not None and own is not None:
                keys.masked_fill_(left_out(groups[start : start + keys.shape[1]][None, :], own), math.inf)
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


def left_out(groups: Tensor, own: Tensor) -> Tensor:
    """Which points a query must not find; groups (1 or m, c), own (m,)."""
    return (groups == own[:, None]) & (own != -1)[:, None]


class Tree:
    """SciPy's k-d tree, for few coordinates."""

    attempts = 3

    def __init__(self, space: Space) -> None:
        from scipy.spatial import cKDTree

        self.space = space
        placed = torch.empty(space.n, space.d, dtype=torch.float64)
        step = space.rows_per_block()
        for begin, block in zip(range(0, space.n, step), space.blocks(step), strict=True):  # no copy of all points
            placed[begin : begin + step] = space.place(block)
        self._tree: Any = cKDTree(placed.numpy(), leafsize=32)  # which refers to them

    def nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]:
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

    def __init__(self, space: Space) -> None:
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

    def nearest(self, placed: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Candidates of all queries; the bound says that none is missing, although some may be."""
        self._index.nprobe = self.probes
        _, rows = self._index.search(placed.float().numpy(), count)
        return torch.as_tensor(rows), torch.full((len(placed),), math.inf, dtype=torch.float64)
