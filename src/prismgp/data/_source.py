"""Where rows come from. A source hands out blocks of raw rows, as often as asked; it never copies all of them.

Everything that is learned sees rows through a source, so an array, a folder of files and a cluster give the same
model: they hand out the same rows, and pick the same ones for a subsample.

A source also decides where a pass over its rows is done: :meth:`Source.map` and :meth:`Source.reduce` take a function
of a source. Rows at hand are given to it here; those of a cluster are given to it shard by shard, where they are.
"""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import numpy as np

from prismgp._types import AnyArray
from prismgp.data._moments import MOMENT_ROWS, Moments

if TYPE_CHECKING:
    from prismgp.data._table import TableEncoder

__all__ = ["ArraySource", "Block", "MappedSource", "Selection", "Source", "merged_moments", "moments_of", "rechunked"]

T = TypeVar("T")
Block = tuple[AnyArray, AnyArray]
_DIGEST_ROWS = 1_024
_KEPT_BYTES = 2**27  # rows that take less are read once and kept


class Source(ABC):
    """Rows in a fixed order.

    Attributes
    ----------
    n_rows, n_inputs, n_outputs : int
    feature_names : list of str or None
        Of the inputs.
    labels : ndarray, (n,), or None
        The clusters of the rows, where they are given with them.
    in_memory : bool
        Whether rows can be had by index at no cost.
    distributed : bool
        Whether passes are done by other processes; rows should not be asked for here.
    encoder : TableEncoder or None
        How raw columns became the inputs, where rows come from tables.
    single : bool
        Whether one target makes a one-dimensional y.
    """

    n_rows: int
    n_inputs: int
    n_outputs: int
    feature_names: list[str] | None = None
    labels: AnyArray | None = None
    in_memory: bool = False
    distributed: bool = False
    encoder: TableEncoder | None = None
    single: bool = True

    @property
    def n_whole(self) -> int:
        """Rows of the source these are a part of."""
        return self.n_rows

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[Block]:
        """Inputs and targets of consecutive blocks of ``rows`` rows, the last one of what is left."""

    def map(self, function: Callable[[Source], T]) -> list[T]:
        """What a function makes of the rows: a result for each part of them, in their order; here of all at once.

        The function can be pickled, and takes a source whose rows are at hand.
        """
        return [function(self)]

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:  # noqa: ARG002
        """As :meth:`map`, with the results of neighbouring parts merged until there is one."""
        return function(self)

    def encoded_by(self, encoder: TableEncoder) -> Source:  # noqa: ARG002
        """The same rows, encoded as another table was; numbers are what they are."""
        return self

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Of inputs and of targets, in one pass."""
        return self.reduce(moments_of, merged_moments)

    @property
    def digest(self) -> str:
        """Tells these rows from others: by the moments of all, and the first of them."""
        found = hashlib.sha256(repr((self.n_rows, self.feature_names)).encode())
        for moments in self.moments:
            found.update(moments.tobytes())
        for block in next(iter(self.blocks(_DIGEST_ROWS)), ()):
            found.update(np.ascontiguousarray(block, dtype=np.float64).tobytes())
        return found.hexdigest()[:32]

    def take(self, index: AnyArray) -> ArraySource:
        """The rows of increasing indices; one pass."""
        picked = list(_picked_blocks(self.blocks(MOMENT_ROWS), index))
        if not picked:
            return ArraySource(np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs)))
        return ArraySource(
            np.concatenate([x for x, _ in picked]),
            np.concatenate([y for _, y in picked]),
            None if self.labels is None else self.labels[index],
        )

    def load(self) -> ArraySource:
        """All rows, in memory."""
        return self.take(np.arange(self.n_rows))

    @property
    def small(self) -> bool:
        """Whether all rows may as well be in memory."""
        return self.in_memory or self._few

    @property
    def _few(self) -> bool:
        return 8 * self.n_rows * (self.n_inputs + self.n_outputs) <= _KEPT_BYTES

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
        # Sorted, so that rows are gathered in the order in which they come.
        all_picked = np.sort(order)
        whole = self.take(all_picked)
        picks = [np.searchsorted(all_picked, np.sort(order[:size])) for size in sizes]
        return [whole if len(pick) == whole.n_rows else whole.take(pick) for pick in picks]

    def labelled(self, labels: AnyArray | None) -> Self:
        """The same rows with their clusters."""
        other = copy.copy(self)
        other.labels = labels
        return other

    def split(self, labels: AnyArray, n_clusters: int) -> Sequence[Source]:
        """The rows of each cluster; no row is copied before it is asked for."""
        order = np.argsort(labels, kind="stable")
        ends = np.cumsum(np.bincount(labels, minlength=n_clusters))
        return [self.select(rows) for rows in np.split(order, ends[:-1])]

    def select(self, rows: AnyArray) -> Source:
        """The rows of increasing indices, none of them copied before it is asked for."""
        return Selection(self, rows)


class ArraySource(Source):
    """Rows held in memory.

    Parameters
    ----------
    x : ndarray, (n, d)
    y : ndarray, (n, q)
    labels : ndarray, (n,), or None
    """

    in_memory = True

    def __init__(self, x: AnyArray, y: AnyArray, labels: AnyArray | None = None) -> None:
        self.x = x
        self.y = y
        self.labels = labels
        self.n_rows, self.n_inputs = x.shape
        self.n_outputs = y.shape[1]

    def blocks(self, rows: int) -> Iterator[Block]:
        """Consecutive views of at most ``rows`` rows."""
        for start in range(0, self.n_rows, rows):
            yield self.x[start : start + rows], self.y[start : start + rows]

    def take(self, index: AnyArray) -> ArraySource:
        return ArraySource(self.x[index], self.y[index], None if self.labels is None else self.labels[index])

    def load(self) -> ArraySource:
        return self


class Selection(Source):
    """Some rows of a source, gathered block by block.

    Parameters
    ----------
    source : Source
    rows : ndarray of int, (m,)
        Increasing, so that they are gathered in the order in which they come.
    """

    def __init__(self, source: Source, rows: AnyArray) -> None:
        self._source = source
        self._rows = rows
        self.n_rows, self.n_inputs, self.n_outputs = len(rows), source.n_inputs, source.n_outputs
        self.in_memory, self.feature_names = source.in_memory, source.feature_names

    @property
    def n_whole(self) -> int:
        return self._source.n_rows

    def blocks(self, rows: int) -> Iterator[Block]:
        """Copies of at most ``rows`` rows."""
        if not self._source.in_memory:
            yield from rechunked(_picked_blocks(self._source.blocks(rows), self._rows), rows)
            return
        for start in range(0, self.n_rows, rows):
            part = self._source.take(self._rows[start : start + rows])
            yield part.x, part.y

    def take(self, index: AnyArray) -> ArraySource:
        return self._source.take(self._rows[index])


class MappedSource(Source):
    """The rows of a source with inputs made from theirs, each time they are asked for.

    Parameters
    ----------
    source : Source
    function : callable
        From raw inputs, (n, d), to others, (n, n_inputs).
    n_inputs : int
    """

    def __init__(self, source: Source, function: Callable[[AnyArray], AnyArray], n_inputs: int) -> None:
        self._source, self._function = source, function
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, n_inputs, source.n_outputs
        self.in_memory, self.distributed = source.in_memory, source.distributed

    @property
    def n_whole(self) -> int:
        return self._source.n_whole

    @property
    def small(self) -> bool:
        return not self.distributed and self._few  # the rows are made from what is in memory, and are not there

    def map(self, function: Callable[[Source], T]) -> list[T]:
        return self._source.map(_OnMapped(self._function, self.n_inputs, function))

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:
        return self._source.reduce(_OnMapped(self._function, self.n_inputs, function), merge)

    def select(self, rows: AnyArray) -> Source:
        return MappedSource(self._source.select(rows), self._function, self.n_inputs)

    def blocks(self, rows: int) -> Iterator[Block]:
        for x, y in self._source.blocks(rows):
            yield self._function(x), y

    def take(self, index: AnyArray) -> ArraySource:
        part = self._source.take(index)
        return ArraySource(self._function(part.x), part.y)

    def load(self) -> ArraySource:
        """All rows as they are made, without those they are made from, which may take more memory."""
        x, y = zip(*self.blocks(MOMENT_ROWS), strict=True)
        return ArraySource(np.concatenate(x), np.concatenate(y))


class _OnMapped(Generic[T]):
    """A function of a mapped source, as one of the source beneath it: rows are mapped where they are."""

    def __init__(self, mapping: Callable[[AnyArray], AnyArray], n_inputs: int, function: Callable[[Source], T]) -> None:
        self._mapping, self._n_inputs, self._function = mapping, n_inputs, function

    def __call__(self, source: Source) -> T:
        return self._function(MappedSource(source, self._mapping, self._n_inputs))


def moments_of(source: Source) -> tuple[Moments, Moments]:
    """Moments of inputs and of targets."""
    x, y = Moments(source.n_inputs), Moments(source.n_outputs)
    for x_block, y_block in source.blocks(MOMENT_ROWS):
        x.add(x_block)
        y.add(y_block)
    return x, y


def merged_moments(first: tuple[Moments, Moments], second: tuple[Moments, Moments]) -> tuple[Moments, Moments]:
    """Those of both sets of rows; neither is changed."""
    x, y = (Moments.of_all(pair) for pair in zip(first, second, strict=True))
    return x, y


def rechunked(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """The same rows in blocks of exactly ``rows``, the last one of what is left."""
    waiting: list[Block] = []
    count = 0
    for x, y in blocks:
        start = 0
        while start < len(x):
            part = slice(start, start + rows - count)
            waiting.append((x[part], y[part]))
            count += len(waiting[-1][0])
            start += len(waiting[-1][0])
            if count == rows:
                yield _joined(waiting)
                waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _picked_blocks(blocks: Iterator[Block], index: AnyArray) -> Iterator[Block]:
    """Of consecutive blocks, the rows of increasing indices; what comes after the last of them is not read."""
    start = done = 0
    for x, y in blocks:
        stop = start + len(x)
        upto = int(np.searchsorted(index, stop))
        if upto > done:
            own = index[done:upto] - start
            yield x[own], y[own]
        start, done = stop, upto
        if done == len(index):
            break
