"""Deciding how a table is read: which columns are inputs, and which hold numbers, times or categories."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp.data.cells import (
    ArrowColumn,
    check_unique,
    column_kind,
    count_missing,
    in_row,
    is_text,
    parse_times,
    plural,
    quote_names,
    raise_problems,
    to_text,
)
from prismgp.data.encoder import InputColumn, TableEncoder
from prismgp.data.encodings import BOOLEAN, CATEGORY, LEVELS, NUMBER, TIME
from prismgp.data.numerals import Numerals, count_percents, hint_at_text, unit_remedy
from prismgp.data.tables import TableFiles
from prismgp.exceptions import DataError

_SAVED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_TRUE_AND_FALSE = ("true", "false")
_SCAN_ROWS = 65_536
MAX_CATEGORIES = 30  # levels that get an indicator each; more are encoded by their effect on the target


def scan_files(
    files: TableFiles,
    targets: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    max_categories: int = MAX_CATEGORIES,
    roles: Mapping[str, str] = MappingProxyType({}),
) -> tuple[TableEncoder, frozenset[str]]:
    """Decide how the columns of a table are read; returns also the targets that text spells as true and false.

    Takes one pass over the table, in memory that does not grow with its rows but with its categories, or none if all
    columns have types. Targets must be numeric; for the other arguments see :func:`~prismgp.data.from_parquet`. Columns
    of text or whole numbers can be ``categorical`` even when they look like numbers. ``roles`` of targets that are
    something else are for messages. One DataError names all columns with problems, and the remedies.
    """
    schema = files.schema
    check_unique(targets, "target")
    names = _choose_inputs(schema.names, targets, columns, exclude, categorical)
    numerals = files.numerals if files.is_text else None
    problems: list[str] = []
    scans = {}
    for name in [*names, *targets]:
        with _collect(problems):
            forced = name in categorical
            if files.is_text or column_kind(name, schema.field(name).type, categorical=forced) == CATEGORY:
                role = roles.get(name, "target") if name in targets else "column"
                scans[name] = _ColumnScan(name, forced, max_categories, numerals=numerals, role=role)
    if scans:
        _scan(files, scans)
        files.respelled.update(name for name, scan in scans.items() if scan.respelled)
    others = {name: scan.other_mark for name, scan in scans.items() if scan.other_mark is not None}
    if others and numerals is not None:  # at once: with the wrong mark all other problems are spurious
        raise numerals.other_error(list(others), *next(iter(others.values())))
    if numerals is not None:
        numerals.conclude([name for name, scan in scans.items() if scan.is_numeric])
    # Columns that look like numbers at first and turn out to be text are categories; a second pass collects the levels
    # that were skipped.
    late = {name: scan for name, scan in scans.items() if scan.is_late}
    if late:
        _scan(files, late, levels_only=True)
    booleans = set()
    for name in targets:
        with _collect(problems):
            if _is_boolean(name, scans.get(name), schema.field(name).type, roles.get(name, "target")):
                booleans.add(name)
    encoder = TableEncoder(tuple(_columns(schema, names, scans, problems)), tuple(targets))
    raise_problems(problems)
    if targets:  # a table to predict is read by the encoder of the model
        _hint_at_text(scans, encoder)
    return encoder, frozenset(booleans)


class TableScan:
    """The scan of a table in memory, all columns of which are inputs; scans of its parts can be merged."""

    def __init__(self, table: pa.Table) -> None:
        self._names = list(table.schema.names)
        self._types = {name: {table.schema.field(name).type} for name in self._names}
        self._scans: dict[str, _ColumnScan] = {}
        self._problems: list[str] = []
        for name in self._names:
            with _collect(self._problems):
                if column_kind(name, table.schema.field(name).type) == CATEGORY:
                    self._scans[name] = _ColumnScan(name, False, MAX_CATEGORIES, numerals=None, role="column")
                    self._scans[name].add(table.column(name), 0)

    def merge(self, other: TableScan) -> TableScan:
        """Add the scan of another part of the table; returns this one."""
        for name in self._names:
            self._types[name] |= other._types[name]
            mine, theirs = self._scans.get(name), other._scans.get(name)
            if mine is not None and theirs is not None:
                mine.merge(theirs)
            elif theirs is not None:
                self._scans[name] = theirs
        self._problems += [problem for problem in other._problems if problem not in self._problems]
        return self

    def encoder(self, *, warn: bool = True) -> TableEncoder:
        """How the columns are read; one DataError names all that cannot be inputs.

        ``warn`` of text that reads as numbers or dates.
        """
        problems = list(self._problems)
        columns = []
        for name in self._names:
            with _collect(problems):
                columns.append(self._column(name))
        raise_problems(problems)
        encoder = TableEncoder(tuple(columns))
        if warn:
            _hint_at_text(self._scans, encoder)
        return encoder

    def _column(self, name: str) -> InputColumn:
        # A part without a single value in the column tells nothing about its type.
        types = [kind for kind in self._types[name] if not pa.types.is_null(kind)] or [pa.null()]
        kinds = sorted({column_kind(name, kind) for kind in types})
        if len(kinds) > 1:
            raise DataError(f"column {name!r} holds {' in some parts and '.join(kinds)} in others; make it one type")
        return self._scans[name].column() if kinds == [CATEGORY] else InputColumn(name, kinds[0])


def _hint_at_text(scans: dict[str, _ColumnScan], encoder: TableEncoder) -> None:
    """Warn of categories that are numbers or dates for a reader."""
    found = [scans[column.name] for column in encoder.columns if column.kind in (CATEGORY, LEVELS)]
    hint_at_text({scan.name: scan.levels for scan in found if scan.is_untold})


@contextmanager
def _collect(problems: list[str]) -> Iterator[None]:
    """Note a problem of a column, and go on with the others."""
    try:
        yield
    except DataError as error:
        if str(error) not in problems:
            problems.append(str(error))


def _columns(
    schema: pa.Schema, names: Iterable[str], scans: dict[str, _ColumnScan], problems: list[str]
) -> Iterator[InputColumn]:
    for name in names:
        with _collect(problems):
            scan = scans.get(name)
            yield scan.column() if scan is not None else InputColumn(name, column_kind(name, schema.field(name).type))


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
    asked = dict.fromkeys([*targets, *(include or ()), *exclude, *categorical])
    raise_problems([_unknown_column(name, names) for name in asked if name not in names])
    if include is not None:
        check_unique(include, "input")
        twice = [name for name in targets if name in include]
        if twice:
            raise DataError(f"the target {quote_names(twice)} cannot be an input as well")
        chosen = [name for name in include if name not in exclude]
    else:
        chosen = [name for name in names if not (name in targets or name in exclude or is_saved_index(name))]
    if not chosen:
        raise DataError("no input columns are left beside the target")
    unused = [name for name in categorical if name not in chosen]
    if unused:
        raise DataError(f"categorical {plural(unused, 'column')} {quote_names(unused)}: not among the inputs")
    return chosen


def _unknown_column(name: str, names: Sequence[str]) -> str:
    hint = ""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        hint = "; is the separator another character? (--delimiter)"
    else:
        lookup = {each.strip().lower(): each for each in names}
        close = difflib.get_close_matches(name.strip().lower(), list(lookup), n=1)
        if close:
            hint = f"; did you mean {lookup[close[0]]!r}?"
    return f"there is no column {name!r} (there are {quote_names(names)}){hint}"


def _scan(files: TableFiles, scans: dict[str, _ColumnScan], *, levels_only: bool = False) -> None:
    row = 0
    for batch in files.raw_batches(_SCAN_ROWS, columns=list(scans)):
        cells = files.cells(pa.Table.from_batches([batch]), list(scans))
        for name, scan in scans.items():
            if levels_only:
                scan.add_levels(cells.column(name))
            else:
                scan.add(cells.column(name), row)
                # Missing cells with blanks around them are none for the parser.
                scan.respelled |= files.is_text and cells.column(name).null_count > count_missing(batch.column(name))
        row += cells.num_rows
    if not row:
        raise DataError(f"{files.path}: there are no rows below the header")


def _is_boolean(name: str, scan: _ColumnScan | None, kind: Any, role: str) -> bool:
    """Whether a target is spelled as true and false; an error where it is neither that nor numeric."""
    must = "a regression target must be numeric" if role == "target" else "it must be numeric"
    if scan is not None and is_text(kind):
        found = scan.numeric_kind()
        if found not in (NUMBER, BOOLEAN):
            what = "dates or times" if found == TIME else "text"
            remedy = "" if found == TIME else unit_remedy(scan.levels)
            raise DataError(f"the {role} {name!r} holds {what}; {must}{remedy}")
        return found == BOOLEAN
    if column_kind(name, kind) not in (NUMBER, BOOLEAN):
        raise DataError(f"the {role} {name!r} holds {kind}; {must}")
    return False


class _ColumnScan:
    """Counts and levels of the cells of a column so far; ``numerals``: how the file spells numbers, if as text."""

    def __init__(self, name: str, categorical: bool, few: int, *, numerals: Numerals | None, role: str) -> None:
        self.name, self._categorical, self._few, self._numerals = name, categorical, few, numerals
        self._spelled = numerals is not None
        self._others = self._percents = 0  # numbers with the other decimal mark, and with a per cent sign
        self.respelled = False  # whether the parser of the file cannot convert all numbers
        self._what = role
        self.levels: ArrowColumn = pa.array([], pa.large_string())
        self._rows = self._cells = self._numbers = self._booleans = self._times = 0
        self._first_text: tuple[str, int] | None = None
        self._typed = self._skipped = False

    @property
    def is_late(self) -> bool:
        """Whether levels were skipped while the column looked like one of numbers, but turned out to be text."""
        return self._skipped and self._numbers < self._cells

    @property
    def is_numeric(self) -> bool:
        """Whether all cells are numbers, as the file spells them."""
        return self._spelled and not self._categorical and 0 < self._cells == self._numbers

    @property
    def other_mark(self) -> tuple[str, int] | None:
        """Value and row of the first number with the other decimal mark, if all cells are numbers with either."""
        return self._first_text if self._others and self._numbers + self._others == self._cells else None

    def add(self, column: ArrowColumn, first_row: int) -> None:
        """Add cells; ``first_row`` is the number of rows before them."""
        self._typed = not is_text(column.type)
        text = to_text(self.name, column)
        present = pc.drop_null(text)
        self._rows += len(text)
        self._cells += len(present)
        if not self._typed and not self._categorical:
            self._count(text, present, first_row)
        if self._spelled and not self._categorical and self._numbers == self._cells:
            self._skipped = True  # a column of numbers has no levels
        else:
            self.add_levels(present)

    def merge(self, other: _ColumnScan) -> None:
        """Add the scan of other cells of the column, of a table in memory."""
        # Without a single value, cells have no type.
        self._typed = any(each._typed and each._cells for each in (self, other))
        self._rows += other._rows
        self._cells += other._cells
        self._times += other._times
        self.levels = pc.unique(pa.chunked_array([self.levels, other.levels]))

    def add_levels(self, text: ArrowColumn) -> None:
        """Add the levels of cells alone."""
        present = pc.unique(pc.drop_null(to_text(self.name, text))).cast(pa.large_string())
        self.levels = pc.unique(pa.chunked_array([self.levels, present]))

    def _count(self, text: ArrowColumn, present: ArrowColumn, first_row: int) -> None:
        numerals = self._numerals or Numerals()
        numerals.look_at(self.name, text, first_row)
        if numerals.are_plain(present):  # the quick way
            self._numbers += len(present)
            return
        self.respelled = True
        texts = np.flatnonzero(~np.asarray(pc.fill_null(numerals.match(text), True)))
        if self._spelled:
            self._others += int(pc.sum(numerals.match_other(present)).as_py() or 0)
            self._percents += count_percents(present)
        self._numbers += len(present) - len(texts)
        if len(texts):
            words = pa.array(_TRUE_AND_FALSE, pa.large_string())
            self._booleans += int(pc.sum(pc.is_in(pc.utf8_lower(present), value_set=words)).as_py() or 0)
            # Only while all cells have been times: parsing takes as long as the rest of the scan.
            if self._times + len(present) == self._cells and parse_times(present) is not None:
                self._times += len(present)
            if self._first_text is None:
                row = int(texts[0])
                self._first_text = text[row].as_py(), first_row + row

    @property
    def is_untold(self) -> bool:
        """Whether only the text says what it is: neither a type nor the user has asked for categories."""
        return not (self._typed or self._categorical)

    def numeric_kind(self) -> str | None:
        """NUMBER, BOOLEAN or TIME; None for categories.

        An error for a target without cells, and for a column in which most cells are numbers, but not all.
        """
        if not self._cells and self._what != "column":
            raise empty_error(self.name, self._rows, self._what)
        if self._typed or self._categorical or not self._cells:
            return None
        if self._times == self._cells:
            return TIME
        if not self._spelled:
            return None
        if self._first_text is None:
            if 0 < self._percents < self._cells:
                raise DataError(
                    f"{self._what} {self.name!r} has per cent signs in {self._percents:,} of its {self._cells:,} "
                    "cells; write all of them in the same way"
                )
            return NUMBER
        if self._booleans == self._cells:
            return BOOLEAN
        if self._numbers > self._cells / 2:
            value, row = self._first_text
            remedy = ", or take the column as categories with --categorical" if self._what == "column" else ""
            raise DataError(
                f"{self._what} {self.name!r} is text, but most of its values are numbers; the first that is not is "
                f"{value!r} {in_row(row)}: correct or empty such cells{remedy}"
            )
        return None

    def column(self) -> InputColumn:
        """How the column is to be read."""
        kind = self.numeric_kind()
        if kind is not None:
            return InputColumn(self.name, kind, percent=self._percents > 0 if self.is_numeric else None)
        kind = CATEGORY if len(self.levels) <= self._few else LEVELS
        return InputColumn(self.name, kind, tuple(sorted(self.levels.to_pylist())))


def empty_error(name: str, rows: int, role: str = "target") -> DataError:
    """The error for a target without a single value."""
    return DataError(f"the {role} {name!r} is empty in all {rows:,} rows")
