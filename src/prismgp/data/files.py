"""Rows of table files: the one reader of tables, and sources that read files larger than memory on every pass.

Fits, predictions and certificates all read tables with a :class:`TableReader`, so that the same cell means the same in
each of them and gives the same error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prismgp._types import Array
from prismgp._validate import check_choice
from prismgp.data.encoder import (
    TableBatch,
    TableEncoder,
    check_finite,
    missing_error,
    plural,
    quote_names,
    raise_problems,
    to_numbers,
    warn_unseen,
)
from prismgp.data.encodings import NUMBER
from prismgp.data.row_noise import NoiseColumns
from prismgp.data.scan import MAX_CATEGORIES, empty_error, scan_files
from prismgp.data.sources import MOMENT_ROWS, ArraySource, Block, Source, rechunk
from prismgp.data.tables import PARQUET_SUFFIXES, TEXT_SUFFIXES, TableFiles, open_tables
from prismgp.exceptions import DataError, ModelFileError

if TYPE_CHECKING:
    from prismgp.data.dask import DaskFileSource  # the same


MISSING = ("impute", "drop", "error")  # what to do with missing cells


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
        # Known after a pass: rows of the files, those of them without a target, and by column the missing cells and
        # those with a category that the encoder does not know.
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
        ignore: Collection[str] = (),
        missing: str = "impute",
    ) -> TableReader:
        """A reader of tables for a fitted model.

        ``encoder`` is that of the model; None: columns are found by name, or by position if ``inputs`` is a number, as
        they have no names. The columns to ``ignore`` cannot be inputs.
        """
        names = [name for name in files.names if name not in ignore]
        if encoder is not None and encoder.feature_names != inputs and not encoder.positional:
            raise ModelFileError("the model's description of its table does not fit its inputs")
        if encoder is None and not isinstance(inputs, int):
            encoder = TableEncoder.numeric(inputs)
        if encoder is None or encoder.positional:
            count = inputs if encoder is None else len(encoder.columns)
            if len(names) != count:
                raise DataError(
                    f"{files.path}: the model has {count} inputs without names, so the data must have "
                    f"just these columns, in order; it has {len(names)}"
                )
            encoder = TableEncoder.numeric(names) if encoder is None else encoder.rename(names)
        _check_columns(files, encoder, names)
        return cls(files, encoder, targets, missing=missing)

    def encode_with(self, encoder: TableEncoder) -> TableReader:
        """The same rows, encoded as another table was."""
        _check_columns(self.files, encoder, self.files.names)
        numbers = {column.name for column in encoder.columns if column.kind == NUMBER}
        texts = [column.name for column in self.encoder.columns if column.kind != NUMBER and column.name in numbers]
        texts = [name for name in texts if not self.encoder.is_empty(name)]
        if texts and self.files.is_text:
            raise DataError(
                f"{self.files.path}: column {quote_names(texts)} holds text; the model learned it as numbers"
            )
        return TableReader(
            self.files, encoder, self.targets, missing=self.missing, booleans=self.booleans, noise=self.noise
        )

    def split(self, rows: int) -> Iterator[tuple[TableReader, int | None]]:
        """Readers of parts of about ``rows`` rows, with their numbers of rows, if known."""
        for files, first, count in self.files.pieces(rows):
            part = TableReader(
                files,
                self.encoder,
                self.targets,
                missing=self.missing,
                first_row=first,
                booleans=self.booleans,
                noise=self.noise,
            )
            yield part, count if self.complete else None

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
        for table, cells in self._tables(rows, all_columns):
            first = self.first_row + count
            batch, y = self._read(cells, first)
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

    def _read(self, cells: pa.Table, first_row: int) -> tuple[TableBatch, Array]:
        """Inputs and targets, with the problems of both in one error."""
        try:
            batch = self.encoder.read(cells, first_row=first_row, infinite=self._infinite)
        except DataError as error:
            try:
                self._target_values(cells, first_row=first_row)
            except DataError as other:
                raise_problems([str(error), str(other)])
            raise
        return batch, self._target_values(cells, first_row=first_row)

    def _tables(self, rows: int, all_columns: bool) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Parts of the table, and their inputs and targets with null where a text file spells a missing value."""
        names = [*self.encoder.input_names, *self._numeric]
        numeric = {column.name for column in self.encoder.columns if column.kind == NUMBER} | set(self._numeric)
        if all_columns:
            tables = _rebatch(self.files.raw_batches(rows), rows)
        else:
            # Numbers are converted while the text is parsed if every cell is known to be one.
            numbers = set() if self.booleans is None else numeric - set(self.booleans)
            batches = self.files.raw_batches(rows, columns=names, numbers=numbers)
            tables = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        first = self.first_row
        for table in tables:
            yield table, self.files.cells(table, names, numbers=numeric, first_row=first)
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
            f"the file has {quote_names(names)}"
        )


