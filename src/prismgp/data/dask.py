"""Rows on a Dask cluster: every pass is done by the workers, and only small results come back.

Rows come from files, which the workers read, or from Dask arrays and frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial, reduce
from typing import Any, Self, TypeVar

import numpy as np

from prismgp._types import AnyArray
from prismgp.data.cells import check_unique
from prismgp.data.cluster import Cluster, KeptOnWorkers, Outcome
from prismgp.data.encoder import TableEncoder, warn_unseen
from prismgp.data.frames import has_plain_types
from prismgp.data.moments import Moments
from prismgp.data.reader import NoiseColumns, TableReader
from prismgp.data.scan import TableScan
from prismgp.data.shards import (
    FileLoader,
    FrameLoader,
    PartitionLoader,
    PersistedLoader,
    SelectionLoader,
    Shard,
    TablePart,
    ValueLoader,
)
from prismgp.data.sources import (
    ArraySource,
    Block,
    Source,
    compute_moments,
    is_collection,
    is_dask_frame,
    merge_moments,
    rechunk,
)
from prismgp.exceptions import DataError

T = TypeVar("T")
U = TypeVar("U")
SHARD_ROWS = 65_536  # row groups are combined up to this number: every task costs milliseconds
_PARTS_AT_ONCE = 16  # of files whose results are whole tables


class DaskSource(Source):
    """Rows in shards, each of which is loaded inside a task; made from Dask collections and from files.

    Results do not depend on the number of workers, nor on the assignment of shards to them: the data determine the
    shards, and results are merged in a fixed order.
    """

    distributed = True
    small = False
    # Of files, known after a pass: all rows, and those without a target.
    rows_read: int = 0
    rows_without_target: int = 0

    def __init__(
        self,
        shards: Sequence[Shard],
        cluster: Cluster,
        *,
        n_inputs: int,
        n_outputs: int,
        single: bool = True,
        n_noise: int = 0,
    ) -> None:
        self._shards, self._cluster, self.n_noise = list(shards), cluster, n_noise
        self.n_inputs, self.n_outputs, self.single = n_inputs, n_outputs, single
        if any(shard.n_rows is None for shard in self._shards):
            _ = self.moments  # the pass that counts also computes the moments, which are needed anyway
        self._shards = [shard for shard in self._shards if shard.n_rows]
        self.n_rows = _count_rows(self._shards)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n_rows:,} rows in {self.n_shards} shards, {self.n_inputs} inputs)"

    @property
    def n_shards(self) -> int:
        """Shards that have rows."""
        return len(self._shards)

    def map(self, function: Callable[[Source], T]) -> list[T]:
        outcomes = self._cluster.map(function, self._shards)
        self._collect(outcomes)
        return [outcome.value for outcome in outcomes]  # type: ignore[misc]  # a value, as there is no error

    def reduce(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> T:
        if not self._shards:
            return function(ArraySource(*self._empty_block, n_noise=self.n_noise))
        outcome = self._cluster.reduce(function, merge, self._shards)
        self._collect([outcome])
        return outcome.value  # type: ignore[return-value]  # as above

    @property
    def _empty_block(self) -> Block:
        return np.empty((0, self.n_inputs)), np.empty((0, self.n_outputs + self.n_noise))

    def _collect(self, outcomes: Sequence[Outcome[Any]], *, warn: bool = True) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        self.rows_read = sum(outcome.rows_read for outcome in outcomes) or self.rows_read
        self.rows_without_target = sum(outcome.rows_without_target for outcome in outcomes) or self.rows_without_target
        if warn:
            warn_unseen(sum((outcome.unseen for outcome in outcomes), Counter[str]()))

    @cached_property
    def moments(self) -> tuple[Moments, Moments]:
        """Moments of inputs and of targets, in one pass, which also counts the rows of each shard."""
        outcomes = self._cluster.map(compute_moments, self._shards)
        self._collect(outcomes, warn=False)  # the pass that follows does
        found: list[Any] = [outcome.value for outcome in outcomes]
        for shard, (x, _) in zip(self._shards, found, strict=True):
            shard.n_rows = x.count
        return reduce(merge_moments, found, (Moments(self.n_inputs), Moments(self.n_outputs)))

    def select(self, rows: AnyArray) -> DaskSource:
        """A source of the rows of increasing indices; each shard keeps its own."""
        lengths = [shard.n_rows or 0 for shard in self._shards]
        ends = np.cumsum(lengths)
        cuts = np.searchsorted(rows, ends)
        shards, done = [], 0
        for shard, length, end, cut in zip(self._shards, lengths, ends, cuts, strict=True):
            if cut > done:
                own = rows[done:cut] - (end - length)
                shards.append(Shard(SelectionLoader(shard.loader, length, own), shard.parts, len(own)))
            done = int(cut)
        return self._like(shards)

    def _like(self, shards: Sequence[Shard]) -> DaskSource:
        """A source of rows of this one."""
        other = DaskSource(
            shards,
            self._cluster,
            n_inputs=self.n_inputs,
            n_outputs=self.n_outputs,
            single=self.single,
            n_noise=self.n_noise,
        )
        other.feature_names, other.encoder = self.feature_names, self.encoder
        return other

    def take(self, index: AnyArray) -> ArraySource:
        """Load the rows of increasing indices; no others leave the workers."""
        return self.select(index).load()

    def load(self) -> ArraySource:
        parts = self.map(_load_rows) or [self._empty_block]
        x, y = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
        return ArraySource(x, y, n_noise=self.n_noise)

    def keep(self, function: Callable[[Source], T], merge: Callable[[T, T], T]) -> KeptOnWorkers[T]:
        groups = _group_shards(self._shards)
        kept = self._cluster.persist(function, merge, groups)
        counts = [_count_rows(group) for group in groups]
        starts = np.cumsum([0, *counts]).tolist()
        shards = [Shard(ValueLoader(k, starts[k]), (part,), counts[k]) for k, part in enumerate(kept)]
        return KeptOnWorkers(shards, self._cluster)

    def persist(self) -> DaskSource:
        """The same rows in the memory of the workers."""
        kept = self.keep(_load_rows, _join_rows).shards
        loaders = [PersistedLoader(shard.loader, self.single, self.n_noise, self.encoder) for shard in kept]
        return self._like(
            [Shard(loader, shard.parts, shard.n_rows) for loader, shard in zip(loaders, kept, strict=True)]
        )

    def blocks(self, rows: int) -> Iterator[Block]:
        """The rows themselves, one shard after the other; slow, because all of them are sent to this process."""
        return rechunk(self._fetch(), rows)

    def _fetch(self) -> Iterator[Block]:
        for shard in self._shards:
            (outcome,) = self._cluster.map(_load_rows, [shard])
            yield outcome.get()

    def with_labels(self, labels: AnyArray | None) -> Self:
        if labels is not None:
            raise DataError(
                "partition: labels of single rows cannot be used with rows on a cluster; pass a fitted clusterer "
                "with a predict method, or None, and the clusters are found on a sample"
            )
        return self


class DaskFileSource(DaskSource):
    """Rows of files that the workers read; made by ``from_parquet`` and ``from_csv`` with ``client=``."""

    encoder: TableEncoder

    def __init__(self, reader: TableReader, cluster: Cluster, *, single: bool = True) -> None:
        self._reader, self.encoder, self.targets = reader, reader.encoder, reader.targets
        shards = []
        for part, count in reader.split(SHARD_ROWS):
            loader = FileLoader(part, single=single)
            shards.append(Shard(loader, n_rows=count))
        self.feature_names = self.encoder.input_names
        super().__init__(
            shards,
            cluster,
            n_inputs=len(self.feature_names),
            n_outputs=len(self.targets),
            single=single,
            n_noise=reader.noise.n_noise,
        )
        if not self.n_rows:
            reader.rows_read = self.rows_read
            raise reader.no_rows_error()

    def encode_with(self, encoder: TableEncoder) -> DaskFileSource:
        return DaskFileSource(self._reader.encode_with(encoder), self._cluster, single=self.single)


def map_file_parts(reader: TableReader, function: Callable[[TableReader], T], client: Any) -> Iterator[T]:
    """Apply a function to readers of parts of the files, on the workers; the results in the order of the files.

    A few parts at a time, so that this process holds no more of them, however large the files are.
    """
    cluster, work = Cluster(client), partial(_apply_to_reader, function=function)
    shards = [Shard(FileLoader(part, single=True)) for part, _ in reader.split(SHARD_ROWS)]
    for start in range(0, len(shards), _PARTS_AT_ONCE):
        for outcome in cluster.map(work, shards[start : start + _PARTS_AT_ONCE]):
            yield outcome.get()


def _apply_to_reader(source: Source, *, function: Callable[[TableReader], T]) -> T:
    return function(source.reader)  # type: ignore[attr-defined]  # rows of a file have one


def _load_rows(source: Source) -> Block:
    rows = source.load()
    return rows.x, rows.y


def _join_rows(first: Block, second: Block) -> Block:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _group_shards(shards: Sequence[Shard]) -> list[list[Shard]]:
    """Neighbouring shards together, up to a number of rows: every task costs milliseconds."""
    groups: list[list[Shard]] = []
    rows = 0
    for shard in shards:
        rows += shard.n_rows or 0
        if not groups or rows > SHARD_ROWS:
            groups.append([])
            rows = shard.n_rows or 0
        groups[-1].append(shard)
    return groups


def _count_rows(shards: Sequence[Shard]) -> int:
    return sum(shard.n_rows or 0 for shard in shards)


# -- Dask arrays and frames ------------------------------------------------------------------------


def collection_source(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    noise_variance: Any = None,
    *,
    encoder: TableEncoder | None = None,
    missing: str | None = None,
) -> DaskSource:
    """Rows of Dask collections; partitions of X and of the others must hold the same rows.

    X is an array, (n, d), or a frame; y an array, (n,) or (n, q), a series or a frame, or None for rows to predict
    from; weights and known noise variances are arrays, (n,), or series. Tasks run on the current client, or else in
    threads of this process.

    ``encoder`` is that of a fitted model; None: a pass over a frame that does not hold just numbers finds out what its
    columns hold. ``missing`` is what to do with rows in which an input is missing; None: X must hold complete numbers.
    """
    if X.ndim != 2:
        raise DataError(f"X has {X.ndim} dimension(s); it must have rows and columns")
    beside = {"y": y, "sample_weight": sample_weight, "noise_variance": noise_variance}
    beside = {name: value for name, value in beside.items() if value is not None}
    for name, value in beside.items():
        if not is_collection(value):
            raise DataError(
                f"X is a Dask collection, but {name} is {type(value).__name__}; make it one with the same partitions, "
                f"e.g. dask.array.from_array({name}, chunks=(X.chunks[0],))"
            )
        if name != "y" and value.ndim != 1:
            raise DataError(f"{name} has {value.ndim} dimensions; it must hold one number for each row")
    if y is not None and y.ndim > 2:
        raise DataError(f"y has {y.ndim} dimensions; it must have one or two")
    noise = NoiseColumns(*(name if name in beside else None for name in ("sample_weight", "noise_variance")))
    noise.check([] if y is None else range(_width(y)))
    tasks, lengths = _partitions(X)
    parts: list[tuple[Any, ...]] = [(task,) for task in tasks]
    for name, value in beside.items():
        _check_types(value, name)
        more, more_lengths = _partitions(value)
        _check_same_rows(lengths, more_lengths, name)
        parts = [(*own, task) for own, task in zip(parts, more, strict=True)]
    if noise.weight is not None or missing == "drop":  # these rows are left out
        lengths = [None] * len(lengths)
    if not _width(X):
        raise DataError("X has no columns")
    if not is_dask_frame(X) or (encoder is not None and encoder.positional):
        encoder = None
    elif encoder is None and missing is not None and not has_plain_types(X):
        encoder = _scan(tasks)
    if encoder is None:
        _check_types(X, "X")
    width = _width(X) if encoder is None else len(encoder.columns)
    outputs = 0 if y is None else _width(y)
    single = y is None or y.ndim == 1
    shards = [
        Shard(PartitionLoader(number, width, outputs, single, noise, missing or "error", encoder), own, length)
        for number, (own, length) in enumerate(zip(parts, lengths, strict=True))
    ]
    source = DaskSource(shards, Cluster(), n_inputs=width, n_outputs=outputs, single=single, n_noise=noise.n_noise)
    names = list(X.columns) if is_dask_frame(X) else []
    if names and all(isinstance(name, str) for name in names):  # as in scikit-learn
        source.feature_names = names if encoder is None else encoder.input_names
    if not source.n_rows:
        raise DataError("X has no rows" if missing != "drop" else "every row of X has a missing value")
    source.encoder = encoder
    return source


def _scan(partitions: Sequence[Any]) -> TableEncoder:
    """Decide how the columns of a frame are read, in a pass over its partitions."""
    shards = [Shard(FrameLoader(number), (part,)) for number, part in enumerate(partitions)]
    return Cluster().reduce(_scan_part, TableScan.merge, shards).get().encoder()


def _scan_part(source: Source) -> TableScan:
    assert isinstance(source, TablePart)
    return TableScan(source.table)


def _width(data: Any) -> int:
    return 1 if data.ndim == 1 else int(data.shape[1])


def _partitions(data: Any) -> tuple[list[Any], list[int | None]]:
    """A delayed value for each partition, and its number of rows, if known."""
    if is_dask_frame(data):
        tasks = list(data.to_delayed())
        return tasks, [None] * len(tasks)
    if data.ndim == 2 and data.numblocks[1] > 1:
        data = data.rechunk({1: -1})
    lengths = [None if np.isnan(length) else int(length) for length in data.chunks[0]]
    return list(data.to_delayed().ravel()), lengths


def _check_same_rows(x: list[int | None], y: list[int | None], name: str) -> None:
    remedy = f"make them alike, e.g. with {name}.rechunk((X.chunks[0],)), or take both from one frame"
    if len(x) != len(y):
        raise DataError(f"X has {len(x):,} partitions and {name} has {len(y):,}; {remedy}")
    for number, (own, other) in enumerate(zip(x, y, strict=True)):
        if own is not None and other is not None and own != other:
            raise DataError(
                f"partition {number} (counting from 0): X has {own:,} rows and {name} has {other:,}; {remedy}"
            )


def _check_types(data: Any, what: str) -> None:
    """Raise an error for columns that are not numeric, before anything is computed."""
    if not is_dask_frame(data):
        if data.dtype.kind not in "fiub":
            raise DataError(f"{what} is a Dask array of {data.dtype}; it must hold real numbers")
        return
    import pandas as pd  # start-up weight: it is there where a Dask frame is

    meta = data._meta if data.ndim == 2 else data._meta.to_frame()
    check_unique(meta.columns, "column", f"{what}: ")
    for name, kind in meta.dtypes.items():
        if pd.api.types.is_bool_dtype(kind) or (
            pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
        ):
            continue
        raise DataError(f"column {name!r} of {what} holds {kind}, which is not a number; convert it, or drop it")
