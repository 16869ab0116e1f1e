"""Text tables: what spreadsheets take for formulas is counted, and escaped where that is asked for."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest

from prismgp.data.text import open_writer

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
