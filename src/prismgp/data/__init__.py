"""From the user's rows to standardised chunks on the compute device.

Tables pass through these modules in order: ``tables`` (files, with ``text`` and ``numerals`` for their spelling),
``scan`` (what the columns hold), ``encoder`` (one number for each cell) and ``encodings`` (inputs of these numbers),
``sources`` (rows to pass over again and again), ``row_noise`` (their weights), ``files`` (the reader of tables, and
sources that are files), ``frames`` (pandas, polars and Arrow tables), ``chunks`` (standardised tensors, and what a fit
works on); ``shards``, ``cluster`` and ``dask`` do the passes on a Dask cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prismgp.data.cells import plural, quote_names
from prismgp.data.chunks import (
    Chunks,
    StandardisedRows,
    Standardiser,
    auto_chunk_rows,
    merge_copies,
    prefetch,
    run_pass,
    standardise,
    standardise_tensor,
)
from prismgp.data.encoder import InputColumn, TableEncoder, missing_error, warn_unseen
from prismgp.data.files import FileSource, file_source, from_csv, from_parquet
from prismgp.data.frames import frame_encoder, is_frame, needs_encoder, non_numeric_columns, read_frame
from prismgp.data.reader import MISSING, RowBlock, TableReader
from prismgp.data.sources import ArraySource, Kept, MappedSource, Selection, Source, is_collection
from prismgp.data.tables import TableFiles, open_tables

if TYPE_CHECKING:
    from prismgp.data.dask import collection_source

__all__ = [
    "MISSING",
    "ArraySource",
    "Chunks",
    "FileSource",
    "InputColumn",
    "Kept",
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
    "frame_encoder",
    "from_csv",
    "from_parquet",
    "is_collection",
    "is_frame",
    "merge_copies",
    "missing_error",
    "needs_encoder",
    "non_numeric_columns",
    "open_tables",
    "plural",
    "prefetch",
    "quote_names",
    "read_frame",
    "run_pass",
    "standardise",
    "standardise_tensor",
    "warn_unseen",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the module imports pandas, which a prediction on the command line does without.
    if name != "collection_source":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("prismgp.data.dask").collection_source


def __dir__() -> list[str]:
    return sorted(__all__)
