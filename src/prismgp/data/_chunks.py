"""Standardised chunks of rows as tensors on the compute device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
import torch

from prismgp._system import available_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.rows import Work
from prismgp.data._prefetch import prefetched
from prismgp.data._source import Source
from prismgp.data._standardise import Standardiser
from prismgp.exceptions import PrismGPWarning, TooLargeError

__all__ = ["Chunks", "Pass", "auto_chunk_rows", "standardise"]

T = TypeVar("T")

_FURTHEST = 1e30  # standard deviations
_CPU_BUDGET = 96 * 2**20
_CUDA_BUDGET = 2**30
_LEAST_ROWS = 256  # of a chunk, when memory is short


def auto_chunk_rows(p: int, d: int, q: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Rows per chunk so that the buffers of one pass stay within a fixed budget.

    Larger chunks are faster up to about 32,768 rows on a CPU; below a thousand the cost of
    launching operations dominates, so that is the floor.
    """
    row_bytes = dtype.itemsize * (5 * p + 2 * d + 2 * q + 1)
    if device.type == "cuda":
        return int(np.clip(_CUDA_BUDGET // row_bytes, 1024, 1 << 20))
    return int(np.clip(_CPU_BUDGET // row_bytes, 1024, 1 << 15))


def standardise(block: AnyArray, shift: Array, scale: Array, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``(block - shift) / scale`` on the device, computed in float64 and rounded once."""
    # A copy only where torch cannot alias the memory: read-only or byte-swapped arrays, negative strides.
    tensor = torch.from_numpy(block if _torch_ready(block) else block.astype(block.dtype.newbyteorder("="), order="C"))
    # Contiguous, so that the result does not depend on the memory order of the user's array.
    tensor = tensor.to(device, non_blocking=True).contiguous().double()
    shifted = tensor - torch.as_tensor(shift, dtype=torch.float64, device=device)
    shifted.div_(torch.as_tensor(scale, dtype=torch.float64, device=device))
    if dtype == torch.float32:
        shifted.clamp_(-_FURTHEST, _FURTHEST)  # beyond, products overflow to infinity and cosines to NaN
    return shifted.to(dtype)


def _torch_ready(block: AnyArray) -> bool:
    return (
        block.flags.writeable
        and block.dtype.isnative
        and all(stride >= 0 and stride % block.itemsize == 0 for stride in block.strides)
    )


class Chunks:
    """Repeatable iteration over standardised chunks ``(X, Y)``.

    Rows that are not in memory are read ahead, by a thread of its own, while the chunk before is computed with.

    On a GPU the chunks stay there after the first pass when they fill less than half of its free
    memory, so that later passes move no data.

    Parameters
    ----------
    source : Source
    standardiser : Standardiser
    rows : int
        Rows per chunk.
    dtype, device : torch.dtype, torch.device
    once : bool, default False
        There will be one pass only, in a task of a cluster: nothing is kept, and on a CPU nothing read ahead.
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
        self.source = source
        self.standardiser = standardiser
        self.rows = max(1, min(rows, source.n_rows))  # a selection may be empty
        self.dtype = dtype
        self.device = device
        self.n_rows = source.n_rows
        self.n_inputs = source.n_inputs
        self.n_outputs = source.n_outputs
        # Selections of one source are kept all or none.
        size = source.n_whole * (self.n_inputs + self.n_outputs) * dtype.itemsize
        # A task of a cluster has one core, and its neighbours need theirs.
        self._read_ahead = not source.in_memory and not (once and device.type == "cpu")
        here = device.type == "cuda" and not once and not source.distributed
        self._keep = here and size < available_bytes(device) // 2
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    def reduce(self, work: Work[T]) -> T:
        """Do the work on all chunks, where the rows are.

        Where the memory of a GPU does not suffice, chunks are halved, and the pass is begun again.
        """
        while True:
            try:
                return self._reduced(work)
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
        warnings.warn(
            f"out of memory on {self.device}: going on with chunks of {self.rows:,} rows", PrismGPWarning, stacklevel=4
        )

    def _reduced(self, work: Work[T]) -> T:
        if not self.source.distributed:
            return work.over(self, rows=self.rows, q=self.n_outputs)
        one = Pass(work, self.standardiser, rows=self.rows, dtype=self.dtype, device=self.device)
        return self.source.reduce(one, work.merge)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[tuple[Tensor, Tensor]] = []
        s = self.standardiser
        blocks = self.source.blocks(self.rows)
        for x, y in prefetched(blocks) if self._read_ahead else blocks:
            pair = (
                standardise(x, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device),
                standardise(y, s.y_shift, s.y_scale, dtype=self.dtype, device=self.device),
            )
            if self._keep:
                kept.append(pair)
            yield pair
        if self._keep:
            self._kept = kept


class Pass(Generic[T]):
    """Work on the chunks of a source, as a function of the source alone; it can be pickled.

    Parameters
    ----------
    work : Work
    standardiser, rows, dtype, device
        Of the chunks.
    """

    def __init__(
        self, work: Work[T], standardiser: Standardiser, *, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.work, self.standardiser, self.rows, self.dtype, self.device = work, standardiser, rows, dtype, device

    def __call__(self, source: Source) -> T:
        chunks = Chunks(source, self.standardiser, rows=self.rows, dtype=self.dtype, device=self.device, once=True)
        return chunks.reduce(self.work)
