"""From tables with named columns of numbers and text to the model's matrix, in the same way every time.

First the single column, what it holds and how its cells become numbers or text; then the encoder of all columns. What
it has learned from the training table (``scan.py``), which is the inputs, their order and the categories of text
columns, is saved with the model, so that later tables are encoded in the same way whatever other columns they have.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

if TYPE_CHECKING:
    import pandas as pd

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


# -- all columns of a table --------------------------------------------------------------------------


class EncodedBatch(NamedTuple):
    """An encoded batch; counts are by column, only for columns that have any."""

    values: Array  # (n, d), not finite where an input is missing or infinite
    missing: dict[str, int]  # missing or infinite cells
    unseen: dict[str, int]  # cells with a category that training did not have


@dataclass(frozen=True)
class TableEncoder:
    """Encodes tables as the training table was.

    Numbers and booleans become float64; text and categories become one indicator column per
    category. A category unseen in training has all indicators at zero.
    """

    columns: tuple[InputColumn, ...]
    targets: tuple[str, ...] = ()  # the columns that were learned; not needed at prediction

    @classmethod
    def numeric(cls, names: Iterable[str]) -> TableEncoder:
        """The encoder of a purely numeric table."""
        return cls(tuple(InputColumn(name, NUMBER) for name in names))

    # -- names -----------------------------------------------------------------------------------

    @property
    def input_names(self) -> list[str]:
        """Raw input columns, in order."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Encoded columns, in order: the column's name, or ``column=value`` for a category."""
        return [name for column in self.columns for name in column.features]

    def missing_columns(self, names: Collection[str]) -> list[str]:
        """Inputs that are not among the names."""
        there = set(names)
        return [name for name in self.input_names if name not in there]

    # -- encoding --------------------------------------------------------------------------------

    def encode(self, data: pa.Table | pa.RecordBatch, *, first_row: int = 0) -> EncodedBatch:
        """Encode a batch and count its missing and unseen cells; neither is an error.

        Columns beyond the inputs are ignored; ``first_row``: where the batch starts in its file. DataError for absent
        or duplicate columns and cells that cannot be of the column's kind.
        """
        absent = self.missing_columns(data.schema.names)
        if absent:
            raise DataError(f"{plural(absent, 'input column')} missing: {quote_names(absent)}")
        check_unique([name for name in data.schema.names if name in set(self.input_names)], "column")
        # Filled column by column, so in Fortran order; later steps copy rows together anyway.
        values = np.zeros((data.num_rows, len(self.feature_names)), order="F")
        missing: dict[str, int] = {}
        unseen: dict[str, int] = {}
        at = 0
        for column in self.columns:
            block = values[:, at : at + len(column.features)]
            at += block.shape[1]
            cells = data.column(data.schema.get_field_index(column.name))
            if column.kind == CATEGORY:
                unknown = _fill_indicators(column, cells, block)
                if unknown:
                    unseen[column.name] = unknown
            else:
                block[:, 0] = to_numbers(column.name, cells, boolean=column.kind == BOOLEAN, first_row=first_row)
            finite = np.isfinite(block[:, 0])
            if not finite.all():
                missing[column.name] = int((~finite).sum())
        return EncodedBatch(values, missing, unseen)

    def accepts(self, frame: Any) -> bool:
        """Whether this is a pandas or polars frame or an Arrow table that has all raw input columns."""
        if isinstance(frame, pa.Table | pa.RecordBatch):
            names = frame.schema.names
        elif _is_frame("pandas", frame) or _is_frame("polars", frame):
            names = frame.columns
        else:
            return False
        return not self.missing_columns(names)

    def encode_frame(self, frame: Any) -> pd.DataFrame:
        """Encode a frame that :meth:`accepts` takes; missing values are errors, unseen categories warnings."""
        import pandas as pd  # start-up weight: predictions from files do without

        encoded = self.encode(_to_arrow(frame, self.input_names))
        if encoded.missing:
            raise missing_error(encoded.missing)
        warn_unseen(encoded.unseen, stacklevel=5)
        return pd.DataFrame(encoded.values, columns=self.feature_names, copy=False)

    # -- model files -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        columns = [
            {"name": column.name, "kind": column.kind, "categories": list(column.categories)} for column in self.columns
        ]
        return {"targets": list(self.targets), "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableEncoder:
        """Read what :meth:`to_dict` wrote; ModelFileError for anything else, as files are not trusted."""
        if not isinstance(data, dict) or set(data) != {"targets", "columns"}:
            raise ModelFileError("the table description is not an object with 'targets' and 'columns'")
        targets, columns = data["targets"], data["columns"]
        if not isinstance(targets, list) or not all(is_clean_text(name) for name in targets):
            raise ModelFileError("the table's targets are not a list of names")
        if not isinstance(columns, list) or not columns:
            raise ModelFileError("the table's columns are not a list of at least one")
        encoder = cls(tuple(InputColumn.from_dict(item) for item in columns), tuple(targets))
        names = encoder.input_names
        if len(set(names)) < len(names) or len(set(encoder.feature_names)) < len(encoder.feature_names):
            raise ModelFileError("the table names a column twice")
        if len({*names, *targets}) < len(names) + len(targets):
            raise ModelFileError("a target of the table is also an input, or named twice")
        return encoder


def warn_unseen(unseen: dict[str, int], *, stacklevel: int = 3) -> None:
    """Warn about categories that training did not have, column by column."""
    for name, count in unseen.items():
        message = f"column {name!r}: {count:,} value(s) unseen in training, encoded as none of the known categories"
        warnings.warn(message, PrismGPWarning, stacklevel=stacklevel)


def missing_error(counts: dict[str, int]) -> DataError:
    """The error for missing cells, with their number in every column."""
    found = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    return DataError(
        f"missing or infinite values in {plural(found, 'column')} {', '.join(found)}; "
        'leave these rows out with --drop-missing (in Python: missing="drop"), or fill the values first'
    )


def _fill_indicators(column: InputColumn, cells: ArrowColumn, block: Array) -> int:
    """Fill the zeroed block with indicators, NaN where the cell is missing; returns the number of unseen cells."""
    text = to_text(column.name, cells)
    known = pa.array(column.categories, pa.large_string())
    codes = np.asarray(pc.fill_null(pc.index_in(text, value_set=known), -1)).astype(np.intp)
    hit = np.flatnonzero(codes >= 0)
    block[hit, codes[hit]] = 1.0
    missing = np.asarray(pc.is_null(text)).astype(bool)
    block[missing] = np.nan
    return int(len(codes) - len(hit) - missing.sum())


def _is_frame(library: str, frame: Any) -> bool:
    loaded = sys.modules.get(library)  # without it there can be no frame of it
    return loaded is not None and isinstance(frame, loaded.DataFrame)


def _to_arrow(frame: Any, names: list[str]) -> pa.Table:
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame
    if not _is_frame("pandas", frame):
        return frame.select(names).to_arrow()
    chosen = frame[names]
    check_unique([str(name) for name in chosen.columns], "column")
    try:
        return pa.Table.from_pandas(chosen, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"a column cannot be read as numbers or text: {'; '.join(map(str, error.args))}") from error
