"""Independent computations side by side, each on one thread.

Matrices of some hundred rows gain little from the threads of one operation, which wait for each other at every turn:
where a machine has other work, factorisations took several times as long with two threads as with one. What is
computed on one thread also has the same bits whatever the number of cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A pool of as many threads as torch has, of which each computes its items on one thread.

    The caller's own operations have one thread as well while the pool is open: threads of its operations would go on
    spinning for a while, on cores that the pool needs. The caller computes items itself where there is only one, before
    the pool is opened, where torch has one thread, and where the pool is not ``wanted``, as on a GPU.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1

    def __enter__(self) -> Workers:
        self._threads = torch.get_num_threads()
        if self._threads == 1 or not self._wanted:
            return self
        ready = threading.Barrier(self._threads + 1)
        self._pool = ThreadPoolExecutor(self._threads, "prismgp", _compute_alone)
        try:
            for _ in range(self._threads):
                self._pool.submit(ready.wait)
            ready.wait()
            _set_threads(1, self._threads)
        except BaseException:  # or threads would wait for each other forever
            ready.abort()
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    @property
    def threads(self) -> int:
        """How many items are computed side by side."""
        return 1 if self._pool is None else self._threads

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Compute a function of every item."""
        if self._pool is None or len(items) == 1:
            return [function(item) for item in items]
        grad, numpy_errors = torch.is_grad_enabled(), np.geterr()

        def compute(item: Item) -> Result:
            with torch.set_grad_enabled(grad), np.errstate(**numpy_errors):  # threads have switches of their own
                return function(item)

        futures: list[Future[Result]] = []
        try:
            for item in items:
                # With the context of the caller, which knows the current client of a cluster.
                futures.append(self._pool.submit(copy_context().run, compute, item))
            return [future.result() for future in futures]
        finally:  # after an interrupt nothing may go on that changes what the caller holds
            for future in futures:
                future.cancel()
            wait(futures)

    def _close(self) -> None:
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        try:
            pool.shutdown(cancel_futures=True)
        finally:
            _set_threads(self._threads, self._threads)


@contextmanager
def use_one_thread(wanted: bool = True) -> Iterator[None]:
    """Let the operations of the caller have one thread until the block ends, where that is wanted."""
    threads = torch.get_num_threads()
    if threads == 1 or not wanted:  # one perhaps in another such block, which knows how many others have
        yield
        return
    try:
        _set_threads(1, threads)
        yield
    finally:
        _set_threads(threads, threads)


def _set_threads(count: int, others: int) -> None:
    """Set the threads of the caller's operations; those of threads yet to come stay what they were."""
    torch.set_num_threads(count)
    if count != others:  # torch gives a new thread what any thread has set last
        other = threading.Thread(target=torch.set_num_threads, args=(others,))
        other.start()
        other.join()


def _compute_alone() -> None:
    torch.get_num_threads()  # else the first operation would ask for the number, and undo the next line
    torch.set_num_threads(1)
