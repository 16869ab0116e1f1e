"""Loaders of measured data: abalone, common regression sets of the UCI repository, Beijing's air, US flights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from prismgp.datasets.cache import Resource, cache_table, extract_matching, fetch
from prismgp.datasets.dataset import Dataset, check_count, check_fraction, held_out
from prismgp.exceptions import DataError

# -- abalone ---------------------------------------------------------------------------------------

ABALONE = Resource(
    "abalone/abalone.data",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",),
    "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
)
_ABALONE_TRAIN = 3000
_ABALONE_COLUMNS = (
    *("Sex", "Length", "Diameter", "Height"),
    *("Whole weight", "Shucked weight", "Viscera weight", "Shell weight", "Rings"),
)


def load_abalone(split: int = 0, *, test_fraction: float | None = None) -> Dataset:
    """Abalone, UCI 1: rings of 4,177 shells from sex and seven measures.

    Sex becomes three indicator columns, so there are ten inputs.

    Parameters
    ----------
    split : int, default 0
        Seed of the random split.
    test_fraction : float or None, default None
        Share of the rows that is held out. None: all but 3,000 rows, the split of this project's benchmarks.
        0.2 is the paper's 8-2 split.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The file is not available; the message says what to do.

    Examples
    --------
    >>> from prismgp.datasets import load_abalone
    >>> data = load_abalone(test_fraction=0.2)  # doctest: +SKIP
    >>> data  # doctest: +SKIP
    <Dataset abalone: 4,177 rows (835 held out), 10 inputs, target 'Rings'>
    """
    seed = check_count("split", split, least=0)
    share = None if test_fraction is None else check_fraction("test_fraction", test_fraction)
    path = fetch(ABALONE)
    frame = pd.read_csv(path, header=None)
    if frame.shape[1] != len(_ABALONE_COLUMNS):
        raise DataError(f"{path} has {frame.shape[1]} columns, not {len(_ABALONE_COLUMNS)}")
    frame.columns = pd.Index(_ABALONE_COLUMNS)
    sex = pd.get_dummies(frame["Sex"], prefix="Sex", prefix_sep="=", dtype=float)
    n_train = _ABALONE_TRAIN if share is None else len(frame) - int(len(frame) * share)
    test = np.ones(len(frame), dtype=bool)
    test[np.random.default_rng(seed).permutation(len(frame))[:n_train]] = False
    return Dataset(
        name="abalone",
        X=pd.concat([sex, frame[list(_ABALONE_COLUMNS[1:-1])].astype(float)], axis=1),
        y=frame["Rings"].astype(float),
        test=test,
        simulated=False,
        title="Abalone",
        origin="https://archive.ics.uci.edu/dataset/1/abalone",
        licence="CC BY 4.0",
    )


# -- the collection of Trefor Evans ------------------------------------------------------------------

_COLLECTION = "https://github.com/treforevans/uci_datasets"
_HOSTS = ("https://raw.githubusercontent.com", "https://media.githubusercontent.com/media")

_ROWS_SHA256 = {
    "airfoil": "1cce82516ac9e564fba52f55d817eb147fc39085f5d7b958ad15b92f4207f23e",
    "concrete": "542c5d9a0d301bdb47550280398dcbbe2fb8404631fc945de1ea6df9ade741c6",
    "elevators": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "energy": "431b6df04243db782bbcd45e408373a654334496ebe5d9c9985ab2e826a39f51",
    "keggdirected": "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd",
    "kin40k": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "pol": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "pumadyn32nm": "10d1698944e0f6e586f2781e4b62c17c05174d4c6cdb6fb824a3e5a1b3630ae4",
}
_MASKS_SHA256 = {
    "airfoil": "dbba6121fb8f900350fe10d724b54faa2b67fcc7bfc3409cf7add717281609e4",
    "concrete": "fae0926c655e4f9fb5669d0dbf2226bd8ff7daaadbd376adb8f32eac6f752e7e",
    "elevators": "9fe662eacca95ae2c9301cbc4c4134e55d58e903cb0cfb683771ffdd2d248eb5",
    "energy": "217df2cd4cabf818390e26a65384ea113c95b75bd687787a37ed2f87f28c9bb8",
    "keggdirected": "b8a7fc902444fdbc5866e8bf314e4778a303d675ef5267c83c5c25b70dacd357",
    "kin40k": "d15fd645d0e81a9a17ce2d0b8dde470bb2efba4d5f417459965abe4b237e2aea",
    "pol": "c5540259aabe58f5c7a534ed6f5141f8c1157d5de592e45884b7fced6091e981",
    "pumadyn32nm": "5a70d06c54813712456b3631ef406094c121a20fdc68b2dd400a1045f45b3f43",
}


def _resource(name: str, file: str, sha256: str) -> Resource:
    addresses = tuple(f"{host}/treforevans/uci_datasets/master/uci_datasets/{name}/{file}" for host in _HOSTS)
    return Resource(f"uci/{name}/{file}", addresses, sha256)


UCI = {
    name: (_resource(name, "data.csv.gz", rows), _resource(name, "test_mask.csv.gz", _MASKS_SHA256[name]))
    for name, rows in _ROWS_SHA256.items()
}
UCI_NAMES = tuple(sorted(UCI))

_REFUSED = {
    "bike": "its inputs determine the target",
    "gas": "it is the gas drift set, not the gas sensor array of the paper; that is load_gas_sensor()",
    "wine": "its target is the alcohol content, not the quality",
}
_NOTES = {"keggdirected": "32,486 rows are duplicates of others, so training and held-out rows of a split share rows."}


def load_uci(name: str, split: int = 0) -> Dataset:
    """One of the small regression sets with ten fixed splits.

    Inputs are called ``x1``, ``x2`` and so on, as the collection has no names; the target is centred.

    Parameters
    ----------
    name : {"airfoil", "concrete", "elevators", "energy", "keggdirected", "kin40k", "pol", "pumadyn32nm"}
    split : int from 0 to 9, default 0
        A tenth of the rows is held out; every row is in one of the ten splits.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The set is unknown or refused, or its files are not available; the message says what to do.

    Examples
    --------
    >>> from prismgp.datasets import load_uci
    >>> load_uci("kin40k", split=3)  # doctest: +SKIP
    <Dataset kin40k: 40,000 rows (4,000 held out), 8 inputs, target 'y'>
    """
    if name in _REFUSED:
        raise DataError(f"the collection's {name!r} is left out: {_REFUSED[name]}")
    if name not in UCI:
        raise DataError(f"no data set {name!r}: there are {', '.join(UCI_NAMES)}")
    column = check_count("split", split, least=0)
    rows, masks = (fetch(resource) for resource in UCI[name])
    table = pd.read_csv(rows, header=None).to_numpy(dtype=float)
    mask = pd.read_csv(masks, header=None).to_numpy()
    if len(mask) != len(table):
        raise DataError(f"{masks} has {len(mask):,} rows, {rows} has {len(table):,}")
    if column >= mask.shape[1]:
        raise DataError(f"split must be from 0 to {mask.shape[1] - 1}, not {column}")
    inputs = [f"x{number}" for number in range(1, table.shape[1])]
    return Dataset(
        name=name,
        X=pd.DataFrame(table[:, :-1], columns=inputs),
        y=pd.Series(table[:, -1], name="y"),
        test=mask[:, column].astype(bool),
        simulated=False,
        title=f"{name}, of the common UCI regression sets",
        origin=_COLLECTION,
        licence="the collection: MIT; its sets: see their own pages",
        note=_NOTES.get(name, ""),
    )


# -- Beijing: fine dust at twelve stations -----------------------------------------------------------

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
_STATION_FILE = r"PRSA_Data_[A-Za-z]+_\d{8}-\d{8}\.csv"
WINDS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
_MEASURED = ("SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN")
_PM25 = "PM2.5"
BEIJING_COLUMNS = ("year", "day_of_year", "hour", "station", *_MEASURED, "wind_sin", "wind_cos", "WSPM", _PM25)


def convert_beijing(archive: Path) -> pd.DataFrame:
    """Make the table of complete rows from the published archive, ordered by station and time.

    The wind's direction becomes the sine and cosine of its angle from north, clockwise; the station its place in the
    alphabet, from 0. Rows that lack a value of any column that is used are left out. The archive is a zip file with one
    CSV file per station, also inside another zip file. Returns (n, 16), float32.
    """
    with tempfile.TemporaryDirectory() as folder:
        tables = [_read_station(path) for path in extract_matching(archive, _STATION_FILE, Path(folder))]
    return pd.concat(tables, ignore_index=True)


def _read_station(path: Path) -> pd.DataFrame:
    raw = pd.read_csv(path)
    used = ["year", "month", "day", "hour", "station", *_MEASURED, "wd", "WSPM", _PM25]
    absent = [name for name in used if name not in raw.columns]
    if absent:
        raise DataError(f"{path.name} has no column {', '.join(absent)}")
    raw = raw[used].dropna()
    code = raw["station"].map({name: number for number, name in enumerate(STATIONS)})
    angle = raw["wd"].map({name: 2 * np.pi * number / len(WINDS) for number, name in enumerate(WINDS)})
    for name, coded in (("station", code), ("wd", angle)):
        if coded.isna().any():
            raise DataError(f"{path.name}: column {name!r} holds {raw.loc[coded.isna(), name].iloc[0]!r}")
    table = raw[[name for name in BEIJING_COLUMNS if name in raw.columns]].assign(
        day_of_year=pd.to_datetime(raw[["year", "month", "day"]]).dt.day_of_year,
        station=code,
        wind_sin=np.sin(angle),
        wind_cos=np.cos(angle),
    )
    return table[list(BEIJING_COLUMNS)].astype(np.float32)


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
    seed = check_count("split", split, least=0)
    frame = cache_table("beijing_pm25.parquet", BEIJING_COLUMNS, lambda: convert_beijing(fetch(BEIJING)))
    return _hold_out_tenth(
        frame,
        _PM25,
        seed,
        name="beijing_pm25",
        title="Beijing multi-site air quality, PM2.5",
        origin="https://archive.ics.uci.edu/dataset/501/beijing+multi+site+air+quality+data",
        licence="CC BY 4.0",
        note="Neighbouring hours are very similar: a random split measures interpolation, not forecasts.",
    )


# -- flights within the United States: three million delays ------------------------------------------


def _vega(file: str) -> tuple[str, ...]:
    release = f"https://raw.githubusercontent.com/vega/vega-datasets/v3.2.1/data/{file}"
    return release, f"https://vega.github.io/vega-datasets/data/{file}"


FLIGHTS = Resource(
    "flights/flights-3m.parquet",
    _vega("flights-3m.parquet"),
    "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0",
)
AIRPORTS = Resource(
    "flights/airports.csv", _vega("airports.csv"), "903c7169e6d558eefb95295fe2947ec8503135fbb855ea5c737cf4a90ea603ad"
)
_EARLIEST, _LATEST = -60, 360  # minutes of delay
_DELAY = "delay"
_FLIGHT_COLUMNS = (
    *("day_of_year", "day_of_week", "minute_of_day", "distance"),
    *("origin_lat", "origin_lon", "dest_lat", "dest_lon", _DELAY),
)


def convert_flights(flights: Path, airports: Path) -> pd.DataFrame:
    """Make the table of numbers, (n, 9), float32, from the published flights and the coordinates of airports.

    Delays beyond [-60, 360] minutes and airports without coordinates are left out.
    """
    places = pd.read_csv(airports, dtype={"iata": str}, keep_default_na=False).set_index("iata")
    raw = pd.read_parquet(flights, columns=["date", "delay", "distance", "origin", "destination"])
    raw = raw[raw["delay"].between(_EARLIEST, _LATEST)]
    when = raw["date"].dt
    table = pd.DataFrame(
        {
            "day_of_year": when.day_of_year,
            "day_of_week": when.day_of_week,
            "minute_of_day": when.hour * 60 + when.minute,
            "distance": raw["distance"],
            "origin_lat": raw["origin"].map(places["latitude"]),
            "origin_lon": raw["origin"].map(places["longitude"]),
            "dest_lat": raw["destination"].map(places["latitude"]),
            "dest_lon": raw["destination"].map(places["longitude"]),
            _DELAY: raw["delay"],
        }
    )
    table = table.dropna().reset_index(drop=True).astype(np.float32)
    if table.empty:
        raise DataError(f"{flights} has no usable row")
    return table


def load_flights(split: int = 0) -> Dataset:
    """Delays of 2,998,826 flights within the United States, January to June 2001.

    Eight inputs: day of year, day of week (0 is Monday), minute of the day, distance in miles, and the coordinates of
    both airports. The target is the delay in minutes, between -60 and 360.

    Parameters
    ----------
    split : int, default 0
        Seed of the random split, which holds out a tenth of the rows.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The files are not available; the message says what to do.

    Notes
    -----
    Read from ``flights.parquet`` in ``$PRISMGP_DATA`` or the cache, and otherwise made from ``flights-3m.parquet`` and
    ``airports.csv`` of Vega's example data, which took them from the Bureau of Transportation Statistics.

    Examples
    --------
    >>> from prismgp.datasets import load_flights
    >>> load_flights()  # doctest: +SKIP
    <Dataset flights: 2,998,826 rows (299,882 held out), 8 inputs, target 'delay'>
    """
    seed = check_count("split", split, least=0)
    frame = cache_table("flights.parquet", _FLIGHT_COLUMNS, lambda: convert_flights(fetch(FLIGHTS), fetch(AIRPORTS)))
    return _hold_out_tenth(
        frame,
        _DELAY,
        seed,
        name="flights",
        title="US flight delays, January to June 2001",
        origin="https://github.com/vega/vega-datasets",
        licence="data reported to the US Department of Transportation; its terms are not stated",
        note="Most of the delay is not explained by the inputs.",
    )


def _hold_out_tenth(frame: pd.DataFrame, target: str, seed: int, **about: str) -> Dataset:
    """A measured data set of the table with a random tenth of the rows held out; ``about`` describes it."""
    y = frame.pop(target)
    return Dataset(X=frame, y=y, test=held_out(len(y), 0.1, seed), simulated=False, **about)
