"""Sources of rows. A source returns blocks of raw rows, as often as asked; it never copies all of them.

All fits see rows through a source, so an array, a folder of files and a cluster give the same model: they return the
same rows, and choose the same ones for a subsample.

The targets of a block are (n, q + e): behind the q targets, e columns may say how noisy each row is (W1): none, the
row's weight, or its weight and the known variance of its errors. They travel with the targets wherever these go.

A source also decides where a pass over its rows runs: :meth:`Source.map` and :meth:`Source.reduce` take a function
of a source. It is called in this process with local rows, and on the workers, shard by shard, with those of a cluster.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from prismgp._types import AnyArray
from prismgp.data.moments import Moments

if TYPE_CHECKING:
    from prismgp.data.encoder import TableEncoder


T = TypeVar("T")
U = TypeVar("U")
Block = tuple[AnyArray, AnyArray]
MOMENT_ROWS = 65_536  # rows of a block in passes that compute little
KEPT_BYTES = 2**27  # rows that take less are read once and kept in memory
_DIGEST_ROWS = 1_024


class Source(ABC):
    """Rows in a fixed order."""

    n_rows: int
    n_inputs: int
    n_outputs: int
    n_noise: int = 0  # columns behind the targets: none, the weight, or the weight and the known noise variance
    feature_names: list[str] | None = None  # of the columns
    labels: AnyArray | None = None  # (n,), the clusters of the rows, if given with them
    in_memory: bool = False  # whether rows can be taken by index at no cost
    distributed: bool = False  # whether other processes do the passes; rows should not be loaded into this one
    encoder: TableEncoder | None = None  # how columns are read, and to be encoded, if the rows come from tables
    single: bool = True  # whether one target makes a one-dimensional y

    @property
    def n_whole(self) -> int:
        """Rows of the whole source from which these were selected."""
        return self.n_rows

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[Block]:
        """Inputs, and targets with noise columns, of consecutive blocks of ``rows`` rows; the last has the rest."""

    def map(self, function: Callable[[Source], T]) -> list[T]:
        """Apply a function to the rows: a list of results, one for each part of them, in order; here one part.

        The function can be pickled, and takes a source of local rows.
        """
        return [function(self)]

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:  # noqa: ARG002
        """As :meth:`map`, but merge the results of neighbouring parts into one."""
        return function(self)

    def keep(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> Kept[T]:  # noqa: ARG002
        """As :meth:`map`, but keep the results where they are computed; those of small parts are merged."""
        return Kept(function(self))

    def encode_with(self, encoder: TableEncoder) -> Source:  # noqa: ARG002
        """The same rows, read by the encoder of another table; rows without an encoder stay as they are."""
        return self

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Moments of inputs and of targets, in one pass."""
        return self.reduce(compute_moments, merge_moments)

    @property
    def digest(self) -> str:
        """A hash of the moments of all rows and of the first rows, to tell these rows from others."""
        found = hashlib.sha256(repr((self.n_rows, self.feature_names)).encode())
        for moments in self.moments:
            found.update(moments.tobytes())
        for block in next(iter(self.blocks(_DIGEST_ROWS)), ()):
            found.update(np.ascontiguousarray(block, dtype=np.float64).tobytes())
        return found.hexdigest()[:32]

    def take(self, index: AnyArray) -> ArraySource:
        """Load the rows of increasing indices, in one pass."""
        picked = list(_pick_rows(self.blocks(MOMENT_ROWS), index))
        nothing = np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs + self.n_noise))
        x, y = _concatenate(picked or [nothing])
        return ArraySource(x, y, None if self.labels is None else self.labels[index], n_noise=self.n_noise)

    def load(self) -> ArraySource:
        """Load all rows into memory."""
        return self.take(np.arange(self.n_rows))

    def persist(self) -> Source:
        """The same rows in memory: here, or on the workers if these do the passes."""
        return self.load()

    @property
    def small(self) -> bool:
        """Whether it is worthwhile to load all rows into memory."""
        return self.in_memory or self.are_few(self.n_rows)

    def are_few(self, rows: int) -> bool:
        """Return whether this number of rows takes little memory."""
        return 8 * rows * (self.n_inputs + self.n_outputs + self.n_noise) <= KEPT_BYTES

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> list[ArraySource]:
        """Nested uniform random subsamples, of about the given increasing sizes; memory is that of the largest one."""
        order = self._draw(sizes[-1], rng)
        # Sorted, so that rows are gathered in their order.
        all_picked = np.sort(order)
        whole = self.take(all_picked)
        picks = [np.searchsorted(all_picked, np.sort(order[:size])) for size in sizes]
        return [whole if len(pick) == whole.n_rows else whole.take(pick) for pick in picks]

    def select_sample(self, size: int, rng: np.random.Generator) -> Source:
        """The rows that :meth:`subsamples` loads for one size, where they are; all of them if there are no more."""
        return self if size >= self.n_rows else self.select(np.sort(self._draw(size, rng)))

    def _draw(self, size: int, rng: np.random.Generator) -> AnyArray:
        """Numbers of random rows, in random order.

        When these are a small part of the rows, they are drawn with replacement and repetitions removed, which leaves
        a few rows less, and needs no memory for all of them.
        """
        if size > self.n_rows // 8:
            return rng.permutation(self.n_rows)[:size]
        drawn = rng.integers(self.n_rows, size=size)
        return drawn[np.sort(np.unique(drawn, return_index=True)[1])]

    def with_labels(self, labels: AnyArray | None) -> Self:
        """The same rows with their clusters."""
        other = copy.copy(self)
        other.labels = labels
        return other

    def split(self, labels: AnyArray, n_clusters: int) -> Sequence[Source]:
        """A source of the rows of each cluster; rows are copied block by block, when they are read."""
        order = np.argsort(labels, kind="stable")
        ends = np.cumsum(np.bincount(labels, minlength=n_clusters))
        return [self.select(rows) for rows in np.split(order, ends[:-1])]

    def select(self, rows: AnyArray) -> Source:
        """A source of the rows of increasing indices; rows are copied block by block, when they are read."""
        return Selection(self, rows)


