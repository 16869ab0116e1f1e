"""Neighbours of rows on a cluster: shards search their own rows."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import torch

from prismgp import NeighborGPRegressor, PrismGPRegressor
from prismgp.data import StandardisedRows, collection_source, fit_standardiser
from prismgp.exceptions import DataError
from prismgp.neighbors import NeighborSearch
from prismgp.neighbors.model import keep_rows
from prismgp.neighbors.shards import ShardSearch

INPUTS = ["a", "b", "c"]
pytestmark = pytest.mark.usefixtures("short_local", "short_race")


@pytest.fixture
def searches(monkeypatch):
    """Queries of searches in one place, and of searches by shards, which have at most 150 rows here."""
    monkeypatch.setattr("prismgp.data.dask.SHARD_ROWS", 150)
    seen = {"here": [], "there": []}
    for kind, where in ((NeighborSearch, "here"), (ShardSearch, "there")):
        query = kind.query

        def watched(self, x, *args, _query=query, _where=where, **options):
            seen[_where].append((len(x), getattr(self, "n", None)))
            return _query(self, x, *args, **options)

        monkeypatch.setattr(kind, "query", watched)
    return seen


def make_shards(x, chunk=70):
    """Standardised points, here and in shards."""
    source = collection_source(da.from_array(x, chunks=(chunk, -1)), da.from_array(np.zeros(len(x)), chunks=chunk))
    rows = StandardisedRows(source, fit_standardiser(source, normalize=True))
    points, _, _, shards = keep_rows(rows)
    return points, shards


@pytest.mark.parametrize("kind", ["random", "grid", "copies", "far"])
def test_shards_find_the_rows_of_one_search(kind, rng, monkeypatch):
    """Ties by row number, also across shards; a far row in one shard changes the units of that shard only."""
    monkeypatch.setattr("prismgp.data.dask.SHARD_ROWS", 140)  # two partitions, and the last alone
    x = rng.normal(size=(350, 3))
    if kind == "grid":
        x = np.round(x)
    if kind == "copies":
        x = x[rng.integers(5, size=350)]
    if kind == "far":
        x[200] = 1e9
    points, shards = make_shards(x)
    scale = torch.as_tensor(rng.uniform(0.1, 3.0, 3))
    here, there = NeighborSearch(points, scale), shards.search(scale)
    own = torch.as_tensor(np.sort(rng.choice(350, 60, replace=False)))
    for k in (1, 12, 200):
        np.testing.assert_array_equal(there.query(points[own], k), here.query(points[own], k))
        each = {"groups": torch.arange(350), "own": own}
        np.testing.assert_array_equal(there.query(points[own], k, **each), here.query(points[own], k, **each))
        groups = torch.as_tensor(rng.integers(4, size=350))
        several = {"groups": groups, "own": groups[own]}
        np.testing.assert_array_equal(there.query(points[own], k, **several), here.query(points[own], k, **several))
    rows, others = own[[3, 1]], points[own[[3, 1]]] + 0.5
    moved = points.clone()
    moved[rows] = others
    changed = shards.change(rows, others).search(scale).query(points[own], 9)
    np.testing.assert_array_equal(changed, NeighborSearch(moved, scale).query(points[own], 9))


def test_too_many_neighbors_are_refused(rng):
    points, shards = make_shards(rng.normal(size=(100, 2)))
    search = shards.search(torch.ones(2, dtype=torch.float64))
    with pytest.raises(DataError, match="k=101 neighbours were asked for, but there are 100 points; choose k"):
        search.query(points, 101)
    with pytest.raises(DataError, match="after leaving out the own group a query has fewer; lower k"):
        search.query(points, 100, groups=torch.arange(100), own=torch.arange(100))
    assert search.query(points[:0], 3).shape == (0, 3)
    assert search.query(points, 0).shape == (100, 0)


@pytest.mark.slow
@pytest.mark.parametrize("local_rows", [None, 250])
def test_a_neighbor_gp_is_learned_by_shards(local_rows, frame, searches):
    x, y = frame[INPUTS].to_numpy(), frame["y"].to_numpy()
    options = {"max_iter": 20, "random_state": 0, "local_rows": local_rows}
    expected = NeighborGPRegressor(12, **options).fit(x, y)
    for each in searches.values():
        each.clear()
    found = NeighborGPRegressor(12, **options).fit(da.from_array(x, chunks=(150, 3)), da.from_array(y, chunks=150))
    assert searches["there"]
    assert all(points <= 150 for _, points in searches["here"])  # of the driver none, and of shards their own
    np.testing.assert_allclose(found.lengthscale_, expected.lengthscale_, rtol=1e-6)
    np.testing.assert_allclose(found.log_evidence_, expected.log_evidence_, rtol=1e-8)
    np.testing.assert_allclose(found.predict(x, return_std=True), expected.predict(x, return_std=True), rtol=1e-6)
    assert found.model_.predictor.gp.shards is None
    assert found.fit_status_["rows"] == expected.fit_status_["rows"] == (local_rows or 600)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [pytest.param(600, marks=pytest.mark.nightly), 300])
def test_neighbors_of_a_mixture_are_learned_by_shards(sample, frame, searches, monkeypatch):
    """Where the networks are trained on all rows, and where on some."""
    monkeypatch.setattr("prismgp.data.sources.KEPT_BYTES", 0)  # rows stay on the workers
    monkeypatch.setattr("prismgp.prism.fit.TRAINING_ROWS", sample)
    x, y = frame[INPUTS].to_numpy(), frame["y"].to_numpy()
    settings = {"n_members": 1, "max_steps": 10, "hidden": 8, "latent_dim": 2, "batch_size": 32, "max_iter": 3}
    model = PrismGPRegressor(4, random_state=0, lengthscale=1.0, local="always", **settings)
    expected = model.fit(x, y).predict(x, return_std=True), model.fit_status_["local"]
    for each in searches.values():
        each.clear()
    model.fit(da.from_array(x, chunks=(150, 3)), da.from_array(y, chunks=150))
    assert searches["there"]
    assert all(points <= 150 for _, points in searches["here"])
    assert model.fit_status_["local"]["weights"] == pytest.approx(expected[1]["weights"], abs=1e-5)
    assert all(each.gp.shards is None for each in model.model_.predictor.near)
    np.testing.assert_allclose(model.predict(x, return_std=True), expected[0], rtol=1e-5, atol=1e-6)
