"""Table files: CSV, TSV and Parquet, one file or a folder of them, read as a stream of batches.

A stream of a CSV file is text, cell for cell as in the file. Nothing is inferred, so no type can change between blocks,
and cells that are only passed through come out as they went in.

``pyarrow.dataset`` is not used. Its scanner needs more memory: for 10^6 rows of 8 columns in one row group, the peak
over the start of the process was 30 MB with the reader here, 127 MB with a scanner with buffered streams and no
read-ahead, and 186 MB with one as it is by default. It also finds and orders the files of a folder by rules of its own,
and its errors name neither the file nor the column. Columns in the names of folders of Parquet files are those that it
would find.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from prismgp.data.cells import check_unique, common_type, is_text, null_missing, quote_names
from prismgp.data.folders import Partition, add_columns, find_files, read_partitions
from prismgp.data.numerals import DECIMALS, Numerals
from prismgp.data.text import TextFormat
from prismgp.exceptions import DataError

PARQUET_SUFFIXES = (".parquet", ".pq")
TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
FORMATS = ("csv", "tsv", "parquet")
_BUFFER_BYTES = 2**16  # of each column of a Parquet file
_WHOLE_GROUP = 2**18  # bytes of a row group that is read without buffers


# -- formats ---------------------------------------------------------------------------------------


def file_format(path: str | PathLike[str]) -> str:
    """The suffix that names a format; an error for any other."""
    name = Path(path).name.lower()
    for suffix in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES):
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path}: unsupported file type; use one of {', '.join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))}")


def choose_format(name: str, chosen: str | None) -> str:
    """The suffix of the format of a file, which may be chosen whatever its name."""
    if chosen is not None:
        return f".{chosen}"
    try:
        return file_format(name)
    except DataError as error:
        raise DataError(f"{error}, or say what it is with --format {'|'.join(FORMATS)}") from None


# -- one file --------------------------------------------------------------------------------------


class TableFile:
    """A table in a file; ``name`` is its name in messages.

    DataError, here or while reading: unsupported, empty, ragged or damaged file, text in another encoding.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        kind: str | None = None,  # one of FORMATS; None: by the suffix
        delimiter: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
        name: str | None = None,
        partition: Partition | None = None,  # columns in the names of its folders
    ) -> None:
        self.path = Path(path).absolute()  # workers of a cluster have working folders of their own
        self.name = str(path) if name is None else name
        self.format = choose_format(self.name, kind)
        self.decimal = decimal
        self.row_groups: range | None = None  # of a Parquet file; None: all
        self.partition = partition or {}
        about_text = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
        if decimal is not None and decimal == delimiter:
            raise DataError(f"{self.name}: {decimal!r} cannot be both delimiter and decimal mark")
        if self.format in TEXT_SUFFIXES:
            self.text: TextFormat | None = TextFormat(self.path, self.name, self.format, **about_text)
            return
        self.text = None
        if any(each is not None for each in about_text.values()):
            raise DataError(f"{self.name}: a Parquet file has no delimiter, decimal mark or encoding; leave them out")
        with open(path, "rb") as file:
            if not file.read(1):
                raise DataError(f"{self.name}: the file is empty")

    @property
    def is_text(self) -> bool:
        return self.text is not None

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; text, for a text file."""
        return pa.schema([*self._own_schema, *((name, value.type) for name, value in self._constants.items())])

    @cached_property
    def _constants(self) -> Partition:
        """The columns that are not in the file itself."""
        return {name: value for name, value in self.partition.items() if name not in self._own_schema.names}

    @cached_property
    def _own_schema(self) -> pa.Schema:
        with _translate_errors(self):
            if self.text is None:
                with pa.parquet.ParquetFile(self.path) as file:
                    schema = file.schema_arrow
            else:
                with self.text.parse(None) as reader:
                    schema = pa.schema([(name, pa.string()) for name in reader.schema.names])
        check_unique(schema.names, "column", f"{self.name}: ")
        return schema

    @cached_property
    def n_rows(self) -> int | None:
        """Number of rows if it is known without reading the file."""
        return None if self.is_text else sum(self._group_rows())

    def _group_rows(self) -> list[int]:
        """Rows of each row group of a Parquet file."""
        with _translate_errors(self), pa.parquet.ParquetFile(self.path) as file:
            about = file.metadata
            groups = range(about.num_row_groups) if self.row_groups is None else self.row_groups
            return [int(about.row_group(group).num_rows) for group in groups]

    @cached_property
    def _group_bytes(self) -> int:
        """Size of the largest row group of a Parquet file, before compression."""
        with _translate_errors(self), pa.parquet.ParquetFile(self.path) as file:
            about = file.metadata
            # Not the sizes of columns: Arrow ends the process where these are damaged.
            return max(
                (int(about.row_group(group).total_byte_size) for group in range(about.num_row_groups)), default=0
            )

    def pieces(self, rows: int) -> Iterator[tuple[TableFile, int, int | None]]:
        """Parts that can be read separately, with their first row and their number of rows, if known.

        Of a Parquet file these are neighbouring row groups, of at least ``rows`` rows together except for the last; a
        text file is one part.
        """
        if self.is_text:
            yield self, 0, None
            return
        begin = first = count = 0
        sizes = self._group_rows()
        for group, size in enumerate(sizes):
            count += size
            if count >= rows or group + 1 == len(sizes):
                piece = copy.copy(self)
                piece.row_groups = range(begin, group + 1)
                yield piece, first, count
                begin, first, count = group + 1, first + count, 0

    def raw_batches(
        self, rows: int, *, columns: Sequence[str], numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Batches as the reader returns them, of about ``rows`` rows of a Parquet file.

        ``numbers`` are columns of a text file to convert to float64, with missing values as null; others stay as text,
        as do columns in the names of folders.
        """
        constants = self._constants if self.partition else {}
        if not constants:
            yield from self._read_batches(rows, columns, numbers)
            return
        own = [name for name in columns if name not in constants] or self._own_schema.names[:1]
        for batch in self._read_batches(rows, own, numbers):
            yield add_columns(batch, constants, columns)

    def _read_batches(self, rows: int, columns: Sequence[str], numbers: Collection[str]) -> Iterator[pa.RecordBatch]:
        if self.text is not None:
            types = {name: pa.float64() if name in numbers else pa.string() for name in columns}
            with _translate_errors(self), self.text.parse(types) as reader:
                yield from reader
            return
        # Buffered and without pre-buffering, so that memory does not grow with the size of a row group; with one
        # thread, as blocks are read ahead of the computations anyway.
        options: dict[str, Any] = {"pre_buffer": False, "page_checksum_verification": True}
        if self._group_bytes > _WHOLE_GROUP:  # Arrow's buffers may grow by gigabytes where a page is damaged
            options["buffer_size"] = _BUFFER_BYTES
        with _translate_errors(self), pa.parquet.ParquetFile(self.path, **options) as file:
            groups = {} if self.row_groups is None else {"row_groups": list(self.row_groups)}
            for batch in file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False, **groups):
                self._check_cells(batch)
                yield batch

    def _check_cells(self, batch: pa.RecordBatch) -> None:
        """Refuse text that is not UTF-8, on which later computations would fail."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                why = f"{error!s:.200}"  # it may quote cells at length
                raise DataError(f"{self.name}: column {name!r} cannot be read, the file is damaged: {why}") from error


@contextmanager
def _translate_errors(file: TableFile) -> Iterator[None]:
    """Turn the reader's errors into errors that name the file.

    May enclose a ``yield``: what a consumer raises never passes through a generator.
    """
    try:
        yield
    except (UnicodeDecodeError, pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or file.name
            raise
        message = " ".join(str(error).split())
        explained = None if file.text is None else file.text.explain(error, message)
        if explained is not None:
            raise explained from error
        shown = message if len(message) <= 200 else message[:200] + "..."  # it may quote cells at length
        raise DataError(f"{file.name}: cannot be read: {shown}; correct the file or write it again") from error


# -- several files as one table --------------------------------------------------------------------


def open_tables(
    path: Any,
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    kind: str | None = None,
    suffixes: Collection[str] = (),
    name: str | None = None,
) -> TableFiles:
    """Open the table in a file, in the files of a folder, or in a list of files.

    Of a folder and its subfolders all table files are taken, sorted by name, except hidden ones and those whose name
    begins with an underscore. Names of folders such as ``year=2024`` are columns, unless the files have them too.
    ``kind`` is the format of all files, whatever their names; None: by the suffix. ``suffixes`` are those that are
    accepted; empty: all that are known. ``name`` is that of a file in messages.
    """
    if decimal is not None and decimal not in DECIMALS:
        raise DataError(f"decimal={decimal!r} must be '.' or ','")
    options = {"kind": kind, "delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    if isinstance(path, str | PathLike):
        folder = Path(path) if Path(path).is_dir() else None
        wanted = ("",) if kind is not None else suffixes or (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)
        paths = [Path(path)] if folder is None else find_files(folder, wanted)
        title = str(path) if name is None else name
    else:
        folder, paths = None, [Path(each) for each in path]
        title = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else str(paths[0]) if paths else "the list"
    if not paths:
        kinds = f" ({', '.join(suffixes)})" if suffixes else ""
        raise DataError(f"{title}: there is no table file{kinds} in it")
    for each in paths:
        if suffixes and file_format(each) not in suffixes:
            raise DataError(f"{each}: is not one of {', '.join(suffixes)}")
    partitions: Sequence[Partition | None] = [None] * len(paths)
    if folder is not None:
        partitions = read_partitions(folder, paths, as_text=choose_format(paths[0].name, kind) in TEXT_SUFFIXES)
    files = [TableFile(each, **options, name=name, partition=own) for each, own in zip(paths, partitions, strict=True)]
    return TableFiles(files, title)


class TableFiles:
    """Files with the same columns, read one after the other as one table; ``path`` is their name in messages."""

    def __init__(self, files: list[TableFile], path: str) -> None:
        self.files, self.path = files, path
        self.is_text = files[0].is_text
        if any(file.is_text != self.is_text for file in files):
            raise DataError(f"{path}: text and Parquet files are mixed; give one kind")
        self._stamps = [_stamp(file.path) for file in files]
        # Columns of numbers that the parser cannot convert: those in the names of folders, and those with thousands
        # separators or per cent signs, which the scan of the training table adds.
        self.respelled = {name for file in files for name in file.partition} if self.is_text else set()

    @property
    def csv_delimiter(self) -> str | None:
        """That of CSV files; None for other formats."""
        first = self.files[0]
        return first.text.delimiter if first.text is not None and first.format.startswith(".csv") else None

    @cached_property
    def numerals(self) -> Numerals:
        """How text files spell numbers."""
        delimiters = {file.text.delimiter for file in self.files if file.text is not None}
        return Numerals(self.files[0].decimal, delimiter=delimiters.pop() if len(delimiters) == 1 else "")

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, which all files share."""
        first = self.files[0]
        types = {field.name: field.type for field in first.schema}
        for file in self.files[1:]:
            differ = set(first.schema.names) ^ set(file.schema.names)
            if differ:
                raise DataError(
                    f"{file.name}: columns differ from those of {first.name} ({quote_names(sorted(differ))} in one "
                    "only); files of one table need the same columns"
                )
            for name, kind in types.items():
                other = file.schema.field(name).type
                common = common_type(kind, other)
                if common is None:
                    raise DataError(
                        f"{file.name}: column {name!r} holds {other}, in {first.name} it holds {kind}; make it one type"
                    )
                types[name] = common
        if all(field.type == types[field.name] for field in first.schema):
            return first.schema
        return pa.schema(types.items())

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @cached_property
    def n_rows(self) -> int | None:
        """Number of rows if it is known without reading the files."""
        return None if self.is_text else sum(file.n_rows or 0 for file in self.files)

    def pieces(self, rows: int) -> Iterator[tuple[TableFiles, int, int | None]]:
        """As :meth:`TableFile.pieces`, file after file; reading a part fails if its file has changed."""
        schema = self.schema
        for file, stamp in zip(self.files, self._stamps, strict=True):
            for piece, first, count in file.pieces(rows):
                groups = piece.row_groups
                name = file.name if groups is None else f"{file.name}, row groups {groups[0]} to {groups[-1]}"
                part = TableFiles([piece], name)
                part._stamps, part.respelled = [stamp], self.respelled
                part.__dict__["schema"] = schema  # shared, so that many parts are pickled with one copy of it
                part.__dict__["numerals"] = self.numerals  # which know what the scan has found
                yield part, first, count

    def raw_batches(
        self, rows: int, *, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`TableFile.raw_batches`, file after file; None: all columns, in the order of the first file.

        An error if a file has changed since it was opened, or is gone: later passes would see other rows.
        """
        return (batch for batch, _ in self.numbered_batches(rows, columns=columns, numbers=numbers))

    def numbered_batches(
        self, rows: int, *, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """As :meth:`raw_batches`, each with the rows before it that were read from its file."""
        schema = self.schema
        chosen = list(schema.names if columns is None else columns)
        # All fields nullable, whatever the schema of the first file says.
        types = None if self.is_text else pa.schema([(name, schema.field(name).type) for name in chosen])

        def read(file: TableFile, stamp: tuple[int, int]) -> Iterator[tuple[pa.RecordBatch, int]]:
            _check_unchanged(file, stamp)
            before = 0
            try:
                for batch in file.raw_batches(rows, columns=chosen, numbers=set(numbers) - self.respelled):
                    ordered = batch.select(chosen)
                    typed = self._read_numerals(ordered, numbers) if types is None else ordered.cast(types, safe=False)
                    yield typed, before
                    before += batch.num_rows
            except DataError:  # perhaps a file being rewritten
                _check_unchanged(file, stamp)
                raise
            _check_unchanged(file, stamp)

        return chain.from_iterable(read(file, stamp) for file, stamp in zip(self.files, self._stamps, strict=True))

    def _read_numerals(self, batch: pa.RecordBatch, numbers: Collection[str]) -> pa.RecordBatch:
        for name in self.respelled.intersection(numbers):
            index = batch.schema.get_field_index(name)
            values = self.numerals.read(name, null_missing(batch.column(index)))
            batch = batch.set_column(index, name, values)
        return batch

    def cells(
        self,
        table: pa.Table,
        names: list[str],
        *,
        numbers: Collection[str] = (),
        levels: Mapping[str, Collection[str]] = MappingProxyType({}),
        first_row: int = 0,
    ) -> pa.Table:
        """The named columns of a part of the table, with null where a text file spells a missing value.

        ``numbers`` are columns that should be numbers: text becomes float64 if all of its cells are numerals.
        ``levels`` of a column are known, however they are spelled. ``first_row`` is where the part starts in its file.
        """
        chosen = table.select(names)
        if not self.is_text:
            return chosen
        columns = [
            null_missing(column, levels.get(name, ())) if is_text(column.type) else column
            for name, column in zip(names, chosen.columns, strict=True)
        ]
        for index, name in enumerate(names):
            if name in numbers and is_text(columns[index].type):
                columns[index] = self.numerals.read(name, columns[index], first_row)
        return pa.table(columns, names=names)


def _stamp(path: str | PathLike[str]) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _check_unchanged(file: TableFile, stamp: tuple[int, int]) -> None:
    try:
        now = _stamp(file.path)
    except FileNotFoundError:
        raise DataError(
            f"{file.name}: the file was removed while it was in use; it is read several times: keep it until the end"
        ) from None
    if now != stamp:
        raise DataError(
            f"{file.name}: the file has changed while it was in use; it is read several times: "
            "begin again with a file that stays as it is"
        )
