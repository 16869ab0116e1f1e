"""What the mathematics sees of the world: rows to pass over, wherever they are, and a callback.

The package ``data`` implements the protocols of rows for arrays, files and clusters; ``context`` the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.ending import Ending
from prismgp.core.features import Statistics
from prismgp.core.row_noise import RowNoise

T = TypeVar("T")


class Work(Protocol[T]):
    """What one pass over the rows does; results of parts of the rows add up to that of all.

    It can be pickled, because other processes may do it.
    """

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> T:
        """The result for standardised chunks ``(X, Y)`` of at most ``rows`` rows and q outputs.

        Behind the outputs, Y may have the columns that :meth:`RowNoise.split` takes off.
        """

    def merge(self, first: T, second: T) -> T:
        """The result for both sets of rows together."""


class Chunked(Protocol):
    """Rows in chunks of a fixed size, passed over as often as asked."""

    n_rows: int
    known_noise: bool  # whether some noise variances of rows are known
    limits: Tensor | None  # of the inputs, see :mod:`prismgp.core.features`
    n_outputs: int

    @property
    def stays(self) -> bool:
        """Whether every pass has the same chunks, in this process."""

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

    def limit(self, limits: Tensor | None) -> Rows:
        """The rows with inputs within limits, (2, d), instead of those they have."""

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> Sequence[Rows]:
        """Nested random subsamples of about these increasing sizes."""

    def split(self, labels: AnyArray, n_clusters: int) -> Sequence[Rows]:
        """The rows of each cluster."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows as float64 tensors; for small sets."""

    def noise(self) -> RowNoise | None:
        """How noisy each row is, where they differ; for small sets."""


class Callback:
    """What a fit calls on its way. This one does nothing; subclasses show progress or keep results.

    ``ending`` says when the fit ends before it is done; None: never, and interrupts are raised.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self.ending = ending or Ending()

    def evaluate(
        self,
        rows: int,  # noqa: ARG002
        vector: Array,  # noqa: ARG002
        compute: Callable[[], tuple[float, Array]],
    ) -> tuple[float, Array]:
        """Called instead of ``compute``, which evaluates the log evidence of some rows at a packed vector."""
        return compute()

    def report(self, stage: str, rows: int, model: Callable[[], Any], log_evidence: float | None = None) -> None:
        """Called after every iteration; ``model`` makes the model at its parameters."""

    def statistics(self, compute: Callable[[], tuple[Statistics, ...]]) -> tuple[Statistics, ...]:
        """Called instead of ``compute``, which takes a pass over all rows at the final parameters."""
        return compute()