class Kept(Generic[T]):
    """A result for the rows, in the memory of this process."""

    distributed: bool = False  # whether other processes hold results, for parts of the rows

    def __init__(self, result: T) -> None:
        self._result = result

    def load(self) -> list[T]:
        """The results for the parts of the rows, in their order; here one."""
        return [self._result]

    def reduce(self, function: Callable[[T, int], U], merge: Callable[[U, U], U]) -> U:  # noqa: ARG002
        """Apply a function to every result and the number of its first row, and merge what it returns."""
        return function(self._result, 0)


class ArraySource(Source):
    """Rows held in memory: x is (n, d), y is (n, q) with ``n_noise`` more columns, labels are (n,)."""

    in_memory = True

    def __init__(self, x: AnyArray, y: AnyArray, labels: AnyArray | None = None, *, n_noise: int = 0) -> None:
        self.x, self.y, self.labels, self.n_noise = x, y, labels, n_noise
        self.n_rows, self.n_inputs = x.shape
        self.n_outputs = y.shape[1] - n_noise

    @property
    def targets(self) -> AnyArray:
        """Without the noise columns, (n, q)."""
        return self.y[:, : self.n_outputs]

    @property
    def noise(self) -> AnyArray | None:
        """The noise columns, (n, 1) or (n, 2), if there are any."""
        return self.y[:, self.n_outputs :] if self.n_noise else None

    def with_noise(self, columns: AnyArray | None) -> ArraySource:
        """With weights, and known noise variances if there are two columns, without the rows of weight zero."""
        if columns is None:
            return self
        kept = np.flatnonzero(columns[:, 0] > 0)
        rows = self if len(kept) == self.n_rows else self.take(kept)
        if rows.labels is not None:  # a cluster may have lost all its rows
            rows = rows.with_labels(np.unique(rows.labels, return_inverse=True)[1])
        own = columns[kept]
        if own.shape[1] == 1 and (own == 1.0).all():
            return rows
        return ArraySource(rows.x, np.concatenate([rows.targets, own], 1), rows.labels, n_noise=own.shape[1])

    def blocks(self, rows: int) -> Iterator[Block]:
        """Consecutive views of at most ``rows`` rows."""
        for start in range(0, self.n_rows, rows):
            yield self.x[start : start + rows], self.y[start : start + rows]

    def take(self, index: AnyArray) -> ArraySource:
        labels = None if self.labels is None else self.labels[index]
        return ArraySource(self.x[index], self.y[index], labels, n_noise=self.n_noise)

    def load(self) -> ArraySource:
        return self


class Selection(Source):
    """Some rows of a source, gathered block by block; indices increase, so that rows stay in their order."""

    def __init__(self, source: Source, rows: AnyArray) -> None:
        self._source, self._rows = source, rows
        self.n_rows, self.n_inputs, self.n_outputs = len(rows), source.n_inputs, source.n_outputs
        self.n_noise = source.n_noise
        self.in_memory, self.feature_names = source.in_memory, source.feature_names
        self.encoder, self.single = source.encoder, source.single

    def encode_with(self, encoder: TableEncoder) -> Selection:
        return Selection(self._source.encode_with(encoder), self._rows)

    @property
    def n_whole(self) -> int:
        return self._source.n_rows

    def blocks(self, rows: int) -> Iterator[Block]:
        """Copies of at most ``rows`` rows."""
        if not self._source.in_memory:
            yield from rechunk(_pick_rows(self._source.blocks(rows), self._rows), rows)
            return
        for start in range(0, self.n_rows, rows):
            part = self._source.take(self._rows[start : start + rows])
            yield part.x, part.y

    def take(self, index: AnyArray) -> ArraySource:
        return self._source.take(self._rows[index])