def from_parquet(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    missing: str = "impute",
    max_categories: int = MAX_CATEGORIES,
    weight: str | None = None,
    noise: str | None = None,
    client: Any = None,
) -> FileSource | DaskFileSource:
    """Rows of a Parquet file, or of all Parquet files of a folder, to fit or to predict.

    Rows are read again on every pass, in chunks, each while the previous one is used in the computations: memory is
    that of a few chunks. The files must not change while they are in use.

    Parameters
    ----------
    path : path, or sequence of paths
        A file, a folder (with its subfolders, in the order of the names), or files.
    target : str, sequence of str, or None
        The column or columns to predict; None: rows to predict from.
    columns : sequence of str, optional
        Inputs, in order. None: all but the target, ``exclude`` and saved row indices.
    exclude : collection of str
        Columns to ignore.
    categorical : collection of str
        Whole numbers to be taken as categories. Text always is, unless it is ISO 8601 throughout: then it is time.
    missing : {"impute", "drop", "error"}, default "impute"
        What to do with rows in which an input is missing: use them, leave them out, or raise an error. Numbers and
        times are imputed by the median of the training rows, with an indicator; missing categories are a category.
        Rows in which a target is missing are left out, unless they are an error. Infinity is always an error.
    max_categories : int, default 30
        Each of up to so many categories has an indicator. Columns with more are encoded by the effect of each
        category on the target, shrunken and out of fold, and by its frequency.
    weight : str, optional
        Column with the weights of the rows, the ``sample_weight`` of :meth:`SSGPRegressor.fit`; not an input.
    noise : str, optional
        Column with the known variances of the targets' errors, its ``noise_variance``; not an input.
    client : distributed.Client, str or None, default None
        A Dask client, or the address of a scheduler: every pass over the rows is done by its workers, each of which
        reads its own part. They must reach the files by the same path. None: by this process.

    Returns
    -------
    FileSource, or DaskFileSource with ``client``

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np, pandas as pd
    >>> from prismgp import SSGPRegressor
    >>> from prismgp.data import from_parquet
    >>> rng = np.random.default_rng(0)
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for part in range(3):
    ...     frame = pd.DataFrame({"a": rng.uniform(-3, 3, 200), "b": rng.uniform(size=200)})
    ...     frame.assign(y=np.sin(frame.a)).to_parquet(folder / f"part-{part}.parquet")
    >>> source = from_parquet(folder, target="y")
    >>> source
    FileSource(600 rows, 2 inputs, target 'y')
    >>> model = SSGPRegressor(16, random_state=0).fit(source)
    >>> model.predict(source).shape
    (600,)
    """
    return file_source(
        open_tables(path, suffixes=PARQUET_SUFFIXES),
        target,
        columns=columns,
        exclude=exclude,
        categorical=categorical,
        missing=missing,
        max_categories=max_categories,
        weight=weight,
        noise=noise,
        client=client,
    )


def from_csv(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    missing: str = "impute",
    max_categories: int = MAX_CATEGORIES,
    weight: str | None = None,
    noise: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    client: Any = None,
) -> FileSource | DaskFileSource:
    """Rows of a CSV file, or of all CSV files of a folder; see :func:`from_parquet`.

    Text is parsed again on every pass: convert large tables to Parquet once.

    Parameters
    ----------
    path : path, or sequence of paths
        .csv or .tsv, either also .gz, with a header.
    target, columns, exclude, categorical, missing, max_categories, weight, noise
        As for :func:`from_parquet`.
    delimiter : str, optional
        None: the one of comma, semicolon, tab and vertical bar that splits the header; where that does not decide, a
        comma, or a tab for .tsv.
    decimal : {".", ","}, optional
        Decimal mark of numbers. The other mark, blanks and apostrophes may separate thousands, and 12.5% is 0.125.
        None: a point; a comma separates thousands only if it also separates the columns, as 1,234 may be 1.234
        elsewhere.
    encoding : str, optional
        None: UTF-8, or what the byte order mark says.
    client : distributed.Client, str or None, default None
        As for :func:`from_parquet`; a file is read by one worker, so use several files.
    """
    return file_source(
        open_tables(path, delimiter=delimiter, decimal=decimal, encoding=encoding, suffixes=TEXT_SUFFIXES),
        target,
        columns=columns,
        exclude=exclude,
        categorical=categorical,
        missing=missing,
        max_categories=max_categories,
        weight=weight,
        noise=noise,
        client=client,
    )


