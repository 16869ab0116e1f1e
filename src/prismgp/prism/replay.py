"""Steps on a GPU: recorded once, then replayed with one launch instead of several hundred.

A recording holds addresses, so it is given its inputs by copying them into tensors of its own, and what it changes must
be changed in place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch

from prismgp._types import Tensor

Inputs = TypeVar("Inputs", bound=tuple[Any, ...])  # a named tuple of tensors, tuples of them, and None
Outputs = TypeVar("Outputs")


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
