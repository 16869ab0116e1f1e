"""Data sets for examples, tests and benchmarks: downloaded once and checked, or simulated.

Files are looked for in ``$PRISMGP_DATA``, then in the cache (``$PRISMGP_CACHE``), and downloaded into the cache
otherwise.
"""

from prismgp.datasets.beijing import load_beijing_pm25
from prismgp.datasets.cache import cache_folder, data_folder
from prismgp.datasets.dataset import Dataset
from prismgp.datasets.flights import load_flights
from prismgp.datasets.gas_sensor import gas_sensor_files, load_gas_sensor
from prismgp.datasets.gas_simulation import gas_sensor_chunks, make_gas_sensor, write_gas_sensor
from prismgp.datasets.uci import UCI_NAMES, load_abalone, load_uci

__all__ = [
    "UCI_NAMES",
    "Dataset",
    "cache_folder",
    "data_folder",
    "gas_sensor_chunks",
    "gas_sensor_files",
    "load_abalone",
    "load_beijing_pm25",
    "load_flights",
    "load_gas_sensor",
    "load_uci",
    "make_gas_sensor",
    "write_gas_sensor",
]
