"""Tables in text files: encoding and delimiter, found before they are parsed, and how they are read and written."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from prismgp.data.cells import (
    MISSING_TEXT,
    decode,
    from_floats,
    from_strings,
    is_text,
    quote_names,
    text_scalar,
    to_numbers,
)
from prismgp.exceptions import DataError

BLOCK_BYTES = 2**20  # parsed at a time
_SAMPLE_BYTES = 2**14
_PIECE_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SIGNATURES = (
    (b"PAR1", "a Parquet file; give --format parquet"),
    (b"PK\x03\x04", "a zip archive or an Excel workbook; unpack it, or save the sheet as CSV"),
    (b"\xd0\xcf\x11\xe0", "an Excel workbook; save the sheet as CSV"),
    (b"\x89PNG", "an image"),
    (b"%PDF", "a PDF document"),
    (b"BZh", "compressed with bzip2; unpack it"),
    (b"\xfd7zXZ", "compressed with xz; unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it"),
    (b"ARROW1", "an Arrow file; save it as Parquet"),
    (b"SQLite format 3", "a database; export the table as CSV"),
)
_DELIMITERS = (",", ";", "\t", "|")
# Blank lines, and the line that tells Excel the delimiter.
_BEFORE_HEADER = re.compile(r"""(?:\r\n|\r|\n)*(?:"?sep=(?P<mark>[^\r\n"])"?(?:\r\n|\r|\n)+)?""")
# First characters of what spreadsheets take for a formula, and the numbers among these, which are harmless.
_FORMULA = "^[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20]"
_HARMLESS = "^[+\\-]?([0-9.,' \u00a0\u202f]*[0-9][0-9.,' \u00a0\u202f]*([eE][+\\-]?[0-9]+)?%?|(?i:inf|nan|infinity))?$"
_NOT_IN_TEXT = (
    *(pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_fixed_size_binary, pa.types.is_binary_view),
)


def default_delimiter(suffix: str) -> str:
    """The usual delimiter of a file with this suffix."""
    return "\t" if suffix.startswith(".tsv") else ","


def check_encoding(name: str) -> str:
    """The usual name of an encoding of text; DataError for an unknown one."""
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError):
        found = None
    if found is None or not getattr(found, "_is_text_encoding", True):
        raise DataError(f"unknown encoding {name!r}; use e.g. utf-8, latin-1, windows-1252 or utf-16")
    return found.name


