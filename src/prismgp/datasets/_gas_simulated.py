"""A simulated gas sensor array, of any length, in any pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from prismgp._system import atomic_path
from prismgp.datasets._dataset import Dataset, check_count, check_seed, held_out
from prismgp.datasets._gas_columns import GAS_INPUTS, GAS_TARGET
from prismgp.datasets._gas_physics import CAMPAIGN_SECONDS, SAMPLING_SECONDS, simulate
from prismgp.exceptions import DataError

__all__ = ["gas_sensor_chunks", "make_gas_sensor", "write_gas_sensor"]

Order = Literal["random", "time"]
_BLOCK = 8_192  # rows that share a random stream; changing it changes the data
_NAMES = [GAS_TARGET, *GAS_INPUTS]
_TITLE = "Simulated gas sensor array"
_NOTE = (
    "Simulated: computed from a simple model of a chamber with fourteen heated metal-oxide sensors. "
    "Scores on it say nothing about the measured set."
)
Rows = npt.NDArray[np.float32]


def make_gas_sensor(n_rows: int, random_state: int = 0, *, order: Order = "random") -> Dataset:
    """Simulate the gas sensor array: carbon monoxide from 18 inputs, with the columns of the measured set.

    Steps of concentration and humidity in a chamber that follows with a lag; a heater that switches between two
    voltages; two models of seven sensors, with power laws, lags, drift over days and multiplicative noise.

    Parameters
    ----------
    n_rows : int
    random_state : int, default 0
        Row i depends on this, on i and on ``order`` only: a longer simulation begins with the shorter one.
    order : {"random", "time"}, default "random"
        "random": rows at random moments of the 13 days, as in a uniform sample. "time": rows every 0.308 s from the
        start, as in a file of the measured set.

    Returns
    -------
    Dataset
        float32, a random fifth held out, ``simulated`` is True.

    Raises
    ------
    DataError
        An argument is unusable.

    See Also
    --------
    load_gas_sensor : The measured set.
    gas_sensor_chunks : The same rows in pieces.
    write_gas_sensor : The same rows in Parquet files.

    Examples
    --------
    >>> from prismgp.datasets import make_gas_sensor
    >>> make_gas_sensor(1000)
    <Dataset gas_sensor_simulated: simulated, 1,000 rows (200 held out), 18 inputs, target 'CO (ppm)'>
    """
    seed = check_seed("random_state", random_state)
    total = check_count("n_rows", n_rows)
    table = next(_rows(0, total, total, seed, _check_order(order)))
    X, y = _frames(table, 0)
    return Dataset(
        name="gas_sensor_simulated",
        X=X,
        y=y,
        test=held_out(total, 0.2, [seed, 1]),
        simulated=True,
        title=_TITLE,
        origin="",
        licence="MIT, as this library",
        note=_NOTE,
    )


def gas_sensor_chunks(
    n_rows: int, random_state: int = 0, chunk_rows: int = 65_536, *, order: Order = "random"
) -> Iterator[tuple[pd.DataFrame, pd.Series[float]]]:
    """The rows of :func:`make_gas_sensor` in pieces; memory is that of one piece.

    Parameters
    ----------
    n_rows : int
    random_state : int, default 0
    chunk_rows : int, default 65,536
        Rows of a piece; the last may have fewer. The rows are the same whatever the pieces.
    order : {"random", "time"}, default "random"
        As in :func:`make_gas_sensor`.

    Returns
    -------
    iterator of (DataFrame, Series)
        Inputs and target; the index counts on.

    Raises
    ------
    DataError
        An argument is unusable.

    Examples
    --------
    >>> from prismgp.datasets import gas_sensor_chunks
    >>> [len(y) for _, y in gas_sensor_chunks(2500, chunk_rows=1000)]
    [1000, 1000, 500]
    """
    total = check_count("n_rows", n_rows)
    seed = check_seed("random_state", random_state)
    size = check_count("chunk_rows", chunk_rows)
    kind = _check_order(order)
    pieces = _rows(0, total, size, seed, kind)
    return (_frames(rows, number * size) for number, rows in enumerate(pieces))


def write_gas_sensor(
    path: str | PathLike[str],
    n_rows: int,
    random_state: int = 0,
    *,
    n_files: int | None = None,
    row_group_rows: int = 65_536,
    order: Order = "random",
) -> list[Path]:
    """Write the rows of :func:`make_gas_sensor` as Parquet; memory is that of one row group.

    Parameters
    ----------
    path : path
        A file, or with ``n_files`` a folder, which must be absent or empty.
    n_rows : int
    random_state : int, default 0
    n_files : int or None, default None
        None: one file. Otherwise a folder with this many files ``part-00000.parquet`` and so on, of equal length but
        for the last.
    row_group_rows : int, default 65,536
    order : {"random", "time"}, default "random"
        As in :func:`make_gas_sensor`.

    Returns
    -------
    list of Path
        The files, in the order of the rows. Target first, then the inputs; the metadata key ``prismgp.simulated`` says
        ``true``. Each file appears only when it is complete.

    Raises
    ------
    DataError
        An argument is unusable, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from prismgp.datasets import write_gas_sensor
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_gas_sensor(f"{folder}/gas", 5000, n_files=2)]
    ['part-00000.parquet', 'part-00001.parquet']
    """
    total = check_count("n_rows", n_rows)
    seed = check_seed("random_state", random_state)
    group = check_count("row_group_rows", row_group_rows)
    kind = _check_order(order)
    target = Path(path)
    if n_files is None:
        files, length = [target], total
    else:
        length = math.ceil(total / check_count("n_files", n_files))
        files = [target / f"part-{number:05d}.parquet" for number in range(math.ceil(total / length))]
        if len(files) < n_files:
            raise DataError(f"{total:,} rows do not fill {n_files:,} files")
    schema = pa.schema(
        [(name, pa.float32()) for name in _NAMES],
        metadata={
            "prismgp.simulated": "true",
            "prismgp.title": _TITLE,
            "prismgp.note": _NOTE,
            "prismgp.random_state": str(seed),
            "prismgp.order": kind,
        },
    )
    try:
        if n_files is not None:
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise DataError(f"{target} is not empty: choose another folder")
        for number, file in enumerate(files):
            start = number * length
            _write(file, schema, _rows(start, min(start + length, total), group, seed, kind))
    except OSError as error:
        raise DataError(f"cannot write {error.filename or target}: {error.strerror or error}") from error
    return files


def _write(file: Path, schema: Any, groups: Iterator[Rows]) -> None:
    with atomic_path(file) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for rows in groups:
            writer.write_table(pa.table([pa.array(column) for column in rows.T], schema=schema))


def _check_order(order: Any) -> Order:
    if order not in get_args(Order):
        raise DataError(f"order must be 'random' or 'time', not {order!r}")
    kind: Order = order
    return kind


def _block(number: int, seed: int, order: Order) -> Rows:
    """A block of rows, (8192, 19): the unit of randomness."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, number)))
    if order == "random":
        t = rng.uniform(0, CAMPAIGN_SECONDS, _BLOCK)
    else:
        t = SAMPLING_SECONDS * (number * _BLOCK + np.arange(_BLOCK) + rng.uniform(0, 0.01, _BLOCK))
    return simulate(seed, t, rng)


def _rows(start: int, stop: int, size: int, seed: int, order: Order) -> Iterator[Rows]:
    """The rows from ``start`` to ``stop`` in pieces of ``size``, (size, 19); the last may have fewer."""
    number, block = -1, np.empty((0, len(_NAMES)), dtype=np.float32)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        piece = np.empty((last - first, len(_NAMES)), dtype=np.float32)
        at = first
        while at < last:
            if at // _BLOCK != number:
                number = at // _BLOCK
                block = _block(number, seed, order)
            inside = at - number * _BLOCK
            count = min(_BLOCK - inside, last - at)
            piece[at - first : at - first + count] = block[inside : inside + count]
            at += count
        yield piece


def _frames(table: Rows, start: int) -> tuple[pd.DataFrame, pd.Series[float]]:
    index = pd.RangeIndex(start, start + len(table))
    X = pd.DataFrame(table[:, 1:], columns=list(GAS_INPUTS), index=index, copy=False)
    return X, pd.Series(table[:, 0], name=GAS_TARGET, index=index)
