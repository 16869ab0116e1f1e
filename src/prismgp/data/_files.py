"""Rows in files larger than memory: Parquet and CSV, one file or a folder, read again on every pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from prismgp._validate import check_choice
from prismgp.data._cluster import Cluster
from prismgp.data._columns import NUMBER, listed
from prismgp.data._dask import DaskFileSource
from prismgp.data._encoded import EncodedRows, warn_unseen
from prismgp.data._folder import TableFiles, open_tables
from prismgp.data._scan import learn_encoder
from prismgp.data._source import ArraySource, Block, Source, rechunked
from prismgp.data._table import TableEncoder
from prismgp.exceptions import DataError

__all__ = ["FileSource", "file_source", "from_csv", "from_parquet"]

_PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_MISSING = ("error", "drop")
_LOADED_ROWS = 65_536


def from_parquet(
    path: Any,
    target: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    exclude: Collection[str] = (),
    categorical: Collection[str] = (),
    missing: str = "error",
    max_categories: int = 100,
    client: Any = None,
) -> FileSource | DaskFileSource:
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
    files = open_tables(path, kinds=_PARQUET)
    return file_source(
        files,
        target,
        columns=columns,
        exclude=exclude,
        categorical=categorical,
        missing=missing,
        max_categories=max_categories,
        client=client,
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
    client: Any = None,
) -> FileSource | DaskFileSource:
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
    client : distributed.Client, str or None, default None
        As for :func:`from_parquet`; a file is read by one worker, so give it several.
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
    client: Any = None,
) -> FileSource | DaskFileSource:
    """Rows of opened files; see :func:`from_parquet`."""
    check_choice("from_csv" if files.is_text else "from_parquet", "missing", missing, _MISSING)
    targets = _names(target)
    encoder, truths = learn_encoder(
        files,
        targets,
        columns=None if columns is None else _names(columns),
        exclude=_names(exclude),
        categorical=_names(categorical),
        max_categories=max_categories,
    )
    single = isinstance(target, str)
    if client is not None:
        return DaskFileSource(files, encoder, targets, Cluster(client), missing=missing, single=single, truths=truths)
    return FileSource(files, encoder, targets, missing=missing, single=single, truths=truths)


def _names(names: Collection[str] | None) -> list[str]:
    """A single name may stand for a list of one."""
    return [] if names is None else [names] if isinstance(names, str) else list(names)


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
        Rows of the files, those with missing values too.
    """

    encoder: TableEncoder

    def __init__(
        self,
        files: TableFiles,
        encoder: TableEncoder,
        targets: list[str],
        *,
        missing: str,
        single: bool = True,
        truths: Collection[str] = (),
        n_rows: int | None = None,
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, targets, missing
        self.single = single  # one target that makes a one-dimensional y
        self._truths = truths  # targets that a text file spells as true and false
        self._table = EncodedRows(files, encoder, targets, missing=missing, truths=truths)
        self.feature_names = encoder.feature_names
        self.n_inputs, self.n_outputs = len(self.feature_names), len(targets)
        known = (files.n_rows if n_rows is None else n_rows) if missing == "error" else None
        # Where the files do not tell, the pass that counts also takes the moments, which are needed anyway.
        self.n_rows = known if known is not None else self.moments[0].count
        if missing == "error":
            self._table.rows_read = self.n_rows
        if not self.n_rows:
            why = "there are no rows below the header"
            if self.rows_read:
                why = f"every one of the {self.rows_read:,} rows has a missing value; exclude the emptiest columns"
            raise DataError(f"{files.path}: {why}")

    @property
    def rows_read(self) -> int:
        return self._table.rows_read

    def __repr__(self) -> str:
        target = f", target {', '.join(map(repr, self.targets))}" if self.targets else ""
        return f"FileSource({self.n_rows:,} rows, {self.n_inputs} inputs{target})"

    def encoded_by(self, encoder: TableEncoder) -> FileSource:
        """The same rows, encoded as another table was; targets stay."""
        absent = encoder.missing_columns(self.files.names)
        if absent:
            raise DataError(f"{self.files.path}: input columns {', '.join(map(repr, absent))} missing")
        numbers = {column.name for column in encoder.columns if column.kind == NUMBER}
        texts = [column.name for column in self.encoder.columns if column.kind != NUMBER and column.name in numbers]
        if texts and self.files.is_text:
            raise DataError(f"{self.files.path}: column {listed(texts)} holds text; the model learned it as numbers")
        return FileSource(
            self.files,
            encoder,
            self.targets,
            missing=self.missing,
            single=self.single,
            truths=self._truths,
            n_rows=self.n_rows,
        )

    def blocks(self, rows: int) -> Iterator[Block]:
        """Encoded rows, (n, d) and (n, q), float64, in blocks of exactly ``rows``."""
        return rechunked(self._encoded(rows), rows)

    def load(self) -> ArraySource:
        # Filled as they come: no second copy of all rows.
        x, y = np.empty((self.n_rows, self.n_inputs)), np.empty((self.n_rows, self.n_outputs))
        start = 0
        for x_block, y_block in self._encoded(_LOADED_ROWS):
            room = slice(start, start + len(x_block))
            start += len(x_block)
            if start > self.n_rows:  # somebody appends to a file; to read to its end is to say so
                continue
            x[room], y[room] = x_block, y_block
        return ArraySource(x, y)

    def _encoded(self, rows: int) -> Iterator[Block]:
        yield from self._table.blocks(rows)
        warn_unseen(self._table.unseen)
