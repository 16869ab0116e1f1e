"""Rows in files larger than memory: Parquet and CSV, one file or a folder, read again on every pass."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp._validate import check_choice
from prismgp.data._columns import NUMBER, empty_column, to_numbers, unusable
from prismgp.data._folder import TableFiles, open_tables
from prismgp.data._scan import learn_encoder
from prismgp.data._source import ArraySource, Block, Source, rechunked
from prismgp.data._table import TableEncoder, missing_error, unseen_message
from prismgp.exceptions import DataError, PrismGPWarning

__all__ = ["FileSource", "file_source", "from_csv", "from_parquet"]

_PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_MISSING = ("error", "drop")


def from_parquet(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    missing: str = "error",
    max_categories: int = 100,
) -> FileSource:
    """Rows of a Parquet file, or of all Parquet files of a folder, as something to fit or predict.

    Rows are read in chunks, on every pass anew, while the chunk before is computed with: memory is that of a few
    chunks. The files must stay as they are while they are in use.

    Parameters
    ----------
    path : path, or sequence of paths
        A file, a folder (searched with its folders, in the order of the names), or files.
    target : str, sequence of str, or None
        The column or columns to predict; None: rows to predict from.
    columns : sequence of str, optional
        Inputs, in order. None: all but the target, ``exclude`` and saved row indices.
    exclude : collection of str
        Columns that are no inputs.
    categorical : collection of str
        Whole numbers to be taken as categories. Text always is: one indicator column for each category, as
        on the command line, remembered with the model.
    missing : {"error", "drop"}, default "error"
        What to do with rows in which an input or a target is missing or infinite.
    max_categories : int, default 100
        A text column with more distinct values is refused.

    Returns
    -------
    FileSource

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
    files = open_tables(path, kinds=_PARQUET)
    return file_source(
        files,
        target,
        columns=columns,
        exclude=exclude,
        categorical=categorical,
        missing=missing,
        max_categories=max_categories,
    )


def from_csv(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    missing: str = "error",
    max_categories: int = 100,
    delimiter: str | None = None,
) -> FileSource:
    """Rows of a CSV file, or of all CSV files of a folder; see :func:`from_parquet`.

    Text must be parsed on every pass: of many rows make Parquet files once.

    Parameters
    ----------
    path : path, or sequence of paths
        .csv or .tsv, either also .gz; UTF-8, with a header.
    target, columns, exclude, categorical, missing, max_categories
        As for :func:`from_parquet`.
    delimiter : str, optional
        None: a comma, or a tab for .tsv.
    """
    files = open_tables(path, delimiter=delimiter, kinds=_TEXT)
    return file_source(
        files,
        target,
        columns=columns,
        exclude=exclude,
        categorical=categorical,
        missing=missing,
        max_categories=max_categories,
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
) -> FileSource:
    """Rows of opened files; see :func:`from_parquet`."""
    check_choice("from_csv" if files.is_text else "from_parquet", "missing", missing, _MISSING)
    targets = [] if target is None else [target] if isinstance(target, str) else list(target)
    encoder = learn_encoder(
        files, targets, columns=columns, exclude=exclude, categorical=categorical, max_categories=max_categories
    )
    return FileSource(files, encoder, targets, missing=missing, single=isinstance(target, str))


