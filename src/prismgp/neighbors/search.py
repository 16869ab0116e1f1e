"""Nearest neighbours: a fast engine finds candidates, exact distances rank them, and doubtful queries are repeated."""

from __future__ import annotations

import math
import warnings
from time import perf_counter

import torch

from prismgp._system import available_bytes
from prismgp._types import Tensor
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.neighbors.engines import (
    Engine,
    Lists,
    Products,
    ScaledPoints,
    Tree,
    faiss_is_there,
    mark_excluded,
    single_is_single,
)

ENGINES = ("auto", "tree", "brute", "approximate")
_EXTRA = 16  # candidates more than neighbours
_MOST_CANDIDATES = 4096  # of a query, before all points are looked at
QUERIES = 4096  # at a time
PAIRS = 2**21  # of queries and points within reach, at a time
_FEW_POINTS = 2_000  # need no pilot
MANY_POINTS, _MANY_COORDINATES = 500_000, 5  # from which "auto" is approximate
_PILOTS, _PILOT_NEIGHBORS = 64, 32
_RECALL_PILOTS, _RECALL_WANTED, _RECALL_PROMISED = 256, 0.99, 0.98
_SLOWER = 3.0  # times the pilot of the other engine, after which a pilot is given up
_GROWN = 2  # times the points, after which "auto" chooses again


