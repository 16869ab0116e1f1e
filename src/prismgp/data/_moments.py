"""Mean, spread and range of columns, block by block."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from prismgp._types import AnyArray, Array

__all__ = ["MOMENT_ROWS", "Moments"]

MOMENT_ROWS = 65_536  # rows of a block
_CONSTANT = 1e-13  # a range below this share of the magnitude is rounding, not signal


class Moments:
    """Moments of columns, merged block by block (Chan, Golub and LeVeque).

    Parameters
    ----------
    width : int
        Columns.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self._mean: Array = np.zeros(width)
        self._squares: Array = np.zeros(width)
        self._low: Array = np.full(width, np.inf)
        self._high: Array = np.full(width, -np.inf)
        self._at_low = np.zeros(width, dtype=np.int64)  # rows that have the smallest value, and the largest
        self._at_high = np.zeros(width, dtype=np.int64)

    def add(self, block: AnyArray) -> None:
        """Take rows in, (n, width)."""
        if not len(block):
            return
        # In one memory order, so that the sums do not depend on that of the user's array.
        block = np.ascontiguousarray(block, dtype=np.float64)
        own = Moments(block.shape[1])
        own.count, own._mean = len(block), block.mean(0)
        own._squares = np.square(block - own._mean).sum(0)
        own._low, own._high = block.min(0), block.max(0)
        own._at_low, own._at_high = (block == own._low).sum(0), (block == own._high).sum(0)
        self.merge(own)

    @classmethod
    def of_all(cls, parts: Iterable[Moments]) -> Moments:
        """Those of several sets of rows, in their order; none of them is changed."""
        parts = list(parts)
        total = cls(len(parts[0]._mean))
        for part in parts:
            total.merge(part)
        return total

    def merge(self, other: Moments) -> Moments:
        """Take the rows of another in; returns this one."""
        if not other.count:
            return self
        low, high = np.minimum(self._low, other._low), np.maximum(self._high, other._high)
        self._at_low = (self._low == low) * self._at_low + (other._low == low) * other._at_low
        self._at_high = (self._high == high) * self._at_high + (other._high == high) * other._at_high
        self._low, self._high = low, high
        total = self.count + other.count
        delta = other._mean - self._mean
        self._squares += other._squares + delta**2 * (self.count * other.count / total)
        self._mean += delta * (other.count / total)
        self.count = total
        return self

    def tobytes(self) -> bytes:
        """All of it, for a digest."""
        return b"".join(each.tobytes() for each in (self._mean, self._squares, self._low, self._high))

    @property
    def _constant(self) -> AnyArray:
        """The range tells constants apart; their mean and deviation are rounding errors."""
        return np.asarray(self._high - self._low <= _CONSTANT * np.maximum(np.abs(self._low), np.abs(self._high)))

    @property
    def mean(self) -> Array:
        """Of every column."""
        return np.where(self._constant, self._low, self._mean)

    @property
    def std(self) -> Array:
        """Of every column; 0 where it is constant."""
        return np.where(self._constant, 0.0, np.sqrt(self._squares / self.count))

    @property
    def apart(self) -> npt.NDArray[np.int64]:
        """Rows of every column that differ from the value most rows have, where that is the smallest or the largest."""
        return np.asarray(self.count - np.maximum(self._at_low, self._at_high))

    @property
    def usual(self) -> Array:
        """The smallest or the largest value of every column, whichever more rows have."""
        return np.where(self._at_low >= self._at_high, self._low, self._high)

    @property
    def largest(self) -> Array:
        """The largest magnitude in every column; not a number where a cell is none."""
        return np.maximum(-self._low, self._high)
