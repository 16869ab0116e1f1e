"""Independent computations side by side, each on one thread.

Matrices of some hundred rows gain little from the threads of one operation, which wait for each other at every turn:
where a machine has other work, factorisations took several times as long with two threads as with one. What is
computed on one thread also has the same bits whatever the number of cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from types import TracebackType
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """As many threads as torch has; while they are open, each of them and the caller compute on one.

    Without having been opened, and where torch has one thread, the caller does all the work.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1

    def __enter__(self) -> Workers:
        self._threads = torch.get_num_threads()
        if self._threads > 1:
            torch.set_num_threads(1)  # new threads begin with what was set last
            self._pool = ThreadPoolExecutor(self._threads, "prismgp", _begin)
            ready = threading.Barrier(self._threads + 1)
            for _ in range(self._threads):
                self._pool.submit(ready.wait)
            ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            torch.set_num_threads(self._threads)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Compute a function of every item."""
        if self._pool is None or len(items) < 2:
            return [function(item) for item in items]
        grad = torch.is_grad_enabled()

        def compute(item: Item) -> Result:
            with torch.set_grad_enabled(grad):  # threads have switches of their own
                return function(item)

        futures = [self._pool.submit(copy_context().run, compute, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:  # after an interrupt nothing may go on that changes what the caller holds
            for future in futures:
                future.cancel()
            wait(futures)


def _begin() -> None:
    torch.set_num_threads(1)
