"""Rows as the mathematics sees them: passes over chunks, subsamples and parts, wherever the rows are.

The package ``data`` implements these protocols for arrays, files and clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch

from prismgp._types import AnyArray, Tensor

T = TypeVar("T")


class Work(Protocol[T]):
    """What one pass over the rows does; results of parts of the rows add up to that of all.

    It can be pickled, because other processes may do it.
    """

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> T:
        """The result for standardised chunks ``(X, Y)`` of at most ``rows`` rows and q outputs."""

    def merge(self, first: T, second: T) -> T:
        """The result for both sets of rows together."""


class Chunked(Protocol):
    """Rows in chunks of a fixed size, passed over as often as asked."""

    n_rows: int
    dtype: torch.dtype
    device: torch.device

    def reduce(self, work: Work[T]) -> T:
        """Do the work on all chunks."""


class Rows(Protocol):
    """Standardised training rows."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_inputs(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where chunks are."""

    @property
    def labels(self) -> AnyArray | None:
        """The clusters of the rows, (n,), if they were given."""

    def chunks(self, p: int) -> Chunked:
        """The rows in chunks that suit p frequencies."""

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> Sequence[Rows]:
        """Nested random subsamples of about these increasing sizes."""

    def split(self, labels: AnyArray, n_clusters: int) -> Sequence[Rows]:
        """The rows of each cluster."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows as float64 tensors; for small sets."""
