"""From the user's rows to standardised chunks on the compute device."""

from prismgp.data._chunks import Chunks, Work, auto_chunk_rows
from prismgp.data._dask import DaskSource
from prismgp.data._files import FileSource, from_csv, from_parquet
from prismgp.data._source import ArraySource, MappedSource, Selection, Source
from prismgp.data._spilled import SpilledSource
from prismgp.data._standardise import Standardiser

__all__ = [
    "ArraySource",
    "Chunks",
    "DaskSource",
    "FileSource",
    "MappedSource",
    "Selection",
    "Source",
    "SpilledSource",
    "Standardiser",
    "Work",
    "auto_chunk_rows",
    "from_csv",
    "from_parquet",
]
