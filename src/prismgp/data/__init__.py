"""From the user's rows to standardised chunks on the compute device.

Tables pass through these modules in order: ``columns`` and ``tables`` (cells and files), ``encoder`` (text and
categories to numbers), ``reader`` (rows of files as a model takes them), ``sources`` and ``files`` (rows to pass over
again and again), ``chunks`` (standardised tensors), ``rows`` (what a fit works on); ``cluster`` and ``dask`` do the
passes on a Dask cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prismgp.data.chunks import Chunks, Pass, Standardiser, auto_chunk_rows, prefetch, standardise
from prismgp.data.columns import InputColumn
from prismgp.data.encoder import TableEncoder
from prismgp.data.files import FileSource, file_source, from_csv, from_parquet
from prismgp.data.reader import RowBlock, TableReader
from prismgp.data.rows import StandardisedRows
from prismgp.data.sources import ArraySource, MappedSource, Selection, Source
from prismgp.data.tables import TableFiles, open_tables

if TYPE_CHECKING:
    from prismgp.data.cluster import Cluster
    from prismgp.data.dask import DaskFileSource, DaskSource, collection_source, is_collection

__all__ = [
    "ArraySource",
    "Chunks",
    "Cluster",
    "DaskFileSource",
    "DaskSource",
    "FileSource",
    "InputColumn",
    "MappedSource",
    "Pass",
    "RowBlock",
    "Selection",
    "Source",
    "StandardisedRows",
    "Standardiser",
    "TableEncoder",
    "TableFiles",
    "TableReader",
    "auto_chunk_rows",
    "collection_source",
    "file_source",
    "from_csv",
    "from_parquet",
    "is_collection",
    "open_tables",
    "prefetch",
    "standardise",
]

# Loaded on first use: these modules import pandas, which a prediction on the command line does without.
_LAZY = {
    "Cluster": "prismgp.data.cluster",
    **dict.fromkeys(("DaskFileSource", "DaskSource", "collection_source", "is_collection"), "prismgp.data.dask"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
