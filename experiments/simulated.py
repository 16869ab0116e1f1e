"""The simulated gas sensor array in pieces and in files, for experiments with more rows than memory holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.internals import GAS_INPUTS, GAS_TARGET, Order, check_count, simulate_rows
from experiments.machine import atomic_path
from prismgp.datasets import make_gas_sensor
from prismgp.exceptions import DataError

__all__ = ["gas_sensor_chunks", "write_gas_sensor"]


def gas_sensor_chunks(
    n_rows: int, random_state: int = 0, chunk_rows: int = 65_536, *, order: Order = "random"
) -> Iterator[tuple[pd.DataFrame, pd.Series[float]]]:
    """The rows of ``make_gas_sensor`` in pieces of inputs and target; memory is that of one piece.

    The last piece may have fewer rows. The rows are the same whatever the pieces, and the index counts on.
    """
    total, size = check_count("n_rows", n_rows), check_count("chunk_rows", chunk_rows)
    make_gas_sensor(1, random_state, order=order)  # checks the other arguments

    def pieces() -> Iterator[tuple[pd.DataFrame, pd.Series[float]]]:
        for number, rows in enumerate(simulate_rows(0, total, size, random_state, order)):
            index = pd.RangeIndex(number * size, number * size + len(rows))
            inputs = pd.DataFrame(rows[:, 1:], columns=list(GAS_INPUTS), index=index, copy=False)
            yield inputs, pd.Series(rows[:, 0], name=GAS_TARGET, index=index)

    return pieces()


def write_gas_sensor(
    path: str | PathLike[str],
    n_rows: int,
    random_state: int = 0,
    *,
    n_files: int | None = None,
    row_group_rows: int = 65_536,
    order: Order = "random",
) -> list[Path]:
    """Write the rows of ``make_gas_sensor`` as Parquet; memory is that of one row group.

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

    Returns
    -------
    list of Path
        The files, in the order of the rows. Target first, then the inputs; the metadata key ``prismgp.simulated`` says
        ``true``. Each file appears only when it is complete.

    Raises
    ------
    DataError
        An argument is unusable, or a file cannot be written.
    """
    total, group = check_count("n_rows", n_rows), check_count("row_group_rows", row_group_rows)
    target = Path(path)
    if n_files is None:
        files, length = [target], total
    else:
        length = math.ceil(total / check_count("n_files", n_files))
        files = [target / f"part-{number:05d}.parquet" for number in range(math.ceil(total / length))]
        if len(files) < n_files:
            raise DataError(f"{total:,} rows do not fill {n_files:,} files")
    try:
        about = make_gas_sensor(1, random_state, order=order)  # checks the other arguments
        metadata = {
            "prismgp.simulated": "true",
            "prismgp.title": about.title,
            "prismgp.note": about.note,
            "prismgp.random_state": str(random_state),
            "prismgp.order": order,
        }
        schema = pa.schema([(name, pa.float32()) for name in (GAS_TARGET, *GAS_INPUTS)], metadata=metadata)
        if n_files is not None:
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise DataError(f"{target} is not empty: choose another folder")
        for number, file in enumerate(files):
            stop = min((number + 1) * length, total)
            with atomic_path(file) as temporary, pq.ParquetWriter(temporary, schema) as writer:
                for rows in simulate_rows(number * length, stop, group, random_state, order):
                    writer.write_table(pa.table([pa.array(column) for column in rows.T], schema=schema))
    except OSError as error:
        raise DataError(f"cannot write {error.filename or target}: {error.strerror or error}") from error
    return files