class NeighborSearch:
    """Nearest points in a scaled space.

    The exact engines return the same rows in the same order, on CPU and CUDA, however queries are chunked: points are
    ranked by ``sum_j ((x_j - p_j) scale_j)^2`` in float64, by differences, then by row number.

    Parameters
    ----------
    points : Tensor of shape (n, D)
        Unscaled coordinates, float32 or float64, on CPU or CUDA.
    scale : Tensor of shape (D,)
        Factors of the coordinates, that is inverse length-scales; zero leaves a coordinate out.
    engine : {"auto", "tree", "brute", "approximate"}, default="auto"
        "tree" is a k-d tree (CPU), "brute" blocks of distances, "approximate" faiss ``IVFFlat`` (CPU; install
        ``prismgp[ann]``), which may miss points. "auto" is brute on CUDA; on CPU the faster of tree and brute on a few
        pilot queries, and approximate beyond 500,000 points with five or more relevant coordinates, if faiss is there.

    Attributes
    ----------
    engine : str
        The engine in use.
    recall : float
        Share of the true neighbours that are found: 1 for exact engines, measured on pilot queries for the other.

    Examples
    --------
    >>> import torch
    >>> from prismgp.neighbors import NeighborSearch
    >>> points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    >>> search = NeighborSearch(points, torch.tensor([1.0, 0.5], dtype=torch.float64))
    >>> search.query(points[:1], 3)
    tensor([[0, 1, 3]])
    >>> search.query(points[:1], 3, groups=torch.arange(4), own=torch.tensor([0]))  # not itself
    tensor([[1, 3, 2]])
    """

    engine: str
    recall: float

    def __init__(self, points: Tensor, scale: Tensor, *, engine: str = "auto") -> None:
        if engine not in ENGINES:
            raise DataError(f"engine={engine!r} is unknown; choose one of {', '.join(ENGINES)}")
        if points.is_cuda and engine in ("tree", "approximate"):
            raise DataError(
                f'engine={engine!r} works on the CPU only; use "brute" or "auto" for points on {points.device}'
            )
        if engine == "approximate" and not faiss_is_there():
            raise DataError('engine="approximate" needs faiss; install prismgp[ann], or use "auto"')
        self._points, self._scale, self._asked = points, scale, engine
        self._space = ScaledPoints(points, scale)
        self._chosen_for = self._space.n
        self.recall = 1.0
        self._engine, self.engine = self._choose(engine)

    @property
    def n(self) -> int:
        """Number of points."""
        return self._space.n

    def extend(self, points: Tensor) -> NeighborSearch:
        """Search among more points, whose rows follow those of this search."""
        joined = torch.cat([self._points, points.to(self._points.device)])
        # All exact engines return the same, so an outdated choice costs only time, as choosing again does.
        keep = self._asked != "auto" or len(joined) < _GROWN * self._chosen_for
        search = NeighborSearch(joined, self._scale, engine=self.engine if keep else "auto")
        search._asked = self._asked
        search._chosen_for = self._chosen_for if keep else len(joined)
        return search

    # Choice of the engine

    def _choose(self, engine: str) -> tuple[Engine, str]:
        space = self._space
        if engine == "auto" and space.points.is_cuda:
            engine = "brute"
        if engine == "auto" and space.n > MANY_POINTS and space.relevant >= _MANY_COORDINATES and faiss_is_there():
            engine = "approximate"
        if engine == "approximate":
            lists = self._lists()
            if lists is not None:
                return lists, engine
            engine = "auto"
        if engine == "tree":
            return Tree(space), engine
        brute = self._brute()
        if engine == "brute" or space.n < _FEW_POINTS:
            return brute, "brute"
        tree = self._faster_tree(brute)
        return (brute, "brute") if tree is None else (tree, "tree")

    def _brute(self) -> Products:
        # float64 on CUDA, because of TF32. On the CPU float32 takes half the time; few queries are repeated in float64.
        single = not self._space.points.is_cuda and single_is_single()
        return Products(self._space, torch.float32 if single else torch.float64)

    def _pilots(self, count: int) -> Tensor:
        """Rows of pilot queries, spread evenly: the same whenever the points are."""
        count = min(count, self.n)
        return torch.arange(count, device=self._space.points.device) * self.n // count

    def _faster_tree(self, brute: Products) -> Tree | None:
        """A tree, if pilot queries are faster by it and there is memory for it."""
        if 3 * 8 * self.n * self._space.d > available_bytes(self._points.device):  # placed points, and room to work
            return None
        x = self._space.queries(self._points[self._pilots(_PILOTS)])
        k = _PILOT_NEIGHBORS
        self._search(brute, x[:2], k, None, None)  # first calls start threads
        start = perf_counter()
        self._search(brute, x, k, None, None)  # with repeated queries: ties and tight clusters cost engines differently
        limit = perf_counter() - start
        tree = Tree(self._space)
        taken = 0.0
        for part in (x[:2], x[2:8], x[8:]):  # a slow tree is given up early
            start = perf_counter()
            self._search(tree, part, k, None, None)
            taken += perf_counter() - start
            if taken > _SLOWER * limit:
                return None
        return tree if taken < limit else None

    def _lists(self) -> Lists | None:
        """Lists with enough probes for the recall; None, with a warning, if that takes too many."""
        space, lists = self._space, Lists(self._space)
        pilots = self._pilots(_RECALL_PILOTS)
        x = space.queries(self._points[pilots])
        k = min(_PILOT_NEIGHBORS, self.n - 1)
        if k == 0:
            return lists
        groups = torch.arange(self.n)
        true = self._search(self._brute(), x, k, groups, pilots)
        # By distances, as points at the same distance are equally good.
        reach = space.distances(x, true)[:, -1:]
        while True:
            found, _ = lists.find_nearest(space.place(x), min(k + 1, self.n))
            hits = (space.distances(x, found.clamp(min=0)) <= reach) & (found >= 0) & (found != pilots[:, None])
            self.recall = float(hits.sum(1).clamp(max=k).double().mean()) / k
            if self.recall >= _RECALL_WANTED:
                return lists
            if 2 * lists.probes > lists.lists // 4:  # from here on exact search is as fast
                break
            lists.probes *= 2
        if self.recall >= _RECALL_PROMISED:
            return lists
        warnings.warn(
            f"approximate search finds {self.recall:.1%} of the neighbours with {lists.probes} of {lists.lists} lists; "
            "searching exactly instead",
            PrismGPWarning,
            stacklevel=4,
        )
        self.recall = 1.0
        return None

    # Queries

    def query(self, x: Tensor, k: int, *, groups: Tensor | None = None, own: Tensor | None = None) -> Tensor:
        """Rows of the nearest points.

        Parameters
        ----------
        x : Tensor of shape (m, D)
            Queries, unscaled.
        k : int
            Neighbours of each.
        groups : Tensor of shape (n,), optional
            Group of each point, int64.
        own : Tensor of shape (m,), optional
            Group of each query, whose points are left out; -1 leaves nothing out.

        Returns
        -------
        Tensor of shape (m, k)
            Rows, int64, on the device of the points, by (distance, row number).
        """
        x = self._space.queries(x)
        device = x.device
        if (groups is None) != (own is None):
            raise DataError("groups and own go together: give both or neither")
        if groups is not None and own is not None:
            groups, own = groups.to(device), own.to(device)
            if groups.shape != (self.n,) or own.shape != (len(x),):
                raise DataError(f"groups must have shape ({self.n},) and own ({len(x)},)")
        if not 0 <= k <= self.n:
            raise DataError(f"k={k} neighbours were asked for, but there are {self.n} points; choose k from 0 to that")
        if k == 0 or len(x) == 0:
            return torch.empty((len(x), k), dtype=torch.int64, device=device)
        return self._search(self._engine, x, k, groups, own)

    def distances(self, x: Tensor, rows: Tensor) -> Tensor:
        """Squared distances of queries to points, (m, c), which rank them: the same among whatever other points."""
        found, unit = self._space.distances(self._space.queries(x), rows), 2.0**self._space.exponent
        return found.mul_(unit).mul_(unit)  # powers of two, so nothing is rounded

    def _search(self, engine: Engine, x: Tensor, k: int, groups: Tensor | None, own: Tensor | None) -> Tensor:
        found = torch.empty((len(x), k), dtype=torch.int64, device=x.device)
        for s in range(0, len(x), QUERIES):
            part = slice(s, s + QUERIES)
            found[part] = self._search_part(engine, x[part], k, groups, None if own is None else own[part])
        return found

    def _search_part(self, engine: Engine, x: Tensor, k: int, groups: Tensor | None, own: Tensor | None) -> Tensor:
        placed = self._space.place(x)
        found = torch.empty((len(x), k), dtype=torch.int64, device=x.device)
        reach = torch.full((len(x),), math.inf, dtype=torch.float64, device=x.device)
        pending = torch.arange(len(x), device=x.device)
        count = k + _EXTRA
        for _ in range(engine.attempts):
            rows, bound = engine.find_nearest(placed[pending], min(count, self.n))
            mine = None if own is None else own[pending]
            found[pending], reach[pending] = self._rank(x[pending], rows, k, groups, mine)
            pending = pending[~self._is_settled(reach[pending], bound)]
            count *= 4
            if len(pending) == 0 or count > _MOST_CANDIDATES:
                break
        if len(pending):
            mine = None if own is None else own[pending]
            found[pending] = self.search_all(x[pending], placed[pending], reach[pending], k, groups, mine)
        return found

    def _is_settled(self, reach: Tensor, bound: Tensor) -> Tensor:
        """Whether no other point can be as near as the last neighbour; never while one is missing."""
        return reach * (1.0 + 4.0 * self._space.slack) < bound

    def _rank(
        self, x: Tensor, rows: Tensor, k: int, groups: Tensor | None, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The nearest k of the candidates, (m, k), and the squared distance of the last; infinite if there are less."""
        rows = rows.sort(1).values
        missing = rows < 0
        rows = rows.clamp_(min=0)
        if groups is not None and own is not None:
            missing |= mark_excluded(groups[rows], own)
        distances = self._space.distances(x, rows).masked_fill_(missing, math.inf)
        distances, order = distances.sort(dim=1, stable=True)
        return rows.gather(1, order[:, :k]), distances[:, k - 1]

    def search_all(
        self, x: Tensor, placed: Tensor, reach: Tensor, k: int, groups: Tensor | None, own: Tensor | None
    ) -> Tensor:
        """Every point that may lie within ``reach``, squared, by its exact distance."""
        products = self._make_exact_engine()
        if groups is not None and own is not None:
            short = (~reach.isfinite()).nonzero()[:, 0]
            if len(short):
                rows, _ = products.find_nearest(placed[short], min(k + _EXTRA, self.n), groups, own[short])
                reach[short] = self._rank(x[short], rows, k, groups, own[short])[1]
        if not bool(reach.isfinite().all()):
            raise DataError(
                f"k={k} neighbours were asked for, but after leaving out the own group a query has fewer; lower k"
            )
        return self._select_within_parts(products, x, placed, reach, k, groups, own, products.queries_per_block)

    def _make_exact_engine(self) -> Products:
        """Products in float64."""
        engine = getattr(self, "_engine", None)  # none yet while the constructor measures recall
        if isinstance(engine, Products) and engine.dtype == torch.float64:
            return engine
        return Products(self._space, torch.float64, keep=False)

    def _select_within_parts(
        self,
        products: Products,
        x: Tensor,
        placed: Tensor,
        reach: Tensor,
        k: int,
        groups: Tensor | None,
        own: Tensor | None,
        step: int,
    ) -> Tensor:
        slices = [slice(s, s + step) for s in range(0, len(x), step)]
        return torch.cat(
            [
                self._select_within(products, x[s], placed[s], reach[s], k, groups, None if own is None else own[s])
                for s in slices
            ]
        )

    def _select_within(
        self,
        products: Products,
        x: Tensor,
        placed: Tensor,
        reach: Tensor,
        k: int,
        groups: Tensor | None,
        own: Tensor | None,
    ) -> Tensor:
        """The nearest k of the points within reach, of which there are at least k."""
        m = len(x)
        limit = (reach * (1.0 + 4.0 * self._space.slack) - products.bound(placed))[:, None]
        which = rows = torch.empty(0, dtype=torch.int64, device=x.device)
        distances = torch.empty(0, dtype=torch.float64, device=x.device)
        for start, keys in products.keys(placed):
            near = keys <= limit
            if groups is not None and own is not None:
                near &= ~mark_excluded(groups[start : start + keys.shape[1]][None, :], own)
            pairs = int(near.sum())
            if pairs > PAIRS and m > 1:  # many rows are equal, and their pairs would need too much memory
                step = max(1, min(m // 2, m * PAIRS // pairs))
                return self._select_within_parts(products, x, placed, reach, k, groups, own, step)
            new_which, new_rows = near.nonzero(as_tuple=True)
            new_rows = new_rows + start
            exact = self._space.pair_distances(x, new_which, new_rows)
            close = exact <= reach[new_which]
            # Stable sorts: rows ascend within each block, and those of earlier blocks come first.
            which = torch.cat([which, new_which[close]])
            rows = torch.cat([rows, new_rows[close]])
            distances, order = torch.cat([distances, exact[close]]).sort(stable=True)
            which, places = which[order].sort(stable=True)
            order, distances = order[places], distances[places]
            counts = torch.bincount(which, minlength=m)
            rank = torch.arange(len(which), device=x.device) - (counts.cumsum(0) - counts)[which]
            kept = rank < k
            which, rows, distances = which[kept], rows[order][kept], distances[kept]
        return rows.view(m, k)
