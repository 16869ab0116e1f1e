"""The normal distribution: the one place where its density and quantiles are written down."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import torch

from prismgp._types import Array, Tensor

_STANDARD = NormalDist()
NORMAL_95 = _STANDARD.inv_cdf(0.975)  # half-width of a central 95% interval, in standard deviations


def normal_log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Log density of y under N(mean, variance), entry by entry."""
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))


def normal_cdf(z: Array) -> Array:
    """Distribution function of the standard normal, entry by entry."""
    found: Array = torch.special.ndtr(torch.from_numpy(np.ascontiguousarray(z))).numpy()
    return found


def normal_quantile(level: float) -> float:
    """Quantile of the standard normal."""
    return _STANDARD.inv_cdf(level)
