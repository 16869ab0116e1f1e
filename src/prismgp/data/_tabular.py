"""Table files: CSV, TSV and Parquet, read whole or as a stream of batches, written as a stream.

A stream of a CSV file is text, cell for cell as in the file. Nothing is inferred, so no type can
change between blocks, and what is only passed through comes out as it went in.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO, Any, Protocol, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from prismgp.data._columns import is_text, listed
from prismgp.exceptions import DataError

__all__ = ["MISSING_TEXT", "TableFile", "TableWriter", "file_format", "open_writer", "rebatched"]

# Spellings of a missing value in CSV files; pyarrow's own list and pandas' <NA>.
MISSING_TEXT = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
)
_DELIMITERS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
_PARQUET = (".parquet", ".pq")
_BLOCK_BYTES = 2**20
_BUFFER_BYTES = 2**16  # of each column of a Parquet file; with one thread, as reading runs ahead of computing anyway
_GROUP_BYTES = 2**21  # size in memory at which rows become a row group of a Parquet file


def file_format(path: str | PathLike[str]) -> str:
    """The suffix that names a format; an error for any other."""
    name = Path(path).name.lower()
    for suffix in (*_DELIMITERS, *_PARQUET):
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path}: unsupported file type; use one of {', '.join((*_DELIMITERS, *_PARQUET))}")


class TableFile:
    """A table in a file.

    Parameters
    ----------
    path : path
        Its suffix tells the format: .csv, .tsv (either also .gz), .parquet or .pq.
    delimiter : str or None, default None
        Separator of a text file; None: by the suffix.

    Raises
    ------
    DataError
        Here or while reading: unsupported, empty, ragged or damaged file, other encoding than UTF-8.
    OSError
        When the file cannot be opened.
    """

    def __init__(self, path: str | PathLike[str], *, delimiter: str | None = None) -> None:
        self.path = path
        self.format = file_format(path)
        self.is_text = self.format in _DELIMITERS
        if delimiter is not None and not self.is_text:
            raise DataError(f"{path}: a Parquet file has no delimiter")
        self.delimiter = delimiter or _DELIMITERS.get(self.format, ",")
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
        with _translated(self.path):
            if not self.is_text:
                with pa.parquet.ParquetFile(self.path) as file:
                    schema = file.schema_arrow
            else:
                with self._stream() as stream, self._open(stream, None) as reader:
                    schema = pa.schema([(name, pa.string()) for name in reader.schema.names])
            twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise DataError(f"{self.path}: duplicate column {listed(twice)}; every column needs a name of its own")
        return schema

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @cached_property
    def n_rows(self) -> int | None:
        """Number of rows where the file tells it without being read."""
        if self.is_text:
            return None
        return sum(self._group_rows())

    def _group_rows(self) -> list[int]:
        """Rows of each row group of a Parquet file."""
        with _translated(self.path), pa.parquet.ParquetFile(self.path) as file:
            about = file.metadata
            groups = range(about.num_row_groups) if self.row_groups is None else self.row_groups
            return [int(about.row_group(group).num_rows) for group in groups]

    def pieces(self, rows: int) -> Iterator[tuple[TableFile, int, int | None]]:
        """Parts that can be read apart, with the row each begins at and how many it has, where that is known.

        Of a Parquet file neighbouring row groups, of at least ``rows`` rows together but for the last; of others
        the file.
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

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """The table in pieces of exactly ``rows`` rows, the last one of what is left.

        Columns of a text file are text, as they stand in the file.
        """
        return rebatched(self.raw_batches(rows), rows)

    def raw_batches(
        self, rows: int, *, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The table in pieces as they come, about ``rows`` rows of a Parquet file.

        Parameters
        ----------
        rows : int
        columns : sequence of str or None
            None: all of them.
        numbers : collection of str
            Columns of a text file that are to be converted to float64, missing values to null; in the others both
            stay as they stand in the file.
        """
        names = list(self.schema.names if columns is None else columns)
        if self.is_text:
            return self._text_batches(names, numbers)
        return self._parquet_batches(rows, None if columns is None else names)

    def cells(self, table: pa.Table, names: list[str]) -> pa.Table:
        """The named columns of a piece, with null where a text file spells a missing value."""
        chosen = table.select(names)
        if not self.is_text:
            return chosen
        spellings = pa.array(MISSING_TEXT, pa.string())
        null = pa.scalar(None, pa.string())
        columns = [pc.if_else(pc.is_in(column, value_set=spellings), null, column) for column in chosen.columns]
        return pa.table(columns, names=names)

    def _text_batches(self, names: list[str], numbers: Collection[str]) -> Iterator[pa.RecordBatch]:
        types = {name: pa.float64() if name in numbers else pa.string() for name in names}
        with _translated(self.path), self._stream() as stream, self._open(stream, types) as reader:
            yield from reader

    def _parquet_batches(self, rows: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        # Buffered and without pre-buffering, so that memory does not grow with the size of a row group.
        with (
            _translated(self.path),
            pa.parquet.ParquetFile(
                self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
            ) as file,
        ):
            groups = {} if self.row_groups is None else {"row_groups": list(self.row_groups)}
            yield from file.iter_batches(batch_size=rows, columns=columns, use_threads=False, **groups)

    def _stream(self) -> Any:
        return pa.input_stream(str(self.path), compression="gzip" if self.format.endswith(".gz") else None)

    def _parse_options(self) -> Any:
        return pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)

    def _open(self, stream: Any, types: dict[str, Any] | None) -> Any:
        return pa.csv.open_csv(
            stream,
            # One thread, because only then does a complaint name the row.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            parse_options=self._parse_options(),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types or ()),
                null_values=list(MISSING_TEXT),
                strings_can_be_null=False,
            ),
        )


def rebatched(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly ``rows`` rows, the last one of what is left."""
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


def _not_utf8(path: str | PathLike[str]) -> DataError:
    return DataError(f"{path}: the text is not UTF-8; convert it (e.g. iconv -f latin1 -t utf8)")


@contextmanager
def _translated(path: str | PathLike[str]) -> Iterator[None]:
    """Complaints of the reader as errors that name the file.

    Also put around ``yield``: what a consumer raises never passes through a generator.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except pa.ArrowException as error:
        message = str(error)
        if "UTF8" in message:
            raise _not_utf8(path) from error
        if "Empty CSV file" in message:
            raise DataError(f"{path}: there are no rows below the header") from error
        raise DataError(f"{path}: cannot be read: {_shortened(message)}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path}: cannot be read: {_shortened(str(error))}") from error


def _shortened(message: str) -> str:
    """A reader's message without the cells it may quote at length."""
    message = " ".join(message.split())
    return message if len(message) <= 200 else message[:200] + "..."


class TableWriter(Protocol):
    """Takes pieces of a table."""

    def write(self, table: pa.Table) -> None: ...


@contextmanager
def open_writer(
    path: Path | IO[bytes], kind: str, schema: pa.Schema, *, delimiter: str | None = None
) -> Iterator[TableWriter]:
    """A writer of the format that a suffix names, to a path or, for text, to a binary stream."""
    with ExitStack() as stack:
        if kind in _PARQUET:
            parquet = stack.enter_context(closing(_ParquetWriter(path, schema)))
            yield parquet
            return
        unfit = [field.name for field in schema if pa.types.is_nested(field.type) or _is_bytes(field.type)]
        if unfit:
            raise DataError(f"column {listed(unfit)} holds lists or bytes, which CSV cannot; write .parquet")
        if isinstance(path, Path):
            path = stack.enter_context(path.open("wb"))
            if kind.endswith(".gz"):
                path = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", 6, path)))
        yield _TextWriter(path, schema, delimiter or _DELIMITERS[kind])


def _is_bytes(kind: Any) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


class _ParquetWriter:
    def __init__(self, path: Any, schema: pa.Schema) -> None:
        # Numbers seldom repeat: a dictionary of theirs costs memory and time, and is given up in the end.
        repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
        self._writer = pa.parquet.ParquetWriter(path, schema, use_dictionary=repeating)
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._bytes = [], 0
        pa.default_memory_pool().release_unused()  # which Arrow would keep

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


class _TextWriter:
    """CSV with quotes only where a cell needs them, and floats that read back exactly.

    pyarrow's own writer would put quotes around every cell that was passed through.
    """

    def __init__(self, file: IO[bytes], schema: pa.Schema, delimiter: str) -> None:
        self._file = file
        self._delimiter = delimiter
        self._special = f'["\r\n{re.escape(delimiter)}]'
        self._line([pa.array([name], pa.large_string()) for name in schema.names])

    def write(self, table: pa.Table) -> None:
        self._line([_as_strings(column) for column in table.columns])

    def _line(self, columns: list[Any]) -> None:
        quoted = [self._quoted(column) for column in columns]
        lines = pc.binary_join_element_wise(
            *quoted, pa.scalar(self._delimiter, pa.large_string()), null_handling="replace", null_replacement=""
        )
        self._file.write("\n".join([*lines.to_pylist(), ""]).encode())

    def _quoted(self, text: Any) -> Any:
        special = pc.match_substring_regex(text, self._special)
        if not pc.any(special).as_py():
            return text
        mark, nothing = pa.scalar('"', pa.large_string()), pa.scalar("", pa.large_string())
        escaped = pc.replace_substring(text, '"', '""')
        return pc.if_else(special, pc.binary_join_element_wise(mark, escaped, mark, nothing), text)


def _as_strings(column: Any) -> Any:
    """A column as one array of text; null stays null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_text(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_string()).combine_chunks()
