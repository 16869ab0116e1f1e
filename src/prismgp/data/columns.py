"""Columns of Arrow tables: what they hold, and how their cells become numbers or text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.exceptions import DataError, ModelFileError

ArrowColumn: TypeAlias = Any  # pyarrow.ChunkedArray or pyarrow.Array; pyarrow ships no types

NUMBER, BOOLEAN, CATEGORY = "number", "boolean", "category"

_LARGEST_CELL = 1e150  # squares of larger values leave the range of float64
_NUMERAL = r"(?i)^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)$"
_TRUE, _FALSE = ["true", "1"], ["false", "0"]


# -- names in messages -----------------------------------------------------------------------------


def quote_names(names: Iterable[str], limit: int = 8) -> str:
    """``'a', 'b' and 3 more``"""
    names = list(names)
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def plural(items: Collection[Any], noun: str) -> str:
    """The noun, with an s unless there is one item."""
    return noun if len(items) == 1 else f"{noun}s"


def check_unique(names: Iterable[str], what: str, where: str = "") -> None:
    """Raise an error that lists the names that occur more than once."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}duplicate {what} {quote_names(twice)}; every column needs a name of its own")


# -- what a column is ------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputColumn:
    """One column of a table and how it is encoded."""

    name: str
    kind: str  # NUMBER, BOOLEAN or CATEGORY
    categories: tuple[str, ...] = ()  # sorted; empty unless the kind is CATEGORY

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        if self.kind == CATEGORY:
            return tuple(f"{self.name}={value}" for value in self.categories)
        return (self.name,)

    @classmethod
    def from_dict(cls, item: Any) -> InputColumn:
        """Read the description in a model file; ModelFileError for anything malformed."""
        if not isinstance(item, dict) or set(item) != {"name", "kind", "categories"}:
            raise ModelFileError("a column of the table is not an object with 'name', 'kind' and 'categories'")
        name, kind, categories = item["name"], item["kind"], item["categories"]
        if not is_clean_text(name):
            raise ModelFileError("a column of the table has no proper name")
        if kind not in (NUMBER, BOOLEAN, CATEGORY):
            raise ModelFileError(f"column {name!r} of the table is of an unknown kind")
        if not isinstance(categories, list) or not all(is_clean_text(value) for value in categories):
            raise ModelFileError(f"the categories of column {name!r} are not a list of texts")
        if (kind == CATEGORY) != bool(categories):
            raise ModelFileError(f"column {name!r} of kind {kind!r} has {len(categories)} categories")
        if any(later <= earlier for earlier, later in pairwise(categories)):
            raise ModelFileError(f"the categories of column {name!r} are not sorted and distinct")
        return cls(name, kind, tuple(categories))


def is_clean_text(value: Any) -> bool:
    """Whether this is a string that can be written as UTF-8; JSON allows lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def is_text(kind: Any) -> bool:
    """Whether this is one of Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_numeric(kind: Any) -> bool:
    """Whether this is a type of integers, floats or decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def column_kind(name: str, kind: Any, *, categorical: bool = False) -> str:
    """NUMBER, BOOLEAN or CATEGORY, by the type of a column; an error for a type that cannot be an input."""
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


# -- cells -----------------------------------------------------------------------------------------


def looks_numeric(text: ArrowColumn) -> ArrowColumn:
    """Which texts are numerals; null where the text is null."""
    return pc.match_substring_regex(pc.utf8_trim_whitespace(text), _NUMERAL)


def to_text(name: str, column: ArrowColumn) -> ArrowColumn:
    """Convert a category column to text; null stays null."""
    column = decode(column)
    if is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        # The large type: 32-bit offsets would overflow on long columns.
        return column.cast(pa.large_string())
    raise DataError(f"column {name!r} holds {column.type}; the model learned it as text categories")


def to_numbers(name: str, column: ArrowColumn, *, boolean: bool = False, first_row: int = 0) -> Array:
    """Convert numbers, booleans, or text that spells them to float64, (n,), read-only; NaN where a cell is missing.

    ``boolean``: text may also say ``true`` and ``false``; ``first_row``: where the column starts in its file.
    """
    column = decode(column)
    if is_text(column.type):
        column = _parse(name, column, boolean=boolean, first_row=first_row)
    elif not (is_numeric(column.type) or pa.types.is_boolean(column.type) or pa.types.is_null(column.type)):
        raise DataError(f"column {name!r} holds {column.type}; the model learned it as numbers")
    values = to_floats(column)
    beyond = np.isfinite(values) & (np.abs(values) > _LARGEST_CELL)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise DataError(
            f"column {name!r} holds {values[row]:g} in row {first_row + row + 1:,} (the first is 1); "
            f"values beyond {_LARGEST_CELL:g} cannot be squared in float64: rescale the column or drop the row"
        )
    return values


def to_numbers_or_nan(column: ArrowColumn) -> Array:
    """Convert a column to float64, (n,), read-only; NaN where a cell is missing or is not a number."""
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        column = pc.if_else(looks_numeric(text), text, pa.scalar(None, text.type)).cast(pa.float64())
    if not (is_numeric(column.type) or pa.types.is_boolean(column.type)):
        return np.full(len(column), np.nan)
    return to_floats(column)


def decode(column: ArrowColumn) -> ArrowColumn:
    """Replace dictionary codes by their values."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _parse(name: str, text: ArrowColumn, *, boolean: bool, first_row: int) -> ArrowColumn:
    """Convert text to numbers; an error names the first cell that is not one."""
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


# Arrow's own conversions from and to NumPy load pandas, which takes 50 MB, if it is installed. The next two functions
# avoid that where possible.


def to_floats(column: ArrowColumn) -> Array:
    """Convert numbers or booleans to float64, (n,), read-only; NaN where a cell is missing."""
    # Unsafe only in that integers beyond 2^53 are rounded, as in any float64.
    floats = pc.cast(column, pa.float64(), safe=False)
    if isinstance(floats, pa.ChunkedArray):
        floats = floats.combine_chunks()
    return np.asarray(floats.to_numpy(zero_copy_only=False) if floats.null_count else np.from_dlpack(floats))


def from_floats(values: Array) -> ArrowColumn:
    """Convert numbers, (n,), to a column; null where they are NaN."""
    known = np.packbits(~np.isnan(values), bitorder="little")
    buffers = [pa.py_buffer(known), pa.py_buffer(np.ascontiguousarray(values, dtype=np.float64))]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)
