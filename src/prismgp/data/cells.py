"""Cells of tables: what a column of Arrow may hold, how text files spell numbers, and how cells become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp._validate import LARGEST_CELL, TOO_LARGE
from prismgp.data.encodings import BOOLEAN, CATEGORY, NUMBER, TIME
from prismgp.exceptions import DataError

ArrowColumn: TypeAlias = Any  # pyarrow.ChunkedArray or pyarrow.Array; pyarrow ships no types

# Spellings of a missing value in CSV files; pyarrow's own list and pandas' <NA>.
MISSING_TEXT = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)
DECIMALS = (".", ",")
_BLANKS, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
_WORDS = "inf|infinity|nan"
_NUMERAL = r"(?i)^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"
_SHOWN = 8  # names in a message
_TRUE, _FALSE = ["true", "1"], ["false", "0"]


# -- names in messages -----------------------------------------------------------------------------


def quote_names(names: Iterable[str]) -> str:
    """``'a', 'b' and 3 more``"""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def plural(items: Collection[Any], noun: str) -> str:
    """The noun, with an s unless there is one item."""
    return noun if len(items) == 1 else f"{noun}s"


def in_row(row: int) -> str:
    """Where a cell is, for people, who count from one."""
    return f"in row {row + 1:,} (the first is 1)" if row else "in the first row"


def check_unique(names: Iterable[str], what: str, where: str = "") -> None:
    """Raise an error that lists the names that occur more than once."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}duplicate {what} {quote_names(twice)}; every column needs a name of its own")


def absent_error(absent: Collection[str], names: Collection[str]) -> DataError:
    """The error for a table with these names whose input columns are absent."""
    there = quote_names(names) if names else "no columns"
    what = f"{plural(absent, 'input column')} missing: {quote_names(absent)}"
    return DataError(f"{what}; the table has {there}: add or rename {'it' if len(absent) == 1 else 'them'}")


def raise_problems(problems: Sequence[str]) -> None:
    """Raise one error for all problems of a table, if there are any."""
    if problems:
        raise DataError(problems[0] if len(problems) == 1 else f"{len(problems)} problems: {'; '.join(problems)}")


# -- types ----------------------------------------------------------------------------------------


def is_text(kind: Any) -> bool:
    """Whether this is one of Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_numeric(kind: Any) -> bool:
    """Whether this is a type of integers, floats or decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def column_kind(name: str, kind: Any, *, categorical: bool = False) -> str:
    """NUMBER, BOOLEAN, TIME or CATEGORY, by the type of a column; an error for a type that cannot be an input."""
    dictionary = pa.types.is_dictionary(kind)
    if dictionary:
        kind = kind.value_type
    if is_text(kind) or pa.types.is_null(kind) or ((dictionary or categorical) and pa.types.is_integer(kind)):
        return CATEGORY  # a column without a single value has no categories but that of missing cells
    if categorical:
        raise DataError(f"column {name!r} holds {kind}; only text and whole numbers can be categories")
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if is_numeric(kind) or pa.types.is_duration(kind):
        return NUMBER
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return TIME
    raise DataError(f"column {name!r} holds {kind}, which is neither number, text nor time; leave it out (--exclude)")


# -- cells -----------------------------------------------------------------------------------------


