"""From tables with named columns of numbers, text and times to the model's matrix, in the same way every time.

Two steps. :meth:`TableEncoder.read` makes one number of every cell: categories become their place in the list of
levels, times seconds, and missing cells NaN. :meth:`TableEncoder.encode` makes the model's inputs of these numbers, as
the fit has learned from its rows (``encodings.py``). Which columns are inputs and what they hold is decided by
``scan.py``. All of it is saved with the model, so that later tables are encoded in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._system import warn_caller
from prismgp._types import AnyArray, Array
from prismgp.data.cells import (
    MISSING_TEXT,
    ArrowColumn,
    absent_error,
    check_finite,
    check_unique,
    decode,
    from_strings,
    is_text,
    plural,
    raise_problems,
    to_floats,
    to_numbers,
    to_seconds,
    to_text,
    trim,
)
from prismgp.data.encodings import (
    BOOLEAN,
    CATEGORY,
    KINDS,
    LEVELS,
    NUMBER,
    TIME,
    EffectEncoding,
    Encoding,
    NumberEncoding,
    TimeEncoding,
    encoding_from_dict,
    learn_encodings,
    mark_folds,
)
from prismgp.data.sources import Source
from prismgp.exceptions import DataError, ModelFileError

# -- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputColumn:
    """One column of a table and what it holds."""

    name: str
    kind: str  # one of KINDS
    categories: tuple[str, ...] = ()  # sorted; empty unless the kind is CATEGORY or LEVELS
    # Whether its numbers have per cent signs in text files; None: not known. It is not part of what columns are.
    percent: bool | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, item: Any) -> InputColumn:
        """Read the description in a model file; ModelFileError for anything malformed."""
        if not isinstance(item, dict) or set(item) - {"percent"} != {"name", "kind", "categories", "encoding"}:
            raise ModelFileError("a column of the table has not just 'name', 'kind', 'categories' and 'encoding'")
        name, kind, categories = item["name"], item["kind"], item["categories"]
        if not is_clean_text(name):
            raise ModelFileError("a column of the table has no proper name")
        if kind not in KINDS:
            raise ModelFileError(f"column {name!r} of the table is of an unknown kind")
        if not isinstance(categories, list) or not all(is_clean_text(value) for value in categories):
            raise ModelFileError(f"the categories of column {name!r} are not a list of texts")
        if categories and kind not in (CATEGORY, LEVELS):
            raise ModelFileError(f"column {name!r} of kind {kind!r} has {len(categories)} categories")
        if any(later <= earlier for earlier, later in pairwise(categories)):
            raise ModelFileError(f"the categories of column {name!r} are not sorted and distinct")
        if "percent" in item and (kind != NUMBER or not isinstance(item["percent"], bool)):
            raise ModelFileError(f"the per cent signs of column {name!r} are not said by true or false")
        return cls(name, kind, tuple(categories), item.get("percent"))


def is_clean_text(value: Any) -> bool:
    """Whether this is a string that can be written as UTF-8; JSON allows lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


# -- all columns of a table --------------------------------------------------------------------------


class TableBatch(NamedTuple):
    """A batch as it is read; counts are by column, only for columns that have any."""

    values: Array  # (n, c), one number for each cell; see encodings.py
    incomplete: AnyArray  # (n,), rows with a missing cell
    missing: dict[str, int]  # missing cells
    unseen: dict[str, int]  # cells with a category that training did not have


