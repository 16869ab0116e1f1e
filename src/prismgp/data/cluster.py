"""Work on a Dask cluster: shards that tasks load for themselves, and the tasks that are sent, merged and retried.

A shard is a part of the rows, described by a small loader. Errors of the cluster become errors that say what to do.
Dask is an optional extra: it is imported inside functions, here and in :mod:`prismgp.data.dask`.
"""

from __future__ import annotations

import os
import socket
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import torch

from prismgp._types import AnyArray
from prismgp._validate import check_cells
from prismgp.data.encoder import TableEncoder, missing_error
from prismgp.data.frames import to_arrow
from prismgp.data.reader import TableReader
from prismgp.data.row_noise import NoiseColumns
from prismgp.data.sources import ArraySource, Block, Selection, Source, rechunk
from prismgp.exceptions import DataError, PrismGPError

T = TypeVar("T")
CONNECT_SECONDS = 10
_RETRIES = 3  # of a task that fails for other reasons than the data, such as a file system that fails now and then
_FAN_IN = 8  # results that one task merges


# -- shards ----------------------------------------------------------------------------------------


class ShardLoader(Protocol):
    """How a task loads the rows of a shard; pickled with every task."""

    @property
    def name(self) -> str:
        """The shard in messages."""

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        """Open the rows in the process of the task.

        ``parts`` are the values of the Dask objects that belong to the shard. A pass that counts the rows does not
        need ``n_rows``.
        """


@dataclass
class Shard:
    """A part of the rows."""

    loader: ShardLoader
    parts: tuple[Any, ...] = ()  # the Dask objects that the loader needs
    n_rows: int | None = None  # if known


class _FileRows(Source):
    """Rows of a part of a file."""

    def __init__(self, reader: TableReader, n_rows: int, *, single: bool) -> None:
        self.reader, self.n_rows, self.single = reader, n_rows, single
        self.encoder = reader.encoder
        self.n_inputs, self.n_outputs = len(reader.encoder.columns), len(reader.targets)
        self.n_noise = reader.noise.n_noise

    def blocks(self, rows: int) -> Iterator[Block]:
        return rechunk(((block.x, block.y) for block in self.reader.blocks(rows)), rows)


@dataclass(frozen=True)
class FileLoader:
    """Loads row groups of a Parquet file, or a text file."""

    reader: TableReader  # of one file
    single: bool  # whether one target makes a one-dimensional y

    @property
    def name(self) -> str:
        return self.reader.files.path

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        for file in self.reader.files.files:
            if not os.path.exists(file.path):
                raise DataError(
                    f"{file.path}: there is no such file on {socket.gethostname()}, where a worker looked for it; "
                    "every worker must reach the files by the same path, as on a shared file system"
                )
        return _FileRows(self.reader, n_rows or 0, single=self.single)


class _PartitionRows(ArraySource):
    """Rows of a partition, with the number of cells by column that hold a category unknown to the encoder."""

    unseen: Counter[str]


@dataclass(frozen=True)
class PartitionLoader:
    """Loads a partition of Dask arrays or frames."""

    number: int  # of the partition, from 0
    width: int  # inputs
    outputs: int  # targets; 0: there is no y
    single: bool
    noise: NoiseColumns = field(default_factory=NoiseColumns)  # what the parts behind y are
    missing: str = "error"  # what to do with rows in which an input is missing
    encoder: TableEncoder | None = None  # how a frame is read; None: there are only numbers

    @property
    def name(self) -> str:
        return f"partition {self.number} (counting from 0)"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        x, incomplete, unseen = self._read(parts[0])
        y = _to_floats(parts[1], "y", self.outputs) if self.outputs else np.empty((len(x), 0))
        if len(x) != len(y):
            raise DataError(
                f"X has {len(x):,} rows and y has {len(y):,}; partitions of X and y must hold the same rows"
            )
        if self.noise.names:
            y = self._with_noise(y, parts[2:])
        kept = np.ones(len(x), dtype=bool) if self.missing != "drop" else ~incomplete
        if self.noise.names:  # without the rows of weight zero
            kept &= y[:, self.outputs] > 0
        if not kept.all():
            x, y = x[kept], y[kept]
        if n_rows is not None and len(x) != n_rows:
            raise DataError(f"there are {len(x):,} rows, where there were {n_rows:,}; the collection must not change")
        source = _PartitionRows(x, y, n_noise=self.noise.n_noise)
        source.single, source.encoder, source.unseen = self.single, self.encoder, Counter(unseen)
        return source

    def _read(self, part: Any) -> tuple[AnyArray, AnyArray, dict[str, int]]:
        """A number for each cell, (n, width), rows in which one is missing, and counts of unknown categories."""
        if self.encoder is None:
            x = _to_floats(part, "X", self.width, allow_nan=self.missing != "error")
            return x, np.asarray(np.isnan(x).any(axis=1)), {}
        # Folds by the number in the partition: that in the whole collection is not known here.
        batch = self.encoder.read(to_arrow(part, self.encoder.input_names))
        if self.missing == "error" and batch.missing:
            raise missing_error(batch.missing)
        return batch.values, batch.incomplete, batch.unseen

    def _with_noise(self, y: AnyArray, parts: Sequence[Any]) -> AnyArray:
        """Targets with weights and variances behind them."""
        given = dict(zip(self.noise.names, parts, strict=True))
        for name, part in given.items():
            if len(part) != len(y):
                raise DataError(
                    f"{name} has {len(part):,} rows and X has {len(y):,}; their partitions must hold the same rows"
                )
        columns = [_to_floats(part, name, 1) for name, part in given.items()]
        y = np.concatenate([y, *columns], 1, dtype=np.float64)
        return self.noise.arrange(y, self.outputs, np.arange(1, len(y) + 1), self.name)