def looks_numeric(text: ArrowColumn) -> ArrowColumn:
    """Which texts are numerals; null where the text is null."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(text), _NUMERAL)


def to_text(name: str, column: ArrowColumn) -> ArrowColumn:
    """Convert a category column to text without surrounding blanks; null stays null."""
    column = decode(column)
    if is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        # The large type: 32-bit offsets would overflow on long columns.
        return pc.utf8_trim_whitespace(column.cast(pa.large_string()))
    raise DataError(f"column {name!r} holds {column.type}; the model learned it as text: convert it to text")


def to_numbers(name: str, column: ArrowColumn, *, boolean: bool = False, first_row: int = 0) -> Array:
    """Convert numbers, booleans, or text that spells them to float64, (n,), read-only; NaN where a cell is missing.

    ``boolean``: text may also say ``true`` and ``false``; ``first_row``: where the column starts in its file.
    """
    column = decode(column)
    if is_text(column.type):
        column = _parse(name, column, boolean=boolean, first_row=first_row)
    elif pa.types.is_duration(column.type):
        return to_floats(column.cast(pa.duration("us"), safe=False).cast(pa.int64())) / 1e6
    elif not (is_numeric(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise DataError(f"column {name!r} holds {column.type}; the model learned it as numbers: convert it to numbers")
    values = to_floats(column)
    beyond = np.isfinite(values) & (np.abs(values) > LARGEST_CELL)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise DataError(f"column {name!r} holds {values[row]:g} {in_row(first_row + row)}; {TOO_LARGE}")
    return values


def to_numbers_or_nan(column: ArrowColumn) -> Array:
    """Convert a column to float64, (n,), read-only; NaN where a cell is missing or is not a number."""
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        column = pc.if_else(looks_numeric(text), text, pa.nulls(1, text.type)[0]).cast(pa.float64())
    if not (is_numeric(column.type) or pa.types.is_boolean(column.type)):
        return np.full(len(column), np.nan)
    return to_floats(column)


def to_seconds(name: str, column: ArrowColumn, *, first_row: int = 0) -> Array:
    """Convert times, or text that spells them by ISO 8601, to seconds, (n,); NaN where a cell is missing.

    Of a time with a zone the local one counts, which has the phase of the day; of text with an offset, that of UTC.
    """
    column = decode(column)
    kind = column.type
    if is_text(kind):
        parsed = parse_times(column)
        if parsed is None:
            cells = column.to_pylist()
            row = next(k for k, cell in enumerate(cells) if parse_times(pa.array([cell], pa.large_string())) is None)
            raise DataError(
                f"column {name!r} holds {cells[row]!r} {in_row(first_row + row)}; "
                "the model learned it as dates or times: write it by ISO 8601, such as 2024-12-31, or empty the cell"
            )
        column = parsed
    elif pa.types.is_time(kind):
        return to_floats(column.cast(pa.time64("us"), safe=False).cast(pa.int64())) / 1e6
    elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise DataError(f"column {name!r} holds {kind}; the model learned it as dates or times: convert it to such")
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = pc.local_timestamp(column)
    return to_floats(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())) / 1e6


def parse_times(text: ArrowColumn) -> ArrowColumn | None:
    """Text that is ISO 8601 throughout as times; None if it is not."""
    trimmed = pc.utf8_trim_whitespace(text.cast(pa.large_string()))
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC")):
        try:
            times = pc.cast(trimmed, kind)
        except pa.ArrowInvalid:
            continue
        return pc.cast(times, pa.timestamp("us"), safe=False)
    return None


def decode(column: ArrowColumn) -> ArrowColumn:
    """Replace dictionary codes by their values."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _parse(name: str, text: ArrowColumn, *, boolean: bool, first_row: int) -> ArrowColumn:
    """Convert text to numbers; an error names the first cell that is not one."""
    text = pc.utf8_trim_whitespace(text.cast(pa.large_string()))
    if boolean:
        lower = pc.utf8_lower(text)
        for words, digit in ((_TRUE, "1"), (_FALSE, "0")):
            text = pc.if_else(pc.is_in(lower, value_set=from_strings(words)), text_scalar(digit), text)
    numeric = looks_numeric(text)
    if pc.all(numeric).as_py() is False:  # missing cells do not count
        row = pc.index(numeric, False).as_py()
        raise DataError(
            f"column {name!r} holds {text[row].as_py()!r} {in_row(first_row + row)}; "
            f"the model learned it as {'true, false or numbers' if boolean else 'numbers'}: correct or empty the cell"
        )
    return pc.cast(text, pa.float64())


# Arrow's own conversions from Python, and from and to NumPy, load pandas if it is installed, which takes 50 MB and
# 0.3 s. What follows avoids that where possible.

_NAN = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(np.array([np.nan]))])[0]


def to_floats(column: ArrowColumn) -> Array:
    """Convert numbers or booleans to float64, (n,), read-only; NaN where a cell is missing."""
    # Unsafe only in that integers beyond 2^53 are rounded, as in any float64.
    floats = pc.cast(column, pa.float64(), safe=False)
    if floats.null_count:
        floats = pc.fill_null(floats, _NAN)
    if isinstance(floats, pa.ChunkedArray):
        floats = floats.combine_chunks()
    return np.asarray(np.from_dlpack(floats))


def from_floats(values: Array) -> ArrowColumn:
    """Convert numbers, (n,), to a column; null where they are NaN."""
    known = np.packbits(~np.isnan(values), bitorder="little")
    buffers = [pa.py_buffer(known), pa.py_buffer(np.ascontiguousarray(values, dtype=np.float64))]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)


def from_strings(values: Sequence[str]) -> ArrowColumn:
    """Convert text, without missing cells, to a column."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def text_scalar(value: str) -> Any:
    """Convert text to a scalar, for functions of pyarrow.compute that take one beside columns."""
    return from_strings([value])[0]


def check_finite(name: str, values: Array, first_row: int, infinite: str) -> Array:
    """Raise an error that names the first infinite number of a column, or replace all of them by NaN ("missing")."""
    found = np.isinf(values)
    if not found.any():
        return values
    if infinite == "missing":
        return np.where(found, np.nan, values)
    row = int(np.argmax(found))
    raise DataError(
        f"column {name!r} holds {values[row]} {in_row(first_row + row)}; infinity is not a "
        "missing value: correct or empty the cell, or leave such rows out with --missing drop"
    )


def common_type(first: Any, second: Any) -> Any:
    """The type that holds the values of both; None where they are of different kinds."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    values = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (first, second)]
    if all(is_text(kind) for kind in values):
        return pa.large_string()
    if not (is_numeric(first) and is_numeric(second)):
        return None
    integers = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (first, second))
    return pa.int64() if integers else pa.float64()


def null_missing(text: Any) -> Any:
    """Null where a cell spells a missing value."""
    spellings = from_strings(MISSING_TEXT).cast(pa.string())
    return pc.if_else(pc.is_in(text, value_set=spellings), pa.nulls(1, pa.string())[0], text)


