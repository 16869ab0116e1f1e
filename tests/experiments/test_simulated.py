"""The simulated gas sensor array in pieces and in files."""

from __future__ import annotations

import tracemalloc

import pandas as pd
import pyarrow.parquet as pq
import pytest

from experiments.simulated import gas_sensor_chunks, write_gas_sensor
from prismgp.datasets import make_gas_sensor
from prismgp.datasets.gas_sensor import GAS_TARGET
from prismgp.exceptions import DataError


@pytest.mark.parametrize("order", ["random", "time"])
@pytest.mark.parametrize("chunk_rows", [1, 977, 8_192, 50_000])
def test_pieces_do_not_matter(order, chunk_rows):
    n = 300 if chunk_rows == 1 else 20_000
    whole = make_gas_sensor(20_000, 5, order=order)
    pieces = list(gas_sensor_chunks(n, 5, chunk_rows, order=order))
    pd.testing.assert_frame_equal(pd.concat([X for X, _ in pieces]), whole.X[:n])
    pd.testing.assert_series_equal(pd.concat([y for _, y in pieces]), whole.y[:n])
    assert all(len(y) == chunk_rows for _, y in pieces[:-1])


def test_memory_of_a_stream_is_bounded():
    tracemalloc.start()
    try:
        for _ in gas_sensor_chunks(200_000, 0, 10_000):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12e6  # the rows are 15.2 MB in float32


@pytest.mark.parametrize("order", ["random", "time"])
def test_one_file(tmp_path, order):
    [path] = write_gas_sensor(tmp_path / "gas.parquet", 20_000, 7, row_group_rows=6_000, order=order)
    data = make_gas_sensor(20_000, 7, order=order)
    frame = pd.read_parquet(path)
    pd.testing.assert_series_equal(frame.pop(GAS_TARGET), data.y)
    pd.testing.assert_frame_equal(frame, data.X)
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(4)] == [6_000, 6_000, 6_000, 2_000]
    assert file.schema_arrow.metadata[b"prismgp.simulated"] == b"true"
    assert [item.name for item in tmp_path.iterdir() if item.is_file()] == ["gas.parquet"]


def test_several_files(tmp_path):
    paths = write_gas_sensor(tmp_path / "gas", 10_000, 7, n_files=3)
    assert [pq.ParquetFile(path).metadata.num_rows for path in paths] == [3_334, 3_334, 3_332]
    frame = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    pd.testing.assert_frame_equal(frame.drop(columns=GAS_TARGET), make_gas_sensor(10_000, 7).X)
    with pytest.raises(DataError, match="not empty"):
        write_gas_sensor(tmp_path / "gas", 10_000, n_files=3)


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prismgp.datasets.gas_simulation.simulate", fail)
    with pytest.raises(DataError, match="No space left"):
        write_gas_sensor(tmp_path / "gas.parquet", 10)
    assert not [item for item in tmp_path.iterdir() if item.is_file()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_rows": 0}, "n_rows"),
        ({"n_rows": 1.5}, "n_rows"),
        ({"n_rows": 5, "random_state": -1}, "random_state"),
        ({"n_rows": 5, "random_state": None}, "random_state"),
        ({"n_rows": 5, "order": "reverse"}, "order"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    with pytest.raises(DataError, match=message):
        gas_sensor_chunks(**arguments)
    with pytest.raises(DataError, match=message):
        write_gas_sensor(tmp_path / "gas.parquet", **arguments)


def test_bad_pieces(tmp_path):
    with pytest.raises(DataError, match="chunk_rows"):
        gas_sensor_chunks(5, chunk_rows=0)
    with pytest.raises(DataError, match="do not fill"):
        write_gas_sensor(tmp_path / "gas", 5, n_files=6)
    with pytest.raises(DataError, match="cannot write"):
        write_gas_sensor(tmp_path / "absent" / "gas.parquet", 5)
