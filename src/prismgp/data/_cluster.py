"""Tasks on a Dask cluster: sent, merged, retried; and its troubles as our errors.

Everything of Dask is imported when it is needed, and only here and in ``_collections``.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

import torch

from prismgp.data._shards import Recipe, Shard
from prismgp.data._source import Source
from prismgp.exceptions import DataError, PrismGPError

__all__ = ["Cluster", "Outcome"]

T = TypeVar("T")
_RETRIES = 3  # of a task that fails for other reasons than the data, as by a file system that hiccups
_FAN_IN = 8  # results that one task merges
_CONNECT_SECONDS = 10


class Outcome(Generic[T]):
    """What became of a shard, or of several: a value, or the first error; and what was noticed on the way."""

    def __init__(self, value: T | None = None, error: PrismGPError | None = None) -> None:
        self.value, self.error = value, error
        self.rows_read = 0
        self.unseen = Counter[str]()


class Packed(Generic[T]):
    """Anything that can be pickled, packed once: neither the scheduler nor a transfer unpacks it."""

    def __init__(self, content: T) -> None:
        import cloudpickle  # comes with Dask

        self._bytes: bytes = cloudpickle.dumps(content)

    def content(self) -> T:
        import cloudpickle

        try:
            return cast(T, cloudpickle.loads(self._bytes))
        except RuntimeError as error:
            if torch.cuda.is_available():
                raise
            raise PrismGPError(
                'the model computes on a GPU, but a worker has none; use device="cpu", or workers with one'
            ) from error


class Cluster:
    """Where tasks are done.

    Parameters
    ----------
    client : distributed.Client, address of a scheduler, or None
        None: the client that is current at the time, or else threads of this process.
    """

    def __init__(self, client: Any = None) -> None:
        self._client = _connected(self, client) if isinstance(client, str) else client
        if self._client is not None and not hasattr(self._client, "compute"):
            raise DataError(f"client={client!r} must be a distributed.Client or the address of a scheduler")
        if getattr(self._client, "asynchronous", False):
            raise DataError("client is asynchronous; make one with asynchronous=False")

    def map(self, function: Callable[[Source], T], shards: Sequence[Shard]) -> list[Outcome[T]]:
        """The outcome of each shard."""
        return cast(list[Outcome[T]], self._gathered(_tasks(function, None, shards)))

    def reduce(
        self, function: Callable[[Source], T], merge: Callable[[T, T], T], shards: Sequence[Shard]
    ) -> Outcome[T]:
        """The outcomes of all shards, merged on the cluster in a tree of fixed shape: the same, whoever did what."""
        tasks = _tasks(function, merge, shards)
        (outcome,) = self._gathered(tasks)
        return cast(Outcome[T], outcome)

    def _gathered(self, tasks: list[Any]) -> list[Any]:
        import dask

        client = self._client or _current_client()
        if client is None:
            return list(dask.compute(*tasks))
        with _translated(client):
            return list(client.gather(client.compute(tasks, retries=_RETRIES)))


def _tasks(function: Any, merge: Any, shards: Sequence[Shard]) -> list[Any]:
    """A task for each shard and, to merge them, a tree of tasks over these."""
    from dask import delayed

    token = uuid4().hex

    def task(call: Any, name: str, *args: Any) -> Any:
        return delayed(call, pure=False)(*args, dask_key_name=f"prismgp-{name}-{token}")

    # The work is a task too: sent once, passed on among workers, and made again when one is lost.
    work = task(_same, "work", Packed((function, merge)))
    level = [
        task(_loaded, f"shard-{number}", work, shard.recipe, shard.n_rows, *shard.parts)
        for number, shard in enumerate(shards)
    ]
    depth = 0
    while merge is not None and len(level) > 1:
        groups = [level[start : start + _FAN_IN] for start in range(0, len(level), _FAN_IN)]
        level = [task(_merged, f"merge-{depth}-{number}", work, *group) for number, group in enumerate(groups)]
        depth += 1
    return level


def _same(value: T) -> T:
    return value


def _loaded(work: Packed[Any], recipe: Recipe, n_rows: int | None, *parts: Any) -> Outcome[Any]:
    """Load a shard and do the work on it; what is wrong with the data is an outcome, not worth another try."""
    try:
        function, _ = work.content()
        source = recipe.open(parts, n_rows)
        outcome = Outcome(function(source))
    except PrismGPError as error:
        message = str(error)
        name = recipe.name
        known = name.partition(",")[0] in message
        return Outcome(error=error if known else type(error)(f"{name}: {message}"))
    outcome.rows_read = getattr(source, "rows_read", 0)
    outcome.unseen.update(getattr(source, "unseen", {}))
    return outcome


def _merged(work: Packed[Any], *outcomes: Outcome[Any]) -> Outcome[Any]:
    failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
    if failed is not None:
        return failed
    _, merge = work.content()
    total = Outcome(reduce(merge, [outcome.value for outcome in outcomes]))
    total.rows_read = sum(outcome.rows_read for outcome in outcomes)
    for outcome in outcomes:
        total.unseen.update(outcome.unseen)
    return total


def _connected(owner: Cluster, address: str) -> Any:
    """A client of our own, closed with its owner."""
    try:
        from distributed import Client
    except ImportError as error:
        raise PrismGPError(
            'distributed is not installed, which a cluster needs; install it with pip install "prismgp[dask]"'
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise PrismGPError(f"no Dask scheduler answers at {address!r}: {error or type(error).__name__}") from error
    weakref.finalize(owner, partial(client.close, timeout=_CONNECT_SECONDS))
    return client


def _current_client() -> Any:
    """The client in force, if any; there is none where nobody has imported ``distributed``."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


@contextmanager
def _translated(client: Any) -> Iterator[None]:
    """Troubles of the cluster as errors that say what to do."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        yield
    except KilledWorker as error:
        raise PrismGPError(
            "workers died again and again while they did the same part of the rows, as when they run out of memory; "
            f"make partitions or row groups smaller, or give workers more memory ({error})"
        ) from error
    except (CancelledError, CommClosedError, TimeoutError) as error:
        address = getattr(getattr(client, "scheduler", None), "address", "its address")
        raise PrismGPError(
            f"the connection to the Dask scheduler at {address} was lost, and with it this pass over the rows; "
            "nothing was written: start the scheduler and fit again"
        ) from error
