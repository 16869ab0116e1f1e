"""One column of an Arrow table: its kind, its missing cells, its numbers and its texts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.exceptions import DataError

__all__ = [
    "BOOLEAN",
    "CATEGORY",
    "NUMBER",
    "ArrowColumn",
    "as_floats",
    "empty_column",
    "from_floats",
    "is_numeric",
    "is_text",
    "kind_of",
    "listed",
    "looks_numeric",
    "to_numbers",
    "to_text",
    "unusable",
]

ArrowColumn: TypeAlias = Any  # pyarrow.ChunkedArray or pyarrow.Array; pyarrow ships no types

NUMBER, BOOLEAN, CATEGORY = "number", "boolean", "category"

_LARGEST = 1e150  # squares of larger values leave the range of float64
_NUMERAL = r"(?i)^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"
_TRUE, _FALSE = ["true", "1"], ["false", "0"]


def listed(names: Any, limit: int = 8) -> str:
    """``'a', 'b' and 3 more``"""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def is_text(kind: Any) -> bool:
    """Any of Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_numeric(kind: Any) -> bool:
    """Integers, floats and decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def kind_of(name: str, kind: Any, *, categorical: bool = False) -> str:
    """NUMBER, BOOLEAN or CATEGORY, from the type of a column; an error for what cannot be an input."""
    dictionary = pa.types.is_dictionary(kind)
    if dictionary:
        kind = kind.value_type
    if is_text(kind) or ((dictionary or categorical) and pa.types.is_integer(kind)):
        return CATEGORY
    if categorical:
        raise DataError(f"column {name!r} holds {kind}; only text and whole numbers can be categories")
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if is_numeric(kind):
        return NUMBER
    if pa.types.is_temporal(kind):
        raise DataError(
            f"column {name!r} holds dates or times ({kind}), which are not numbers; "
            "convert it (e.g. to days since a start) or leave it out with --exclude"
        )
    raise DataError(f"column {name!r} holds {kind}, which is neither number nor text; leave it out with --exclude")


def empty_column(what: str, name: str, rows: int) -> DataError:
    """The complaint about a column without a single value."""
    remedy = "; leave it out with --exclude" if what == "column" else ""
    return DataError(f"{what} {name!r} is empty in all {rows:,} rows{remedy}")


def _decoded(column: ArrowColumn) -> ArrowColumn:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def unusable(column: ArrowColumn) -> npt.NDArray[np.bool_]:
    """Cells that are missing (null or NaN) or infinite, (n,)."""
    column = _decoded(column)
    if pa.types.is_floating(column.type):
        usable = pc.fill_null(pc.is_finite(column.cast(pa.float64())), False)
    else:
        usable = pc.is_valid(column)
    return ~np.asarray(usable.to_numpy(zero_copy_only=False) if isinstance(usable, pa.Array) else usable.to_numpy())


def looks_numeric(text: ArrowColumn) -> ArrowColumn:
    """Which texts are numerals; null where the text is."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(text), _NUMERAL)


def to_text(name: str, column: ArrowColumn) -> ArrowColumn:
    """A category column as text; null stays null."""
    column = _decoded(column)
    if is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        # The large type: 32-bit offsets would overflow on long columns.
        return column.cast(pa.large_string())
    raise DataError(f"column {name!r} holds {column.type}; the model learned it as text categories")


def to_numbers(name: str, column: ArrowColumn, *, boolean: bool = False, first_row: int = 0) -> Array:
    """A column as float64, (n,), not to be written to; NaN where a cell is missing.

    Parameters
    ----------
    name : str
        For messages.
    column : pyarrow array
        Numbers, booleans, or text that spells them.
    boolean : bool, default False
        Text may say ``true`` and ``false``.
    first_row : int, default 0
        Where the column starts in its file, for messages.
    """
    column = _decoded(column)
    if is_text(column.type):
        column = _parsed(name, column, boolean=boolean, first_row=first_row)
    elif not (is_numeric(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise DataError(f"column {name!r} holds {column.type}; the model learned it as numbers")
    values = as_floats(column)
    if (np.abs(values) > _LARGEST).any():
        beyond = np.isfinite(values) & (np.abs(values) > _LARGEST)
        if not beyond.any():
            return values
        row = int(np.argmax(beyond))
        raise DataError(
            f"column {name!r} holds {values[row]:g} in row {first_row + row + 1:,} (the first is 1); "
            f"values beyond {_LARGEST:g} cannot be squared in float64: rescale the column or drop the row"
        )
    return values


# Arrow's own conversions from and to NumPy load pandas, and its 50 MB, where it is installed: the two functions below
# do without where they can.


def as_floats(column: ArrowColumn) -> Array:
    """Numbers or booleans as float64, (n,), not to be written to; NaN where a cell is missing."""
    # Unsafe only in that integers beyond 2^53 are rounded, as any float64 would be.
    floats = pc.cast(column, pa.float64(), safe=False)
    if isinstance(floats, pa.ChunkedArray):
        floats = floats.combine_chunks()
    return np.asarray(floats.to_numpy(zero_copy_only=False) if floats.null_count else np.from_dlpack(floats))


def from_floats(values: Array) -> ArrowColumn:
    """Numbers, (n,), as a column; null where they are NaN."""
    known = np.packbits(~np.isnan(values), bitorder="little")
    buffers = [pa.py_buffer(known), pa.py_buffer(np.ascontiguousarray(values, dtype=np.float64))]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)


def _parsed(name: str, text: ArrowColumn, *, boolean: bool, first_row: int) -> ArrowColumn:
    """Text to numbers; an error that names the first cell which is none."""
    text = pc.utf8_trim_whitespace(text.cast(pa.large_string()))
    if boolean:
        lower = pc.utf8_lower(text)
        for words, digit in ((_TRUE, "1"), (_FALSE, "0")):
            words_set = pa.array(words, pa.large_string())
            text = pc.if_else(pc.is_in(lower, value_set=words_set), pa.scalar(digit, pa.large_string()), text)
    wrong = pc.fill_null(pc.invert(looks_numeric(text)), False)
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise DataError(
            f"column {name!r} holds {text[row].as_py()!r} in row {first_row + row + 1:,} (the first is 1); "
            f"the model learned it as {'true or false' if boolean else 'numbers'}"
        )
    return pc.cast(text, pa.float64())
