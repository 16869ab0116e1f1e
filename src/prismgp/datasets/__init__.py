"""Data sets for examples, tests and benchmarks: downloaded once and checked, or simulated.

Files are looked for in ``$PRISMGP_DATA``, then in the cache (``$PRISMGP_CACHE``), and downloaded into the cache
otherwise.
"""

from prismgp.datasets._abalone import load_abalone
from prismgp.datasets._beijing import load_beijing_pm25
from prismgp.datasets._dataset import Dataset
from prismgp.datasets._flights import load_flights
from prismgp.datasets._folders import cache_folder, data_folder
from prismgp.datasets._gas_sensor import gas_sensor_files, load_gas_sensor
from prismgp.datasets._gas_simulated import gas_sensor_chunks, make_gas_sensor, write_gas_sensor
from prismgp.datasets._uci import UCI_NAMES, load_uci

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
