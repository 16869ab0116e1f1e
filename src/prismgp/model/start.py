"""Where the optimisation starts: the user's values, the data's scale, or a small exact GP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.exact import ExactEvidence
from prismgp.core.kernels import Kernel
from prismgp.core.optimise import Monitor, race
from prismgp.core.parameters import Parameters, bounds, default_start
from prismgp.data import Chunks, Source, Standardiser
from prismgp.exceptions import DataError

__all__ = ["exact_rows", "exact_start", "perturbed", "to_tensors", "user_start"]

_PERTURBATION = 1.5  # half-width, in logarithms, of random restarts
_EXACT_ITER = 60  # a start need not be an optimum


def user_start(
    standardiser: Standardiser, d: int, q: int, *, learn: bool, lengthscale: Any, signal: Any, noise: Any, mean: Any
) -> Parameters:
    """Starting values in the model's units; what the user left open comes from the data.

    Parameters
    ----------
    learn : bool
        Whether these are starting values; a mean that is not learned may have to be zero.
    lengthscale : None, float or array, (d,)
    signal, noise, mean : None, float or array, (q,)
        In the user's units.
    """
    start = default_start(d, q)
    if not learn:
        start = replace(start, mean=standardiser.fixed_mean)
    y_scale = standardiser.y_scale
    if lengthscale is not None:
        value = _positive("lengthscale", lengthscale, d) / standardiser.x_scale
        start = replace(start, log_lengthscale=_log("lengthscale", value))
    if signal is not None:
        start = replace(start, log_signal=_log("signal_variance", _positive("signal_variance", signal, q) / y_scale**2))
    if noise is not None:
        start = replace(start, log_noise=_log("noise_variance", _positive("noise_variance", noise, q) / y_scale**2))
    if mean is not None:
        start = replace(start, mean=(_vector("mean", mean, q) - standardiser.y_shift) / y_scale)
    return start


def _vector(name: str, value: Any, size: int) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}={value!r} must be a number or an array of {size} numbers") from error
    if array.ndim > 1 or array.size not in (1, size) or not np.isfinite(array).all():
        raise DataError(f"{name}={value!r} must be a finite number or an array of {size}, one for each")
    return np.broadcast_to(array, (size,)).copy()


def _positive(name: str, value: Any, size: int) -> Array:
    array = _vector(name, value, size)
    if (array <= 0).any():
        raise DataError(f"{name}={value!r} must be positive")
    return array


def _log(name: str, ratio: Array) -> Array:
    """Logarithm of a value in the model's units."""
    if not (np.isfinite(ratio) & (ratio > 1e-303)).all():
        raise DataError(f"{name} is out of range relative to the scale of the data")
    return np.log(ratio)


def to_tensors(source: Source, standardiser: Standardiser, device: torch.device) -> tuple[Tensor, Tensor]:
    """All rows of a small source, standardised, in float64."""
    chunks = Chunks(source, standardiser, rows=source.n_rows, dtype=torch.float64, device=device)
    return next(iter(chunks))


def exact_rows(n: int, d: int) -> int:
    """Rows of the exact GP that finds the starting length-scales: more inputs need more rows."""
    return min(n, 500 + 16 * min(d, 64))


def exact_start(
    source: Source,
    standardiser: Standardiser,
    kernel: Kernel,
    start: Parameters,
    *,
    device: torch.device,
    monitor: Monitor,
) -> tuple[Parameters, dict[str, Any]]:
    """Parameters of an exact GP on a small subsample.

    With few frequencies and many irrelevant inputs, the sparse spectrum evidence has poor local
    optima around isotropic length-scales; the exact GP's evidence finds out which inputs matter.
    """
    x, y = to_tensors(source, standardiser, device)
    boxes = bounds(start, dtype="float64")
    runner = (ExactEvidence(x, y, kernel), start)
    _, found, report = race([runner], boxes, rounds=[_EXACT_ITER], monitor=monitor, method="exact GP start")
    return found, report[0]


def perturbed(start: Parameters, rng: np.random.Generator) -> Parameters:
    """A random restart around a starting point."""

    def move(value: Array) -> Array:
        return value + rng.uniform(-_PERTURBATION, _PERTURBATION, value.shape)

    return replace(
        start,
        log_lengthscale=move(start.log_lengthscale),
        log_signal=move(start.log_signal),
        log_noise=move(start.log_noise),
    )
