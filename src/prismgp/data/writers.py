"""Table files to write: text and Parquet, batch by batch."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from prismgp.data.cells import decode, from_strings, is_text, quote_names, text_scalar
from prismgp.data.formats import PARQUET_SUFFIXES, default_delimiter
from prismgp.exceptions import DataError

GROUP_BYTES = 2**21  # size in memory at which rows become a row group of a Parquet file
# How text begins that spreadsheets take for a formula, and what of it they take for a number or for text all the same.
_FORMULA = "^[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20]"
_HARMLESS = "^[+\\-]?([0-9.,' \u00a0\u202f]*[0-9][0-9.,' \u00a0\u202f]*([eE][+\\-]?[0-9]+)?%?|(?i:inf|nan|infinity))?$"
_NOT_IN_TEXT = (
    *(pa.types.is_nested, pa.types.is_binary, pa.types.is_large_binary),
    *(pa.types.is_fixed_size_binary, pa.types.is_binary_view),
)


@contextmanager
def open_writer(
    path: Path | IO[bytes],
    kind: str,
    schema: pa.Schema,
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    escape_formulas: bool = False,
) -> Iterator[ParquetWriter | TextWriter]:
    """Open a writer of the format that a suffix names, to a path or, for text, to a binary stream.

    ``decimal`` is the decimal mark of floats in text. ``escape_formulas``: in text, an apostrophe is put before what a
    spreadsheet would take for a formula; without, the writer only counts it.
    """
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
                path = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", 6, path, mtime=0)))
        yield TextWriter(
            path, schema, delimiter or default_delimiter(kind), decimal or ".", escape_formulas=escape_formulas
        )


class ParquetWriter:
    """Parquet with row groups of some megabytes; its cells have types, so that none is a formula."""

    formulas: Mapping[str, int] = MappingProxyType({})

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
        """Convert a column to one array of text; null stays null."""
        column = decode(column)
        if not is_text(column.type):
            marked = self._decimal != "." and (pa.types.is_floating(column.type) or pa.types.is_decimal(column.type))
            column = column.cast(pa.string())
            if marked:
                column = pc.replace_substring(column, ".", self._decimal)
        return column.cast(pa.large_string()).combine_chunks()