class MappedSource(Source):
    """The rows of a source with inputs that a function makes from the raw ones, (n, n_inputs), on every pass."""

    def __init__(self, source: Source, function: Callable[[AnyArray], AnyArray], n_inputs: int) -> None:
        self._source, self._function = source, function
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, n_inputs, source.n_outputs
        self.n_noise = source.n_noise
        self.in_memory, self.distributed = source.in_memory, source.distributed

    @property
    def n_whole(self) -> int:
        return self._source.n_whole

    @property
    def small(self) -> bool:
        # Whatever in_memory says, which is about the rows before the function is applied.
        return not self.distributed and self.are_few(self.n_rows)

    def map(self, function: Callable[[Source], T]) -> list[T]:
        return self._source.map(self._after_mapping(function))

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:
        return self._source.reduce(self._after_mapping(function), merge)

    def keep(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> Kept[T]:
        return self._source.keep(self._after_mapping(function), merge)

    def _after_mapping(self, function: Callable[[Source], T]) -> Callable[[Source], T]:
        """The function preceded by the mapping, for the underlying source: workers map their own rows."""
        return partial(_map_and_apply, mapping=self._function, n_inputs=self.n_inputs, function=function)

    def select(self, rows: AnyArray) -> Source:
        return MappedSource(self._source.select(rows), self._function, self.n_inputs)

    def persist(self) -> Source:
        if not self.distributed:
            return self.load()
        return MappedSource(self._source.persist(), self._function, self.n_inputs)

    def blocks(self, rows: int) -> Iterator[Block]:
        for x, y in self._source.blocks(rows):
            yield self._function(x), y

    def take(self, index: AnyArray) -> ArraySource:
        part = self._source.take(index)
        return ArraySource(self._function(part.x), part.y, n_noise=self.n_noise)

    def load(self) -> ArraySource:
        """Load all rows block by block, as the rows before the mapping may take more memory."""
        x, y = zip(*self.blocks(MOMENT_ROWS), strict=True)
        return ArraySource(np.concatenate(x), np.concatenate(y), n_noise=self.n_noise)


def _map_and_apply(
    source: Source, *, mapping: Callable[[AnyArray], AnyArray], n_inputs: int, function: Callable[[Source], T]
) -> T:
    return function(MappedSource(source, mapping, n_inputs))


def compute_moments(source: Source) -> tuple[Moments, Moments]:
    """Moments of inputs and of targets, in one pass over local rows."""
    x, y = Moments(source.n_inputs), Moments(source.n_outputs)
    for x_block, y_block in source.blocks(MOMENT_ROWS):
        weight = y_block[:, source.n_outputs] if source.n_noise else None
        x.add(x_block, weight)
        y.add(y_block[:, : source.n_outputs], weight)
    return x, y


def merge_moments(first: tuple[Moments, Moments], second: tuple[Moments, Moments]) -> tuple[Moments, Moments]:
    """Moments of both sets of rows; the arguments are not changed."""
    x, y = (Moments(len(a._mean)).merge(a).merge(b) for a, b in zip(first, second, strict=True))
    return x, y


def rechunk(blocks: Iterator[Block], rows: int) -> Iterator[Block]:
    """The same rows in blocks of exactly ``rows``; the last block has the remaining rows."""
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
                yield _concatenate(waiting)
                waiting, count = [], 0
    if waiting:
        yield _concatenate(waiting)


def _concatenate(parts: list[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _pick_rows(blocks: Iterator[Block], index: AnyArray) -> Iterator[Block]:
    """The rows of increasing indices out of consecutive blocks; nothing is read after the last of them."""
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


# -- Dask collections, which may exist only where Dask is imported ---------------------------------


def is_collection(data: Any) -> bool:
    """Whether this is a Dask array, frame or series."""
    module = sys.modules.get("dask.array")  # an array cannot exist before its module is imported
    return is_dask_frame(data) or (module is not None and isinstance(data, module.Array))


def is_dask_frame(data: Any) -> bool:
    """Whether this is a Dask frame or series."""
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(data, module.DataFrame | module.Series)
