"""Data sets for examples, tests and benchmarks: downloaded once and checked, or simulated.

Files are looked for in ``$PRISMGP_DATA``, then in the cache (``$PRISMGP_CACHE``), and downloaded into the cache
otherwise.
"""

from prismgp.datasets.cache import cache_folder, data_folder
from prismgp.datasets.dataset import Dataset
from prismgp.datasets.gas_sensor import gas_sensor_files, load_gas_sensor
from prismgp.datasets.gas_simulation import make_gas_sensor
from prismgp.datasets.loaders import UCI_NAMES, load_abalone, load_beijing_pm25, load_flights, load_uci

__all__ = [
    "UCI_NAMES",
    "Dataset",
    "cache_folder",
    "data_folder",
    "gas_sensor_files",
    "load_abalone",
    "load_beijing_pm25",
    "load_flights",
    "load_gas_sensor",
    "load_uci",
    "make_gas_sensor",
]
