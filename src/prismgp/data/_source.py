"""Where rows come from. A source hands out blocks of raw rows; it never copies all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from prismgp._types import AnyArray

__all__ = ["ArraySource"]


class ArraySource:
    """Rows held in memory.

    Parameters
    ----------
    x : ndarray, (n, d)
    y : ndarray, (n, q)
    """

    def __init__(self, x: AnyArray, y: AnyArray) -> None:
        self.x = x
        self.y = y
        self.n_rows, self.n_inputs = x.shape
        self.n_outputs = y.shape[1]

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
        return [ArraySource(self.x[pick], self.y[pick]) for pick in picks]
