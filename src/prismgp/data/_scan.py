"""Learning the encoding of a table that is read in pieces, in memory that does not grow with its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp.data._columns import (
    BOOLEAN,
    CATEGORY,
    NUMBER,
    ArrowColumn,
    empty_column,
    is_text,
    kind_of,
    looks_numeric,
    to_text,
)
from prismgp.data._folder import TableFiles
from prismgp.data._schema import (
    InputColumn,
    check_unique,
    choose_inputs,
    mostly_numbers,
    too_many_categories,
)
from prismgp.data._table import TableEncoder
from prismgp.exceptions import DataError

__all__ = ["learn_encoder"]

_ROWS = 65_536
_TRUTH = ("true", "false")


def learn_encoder(
    files: TableFiles,
    targets: Sequence[str],
    *,
    columns: Sequence[str] | None,
    exclude: Collection[str],
    categorical: Collection[str],
    max_categories: int,
) -> tuple[TableEncoder, frozenset[str]]:
    """How the columns of a table are to be encoded, found by one pass over it, or none if all columns have types.

    Also the targets that a text file spells as true and false.

    Parameters
    ----------
    files : TableFiles
    targets : sequence of str
        Columns to be predicted, which must be numeric; none: every column may be an input.
    columns : sequence of str or None
        Input columns, in order. None: all but targets, ``exclude`` and saved row indices.
    exclude : collection of str
        Columns that are no inputs.
    categorical : collection of str
        Columns of text or whole numbers taken as categories even when they look like numbers.
    max_categories : int
        A text column with more distinct values is refused.

    Raises
    ------
    DataError
        Naming the column, the trouble and the remedy.
    """
    schema = files.schema
    check_unique(targets, "target")
    for name in targets:
        choose_inputs(schema.names, name, columns, (), ())  # is it there, and not among the inputs?
    others = [*exclude, *targets[1:]]
    target = targets[0] if targets else None
    names = choose_inputs(schema.names, target, columns, others, categorical)
    scans = {
        name: _Scan(name, name in categorical, max_categories, spelled=files.is_text, is_target=name in targets)
        for name in [*names, *targets]
        if files.is_text or kind_of(name, schema.field(name).type, categorical=name in categorical) == CATEGORY
    }
    if scans:
        _scan(files, scans)
    truths = frozenset(name for name in targets if _is_truth(name, scans.get(name), schema.field(name).type))
    chosen = [
        scans[name].column() if name in scans else InputColumn(name, kind_of(name, schema.field(name).type))
        for name in names
    ]
    encoder = TableEncoder(tuple(chosen), target)
    check_unique(encoder.feature_names, "encoded column")
    return encoder, truths


def _scan(files: TableFiles, scans: dict[str, _Scan]) -> None:
    row = 0
    for batch in _tables(files, list(scans)):
        for name, scan in scans.items():
            scan.add(batch.column(name), row)
        row += batch.num_rows
    if not row:
        raise DataError(f"{files.path}: there are no rows below the header")


def _tables(files: TableFiles, names: list[str]) -> Iterator[pa.Table]:
    for batch in files.raw_batches(_ROWS, columns=names):
        yield files.cells(pa.Table.from_batches([batch]), names)


def _is_truth(name: str, scan: _Scan | None, kind: Any) -> bool:
    """Whether a target is spelled as true and false; an error where it is neither that nor numbers."""
    if scan is not None and is_text(kind):
        found = scan.numeric_kind()
        if found is None:
            raise DataError(f"the target {name!r} holds text; a regression target must be numeric")
        return found == BOOLEAN
    if kind_of(name, kind) == CATEGORY:
        raise DataError(f"the target {name!r} holds {kind}; a regression target must be numeric")
    return False


class _Scan:
    """What is known of a column after some of its cells; ``spelled``: numbers are spelled out in the file."""

    def __init__(self, name: str, categorical: bool, most: int, *, spelled: bool, is_target: bool) -> None:
        self._name, self._categorical, self._most, self._spelled = name, categorical, most, spelled
        self._what = "target" if is_target else "column"
        self._distinct: ArrowColumn = pa.array([], pa.large_string())
        self._rows = self._cells = self._numbers = self._truths = 0
        self._first_text: tuple[str, int] | None = None
        self._typed = False

    def add(self, column: ArrowColumn, first_row: int) -> None:
        """Take cells in; ``first_row`` is the number of those before."""
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
        if _is_number(present):
            self._numbers += len(present)
            return
        numeral = np.asarray(pc.fill_null(looks_numeric(text), True))
        texts = np.flatnonzero(~numeral)
        self._numbers += len(present) - len(texts)
        if len(texts):
            words = pa.array(_TRUTH, pa.large_string())
            self._truths += int(pc.sum(pc.is_in(pc.utf8_lower(present), value_set=words)).as_py() or 0)
            if self._first_text is None:
                row = int(texts[0])
                self._first_text = text[row].as_py(), first_row + row

    def numeric_kind(self) -> str | None:
        """NUMBER or BOOLEAN; None for categories. An error for a column without cells, or of numbers but for a few."""
        if not self._cells:
            raise empty_column("the target" if self._what == "target" else self._what, self._name, self._rows)
        if self._typed or self._categorical:
            return None
        if self._first_text is None and self._spelled:
            return NUMBER
        if self._truths == self._cells and self._spelled:
            return BOOLEAN
        if self._first_text is not None and self._numbers > self._cells / 2:
            raise mostly_numbers(self._what, self._name, *self._first_text)
        return None

    def column(self) -> InputColumn:
        """How the column is to be encoded."""
        name, kind = self._name, self.numeric_kind()
        if kind is not None:
            return InputColumn(name, kind)
        if self._spelled and not self._categorical and _are_dates(self._distinct):
            kind_of(name, pa.timestamp("s"))  # says what to do with dates
        if len(self._distinct) > self._most:
            raise too_many_categories(name, self._distinct[0].as_py(), self._most)
        return InputColumn(name, CATEGORY, tuple(sorted(self._distinct.to_pylist())))


def _are_dates(text: ArrowColumn) -> bool:
    try:
        pc.cast(text, pa.timestamp("ns"))
    except pa.ArrowInvalid:
        return False
    return True


def _is_number(text: ArrowColumn) -> bool:
    """Whether all texts are numerals, found quickly; False also where it is not clear."""
    try:
        pc.cast(pc.utf8_trim_whitespace(text), pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
