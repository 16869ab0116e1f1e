"""Several table files as one: the files of a folder, in the order of their names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from prismgp.data._columns import is_numeric, is_text, listed
from prismgp.data._tabular import TableFile, file_format, rebatched
from prismgp.exceptions import DataError

__all__ = ["TableFiles", "open_tables"]


def open_tables(path: Any, *, delimiter: str | None = None, kinds: Collection[str] = ()) -> TableFiles:
    """The table in a file, in the files of a folder, or in a list of files.

    Parameters
    ----------
    path : path, or sequence of paths
        Of a folder all table files are taken, those of its folders too, sorted by name; hidden ones and those whose
        name begins with an underscore are not.
    delimiter : str or None
        Of text files.
    kinds : collection of str
        Suffixes that are accepted; empty: all that are known.
    """
    if isinstance(path, str | PathLike):
        paths = _files_of(Path(path), kinds) if Path(path).is_dir() else [Path(path)]
        name = str(path)
    else:
        paths = [Path(each) for each in path]
        name = f"{paths[0]} and {len(paths) - 1} more" if len(paths) > 1 else str(paths[0]) if paths else "the list"
    if not paths:
        wanted = f" ({', '.join(kinds)})" if kinds else ""
        raise DataError(f"{name}: there is no table file{wanted} in it")
    for each in paths:
        if kinds and file_format(each) not in kinds:
            raise DataError(f"{each}: is not one of {', '.join(kinds)}")
    return TableFiles([TableFile(each, delimiter=delimiter) for each in paths], name)


def _files_of(folder: Path, kinds: Collection[str]) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        if any(part.startswith((".", "_")) for part in inner) or not path.is_file():
            continue
        try:
            kind = file_format(path)
        except DataError:
            continue
        if not kinds or kind in kinds:
            found.append(path)
    return found


class TableFiles:
    """Files with the same columns, one after the other; has the interface of a single :class:`TableFile`.

    Parameters
    ----------
    files : list of TableFile
    path : str
        What messages call them.
    """

    def __init__(self, files: list[TableFile], path: str) -> None:
        self.files = files
        self.path = path
        self.is_text = files[0].is_text
        if any(file.is_text != self.is_text for file in files):
            raise DataError(f"{path}: text and Parquet files are mixed; give one kind")
        self._seen = [_stamp(file.path) for file in files]

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns, which all files share."""
        first = self.files[0]
        types = {field.name: field.type for field in first.schema}
        for file in self.files[1:]:
            self._check_same(first, file)
            for name, kind in types.items():
                other = file.schema.field(name).type
                common = _common_type(kind, other)
                if common is None:
                    raise DataError(f"{file.path}: column {name!r} holds {other}, in {first.path} it holds {kind}")
                types[name] = common
        if all(field.type == types[field.name] for field in first.schema):
            return first.schema
        return pa.schema(types.items())

    @staticmethod
    def _check_same(first: TableFile, file: TableFile) -> None:
        own, others = set(first.names), set(file.names)
        if own != others:
            odd = sorted(own ^ others)
            raise DataError(
                f"{file.path}: columns differ from those of {first.path} ({listed(odd)} in one only); "
                "files of one table need the same columns"
            )

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    @cached_property
    def n_rows(self) -> int | None:
        """Number of rows where the files tell it without being read."""
        counts = [file.n_rows for file in self.files]
        return None if None in counts else sum(count or 0 for count in counts)

    def pieces(self, rows: int) -> Iterator[tuple[TableFiles, int, int | None]]:
        """As :meth:`TableFile.pieces`, file after file; all know the columns, and when the files were opened."""
        schema = self.schema
        for file, seen in zip(self.files, self._seen, strict=True):
            for piece, first, count in file.pieces(rows):
                part = TableFiles([piece], str(file.path))
                part._seen = [seen]
                part.__dict__["schema"] = schema  # one for all, so that many parts are pickled with one copy of it
                yield part, first, count

    def batches(self, rows: int) -> Iterator[pa.Table]:
        """The table in pieces of exactly ``rows`` rows, the last one of what is left; text files as text."""
        return rebatched(self.raw_batches(rows), rows)

    def raw_batches(
        self, rows: int, *, columns: Sequence[str] | None = None, numbers: Collection[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """As :meth:`TableFile.raw_batches`, file after file; columns in the order of the first file.

        Raises
        ------
        DataError
            When a file has changed since it was opened, or is gone: passes over other rows would not add up.
        """
        schema = self.schema
        chosen = list(schema.names if columns is None else columns)
        # Any of them may be null, whatever the first file says of itself.
        types = None if self.is_text else pa.schema([(name, schema.field(name).type) for name in chosen])

        def read(file: TableFile, seen: tuple[int, int]) -> Iterator[pa.RecordBatch]:
            self._check_unchanged(file, seen)
            for batch in file.raw_batches(rows, columns=chosen, numbers=numbers):
                ordered = batch.select(chosen)
                yield ordered if types is None else ordered.cast(types, safe=False)
            self._check_unchanged(file, seen)

        return chain.from_iterable(read(file, seen) for file, seen in zip(self.files, self._seen, strict=True))

    def cells(self, table: pa.Table, names: list[str]) -> pa.Table:
        """The named columns of a piece, with null where a text file spells a missing value."""
        return self.files[0].cells(table, names)

    @staticmethod
    def _check_unchanged(file: TableFile, seen: tuple[int, int]) -> None:
        try:
            now = _stamp(file.path)
        except FileNotFoundError:
            raise DataError(f"{file.path}: the file is gone; it is read several times, keep it till the end") from None
        if now != seen:
            raise DataError(
                f"{file.path}: the file has changed while it was in use; it is read several times: "
                "begin again with a file that stays as it is"
            )


def _stamp(path: str | PathLike[str]) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _common_type(first: Any, second: Any) -> Any:
    """The type that holds the values of both; None where they are of different kinds."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if all(is_text(_value_type(kind)) for kind in (first, second)):
        return pa.large_string()
    if not (is_numeric(first) and is_numeric(second)):
        return None
    integers = all(pa.types.is_integer(kind) and kind != pa.uint64() for kind in (first, second))
    return pa.int64() if integers else pa.float64()


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
