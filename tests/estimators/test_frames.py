"""Frames as they come: text, categories, times, nullable types, from pandas, polars and Arrow."""

from __future__ import annotations

import datetime as dt
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import cross_val_score

import prismgp
from prismgp import SSGPRegressor
from prismgp.data import from_csv, from_parquet
from prismgp.data.frames import to_arrow
from prismgp.exceptions import DataError

N = 80


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    times = pd.Timestamp("2021-01-01") + pd.to_timedelta(np.arange(N) * 11, unit="h")
    return pd.DataFrame(
        {
            "number": rng.normal(size=N),
            "whole": pd.array(rng.integers(9, size=N), dtype="Int64"),
            "money": [Decimal(int(each)) / 4 for each in rng.integers(9, size=N)],
            "flag": pd.array(rng.random(N) < 0.5, dtype="boolean"),
            "text": rng.choice(["u", "v", " u "], N),
            "kind": pd.Categorical(rng.choice(["p", "q"], N)),
            "code": [f"c{each}" for each in rng.integers(40, size=N)],
            "when": times,
            "zoned": times.tz_localize("Europe/Paris"),
            "day": times.date,
            "spelled": times.strftime("%Y-%m-%dT%H:%M:%S"),
        }
    )


def target() -> Any:
    return np.random.default_rng(1).normal(size=N)


def make(**options: Any) -> SSGPRegressor:
    return SSGPRegressor(4, optimize=False, random_state=0, **options)


def test_all_types_at_once(tmp_path: Path) -> None:
    table = frame()
    model = make().fit(table, target())
    assert list(model.feature_names_in_) == list(table.columns)
    assert model.n_features_in_ == table.shape[1]
    kinds = {column.name: column.kind for column in model.table_encoder_.columns}
    assert [name for name, kind in kinds.items() if kind == "time"] == ["when", "zoned", "day", "spelled"]
    assert (kinds["money"], kinds["flag"], kinds["text"], kinds["code"]) == ("number", "boolean", "category", "levels")
    assert model.table_encoder_.columns[4].categories == ("u", "v")
    model.save(tmp_path / "m.prism")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "m.prism").predict(table), model.predict(table))


@pytest.mark.parametrize("library", ["polars", "arrow", "parquet", "csv"])
def test_libraries_and_files_are_alike(library: str, tmp_path: Path) -> None:
    table, y = frame(), target()
    model = make().fit(table, y)
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    if library in ("polars", "arrow"):
        other: Any = pl.from_arrow(arrow) if library == "polars" else arrow
        again = make().fit(other, y)
        assert list(again.feature_names_in_) == list(table.columns)
    elif library == "parquet":
        table.assign(y=y).to_parquet(tmp_path / "t.parquet")
        other = from_parquet(tmp_path / "t.parquet", "y")
        again = make().fit(other)
    else:
        table.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
        other = from_csv(tmp_path / "t.csv", "y")
        again = make().fit(other)
    assert again.table_encoder_.feature_names == model.table_encoder_.feature_names
    np.testing.assert_allclose(again.predict(other), model.predict(table), rtol=1e-10)
    np.testing.assert_array_equal(model.predict(other), model.predict(table))  # by the encoder of the other


def test_times_are_never_ticks() -> None:
    table, y = frame()[["when"]], target()
    expected = make().fit(table, y).predict(table)
    for unit in ("s", "ms", "us"):
        other = table.astype(f"datetime64[{unit}]")
        np.testing.assert_array_equal(make().fit(other, y).predict(other), expected)
    with pytest.raises(DataError, match="column 'when': text or times; the model was fitted with numbers"):
        make().fit(pd.DataFrame({"when": np.arange(N)}), y).predict(table)


@pytest.mark.parametrize("first", [dt.date(2024, 1, 1), dt.datetime(2024, 1, 1), pd.Timestamp("2024-01-01")])
def test_objects_of_dates_and_times_keep_the_time_of_day(first: Any) -> None:
    times = [first, *(dt.datetime(2024, 1, 1) + k * dt.timedelta(hours=5) for k in range(1, 8)), dt.date(2024, 1, 3)]
    zone = dt.timezone(dt.timedelta(hours=3))
    times += [None, dt.datetime(2024, 1, 3, 4, 5, 6, 7, tzinfo=zone)]
    table = pd.DataFrame({"when": pd.Series(times, dtype=object)})
    model = make().fit(table, np.arange(11.0))
    batch = model.table_encoder_.read(to_arrow(table))
    np.testing.assert_allclose(np.diff(batch.values[:9, 0]) / 3600, [5] * 7 + [13])
    np.testing.assert_allclose(batch.values[10, 0] - batch.values[8, 0], 4 * 3600 + 5 * 60 + 6.000007, atol=1e-6)


