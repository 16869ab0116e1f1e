"""From the user's rows to standardised chunks on the compute device."""

from prismgp.data._chunks import Chunks, auto_chunk_rows, standardise
from prismgp.data._collections import collection_source, is_collection
from prismgp.data._dask import DaskSource
from prismgp.data._files import FileSource, from_csv, from_parquet
from prismgp.data._prefetch import prefetched
from prismgp.data._source import ArraySource, MappedSource, Selection, Source
from prismgp.data._spilled import SpilledSource
from prismgp.data._standardise import Standardiser
from prismgp.data._table import TableEncoder
from prismgp.data.rows import StandardisedRows

__all__ = [
    "ArraySource",
    "Chunks",
    "DaskSource",
    "FileSource",
    "MappedSource",
    "Selection",
    "Source",
    "SpilledSource",
    "StandardisedRows",
    "Standardiser",
    "TableEncoder",
    "auto_chunk_rows",
    "collection_source",
    "from_csv",
    "from_parquet",
    "is_collection",
    "prefetched",
    "standardise",
]
