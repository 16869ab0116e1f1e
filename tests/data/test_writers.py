"""Text tables: what spreadsheets take for formulas is counted, and escaped where that is asked for."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp import SSGPRegressor
from prismgp.cli import main
from prismgp.data.text import open_writer
from prismgp.exceptions import DataError

FORMULAS = ["=1+1", "=cmd|'/c calc'!A1", "+SUM(1)", "-2+3", "@SUM(1,2)", "\t=1", "\r=1", "-cmd", "\uff1d1+1", "=1,2\n"]
HARMLESS = ["-1.5", "+3", "-1,234.5", "-1e-7", "-12.5%", "-", "+", "-inf", "-NaN", "a=1", "", "1-2", "text", "-1'000"]


def write(columns: dict[str, list[str | None]], *, escape: bool = False) -> tuple[list[list[str]], dict[str, int]]:
    table, buffer = pa.table(columns), io.BytesIO()
    with open_writer(buffer, ".csv", table.schema, escape_formulas=escape) as writer:
        writer.write(table)
    return list(csv.reader(io.StringIO(buffer.getvalue().decode(), newline=""))), dict(writer.formulas)


@pytest.mark.parametrize("cell", FORMULAS)
def test_formulas(cell: str) -> None:
    rows, found = write({"k": ["x", cell, None]})
    assert rows == [["k"], ["x"], [cell], []]
    assert found == {"k": 1}
    rows, found = write({"k": ["x", cell, None]}, escape=True)
    assert rows == [["k"], ["x"], [f"'{cell}"], []]
    assert found == {"k": 1}


@pytest.mark.parametrize("cell", HARMLESS)
def test_numbers_and_other_text_pass(cell: str) -> None:
    rows, found = write({"k": [cell], "l": ["x"]}, escape=True)
    assert rows[1] == [cell, "x"]
    assert found == {}


def test_names_and_types() -> None:
    rows, found = write({"=name": ["x"], "b": ["-x"]}, escape=True)
    assert rows == [["'=name", "b"], ["x", "'-x"]]
    assert found == {"=name": 1, "b": 1}
    numbers = pa.table({"a": [-1.0, -2.5], "k": pa.array(["=x", "y"]).dictionary_encode()})
    buffer = io.BytesIO()
    with open_writer(buffer, ".csv", numbers.schema, escape_formulas=True) as writer:
        writer.write(numbers)
    assert buffer.getvalue() == b"a,k\n-1,'=x\n-2.5,y\n"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_predict_writes_is_read_back_the_same(suffix: str, tmp_path: Path) -> None:
    """Times with zones, durations, and times of day: as text they have other types, but are the same cells."""
    hours = np.arange(60)
    clock = [None if hour == 3 else hour * 1_440_000_000 + 1 for hour in hours.tolist()]
    table = pa.table(
        {
            "zoned": pa.array(hours * 3_600_000_123, pa.timestamp("us", "America/New_York")),
            "utc": pa.array(hours * 7200, pa.timestamp("s", "UTC")),
            "took": pa.array(hours * 90_500, pa.duration("ms")),
            "at": pa.array(clock, pa.time64("us")),
        }
    )
    model = SSGPRegressor(4, optimize=False, random_state=0).fit(table, np.sin(hours))
    model.save(tmp_path / "m.prism")
    pq.write_table(table, tmp_path / "t.parquet")
    out, again = tmp_path / f"out.{suffix}", tmp_path / f"again.{suffix}"
    for source, target in ((tmp_path / "t.parquet", out), (out, again)):
        assert main(["predict", str(tmp_path / "m.prism"), str(source), "-o", str(target), "-q"]) == 0
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    first, second = read(out), read(again)
    np.testing.assert_allclose(first["mean"], model.predict(table), rtol=1e-12)
    np.testing.assert_array_equal(second["mean_"], first["mean"])
    if suffix == "csv":
        assert first["took"][2] == 181.0
        assert first["zoned"][0] == "1969-12-31 19:00:00.000000-0500"


def test_times_of_day_are_no_dates() -> None:
    for table, cell, message in (
        (pa.table({"t": pa.array([19_000, 20_000], pa.date32())}), "05:30", "such as 2024-12-31, or empty"),
        (pa.table({"t": pa.array([3600, 7200], pa.time32("s"))}), "soon", "such as 2024-12-31 or 13:45:00"),
    ):
        model = SSGPRegressor(4, optimize=False, random_state=0).fit(table, [1.0, 2.0])
        with pytest.raises(DataError, match=f"'t' holds '{cell}' in the first row.*{message}"):
            model.predict(pa.table({"t": [cell]}))