def test_numbers_keep_their_path() -> None:
    """Purely numeric frames give the model of their array, to the last bit, without an encoder."""
    table, y = frame()[["number", "whole", "flag"]], target()
    model = make().fit(table, y)
    assert not hasattr(model, "table_encoder_")
    array = table.astype(float).to_numpy()
    np.testing.assert_array_equal(model.predict(table), make().fit(array, y).predict(array))
    gap = table.copy()
    gap.loc[3, "whole"] = pd.NA
    gap.loc[5, "flag"] = pd.NA
    holes = make().fit(gap, y)
    assert holes.table_encoder_.feature_names == ["number", "whole", "whole is missing", "flag", "flag is missing"]
    assert np.isfinite(holes.predict(gap)).all()
    assert np.isfinite(model.predict(gap)).all()  # of a model that has seen no missing cell


def test_missing_argument() -> None:
    table, y = frame().assign(text=lambda each: each["text"].where(each.index != 4)), target()
    table.loc[7, "number"] = np.nan
    with pytest.raises(DataError, match=r"columns 'number' \(1\), 'text' \(1\)"):
        make(missing="error").fit(table, y)
    with pytest.raises(DataError, match="missing='fill' is unknown"):
        make(missing="fill").fit(table, y)
    dropped = make(missing="drop").fit(table, y)
    assert dropped.fit_status_["rows"] == N - 2
    assert np.isfinite(dropped.predict(table)).all()
    strict = make(missing="error").fit(table.drop(index=[4, 7]), np.delete(y, [4, 7]))
    with pytest.raises(DataError, match=r"'number' \(1\)"):
        strict.predict(table)
    with pytest.raises(DataError, match="every one of the 80 rows"):
        make(missing="drop").fit(table.assign(number=np.nan), y)
    with pytest.raises(DataError, match="'number' holds -inf in row 3"):
        make().fit(table.assign(number=[-np.inf if row == 2 else row for row in range(N)]), y)


@pytest.mark.parametrize("kind", ["text", "numbers", "array"])
def test_rows_with_infinity_are_dropped(kind: str) -> None:
    table, y = frame()[["text", "number", "whole"][kind != "text" :]], target()
    table.loc[[3, 8], "number"] = -np.inf
    x = table.astype(float).to_numpy() if kind == "array" else table
    dropped = make(missing="drop").fit(x, y)
    assert dropped.fit_status_["rows"] == N - 2
    assert np.isfinite(dropped.predict(x[:3])).all()
    for missing in ("impute", "error"):
        with pytest.raises(DataError, match="inf"):
            make(missing=missing).fit(x, y)
    with pytest.raises(DataError, match=r"target column 0 holds inf"):
        make(missing="drop").fit(x, np.where(np.arange(N) == 5, np.inf, y))


