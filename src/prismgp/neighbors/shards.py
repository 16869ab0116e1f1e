"""Nearest neighbours among points on the workers of a cluster: shards search their own, and the best are merged.

Distances do not depend on what else is searched (:mod:`prismgp.neighbors.engines`), so the result is that of an exact
search in one place, ties by row number included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.data import Kept
from prismgp.exceptions import DataError
from prismgp.neighbors.engines import mark_excluded
from prismgp.neighbors.search import NeighborSearch


@dataclass(frozen=True)
class PointShards:
    """Points in shards, each in the memory of some worker."""

    kept: Kept[Any]  # data of the rows on the workers
    n: int  # points of all shards
    read: Callable[[Any], Tensor]  # from the data of a shard to its points, (n, D)
    changed: tuple[Tensor, Tensor] | None = None  # rows, increasing, that have changed since, and their points

    def change(self, rows: Tensor, points: Tensor) -> PointShards:
        """With other points in some rows."""
        order = rows.argsort()
        return replace(self, changed=(rows[order].cpu(), points[order].cpu()))

    def search(self, scale: Tensor) -> ShardSearch:
        """In the metric of a scale, (D,)."""
        return ShardSearch(self, scale)


@dataclass(frozen=True)
class ShardSearch:
    """A search of points in shards, with the results of :class:`NeighborSearch`."""

    shards: PointShards
    scale: Tensor

    def query(self, x: Tensor, k: int, *, groups: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """As :meth:`NeighborSearch.query` among all points."""
        shards = self.shards
        if not 0 <= k <= shards.n:
            raise DataError(
                f"k={k} neighbours were asked for, but there are {shards.n} points; choose k from 0 to that"
            )
        if k == 0 or len(x) == 0:
            return torch.empty((len(x), k), dtype=torch.int64, device=x.device)
        if groups is not None and torch.equal(groups.cpu(), torch.arange(shards.n)):
            groups = None  # every row is a group of its own, as shards assume
        tensors = (None if each is None else each.cpu() for each in (groups, own))
        task = _Task(shards.read, shards.changed, self.scale.cpu(), x.cpu(), k, *tensors)
        distances, rows = shards.kept.reduce(task.find, task.merge)
        if not bool(distances[:, -1].isfinite().all()):
            raise DataError(
                f"k={k} neighbours were asked for, but after leaving out the own group a query has fewer; lower k"
            )
        return rows.to(x.device)


@dataclass(frozen=True)
class _Task:
    """What is asked of every shard; it can be pickled."""

    read: Callable[[Any], Tensor]
    changed: tuple[Tensor, Tensor] | None
    scale: Tensor
    x: Tensor
    k: int
    groups: Tensor | None  # of all rows; None: each is a group of its own
    own: Tensor | None  # None: nothing is left out

    def find(self, kept: Any, first_row: int) -> tuple[Tensor, Tensor]:
        """Squared distances and rows of the nearest points of a shard, (m, k) or fewer; those left out are infinite."""
        points = self._points(kept, first_row)
        n = len(points)
        numbers = torch.arange(first_row, first_row + n)
        groups = numbers if self.groups is None else self.groups[first_row : first_row + n]
        largest = 0 if self.own is None else int(np.unique(groups.numpy(), return_counts=True)[1].max())
        search = NeighborSearch(points, self.scale, engine="auto")
        rows = search.query(self.x, min(self.k + largest, n))
        distances = search.distances(self.x, rows).cpu()
        if self.own is not None:
            distances.masked_fill_(mark_excluded(groups[rows.cpu()], self.own), math.inf)
        return self._find_nearest(distances, numbers[rows.cpu()])

    def _points(self, kept: Any, first_row: int) -> Tensor:
        points = self.read(kept)
        if self.changed is None:
            return points
        rows, others = self.changed
        begin, end = torch.searchsorted(rows, torch.tensor([first_row, first_row + len(points)])).tolist()
        points = points.clone()
        points[(rows[begin:end] - first_row).to(points.device)] = others[begin:end].to(points)
        return points

    def _find_nearest(self, distances: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest k; of equal distances those that come first."""
        distances, order = distances.sort(dim=1, stable=True)
        return distances[:, : self.k].contiguous(), rows.gather(1, order)[:, : self.k].contiguous()

    def merge(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The nearest of two shards, the first of which has the smaller rows."""
        distances, rows = (torch.cat(each, 1) for each in zip(first, second, strict=True))
        return self._find_nearest(distances, rows)
