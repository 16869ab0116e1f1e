"""The simulated gas sensor array."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from prismgp.datasets import gas_sensor_chunks, make_gas_sensor, write_gas_sensor
from prismgp.datasets.gas_sensor import GAS_INPUTS, GAS_TARGET
from prismgp.datasets.gas_simulation import LEVELS, heater_cycle
from prismgp.exceptions import DataError

RANGES = {
    "Humidity (%r.h.)": (13, 77),
    "Temperature (C)": (25.5, 28),
    "Flow rate (mL/min)": (235, 242),
    "Heater voltage (V)": (0.19, 0.91),
}


@pytest.fixture(scope="module")
def data():
    return make_gas_sensor(30_000, 3)


def test_says_that_it_is_simulated(data):
    assert data.simulated
    assert "simulated" in repr(data)
    assert "imulated" in data.title
    assert "imulated" in data.note
    assert data.origin == ""


def test_columns_and_ranges(data):
    assert tuple(data.X.columns) == GAS_INPUTS
    assert data.y.name == GAS_TARGET
    assert data.X.shape == (30_000, 18)
    assert np.isfinite(data.X.to_numpy()).all()
    assert data.y.between(0, 20).all()
    for name, (low, high) in RANGES.items():
        assert data.X[name].between(low, high).all(), name
    resistances = data.X.iloc[:, 4:]
    assert ((resistances > 0.01) & (resistances < 250)).all(axis=None)
    assert data.test.sum() == 6000


def test_columns_of_the_measured_file(real, data):
    [file] = (real / "gas_sensor").glob("*.csv")
    measured = pd.read_csv(file)
    assert [*measured.columns[2:]] == [*data.X.columns]
    assert measured.columns[1] == data.y.name
    # The same orders of magnitude, hot and cold.
    for name in GAS_INPUTS[4:]:
        for share in (0.02, 0.98):
            ratio = measured[name].quantile(share) / data.X[name].quantile(share)
            assert 1 / 5 < ratio < 5, (name, share)


def test_concentrations_are_even(data):
    steady = data.y[data.y.isin(LEVELS.astype(np.float32))]
    assert len(steady) > 0.99 * len(data.y)
    counts = steady.value_counts()
    assert len(counts) == 10
    assert counts.min() > 0.85 * counts.mean()


def test_heater_is_on_for_ten_of_45_seconds():
    hot, since = heater_cycle(np.arange(0, 45, 0.5))
    assert hot.sum() == 20
    assert since[hot].max() == 4.5
    assert since[~hot].max() == 19.5
    assert since.min() == 0


@pytest.mark.parametrize("order", ["random", "time"])
@pytest.mark.parametrize("chunk_rows", [1, 977, 8_192, 50_000])
def test_pieces_do_not_matter(order, chunk_rows):
    n = 300 if chunk_rows == 1 else 20_000
    whole = make_gas_sensor(20_000, 5, order=order)
    pieces = list(gas_sensor_chunks(n, 5, chunk_rows, order=order))
    pd.testing.assert_frame_equal(pd.concat([X for X, _ in pieces]), whole.X[:n])
    pd.testing.assert_series_equal(pd.concat([y for _, y in pieces]), whole.y[:n])
    assert all(len(y) == chunk_rows for _, y in pieces[:-1])


def test_longer_begins_with_shorter(data):
    pd.testing.assert_frame_equal(make_gas_sensor(100, 3).X, data.X[:100])


def test_seeds_differ(data):
    other = make_gas_sensor(100, 4)
    assert (data.X[:100] != other.X).all(axis=None)


def test_time_order_is_a_recording():
    data = make_gas_sensor(8_000, 0, order="time")  # 41 minutes: three conditions
    assert data.y[10:2900].nunique() == 1
    assert data.y.value_counts().gt(2000).sum() == 2  # two of the three are alike
    switches = (data.X["Heater voltage (V)"] > 0.55).astype(int).diff().eq(1).sum()
    assert switches == pytest.approx(8_000 * 0.308 / 22.5, abs=2)


def test_gas_lowers_the_cold_resistances(data):
    cold = data.X["Heater voltage (V)"].between(0.199, 0.2013)
    logs = np.log(data.X.loc[cold, list(GAS_INPUTS[4:])])
    assert (logs.corrwith(data.y[cold]) < -0.15).all()


def test_regression_is_possible_and_not_linear(data):
    X, y = data.X_train, data.y_train

    def score(model):
        return float(np.std(model.fit(X, y).predict(data.X_test) - data.y_test) / np.std(data.y_test))

    linear, trees = score(LinearRegression()), score(HistGradientBoostingRegressor(random_state=0))
    assert 0.3 < trees < 0.65
    assert trees < 0.75 * linear


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
    for function in (make_gas_sensor, gas_sensor_chunks):
        with pytest.raises(DataError, match=message):
            function(**arguments)
    with pytest.raises(DataError, match=message):
        write_gas_sensor(tmp_path / "gas.parquet", **arguments)


def test_bad_pieces(tmp_path):
    with pytest.raises(DataError, match="chunk_rows"):
        gas_sensor_chunks(5, chunk_rows=0)
    with pytest.raises(DataError, match="do not fill"):
        write_gas_sensor(tmp_path / "gas", 5, n_files=6)
    with pytest.raises(DataError, match="cannot write"):
        write_gas_sensor(tmp_path / "absent" / "gas.parquet", 5)