def test_unusual_columns() -> None:
    y = target()
    mixed = pd.DataFrame({"m": [1, "two"] * (N // 2), "none": [None] * N, "ab": pd.Series(["x"] * N, dtype="string")})
    model = make().fit(mixed, y)
    assert model.table_encoder_.feature_names == ["m=1", "m=two", "none is missing", "ab=x"]
    np.testing.assert_allclose(np.ptp(model.predict(mixed)[::2]), 0, atol=1e-12)
    with pytest.raises(DataError, match=r"2 problems: column 'list' .*; column 'struct'"):
        make().fit(pd.DataFrame({"list": [[1]] * N, "struct": [{"a": 1}] * N, "x": range(N)}), y)
    with pytest.raises(DataError, match="duplicate column 'a'"):
        make().fit(pd.DataFrame(np.full((N, 2), "u"), columns=["a", "a"]), y)
    numbered = pd.DataFrame({0: ["u", "v"] * (N // 2), 1: range(N)})
    assert not hasattr(make().fit(numbered, y), "feature_names_in_")  # as of scikit-learn


def test_inside_scikit_learn() -> None:
    table, y = frame(), target()
    assert np.isfinite(cross_val_score(make(), table[["number", "kind", "when"]], y, cv=3)).all()
    wrapped = TransformedTargetRegressor(make(), func=np.arcsinh, inverse_func=np.sinh).fit(table, y)
    assert np.isfinite(wrapped.predict(table)).all()


def test_certificates_see_the_rows_of_the_fit() -> None:
    """Categories of many levels are encoded out of fold in the fit, and again when the fit is certified."""
    table, y = frame(), target()
    model = SSGPRegressor(16, optimize=False, random_state=0, noise_variance=0.5).fit(table, y)
    assert model.certify(table, y).holds
    x = model.table_encoder_.encode(model.table_encoder_.read(pa.Table.from_pandas(table)).values)
    assert not np.array_equal(model.read_training_rows(table, y).x, x)
    np.testing.assert_array_equal(model.read_rows(table, y).x, x)


def test_files_with_text_for_a_model_of_numbers(tmp_path: Path) -> None:
    table = frame()[["number", "whole"]].astype(float)
    model = make().fit(table, target())
    table.assign(whole=frame()["text"]).to_csv(tmp_path / "text.csv", index=False)
    with pytest.raises(DataError, match="column 'whole': text or times; the model was fitted with numbers"):
        model.predict(from_csv(tmp_path / "text.csv"))
    table.to_csv(tmp_path / "numbers.csv", index=False)
    np.testing.assert_allclose(model.predict(from_csv(tmp_path / "numbers.csv")), model.predict(table))


@pytest.mark.parametrize("library", ["pandas", "arrow"])
def test_categories_of_floats(library: str) -> None:
    """Codes with missing cells are floats, and mean what they mean as integers."""
    codes = np.random.default_rng(0).integers(1, 4, N)
    gaps = pd.Series(codes, dtype="Int64").mask(np.arange(N) % 9 == 4)
    floats = pd.DataFrame({"code": gaps.astype("float64").astype("category")})
    integers = pd.DataFrame({"code": gaps.astype("category")})
    as_table = pa.Table.from_pandas if library == "arrow" else lambda frame: frame
    model, other = make().fit(as_table(floats), target()), make().fit(as_table(integers), target())
    assert model.table_encoder_.feature_names == ["code=1", "code=2", "code=3", "code is missing"]
    np.testing.assert_array_equal(model.predict(as_table(integers)), other.predict(as_table(floats)))
    plain = pd.DataFrame({"code": gaps.astype("float64")})
    np.testing.assert_array_equal(model.predict(as_table(plain)), model.predict(as_table(floats)))
    with pytest.raises(DataError, match="'code' holds double; the model learned it as text"):
        model.predict(plain / 2)
    sizes = pd.DataFrame({"size": pd.Categorical([0.5, 1.0, -2.25, 1e300] * (N // 4))})
    assert make().fit(as_table(sizes), target()).table_encoder_.columns[0].categories == ("-2.25", "0.5", "1", "1e+300")


def test_periods_and_intervals() -> None:
    table = pd.DataFrame({"month": pd.period_range("2015-01", periods=N, freq="M"), "band": pd.cut(np.arange(N), 4)})
    table.loc[3, "band"] = np.nan
    model = make().fit(table, target())
    names = model.table_encoder_.feature_names
    assert "month sine of the year" in names
    assert [name for name in names if name.startswith("band")][-1] == "band is missing"
    assert len([name for name in names if name.startswith("band=")]) == 4
    assert np.isfinite(model.predict(table)).all()


def test_columns_without_a_value_are_missing_whatever_their_type() -> None:
    table = frame()
    model = make().fit(table, target())
    expected = model.predict(table[:3].assign(number=np.nan, when=pd.NaT, text=None), return_std=True)
    other = table[:3].assign(
        number=pd.NaT, when=pd.Series([None] * 3, dtype="string"), text=pd.array([pd.NA] * 3, "Int64")
    )
    np.testing.assert_array_equal(model.predict(other, return_std=True), expected)


def test_messages_about_targets() -> None:
    table = frame()[["number"]]
    with pytest.raises(DataError, match=r"target 'y' holds nan at row 4 .*; leave such rows out$"):
        make().fit(table, pd.Series(np.where(np.arange(N) == 4, np.nan, 1.0), name="y"))
    with pytest.raises(DataError, match=r"target 'y' holds 'a' at row 0 .*; a regression target must be numeric$"):
        make().fit(table, pd.Series(["a"] * N, name="y"))


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]), [2.5, 3.5], ["u", "v"]])
def test_names_that_are_no_text_after_loading(names: Any, tmp_path: Path) -> None:
    table = frame()[["text", "number"]].set_axis(names, axis=1)
    model = make().fit(table, target())
    model.save(tmp_path / "m.prism")
    loaded = prismgp.load(tmp_path / "m.prism")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
        np.testing.assert_array_equal(loaded.predict(table[table.columns[::-1]]), model.predict(table))
        assert np.isfinite(loaded.log_density(table, target())).all()
