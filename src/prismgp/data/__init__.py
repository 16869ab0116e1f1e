"""From the user's rows to standardised chunks on the compute device.

Tables pass through these modules in order: ``tables`` (files, with ``text`` for those of text, ``cells`` for what their
columns hold and ``numerals`` for how text spells numbers), ``scan`` (how the columns are to be read, with ``hints`` at
text that is none), ``encoder`` (one number for each cell) and ``encodings`` (inputs of these numbers, with ``moments``
for what is learned of a column), ``reader`` (blocks of rows), ``sources`` (rows to pass over again and again),
``files`` (sources that are files), ``frames`` (pandas, polars and Arrow tables), ``chunks`` (standardised tensors, and
what a fit works on); ``shards``, ``cluster`` and ``dask`` do the passes on a Dask cluster.
"""

from prismgp.data.cells import plural, quote_names
from prismgp.data.chunks import Chunks, StandardisedRows, auto_chunk_rows, fit_standardiser, merge_copies, prefetch
from prismgp.data.dask import collection_source
from prismgp.data.encoder import InputColumn, TableEncoder, missing_error, warn_unseen
from prismgp.data.files import FileSource, file_source, from_csv, from_parquet
from prismgp.data.frames import frame_encoder, is_frame, needs_encoder, read_frame
from prismgp.data.reader import MISSING, RowBlock, TableReader
from prismgp.data.sources import ArraySource, Kept, MappedSource, Source, is_collection
from prismgp.data.tables import TableFiles, open_tables

__all__ = [
    "MISSING",
    "ArraySource",
    "Chunks",
    "FileSource",
    "InputColumn",
    "Kept",
    "MappedSource",
    "RowBlock",
    "Source",
    "StandardisedRows",
    "TableEncoder",
    "TableFiles",
    "TableReader",
    "auto_chunk_rows",
    "collection_source",
    "file_source",
    "fit_standardiser",
    "frame_encoder",
    "from_csv",
    "from_parquet",
    "is_collection",
    "is_frame",
    "merge_copies",
    "missing_error",
    "needs_encoder",
    "open_tables",
    "plural",
    "prefetch",
    "quote_names",
    "read_frame",
    "warn_unseen",
]
