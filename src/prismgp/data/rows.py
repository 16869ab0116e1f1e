"""Standardised rows of a source: what a fit works on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.parameters import Parameters, default_start
from prismgp.data.chunks import Chunks, Standardiser, auto_chunk_rows
from prismgp.data.sources import ArraySource, Source
from prismgp.exceptions import DataError

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class StandardisedRows:
    """Rows of a source in the model's units, with the place and precision of the computation."""

    source: Source
    standardiser: Standardiser
    dtype: torch.dtype = torch.float64
    device: torch.device = _CPU
    chunk_rows: int | None = None  # None: as many as suit the number of features

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
        return Chunks(self.source, self.standardiser, rows=rows, dtype=self.dtype, device=self.device)

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> list[StandardisedRows]:
        """Nested random subsamples of about these increasing sizes."""
        return [replace(self, source=part) for part in self.source.subsamples(sizes, rng)]

    def split(self, labels: AnyArray, n_clusters: int) -> list[StandardisedRows]:
        """The rows of each cluster."""
        return [replace(self, source=part) for part in self.source.split(labels, n_clusters)]

    def sample(self, most: int, rng: np.random.Generator) -> ArraySource:
        """All rows as they are, in memory, or a uniform random sample of ``most`` of them."""
        return self.source.load() if self.n_rows <= most else self.source.subsamples([most], rng)[0]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows of a small set, in float64."""
        chunks = Chunks(self.source, self.standardiser, rows=self.n_rows, dtype=torch.float64, device=self.device)
        return next(iter(chunks))

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
        raise DataError(f"{name}={value!r} must be positive")
    ratio = array / unit
    if not (np.isfinite(ratio) & (ratio > 1e-303)).all():
        raise DataError(f"{name} is out of range relative to the scale of the data")
    return np.log(ratio)
