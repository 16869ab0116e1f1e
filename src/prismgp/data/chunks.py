"""From a source to standardised chunks of rows, as tensors on the compute device.

The :class:`Standardiser` is fitted on the training rows in one pass; :class:`Chunks` applies it, and reads the next
block while the previous one is used in the computations.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from prismgp._system import available_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.rows import Work
from prismgp.data.sources import Source
from prismgp.exceptions import PrismGPWarning, TooLargeError

T = TypeVar("T")

_CPU_BUDGET = 96 * 2**20
_CUDA_BUDGET = 2**30
_LEAST_ROWS = 256  # of a chunk, when memory is short
_MOST_DEVIATIONS = 1e30  # of a standardised value in float32
_IGNORE = 1e20  # scale of an input that never varied, in units of its magnitude
_NOTHING = 1e-18  # share of the spread below which a mean is a rounding error
# An input is ignored if no more rows than these, and no larger share of all rows, differ from the others: a
# length-scale cannot be learned from them, and beyond them the kernel of few frequencies is arbitrary.
_FEW_ROWS, _FEW_OF_ALL = 3, 1 / 300
_AHEAD = 2  # blocks that wait, beside the one in use and the one being read


@dataclass(frozen=True)
class Standardiser:
    """Column-wise affine maps between the user's units and the model's, ``(value - shift) / scale``.

    In the model's units every column has a spread of one, so starting values and bounds need not depend on the data.
    """

    x_shift: Array  # (d,)
    x_scale: Array  # (d,)
    y_shift: Array  # (q,)
    y_scale: Array  # (q,)
    fixed_mean: Array  # (q,), the constant mean, in the model's units, when it is neither learned nor given

    @property
    def constant_inputs(self) -> npt.NDArray[np.bool_]:
        """Which inputs did not vary in training, except in a few rows at most, (d,)."""
        return self.x_scale >= _IGNORE * _magnitude(self.x_shift)

    @classmethod
    def fit(cls, source: Source, *, normalize: bool, learned: bool = True) -> Standardiser:
        """Fit shifts and scales in one pass over the rows.

        The kernels are stationary, so shifting and scaling inputs and targets only changes the unit of the
        parameters, and keeps the arithmetic in range. ``normalize`` decides the constant mean if it is neither learned
        nor given: the targets' average, or zero. ``learned`` says that length-scales are learned; if the user gives
        them, no input that varies is ignored.
        """
        x, y = source.moments
        x_mean, x_std, y_mean, y_std = x.mean, x.std, y.mean, y.std
        # An input that did not vary in training has no information; the huge scale makes the model ignore
        # it at prediction too, where any other value would be infinitely many deviations away.
        few = min(_FEW_ROWS, int(_FEW_OF_ALL * x.count)) if learned else 0
        ignored = (x_std == 0) | (x.apart <= few)
        # Not by the mean, which a few rows move and which may cancel to next to nothing.
        x_scale = np.where(ignored, _IGNORE * np.maximum(_magnitude(x.usual), x.largest), x_std)
        x_shift = np.where(ignored, x.usual, np.where(np.abs(x_mean) > _NOTHING * x_std, x_mean, 0.0))
        y_scale = np.where(y_std > 0, y_std, _magnitude(y_mean))
        return cls(x_shift, x_scale, y_mean, y_scale, np.zeros_like(y_mean) if normalize else -y_mean / y_scale)


def _magnitude(mean: Array) -> Array:
    return np.where(mean != 0, np.abs(mean), 1.0)


def standardise(block: AnyArray, shift: Array, scale: Array, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``(block - shift) / scale`` on the device, computed in float64 and rounded once."""
    # A copy only where torch cannot alias the memory: read-only or byte-swapped arrays, negative strides.
    tensor = torch.from_numpy(block if _torch_ready(block) else block.astype(block.dtype.newbyteorder("="), order="C"))
    # Contiguous, so that the result does not depend on the memory order of the user's array.
    tensor = tensor.to(device, non_blocking=True).contiguous().double()
    shifted = tensor - torch.as_tensor(shift, dtype=torch.float64, device=device)
    shifted.div_(torch.as_tensor(scale, dtype=torch.float64, device=device))
    if dtype == torch.float32:
        shifted.clamp_(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)  # beyond, products overflow to infinity and cosines to NaN
    return shifted.to(dtype)


def _torch_ready(block: AnyArray) -> bool:
    return (
        block.flags.writeable
        and block.dtype.isnative
        and all(stride >= 0 and stride % block.itemsize == 0 for stride in block.strides)
    )


