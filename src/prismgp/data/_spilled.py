"""Rows that were dear to make, kept in a temporary file."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Iterator

import numpy as np

from prismgp._types import AnyArray
from prismgp.data._moments import MOMENT_ROWS
from prismgp.data._source import Block, Source

__all__ = ["SpilledSource"]


class SpilledSource(Source):
    """The rows of another source, written to a temporary file in one pass and read from there ever after.

    For rows whose making takes longer than their reading, where memory should not hold them all. The file is in the
    system's folder for temporary files (``TMPDIR``), and goes with the source, also when the process is killed.

    Parameters
    ----------
    source : Source
        With rows at hand.

    Raises
    ------
    OSError
        When the disk does not hold the rows.
    """

    def __init__(self, source: Source) -> None:
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, source.n_inputs, source.n_outputs
        self._n_whole = source.n_whole
        self._lock = threading.Lock()  # passes read from threads of their own
        # Unbuffered: rows are read and written in large pieces, and a full disk is noticed where it happens.
        self._file = tempfile.TemporaryFile(prefix="prismgp-", buffering=0)  # noqa: SIM115  closed with the source
        weakref.finalize(self, self._file.close)
        for x, y in source.blocks(MOMENT_ROWS):
            self._write(np.concatenate([x, y], axis=1, dtype=np.float64))

    @property
    def n_whole(self) -> int:
        return self._n_whole

    @property
    def _width(self) -> int:
        return self.n_inputs + self.n_outputs

    def _write(self, rows: AnyArray) -> None:
        left = np.ascontiguousarray(rows).data.cast("B")
        while len(left):
            left = left[self._file.write(left) :]

    def blocks(self, rows: int) -> Iterator[Block]:
        for start in range(0, self.n_rows, rows):
            block = self._read(start, min(rows, self.n_rows - start))
            yield block[:, : self.n_inputs], block[:, self.n_inputs :]

    def _read(self, start: int, count: int) -> AnyArray:
        found = np.empty((count, self._width))
        left = found.data.cast("B")
        with self._lock:
            self._file.seek(start * self._width * found.itemsize)
            while len(left):
                n_bytes = self._file.readinto(left)
                if not n_bytes:
                    raise OSError("a temporary file has lost rows")
                left = left[n_bytes:]
        return found
