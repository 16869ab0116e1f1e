"""Work on a Dask cluster: the tasks that are sent, merged and retried, one for each shard of the rows.

Errors of the cluster become errors that say what to do. Dask is an optional extra: it is imported inside functions,
here and in :mod:`prismgp.data.dask`.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

import torch

from prismgp.data.shards import FileRows, PartitionRows, Shard, ShardLoader
from prismgp.data.sources import Kept, Source
from prismgp.exceptions import DataError, PrismGPError

T = TypeVar("T")
U = TypeVar("U")
CONNECT_SECONDS = 10
_RETRIES = 3  # of a task that fails for other reasons than the data, such as an unreliable file system
_FAN_IN = 8  # results that one task merges


@dataclass
class Outcome(Generic[T]):
    """The result of a shard, or of several: a value, or the first error; rows read and unseen categories."""

    value: T | None = None
    error: PrismGPError | None = None
    rows_read: int = 0
    rows_without_target: int = 0
    unseen: Counter[str] = field(default_factory=Counter)

    def get(self) -> T:
        """The value; an error is raised."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


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
    if isinstance(source, FileRows):
        reader = source.reader
        return Outcome(value, None, reader.rows_read, reader.rows_without_target, reader.unseen)
    return Outcome(value, unseen=source.unseen if isinstance(source, PartitionRows) else Counter())


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


class KeptOnWorkers(Kept[T]):
    """Results for parts of the rows, in the memory of the workers; those of a lost worker are computed again."""

    distributed = True

    def __init__(self, shards: Sequence[Shard], cluster: Cluster) -> None:
        self.shards, self._cluster = list(shards), cluster

    def load(self) -> list[T]:
        return [outcome.get() for outcome in self._cluster.map(_get_value, self.shards)]

    def reduce(self, function: Callable[[T, int], U], merge: Callable[[U, U], U]) -> U:
        return self._cluster.reduce(partial(_apply_to_value, function=function), merge, self.shards).get()


def _get_value(source: Source) -> Any:
    return source.value  # type: ignore[attr-defined]  # what a ValueLoader opens has one


def _apply_to_value(source: Source, *, function: Callable[[Any, int], U]) -> U:
    return function(source.value, source.first_row)  # type: ignore[attr-defined]  # as above
