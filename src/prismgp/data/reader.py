"""The one reader of table files.

Fits, predictions and certificates all read tables with a :class:`TableReader`, so that the same cell means the same in
each of them and gives the same error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prismgp._types import AnyArray, Array, Missing
from prismgp.data.cells import check_finite, plural, quote_names, raise_problems, to_numbers
from prismgp.data.encoder import TableBatch, TableEncoder, missing_error
from prismgp.data.encodings import BOOLEAN, NUMBER
from prismgp.data.scan import empty_error
from prismgp.data.tables import TableFiles
from prismgp.exceptions import DataError, ModelFileError

MISSING: tuple[str, ...] = get_args(Missing)  # what to do with missing cells


@dataclass(frozen=True)
class NoiseColumns:
    """Names of the columns of a table that hold the weights and the known noise variances of its rows."""

    weight: str | None = None
    variance: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.weight, self.variance) if name is not None]

    @property
    def roles(self) -> dict[str, str]:
        """What each of the columns is, for messages."""
        roles = {"weight column": self.weight, "noise column": self.variance}
        return {name: role for role, name in roles.items() if name is not None}

    @property
    def n_noise(self) -> int:
        """Columns behind the targets."""
        return 2 if self.variance is not None else 1 if self.weight is not None else 0

    def check(self, targets: Sequence[Any], inputs: Sequence[str] = ()) -> None:
        """Raise an error if these columns cannot be used with these targets and inputs."""
        if self.names and not targets:
            raise DataError("weight and noise belong to the target; name it too, e.g. from_parquet(path, target=...)")
        for name in self.names:
            if name in targets or name in inputs or self.names.count(name) > 1:
                raise DataError(f"column {name!r} holds weights or noise variances of the rows, and nothing else")
        if self.variance is not None and len(targets) > 1:
            raise DataError(
                f"{self.variance!r} holds the known noise variances of one target, and there are {len(targets)}; "
                "fit a model for each of them"
            )

    def arrange(self, y: Array, q: int, numbers: AnyArray, path: str) -> Array:
        """Targets followed by weights and variances, from targets and the named columns, (n, q + len(names)).

        ``numbers`` are those of the rows in the table, for the error about a negative number.
        """
        bad = np.argwhere(y[:, q:] < 0)
        if len(bad):
            row, column = bad[0]
            raise DataError(
                f"{path}: {self.names[column]!r} holds {y[row, q + column]:g} in row {numbers[row]:,} (from 1 on); "
                f"{'weights' if self.names[column] == self.weight else 'variances'} must not be negative"
            )
        if self.weight is None:
            y = np.insert(y, q, 1.0, axis=1)
        return y


class RowBlock(NamedTuple):
    """Consecutive rows of a table."""

    x: Array  # (n, c), the rows that are used, one number for each cell
    y: Array  # (n, q), their targets
    positions: npt.NDArray[np.intp]  # (n,), where these rows are in the table
    table: pa.Table  # all rows of the block, as they are in the file
    first_row: int  # rows of the file before the block


class TableReader:
    """Reads the rows of table files; can be pickled, and then reads on another machine.

    ``missing`` is "impute", "drop" or "error": whether rows in which an input is missing are used, left out, or an
    error. Rows in which a target is missing are left out too, unless missing cells are errors.
    ``noise`` names the columns that say how noisy rows are; they come behind the targets, and rows of weight zero are
    left out. ``booleans`` are the targets that a text file spells as true and false; None: the encoder was not learned
    from these files, so that any cell may be something else than expected.
    """

    def __init__(
        self,
        files: TableFiles,
        encoder: TableEncoder,
        targets: Sequence[str] = (),
        *,
        missing: str = "impute",
        first_row: int = 0,
        booleans: Collection[str] | None = None,
        noise: NoiseColumns | None = None,
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, list(targets), missing
        self.noise = noise or NoiseColumns()
        self._numeric = [*self.targets, *self.noise.names]  # columns of numbers that are no inputs
        self.first_row, self.booleans = first_row, booleans  # where the rows begin in their file, for messages
        # Known after a pass: rows of the files, those without a target, and by column the missing cells and the cells
        # with an unknown category.
        self.rows_read = self.rows_without_target = 0
        self.missing_cells, self.unseen = Counter[str](), Counter[str]()

    @classmethod
    def for_model(
        cls,
        files: TableFiles,
        encoder: TableEncoder | None,
        inputs: Sequence[str] | int,
        targets: Sequence[str] = (),
        *,
        silent: AnyArray | None = None,
        ignore: Collection[str] = (),
        missing: str = "impute",
        noise: NoiseColumns | None = None,
    ) -> TableReader:
        """A reader of tables for a fitted model.

        ``encoder`` is that of the model; None: columns are found by name, or by position if ``inputs`` is a number, as
        they have no names. An encoder knows which inputs the model ignores; without one, ``silent`` says so, (d,). The
        columns to ``ignore``, and those of ``noise``, cannot be inputs.
        """

        def ignore_silent(numbers: TableEncoder) -> TableEncoder:
            return numbers if silent is None else numbers.ignore(silent)

        noise = noise or NoiseColumns()
        names = [name for name in files.names if name not in ignore and name not in noise.names]
        if encoder is not None and encoder.feature_names != inputs and not encoder.positional:
            raise ModelFileError("the model's description of its table does not fit its inputs")
        if encoder is None and not isinstance(inputs, int):
            encoder = ignore_silent(TableEncoder.numeric(inputs, kind=BOOLEAN))
        if encoder is None or encoder.positional:
            count = inputs if encoder is None else len(encoder.columns)
            if len(names) != count:
                raise DataError(
                    f"{files.path}: the model has {count} inputs without names, so the data must have "
                    f"just these columns, in order; it has {len(names)}"
                )
            numbers = TableEncoder.numeric(names, kind=BOOLEAN)
            encoder = ignore_silent(numbers) if encoder is None else encoder.rename(names)
        _check_columns(files, encoder, names)
        if files.is_text:
            files.numerals.expect_percents(encoder.percents)
        return cls(files, encoder, targets, missing=missing, noise=noise)

    def encode_with(self, encoder: TableEncoder) -> TableReader:
        """The same rows, encoded as another table was."""
        _check_columns(self.files, encoder, self.files.names)
        numbers = {column.name for column in encoder.columns if column.kind == NUMBER}
        texts = [column.name for column in self.encoder.columns if column.kind != NUMBER and column.name in numbers]
        texts = [name for name in texts if not self.encoder.is_empty(name)]
        if texts and self.files.is_text:
            raise DataError(
                f"{self.files.path}: column {quote_names(texts)} holds text; the model learned it as numbers: "
                "correct or empty the cells that are none"
            )
        signs = self.encoder.percents
        for name, known in encoder.percents.items():
            if signs.get(name, known) != known:
                raise DataError(
                    f"{self.files.path}: column {name!r} has {'no per cent signs' if known else 'per cent signs'}, and "
                    f"the model learned it {'with' if known else 'without'} them: write it in the same way"
                )
        return self._like(self.files, encoder)

    def split(self, rows: int) -> Iterator[tuple[TableReader, int | None]]:
        """Readers of parts of about ``rows`` rows, with their numbers of rows, if known."""
        for files, first, count in self.files.pieces(rows):
            yield self._like(files, self.encoder, first), count if self.complete else None

    def _like(self, files: TableFiles, encoder: TableEncoder, first_row: int = 0) -> TableReader:
        """A reader of other files, or with another encoder, that treats rows as this one does."""
        return TableReader(
            files,
            encoder,
            self.targets,
            missing=self.missing,
            first_row=first_row,
            booleans=self.booleans,
            noise=self.noise,
        )

    @property
    def complete(self) -> bool:
        """Whether every row of the files is one to fit or predict."""
        kept = self.missing == "error" or (self.missing == "impute" and not self._numeric)
        return kept and self.noise.weight is None

    def blocks(self, rows: int, *, all_columns: bool = False) -> Iterator[RowBlock]:
        """Blocks of about ``rows`` rows, as the files are read.

        ``all_columns``: the tables of the blocks have every column of the files, and exactly ``rows`` rows, except for
        the last. With ``missing="error"`` the error comes at the end of the pass, so that all missing cells are
        counted; no block is returned after the first missing cell.
        """
        count, without, missing, unseen = 0, 0, Counter[str](), Counter[str]()
        for table, cells, fold_row in self._tables(rows, all_columns):
            first = self.first_row + count
            batch, y = self._read(cells, first, fold_row)
            count += table.num_rows
            unseen.update(batch.unseen)
            missing.update(batch.missing)
            unknown = np.isnan(y)
            left_out = unknown.any(axis=1)
            if left_out.any():
                missing.update({name: int(unknown[:, k].sum()) for k, name in enumerate(self._numeric)})
                without += int(left_out.sum())
            if self.missing != "impute":
                left_out = left_out | batch.incomplete
            if not left_out.any():
                if not missing or self.missing != "error":
                    yield self._with_noise(RowBlock(batch.values, y, np.arange(table.num_rows), table, first))
            elif self.missing != "error":
                kept = np.flatnonzero(~left_out)
                yield self._with_noise(RowBlock(batch.values[kept], y[kept], kept, table, first))
        self.rows_read, self.rows_without_target = count, without
        self.missing_cells, self.unseen = +missing, unseen
        if missing and self.missing == "error":
            raise self._missing_error()

    def _with_noise(self, block: RowBlock) -> RowBlock:
        """With weights and variances behind the targets, without the rows of weight zero."""
        if not self.noise.names:
            return block
        numbers = block.first_row + block.positions + 1
        y = self.noise.arrange(block.y, len(self.targets), numbers, self.files.path)
        kept = np.flatnonzero(y[:, len(self.targets)] > 0)
        return block._replace(x=block.x[kept], y=y[kept], positions=block.positions[kept])

    def _read(self, cells: pa.Table, first_row: int, fold_row: int) -> tuple[TableBatch, Array]:
        """Inputs and targets, with the problems of both in one error."""
        try:
            batch = self.encoder.read(cells, first_row=first_row, infinite=self._infinite, fold_row=fold_row)
        except DataError as error:
            try:
                self._target_values(cells, first_row=first_row)
            except DataError as other:
                raise_problems([str(error), str(other)])
            raise
        return batch, self._target_values(cells, first_row=first_row)

    def _tables(self, rows: int, all_columns: bool) -> Iterator[tuple[pa.Table, pa.Table, int]]:
        """Parts of the table, their inputs and targets with null where a text file spells a missing value.

        The number is that of the first row in its own file, so that folds do not depend on who reads the files.
        """
        # At least one column, to count rows even if the model ignores all inputs.
        there = [name for name in self.files.names if name not in self._numeric]
        names = [*self.encoder.present_columns(there), *self._numeric] or self.files.names[:1]
        kinds = {column.name: column.kind for column in self.encoder.columns}
        numeric = self.encoder.spelled_numbers.union(self._numeric)
        tables: Iterator[tuple[pa.Table, int]]
        if all_columns:
            tables = ((table, 0) for table in _rebatch(self.files.raw_batches(rows), rows))  # not of a fit: no folds
        else:
            # Numbers are converted while the text is parsed if every cell is known to be one.
            sure = {name for name in numeric if kinds.get(name) != BOOLEAN}
            numbers = set() if self.booleans is None else sure - set(self.booleans)
            batches = self.files.numbered_batches(rows, columns=names, numbers=numbers)
            numbered = ((batch, self.first_row + before) for batch, before in batches if batch.num_rows)
            tables = ((pa.Table.from_batches([batch]), number) for batch, number in numbered)
        first, levels = self.first_row, self.encoder.spelled_missing
        for table, fold_row in tables:
            cells = self.files.cells(table, names, numbers=numeric, levels=levels, first_row=first)
            yield table, cells, fold_row
            first += table.num_rows

    def _target_values(self, cells: pa.Table, *, first_row: int) -> Array:
        y = np.empty((cells.num_rows, len(self._numeric)))
        for k, name in enumerate(self._numeric):
            values = to_numbers(name, cells[name], boolean=True, first_row=first_row)
            y[:, k] = check_finite(name, values, first_row, self._infinite)
        return y

    @property
    def _infinite(self) -> str:
        """Rows with infinite numbers are left out if those with missing ones are."""
        return "missing" if self.missing == "drop" else "error"

    def _missing_error(self) -> DataError:
        counts = {name: self.missing_cells[name] for name in (*self.encoder.input_names, *self._numeric)}
        error = missing_error(counts)
        for name in self.targets:
            if self.booleans is not None and counts[name] == self.rows_read:
                error = empty_error(name, counts[name])
        return DataError(f"{self.files.path}: {error}")

    def no_rows_error(self) -> DataError:
        """The error for a table that has no complete row."""
        why = "there are no rows below the header"
        if self.rows_read:
            remedy = "; exclude the emptiest columns" if self.booleans is not None else ""
            why = f"every one of the {self.rows_read:,} rows has a missing value{remedy}"
            if self.rows_without_target == self.rows_read:
                why = f"the target is empty in all {self.rows_read:,} rows"
            if self.noise.weight is not None:
                why = f"every one of the {self.rows_read:,} rows has a missing value or weight zero"
        return DataError(f"{self.files.path}: {why}")


def _rebatch(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly ``rows`` rows; the last one has the remaining rows."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            part = rest.slice(0, rows - count)
            rest = rest.slice(part.num_rows)
            waiting.append(part)
            count += part.num_rows
            if count == rows:
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _check_columns(files: TableFiles, encoder: TableEncoder, names: list[str]) -> None:
    """Raise an error that lists the inputs that a table does not have."""
    absent = encoder.missing_columns(names)
    if absent:
        raise DataError(
            f"{files.path}: {plural(absent, 'input column')} {quote_names(absent)} missing; "
            f"the file has {quote_names(names)}: add or rename {'it' if len(absent) == 1 else 'them'}"
        )
