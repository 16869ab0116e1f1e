"""The gas sensor array of the paper: carbon monoxide from fourteen heated metal-oxide sensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

from prismgp.datasets.cache import Resource, cache_folder, extract_matching, fetch, search_folders
from prismgp.datasets.dataset import Dataset, check_count, held_out
from prismgp.exceptions import DataError

N_SENSORS = 14
GAS_TARGET = "CO (ppm)"
GAS_INPUTS = (
    *("Humidity (%r.h.)", "Temperature (C)", "Flow rate (mL/min)", "Heater voltage (V)"),
    *(f"R{number} (MOhm)" for number in range(1, N_SENSORS + 1)),
)
GAS_FILES = (  # one per day of measurements; the name is its start
    *("20160930_203718.csv", "20161001_231809.csv", "20161003_085624.csv", "20161004_104124.csv"),
    *("20161005_140846.csv", "20161006_182224.csv", "20161007_210049.csv", "20161008_234508.csv"),
    *("20161010_095046.csv", "20161011_113032.csv", "20161013_143355.csv", "20161014_184659.csv"),
    "20161016_053656.csv",
)

# The publisher states no checksum: that of the first download is kept.
GAS_SENSOR = Resource(
    "gas_sensor/gas+sensor+array+temperature+modulation.zip",
    ("https://archive.ics.uci.edu/static/public/487/gas+sensor+array+temperature+modulation.zip",),
    None,
)
_PATTERN = r"\d{8}_\d{6}\.csv"
BATCH_BYTES = 8 << 20
SLACK_ROWS = 65_536  # rows that may be kept beyond those wanted, so that sorting is rare
Rows = npt.NDArray[np.float32]
Keyed = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], Rows]  # random keys, row numbers, rows


def gas_sensor_files() -> list[Path]:
    """The thirteen CSV files of the gas sensor array, UCI 487, downloaded if needed.

    To read the four million rows in pieces. Each file is a day of measurements; the columns are ``Time (s)``,
    ``CO (ppm)`` and the 18 inputs.

    Returns
    -------
    list of Path
        In the order of time: from ``gas_sensor`` in ``$PRISMGP_DATA`` or in the cache.

    Raises
    ------
    DataError
        The files are not available; the message says what to do.

    Examples
    --------
    >>> from prismgp.datasets import gas_sensor_files
    >>> len(gas_sensor_files())  # doctest: +SKIP
    13
    """
    remarks = []
    for folder in search_folders():
        paths = [folder / "gas_sensor" / name for name in GAS_FILES]
        absent = [path.name for path in paths if not path.is_file()]
        if not absent:
            return paths
        if len(absent) < len(paths):
            remarks.append(f"{folder / 'gas_sensor'} lacks {', '.join(absent)}")
    try:
        archive = fetch(GAS_SENSOR)
    except DataError as error:
        also = "; ".join(["the 13 CSV files of the archive can be there instead of it", *remarks])
        raise DataError(f"{error} ({also})") from error
    target = cache_folder() / "gas_sensor"
    names = {path.name for path in extract_matching(archive, _PATTERN, target)}
    absent = [name for name in GAS_FILES if name not in names]
    if absent:
        raise DataError(f"{archive} lacks {', '.join(absent)}: it is not the expected archive")
    return [target / name for name in GAS_FILES]


def load_gas_sensor(n_rows: int | None = None, random_state: int = 0) -> Dataset:
    """Gas sensor array under temperature modulation, UCI 487: carbon monoxide from 18 inputs.

    Humidity, temperature, flow rate, heater voltage and the resistances of fourteen sensors; the time is left out.

    Parameters
    ----------
    n_rows : int or None, default None
        Size of a uniform random sample, in the order of time; the paper uses 10,000 and 500,000. None: all rows,
        about four million. Memory is that of the rows returned.
    random_state : int, default 0
        Seed of the sample and of the split; a fifth of the rows is held out.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The files are not available or not the published ones; the message says what to do.

    See Also
    --------
    make_gas_sensor : A simulation of the array, which needs no download.

    Examples
    --------
    >>> from prismgp.datasets import load_gas_sensor
    >>> load_gas_sensor(10_000)  # doctest: +SKIP
    <Dataset gas_sensor: 10,000 rows (2,000 held out), 18 inputs, target 'CO (ppm)'>
    """
    seed = check_count("random_state", random_state, least=0)
    wanted = None if n_rows is None else check_count("n_rows", n_rows)
    files = gas_sensor_files()
    if wanted is None:
        table = np.concatenate([rows for path in files for rows in read_rows(path)])
    else:
        table = _sample(files, wanted, seed)
    return Dataset(
        name="gas_sensor",
        X=pd.DataFrame(table[:, 1:], columns=list(GAS_INPUTS), copy=False),
        y=pd.Series(table[:, 0], name=GAS_TARGET),
        test=held_out(len(table), 0.2, [seed, 1]),
        simulated=False,
        title="Gas sensor array temperature modulation",
        origin="https://archive.ics.uci.edu/dataset/487/gas+sensor+array+temperature+modulation",
        licence="CC BY 4.0",
        note="Neighbouring rows are 0.3 s apart: a random split measures interpolation within conditions.",
    )


def read_rows(path: Path) -> Iterator[Rows]:
    """Read the target and the inputs of a file in batches, (m, 19)."""
    names = [GAS_TARGET, *GAS_INPUTS]
    try:
        reader = pc.open_csv(
            path,
            read_options=pc.ReadOptions(use_threads=False, block_size=BATCH_BYTES),
            convert_options=pc.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names, pa.float32()), strings_can_be_null=False
            ),
        )
        with reader:
            for batch in reader:
                rows = np.empty((batch.num_rows, len(names)), dtype=np.float32)
                for place, name in enumerate(names):
                    rows[:, place] = batch.column(name).to_numpy(zero_copy_only=False)
                if not np.isfinite(rows).all():
                    column = names[int(np.flatnonzero(~np.isfinite(rows).all(axis=0))[0])]
                    raise DataError(f"{path}: column {column!r} has missing or infinite values")
                yield rows
    except (pa.ArrowException, KeyError, OSError) as error:
        raise DataError(f"{path} cannot be read as a file of the gas sensor array: {error}") from error


def _sample(files: list[Path], n_rows: int, seed: int) -> Rows:
    """A uniform sample without replacement in one pass: the rows with the smallest random keys."""
    rng = np.random.default_rng([seed, 0])
    kept: list[Keyed] = []
    waiting, read, bound = 0, 0, np.inf
    for path in files:
        for rows in read_rows(path):
            keys = rng.random(len(rows))  # one per row, so that the batches do not matter
            chosen = keys < bound
            kept.append((keys[chosen], read + np.flatnonzero(chosen), rows[chosen]))
            read += len(rows)
            waiting += int(chosen.sum())
            if waiting > 2 * n_rows + SLACK_ROWS:
                kept = [keep_smallest(kept, n_rows)]
                waiting, bound = n_rows, float(kept[0][0].max())
    if read < n_rows:
        raise DataError(f"n_rows is {n_rows:,}, but the files have {read:,} rows")
    _, places, rows = keep_smallest(kept, n_rows)
    return rows[np.argsort(places)]


def keep_smallest(kept: list[Keyed], n_rows: int) -> Keyed:
    """Keys, row numbers and rows of the ``n_rows`` smallest keys."""
    keys, places, rows = (np.concatenate(column) for column in zip(*kept, strict=True))
    first = np.argpartition(keys, n_rows - 1)[:n_rows]
    return keys[first], places[first], rows[first]
