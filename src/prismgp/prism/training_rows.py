"""Rows that networks are trained on, read by index: in memory, or from the workers of a cluster.

A step reads a batch of random rows. Which rows that will be is known long before: batches are drawn from streams of
their own, so a copy of a stream tells. Rows on workers are therefore read for several steps at once, while
the steps before are taken; they are the same rows, in the same order and to the last bit, as those of rows in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Indices, Tensor
from prismgp.core.models import Standardiser
from prismgp.core.numerics import Hashes, hash_rows
from prismgp.core.rows import RowNoise
from prismgp.data import Source
from prismgp.vae import BatchRows, draw_rows

_WINDOW_BYTES = 2**25  # of rows that are read from the workers at a time; two windows are held
MOST_STEPS = 50  # that they are for
_CPU = torch.device("cpu")
# Rows with the same inputs are left out together. Where most rows have such copies, new rows will have some too, and
# predictions at places that a fit has never seen say little about those that it has; still less, if few are left out.
MOST_COPIED, _LEAST_PLACES = 0.5, 20
_REPEATS = 4  # rows for each place, on average, where new rows will be at known places
_MEASUREMENTS = 1.1  # distinct observations for each distinct place, above which places have repeated measurements

Upcoming = Callable[[int, int], Sequence[Indices]]


@dataclass(frozen=True)
class Batch:
    """Some rows, standardised."""

    x: Tensor  # (m, d), float32
    y: Tensor  # (m, q), float32
    noise: Tensor | None  # noise columns in the model's units, (m, 1) or (m, 2), float64, where rows differ

    @property
    def row_noise(self) -> RowNoise | None:
        return None if self.noise is None else RowNoise.split(self.noise, 0)[1]

    @property
    def targets(self) -> Tensor:
        """In float64, with the noise columns behind them."""
        noise = self.row_noise
        return self.y.double() if noise is None else torch.cat([self.y.double(), noise.columns], 1)

    def take(self, index: Tensor | slice) -> Batch:
        return Batch(self.x[index], self.y[index], None if self.noise is None else self.noise[index])


class TrainingRows(ABC):
    """Rows by index, and which of them are held out."""

    n_rows: int
    held_out: Indices  # sorted
    device: torch.device

    @abstractmethod
    def read(self, index: Indices, there: Tensor | None = None) -> Batch:
        """The rows of these indices, in their order; ``there`` are the same on the device, if they are at hand."""

    def draw(self, count: int, rng: np.random.Generator) -> Indices:
        """Draw distinct training rows in random order."""
        return draw_rows(self.n_rows, self.held_out, count, rng)

    def expect(self, step: int, upcoming: Upcoming) -> None:  # noqa: B027  (rows in memory need no preparation)
        """Prepare for a step: ``upcoming(first, last)`` returns the indices that these steps will read.

        It is called for consecutive ranges of steps.
        """

    def close(self) -> None:  # noqa: B027  (nor do they have anything to close)
        """Stop reading ahead."""


class RowsInMemory(TrainingRows):
    """Rows of this process: inputs, targets and noise columns in the model's units, (n, c) float64."""

    def __init__(self, x: BatchRows, y: BatchRows, held_out: Indices, noise: Array | None = None) -> None:
        self.x, self.y, self.held_out, self.noise = x, y, held_out, noise
        self.n_rows, self.device = len(x), x.device

    def read(self, index: Indices, there: Tensor | None = None) -> Batch:
        there = torch.as_tensor(index, device=self.device) if there is None else there
        noise = None if self.noise is None else torch.as_tensor(self.noise[index], device=self.device)
        return Batch(self.x.take(index, there), self.y.take(index, there), noise)


