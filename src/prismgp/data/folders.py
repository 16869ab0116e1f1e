"""Folders of table files: which files they have, and the columns that are in the names of folders.

Hive, Spark, Dask and pandas write the latter, as in ``year=2024/month=5/part.parquet``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from prismgp.exceptions import DataError

_MISSING = "__HIVE_DEFAULT_PARTITION__"

Partition = Mapping[str, "pa.Scalar"]


def find_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Files of a folder and its subfolders with these suffixes, sorted by name, but for hidden ones."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.lower().endswith(tuple(suffixes))
        and not any(_is_hidden(part) for part in path.relative_to(folder).parts)
        and path.is_file()
    ]


def _is_hidden(part: str) -> bool:
    """Whether a file or folder is skipped, by its name; names of columns may begin with an underscore: _year=2024."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def read_partitions(folder: Path, paths: Sequence[Path], *, as_text: bool) -> list[Partition]:
    """The values in the names of folders, for each file: integers if all values of a column are, else text.

    Null if the folders of a file do not have the column. ``as_text``: always text, as in a text file.
    """
    found = [_values(path.relative_to(folder).parts[:-1]) for path in paths]
    types = {}
    for name in dict.fromkeys(name for each in found for name in each):
        texts = {each.get(name) for each in found} - {None}
        types[name] = pa.int64() if texts and not as_text and all(map(_is_integer, texts)) else pa.string()
    return [{name: pa.scalar(each.get(name), pa.string()).cast(kind) for name, kind in types.items()} for each in found]


def add_columns(batch: pa.RecordBatch, partition: Partition, names: Sequence[str]) -> pa.RecordBatch:
    """The named columns: those of a batch, and those in the names of its folders."""
    arrays = [pa.repeat(partition[name], batch.num_rows) if name in partition else batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _values(folders: Sequence[str]) -> dict[str, str | None]:
    pairs = (folder.split("=", 1) for folder in folders if "=" in folder[1:])
    return {_decode(name): None if value == _MISSING else _decode(value) for name, value in pairs}


def _decode(text: str) -> str:
    """Part of the name of a folder, in which some characters may be written as %20."""
    try:
        found = unquote(text, errors="strict")
        found.encode()
    except UnicodeError:
        shown = text.encode(errors="replace").decode()
        raise DataError(f"the name of a folder, with {shown!r} in it, is not UTF-8; rename the folder") from None
    return found


def _is_integer(text: str | None) -> bool:
    """Whether a text is an integer, of at most 18 digits, or a month written 01; 00501 is a code."""
    return text is not None and re.fullmatch(r"0[0-9]?|-?[1-9][0-9]{0,17}", text) is not None