# -- one pass over the rows --------------------------------------------------------------------------


def auto_chunk_rows(p: int, d: int, q: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Rows per chunk so that the buffers of one pass stay within a fixed budget.

    Larger chunks are faster up to about 32,768 rows on a CPU; below a thousand the cost of launching operations
    dominates, so that is the floor.
    """
    budget, most = (_CUDA_BUDGET, 1 << 20) if device.type == "cuda" else (_CPU_BUDGET, 1 << 15)
    return int(np.clip(budget // (dtype.itemsize * (5 * p + 2 * d + 2 * q + 1)), 1024, most))


class Chunks:
    """Repeatable iteration over standardised chunks ``(X, Y)`` of ``rows`` rows.

    Rows that are not in memory are read ahead by a thread, while the previous chunk is used in the computations. On a
    GPU the chunks stay there after the first pass when they fill less than half of its free memory, so that later
    passes move no data. ``once``: there will be only one pass, in a task of a cluster; nothing is kept, and on a CPU
    nothing is read ahead.
    """

    def __init__(
        self,
        source: Source,
        standardiser: Standardiser,
        *,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
        once: bool = False,
    ) -> None:
        self.source, self.standardiser = source, standardiser
        self.rows = max(1, min(rows, source.n_rows))  # a selection may be empty
        self.dtype, self.device = dtype, device
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, source.n_inputs, source.n_outputs
        # By the whole source, so that either all of its selections are kept or none.
        size = source.n_whole * (self.n_inputs + self.n_outputs) * dtype.itemsize
        # A task of a cluster has one core; the others are in use by other tasks.
        self._read_ahead = not source.in_memory and not (once and device.type == "cpu")
        here = device.type == "cuda" and not once and not source.distributed
        self._keep = here and size < available_bytes(device) // 2
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    def reduce(self, work: Work[T]) -> T:
        """Do the work on all chunks, on the workers if the source is distributed.

        If a GPU runs out of memory, chunks are halved and the pass starts again.
        """
        while True:
            try:
                return self._run_pass(work)
            except torch.cuda.OutOfMemoryError as error:
                self._halve(error)

    def _halve(self, error: Exception) -> None:
        if self.rows <= _LEAST_ROWS:
            raise TooLargeError(
                f"the memory of {self.device} does not hold what {self.rows:,} rows need; free some of it, use fewer "
                'frequencies, or device="cpu"'
            ) from error
        self.rows = max(_LEAST_ROWS, self.rows // 2)
        self._keep, self._kept = False, None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        message = f"out of memory on {self.device}: continuing with chunks of {self.rows:,} rows"
        warnings.warn(message, PrismGPWarning, stacklevel=4)

    def _run_pass(self, work: Work[T]) -> T:
        if not self.source.distributed:
            return work.over(self, rows=self.rows, q=self.n_outputs)
        place: dict[str, Any] = {"rows": self.rows, "dtype": self.dtype, "device": self.device}
        return self.source.reduce(partial(run_pass, work=work, standardiser=self.standardiser, **place), work.merge)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[tuple[Tensor, Tensor]] = []
        s = self.standardiser
        blocks = self.source.blocks(self.rows)
        for x, y in prefetch(blocks) if self._read_ahead else blocks:
            pair = (
                standardise(x, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device),
                standardise(y, s.y_shift, s.y_scale, dtype=self.dtype, device=self.device),
            )
            if self._keep:
                kept.append(pair)
            yield pair
        if self._keep:
            self._kept = kept


def run_pass(source: Source, *, work: Work[T], standardiser: Standardiser, **place: Any) -> T:
    """Do the work on the chunks of local rows, once; ``place`` has rows, dtype and device of the chunks."""
    return Chunks(source, standardiser, once=True, **place).reduce(work)


# -- reading ahead -----------------------------------------------------------------------------------


def prefetch(items: Iterator[T], ahead: int = _AHEAD) -> Iterator[T]:
    """Yield the items in order while a thread reads the next ones; its errors are raised here.

    When the consumer stops early, the thread ends after the item that it is reading, and the iterator is closed.
    """
    end = object()
    reader = ThreadPoolExecutor(1, "prismgp-read-ahead")
    try:
        waiting = deque(reader.submit(next, items, end) for _ in range(ahead + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(reader.submit(next, items, end))
            yield cast(T, item)
    finally:
        reader.shutdown(cancel_futures=True)
        if hasattr(items, "close"):
            items.close()
