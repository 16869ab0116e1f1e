"""From the user's rows to standardised chunks on the compute device.

Tables pass through these modules in order: ``columns`` and ``tables`` (cells and files), ``encoder`` (text and
categories to numbers), ``reader`` (rows of files as a model takes them), ``sources`` and ``files`` (rows to pass over
again and again), ``chunks`` (standardised tensors), ``rows`` (what a fit works on); ``cluster`` and ``dask`` do the
passes on a Dask cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prismgp.data.chunks import Chunks, Standardiser, auto_chunk_rows, prefetch, run_pass, standardise
from prismgp.data.columns import InputColumn
from prismgp.data.encoder import TableEncoder
from prismgp.data.files import FileSource, file_source, from_csv, from_parquet
from prismgp.data.reader import RowBlock, TableReader
from prismgp.data.rows import StandardisedRows
from prismgp.data.sources import ArraySource, MappedSource, Selection, Source
from prismgp.data.tables import TableFiles, open_tables

if TYPE_CHECKING:
    from prismgp.data.dask import collection_source, is_collection

__all__ = [
    "ArraySource",
    "Chunks",
    "FileSource",
    "InputColumn",
    "MappedSource",
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
    "run_pass",
    "standardise",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the module imports pandas, which a prediction on the command line does without.
    if name not in ("collection_source", "is_collection"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("prismgp.data.dask"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
