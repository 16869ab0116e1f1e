"""Standardised rows: shift and scale of columns, chunks of tensors on the compute device, and what a fit works on."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch

from prismgp._system import available_bytes, remember_caller
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.features import limit_inputs
from prismgp.core.kernels import FEW_ROWS, Parameters, default_start
from prismgp.core.models import IGNORE, Standardiser, magnitude, standardise
from prismgp.core.rows import RowNoise, Work
from prismgp.data.sources import ArraySource, Kept, Source
from prismgp.exceptions import DataError, PrismGPWarning, TooLargeError

T = TypeVar("T")

_CPU_BUDGET = 96 * 2**20
_CUDA_BUDGET = 2**30
_CPU_KEPT = 64 * 2**20  # bytes of standardised rows that stay in memory, beside the rows themselves
_LEAST_ROWS = 256  # of a chunk, when memory is short
_NOTHING = 1e-18  # share of the spread below which a mean is a rounding error
# An input is ignored if no more rows than these, and no larger share of all rows, differ from the others: a
# length-scale cannot be learned from them, and beyond them the kernel of few frequencies is arbitrary.
_APART_ROWS, _APART_OF_ALL = 3, 1 / 300
_AHEAD = 2  # blocks that wait, beside the one in use and the one being read


def fit_standardiser(source: Source, *, normalize: bool, learned: bool = True) -> Standardiser:
    """Fit shifts and scales in one pass over the rows.

    The kernels are stationary, so shifting and scaling inputs and targets only changes the unit of the
    parameters, and keeps the arithmetic in range. ``normalize`` decides the constant mean if it is neither learned
    nor given: the targets' average, or zero. ``learned`` says that length-scales are learned; if the user gives
    them, no input that varies is ignored.
    """
    x, y = source.moments
    x_mean, x_std, y_mean, y_std = x.mean, x.std, y.mean, y.std
    # An input that did not vary in training has no information. The huge scale makes the model ignore it at
    # prediction too: in units of its own deviation, zero, any other value would be infinitely far away.
    few = min(_APART_ROWS, int(_APART_OF_ALL * x.weight)) if learned else 0
    ignored = (x_std == 0) | (x.n_apart <= few)
    # Not by the mean, which a few rows can move, and which may cancel to almost zero.
    x_scale = np.where(ignored, IGNORE * np.maximum(magnitude(x.usual_value), x.largest_magnitude), x_std)
    x_shift = np.where(ignored, x.usual_value, np.where(np.abs(x_mean) > _NOTHING * x_std, x_mean, 0.0))
    y_scale = np.where(y_std > 0, y_std, magnitude(y_mean))
    return Standardiser(x_shift, x_scale, y_mean, y_scale, np.zeros_like(y_mean) if normalize else -y_mean / y_scale)


def merge_copies(source: Source) -> Source:
    """Merge copies of rows if there are few rows: each distinct row once, with the sum of its weights, sorted.

    So a repeated row and a row with a weight give the same fit, to the last bit; searches and subsamples would treat
    them differently. From ``FEW_ROWS`` observations on, rows stay as they are. They also do where rows with the same
    inputs have different targets: those are repeated measurements, some of which happen to be equal, and merging these
    would hide how often targets are near each other.
    """
    if not isinstance(source, ArraySource) or source.n_rows >= FEW_ROWS:
        return source
    noise = source.noise
    weight = np.ones(source.n_rows) if noise is None else noise[:, 0]
    known = np.empty((source.n_rows, 0)) if noise is None else noise[:, 1:]
    labels = np.empty((source.n_rows, 0)) if source.labels is None else source.labels[:, None]
    inputs = np.concatenate([source.x, known, labels], 1, dtype=np.float64)
    everything = np.concatenate([inputs, source.targets], 1, dtype=np.float64)
    _, first, group = np.unique(everything, axis=0, return_index=True, return_inverse=True)
    if weight.sum() >= FEW_ROWS or (noise is None and len(first) == source.n_rows):
        return source
    if len(first) < source.n_rows and len(np.unique(inputs, axis=0)) < len(first):
        return source
    rows = source.take(first)
    columns = np.stack([np.bincount(group.ravel(), weight), *known[first].T], 1)
    return ArraySource(rows.x, rows.targets, rows.labels).with_noise(columns)


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
    passes move no data; on a CPU those of a small set in memory stay, so that they are standardised once. ``once``:
    there will be only one pass, in a task of a cluster; nothing is kept, and on a CPU nothing is read ahead.
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
        limits: Tensor | None = None,
    ) -> None:
        self.source, self.standardiser, self.limits = source, standardiser, limits
        self.rows = max(1, min(rows, source.n_rows))  # a selection may be empty
        self.dtype, self.device = dtype, device
        self.n_rows, self.n_inputs, self.n_outputs = source.n_rows, source.n_inputs, source.n_outputs
        self.known_noise = source.n_noise > 1
        # By the whole source, so that either all of its selections are kept or none.
        size = source.n_whole * (self.n_inputs + self.n_outputs + source.n_noise) * dtype.itemsize
        # A task of a cluster has one core; the others are in use by other tasks.
        self._read_ahead = not source.in_memory and not (once and device.type == "cpu")
        room = available_bytes(device) // 2 if device.type == "cuda" else _CPU_KEPT if source.in_memory else 0
        self._keep = not once and not source.distributed and size < room
        self._kept: list[tuple[Tensor, Tensor]] | None = None

    @property
    def stays(self) -> bool:
        """Whether every pass has the same chunks, in this process."""
        return self._keep

    def reduce(self, work: Work[T]) -> T:
        """Do the work on all chunks, on the workers if the source is distributed.

        If a GPU runs out of memory, chunks are halved and the pass starts again.
        """
        while True:
            try:
                return self._run_pass(work)
            except torch.cuda.OutOfMemoryError as error:
                self._halve(error)

    def keep(self, work: Work[T]) -> Kept[T]:
        """As :meth:`reduce`, but keep the results for parts of the rows where they are computed."""
        if not self.source.distributed:
            return Kept(self.reduce(work))
        return self.source.keep(self._task(work), work.merge)

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
        return self.source.reduce(self._task(work), work.merge)

    def _task(self, work: Work[T]) -> Callable[[Source], T]:
        place: dict[str, Any] = {"rows": self.rows, "dtype": self.dtype, "device": self.device, "limits": self.limits}
        return partial(run_pass, work=work, standardiser=self.standardiser, **place)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[tuple[Tensor, Tensor]] = []
        s = self.standardiser
        y_shift, y_scale = s.target_units(self.source.n_noise)
        blocks = self.source.blocks(self.rows)
        for x, y in prefetch(blocks) if self._read_ahead else blocks:
            pair = (
                limit_inputs(standardise(x, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device), self.limits),
                standardise(y, y_shift, y_scale, dtype=self.dtype, device=self.device),
            )
            if self._keep:
                kept.append(pair)
            yield pair
        if self._keep:
            self._kept = kept


def run_pass(source: Source, *, work: Work[T], standardiser: Standardiser, **place: Any) -> T:
    """Do the work on the chunks of local rows, once; ``place`` has rows, dtype, device and limits of the chunks."""
    return Chunks(source, standardiser, once=True, **place).reduce(work)


# -- reading ahead -----------------------------------------------------------------------------------


def prefetch(items: Iterator[T], ahead: int = _AHEAD) -> Iterator[T]:
    """Yield the items in order while a thread reads the next ones; its errors are raised here.

    When the consumer stops early, the thread ends after the item that it is reading, and the iterator is closed.
    """
    end, context = object(), remember_caller()

    def read() -> object:
        return context.run(next, items, end)

    reader = ThreadPoolExecutor(1, "prismgp-read-ahead")
    try:
        waiting = deque(reader.submit(read) for _ in range(ahead + 1))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(reader.submit(read))
            yield cast(T, item)
    finally:
        reader.shutdown(cancel_futures=True)
        if hasattr(items, "close"):
            items.close()


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class StandardisedRows:
    """Rows of a source in the model's units, with the place and precision of the computation."""

    source: Source
    standardiser: Standardiser
    dtype: torch.dtype = torch.float64
    device: torch.device = _CPU
    chunk_rows: int | None = None  # None: as many as suit the number of features
    limits: Tensor | None = None  # of the inputs, in the model's units, (2, d)

    @property
    def n_rows(self) -> int:
        return self.source.n_rows

    @property
    def n_inputs(self) -> int:
        return self.source.n_inputs

    @property
    def n_outputs(self) -> int:
        return self.source.n_outputs

    @property
    def labels(self) -> AnyArray | None:
        return self.source.labels

    def chunks(self, p: int) -> Chunks:
        """The rows in chunks that suit p frequencies."""
        rows = self.chunk_rows
        if rows is None:
            rows = auto_chunk_rows(p, self.n_inputs, self.n_outputs, dtype=self.dtype, device=self.device)
        return self.chunks_of(rows)

    def chunks_of(self, rows: int) -> Chunks:
        """The rows in chunks of a given size."""
        place: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "limits": self.limits}
        return Chunks(self.source, self.standardiser, rows=rows, **place)

    def limit(self, limits: Tensor | None) -> StandardisedRows:
        """The rows with inputs within limits, (2, d), instead of those they have."""
        return replace(self, limits=limits)

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> list[StandardisedRows]:
        """Nested random subsamples of about these increasing sizes."""
        return [replace(self, source=part) for part in self.source.subsamples(sizes, rng)]

    def split(self, labels: AnyArray, n_clusters: int) -> list[StandardisedRows]:
        """The rows of each cluster."""
        return [replace(self, source=part) for part in self.source.split(labels, n_clusters)]

    def sample(self, most: int, rng: np.random.Generator) -> ArraySource:
        """All rows as they are, in memory, or a uniform random sample of ``most`` of them."""
        return self.source.load() if self.n_rows <= most else self.source.subsamples([most], rng)[0]

    def persist_sample(self, most: int, rng: np.random.Generator) -> Source:
        """As :meth:`sample`; but rows of a cluster that take much memory stay there, in that of the workers."""
        if not self.source.distributed or self.source.are_few(min(self.n_rows, most)):
            return self.sample(most, rng)
        return self.source.select_sample(most, rng).persist()

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows of a small set, in float64."""
        x, y = self._load_all()
        return x, y[:, : self.n_outputs]

    def noise(self) -> RowNoise | None:
        """How noisy each row of a small set is, where they differ, in float64."""
        return RowNoise.split(self._load_all()[1], self.n_outputs)[1] if self.source.n_noise else None

    def _load_all(self) -> tuple[Tensor, Tensor]:
        return next(iter(replace(self, dtype=torch.float64).chunks_of(self.n_rows)))

    def start(
        self, *, learn: bool, lengthscale: Any = None, signal: Any = None, noise: Any = None, mean: Any = None
    ) -> Parameters:
        """Starting values in the model's units; what the user left open comes from the data.

        Arguments are in the user's units: None, a number or an array, (d,) for length-scales, (q,) for the others.
        Without ``learn`` these are the final values, and the mean may have to be zero.
        """
        s, d, q = self.standardiser, self.n_inputs, self.n_outputs
        start = default_start(d, q)
        if not learn:
            start = replace(start, mean=s.fixed_mean)
        if lengthscale is not None:
            start = replace(start, log_lengthscale=_log_ratio("lengthscale", lengthscale, s.x_scale))
        if signal is not None:
            start = replace(start, log_signal=_log_ratio("signal_variance", signal, s.y_scale**2))
        if noise is not None:
            start = replace(start, log_noise=_log_ratio("noise_variance", noise, s.y_scale**2))
        if mean is not None:
            start = replace(start, mean=(_vector("mean", mean, q) - s.y_shift) / s.y_scale)
        return start


def _vector(name: str, value: Any, size: int) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}={value!r} must be a number or an array of {size} numbers") from error
    if array.ndim > 1 or array.size not in (1, size) or not np.isfinite(array).all():
        raise DataError(f"{name}={value!r} must be a finite number or an array of {size}, one for each")
    return np.broadcast_to(array, (size,)).copy()


def _log_ratio(name: str, value: Any, unit: Array) -> Array:
    """Logarithm of a positive value in the model's units."""
    array = _vector(name, value, len(unit))
    if (array <= 0).any():
        raise DataError(f"{name}={value!r} must be positive; leave it None to take it from the data")
    ratio = array / unit
    beyond = ~(np.isfinite(ratio) & (ratio > 1e-303))
    if beyond.any():
        k = int(np.argmax(beyond))
        raise DataError(
            f"{name} holds {array[k]:g}, which is out of range relative to the scale of the data, {unit[k]:.3g}; "
            "give it in units of the data, or leave it None to take it from them"
        )
    return np.log(ratio)
