"""Mean, spread and range of columns, block by block."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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

    def add(self, block: AnyArray) -> None:
        """Take rows in, (n, width)."""
        if not len(block):
            return
        # In one memory order, so that the sums do not depend on that of the user's array.
        block = np.ascontiguousarray(block, dtype=np.float64)
        mean = block.mean(0)
        self._join(len(block), mean, np.square(block - mean).sum(0), block.min(0), block.max(0))

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
        if other.count:
            self._join(other.count, other._mean, other._squares, other._low, other._high)
        return self

    def _join(self, count: int, mean: Array, squares: Array, low: Array, high: Array) -> None:
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        total = self.count + count
        delta = mean - self._mean
        self._squares += squares + delta**2 * (self.count * count / total)
        self._mean += delta * (count / total)
        self.count = total

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
    def largest(self) -> Array:
        """The largest magnitude in every column; not a number where a cell is none."""
        return np.maximum(-self._low, self._high)