class TablePart(ArraySource):
    """A partition of a frame as it is."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(np.empty((table.num_rows, 0)), np.empty((table.num_rows, 0)))
        self.table = table


@dataclass(frozen=True)
class FrameLoader:
    """Loads a partition of a Dask frame, to find out what its columns hold."""

    number: int

    @property
    def name(self) -> str:
        return f"partition {self.number} (counting from 0)"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> TablePart:  # noqa: ARG002
        return TablePart(to_arrow(parts[0]))


def _to_floats(part: Any, what: str, width: int, *, allow_nan: bool = False) -> AnyArray:
    """Convert a partition to checked floats, (n, width)."""
    values: AnyArray
    try:
        if hasattr(part, "to_numpy"):
            values = part.to_numpy()
            if values.dtype.kind not in "fiub":  # nullable columns come as objects
                values = part.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            values = np.asarray(part)
        values = values if values.dtype in (np.float64, np.float32) else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as numbers: {error}") from error
    values = values[:, None] if values.ndim == 1 else values
    if values.shape[1] != width:
        raise DataError(f"{what} has {values.shape[1]} columns; the first partition promised {width}")
    check_cells(values, part, what, allow_nan=allow_nan)
    return values


class SelectionLoader:
    """Loads some rows of another shard, which has ``n_rows``; ``rows`` are increasing, counted from its first row."""

    def __init__(self, loader: ShardLoader, n_rows: int, rows: AnyArray) -> None:
        self._loader, self._n_rows = loader, n_rows
        # Sent with every task: one bit for each row, or the indices if that is shorter.
        self._packed = len(rows) * 64 > n_rows
        self._rows = rows
        if self._packed:
            mask = np.zeros(n_rows, dtype=bool)
            mask[rows] = True
            self._rows = np.packbits(mask)

    @property
    def name(self) -> str:
        return self._loader.name

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        rows = np.flatnonzero(np.unpackbits(self._rows, count=self._n_rows)) if self._packed else self._rows
        return Selection(self._loader.open(parts, self._n_rows), rows)


@dataclass(frozen=True)
class PersistedLoader:
    """Loads rows that are in the memory of workers: the part is an :class:`Outcome`, rows or why there are none."""

    number: int
    single: bool
    n_noise: int
    encoder: TableEncoder | None

    @property
    def name(self) -> str:
        return f"part {self.number} (counting from 0) of the rows in memory"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        outcome: Outcome[Block] = parts[0]
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value is not None
        source = ArraySource(*outcome.value, n_noise=self.n_noise)
        source.single, source.encoder = self.single, self.encoder
        return source


# -- tasks -----------------------------------------------------------------------------------------


@dataclass
class Outcome(Generic[T]):
    """The result of a shard, or of several: a value, or the first error; rows read and unseen categories."""

    value: T | None = None
    error: PrismGPError | None = None
    rows_read: int = 0
    rows_without_target: int = 0
    unseen: Counter[str] = field(default_factory=Counter)


class Packed(Generic[T]):
    """Anything that can be pickled, as bytes: neither the scheduler nor a transfer unpickles it."""

    def __init__(self, content: T) -> None:
        import cloudpickle  # comes with Dask

        self._bytes: bytes = cloudpickle.dumps(content)

    def content(self) -> T:
        import cloudpickle  # comes with Dask

        try:
            return cast(T, cloudpickle.loads(self._bytes))
        except RuntimeError as error:
            if torch.cuda.is_available():
                raise
            raise PrismGPError(
                'the model computes on a GPU, but a worker has none; use device="cpu", or workers with one'
            ) from error


class Cluster:
    """Runs tasks, on a ``distributed.Client`` or one that is connected to the address of a scheduler.

    None: the current client when tasks are run, or else threads of this process.
    """

    def __init__(self, client: Any = None) -> None:
        self._client = _connect(self, client) if isinstance(client, str) else client
        if self._client is not None and not hasattr(self._client, "compute"):
            raise DataError(f"client={client!r} must be a distributed.Client or the address of a scheduler")
        if getattr(self._client, "asynchronous", False):
            raise DataError("client is asynchronous; make one with asynchronous=False")

    def map(self, function: Callable[[Source], T], shards: Sequence[Shard]) -> list[Outcome[T]]:
        """The outcome of each shard."""
        return self.gather(_make_tasks(function, None, shards))

    def reduce(
        self, function: Callable[[Source], T], merge: Callable[[T, T], T], shards: Sequence[Shard]
    ) -> Outcome[T]:
        """The outcomes of all shards, merged on the cluster in a tree of fixed shape: the order does not change."""
        (outcome,) = self.gather(_make_tasks(function, merge, shards))
        return cast(Outcome[T], outcome)

    def persist(
        self, function: Callable[[Source], T], merge: Callable[[T, T], T], groups: Sequence[Sequence[Shard]]
    ) -> list[Any]:
        """Delayed outcomes, one for each group of shards, computed once and kept by the workers.

        If a worker is lost, what it kept is computed again.
        """
        import dask  # an optional extra

        tasks = [_make_tasks(function, merge, group)[0] for group in groups]
        client = self._client or _current_client()
        if client is None:
            return list(dask.persist(*tasks))
        with _translate_errors(client):
            return list(client.persist(tasks, retries=_RETRIES))

    def gather(self, tasks: list[Any]) -> list[Any]:
        """Run tasks and return their results."""
        import dask  # an optional extra

        client = self._client or _current_client()
        if client is None:
            return list(dask.compute(*tasks))
        with _translate_errors(client):
            return list(client.gather(client.compute(tasks, retries=_RETRIES)))


def _make_tasks(function: Any, merge: Any, shards: Sequence[Shard]) -> list[Any]:
    """A task for each shard and, to merge them, a tree of tasks over these."""
    from dask import delayed  # an optional extra

    token = uuid4().hex

    def task(call: Any, name: str, *args: Any) -> Any:
        return delayed(call, pure=False)(*args, dask_key_name=f"prismgp-{name}-{token}")

    # The work is a task too: sent once, passed on among workers, and sent again when one is lost.
    work = task(_identity, "work", Packed((function, merge)))
    level = [
        task(run_shard, f"shard-{number}", work, shard.loader, shard.n_rows, *shard.parts)
        for number, shard in enumerate(shards)
    ]
    depth = 0
    while merge is not None and len(level) > 1:
        groups = [level[start : start + _FAN_IN] for start in range(0, len(level), _FAN_IN)]
        level = [task(_merge_outcomes, f"merge-{depth}-{number}", work, *group) for number, group in enumerate(groups)]
        depth += 1
    return level


def _identity(value: T) -> T:
    return value


def run_shard(work: Packed[Any], loader: ShardLoader, n_rows: int | None, *parts: Any) -> Outcome[Any]:
    """Load a shard and do the work on it; an error of the data is an outcome, since retrying would not help."""
    try:
        function, _ = work.content()
        source = loader.open(parts, n_rows)
        value = function(source)
    except PrismGPError as error:
        message, name = str(error), loader.name
        known = name.partition(",")[0] in message
        return Outcome(error=error if known else type(error)(f"{name}: {message}"))
    if isinstance(source, _FileRows):
        reader = source.reader
        return Outcome(value, None, reader.rows_read, reader.rows_without_target, reader.unseen)
    return Outcome(value, unseen=source.unseen if isinstance(source, _PartitionRows) else Counter())


def _merge_outcomes(work: Packed[Any], *outcomes: Outcome[Any]) -> Outcome[Any]:
    failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
    if failed is not None:
        return failed
    _, merge = work.content()
    total = Outcome(reduce(merge, [outcome.value for outcome in outcomes]))
    total.rows_read = sum(outcome.rows_read for outcome in outcomes)
    total.rows_without_target = sum(outcome.rows_without_target for outcome in outcomes)
    for outcome in outcomes:
        total.unseen.update(outcome.unseen)
    return total


def _connect(owner: Cluster, address: str) -> Any:
    """Connect a client, which is closed with its owner."""
    try:
        from distributed import Client  # an optional extra
    except ImportError as error:
        raise PrismGPError(
            'distributed is not installed, which a cluster needs; install it with pip install "prismgp[dask]"'
        ) from error
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise PrismGPError(f"no Dask scheduler answers at {address!r}: {error or type(error).__name__}") from error
    weakref.finalize(owner, partial(client.close, timeout=CONNECT_SECONDS))
    return client


def _current_client() -> Any:
    """The current client, if any; there is none before ``distributed`` has been imported."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


@contextmanager
def _translate_errors(client: Any) -> Iterator[None]:
    """Turn errors of the cluster into errors that say what to do."""

    from distributed import KilledWorker  # an optional extra
    from distributed.comm import CommClosedError  # an optional extra

    try:
        yield
    except KilledWorker as error:
        raise PrismGPError(
            "workers were lost repeatedly while they processed the same part of the rows, for example because they run "
            f"out of memory; make partitions or row groups smaller, or give workers more memory ({error})"
        ) from error
    except (CancelledError, CommClosedError, TimeoutError) as error:
        address = getattr(getattr(client, "scheduler", None), "address", "its address")
        raise PrismGPError(
            f"the connection to the Dask scheduler at {address} was lost during a pass over the rows; "
            "nothing was written: start the scheduler and fit again"
        ) from error
