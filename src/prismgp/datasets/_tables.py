"""Tables that are made once from published files and then kept as Parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from prismgp._system import atomic_path
from prismgp.datasets._folders import cache_folder
from prismgp.datasets._resources import find
from prismgp.exceptions import DataError

__all__ = ["processed"]


def processed(name: str, columns: Sequence[str], make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The table, read where it lies, or made and put into the cache.

    Parameters
    ----------
    name : str
        File in the data folder or the cache.
    columns : sequence of str
        What it must hold, in this order.
    make : callable
        Makes the table from the published files.
    """
    there = find(name)
    if there is not None:
        return _read(there, columns)
    frame = make()
    target = cache_folder() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as temporary:
            frame.to_parquet(temporary, index=False)
    except OSError as error:
        raise DataError(f"cannot store {target}: {error.strerror or error}; free space or set PRISMGP_CACHE") from error
    return frame


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        absent = [name for name in columns if name not in names]
        if absent:
            raise DataError(f"{path} has no column {', '.join(absent)}: it is not the expected table")
        frame: pd.DataFrame = file.read(columns=list(columns)).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}; replace or remove it") from error
    return frame[list(columns)]