class TextFormat:
    """Compression, encoding and delimiter of one file, which it reads; what is None is found in its first bytes."""

    def __init__(
        self,
        path: str | PathLike[str],
        name: str,
        suffix: str,
        *,
        delimiter: str | None = None,
        decimal: str | None = None,
        encoding: str | None = None,
    ) -> None:
        self.path, self.name, self._decimal = path, name, decimal or "."
        with open(path, "rb") as file:  # Python's own error for an absent or forbidden file is clear
            self.compressed = suffix.endswith(".gz") or file.read(len(_GZIP)) == _GZIP
        sample = self._sample()
        if not sample:
            raise DataError(f"{name}: the file is empty")
        for signature, what in _SIGNATURES:
            if sample.startswith(signature):
                raise DataError(f"{name}: is not a text table but {what}")
        self.encoding = _marked_encoding(sample) or ("utf-8" if encoding is None else check_encoding(encoding))
        if self.encoding == "utf-8-sig":
            self.encoding = "utf-8"
        self._check_zeros(sample)
        text = self._decode(sample)
        start = _BEFORE_HEADER.match(text)
        assert start is not None  # it matches nothing too
        self._skipped, text = start[0].count("\n") or start[0].count("\r"), text[start.end() :]
        self.delimiter = delimiter or start["mark"] or _sniff(text, default_delimiter(suffix), decimal)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes, decompressed."""
        with open(self.path, "rb") as file:
            if not self.compressed:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(IO[bytes], unpacked)

    def _sample(self) -> bytes:
        try:
            with self.open() as file:
                return file.read(_SAMPLE_BYTES)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{self.name}: cannot be read: {error}; write or download it again") from error

    def _decode(self, sample: bytes) -> str:
        # Wrong bytes are reported when they are parsed, with their place.
        return codecs.getincrementaldecoder(self.encoding)(errors="replace").decode(sample).removeprefix("\ufeff")

    def _check_zeros(self, sample: bytes) -> None:
        if b"\0" not in sample or not self.encoding.startswith(("utf-8", "ascii", "iso", "cp")):
            return
        even, odd = sample[::2].count(0), sample[1::2].count(0)
        few, many = sorted((even, odd))
        if many > len(sample) / 8 and few < many / 8:
            found = "utf-16-be" if even > odd else "utf-16-le"
            raise DataError(
                f"{self.name}: the text seems to be UTF-16 without a byte order mark; give --encoding {found}"
            )
        line = sample[: sample.index(0)].count(b"\n") + 1
        raise DataError(f"{self.name}: line {line:,} holds a zero byte; it is not a text table, or it is damaged")

    @contextmanager
    def parse(self, types: dict[str, Any] | None) -> Iterator[Any]:
        """A reader of batches of the columns with these types; None: of all columns, with types inferred by Arrow."""
        options = {
            # One thread, because only then do errors name the row.
            "read_options": pa.csv.ReadOptions(
                use_threads=False,
                block_size=BLOCK_BYTES,
                encoding=self.encoding.replace("utf-8", "utf8"),
                skip_rows=self._skipped,
            ),
            "parse_options": pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            "convert_options": pa.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types or ()),
                null_values=list(MISSING_TEXT),
                strings_can_be_null=False,
                decimal_point=self._decimal,
            ),
        }
        with (
            pa.input_stream(str(self.path), compression="gzip" if self.compressed else None) as stream,
            pa.csv.open_csv(stream, **options) as reader,
        ):
            yield reader

    def explain(self, error: Exception, message: str) -> DataError | None:
        """The error to raise for an error of the reader with this message; None for unknown messages."""
        if isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            return self._encoding_error()
        if "Empty CSV file" in message:
            return DataError(f"{self.name}: there are no rows below the header")
        if "straddling object" in message:
            return DataError(f'{self.name}: a row is longer than {BLOCK_BYTES:,} bytes; is a quote (") not closed?')
        return None

    def _encoding_error(self) -> DataError:
        """The error for bytes that are not text in this encoding, with their line and the encoding to try."""
        line, rest = self._find_wrong_bytes()
        where = f"{self.name}: the text is not {self.encoding.upper()}" + (f" in line {line:,}" if line else "")
        if self.encoding != "utf-8":
            return DataError(f"{where}; give the right one with --encoding")
        # Printable characters of Windows-1252 are control characters of Latin-1.
        likely = "windows-1252" if any(0x80 <= byte <= 0x9F for byte in rest) else "latin-1"
        return DataError(f"{where}; if the file is from Western Europe or the Americas, give --encoding {likely}")

    def _find_wrong_bytes(self) -> tuple[int, bytes]:
        """The line of the first bytes that cannot be decoded, 0 for none, and the text from there on."""
        decoder = codecs.getincrementaldecoder(self.encoding)()
        line = 1
        with self.open() as file:
            while piece := file.read(_PIECE_BYTES):
                try:
                    line += decoder.decode(piece).count("\n")
                except UnicodeDecodeError as error:
                    before = error.object[: error.start].decode(self.encoding, "replace")
                    return line + before.count("\n"), error.object[error.start :]
        return 0, b""


def _marked_encoding(sample: bytes) -> str | None:
    return next((name for mark, name in _BYTE_ORDER_MARKS if sample.startswith(mark)), None)


def _sniff(sample: str, default: str, decimal: str | None) -> str:
    """The delimiter of a text that begins so: the only one that splits the header, or that fits all rows.

    The default where that does not decide. With a decimal comma a comma comes last.
    """
    order = list(dict.fromkeys([default, *_DELIMITERS]))
    if decimal == "," and default == ",":
        order = [*order[1:], ","]
    widths = {delimiter: _widths(sample, delimiter) for delimiter in order}
    splitting = [delimiter for delimiter in order if widths[delimiter][:1] > [1]]
    if len(splitting) == 1:
        return splitting[0]
    fitting = [delimiter for delimiter in splitting if len(set(widths[delimiter])) == 1]
    if order[0] in fitting or len(fitting) != 1:
        return order[0]
    return fitting[0]


def _widths(sample: str, delimiter: str) -> list[int]:
    """Cells of every complete row, without the empty rows."""
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    try:
        rows = [len(row) for row in reader if row]
    except csv.Error:
        return []
    return rows[:-1] if len(rows) > 1 else rows  # the last may be cut off


# -- writing ----------------------------------------------------------------------------------------


@contextmanager
def open_writer(
    path: Path | IO[bytes],
    kind: str,
    schema: pa.Schema,
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    escape_formulas: bool = False,
) -> Iterator[TextWriter]:
    """Open a writer of the text format that a suffix names, to a path or to a binary stream.

    ``decimal`` is the decimal mark of floats. ``escape_formulas``: an apostrophe is put before what a spreadsheet would
    take for a formula; without, the writer only counts it.
    """
    unfit = [field.name for field in schema if any(check(field.type) for check in _NOT_IN_TEXT)]
    if unfit:
        raise DataError(f"column {quote_names(unfit)} holds lists or bytes, which CSV cannot hold; write .parquet")
    with ExitStack() as stack:
        if isinstance(path, Path):
            path = stack.enter_context(path.open("wb"))
            if kind.endswith(".gz"):
                path = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", 6, path, mtime=0)))
        yield TextWriter(
            path, schema, delimiter or default_delimiter(kind), decimal or ".", escape_formulas=escape_formulas
        )


class TextWriter:
    """CSV with quotes only where a cell needs them, and floats that read back exactly.

    pyarrow's own writer would put quotes around every text cell.

    ``formulas`` counts, by column, names and cells that a spreadsheet would take for a formula.
    """

    def __init__(
        self, file: IO[bytes], schema: pa.Schema, delimiter: str, decimal: str, *, escape_formulas: bool = False
    ) -> None:
        self._file, self._delimiter, self._decimal, self._escape = file, delimiter, decimal, escape_formulas
        self._special = f'["\r\n{re.escape(delimiter)}]'
        self.formulas = Counter[str]()
        self._write_lines([self._find_formulas(name, from_strings([name])) for name in schema.names])

    def write(self, table: pa.Table) -> None:
        self._write_lines(
            [
                self._find_formulas(name, self._to_strings(column))
                if is_text(decode(column).type)
                else self._to_strings(column)
                for name, column in zip(table.column_names, table.columns, strict=True)
            ]
        )

    def _find_formulas(self, name: str, text: Any) -> Any:
        """Count the formulas of a column, and escape them if asked to."""
        suspect = pc.match_substring_regex(text, _FORMULA)
        if not pc.any(suspect).as_py():
            return text
        formulas = pc.and_not(suspect, pc.match_substring_regex(text, _HARMLESS))
        found = pc.sum(formulas).as_py()
        if found:
            self.formulas[name] += found
        if not (found and self._escape):
            return text
        mark, nothing = text_scalar("'"), text_scalar("")
        return pc.if_else(formulas, pc.binary_join_element_wise(mark, text, nothing), text)

    def _write_lines(self, columns: list[Any]) -> None:
        quoted = [self._quote(column) for column in columns]
        lines = pc.binary_join_element_wise(
            *quoted, text_scalar(self._delimiter), null_handling="replace", null_replacement=""
        )
        self._file.write("\n".join([*lines.to_pylist(), ""]).encode())

    def _quote(self, text: Any) -> Any:
        special = pc.match_substring_regex(text, self._special)
        if not pc.any(special).as_py():
            return text
        mark, nothing = text_scalar('"'), text_scalar("")
        escaped = pc.replace_substring(text, '"', '""')
        return pc.if_else(special, pc.binary_join_element_wise(mark, escaped, mark, nothing), text)

    def _to_strings(self, column: Any) -> Any:
        """Convert a column to one array of text, from which the same is read; null stays null."""
        column = decode(column)
        if pa.types.is_duration(column.type):  # Arrow would write a number without its unit
            column = from_floats(to_numbers("", column))
        if not is_text(column.type):
            marked = self._decimal != "." and (pa.types.is_floating(column.type) or pa.types.is_decimal(column.type))
            column = column.cast(pa.string())
            if marked:
                column = pc.replace_substring(column, ".", self._decimal)
        column = column.cast(pa.large_string())
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