class RowsOnWorkers(TrainingRows):
    """Rows of a distributed source, which the workers standardise and send when they are needed."""

    def __init__(
        self, source: Source, standardiser: Standardiser, held_out: Indices, device: torch.device, *, step_rows: int
    ) -> None:
        self.held_out, self.n_rows, self.device = held_out, source.n_rows, device
        self._source, self._read = source, partial(standardise_rows, standardiser=standardiser)
        size = 4 * (source.n_inputs + source.n_outputs) + 8 * source.n_noise
        self._steps = min(MOST_STEPS, max(1, _WINDOW_BYTES // (step_rows * size)))
        self._windows: deque[tuple[int, Future[tuple[Indices, Batch]]]] = deque()  # the last step, and the rows
        self._end = 0
        self._reader = ThreadPoolExecutor(1, "prismgp-read-ahead")

    def read(self, index: Indices, there: Tensor | None = None) -> Batch:  # noqa: ARG002
        for _, window in self._windows:
            known, batch = window.result()
            place = np.searchsorted(known, index)
            if np.array_equal(known[np.minimum(place, len(known) - 1)], index):
                return batch.take(torch.as_tensor(place, device=self.device))
        wanted, place = np.unique(index, return_inverse=True)
        return self.fetch(wanted)[1].take(torch.as_tensor(place, device=self.device))

    def expect(self, step: int, upcoming: Upcoming) -> None:
        while self._windows and self._windows[0][0] < step:
            self._windows.popleft()
        self._end = max(self._end, step - 1)  # a training that is continued begins later
        while self._end < step + self._steps:
            first, self._end = self._end + 1, self._end + self._steps
            wanted = np.unique(np.concatenate(upcoming(first, self._end)))
            # With the context of this thread, which knows the current client.
            self._windows.append((self._end, self._reader.submit(copy_context().run, self.fetch, wanted)))

    def fetch(self, index: Indices) -> tuple[Indices, Batch]:
        """The rows of increasing indices."""
        parts = self._source.select(index).map(self._read)
        x, y, noise = (np.concatenate(each) for each in zip(*parts, strict=True))
        return index, Batch(
            torch.as_tensor(x, device=self.device),
            torch.as_tensor(y, device=self.device),
            torch.as_tensor(noise, device=self.device) if noise.shape[1] else None,
        )

    def close(self) -> None:
        self._windows.clear()
        self._reader.shutdown(cancel_futures=True)


def open_rows(
    sample: Source, standardiser: Standardiser, held_out: Indices, device: torch.device, *, step_rows: int
) -> TrainingRows:
    """Return the rows of a sample, wherever it is, for steps that read this many of them."""
    if sample.distributed:
        return RowsOnWorkers(sample, standardiser, held_out, device, step_rows=step_rows)
    rows = sample.load()
    x, y = _batch_rows(rows.x, rows.targets, standardiser, device)
    return RowsInMemory(x, y, held_out, _noise_columns(rows.noise, standardiser))


def standardise_rows(source: Source, *, standardiser: Standardiser) -> tuple[AnyArray, AnyArray, Array]:
    """Inputs, targets and noise columns of all rows of a source, as a batch has them."""
    rows = source.load()
    x, y = (each[:].numpy() for each in _batch_rows(rows.x, rows.targets, standardiser, _CPU))
    noise = _noise_columns(rows.noise, standardiser)
    return x, y, np.empty((len(x), 0)) if noise is None else noise


def _batch_rows(x: AnyArray, y: AnyArray, s: Standardiser, device: torch.device) -> tuple[BatchRows, BatchRows]:
    return (
        BatchRows(x, s.x_shift, s.x_scale, dtype=torch.float32, device=device),
        BatchRows(y, s.y_shift, s.y_scale, dtype=torch.float32, device=device),
    )


def _noise_columns(noise: AnyArray | None, s: Standardiser) -> Array | None:
    return None if noise is None else noise / s.target_units(noise.shape[1])[1][len(s.y_scale) :]


# -- rows held out ------------------------------------------------------------------------------------


def held_out_rows(
    hashes: Hashes, fraction: float, most: int, rng: np.random.Generator, hash_observations: Callable[[], Hashes]
) -> Indices:
    """Choose a random share of the rows, by the hashes of their inputs, (n,); their indices, sorted.

    Rows with the same inputs stay together: a copy among the training rows would make the held-out density that of
    memorised rows. But measurements at few places, four or more at each on average, are held out one by one, since a
    handful of held-out places says little about the others. ``hash_observations`` makes hashes of inputs and targets,
    (n,), which tell repeated measurements from copies.
    """
    n = len(hashes)
    count = min(max(1, round(fraction * n)), most, n - 1)
    _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    if len(sizes) == n:
        return np.sort(rng.choice(n, count, replace=False))
    order = rng.permutation(len(sizes))
    total = np.cumsum(sizes[order])
    # As many groups as fit, and at least one; never all of them.
    chosen = order[: min(max(1, int(np.searchsorted(total, count, side="right"))), len(sizes) - 1)]
    repeated = len(chosen) < _LEAST_PLACES and (sizes[group] > 1).mean() > MOST_COPIED and n >= _REPEATS * len(sizes)
    if repeated and len(np.unique(hash_observations())) > _MEASUREMENTS * len(sizes):
        return np.sort(rng.choice(n, count, replace=False))
    held = np.flatnonzero(np.isin(group, chosen))
    return held if len(held) else np.sort(rng.choice(n, count, replace=False))


def hash_inputs(source: Source, *, targets: bool = False) -> Hashes:
    """Compute a number for each row that is the same for rows with the same inputs, and ``targets``, if asked, (n,)."""
    return np.concatenate(source.map(_hash_observations if targets else _hash_inputs))


def _hash_inputs(source: Source) -> Hashes:
    return hash_rows(source.load().x)


def _hash_observations(source: Source) -> Hashes:
    rows = source.load()
    return hash_rows(rows.targets, hash_rows(rows.x))
