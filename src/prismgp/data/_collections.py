"""Dask arrays and frames as sources."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd

from prismgp.data._cluster import Cluster
from prismgp.data._columns import listed
from prismgp.data._dask import DaskSource
from prismgp.data._shards import PartitionRecipe, Shard
from prismgp.exceptions import DataError

__all__ = ["collection_source", "is_collection"]


def is_collection(data: Any) -> bool:
    """Whether this is a Dask array, frame or series."""
    return _is_array(data) or _is_frame(data)


def _is_array(data: Any) -> bool:
    module = sys.modules.get("dask.array")  # an array cannot exist before its module is imported
    return module is not None and isinstance(data, module.Array)


def _is_frame(data: Any) -> bool:
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(data, module.DataFrame | module.Series)


def collection_source(X: Any, y: Any = None) -> DaskSource:
    """Rows of Dask collections; partitions of X and of y must hold the same rows.

    Tasks run on the client that is current at the time, or else in threads.

    Parameters
    ----------
    X : dask array, (n, d), or frame
    y : dask array, (n,) or (n, q), series or frame, or None
        None: rows to predict from.
    """
    if X.ndim != 2:
        raise DataError(f"X has {X.ndim} dimension(s); it must have rows and columns")
    if y is not None and not is_collection(y):
        raise DataError(
            f"X is a Dask collection, but y is {type(y).__name__}; make it one with the same partitions, "
            "e.g. dask.array.from_array(y, chunks=(X.chunks[0],))"
        )
    if y is not None and y.ndim > 2:
        raise DataError(f"y has {y.ndim} dimensions; it must have one or two")
    _check_types(X, "X")
    names = _names(X)
    tasks, lengths = _partitions(X)
    parts: list[tuple[Any, ...]] = [(task,) for task in tasks]
    if y is not None:
        _check_types(y, "y")
        y_tasks, y_lengths = _partitions(y)
        _check_alike(lengths, y_lengths)
        parts = [(*own, task) for own, task in zip(parts, y_tasks, strict=True)]
    width = _width(X)
    outputs = 0 if y is None else _width(y)
    if not width:
        raise DataError("X has no columns")
    single = y is None or y.ndim == 1
    shards = [
        Shard(PartitionRecipe(number, width, outputs, single=single), own, length)
        for number, (own, length) in enumerate(zip(parts, lengths, strict=True))
    ]
    source = DaskSource(shards, Cluster(), n_inputs=width, n_outputs=outputs, feature_names=names, single=single)
    if not source.n_rows:
        raise DataError("X has no rows")
    return source


def _width(data: Any) -> int:
    return 1 if data.ndim == 1 else int(data.shape[1])


def _names(X: Any) -> list[str] | None:
    """Of the columns, as scikit-learn has them: only where all are text."""
    names = list(X.columns) if _is_frame(X) else []
    return names if names and all(isinstance(name, str) for name in names) else None


def _partitions(data: Any) -> tuple[list[Any], list[int | None]]:
    """A delayed value for each partition, and its rows where these are known."""
    if _is_frame(data):
        tasks = list(data.to_delayed())
        return tasks, [None] * len(tasks)
    if data.ndim == 2 and data.numblocks[1] > 1:
        data = data.rechunk({1: -1})
    lengths = [None if np.isnan(length) else int(length) for length in data.chunks[0]]
    return list(data.to_delayed().ravel()), lengths


def _check_alike(x: list[int | None], y: list[int | None]) -> None:
    remedy = "make them alike, e.g. with y.rechunk((X.chunks[0],)), or take both from one frame"
    if len(x) != len(y):
        raise DataError(f"X has {len(x):,} partitions and y has {len(y):,}; {remedy}")
    for number, (own, other) in enumerate(zip(x, y, strict=True)):
        if own is not None and other is not None and own != other:
            raise DataError(f"partition {number} (counting from 0): X has {own:,} rows and y has {other:,}; {remedy}")


def _check_types(data: Any, what: str) -> None:
    """Refuse what is no number before anything is computed."""
    if not _is_frame(data):
        if data.dtype.kind not in "fiub":
            raise DataError(f"{what} is a Dask array of {data.dtype}; it must hold real numbers")
        return
    meta = data._meta if data.ndim == 2 else data._meta.to_frame()
    twice = [name for name, count in Counter(meta.columns).items() if count > 1]
    if twice:
        raise DataError(f"{what}: duplicate column {listed(twice)}; every column needs a name of its own")
    for name, kind in meta.dtypes.items():
        if pd.api.types.is_bool_dtype(kind) or (
            pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
        ):
            continue
        if pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind):
            remedy = "convert it to numbers, e.g. to days since a start, or drop it"
        else:
            remedy = (
                "encode it, or fit from the files: prismgp.data.from_parquet(path, target, client=client) "
                "encodes text and categories, and remembers how"
            )
        raise DataError(f"column {name!r} of {what} holds {kind}, which is not a number; {remedy}")
