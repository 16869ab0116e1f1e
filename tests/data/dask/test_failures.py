"""Lost workers, lost schedulers, bad data."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from prismgp import SSGPRegressor
from prismgp.data import MappedSource, from_csv, from_parquet
from prismgp.data.sources import compute_moments, merge_moments
from prismgp.exceptions import DataError, PrismGPError

INPUTS = ["a", "b", "c"]


def deadly(calls, fatal):
    """The identity, which counts its calls on workers in a file; the worker of the fatal one dies of it."""
    driver = os.getpid()

    def call(x):
        if os.getpid() != driver:
            file = os.open(calls, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(file, b".")
            number = os.lseek(file, 0, os.SEEK_CUR)  # the end of what this call wrote, whoever writes beside it
            os.close(file)
            if number == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
        return x

    return call


def _identity(x):
    return x


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_pass(folder, client, small_shards, tmp_path):
    source = from_parquet(folder, "y", client=client)
    fatal = 4
    assert source.n_shards > fatal

    def found(function):
        return [each.tobytes() for each in MappedSource(source, function, 3).reduce(compute_moments, merge_moments)]

    undisturbed = found(_identity)
    before = {info["pid"] for info in client.run(_about).values()}
    disturbed = found(deadly(tmp_path / "calls", fatal))
    assert (tmp_path / "calls").stat().st_size > source.n_shards  # those of the dead worker were repeated
    client.wait_for_workers(2, timeout=60)
    assert {info["pid"] for info in client.run(_about).values()} != before
    assert disturbed == undisturbed


def _about():
    return {"pid": os.getpid()}


@pytest.mark.slow
def test_the_scheduler_is_lost(folder, tmp_path):
    from distributed import Client

    about = tmp_path / "scheduler.json"
    command = ["-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", about]
    process = subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not about.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        with Client(scheduler_file=str(about), timeout=3, set_as_default=False) as client:
            source = from_parquet(folder, "y", missing="error", client=client)  # without a pass to count the rows
            model = SSGPRegressor(4, optimize=False)
            threading.Timer(1.0, process.kill).start()  # there are no workers: the pass waits
            began = time.monotonic()
            with pytest.raises(PrismGPError, match=r"connection to the Dask scheduler .* was lost"):
                model.fit(source)
            assert time.monotonic() - began < 30
            with pytest.raises(NotFittedError):
                model.predict(np.ones((1, 3)))
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_nobody_answers(folder):
    with pytest.raises(PrismGPError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9'"), _short_patience():
        from_parquet(folder, "y", client="tcp://127.0.0.1:9")
    with pytest.raises(DataError, match=r"must be a distributed\.Client or the address"):
        from_parquet(folder, "y", client=7)


def _short_patience():
    patch = pytest.MonkeyPatch()
    patch.setattr("prismgp.data.cluster.CONNECT_SECONDS", 1)
    return patch.context()


@pytest.mark.slow
def test_an_address_makes_a_client_that_goes_with_the_source(folder, cluster):
    known = set(cluster.scheduler.clients)
    source = from_parquet(folder, "y", client=cluster.scheduler_address)
    assert source.take(np.arange(3)).n_rows == 3
    inner = source._cluster._client
    del source
    gc.collect()
    assert inner.status == "closed"
    assert set(cluster.scheduler.clients) <= known


@pytest.mark.slow
def test_a_bad_cell_in_a_file(frame, tmp_path, client):
    good, bad = frame[:200].copy(), frame[200:400].copy()
    bad.loc[bad.index[5], "b"] = np.nan
    good.to_parquet(tmp_path / "0.parquet", index=False)
    bad.to_parquet(tmp_path / "1.parquet", index=False)
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(frame[INPUTS], frame.y)
    with pytest.raises(DataError, match=r"1\.parquet, row groups 0 to 0: missing values in column 'b' \(1\)"):
        model.fit(from_parquet(tmp_path, "y", missing="error", client=client))
    with pytest.raises(NotFittedError):  # nothing of the older fit is left
        model.predict(frame[INPUTS])


@pytest.mark.slow
def test_a_huge_cell_in_a_file(frame, tmp_path, client):
    table = frame[:50].copy()
    table.loc[7, "c"] = 1e200
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"column 'c' holds 1e\+200 in row 8 .* rescale the column"):
        from_csv(tmp_path / "t.csv", "y", client=client)


@pytest.mark.slow
def test_files_that_workers_do_not_see(folder, tmp_path, client):
    (tmp_path / "t.parquet").write_bytes((folder / "part-0.parquet").read_bytes())
    source = from_parquet(tmp_path / "t.parquet", "y", client=client)
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(DataError, match="every worker must reach the files by the same path"):
        SSGPRegressor(4).fit(source)


@pytest.mark.slow
def test_categories_that_training_did_not_have(frame, tmp_path, client):
    table = frame[:100].assign(kind=["up", "down"] * 50)
    table.to_parquet(tmp_path / "train.parquet", index=False)
    table.assign(kind="sideways").to_parquet(tmp_path / "new.parquet", index=False)
    model = SSGPRegressor(4, random_state=0, optimize=False)
    model.fit(from_parquet(tmp_path / "train.parquet", "y", client=client))
    with pytest.warns(UserWarning, match="'kind': 100 value"):
        model.predict(from_parquet(tmp_path / "new.parquet", client=client, exclude=["y"]))


# -- collections: in threads ---------------------------------------------------------------------


@pytest.fixture
def collections(frame):
    import dask.array as da
    import dask.dataframe as dd

    return da, dd, frame.copy()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"partition 2 .*NaN.*'b' holds nan at row 1 .*drop these rows"),
        (np.inf, r"partition 2 .*'b' holds inf"),
        (1e200, r"partition 2 .*'b' holds 1e\+200 at row 1 .*rescale"),
    ],
)
def test_a_bad_cell_in_a_frame(value, message, collections):
    _, dd, frame = collections
    frame = frame[:40]
    frame.loc[21, "b"] = value
    table = dd.from_pandas(frame, npartitions=4)
    model = SSGPRegressor(4, missing="error")
    with pytest.raises(DataError, match=message):
        model.fit(table[INPUTS], table["y"])
    with pytest.raises(NotFittedError):
        model.predict(frame)


def test_partitions_must_match(collections):
    da, dd, frame = collections
    X, y = frame[INPUTS].to_numpy(), frame["y"].to_numpy()
    with pytest.raises(DataError, match=r"X has 3 partitions and y has 2; .*rechunk"):
        SSGPRegressor(4).fit(da.from_array(X, chunks=(200, 3)), da.from_array(y, chunks=400))
    with pytest.raises(DataError, match=r"partition 0 .*X has 350 rows and y has 400"):
        SSGPRegressor(4).fit(da.from_array(X, chunks=((350, 250), 3)), da.from_array(y, chunks=400))
    longer = dd.from_pandas(frame, npartitions=1)
    shorter = dd.from_pandas(frame[:-1], npartitions=1)
    with pytest.raises(DataError, match=r"partition 0 .*X has 600 rows and y has 599"):
        SSGPRegressor(4).fit(longer[INPUTS], shorter["y"])
    with pytest.raises(DataError, match="X is a Dask collection, but y is ndarray"):
        SSGPRegressor(4).fit(da.from_array(X), y)


def test_targets_that_are_no_numbers(collections):
    da, dd, frame = collections
    frame = frame[:20].assign(text="x", kind=pd.Categorical(["u", "v"] * 10), when=pd.Timestamp("2020-01-01"))
    table = dd.from_pandas(frame, npartitions=2)
    for name in ("text", "kind", "when"):
        with pytest.raises(DataError, match=rf"column '{name}' of y .* not a number; convert it"):
            SSGPRegressor(4).fit(table[["a"]], table[name])
    with pytest.raises(DataError, match="Dask array of complex128"):
        SSGPRegressor(4).fit(da.ones((4, 2), dtype=complex), da.ones(4))


def test_unknown_chunks_nullable_columns_and_empty_partitions(collections):
    _, dd, frame = collections
    table = dd.from_pandas(frame.assign(a=frame["a"].astype("Float64")), npartitions=4)
    kept = table[table["y"] > table["y"].min() + 0.5]
    here = frame[frame["y"] > frame["y"].min() + 0.5]
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(kept[INPUTS], kept["y"])
    assert model.fit_status_["rows"] == len(here)
    far = model.log_evidence_
    np.testing.assert_allclose(model.fit(here[INPUTS], here["y"]).log_evidence_, far, rtol=1e-8)
    arrays = kept[INPUTS].astype(float).to_dask_array(), kept["y"].to_dask_array()
    np.testing.assert_allclose(model.fit(*arrays).log_evidence_, far, rtol=1e-8)
    top = table[table["b"] > float(np.sort(frame["b"])[-3])]  # most partitions have no row
    assert SSGPRegressor(2, optimize=False).fit(top[INPUTS], top["y"]).fit_status_["rows"] == 2


def test_inputs_of_another_table(collections):
    _, dd, frame = collections
    table = dd.from_pandas(frame, npartitions=2)
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(table[INPUTS], table["y"])
    assert list(model.feature_names_in_) == INPUTS
    with pytest.raises(DataError, match="the model was fitted with a, b, c"):
        model.predict(table[["b", "a", "c"]])
