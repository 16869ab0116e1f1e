"""Where rows come from. A source hands out blocks of raw rows; it never copies all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prismgp._types import AnyArray

__all__ = ["ArraySource", "Selection"]


class ArraySource:
    """Rows held in memory.

    Parameters
    ----------
    x : ndarray, (n, d)
    y : ndarray, (n, q)
    labels : ndarray, (n,), or None
        The clusters of the rows, where they are given with them.
    """

    def __init__(self, x: AnyArray, y: AnyArray, labels: AnyArray | None = None) -> None:
        self.x = x
        self.y = y
        self.labels = labels
        self.n_rows, self.n_inputs = x.shape
        self.n_outputs = y.shape[1]
        self.n_whole = self.n_rows

    def blocks(self, rows: int) -> Iterator[tuple[AnyArray, AnyArray]]:
        """Consecutive views of at most ``rows`` rows."""
        for start in range(0, self.n_rows, rows):
            yield self.x[start : start + rows], self.y[start : start + rows]

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> list[ArraySource]:
        """Nested uniform random subsamples, of about the given increasing sizes.

        Memory is that of the largest one: when it is a small part of the rows, indices are drawn
        with replacement and repetitions removed, which leaves it smaller by a few rows.
        """
        largest = sizes[-1]
        if largest > self.n_rows // 8:
            order = rng.permutation(self.n_rows)[:largest]
        else:
            drawn = rng.integers(self.n_rows, size=largest)
            order = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        # Sorted, so that rows are gathered in memory order.
        picks = [np.sort(order[:size]) for size in sizes]
        return [ArraySource(self.x[pick], self.y[pick], _picked(self.labels, pick)) for pick in picks]

    def split(self, labels: AnyArray, n_clusters: int) -> list[Selection]:
        """The rows of each cluster; no row is copied before it is asked for."""
        order = np.argsort(labels, kind="stable")
        ends = np.cumsum(np.bincount(labels, minlength=n_clusters))
        return [Selection(self, rows) for rows in np.split(order, ends[:-1])]


class Selection:
    """Some rows of a source, gathered block by block.

    Parameters
    ----------
    source : ArraySource
    rows : ndarray of int, (m,)
        Increasing, so that they are gathered in memory order.
    """

    def __init__(self, source: ArraySource, rows: AnyArray) -> None:
        self._source = source
        self._rows = rows
        self.n_rows, self.n_inputs, self.n_outputs = len(rows), source.n_inputs, source.n_outputs
        self.n_whole = source.n_rows

    def blocks(self, rows: int) -> Iterator[tuple[AnyArray, AnyArray]]:
        """Copies of at most ``rows`` rows."""
        for start in range(0, self.n_rows, rows):
            pick = self._rows[start : start + rows]
            yield self._source.x[pick], self._source.y[pick]


def _picked(values: AnyArray | None, pick: AnyArray) -> AnyArray | None:
    return None if values is None else values[pick]
