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

__all__ = ["NoRoomError", "SpilledSource"]


class NoRoomError(Exception):
    """There is no temporary file, or no room in it. What goes wrong with the rows themselves is another matter."""


class _Kept:
    """A temporary file that is closed, and with that gone, when nobody has it any more."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # passes read from threads of their own
        try:
            # Unbuffered: rows are read and written in large pieces, and a full disk is noticed where it happens.
            self.file = tempfile.TemporaryFile(prefix="prismgp-", buffering=0)  # noqa: SIM115  closed below
        except OSError as error:
            raise NoRoomError(str(error)) from error
        weakref.finalize(self, self.file.close)

    def write(self, rows: AnyArray) -> None:
        left = np.ascontiguousarray(rows).data.cast("B")
        try:
            while len(left):
                left = left[self.file.write(left) :]
        except OSError as error:
            raise NoRoomError(str(error)) from error

    def read(self, into: AnyArray, start: int) -> None:
        left = into.data.cast("B")
        with self.lock:
            self.file.seek(start)
            while len(left):
                n_bytes = self.file.readinto(left)
                if not n_bytes:
                    raise OSError("a temporary file has lost rows")
                left = left[n_bytes:]


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
    NoRoomError
        When the disk does not hold the rows.
    """

    def __init__(self, source: Source) -> None:
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, source.n_inputs, source.n_outputs
        self._n_whole = source.n_whole
        self._kept = _Kept()
        for x, y in source.blocks(MOMENT_ROWS):
            self._kept.write(np.concatenate([x, y], axis=1, dtype=np.float64))

    @property
    def n_whole(self) -> int:
        return self._n_whole

    @property
    def _width(self) -> int:
        return self.n_inputs + self.n_outputs

    def blocks(self, rows: int) -> Iterator[Block]:
        for start in range(0, self.n_rows, rows):
            block = np.empty((min(rows, self.n_rows - start), self._width))
            self._kept.read(block, start * self._width * block.itemsize)
            yield block[:, : self.n_inputs], block[:, self.n_inputs :]
