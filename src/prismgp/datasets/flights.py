"""Flights within the United States: three million delays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from prismgp.datasets.cache import Resource, cache_table, fetch
from prismgp.datasets.dataset import Dataset, check_seed, held_out
from prismgp.exceptions import DataError

__all__ = ["AIRPORTS", "FLIGHTS", "convert_flights", "load_flights"]


def _addresses(file: str) -> tuple[str, ...]:
    release = f"https://raw.githubusercontent.com/vega/vega-datasets/v3.2.1/data/{file}"
    return release, f"https://vega.github.io/vega-datasets/data/{file}"


FLIGHTS = Resource(
    "flights/flights-3m.parquet",
    _addresses("flights-3m.parquet"),
    "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0",
)
AIRPORTS = Resource(
    "flights/airports.csv",
    _addresses("airports.csv"),
    "903c7169e6d558eefb95295fe2947ec8503135fbb855ea5c737cf4a90ea603ad",
)
_EARLIEST, _LATEST = -60, 360  # minutes of delay
_TARGET = "delay"
_COLUMNS = (
    *("day_of_year", "day_of_week", "minute_of_day", "distance"),
    *("origin_lat", "origin_lon", "dest_lat", "dest_lon", _TARGET),
)


def convert_flights(flights: Path, airports: Path) -> pd.DataFrame:
    """Make the table of numbers from the published files.

    Parameters
    ----------
    flights : Path
        Parquet file with date, delay, distance, origin and destination.
    airports : Path
        CSV file with the coordinates of the airports.

    Returns
    -------
    DataFrame, (n, 9)
        float32. Delays beyond [-60, 360] minutes and airports without coordinates are left out.

    Raises
    ------
    DataError
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
            _TARGET: raw["delay"],
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
        Seed of the random split; a tenth of the rows is held out.

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
    seed = check_seed("split", split)
    frame = cache_table("flights.parquet", _COLUMNS, lambda: convert_flights(fetch(FLIGHTS), fetch(AIRPORTS)))
    y = frame.pop(_TARGET)
    return Dataset(
        name="flights",
        X=frame,
        y=y,
        test=held_out(len(y), 0.1, seed),
        simulated=False,
        title="US flight delays, January to June 2001",
        origin="https://github.com/vega/vega-datasets",
        licence="data reported to the US Department of Transportation; its terms are not stated",
        note="Most of the delay is not explained by the inputs.",
    )
