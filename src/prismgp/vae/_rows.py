"""Rows for the networks: standardised by the batch, on the compute device."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from prismgp._random import Streams
from prismgp._system import available_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp.data._chunks import standardise

__all__ = ["Indices", "Rows", "draw_rows", "torch_generator"]

Indices: TypeAlias = npt.NDArray[np.int64]

_FURTHEST = 1e4  # standard deviations; beyond, squares of what networks make of a value leave float32


class Rows:
    """Standardised rows by index, without a standardised copy of all of them in main memory.

    On a GPU the copy is made, there, when it fills less than half of the free memory.

    Parameters
    ----------
    x : ndarray, (n, d)
        Raw rows.
    shift, scale : ndarray, (d,)
    dtype, device : torch.dtype, torch.device
    """

    def __init__(self, x: AnyArray, shift: Array, scale: Array, *, dtype: torch.dtype, device: torch.device) -> None:
        self.x, self.shift, self.scale = x, shift, scale
        self.dtype, self.device = dtype, device
        self._kept: Tensor | None = None
        if device.type == "cuda" and x.size * dtype.itemsize < available_bytes(device) // 2:
            blocks = [self._standardise(x[start : start + 65_536]) for start in range(0, len(x), 65_536)]
            self._kept = torch.cat(blocks)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Indices | slice) -> Tensor:
        if self._kept is None:
            return self._standardise(self.x[index])
        return self._kept[index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)]

    def _standardise(self, block: AnyArray) -> Tensor:
        rows = standardise(block, self.shift, self.scale, dtype=torch.float64, device=self.device)
        return rows.clamp_(-_FURTHEST, _FURTHEST).to(self.dtype)


def torch_generator(streams: Streams, name: str) -> torch.Generator:
    """A named stream of a seed, for torch."""
    return torch.Generator().manual_seed(int(streams.generator(name).integers(2**63 - 1)))


def draw_rows(n: int, held_out: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Distinct rows of n in random order, none of them among ``held_out``, which is sorted; all others if fewer."""
    free = n - len(held_out)
    drawn = rng.choice(free, min(count, free), replace=False)
    # Position among the rows that are not held out, to position among all: skip the held-out rows before it.
    return drawn + np.searchsorted(held_out - np.arange(len(held_out)), drawn, side="right")