def file_source(
    files: TableFiles,
    target: str | Sequence[str] | None,
    *,
    columns: Sequence[str] | None,
    exclude: Collection[str],
    categorical: Collection[str],
    missing: str,
    max_categories: int,
    client: Any,
    weight: str | None = None,
    noise: str | None = None,
) -> FileSource | DaskFileSource:
    """Rows of opened files; see :func:`from_parquet`."""
    check_choice("from_csv" if files.is_text else "from_parquet", "missing", missing, MISSING)
    targets = _to_list(target)
    columns_of_noise = NoiseColumns(weight, noise)
    columns_of_noise.check(targets, _to_list(columns))
    encoder, booleans = scan_files(
        files,
        [*targets, *columns_of_noise.names],
        columns=None if columns is None else _to_list(columns),
        exclude=_to_list(exclude),
        categorical=_to_list(categorical),
        max_categories=max_categories,
    )
    encoder = replace(encoder, targets=tuple(targets))  # the columns of noise are no inputs, and no targets either
    reader = TableReader(files, encoder, targets, missing=missing, booleans=booleans, noise=columns_of_noise)
    single = isinstance(target, str)
    if client is None:
        return FileSource(reader, single=single)
    from prismgp.data.cluster import Cluster  # an optional extra, and a weight at start-up
    from prismgp.data.dask import DaskFileSource  # the same

    return DaskFileSource(reader, Cluster(client), single=single)


def _to_list(names: Collection[str] | None) -> list[str]:
    """A single name may be given for a list of one."""
    return [] if names is None else [names] if isinstance(names, str) else list(names)


class FileSource(Source):
    """Rows of table files, read block by block; made by :func:`from_parquet` and :func:`from_csv`.

    Every cell is one number, which the model's encoder encodes.

    Attributes
    ----------
    n_rows, n_inputs, n_outputs : int
        Rows that are used, columns of inputs, targets.
    feature_names : list of str
        Columns of inputs.
    encoder : TableEncoder
    targets : list of str
    rows_read, rows_without_target : int
        Rows of the files, also those that are left out, and those of them that have no target.
    """

    encoder: TableEncoder

    def __init__(self, reader: TableReader, *, single: bool = True, n_rows: int | None = None) -> None:
        self._reader = reader
        self.encoder, self.targets, self.single = reader.encoder, reader.targets, single
        self.feature_names = reader.encoder.input_names
        self.n_inputs, self.n_outputs = len(self.feature_names), len(self.targets)
        self.n_noise = reader.noise.n_noise
        complete = reader.complete
        known = (reader.files.n_rows if n_rows is None else n_rows) if complete else n_rows
        self.n_rows = known if known is not None else sum(len(x) for x, _ in self._read(MOMENT_ROWS))
        if complete:
            reader.rows_read = self.n_rows
        if not self.n_rows:
            raise reader.no_rows_error()

    @property
    def rows_read(self) -> int:
        return self._reader.rows_read

    @property
    def rows_without_target(self) -> int:
        return self._reader.rows_without_target

    def __repr__(self) -> str:
        target = f", target {', '.join(map(repr, self.targets))}" if self.targets else ""
        return f"FileSource({self.n_rows:,} rows, {self.n_inputs} inputs{target})"

    def encode_with(self, encoder: TableEncoder) -> FileSource:
        return FileSource(self._reader.encode_with(encoder), single=self.single, n_rows=self.n_rows)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Rows, (n, c) and (n, q), float64, in blocks of exactly ``rows``."""
        return rechunk(self._read(rows), rows)

    def load(self) -> ArraySource:
        # Filled block by block: no second copy of all rows.
        x, y = np.empty((self.n_rows, self.n_inputs)), np.empty((self.n_rows, self.n_outputs + self.n_noise))
        start = 0
        for x_block, y_block in self._read(MOMENT_ROWS):
            room = slice(start, start + len(x_block))
            start += len(x_block)
            if start > self.n_rows:  # the file grows; the error comes at its end
                continue
            x[room], y[room] = x_block, y_block
        return ArraySource(x, y, n_noise=self.n_noise)

    def _read(self, rows: int) -> Iterator[Block]:
        for block in self._reader.blocks(rows):
            yield block.x, block.y
        warn_unseen(self._reader.unseen)
