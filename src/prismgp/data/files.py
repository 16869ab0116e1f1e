"""Rows of table files: sources that read files larger than memory on every pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prismgp._validate import check_choice
from prismgp.data.cluster import Cluster
from prismgp.data.dask import DaskFileSource
from prismgp.data.encoder import TableEncoder, warn_unseen
from prismgp.data.reader import MISSING, NoiseColumns, TableReader
from prismgp.data.scan import MAX_CATEGORIES, scan_files
from prismgp.data.sources import MOMENT_ROWS, ArraySource, Block, Source, rechunk
from prismgp.data.tables import PARQUET_SUFFIXES, TEXT_SUFFIXES, TableFiles, open_tables


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
        A file, a folder (with its subfolders, in the order of the names), or files. Names of subfolders such as
        ``year=2024`` are columns.
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
        Rows in which a target is missing are left out, unless they are an error. Infinity is an error, except with
        "drop".
    max_categories : int, default 30
        Each of up to this many categories has an indicator. Columns with more are encoded by the effect of each
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
        roles=columns_of_noise.roles,
    )
    encoder = replace(encoder, targets=tuple(targets))  # the columns of noise are no inputs, and no targets either
    reader = TableReader(files, encoder, targets, missing=missing, booleans=booleans, noise=columns_of_noise)
    single = isinstance(target, str)
    if client is None:
        return FileSource(reader, single=single)
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
            if start > self.n_rows:  # the file has grown: reading on raises the error
                continue
            x[room], y[room] = x_block, y_block
        return ArraySource(x, y, n_noise=self.n_noise)

    def _read(self, rows: int) -> Iterator[Block]:
        for block in self._reader.blocks(rows):
            yield block.x, block.y
        warn_unseen(self._reader.unseen)
