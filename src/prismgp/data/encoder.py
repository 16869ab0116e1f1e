"""From tables with named columns of numbers and text to the model's matrix, in the same way every time.

What is learned from the training table, which is the inputs, their order and the categories of text columns, is saved
with the model, so that later tables are encoded in the same way whatever other columns they have.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.data.columns import (
    BOOLEAN,
    CATEGORY,
    NUMBER,
    ArrowColumn,
    InputColumn,
    check_unique,
    column_kind,
    is_clean_text,
    is_text,
    looks_numeric,
    plural,
    quote_names,
    to_numbers,
    to_text,
)
from prismgp.data.tables import TableFiles
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

if TYPE_CHECKING:
    import pandas as pd


_SAVED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_TRUE_AND_FALSE = ("true", "false")
_SCAN_ROWS = 65_536


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
    target: str | None = None  # the column that was learned; not needed at prediction

    @classmethod
    def numeric(cls, names: Iterable[str], target: str | None = None) -> TableEncoder:
        """The encoder of a purely numeric table."""
        return cls(tuple(InputColumn(name, NUMBER) for name in names), target)

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
        return {"target": self.target, "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableEncoder:
        """Read what :meth:`to_dict` wrote; ModelFileError for anything else, as files are not trusted."""
        if not isinstance(data, dict) or set(data) != {"target", "columns"}:
            raise ModelFileError("the table description is not an object with 'target' and 'columns'")
        target, columns = data["target"], data["columns"]
        if target is not None and not is_clean_text(target):
            raise ModelFileError("the table's target is not a name")
        if not isinstance(columns, list) or not columns:
            raise ModelFileError("the table's columns are not a list of at least one")
        encoder = cls(tuple(InputColumn.from_dict(item) for item in columns), target)
        names = encoder.input_names
        if len(set(names)) < len(names) or len(set(encoder.feature_names)) < len(encoder.feature_names):
            raise ModelFileError("the table names a column twice")
        if target in names:
            raise ModelFileError("the table's target is among its inputs")
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


# -- learning an encoder ---------------------------------------------------------------------------


def learn_encoder(
    files: TableFiles,
    targets: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    max_categories: int = 100,
) -> tuple[TableEncoder, frozenset[str]]:
    """Decide how the columns of a table are encoded; returns also the targets that text spells as true and false.

    Takes one pass over the table, in memory that does not grow with its rows, or none if all columns have types.
    Targets must be numeric; for the other arguments see :func:`~prismgp.data.from_parquet`. Columns of text or whole
    numbers can be ``categorical`` even when they look like numbers. A DataError names column, problem and remedy.
    """
    schema = files.schema
    check_unique(targets, "target")
    for name in targets:
        _choose_inputs(schema.names, name, columns, (), ())  # checks that it exists and is not an input
    target = targets[0] if targets else None
    names = _choose_inputs(schema.names, target, columns, [*exclude, *targets[1:]], categorical)
    scans = {
        name: _ColumnScan(name, name in categorical, max_categories, spelled=files.is_text, is_target=name in targets)
        for name in [*names, *targets]
        if files.is_text or column_kind(name, schema.field(name).type, categorical=name in categorical) == CATEGORY
    }
    if scans:
        _scan(files, scans)
    booleans = frozenset(name for name in targets if _is_boolean(name, scans.get(name), schema.field(name).type))
    chosen = [
        scans[name].column() if name in scans else InputColumn(name, column_kind(name, schema.field(name).type))
        for name in names
    ]
    encoder = TableEncoder(tuple(chosen), target)
    check_unique(encoder.feature_names, "encoded column")
    return encoder, booleans


def is_saved_index(name: str) -> bool:
    """Whether a column of this name is the row index of a frame, saved with it by accident."""
    return _SAVED_INDEX.fullmatch(name) is not None


def _choose_inputs(
    names: Sequence[str],
    target: str | None,
    include: Sequence[str] | None,
    exclude: Collection[str],
    categorical: Collection[str],
) -> list[str]:
    check_unique(names, "column")
    for name in (target, *(include or ()), *exclude, *categorical):
        if name is not None and name not in names:
            raise _unknown_column(name, names)
    if include is not None:
        check_unique(include, "input")
        if target is not None and target in include:
            raise DataError(f"the target {target!r} cannot be an input as well")
        chosen = [name for name in include if name not in exclude]
    else:
        chosen = [name for name in names if name != target and name not in exclude and not is_saved_index(name)]
    if not chosen:
        raise DataError("no input columns are left beside the target")
    unused = [name for name in categorical if name not in chosen]
    if unused:
        raise DataError(f"categorical {plural(unused, 'column')} {quote_names(unused)}: not among the inputs")
    return chosen


def _unknown_column(name: str, names: Sequence[str]) -> DataError:
    hint = ""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        hint = "; is the separator another character? (--delimiter)"
    else:
        lookup = {each.strip().lower(): each for each in names}
        close = difflib.get_close_matches(name.strip().lower(), list(lookup), n=1)
        if close:
            hint = f"; did you mean {lookup[close[0]]!r}?"
    return DataError(f"there is no column {name!r} (there are {quote_names(names)}){hint}")


def _scan(files: TableFiles, scans: dict[str, _ColumnScan]) -> None:
    row = 0
    for batch in files.raw_batches(_SCAN_ROWS, columns=list(scans)):
        cells = files.cells(pa.Table.from_batches([batch]), list(scans))
        for name, scan in scans.items():
            scan.add(cells.column(name), row)
        row += cells.num_rows
    if not row:
        raise DataError(f"{files.path}: there are no rows below the header")


def _is_boolean(name: str, scan: _ColumnScan | None, kind: Any) -> bool:
    """Whether a target is spelled as true and false; an error where it is neither that nor numeric."""
    if scan is not None and is_text(kind):
        found = scan.numeric_kind()
        if found is None:
            raise DataError(f"the target {name!r} holds text; a regression target must be numeric")
        return found == BOOLEAN
    if column_kind(name, kind) == CATEGORY:
        raise DataError(f"the target {name!r} holds {kind}; a regression target must be numeric")
    return False


class _ColumnScan:
    """What is known of a column after some of its cells; ``spelled``: the file spells numbers as text."""

    def __init__(self, name: str, categorical: bool, most: int, *, spelled: bool, is_target: bool) -> None:
        self._name, self._categorical, self._most, self._spelled = name, categorical, most, spelled
        self._what = "target" if is_target else "column"
        self._distinct: ArrowColumn = pa.array([], pa.large_string())
        self._rows = self._cells = self._numbers = self._booleans = 0
        self._first_text: tuple[str, int] | None = None
        self._typed = False

    def add(self, column: ArrowColumn, first_row: int) -> None:
        """Take in cells; ``first_row`` is the number of rows before them."""
        self._typed = not is_text(column.type)
        text = to_text(self._name, column)
        present = pc.drop_null(text)
        self._rows += len(text)
        self._cells += len(present)
        if not self._typed and not self._categorical:
            self._count(text, present, first_row)
        if len(self._distinct) <= self._most:  # more are too many already
            found = pc.unique(pa.chunked_array([self._distinct, pc.unique(present).cast(pa.large_string())]))
            self._distinct = found[: self._most + 1]

    def _count(self, text: ArrowColumn, present: ArrowColumn, first_row: int) -> None:
        if _can_cast(pc.utf8_trim_whitespace(present), pa.float64()):  # the quick way for columns of numbers
            self._numbers += len(present)
            return
        numeral = np.asarray(pc.fill_null(looks_numeric(text), True))
        texts = np.flatnonzero(~numeral)
        self._numbers += len(present) - len(texts)
        if len(texts):
            words = pa.array(_TRUE_AND_FALSE, pa.large_string())
            self._booleans += int(pc.sum(pc.is_in(pc.utf8_lower(present), value_set=words)).as_py() or 0)
            if self._first_text is None:
                row = int(texts[0])
                self._first_text = text[row].as_py(), first_row + row

    def numeric_kind(self) -> str | None:
        """NUMBER or BOOLEAN; None for categories.

        An error for a column without cells, and for one in which most cells are numbers, but not all.
        """
        if not self._cells:
            raise empty_error(self._name, self._rows, is_target=self._what == "target")
        if self._typed or self._categorical:
            return None
        if self._first_text is None and self._spelled:
            return NUMBER
        if self._booleans == self._cells and self._spelled:
            return BOOLEAN
        if self._first_text is not None and self._numbers > self._cells / 2:
            value, row = self._first_text
            remedy = ", or take the column as categories with --categorical" if self._what == "column" else ""
            raise DataError(
                f"{self._what} {self._name!r} is text, but most of its values are numbers; the first that is not is "
                f"{value!r} in row {row + 1:,} (the first is 1): correct or empty such cells{remedy}"
            )
        return None

    def column(self) -> InputColumn:
        """How the column is to be encoded."""
        name, kind = self._name, self.numeric_kind()
        if kind is not None:
            return InputColumn(name, kind)
        if self._spelled and not self._categorical and _can_cast(self._distinct, pa.timestamp("ns")):
            column_kind(name, pa.timestamp("s"))  # raises the error for dates
        if len(self._distinct) > self._most:
            raise DataError(
                f"text column {name!r} has many values (e.g. {self._distinct[0].as_py()!r}), more than {self._most:,}; "
                "leave it out with --exclude, code it as numbers, or raise --max-categories"
            )
        return InputColumn(name, CATEGORY, tuple(sorted(self._distinct.to_pylist())))


def empty_error(name: str, rows: int, *, is_target: bool) -> DataError:
    """The error for a column without a single value."""
    what, remedy = ("the target", "") if is_target else ("column", "; leave it out with --exclude")
    return DataError(f"{what} {name!r} is empty in all {rows:,} rows{remedy}")


def _can_cast(text: ArrowColumn, kind: Any) -> bool:
    try:
        pc.cast(text, kind)
    except pa.ArrowInvalid:
        return False
    return True