class FileSource(Source):
    """Rows of table files, encoded block by block; made by :func:`from_parquet` and :func:`from_csv`.

    Attributes
    ----------
    n_rows, n_inputs, n_outputs : int
        Rows without missing values, encoded inputs, targets.
    feature_names : list of str
        Encoded inputs.
    encoder : TableEncoder
    targets : list of str
    rows_read : int
        Rows of the files, those with missing values too; known after a pass.
    """

    rows_read: int = 0

    def __init__(
        self, files: TableFiles, encoder: TableEncoder, targets: list[str], *, missing: str, single: bool = True
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, targets, missing
        self.single = single  # one target that makes a one-dimensional y
        self.feature_names = encoder.feature_names
        self.n_inputs, self.n_outputs = len(self.feature_names), len(targets)
        known = files.n_rows if missing == "error" else None
        # Where the files do not tell, the pass that counts also takes the moments, which are needed anyway.
        self.n_rows = known if known is not None else self.moments[0].count
        if not self.n_rows:
            why = "there are no rows below the header"
            if self.rows_read:
                why = f"every one of the {self.rows_read:,} rows has a missing value; exclude the emptiest columns"
            raise DataError(f"{files.path}: {why}")

    def __repr__(self) -> str:
        target = f", target {', '.join(map(repr, self.targets))}" if self.targets else ""
        return f"FileSource({self.n_rows:,} rows, {self.n_inputs} inputs{target})"

    def encoded_by(self, encoder: TableEncoder) -> FileSource:
        """The same rows, encoded as another table was; targets stay."""
        absent = encoder.missing_columns(self.files.names)
        if absent:
            raise DataError(f"{self.files.path}: input columns {', '.join(map(repr, absent))} missing")
        return FileSource(self.files, encoder, self.targets, missing=self.missing, single=self.single)

    def blocks(self, rows: int) -> Iterator[Block]:
        """Encoded rows, (n, d) and (n, q), float64, in blocks of exactly ``rows``."""
        return rechunked(self._encoded(rows), rows)

    def load(self) -> ArraySource:
        # Filled as they come: no second copy of all rows.
        x, y = np.empty((self.n_rows, self.n_inputs)), np.empty((self.n_rows, self.n_outputs))
        start = 0
        for x_block, y_block in self._encoded(65_536):
            x[start : start + len(x_block)], y[start : start + len(x_block)] = x_block, y_block
            start += len(x_block)
        return ArraySource(x, y)

    def _encoded(self, rows: int) -> Iterator[Block]:
        encoder, files = self.encoder, self.files
        names = [*encoder.input_names, *self.targets]
        numbers = [column.name for column in encoder.columns if column.kind == NUMBER]
        first, unseen = 0, Counter[str]()
        for batch in files.raw_batches(rows, columns=names, numbers=[*numbers, *self.targets]):
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            if files.is_text:
                table = self._with_nulls(table)
            encoded = encoder.examine(table, first_row=first)
            unseen.update(encoded.unseen)
            x = encoded.values
            y = self._target_values(table, first)
            complete = np.asarray(np.isfinite(x).all(1) & np.isfinite(y).all(1))
            if complete.all():
                yield x, y
            elif self.missing == "drop":
                yield x[complete], y[complete]
            else:
                raise self._missing_error(names)
            first += batch.num_rows
        self.rows_read = first
        for name, count in unseen.items():
            warnings.warn(unseen_message(name, count), PrismGPWarning, stacklevel=2)

    def _with_nulls(self, table: pa.Table) -> pa.Table:
        """Null where a text column spells a missing value; numbers have been converted already."""
        texts = [column.name for column in self.encoder.columns if column.kind != NUMBER]
        if not texts:
            return table
        cells = self.files.cells(table, texts)
        for name in texts:
            table = table.set_column(table.schema.get_field_index(name), name, cells[name])
        return table

    def _target_values(self, table: pa.Table, first: int) -> Array:
        if not self.targets:
            return np.empty((table.num_rows, 0))
        return np.stack([to_numbers(name, table[name], first_row=first) for name in self.targets], axis=1)

    def _missing_error(self, names: list[str]) -> DataError:
        """The complaint about missing cells, of which there is at least one; counts them all."""
        counts, rows = Counter[str](), 0
        for batch in self.files.raw_batches(65_536, columns=names):
            table = self.files.cells(pa.Table.from_batches([batch]), names)
            rows += batch.num_rows
            for name in names:
                counts[name] += int(unusable(_as_read(table[name], self.files.is_text)).sum())
        for name, count in counts.items():
            if count == rows:
                return empty_column("the target" if name in self.targets else "column", name, rows)
        return missing_error(dict(counts), option='--drop-missing (in Python: missing="drop")')


def _as_read(column: Any, is_text: bool) -> Any:
    """Cells of a text file are missing where they are empty, or spell what is not a finite number."""
    if not is_text:
        return column
    odd = pa.array(["inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "nan"], pa.string())
    spelled = pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(column)), value_set=odd)
    return pc.if_else(spelled, pa.scalar(None, pa.string()), column)
