"""Computations side by side: independent ones on threads of a CPU, and recorded steps on a GPU.

Matrices of some hundred rows gain little from the threads of one operation, which wait for each other at every turn:
where a machine has other work, factorisations took several times as long with two threads as with one. So each is
computed on one thread, which also gives the same bits whatever the number of cores.

On a GPU, launching the several hundred operations of a step takes longer than computing them. So a step is recorded
once, and then replayed with one launch. A recording holds addresses: it is given its inputs by copying them into
tensors of its own, and what it changes must be changed in place.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from prismgp._types import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Inputs = TypeVar("Inputs", bound=tuple[Any, ...])  # a named tuple of tensors, tuples of them, and None
Outputs = TypeVar("Outputs")


# -- threads of a CPU ---------------------------------------------------------------------------------


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
    if threads == 1 or not wanted:  # already one, perhaps set by an outer block
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


# -- recorded steps of a GPU --------------------------------------------------------------------------


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from main memory to a device, without waiting for what the device still has to do."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class Replay(Generic[Inputs, Outputs]):
    """A function of tensors, with a recording for each shape of its inputs.

    The first call with a shape is computed as usual, since libraries set themselves up in it; the second is recorded.
    Outputs are those of the last call, overwritten by the next.
    """

    def __init__(self) -> None:
        self._recordings: dict[tuple[object, ...], _Recording[Inputs, Outputs] | None] = {}
        self._works = True

    def __call__(self, function: Callable[[Inputs], Outputs], inputs: Inputs, device: torch.device) -> Outputs:
        """Compute the function, always the same, of inputs on a device."""
        shape = tuple(None if each is None else each.shape for each in _tensors(inputs))
        if not self._works or shape not in self._recordings:
            self._recordings.setdefault(shape, None)
            return function(inputs)
        recording = self._recordings[shape]
        if recording is None:
            stream = torch.cuda.current_stream(device)
            try:
                recording = self._recordings[shape] = _Recording(function, inputs, device)
            except RuntimeError as error:  # an operation that this version of CUDA cannot record
                torch.cuda.set_stream(stream)
                if isinstance(error.__context__, KeyboardInterrupt):
                    raise error.__context__ from None
                warnings.warn(f"training steps cannot be recorded on this GPU, and are slower: {error}", stacklevel=2)
                self._works = False
                return function(inputs)
        return recording.replay(inputs)


class _Recording(Generic[Inputs, Outputs]):
    def __init__(self, function: Callable[[Inputs], Outputs], inputs: Inputs, device: torch.device) -> None:
        copies = [None if each is None else each.clone() for each in _tensors(inputs)]
        self._inputs = [each for each in copies if each is not None]
        own = _like(inputs, iter(copies))
        self._graph = torch.cuda.CUDAGraph()
        # On this device, which need not be the current one. Other threads may use the GPU meanwhile.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # of torch
        place = torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), place:
            self._outputs = function(own)

    def replay(self, inputs: Inputs) -> Outputs:
        given = [each for each in _tensors(inputs) if each is not None]
        for own, value in zip(self._inputs, given, strict=True):
            own.copy_(value)
        self._graph.replay()
        return self._outputs


def _tensors(inputs: tuple[Any, ...]) -> Iterator[Tensor | None]:
    """What a named tuple holds, one by one."""
    for value in inputs:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def _like(inputs: Inputs, tensors: Iterator[Tensor | None]) -> Inputs:
    """A tuple of the same kind that holds other tensors."""
    parts = [tuple(next(tensors) for _ in value) if isinstance(value, tuple) else next(tensors) for value in inputs]
    return type(inputs)(*parts)  # type: ignore[arg-type]  # as a named tuple is made