# -- numbers as text files spell them -----------------------------------------------------------------


class Numerals:
    """The numerals of a text file, with this decimal mark; None: a point.

    Thousands may be separated by the other mark, by blanks or by apostrophes, in groups of three digits. A per cent
    sign divides by one hundred. A comma separates thousands only if the decimal point is given or columns are separated
    by commas: in other files 1,234 is more likely a number between 1 and 2.
    """

    def __init__(self, decimal: str | None = None, *, delimiter: str = ",") -> None:
        self.decimal = decimal or "."
        separators = [f"[{_BLANKS}]", f"[{_APOSTROPHES}]"]
        if self.decimal == ",":
            separators.append(r"\.")
        elif decimal is not None or delimiter == ",":
            separators.append(",")
        self._pattern = _numeral(self.decimal, separators)
        self._separators = f"[{_BLANKS}{_APOSTROPHES}{'.' if self.decimal == ',' else ','}]"

    def match(self, text: ArrowColumn) -> ArrowColumn:
        """Which cells are numerals; null where the text is null."""
        return pc.match_substring_regex(pc.utf8_trim_whitespace(text), self._pattern)

    def match_other(self, text: ArrowColumn) -> ArrowColumn:
        """Which cells are numerals with a decimal mark that is given, but not here."""
        text = pc.utf8_trim_whitespace(text)
        either = [pc.match_substring_regex(text, pattern) for pattern in _GIVEN.values()]
        return pc.and_(pc.or_(*either), pc.invert(self.match(text)))

    def are_plain(self, text: ArrowColumn) -> bool:
        """Whether the parser of files converts all these cells."""
        text = pc.utf8_trim_whitespace(text)
        if self.decimal == ",":
            if pc.any(pc.match_substring(text, ".")).as_py():
                return False
            text = pc.replace_substring(text, ",", ".")
        return _can_cast(text)

    def read(self, name: str, text: ArrowColumn, first_row: int = 0) -> ArrowColumn:
        """Convert a column to float64 if every cell is a numeral; otherwise it stays text, for messages about it.

        DataError for a number with the other decimal mark; ``first_row``: where the column starts in its file.
        """
        text = pc.utf8_trim_whitespace(text)
        if self.decimal == "." and _can_cast(text):
            return pc.cast(text, pa.float64())
        row = pc.index(self.match_other(text), True).as_py()
        if row >= 0:
            raise self.other_error([name], text[row].as_py(), first_row + row)
        numeral = self.match(text)
        plain = pc.if_else(numeral, self._to_plain(text), text)
        return pc.cast(plain, pa.float64()) if pc.all(numeral).as_py() is not False else plain

    def _to_plain(self, text: ArrowColumn) -> ArrowColumn:
        """Numerals as Python spells them."""
        plain = pc.replace_substring_regex(text, self._separators, "")
        for mark, replacement in ((",", "."), ("\u2212", "-"), ("%", "e-2")):
            plain = pc.replace_substring(plain, mark, replacement)
        return plain

    def other_error(self, names: Sequence[str], value: str, row: int) -> DataError:
        """The error for columns whose numbers are spelled in another way, with such a cell of the first column."""
        fitting = [mark for mark, pattern in _GIVEN.items() if _matches(value, pattern)]
        options = " or ".join(f"--decimal {mark}" for mark in fitting)
        given = " or ".join(f"decimal={mark!r}" for mark in fitting)
        what = "which can have a decimal comma or thousands" if len(fitting) > 1 else "another spelling of a number"
        also = f", and so do {len(names) - 1} more" if len(names) > 1 else ""
        return DataError(
            f"column {names[0]!r} holds {value!r} {in_row(row)}, {what}{also}; "
            f"give {options} (in Python: {given}), or take such a column as categories"
        )


def count_percents(text: ArrowColumn) -> int:
    """The number of cells that end with a per cent sign."""
    return int(pc.sum(pc.ends_with(pc.utf8_trim_whitespace(text), "%")).as_py() or 0)


def _numeral(decimal: str, groups: list[str]) -> str:
    mark = "\\" + decimal
    # The first of several groups has no leading zero: 0,123 is not 123.
    grouped = "|".join(f"[1-9][0-9]{{0,2}}(?:{each}[0-9]{{3}})+" for each in groups)
    digits = f"(?:(?:[0-9]+|{grouped})(?:{mark}[0-9]*)?|{mark}[0-9]+)"
    return f"(?i)^[+\u2212-]?(?:{digits}(?:[{_BLANKS}]?%|e[+-]?[0-9]+)?|{_WORDS})$"


# What numerals are if the decimal mark is given.
_GIVEN = {
    mark: _numeral(mark, [f"[{_BLANKS}]", f"[{_APOSTROPHES}]", other]) for mark, other in ((".", ","), (",", r"\."))
}


def _matches(value: str, pattern: str) -> bool:
    return bool(pc.match_substring_regex(value.strip(), pattern).as_py())


def _can_cast(text: ArrowColumn) -> bool:
    try:
        pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
