"""Statistics of columns: moments, merged block by block, medians, and effects of levels by the moments of targets."""

from __future__ import annotations

import numpy as np

from prismgp._types import AnyArray, Array

_CONSTANT = 1e-13  # a range below this share of the magnitude is rounding, not signal


class Moments:
    """Moments of ``width`` columns, merged block by block (Chan, Golub and LeVeque).

    A row of weight w counts as w rows.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.weight: float = 0  # of all rows; their number where they have no weights
        self._mean: Array = np.zeros(width)
        self._squares: Array = np.zeros(width)
        self._low: Array = np.full(width, np.inf)
        self._high: Array = np.full(width, -np.inf)
        self._at_low: AnyArray = np.zeros(width, dtype=np.int64)  # weight of the rows that have the smallest value,
        self._at_high: AnyArray = np.zeros(width, dtype=np.int64)  # and the largest

    def add(self, block: AnyArray, weight: AnyArray | None = None) -> None:
        """Add rows, (n, width), with their weights, (n,)."""
        if not len(block):
            return
        # In one memory order, so that the sums do not depend on that of the user's array.
        block = np.ascontiguousarray(block, dtype=np.float64)
        own = Moments(block.shape[1])
        own.count, own._low, own._high = len(block), block.min(0), block.max(0)
        if weight is None:
            own.weight, own._mean = len(block), block.mean(0)
            own._squares = np.square(block - own._mean).sum(0)
            own._at_low, own._at_high = (block == own._low).sum(0), (block == own._high).sum(0)
        else:
            own.weight = float(weight.sum())
            own._mean = weight @ block / own.weight
            own._squares = weight @ np.square(block - own._mean)
            own._at_low, own._at_high = weight @ (block == own._low), weight @ (block == own._high)
        self.merge(own)

    def merge(self, other: Moments) -> Moments:
        """Add the rows of another; returns this one."""
        if not other.count:
            return self
        low, high = np.minimum(self._low, other._low), np.maximum(self._high, other._high)
        self._at_low = (self._low == low) * self._at_low + (other._low == low) * other._at_low
        self._at_high = (self._high == high) * self._at_high + (other._high == high) * other._at_high
        self._low, self._high = low, high
        total = self.weight + other.weight
        delta = other._mean - self._mean
        self._squares += other._squares + delta**2 * (self.weight * other.weight / total)
        self._mean += delta * (other.weight / total)
        self.count, self.weight = self.count + other.count, total
        return self

    def tobytes(self) -> bytes:
        """As bytes, for a hash."""
        return b"".join(each.tobytes() for each in (self._mean, self._squares, self._low, self._high))

    @property
    def _constant(self) -> AnyArray:
        """Columns of one value, by their range; their deviation would be a rounding error."""
        return np.asarray(self._high - self._low <= _CONSTANT * np.maximum(np.abs(self._low), np.abs(self._high)))

    @property
    def mean(self) -> Array:
        """Mean of every column."""
        return np.where(self._constant, self._low, self._mean)

    @property
    def std(self) -> Array:
        """Standard deviation of every column; 0 where it is constant."""
        return np.where(self._constant, 0.0, np.sqrt(self._squares / self.weight))

    @property
    def n_apart(self) -> AnyArray:
        """Rows of every column that differ from :attr:`usual_value`."""
        return np.asarray(self.weight - np.maximum(self._at_low, self._at_high))

    @property
    def usual_value(self) -> Array:
        """The more frequent of the smallest and the largest value of every column."""
        return np.where(self._at_low >= self._at_high, self._low, self._high)

    @property
    def largest_magnitude(self) -> Array:
        """The largest magnitude in every column; NaN if a cell of the column is NaN."""
        return np.maximum(-self._low, self._high)


def weighted_median(values: AnyArray, weight: AnyArray) -> float:
    """The median of values, (n,), with weights, (n,)."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weight[order])
    middle = [min(int(np.searchsorted(below, below[-1] / 2, side)), len(order) - 1) for side in ("left", "right")]
    return float(values[order[middle]].mean())


def shrink_effects(counts: Array, sums: Array, squares: Array, rows: float | None = None) -> Array:
    """Empirical Bayes means of levels, less the mean of all rows, (L, q).

    Parameters
    ----------
    counts : (L,)
        Rows of each level, or the sum of their weights.
    sums : (L, q)
        Of their targets, times their weights.
    squares : (q,)
        Sum of the squared targets of all rows, times their weights.
    rows : float, optional
        Number of all rows, where they have weights; None: the sum of the counts.

    Notes
    -----
    With variance s² within levels and t² between them, by the moments of the one-way analysis of variance, the effect
    of a level of n rows is ``n / (n + s²/t²)`` times that of its mean (M1). The variance of a row of weight w is
    ``s² / w`` around the mean of its level, so n is the sum of the weights, and all weights may be multiplied by the
    same number.
    """
    total, levels = float(counts.sum()), int((counts > 0).sum())
    n = total if rows is None else float(rows)
    if n <= levels or levels < 2:  # nothing tells the two variances apart
        return np.zeros_like(sums)
    mean = sums.sum(axis=0) / total
    deviations = np.divide(sums, counts[:, None], where=counts[:, None] > 0, out=np.tile(mean, (len(counts), 1))) - mean
    between = counts @ deviations**2
    within = np.maximum(squares - total * mean**2 - between, 0.0) / (n - levels)
    spread = np.maximum(between - (levels - 1) * within, 0.0) / (total - counts @ counts / total)
    ratio = np.divide(within, spread, where=spread > 0, out=np.full_like(spread, np.inf))
    weight: Array = counts[:, None] / (counts[:, None] + ratio + (counts[:, None] == 0))  # (M1)
    return np.asarray(weight * deviations)
