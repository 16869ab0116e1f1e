"""What a file is before it is parsed: its format, and of a text file the encoding and the character between columns."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, cast

from prismgp.exceptions import DataError

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
PARQUET_SUFFIXES = (".parquet", ".pq")
TEXT_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
FORMATS = ("csv", "tsv", "parquet")


def file_format(path: str | PathLike[str]) -> str:
    """The suffix that names a format; an error for any other."""
    name = Path(path).name.lower()
    for suffix in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES):
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path}: unsupported file type; use one of {', '.join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES))}")


def default_delimiter(suffix: str) -> str:
    """Between the columns of a file with this suffix."""
    return "\t" if suffix.startswith(".tsv") else ","


def choose_format(name: str, chosen: str | None) -> str:
    """The suffix of the format of a file, which may be chosen whatever its name."""
    if chosen is not None:
        return f".{chosen}"
    try:
        return file_format(name)
    except DataError as error:
        raise DataError(f"{error}, or say what it is with --format {'|'.join(FORMATS)}") from None


def find_files(folder: Path, suffixes: Collection[str], kind: str | None) -> list[Path]:
    """Table files of a folder and its subfolders, sorted by name, but for hidden ones."""
    wanted = ("",) if kind is not None else tuple(suffixes) or (*TEXT_SUFFIXES, *PARQUET_SUFFIXES)
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.lower().endswith(wanted)
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


@dataclass(frozen=True)
class FileOptions:
    """What users say about files; None: found in the file."""

    format: str | None = None  # one of FORMATS; None: by the suffix
    delimiter: str | None = None
    decimal: str | None = None  # one of DECIMALS
    encoding: str | None = None

    @property
    def about_text(self) -> bool:
        """Whether anything is said that is about text files only."""
        return any(each is not None for each in (self.delimiter, self.decimal, self.encoding))


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
    """Compression, encoding and delimiter of one file; what is None is found in its first bytes."""

    def __init__(
        self,
        path: str | PathLike[str],
        name: str,
        *,
        compressed: bool,
        default: str,
        delimiter: str | None,
        decimal: str | None,
        encoding: str | None,
    ) -> None:
        self.path, self.name = path, name
        with open(path, "rb") as file:  # Python's own error for an absent or forbidden file is clear
            self.compressed = compressed or file.read(len(_GZIP)) == _GZIP
        sample = self._sample()
        if not sample:
            raise DataError(f"{name}: the file is empty")
        for signature, what in _SIGNATURES:
            if sample.startswith(signature):
                raise DataError(f"{name}: is not a text table but {what}")
        self.encoding = _marked_encoding(sample) or (None if encoding is None else check_encoding(encoding)) or "utf-8"
        if self.encoding == "utf-8-sig":
            self.encoding = "utf-8"
        self._check_zeros(sample)
        self.delimiter = delimiter or _sniff(self._decode(sample), default, decimal)

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
            raise DataError(f"{self.name}: cannot be read: {error}") from error

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

    def encoding_error(self) -> DataError:
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
