"""Cells of tables: what a column of Arrow may hold, and how cells become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import AnyArray, Array
from prismgp._validate import LARGEST_CELL, TOO_LARGE
from prismgp.data.encodings import BOOLEAN, CATEGORY, NUMBER, TIME
from prismgp.exceptions import DataError

ArrowColumn: TypeAlias = Any  # pyarrow.ChunkedArray or pyarrow.Array; pyarrow ships no types

# Spellings of a missing value in text files; those of pandas, which has all of pyarrow's.
MISSING_TEXT = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
_LARGEST_WHOLE = 2.0**53  # below it floats have all whole numbers
_NUMERAL = r"(?i)^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"
_OFFSET = "^([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+)(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)$"
_TIME_OF_DAY = r"^[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?$"
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
    codes = pa.types.is_integer(kind) and (dictionary or categorical)
    if is_text(kind) or pa.types.is_null(kind) or codes or (dictionary and pa.types.is_floating(kind)):
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


def trim(text: ArrowColumn) -> ArrowColumn:
    """Text without surrounding blanks; null where nothing else is there."""
    # The large type: 32-bit offsets would overflow on long columns.
    text = pc.utf8_trim_whitespace(text.cast(pa.large_string()))
    return _null_where(pc.match_substring_regex(text, "^$"), text)  # Arrow scalars would load pandas


def to_text(name: str, column: ArrowColumn, *, codes: bool = False) -> ArrowColumn:
    """Convert a category column to text without surrounding blanks; null where it is missing or empty.

    Floats may be values of a dictionary, and ``codes`` whole floats, as whole numbers become where cells are missing.
    """
    dictionary, column = pa.types.is_dictionary(column.type), decode(column)
    if pa.types.is_floating(column.type):
        values = to_floats(column)
        whole = np.isnan(values) | ((values == np.rint(values)) & (np.abs(values) < _LARGEST_WHOLE))
        if dictionary or (codes and whole.all()):
            column = _spell_floats(column, values, whole)
    if is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return trim(column)
    raise DataError(f"column {name!r} holds {column.type}; the model learned it as text: convert it to text")


def _spell_floats(column: ArrowColumn, values: Array, whole: AnyArray) -> ArrowColumn:
    """Floats as text, in the digits of their own precision, whole ones as integers are spelled."""
    spelled = from_floats(np.where(whole, values, 0.0)).cast(pa.int64()).cast(pa.large_string())
    if whole.all():
        return spelled
    fractions = column.cast(pa.large_string())
    return pc.if_else(pc.equal(from_floats(whole.astype(np.float64)), 1.0), spelled, fractions)


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
        text = trim(column)
        column = _null_where(pc.invert(looks_numeric(text)), text).cast(pa.float64())
    if not (is_numeric(column.type) or pa.types.is_boolean(column.type)):
        return np.full(len(column), np.nan)
    return to_floats(column)


def to_seconds(name: str, column: ArrowColumn, *, of_day: bool = False, first_row: int = 0) -> Array:
    """Convert times, or text that spells them by ISO 8601, to seconds, (n,); NaN where a cell is missing.

    Of a time with a zone or an offset the local one counts, which has the phase of the day. ``of_day``: the column was
    one of times of day, which text may spell too.
    """
    column = decode(column)
    kind = column.type
    if is_text(kind):
        parsed = parse_times(column, of_day=of_day)
        if parsed is None:
            cells = [pa.array([cell], pa.large_string()) for cell in column.to_pylist()]
            row = next((k for k, cell in enumerate(cells) if parse_times(cell, of_day=of_day) is None), 0)
            raise DataError(
                f"column {name!r} holds {cells[row][0].as_py()!r} {in_row(first_row + row)}; the model learned it as "
                f"dates or times: write it by ISO 8601, such as 2024-12-31{' or 13:45:00' if of_day else ''}, or empty "
                "the cell"
            )
        column = parsed
    elif pa.types.is_time(kind):
        return to_floats(column.cast(pa.time64("us"), safe=False).cast(pa.int64())) / 1e6
    elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_null(kind)):
        raise DataError(f"column {name!r} holds {kind}; the model learned it as dates or times: convert it to such")
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = pc.local_timestamp(column)
    return to_floats(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())) / 1e6


def parse_times(text: ArrowColumn, *, of_day: bool = False) -> ArrowColumn | None:
    """Text that is ISO 8601 throughout as times without a zone, by their wall clock; None if it is not.

    ``of_day``: times of day will do, and are those of the first day of 1970.
    """
    text = trim(text)
    if of_day:
        text = pc.replace_substring_regex(text, f"({_TIME_OF_DAY})", r"1970-01-01 \1")
    for spelled in (text, pc.replace_substring_regex(text, _OFFSET, r"\1")):
        for kind in (pa.timestamp("us"), pa.timestamp("ns")):
            try:
                return pc.cast(pc.cast(spelled, kind), pa.timestamp("us"), safe=False)
            except pa.ArrowInvalid:
                continue
    return None


def decode(column: ArrowColumn) -> ArrowColumn:
    """Replace dictionary codes by their values."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _parse(name: str, text: ArrowColumn, *, boolean: bool, first_row: int) -> ArrowColumn:
    """Convert text to numbers; an error names the first cell that is not one."""
    text = trim(text)
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
        "missing value: correct or empty the cell, or leave such rows out with --missing drop (in Python: fit with "
        'missing="drop")'
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


def null_missing(text: ArrowColumn, levels: Collection[str] = ()) -> ArrowColumn:
    """Null where a cell spells a missing value, with or without blanks around it, and is not one of the levels."""
    spellings = from_strings([each for each in MISSING_TEXT if each not in levels])
    trimmed = pc.utf8_trim_whitespace(text)
    return _null_where(pc.is_in(trimmed, value_set=spellings.cast(text.type)), text)


def count_missing(text: ArrowColumn) -> int:
    """The number of cells that are missing for the parser of files, which keeps blanks."""
    found = pc.is_in(text, value_set=from_strings(MISSING_TEXT).cast(text.type))
    return int(pc.sum(found).as_py() or 0) + int(text.null_count)


def _null_where(which: ArrowColumn, text: ArrowColumn) -> ArrowColumn:
    return pc.if_else(which, pa.nulls(1, text.type)[0], text)
