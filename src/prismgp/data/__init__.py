"""From the user's rows to standardised chunks on the compute device."""

from prismgp.data._chunks import Chunks, auto_chunk_rows
from prismgp.data._source import ArraySource, Selection
from prismgp.data._standardise import Standardiser

__all__ = ["ArraySource", "Chunks", "Selection", "Standardiser", "auto_chunk_rows"]
