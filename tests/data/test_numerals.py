"""Numbers as text files spell them."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp import SSGPRegressor
from prismgp.cli import main
from prismgp.data import TableEncoder, from_csv, from_parquet
from prismgp.data.numerals import Numerals
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

POINT, COMMA = Numerals("."), Numerals(",")
IN_CSV, ELSEWHERE = Numerals(delimiter=","), Numerals(delimiter=";")


def values(numerals: Numerals, *cells: str | None) -> list[float | None]:
    column = copy.deepcopy(numerals).read("k", pa.chunked_array([list(cells)], pa.string()))
    assert pa.types.is_floating(column.type)
    return list(column.to_pylist())


@pytest.mark.parametrize("numerals", [POINT, IN_CSV, ELSEWHERE])
def test_decimal_point(numerals: Numerals) -> None:
    assert values(numerals, "1.5", " 2 ", "-.5", "+3.", "1e-3", None) == [1.5, 2, -0.5, 3, 1e-3, None]
    assert values(numerals, "1 234.5", "1\u202f234\u202f567", "1'234", "1\u2019234.25", "\u22125") == [
        *(1234.5, 1234567, 1234, 1234.25, -5)
    ]
    assert values(numerals, "12.5%", "-3 %", "1'200%", "0.1%") == [0.125, -0.03, 12, 0.001]


@pytest.mark.parametrize("numerals", [POINT, IN_CSV])
def test_commas_between_thousands(numerals: Numerals) -> None:
    assert values(numerals, "1,234", "12,345,678.5", "7") == [1234, 12345678.5, 7]
    assert values(numerals, "-1,000%") == [-10]


def test_decimal_comma() -> None:
    assert values(COMMA, "1,5", "-,5", "1e3", "12") == [1.5, -0.5, 1000, 12]
    assert values(COMMA, "1.234,5", "1.234", "1 234,5", "1'234") == [1234.5, 1234, 1234.5, 1234]
    assert values(COMMA, "12,5 %") == [0.125]
    assert values(COMMA, "0,123", "1,234") == [0.123, 1.234]


@pytest.mark.parametrize(
    ("numerals", "cell", "marks"),
    [
        (IN_CSV, "1,5", [","]),
        (IN_CSV, "0,123", [","]),
        (IN_CSV, "1.234,5", [","]),
        (ELSEWHERE, "1,234", [".", ","]),
        (ELSEWHERE, "1,234.5", ["."]),
        (ELSEWHERE, "1,5", [","]),
        (COMMA, "1.5", ["."]),
        (COMMA, "1,234.5", ["."]),
        (COMMA, "1.5%", ["."]),
    ],
)
def test_other_decimal_marks_are_named(numerals: Numerals, cell: str, marks: list[str]) -> None:
    """Nothing is guessed where another mark gives another number."""
    column = pa.chunked_array([["1", None, cell]])
    assert numerals.match_other(column).to_pylist() == [False, None, True]
    with pytest.raises(DataError) as error:
        numerals.read("k", column, first_row=10)
    assert f"column 'k' holds {cell!r} in row 13 (the first is 1)" in str(error.value)
    assert f"give {' or '.join(f'--decimal {mark}' for mark in marks)} (in Python" in str(error.value)


@pytest.mark.parametrize("cell", ["x", "1,23,4", "12 34", "1'23", "1.2.3", "%", "5%%", "1e3%", "- 1", "0x10", "1_000"])
def test_what_is_no_numeral_stays_text(cell: str) -> None:
    for numerals in (POINT, COMMA):
        column = copy.deepcopy(numerals).read("k", pa.chunked_array([["1", cell]]))
        assert column.to_pylist() == ["1", cell]


def test_plain_spellings() -> None:
    plain, comma = pa.array(["1.5", " 2"]), pa.array(["1,5", " 2", "-3e4"])
    assert POINT.are_plain(plain)
    assert not POINT.are_plain(comma)
    assert COMMA.are_plain(comma)
    assert not COMMA.are_plain(plain)
    assert not COMMA.are_plain(pa.array(["1.234"]))


# -- what the cells of a column show together --------------------------------------------------------


def write(path: Path, cells: list[str], delimiter: str = ";") -> Path:
    rows = [f"{cell}{delimiter}{row}" for row, cell in enumerate(cells)]
    path.write_text("\n".join([f"a{delimiter}y", *rows, ""]))
    return path


def fitted(path: Path, **options: Any) -> SSGPRegressor:
    return SSGPRegressor(2, optimize=False, random_state=0).fit(from_csv(path, "y", **options))


def predict(model: SSGPRegressor, path: Path, *options: str) -> int:
    """By the command, which reads the table once and has not scanned it."""
    saved = path.with_suffix(".prism")
    model.save(saved)
    return main(["predict", str(saved), str(path), "-o", str(path.with_suffix(".out.csv")), "-q", *options])


@pytest.mark.parametrize("cells", [["51.2%", "94.1"], ["94.1", "51.2%"], ["1", "2 %"]])
def test_per_cent_signs_in_some_cells(cells: list[str]) -> None:
    column = pa.chunked_array([[None, *cells]])
    with pytest.raises(DataError, match=rf"'k' holds '{cells[1]}' in row 8 .*: write all of them in the same way"):
        Numerals().read("k", column, first_row=5)
    numerals = Numerals()
    numerals.read("k", pa.chunked_array([[cells[0]]]))
    numerals.read("k", pa.chunked_array([[None]], pa.string()))
    with pytest.raises(DataError, match=rf"'k' holds '{cells[1]}' in the first row"):
        numerals.read("k", pa.chunked_array([[cells[1]]]))


@pytest.mark.parametrize("learned", [True, False])
def test_a_model_knows_whether_there_were_per_cent_signs(
    learned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spell = [[f"{each}.5" for each in range(9)], [f"{each}.5%" for each in range(9)]]
    own = write(tmp_path / "own.csv", spell[learned], ",")
    other = write(tmp_path / "other.csv", spell[not learned], ",")
    model = fitted(own)
    assert model.table_encoder_.columns[0].percent is learned
    assert predict(model, own) == 0
    assert predict(model, other) == 2
    assert f"have {'a' if learned else 'no'} per cent sign: write all" in capsys.readouterr().err
    with pytest.raises(DataError, match=f"'a' has {'no ' if learned else ''}per cent signs, and the model learned it"):
        model.predict(from_csv(other))
    # Types say nothing of it, and files may be without the field.
    pq.write_table(pa.table({"a": np.arange(9.0), "y": np.arange(9.0)}), tmp_path / "t.parquet")
    assert np.isfinite(model.predict(from_parquet(tmp_path / "t.parquet"))).all()
    described = model.table_encoder_.to_dict()
    assert TableEncoder.from_dict(json.loads(json.dumps(described))) == model.table_encoder_
    described["columns"][0].pop("percent")
    assert TableEncoder.from_dict(described).columns[0].percent is None
    described["columns"][0]["percent"] = "yes"
    with pytest.raises(ModelFileError, match="per cent signs of column 'a'"):
        TableEncoder.from_dict(described)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_points_that_may_separate_thousands(delimiter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1.234 beside 7 may be 1234."""
    path = write(tmp_path / "t.csv", ["7", "1.234", " 12", "", "-23.500", "999"], delimiter)
    message = "column 'a' holds '1.234' in row 2 .*, which can have a decimal point or thousands; give --decimal"
    with pytest.raises(DataError, match=message):
        from_csv(path, "y")
    for decimal, value in ((".", 1.234), (",", 1234)):
        assert from_csv(path, "y", decimal=decimal).load().x[1, 0] == value
    model = fitted(write(tmp_path / "other.csv", ["7.25", "1.234", "3"], delimiter))
    assert predict(model, path) == 0  # the model may know better, so that a warning must do
    assert "in column 'a' numbers could have thousands, such as '1.234'" in capsys.readouterr().err
    assert predict(model, path, "--decimal", ",") == 0


@pytest.mark.parametrize(
    "cells",
    [
        ["7", "1.234", "0.125"],
        ["7", "1.234", "2.5"],
        ["7", "1.234", "12.3456"],
        ["7", "1.234", "1234"],
        ["7", "8", "9"],
        ["7", "1.234", "1e3"],
        ["7.1", "1.234", *["2"] * 9000, "2.345"],
    ],
)
def test_points_of_decimals(cells: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", cells)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = from_csv(path, "y")
        np.testing.assert_array_equal(source.load().x[:, 0], np.array(cells, dtype=float))
        assert predict(fitted(path), path) == 0
    assert from_csv(write(tmp_path / "c.csv", ["7", "1.234"], ","), "y").load().x[1, 0] == 1.234


def test_columns_in_which_all_numbers_may_have_thousands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.csv", ["7.250", "1.234", "12.125"])
    with pytest.warns(PrismGPWarning, match=r"in column 'a' numbers .*'7\.250', and are read with a decimal point"):
        source = from_csv(path, "y")
    assert source.load().x[0, 0] == 7.25
    assert predict(SSGPRegressor(2, optimize=False, random_state=0).fit(source), path) == 0
    assert capsys.readouterr().err.count("numbers could have thousands") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_csv(path, "y", decimal=".")
