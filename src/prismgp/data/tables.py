"""Table files: CSV, TSV and Parquet, one file or a folder of them, read as a stream of batches and written as one.

A stream of a CSV file is text, cell for cell as in the file. Nothing is inferred, so no type can change between blocks,
and cells that are only passed through come out as they went in.

``pyarrow.dataset`` is not used. Its scanner holds whole row groups in memory (62 MB where the reader here takes 2 MB),
sorts files by another order than that of their folders, and its errors name neither the file nor the column.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from prismgp.data.encoder import check_unique, decode, is_numeric, is_text, quote_names
from prismgp.exceptions import DataError

BLOCK_BYTES = 2**20  # of a text file, parsed at a time
GROUP_BYTES = 2**21  # size in memory at which rows become a row group of a Parquet file
PARQUET_SUFFIXES = (".parquet", ".pq")
TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")

# Spellings of a missing value in CSV files; pyarrow's own list and pandas' <NA>.
_MISSING_TEXT = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)
_BUFFER_BYTES = 2**16  # of each column of a Parquet file
_NOT_IN_TEXT = (
    *(pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_fixed_size_binary, pa.types.is_binary_view),
)


def file_format(path: str | PathLike[str]) -> str:
    """The suffix that names a format; an error for any other."""
    name = Path(path).name.lower()
    for suffix in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES):
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path}: unsupported file type; use one of {', '.join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))}")


def _default_delimiter(suffix: str) -> str:
    return "\t" if suffix.startswith(".tsv") else ","


# -- one file --------------------------------------------------------------------------------------


class TableFile:
    """A table in a file, whose suffix tells the format and, unless it is given, the delimiter of text.

    DataError, here or while reading: unsupported, empty, ragged or damaged file, other encoding than UTF-8.
    """

    def __init__(self, path: str | PathLike[str], *, delimiter: str | None = None) -> None:
        self.path = path
        self.format = file_format(path)
        self.is_text = self.format in TEXT_SUFFIXES
        if delimiter is not None and not self.is_text:
            raise DataError(f"{path}: a Parquet file has no delimiter")
        self.delimiter = delimiter or _default_delimiter(self.format)
        self.row_groups: range | None = None  # of a Parquet file; None: all
        with open(path, "rb") as file:  # Python's own error for an absent or forbidden file is clear
            start = file.read(4)
        if not start:
            raise DataError(f"{path}: the file is empty")
        if self.is_text and start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise _not_utf8(path)

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; text, for a text file."""
        with _translate_errors(self.path):
            if not self.is_text:
                with pa.parquet.ParquetFile(self.path) as file:
                    schema = file.schema_arrow
            else:
                with self._stream() as stream, self._open(stream, None) as reader:
                    schema = pa.schema([(name, pa.string()) for name in reader.schema.names])
        check_unique(schema.names, "column", f"{self.path}: ")
        return schema

    @cached_property
    def n_rows(self) -> int | None:
        """Number of rows if it is known without reading the file."""
        return None if self.is_text else sum(self._group_rows())

    def _group_rows(self) -> list[int]:
        """Rows of each row group of a Parquet file."""
        with _translate_errors(self.path), pa.parquet.ParquetFile(self.path) as file:
            about = file.metadata
            groups = range(about.num_row_groups) if self.row_groups is None else self.row_groups
            return [int(about.row_group(group).num_rows) for group in groups]

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
                piece = TableFile(self.path)
                piece.row_groups = range(begin, group + 1)
                yield piece, first, count
                begin, first, count = group + 1, first + count, 0

    def raw_batches(
        self, rows: int, *, columns: Sequence[str], numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Batches as the reader returns them, of about ``rows`` rows of a Parquet file.

        ``numbers`` are columns of a text file to convert to float64, with missing values as null; others stay as text.
        """
        if self.is_text:
            types = {name: pa.float64() if name in numbers else pa.string() for name in columns}
            with _translate_errors(self.path), self._stream() as stream, self._open(stream, types) as reader:
                yield from reader
            return
        # Buffered and without pre-buffering, so that memory does not grow with the size of a row group; with one
        # thread, as blocks are read ahead of the computations anyway.
        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
        with _translate_errors(self.path), pa.parquet.ParquetFile(self.path, **options) as file:
            groups = {} if self.row_groups is None else {"row_groups": list(self.row_groups)}
            yield from file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False, **groups)

    def _stream(self) -> Any:
        return pa.input_stream(str(self.path), compression="gzip" if self.format.endswith(".gz") else None)

    def _open(self, stream: Any, types: dict[str, Any] | None) -> Any:
        return pa.csv.open_csv(
            stream,
            # One thread, because only then do errors name the row.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types or ()),
                null_values=list(_MISSING_TEXT),
                strings_can_be_null=False,
            ),
        )


def _not_utf8(path: str | PathLike[str]) -> DataError:
    return DataError(f"{path}: the text is not UTF-8; convert it (e.g. iconv -f latin1 -t utf8)")


@contextmanager
def _translate_errors(path: str | PathLike[str]) -> Iterator[None]:
    """Turn the reader's errors into errors that name the file.

    May enclose a ``yield``: what a consumer raises never passes through a generator.
    """
    try:
        yield
    except (UnicodeDecodeError, pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = " ".join(str(error).split())
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            raise _not_utf8(path) from error
        if "Empty CSV file" in message:
            raise DataError(f"{path}: there are no rows below the header") from error
        shown = message if len(message) <= 200 else message[:200] + "..."  # it may quote cells at length
        raise DataError(f"{path}: cannot be read: {shown}") from error


# -- several files as one table --------------------------------------------------------------------


def open_tables(path: Any, *, delimiter: str | None = None, suffixes: Collection[str] = ()) -> TableFiles:
    """Open the table in a file, in the files of a folder, or in a list of files.

    Of a folder and its subfolders all table files are taken, sorted by name, except hidden ones and those whose name
    begins with an underscore. ``suffixes`` are those that are accepted; empty: all that are known.
    """
    if isinstance(path, str | PathLike):
        paths = _find_files(Path(path), suffixes) if Path(path).is_dir() else [Path(path)]
        name = str(path)
    else:
        paths = [Path(each) for each in path]
        name = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else str(paths[0]) if paths else "the list"
    if not paths:
        wanted = f" ({', '.join(suffixes)})" if suffixes else ""
        raise DataError(f"{name}: there is no table file{wanted} in it")
    for each in paths:
        if suffixes and file_format(each) not in suffixes:
            raise DataError(f"{each}: is not one of {', '.join(suffixes)}")
    return TableFiles([TableFile(each, delimiter=delimiter) for each in paths], name)


def _find_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    wanted = tuple(suffixes) or (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.lower().endswith(wanted)
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


class TableFiles:
    """Files with the same columns, read one after the other as one table; ``path`` is their name in messages."""

    def __init__(self, files: list[TableFile], path: str) -> None:
        self.files, self.path = files, path
        self.is_text = files[0].is_text
        if any(file.is_text != self.is_text for file in files):
            raise DataError(f"{path}: text and Parquet files are mixed; give one kind")
        self._stamps = [_stamp(file.path) for file in files]

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, which all files share."""
        first = self.files[0]
        types = {field.name: field.type for field in first.schema}
        for file in self.files[1:]:
            differ = set(first.schema.names) ^ set(file.schema.names)
            if differ:
                raise DataError(
                    f"{file.path}: columns differ from those of {first.path} ({quote_names(sorted(differ))} in one "
                    "only); files of one table need the same columns"
                )
            for name, kind in types.items():
                other = file.schema.field(name).type
                common = _common_type(kind, other)
                if common is None:
                    raise DataError(f"{file.path}: column {name!r} holds {other}, in {first.path} it holds {kind}")
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
        """As :meth:`TableFile.pieces`, file after file; the parts notice when their file changes."""
        schema = self.schema
        for file, stamp in zip(self.files, self._stamps, strict=True):
            for piece, first, count in file.pieces(rows):
                groups = piece.row_groups
                name = str(file.path) if groups is None else f"{file.path}, row groups {groups[0]} to {groups[-1]}"
                part = TableFiles([piece], name)
                part._stamps = [stamp]
                part.__dict__["schema"] = schema  # shared, so that many parts are pickled with one copy of it
                yield part, first, count

    def raw_batches(
        self, rows: int, *, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`TableFile.raw_batches`, file after file; None: all columns, in the order of the first file.

        An error if a file has changed since it was opened, or is gone: later passes would see other rows.
        """
        schema = self.schema
        chosen = list(schema.names if columns is None else columns)
        # Any of them may be null, whatever the first file says of itself.
        types = None if self.is_text else pa.schema([(name, schema.field(name).type) for name in chosen])

        def read(file: TableFile, stamp: tuple[int, int]) -> Iterator[pa.RecordBatch]:
            _check_unchanged(file, stamp)
            for batch in file.raw_batches(rows, columns=chosen, numbers=numbers):
                ordered = batch.select(chosen)
                yield ordered if types is None else ordered.cast(types, safe=False)
            _check_unchanged(file, stamp)

        return chain.from_iterable(read(file, stamp) for file, stamp in zip(self.files, self._stamps, strict=True))

    def cells(self, table: pa.Table, names: list[str]) -> pa.Table:
        """The named columns of a part of the table, with null where a text file spells a missing value."""
        chosen = table.select(names)
        if not self.is_text:
            return chosen
        spellings, null = pa.array(_MISSING_TEXT, pa.string()), pa.scalar(None, pa.string())
        columns = [
            pc.if_else(pc.is_in(column, value_set=spellings), null, column) if is_text(column.type) else column
            for column in chosen.columns
        ]
        return pa.table(columns, names=names)


def _stamp(path: str | PathLike[str]) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _check_unchanged(file: TableFile, stamp: tuple[int, int]) -> None:
    try:
        now = _stamp(file.path)
    except FileNotFoundError:
        raise DataError(f"{file.path}: the file is gone; it is read several times, keep it till the end") from None
    if now != stamp:
        raise DataError(
            f"{file.path}: the file has changed while it was in use; it is read several times: "
            "begin again with a file that stays as it is"
        )


def _common_type(first: Any, second: Any) -> Any:
    """The type that holds the values of both; None where they are of different kinds."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    values = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (first, second)]
    if all(is_text(kind) for kind in values):
        return pa.large_string()
    if not (is_numeric(first) and is_numeric(second)):
        return None
    integers = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (first, second))
    return pa.int64() if integers else pa.float64()


# -- writing ---------------------------------------------------------------------------------------


@contextmanager
def open_writer(
    path: Path | IO[bytes], kind: str, schema: pa.Schema, *, delimiter: str | None = None
) -> Iterator[ParquetWriter | TextWriter]:
    """Open a writer of the format that a suffix names, to a path or, for text, to a binary stream."""
    with ExitStack() as stack:
        if kind in PARQUET_SUFFIXES:
            yield stack.enter_context(closing(ParquetWriter(path, schema)))
            return
        unfit = [field.name for field in schema if any(check(field.type) for check in _NOT_IN_TEXT)]
        if unfit:
            raise DataError(f"column {quote_names(unfit)} holds lists or bytes, which CSV cannot hold; write .parquet")
        if isinstance(path, Path):
            path = stack.enter_context(path.open("wb"))
            if kind.endswith(".gz"):
                path = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", 6, path)))
        yield TextWriter(path, schema, delimiter or _default_delimiter(kind))


class ParquetWriter:
    """Parquet with row groups of some megabytes."""

    def __init__(self, path: Any, schema: pa.Schema) -> None:
        # Floats seldom repeat: a dictionary of them costs memory and time, and is given up in the end.
        repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
        self._writer = pa.parquet.ParquetWriter(path, schema, use_dictionary=repeating)
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._bytes = [], 0
        pa.default_memory_pool().release_unused()  # Arrow would keep it

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


class TextWriter:
    """CSV with quotes only where a cell needs them, and floats that read back exactly.

    pyarrow's own writer would put quotes around every text cell.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema, delimiter: str) -> None:
        self._file, self._delimiter = file, delimiter
        self._special = f'["\r\n{re.escape(delimiter)}]'
        self._write_lines([pa.array([name], pa.large_string()) for name in schema.names])

    def write(self, table: pa.Table) -> None:
        self._write_lines([_to_strings(column) for column in table.columns])

    def _write_lines(self, columns: list[Any]) -> None:
        quoted = [self._quote(column) for column in columns]
        lines = pc.binary_join_element_wise(
            *quoted, pa.scalar(self._delimiter, pa.large_string()), null_handling="replace", null_replacement=""
        )
        self._file.write("\n".join([*lines.to_pylist(), ""]).encode())

    def _quote(self, text: Any) -> Any:
        special = pc.match_substring_regex(text, self._special)
        if not pc.any(special).as_py():
            return text
        mark, nothing = pa.scalar('"', pa.large_string()), pa.scalar("", pa.large_string())
        escaped = pc.replace_substring(text, '"', '""')
        return pc.if_else(special, pc.binary_join_element_wise(mark, escaped, mark, nothing), text)


def _to_strings(column: Any) -> Any:
    """Convert a column to one array of text; null stays null."""
    column = decode(column)
    if not is_text(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_string()).combine_chunks()
