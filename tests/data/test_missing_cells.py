"""Which cells of text are missing, in files and in frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from prismgp import SSGPRegressor
from prismgp.cli import main
from prismgp.data import from_csv, from_parquet
from prismgp.data.cells import MISSING_TEXT


def model(table: object, y: object = None) -> SSGPRegressor:
    return SSGPRegressor(2, optimize=False, random_state=0).fit(table, y)


def test_spellings_are_those_of_pandas() -> None:
    from pandas._libs.parsers import STR_NA_VALUES

    assert set(MISSING_TEXT) == STR_NA_VALUES


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "parquet", "csv", "category"])
def test_empty_text_is_missing_everywhere(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"k": ["u", "", "v", " \t", "u", "v"] * 4, "y": np.arange(24.0)})
    if kind in ("parquet", "csv"):
        path = tmp_path / f"t.{kind}"
        frame.to_parquet(path) if kind == "parquet" else frame.to_csv(path, index=False)
        fitted = model((from_parquet if kind == "parquet" else from_csv)(path, "y"))
    else:
        table = frame[["k"]].astype("category" if kind == "category" else object)
        make = {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas}.get(kind, lambda each: each)
        fitted = model(make(table), frame["y"])
    assert fitted.table_encoder_.feature_names == ["k=u", "k=v", "k is missing"]


def test_empty_text_in_columns_of_numbers_and_times() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "t": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-04"])})
    fitted = model(frame, [1.0, 2.0, 3.0])
    blank = pd.DataFrame({"a": ["", "2", " "], "t": ["2024-01-01", " ", ""]})
    expected = fitted.predict(pd.DataFrame({"a": [np.nan, 2, np.nan], "t": [frame["t"][0], pd.NaT, pd.NaT]}))
    np.testing.assert_array_equal(fitted.predict(blank), expected)
    spelled = model(pd.DataFrame({"t": ["2024-01-01", "", "2024-01-03"] * 3}), np.arange(9.0))
    assert spelled.table_encoder_.columns[0].kind == "time"


def test_blanks_around_missing_cells_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,b,y\n1,true,1\n  ,false,2\nNA ,true,3\n4, NA,4\n5,\t," "\n')
    source = from_csv(tmp_path / "t.csv", "y")
    assert [column.kind for column in source.encoder.columns] == ["number", "boolean"]
    rows = source.load()
    np.testing.assert_array_equal(rows.x[:, 0], [1, np.nan, np.nan, 4])
    np.testing.assert_array_equal(rows.y[:, 0], [1, 2, 3, 4])
    fitted = model(source)
    assert np.isfinite(fitted.predict(from_csv(tmp_path / "t.csv"))).all()


@pytest.mark.parametrize("kind", ["source", "command"])
def test_levels_that_spell_missing_cells_stay_levels(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"country": ["NA", "DE", "None", "FR", ""] * 8, "x": np.arange(40.0)})
    fitted = model(frame, np.arange(40.0) % 5)
    assert fitted.table_encoder_.columns[0].categories == ("DE", "FR", "NA", "None")
    frame["country"] = frame["country"].replace("NA", "NA ")
    frame.to_csv(tmp_path / "t.csv", index=False)
    if kind == "source":
        found = fitted.predict(from_csv(tmp_path / "t.csv"))
    else:
        fitted.save(tmp_path / "m.prism")
        argv = ["predict", str(tmp_path / "m.prism"), str(tmp_path / "t.csv"), "-o", str(tmp_path / "out.parquet")]
        assert main([*argv, "-q"]) == 0
        out = pd.read_parquet(tmp_path / "out.parquet")
        found = out["mean"]
        assert out["country"][:4].tolist() == ["NA ", "DE", "None", "FR"]
        assert pd.isna(out["country"][4])
    np.testing.assert_allclose(found, fitted.predict(frame), rtol=1e-12)
