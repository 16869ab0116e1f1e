"""Neighbours against a dense float64 reference, sorted by (distance, row number)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.neighbors import NeighborSearch, engines, search
from prismgp.neighbors.engines import ScaledPoints

EXACT = ["tree", "brute"]
DTYPES = [torch.float32, torch.float64]


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=shape)).to(dtype)


def ones(d):
    return torch.ones(d, dtype=torch.float64)


def reference(points, x, scale, k, groups=None, own=None):
    """All distances by differences, in float64."""
    points, x, scale = points.double().numpy(), x.double().numpy(), scale.numpy()
    rows = np.arange(len(points))
    found = []
    for i, row in enumerate(x):
        distance = np.sum(((row - points) * scale) ** 2, 1)
        if groups is not None and own[i] != -1:
            distance[groups.numpy() == own[i].item()] = np.inf
        found.append(np.lexsort((rows, distance))[:k])
    return torch.as_tensor(np.array(found).reshape(len(x), k))


def check(points, x, k, scale=None, **left_out):
    scale = ones(points.shape[1]) if scale is None else scale
    expected = reference(points, x, scale, k, **left_out)
    for engine in EXACT:
        found = NeighborSearch(points, scale, engine=engine).query(x, k, **left_out)
        assert found.dtype == torch.int64
        assert torch.equal(found, expected), engine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "d", "k"), [(1, 1, 1), (7, 3, 7), (500, 1, 5), (2500, 5, 20), (900, 45, 32), (300, 500, 9)]
)
def test_exact(n, d, k, dtype):
    scale = torch.as_tensor(np.random.default_rng(1).uniform(0.1, 2.0, d))
    check(normal(n, d, dtype=dtype), normal(30, d, seed=2, dtype=dtype), k, scale)


@pytest.mark.parametrize("offset", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_offset(dtype, offset):
    points = (offset + normal(1000, 4)).to(dtype)  # in float32 many rows become equal
    check(points, points[:40], 12)
    check(points, points[:40].double() + 2.0**-10, 12)  # no rounding: ties are ties


def test_tight_clusters():
    centres = 1e4 * normal(5, 6)
    points = centres.repeat(300, 1) + 1e-4 * normal(1500, 6, seed=1)
    check(points, points[:40], 20)
    check(points.float(), points[:40].float(), 20)


def test_outlier():
    points = normal(1000, 5)
    points[17] += 1e6
    points[400, 2] = -1e12
    check(points, points[390:420], 10)
    check(points, points[10:20], 1000)


def test_far_queries():
    points = normal(600, 3)
    check(points, torch.cat([1e5 * normal(5, 3, seed=1), 1e25 * normal(5, 3, seed=2)]), 10)


@pytest.mark.parametrize("factor", [1e-150, 1e-25, 1e25, 1e150])
def test_extreme_scales(factor):
    points, x = normal(400, 3), normal(20, 3, seed=1)
    expected = reference(points, x, ones(3), 10)
    for engine in EXACT:
        assert torch.equal(NeighborSearch(points, factor * ones(3), engine=engine).query(x, 10), expected)


@pytest.mark.parametrize(("side", "d", "k"), [(40, 2, 25), (12, 3, 33), (6, 5, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_on_grids(side, d, k, dtype):
    grid = torch.cartesian_prod(*[torch.arange(float(side), dtype=dtype)] * d)
    grid = grid[torch.as_tensor(np.random.default_rng(0).permutation(len(grid)))]
    check(grid, grid[:40], k, 0.5 * ones(d))
    check(grid, grid[:20] + 0.5, k, 0.5 * ones(d))


def test_repeated_rows(monkeypatch):
    rng = np.random.default_rng(0)
    points = normal(3, 2)[torch.as_tensor(rng.permutation(np.repeat(np.arange(3), 10_000)))]
    check(points, points[:6], 50)
    check(points, points[:4] + 0.01, 10_001)
    monkeypatch.setattr(search, "PAIRS", 15_000)
    check(points, points[:7], 5)


def test_all_points_equal():
    points = torch.full((3000, 4), 1e6 + 0.1, dtype=torch.float64)
    for engine in EXACT:
        found = NeighborSearch(points, ones(4), engine=engine).query(points[:5], 7)
        assert torch.equal(found, torch.arange(7).expand(5, 7))


def test_zero_scale_and_constant_coordinates():
    points, x = normal(500, 4), normal(20, 4, seed=1)
    points[:, 1] = 3.0
    points[:, 3] = 1e300 * points[:, 3]  # its scale is zero: it must not even overflow
    scale = torch.tensor([1.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    expected = reference(points[:, :3], x[:, :3], scale[:3], 9)
    for engine in EXACT:
        assert torch.equal(NeighborSearch(points, scale, engine=engine).query(x, 9), expected)
        nothing = NeighborSearch(points, 0.0 * ones(4), engine=engine).query(x, 3)
        assert torch.equal(nothing, torch.arange(3).expand(20, 3))


@pytest.mark.parametrize("kind", ["rows", "few", "large"])
def test_left_out(kind):
    points = torch.cartesian_prod(*[torch.arange(20.0)] * 2).repeat(5, 1)
    n = len(points)
    groups = {
        "rows": torch.arange(n),
        "few": torch.arange(n) % 400,  # identical rows
        "large": (points[:, 0] > 10).long() - (points[:, 0] > 15).long(),  # candidates are all left out
    }[kind]
    own = groups[:60].clone()
    own[::7] = -1
    check(points, points[:60], 30, groups=groups, own=own)


def test_minus_one_leaves_nothing_out_even_if_it_is_a_group():
    points = normal(50, 2)
    check(points, points[:3], 50, groups=torch.full((50,), -1), own=torch.full((3,), -1))


def test_too_many_neighbors():
    points = normal(30, 2)
    groups = torch.arange(30) // 10
    for engine in EXACT:
        found = NeighborSearch(points, ones(2), engine=engine)
        assert found.query(points, 20, groups=groups, own=groups).shape == (30, 20)
        with pytest.raises(ValueError, match="31 neighbours"):
            found.query(points, 31)
        with pytest.raises(ValueError, match="leaving out"):
            found.query(points, 21, groups=groups, own=groups)


def test_chunks_blocks_and_threads_change_nothing(monkeypatch):
    points = torch.cat([normal(1000, 6, dtype=torch.float32), normal(300, 6, dtype=torch.float32).repeat(2, 1)])
    x = torch.cat([points[:100], points[-100:]])
    expected = reference(points, x, ones(6), 15)
    monkeypatch.setattr(search, "QUERIES", 37)
    monkeypatch.setattr(engines, "CPU_NUMBERS", 20_000)
    monkeypatch.setattr(engines, "CPU_POINTS", 333)
    monkeypatch.setattr("prismgp.neighbors.engines.BLOCK", 5000)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for engine in EXACT:
                found = NeighborSearch(points, ones(6), engine=engine)
                assert torch.equal(found.query(x, 15), expected)
                assert torch.equal(torch.cat([found.query(row[None], 15) for row in x[::50]]), expected[::50])
    finally:
        torch.set_num_threads(threads)


def test_distances_have_the_same_bits_alone_and_in_blocks():
    space = ScaledPoints(normal(200, 45, dtype=torch.float32), ones(45) / 3)
    x = space.queries(normal(20, 45, seed=1))
    rows = torch.arange(200).expand(20, -1)
    whole = space.distances(x, rows)
    for i in (0, 7, 19):
        assert torch.equal(space.distances(x[i : i + 1], rows[:1, i : i + 3])[0], whole[i, i : i + 3])
        assert torch.equal(space.pair_distances(x, torch.full((200,), i), rows[0]), whole[i])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_keys_are_lower_bounds(dtype, shift):
    space = ScaledPoints(normal(400, 20) + shift * (normal(400, 1, seed=3) > 1), ones(20))
    x = space.queries(normal(50, 20, seed=1) * 3)
    placed, products = space.place(x), engines.Products(space, dtype)
    keys = torch.cat([keys.double() for _, keys in products.keys(placed)], 1)
    exact = space.distances(x, torch.arange(400).expand(50, -1))
    lower = keys + products.bound(placed)[:, None]
    assert (lower <= exact).all()
    norms = placed.square().sum(1, keepdim=True) + space.place(space.points).square().sum(1)
    assert (exact - lower <= 200 * torch.finfo(dtype).eps * norms).all()


def test_selection():
    keys = normal(9, 5003).round(decimals=2)  # with ties
    keys[3, 7:] = torch.inf
    for count in (1, 5, 48, 2000, 5003):
        values, columns = engines.select_smallest(keys, count)
        assert torch.equal(keys.gather(1, columns), values)
        assert torch.equal(values.sort(1).values, keys.sort(1).values[:, :count])
        assert all(len(set(row.tolist())) == count for row in columns)


@pytest.mark.parametrize("engine", ["auto", *EXACT])
def test_extend(engine):
    points, x = normal(700, 3), normal(20, 3, seed=1)
    found = NeighborSearch(points[:200], ones(3), engine=engine)
    longer = found.extend(points[200:650]).extend(points[650:].float())
    joined = torch.cat([points[:650], points[650:].float()])
    assert torch.equal(longer.query(x, 11), reference(joined, x, ones(3), 11))
    assert torch.equal(found.query(x, 11), reference(points[:200], x, ones(3), 11))  # as it was


def test_auto(monkeypatch):
    few = NeighborSearch(normal(1999, 2), ones(2))
    assert (few.engine, few.recall) == ("brute", 1.0)
    points, x = normal(3000, 2), normal(20, 2, seed=1)
    expected = reference(points, x, ones(2), 8)
    for ticks, engine in (((0, 9, 0, 1, 0, 1, 0, 1), "tree"), ((0, 1, 0, 2, 0, 2), "brute")):
        clock = iter(ticks)
        monkeypatch.setattr(search, "perf_counter", lambda clock=clock: float(next(clock)))
        found = NeighborSearch(points, ones(2))
        assert found.engine == engine
        assert torch.equal(found.query(x, 8), expected)


@pytest.mark.parametrize("answer", ["medium", "contradiction"])
def test_short_floats_are_not_trusted(monkeypatch, answer):
    def setting():
        if answer == "contradiction":
            raise RuntimeError("mix of the legacy and new APIs")
        return answer

    points = normal(3000, 3)
    before = NeighborSearch(points, ones(3), engine="brute")
    assert before._engine.dtype == torch.float32
    monkeypatch.setattr(torch, "get_float32_matmul_precision", setting)
    assert NeighborSearch(points, ones(3), engine="brute")._engine.dtype == torch.float64
    repeated = []
    in_full = before.search_all
    monkeypatch.setattr(before, "search_all", lambda x, *rest: repeated.append(len(x)) or in_full(x, *rest))
    assert torch.equal(before.query(points[:20], 6), reference(points, points[:20], ones(3), 6))
    assert repeated == [20]


def test_random_state_is_untouched():
    state = torch.get_rng_state()
    NeighborSearch(normal(2500, 3), ones(3)).query(normal(3, 3), 4)
    assert torch.equal(state, torch.get_rng_state())


def test_empty_requests():
    found = NeighborSearch(normal(10, 2), ones(2))
    assert found.query(torch.empty(0, 2), 3).shape == (0, 3)
    assert found.query(torch.zeros(4, 2), 0).shape == (4, 0)


def test_errors():
    points = normal(10, 2)
    with pytest.raises(DataError, match="unknown"):
        NeighborSearch(points, ones(2), engine="quick")
    with pytest.raises(DataError, match="scale"):
        NeighborSearch(points, ones(3))
    with pytest.raises(DataError, match="points must"):
        NeighborSearch(points[:0], ones(2))
    with pytest.raises(DataError, match="infinite or missing"):
        NeighborSearch(torch.full((3, 2), torch.nan), ones(2))
    found = NeighborSearch(points, ones(2))
    with pytest.raises(DataError, match="shape"):
        found.query(points[:, :1], 1)
    with pytest.raises(DataError, match="infinite or missing"):
        found.query(torch.full((1, 2), torch.inf), 1)
    with pytest.raises(DataError, match="go together"):
        found.query(points, 1, groups=torch.arange(10))
    with pytest.raises(DataError, match="groups must"):
        found.query(points, 1, groups=torch.arange(9), own=torch.arange(10))


def test_approximate_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(DataError, match="ann"):
        NeighborSearch(normal(10, 2), ones(2), engine="approximate")


class TestApproximate:
    @pytest.fixture(autouse=True)
    def faiss(self):
        pytest.importorskip("faiss", reason="faiss is not installed: the extra ann")

    def test_recall(self):
        points, x = normal(8000, 5, dtype=torch.float32), normal(200, 5, seed=1)
        found = NeighborSearch(points, ones(5), engine="approximate")
        assert found.engine == "approximate"
        assert found.recall >= 0.98
        rows = found.query(x, 20)
        expected = NeighborSearch(points, ones(5), engine="brute").query(x, 20)
        shared = np.mean([len(set(a) & set(b)) / 20 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
        assert shared > 0.96
        distances = found._space.distances(found._space.queries(x), rows)
        assert (distances.diff(dim=1) >= 0).all()
        again = NeighborSearch(points, ones(5), engine="approximate")
        assert again.recall == found.recall
        assert torch.equal(again.query(x, 20), rows)

    def test_left_out(self):
        points = normal(3000, 3).repeat(2, 1)
        groups = torch.arange(6000) % 3000
        rows = NeighborSearch(points, ones(3), engine="approximate").query(
            points[:50], 9, groups=groups, own=groups[:50]
        )
        assert (groups[rows] != groups[:50, None]).all()

    def test_few_points_and_repeated_rows(self):
        points = normal(30, 2)
        found = NeighborSearch(points, ones(2), engine="approximate")
        assert torch.equal(found.query(points, 30), reference(points, points, ones(2), 30))
        same = torch.zeros(5000, 2)
        assert NeighborSearch(same, ones(2), engine="approximate").query(same[:3], 4).shape == (3, 4)

    def test_low_recall_falls_back(self, monkeypatch):
        points = normal(4000, 60)  # no lists contain the neighbours
        with pytest.warns(PrismGPWarning, match="searching exactly"):
            found = NeighborSearch(points, ones(60), engine="approximate")
        assert found.engine in EXACT
        assert found.recall == 1.0

    def test_auto(self, monkeypatch):
        monkeypatch.setattr(search, "MANY_POINTS", 2500)
        assert NeighborSearch(normal(3000, 5), ones(5)).engine == "approximate"
        assert NeighborSearch(normal(3000, 4), ones(4)).engine in EXACT
