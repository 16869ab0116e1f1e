"""The simulated gas sensor array."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from prismgp.datasets import make_gas_sensor
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
def test_bad_arguments(arguments, message):
    with pytest.raises(DataError, match=message):
        make_gas_sensor(**arguments)