@dataclass(frozen=True)
class TableEncoder:
    """Encodes tables as the training table was: :meth:`read` its cells, then :meth:`encode` them as inputs."""

    columns: tuple[InputColumn, ...]
    targets: tuple[str, ...] = ()  # the columns that were learned; not needed at prediction
    encodings: tuple[Encoding, ...] | None = None  # of the columns; None before :meth:`learn`
    positional: bool = False  # whether the columns are those of an array, which have no names
    # Columns that no prediction of a fitted model depends on: missing or unseen cells there do not count, and a table
    # need not have them.
    ignored: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def numeric(cls, names: Iterable[str], *, kind: str = NUMBER, positional: bool = False) -> TableEncoder:
        """The encoder of a purely numeric table without missing cells.

        ``kind=BOOLEAN``: the table had numbers, and it is not known which of them were true and false.
        """
        columns = tuple(InputColumn(name, kind) for name in names)
        return cls(columns, encodings=(NumberEncoding(None),) * len(columns), positional=positional)

    # -- names -----------------------------------------------------------------------------------

    def rename(self, names: Sequence[str]) -> TableEncoder:
        """The same encoder for columns of other names."""
        columns = tuple(replace(each, name=name) for each, name in zip(self.columns, names, strict=True))
        ignored = (name for each, name in zip(self.columns, names, strict=True) if each.name in self.ignored)
        return replace(self, columns=columns, ignored=frozenset(ignored))

    @property
    def input_names(self) -> list[str]:
        """Columns, in order."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Inputs of the model, in order."""
        return [name for own in self.features_of_columns.values() for name in own]

    @property
    def features_of_columns(self) -> dict[str, list[str]]:
        """Inputs of the model that are made from each column."""
        return {column.name: each.names(column) for column, each in zip(self.columns, self._learned, strict=True)}

    @property
    def n_features(self) -> int:
        """Inputs of the model."""
        return len(self._fill)

    def missing_columns(self, names: Collection[str]) -> list[str]:
        """Columns that are not among the names, without ignored ones."""
        there = self.ignored.union(names)
        return [name for name in self.input_names if name not in there]

    def present_columns(self, names: Collection[str]) -> list[str]:
        """Columns that are among the names, in the order of the encoder."""
        there = set(names)
        return [name for name in self.input_names if name in there]

    @property
    def percents(self) -> dict[str, bool]:
        """Whether numbers have per cent signs, of the columns that count and of which that is known."""
        known = {each.name: each.percent for each in self.columns if each.name not in self.ignored}
        return {name: percent for name, percent in known.items() if percent is not None}

    @property
    def spelled_numbers(self) -> set[str]:
        """Columns that text files spell as numbers, or as true and false."""
        return {each.name for each in self.columns if each.kind in (NUMBER, BOOLEAN)}

    @property
    def spelled_missing(self) -> dict[str, list[str]]:
        """Levels of columns that look like missing cells in a text file; a frame may have them."""
        found = {each.name: [level for level in MISSING_TEXT if level in each.categories] for each in self.columns}
        return {name: levels for name, levels in found.items() if levels}

    # -- from cells to numbers -------------------------------------------------------------------

    def read(
        self,
        data: pa.Table | pa.RecordBatch,
        *,
        first_row: int = 0,
        infinite: str = "error",
        fold_row: int | None = None,
    ) -> TableBatch:
        """Make numbers of the cells of a batch and count missing and unseen ones; neither is an error.

        Those of columns that the model ignores are not counted, and columns beyond the inputs not read. ``first_row``:
        where the batch starts in its file. One DataError names all absent or duplicate columns, infinite numbers,
        unless ``infinite="missing"``, and cells that cannot be of the column's kind. ``fold_row`` is the first row's
        number for its fold; None: ``first_row``.
        """
        absent = self.missing_columns(data.schema.names)
        if absent:
            raise absent_error(absent, data.schema.names)
        check_unique([name for name in data.schema.names if name in set(self.input_names)], "column")
        # Filled column by column, so in Fortran order; later steps copy rows together anyway.
        values = np.zeros((data.num_rows, len(self.columns)), order="F")
        incomplete = np.zeros(data.num_rows, dtype=bool)
        missing: dict[str, int] = {}
        unseen: dict[str, int] = {}
        problems: list[str] = []
        for k, column in enumerate(self.columns):
            try:
                place = data.schema.get_field_index(column.name)
                cells = pa.nulls(data.num_rows) if place < 0 else data.column(place)
                of_day = column.kind == TIME and self._is_time_of_day(k)
                values[:, k], absent_cells = _read_column(column, cells, first_row, infinite, of_day=of_day)
                if column.kind in (CATEGORY, LEVELS):
                    values[:, k] = mark_folds(values[:, k], first_row if fold_row is None else fold_row)
            except DataError as error:
                problems.append(str(error))
                continue
            if column.name in self.ignored:
                continue
            if absent_cells.any():
                missing[column.name] = int(absent_cells.sum())
                incomplete |= absent_cells
            unknown = int((values[:, k] < 0).sum()) if column.kind in (CATEGORY, LEVELS) else 0
            if unknown:
                unseen[column.name] = unknown
        raise_problems(problems)
        return TableBatch(values, incomplete, missing, unseen)

    def _is_time_of_day(self, k: int) -> bool:
        """Whether a column of times was one of times of day, which begin in the first seconds of 1970."""
        encoding = None if self.encodings is None else self.encodings[k]
        return isinstance(encoding, TimeEncoding) and 0.0 <= encoding.origin < 86_400.0

    # -- from numbers to inputs ------------------------------------------------------------------

    @property
    def _learned(self) -> tuple[Encoding, ...]:
        if self.encodings is None:
            raise RuntimeError("the encoder has not learned from the rows of a fit")
        return self.encodings

    def learn(self, source: Source) -> TableEncoder:
        """Learn the encodings from the rows of a fit, as they are read."""
        learned = replace(self, encodings=learn_encodings(source, self.columns))
        check_unique(learned.feature_names, "encoded column")
        return learned

    def learn_folds(self, source: Source) -> TableEncoder:
        """Learn again, from the rows of the fit, the out-of-fold effects: only :meth:`encode_training` needs them."""
        if not any(isinstance(each, EffectEncoding) for each in self._learned):
            return self
        again = learn_encodings(source, self.columns)
        return replace(
            self, encodings=tuple(own.with_folds(other) for own, other in zip(self._learned, again, strict=True))
        )

    def ignore(self, silent: AnyArray) -> TableEncoder:
        """For a model that ignores the inputs marked in ``silent``, (d,): columns with only such inputs are ignored."""
        names = {name for name, each in zip(self.feature_names, silent, strict=True) if each}
        ignored = (name for name, own in self.features_of_columns.items() if names.issuperset(own))
        return replace(self, ignored=frozenset(ignored))

    def is_empty(self, name: str) -> bool:
        """Whether a column had not a single value when its table was scanned."""
        return any(each.name == name and each.kind == CATEGORY and not each.categories for each in self.columns)

    @property
    def non_numeric_names(self) -> list[str]:
        """Columns that hold neither numbers nor booleans."""
        return [column.name for column in self.columns if column.kind not in (NUMBER, BOOLEAN)]

    @property
    def is_numeric(self) -> bool:
        """Whether all columns are numbers or booleans."""
        return not self.non_numeric_names

    @property
    def is_identity(self) -> bool:
        """Whether the inputs are the numbers as they are read."""
        return all(isinstance(each, NumberEncoding) and not each.has_indicator for each in self._learned)

    def encode(self, values: AnyArray) -> Array:
        """Inputs of the model, (n, d), of rows as they are read, (n, c); not finite where a cell is unknown."""
        return np.concatenate([each.encode(values[:, k]) for k, each in enumerate(self._learned)], axis=1)

    def encode_training(self, values: AnyArray) -> Array:
        """As :meth:`encode`, for the rows of the fit: out of fold, and with missing numbers imputed."""
        parts = [each.encode_training(values[:, k]) for k, each in enumerate(self._learned)]
        return self.impute(np.concatenate(parts, axis=1))

    @cached_property
    def _fill(self) -> Array:
        return np.array([value for each in self._learned for value in each.fill])

    def impute(self, x: Array) -> Array:
        """Inputs, (n, d), with NaN of missing numbers replaced as in training."""
        return np.where(np.isnan(x), self._fill, x)

    @cached_property
    def indicators(self) -> npt.NDArray[np.intp]:
        """For every input, the column of its missing indicator, (d,); -1 if it has no indicator."""
        widths = [len(each.fill) for each in self._learned]
        ends = np.cumsum(widths)
        found = np.full(int(ends[-1]), -1)
        for each, width, end in zip(self._learned, widths, ends, strict=True):
            if each.has_indicator:
                found[end - width : end - 1] = end - 1
        return found

    @property
    def has_indicators(self) -> bool:
        """Whether training had missing numbers."""
        return bool((self.indicators >= 0).any())

    def forget_indicators(self, x: Array) -> Array:
        """Inputs, (n, d), with NaN also in the indicators of missing cells."""
        x = np.array(x)
        for value in np.flatnonzero(self.indicators >= 0):
            x[np.isnan(x[:, value]), self.indicators[value]] = np.nan
        return x

    # -- model files -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        columns = [
            {
                "name": column.name,
                "kind": column.kind,
                "categories": list(column.categories),
                "encoding": encoding.to_dict(),
                **({} if column.percent is None else {"percent": column.percent}),
            }
            for column, encoding in zip(self.columns, self._learned, strict=True)
        ]
        return {"targets": list(self.targets), "positional": self.positional, "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableEncoder:
        """Read what :meth:`to_dict` wrote; ModelFileError for anything else, as files are not trusted."""
        if not isinstance(data, dict) or set(data) != {"targets", "positional", "columns"}:
            raise ModelFileError("the table description is not an object with 'targets', 'positional' and 'columns'")
        targets, columns = data["targets"], data["columns"]
        if not isinstance(targets, list) or not all(is_clean_text(name) for name in targets):
            raise ModelFileError("the table's targets are not a list of names")
        if not isinstance(data["positional"], bool):
            raise ModelFileError("the table's columns are neither positional nor named")
        if not isinstance(columns, list) or not columns:
            raise ModelFileError("the table's columns are not a list of at least one")
        inputs = tuple(InputColumn.from_dict(item) for item in columns)
        learned = tuple(encoding_from_dict(item["encoding"], each) for item, each in zip(columns, inputs, strict=True))
        encoder = cls(inputs, tuple(targets), learned, data["positional"])
        names = encoder.input_names
        if len(set(names)) < len(names) or len(set(encoder.feature_names)) < len(encoder.feature_names):
            raise ModelFileError("the table names a column twice")
        if len({*names, *targets}) < len(names) + len(targets):
            raise ModelFileError("a target of the table is also an input, or named twice")
        return encoder


def warn_unseen(unseen: dict[str, int]) -> None:
    """Warn about categories that training did not have, column by column."""
    for name, count in unseen.items():
        message = f"column {name!r}: {count:,} value(s) unseen in training; their predictions are averages with "
        warn_caller(f"{message}wider intervals")


def missing_error(counts: dict[str, int]) -> DataError:
    """The error for missing cells, with their number in every column."""
    found = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    return DataError(
        f"missing values in {plural(found, 'column')} {', '.join(found)}; impute them with --missing impute or leave "
        'these rows out with --missing drop (in Python: missing="impute" or "drop")'
    )


def _read_column(
    column: InputColumn, cells: ArrowColumn, first_row: int, infinite: str, *, of_day: bool = False
) -> tuple[Array, AnyArray]:
    """Numbers of a column's cells, (n,), and which are missing."""
    if is_text(cells.type) or (pa.types.is_dictionary(cells.type) and is_text(cells.type.value_type)):
        cells = trim(decode(cells))
    if cells.null_count == len(cells):  # whatever the type, which is arbitrary without a value
        cells = pa.nulls(len(cells))
    if column.kind not in (CATEGORY, LEVELS):
        if column.kind == TIME:
            values = to_seconds(column.name, cells, of_day=of_day, first_row=first_row)
        else:
            values = to_numbers(column.name, cells, boolean=column.kind == BOOLEAN, first_row=first_row)
            values = check_finite(column.name, values, first_row, infinite)
        return values, np.isnan(values)
    if not column.categories:  # training had no value: any value is unseen
        missing = to_floats(pc.is_null(cells)) > 0.0
        return np.where(missing, 0.0, -1.0), missing
    # Codes become floats where cells are missing. Only then it matters whether all levels are whole numbers.
    codes = pa.types.is_floating(cells.type) and all(re.fullmatch("-?[0-9]+", level) for level in column.categories)
    text, categories = to_text(column.name, cells, codes=codes), from_strings(column.categories)
    missing, codes = to_floats(pc.is_null(text)) > 0.0, to_floats(pc.index_in(text, value_set=categories))
    return np.where(missing, len(column.categories), np.nan_to_num(codes, nan=-1.0)), missing
