"""Learning an encoder: which columns of the training table are inputs, which are numbers, and which categories."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp.data.encoder import (
    BOOLEAN,
    CATEGORY,
    NUMBER,
    ArrowColumn,
    InputColumn,
    TableEncoder,
    check_unique,
    column_kind,
    is_text,
    plural,
    quote_names,
    to_text,
)
from prismgp.data.numerals import Numerals, count_percents
from prismgp.data.tables import TableFiles
from prismgp.exceptions import DataError

_SAVED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_TRUE_AND_FALSE = ("true", "false")
_SCAN_ROWS = 65_536


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
    names = _choose_inputs(schema.names, targets, columns, exclude, categorical)
    numerals = files.numerals if files.is_text else None
    scans = {
        name: _ColumnScan(name, name in categorical, max_categories, numerals=numerals, is_target=name in targets)
        for name in [*names, *targets]
        if files.is_text or column_kind(name, schema.field(name).type, categorical=name in categorical) == CATEGORY
    }
    if scans:
        _scan(files, scans)
        files.respelled.update(name for name, scan in scans.items() if scan.respelled)
    booleans = frozenset(name for name in targets if _is_boolean(name, scans.get(name), schema.field(name).type))
    chosen = [
        scans[name].column() if name in scans else InputColumn(name, column_kind(name, schema.field(name).type))
        for name in names
    ]
    encoder = TableEncoder(tuple(chosen), tuple(targets))
    check_unique(encoder.feature_names, "encoded column")
    return encoder, booleans


def is_saved_index(name: str) -> bool:
    """Whether a column of this name is the row index of a frame, saved with it by accident."""
    return _SAVED_INDEX.fullmatch(name) is not None


def _choose_inputs(
    names: Sequence[str],
    targets: Sequence[str],
    include: Sequence[str] | None,
    exclude: Collection[str],
    categorical: Collection[str],
) -> list[str]:
    check_unique(names, "column")
    for name in (*targets, *(include or ()), *exclude, *categorical):
        if name not in names:
            raise _unknown_column(name, names)
    if include is not None:
        check_unique(include, "input")
        both = [name for name in targets if name in include]
        if both:
            raise DataError(f"the target {quote_names(both)} cannot be an input as well")
        chosen = [name for name in include if name not in exclude]
    else:
        chosen = [name for name in names if name not in targets and name not in exclude and not is_saved_index(name)]
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
    """What is known of a column after some of its cells; ``numerals``: how the file spells numbers, if as text."""

    def __init__(self, name: str, categorical: bool, most: int, *, numerals: Numerals | None, is_target: bool) -> None:
        self._name, self._categorical, self._most, self._numerals = name, categorical, most, numerals
        self._spelled = numerals is not None
        self._other = self._percents = 0  # numbers with the other decimal mark, and with a per cent sign
        self.respelled = False  # whether numbers have thousands or per cent signs
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
        numerals = self._numerals or Numerals()
        if numerals.are_plain(present):  # the quick way for columns of numbers
            self._numbers += len(present)
            return
        self.respelled = True
        self._other += int(pc.sum(numerals.match_other(present)).as_py() or 0)
        self._percents += count_percents(present)
        texts = np.flatnonzero(~np.asarray(pc.fill_null(numerals.match(text), True)))
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
        if self._numerals is not None and self._first_text is not None and self._numbers + self._other == self._cells:
            remedy = "" if self._what == "target" else ", or take the column as categories with --categorical"
            raise self._numerals.other_error(self._name, *self._first_text, remedy)
        if self._first_text is None and self._spelled:
            if 0 < self._percents < self._cells:
                raise DataError(
                    f"{self._what} {self._name!r} has per cent signs in {self._percents:,} of its {self._cells:,} "
                    "cells; write all of them in the same way"
                )
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
