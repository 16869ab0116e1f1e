"""Numbers as text files spell them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from prismgp.data.numerals import Numerals
from prismgp.exceptions import DataError

POINT, COMMA = Numerals("."), Numerals(",")
IN_CSV, ELSEWHERE = Numerals(delimiter=","), Numerals(delimiter=";")


def values(numerals: Numerals, *cells: str | None) -> list[float | None]:
    column = numerals.read("k", pa.chunked_array([list(cells)], pa.string()))
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
    assert values(numerals, "1,234", "12,345,678.5", "-1,000%", "7") == [1234, 12345678.5, -10, 7]


def test_decimal_comma() -> None:
    assert values(COMMA, "1,5", "-,5", "1e3", "12") == [1.5, -0.5, 1000, 12]
    assert values(COMMA, "1.234,5", "1.234", "1 234,5", "1'234", "12,5 %") == [1234.5, 1234, 1234.5, 1234, 0.125]
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
        column = numerals.read("k", pa.chunked_array([["1", cell]]))
        assert column.to_pylist() == ["1", cell]


def test_plain_spellings() -> None:
    plain, comma = pa.array(["1.5", " 2"]), pa.array(["1,5", " 2", "-3e4"])
    assert POINT.are_plain(plain)
    assert not POINT.are_plain(comma)
    assert COMMA.are_plain(comma)
    assert not COMMA.are_plain(plain)
    assert not COMMA.are_plain(pa.array(["1.234"]))
