"""Beijing air quality: fine dust at twelve stations."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from prismgp.datasets.cache import Resource, cache_table, extract_matching, fetch
from prismgp.datasets.dataset import Dataset, check_seed, held_out
from prismgp.exceptions import DataError

__all__ = ["BEIJING", "COLUMNS", "STATIONS", "WINDS", "convert_beijing", "load_beijing_pm25"]

# The publisher states no checksum; this one is given alike by independent users of the archive.
BEIJING = Resource(
    "beijing/beijing+multi+site+air+quality+data.zip",
    ("https://archive.ics.uci.edu/static/public/501/beijing+multi+site+air+quality+data.zip",),
    "b04da438b2f331ac0ffd45aebdfec0d20d2367feb5f6948c4b1f7ce1191e33c4",
)
STATIONS = (
    *("Aotizhongxin", "Changping", "Dingling", "Dongsi", "Guanyuan", "Gucheng"),
    *("Huairou", "Nongzhanguan", "Shunyi", "Tiantan", "Wanliu", "Wanshouxigong"),
)
_FILE = r"PRSA_Data_[A-Za-z]+_\d{8}-\d{8}\.csv"
WINDS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
_MEASURED = ("SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN")
_TARGET = "PM2.5"
COLUMNS = ("year", "day_of_year", "hour", "station", *_MEASURED, "wind_sin", "wind_cos", "WSPM", _TARGET)


def convert_beijing(archive: Path) -> pd.DataFrame:
    """Make the table of complete rows from the published archive, ordered by station and time.

    The wind's direction becomes the sine and cosine of its angle from north, clockwise; the station its place in the
    alphabet, from 0. Rows that lack a value of any column that is used are left out.

    Parameters
    ----------
    archive : Path
        A zip file with one CSV file per station, also inside another zip file.

    Returns
    -------
    DataFrame, (n, 16)
        float32.

    Raises
    ------
    DataError
    """
    with tempfile.TemporaryDirectory() as folder:
        tables = [_station(path) for path in extract_matching(archive, _FILE, Path(folder))]
    return pd.concat(tables, ignore_index=True)


def _station(path: Path) -> pd.DataFrame:
    raw = pd.read_csv(path)
    used = ["year", "month", "day", "hour", "station", *_MEASURED, "wd", "WSPM", _TARGET]
    absent = [name for name in used if name not in raw.columns]
    if absent:
        raise DataError(f"{path.name} has no column {', '.join(absent)}")
    raw = raw[used].dropna()
    code = raw["station"].map({name: number for number, name in enumerate(STATIONS)})
    angle = raw["wd"].map({name: 2 * np.pi * number / len(WINDS) for number, name in enumerate(WINDS)})
    for name, coded in (("station", code), ("wd", angle)):
        if coded.isna().any():
            raise DataError(f"{path.name}: column {name!r} holds {raw.loc[coded.isna(), name].iloc[0]!r}")
    table = raw[[name for name in COLUMNS if name in raw.columns]].assign(
        day_of_year=pd.to_datetime(raw[["year", "month", "day"]]).dt.day_of_year,
        station=code,
        wind_sin=np.sin(angle),
        wind_cos=np.cos(angle),
    )
    return table[list(COLUMNS)].astype(np.float32)


def load_beijing_pm25(split: int = 0) -> Dataset:
    """Beijing multi-site air quality, UCI 501: hourly PM2.5 at twelve stations, 2013 to 2017.

    382,350 complete rows and 15 inputs: time, station, other pollutants, weather and wind.

    Parameters
    ----------
    split : int, default 0
        Seed of the random split; a tenth of the rows is held out.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The file is not available; the message says what to do.

    Notes
    -----
    Read from ``beijing_pm25.parquet`` in ``$PRISMGP_DATA`` or the cache, and otherwise made from the published
    archive. Neighbouring hours are very similar, so a random split is easier than a forecast.

    Examples
    --------
    >>> from prismgp.datasets import load_beijing_pm25
    >>> load_beijing_pm25()  # doctest: +SKIP
    <Dataset beijing_pm25: 382,350 rows (38,235 held out), 15 inputs, target 'PM2.5'>
    """
    seed = check_seed("split", split)
    frame = cache_table("beijing_pm25.parquet", COLUMNS, lambda: convert_beijing(fetch(BEIJING)))
    y = frame.pop(_TARGET)
    return Dataset(
        name="beijing_pm25",
        X=frame,
        y=y,
        test=held_out(len(y), 0.1, seed),
        simulated=False,
        title="Beijing multi-site air quality, PM2.5",
        origin="https://archive.ics.uci.edu/dataset/501/beijing+multi+site+air+quality+data",
        licence="CC BY 4.0",
        note="Neighbouring hours are very similar: a random split measures interpolation, not forecasts.",
    )
