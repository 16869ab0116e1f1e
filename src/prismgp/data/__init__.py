"""From the user's rows to standardised chunks on the compute device.

Tables pass through these modules in order: ``tables`` (files), ``encoder`` (numbers, text and categories to a matrix;
``scan`` learns how), ``sources`` (rows to pass over again and again), ``files`` (the reader of tables, and sources that
are files), ``chunks`` (standardised tensors, and what a fit works on); ``cluster`` and ``dask`` do the passes on a Dask
cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prismgp.data.chunks import (
    Chunks,
    StandardisedRows,
    Standardiser,
    auto_chunk_rows,
    prefetch,
    run_pass,
    standardise,
    standardise_tensor,
)
from prismgp.data.encoder import InputColumn, TableEncoder
from prismgp.data.files import FileSource, RowBlock, TableReader, file_source, from_csv, from_parquet
from prismgp.data.sources import ArraySource, MappedSource, Selection, Source, is_collection
from prismgp.data.tables import TableFiles, open_tables

if TYPE_CHECKING:
    from prismgp.data.dask import collection_source

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
    "standardise_tensor",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the module imports pandas, which a prediction on the command line does without.
    if name != "collection_source":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("prismgp.data.dask").collection_source


def __dir__() -> list[str]:
    return sorted(__all__)
