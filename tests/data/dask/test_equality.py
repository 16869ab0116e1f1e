"""The same model, wherever the rows are."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from prismgp import PrismGPRegressor, Reconfigurer, SSGPRegressor
from prismgp.data import MappedSource, from_csv, from_parquet
from prismgp.exceptions import DataError

INPUTS = ["a", "b", "c"]
pytestmark = pytest.mark.usefixtures("short_local", "short_race")
EVIDENCE, PREDICTION = 1e-8, 1e-6  # relative; of the sums only the order differs

MODELS = {
    "ssgp": SSGPRegressor(4, random_state=0, max_iter=6, lengthscale=1.0),
    "soft": SSGPRegressor(4, random_state=0, max_iter=3, lengthscale=1.0, gating="soft", n_components=2),
    "hard": SSGPRegressor(4, random_state=0, max_iter=3, lengthscale=1.0, gating="hard", n_components=2),
    "prism": PrismGPRegressor(
        4, random_state=0, max_iter=3, lengthscale=1.0, n_members=1, max_steps=10, hidden=16, latent_dim=2
    ),
    "paper": PrismGPRegressor(4, random_state=0, max_iter=3, recipe="paper", max_steps=10, output="latent"),
}


def results(model, *data):
    mean, std = model.fit(*data).predict(data[0], return_std=True)
    return model.log_evidence_, mean, std, model.log_density(*data), model.predict_interval(data[0], 0.8)


def assert_alike(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=EVIDENCE)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=PREDICTION, atol=PREDICTION)


@pytest.fixture(scope="module")
def expected(frame):
    return cache(lambda name: results(MODELS[name], frame[INPUTS], frame.y))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_files_read_by_workers(name, expected, folder, client, small_shards):
    assert_alike(results(MODELS[name], from_parquet(folder, "y", client=client)), expected(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ssgp", pytest.param("prism", marks=pytest.mark.nightly)])
def test_collections(name, expected, frame):
    # In threads; the tasks are those of a cluster.
    import dask.array as da
    import dask.dataframe as dd

    X = da.from_array(frame[INPUTS].to_numpy(), chunks=(160, 2))  # chunked along the columns too
    y = da.from_array(frame.y.to_numpy(), chunks=160)
    assert_alike(results(MODELS[name], X, y), expected(name))
    table = dd.from_pandas(frame, npartitions=4)
    assert_alike(results(MODELS[name], table[INPUTS], table.y), expected(name))


@pytest.mark.slow
def test_collections_on_a_cluster(expected, frame, client):
    import dask.dataframe as dd

    table = dd.from_pandas(frame, npartitions=4).persist()
    assert_alike(results(MODELS["ssgp"], table[INPUTS], table["y"]), expected("ssgp"))


@pytest.mark.slow
def test_the_number_of_workers_does_not_matter(folder, client, small_shards):
    from distributed import Client, LocalCluster

    def fitted(source):
        model = SSGPRegressor(6, random_state=0, optimize=False).fit(source)
        return model.log_evidence_, model.predict(source)

    two = fitted(from_parquet(folder, "y", client=client))
    options = {"processes": False, "n_workers": 4, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as four, Client(four, set_as_default=False) as other:
        more = fitted(from_parquet(folder, "y", client=other))
    assert two[0] == more[0]
    np.testing.assert_array_equal(two[1], more[1])


@pytest.mark.slow
def test_text_files_with_categories_and_gaps(frame, tmp_path, client):
    table = frame.assign(kind=np.where(frame.a > 0, "up", "down"))
    table.loc[[3, 300], "b"] = np.nan
    for number in range(3):
        table[number * 200 : (number + 1) * 200].to_csv(tmp_path / f"{number}.csv", index=False)
    here = from_csv(tmp_path, "y", missing="drop")
    there = from_csv(tmp_path, "y", missing="drop", client=client)
    assert there.n_rows == here.n_rows == 598
    assert there.rows_read == 600
    assert there.feature_names == here.feature_names
    here_rows, there_rows = here.load(), there.load()
    np.testing.assert_array_equal(there_rows.x, here_rows.x)
    np.testing.assert_array_equal(there_rows.y, here_rows.y)
    # At fixed parameters: the two indicators add up to one, and along such a direction an optimiser carries even a
    # change of the rows by one part in 1e15 into the seventh digit of the evidence, without any cluster.
    model = SSGPRegressor(4, random_state=0, optimize=False)
    assert_alike(results(model, there), results(model, here))
    assert model.table_encoder_.columns == there.encoder.columns


@pytest.mark.slow
def test_rows_are_picked_in_order_and_moments_agree(frame, folder, client, small_shards):
    here, there = from_parquet(folder, "y"), from_parquet(folder, "y", client=client)
    assert there.n_shards == 7
    index = np.array([0, 59, 60, 159, 160, 439, 440, 599])
    np.testing.assert_array_equal(there.take(index).x, frame[INPUTS].to_numpy()[index])
    np.testing.assert_array_equal(there.select(index).select(np.arange(1, 8, 2)).load().y[:, 0], frame.y[index[1::2]])
    np.testing.assert_array_equal(there.load().x, here.load().x)
    for ours, theirs in zip(there.moments, here.moments, strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-14)
        np.testing.assert_allclose(ours.std, theirs.std, rtol=1e-14)
    blocks = list(there.blocks(133))
    assert [len(x) for x, _ in blocks] == [133] * 4 + [68]
    np.testing.assert_array_equal(np.concatenate([x for x, _ in blocks]), here.load().x)


@pytest.mark.slow
def test_a_map_of_the_inputs_is_applied_by_the_workers(folder, client):
    source = MappedSource(from_parquet(folder, "y", client=client), np.exp, 3)
    assert source.distributed
    np.testing.assert_allclose(source.moments[0].mean, np.exp(from_parquet(folder, "y").load().x).mean(0), rtol=1e-12)


@pytest.mark.slow
def test_more_rows_join_a_fitted_model(frame, folder, client):
    half = frame[:300]
    model = SSGPRegressor(6, random_state=0, optimize=False).fit(half[INPUTS], half.y)
    both = model.partial_fit(from_parquet(folder / "part-2.parquet", "y", client=client)).log_evidence_
    model.fit(half[INPUTS], half.y).partial_fit(frame[440:][INPUTS], frame[440:].y)
    np.testing.assert_allclose(both, model.log_evidence_, rtol=EVIDENCE)


@pytest.mark.slow
def test_reconfigurer(frame, folder, client):
    here = Reconfigurer(3, 2, max_steps=20, random_state=0).fit(frame[INPUTS])
    there = Reconfigurer(3, 2, max_steps=20, random_state=0).fit(from_parquet(folder, "y", client=client))
    for method in ("transform", "responsibilities"):
        far = getattr(there, method)(from_parquet(folder, client=client, exclude=["y"]))
        np.testing.assert_allclose(far, getattr(here, method)(frame[INPUTS]), atol=PREDICTION)


@pytest.mark.slow
def test_clusterers_and_labels(frame, folder, client):
    from sklearn.cluster import KMeans
    from sklearn.mixture import GaussianMixture

    source = from_parquet(folder, "y", client=client)
    full = GaussianMixture(2, random_state=0).fit(frame[INPUTS])  # no rule of ours: it is asked about every row
    for gating in ("hard", "soft"):
        model = SSGPRegressor(4, random_state=0, optimize=False, gating=gating, partition=full)
        assert_alike(results(model, source), results(model, frame[INPUTS], frame.y))
    with pytest.raises(DataError, match="labels of single rows cannot be used with rows on a cluster"):
        SSGPRegressor(4, gating="hard", partition=np.zeros(600, dtype=int)).fit(source)
    means = KMeans(2, n_init=1, random_state=0).fit(frame[INPUTS])
    with pytest.raises(DataError, match="KMeans has no probabilities"):
        SSGPRegressor(4, optimize=False, gating="soft", partition=means).fit(source)
