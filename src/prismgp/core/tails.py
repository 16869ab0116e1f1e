"""Tails that held-out rows cannot rule out.

Of m rows that a model did not know, none may be far away; still one in m may be, and a normal distribution would call
the next such row impossible. So a predictive distribution learned from m held-out rows is                      (Z6)

    (1 - e) p(y) + e t(y),   e = 1 / (m + 1),

where t has the mean and the variance of p, and tails as heavy as those of a Student's t with 3 degrees of freedom: it
is a mixture of normal distributions with standard deviations c, 4 c, 16 c, ... of p's, each 64 times rarer than the one
before. Mean and standard deviation stay, and what is not far away is hardly touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.models import Marginals, normal_cdf, normal_quantile
from prismgp.core.rows import effective_rows
from prismgp.core.shape import NoiseShape

_COUNT = 6  # the widest is some 900 standard deviations wide
_RAW = 64.0 ** -np.arange(_COUNT)
TAIL_WEIGHTS: Array = _RAW / _RAW.sum()
_SQUARES = 16.0 ** np.arange(_COUNT)
TAIL_VARIANCES: Array = _SQUARES / (TAIL_WEIGHTS @ _SQUARES)
_HALVINGS = 80


def tail_share(rows: int, weights: Array | None = None) -> float:
    """Return the share of the tails, learned from held-out rows, which may have weights, (rows,)."""
    return 1.0 / ((rows if weights is None else effective_rows(weights)) + 1.0)


def add_tails(marginals: Marginals, share: float) -> Marginals:
    """Distributions with tails (Z6)."""
    if share == 0.0:
        return marginals
    weights, variances = (torch.as_tensor(each).to(marginals.mean) for each in (TAIL_WEIGHTS, TAIL_VARIANCES))
    return Marginals(
        marginals.mean,
        marginals.variance,
        torch.cat([(1.0 - share) * marginals.weights, share * weights]),
        torch.cat([marginals.centers, marginals.mean.expand(_COUNT, *marginals.mean.shape)]),
        torch.cat([marginals.variances, variances[:, None, None] * marginals.variance]),
    )


def add_tail_density(log_density: Tensor, marginals: Marginals, y: Tensor, share: float) -> Tensor:
    """The joint log density of several outputs, (n,), with tails, in which the outputs are independent."""
    if share == 0.0:
        return log_density
    only = add_tails(marginals, 1.0)
    tails = Marginals(
        only.mean, only.variance, *(each[-_COUNT:] for each in (only.weights, only.centers, only.variances))
    )
    far = tails.log_density(y).sum(1)
    return torch.logaddexp(log_density + math.log1p(-share), far + math.log(share))


def tailed_log_density(shape: NoiseShape, share: float, z: Array) -> Array:
    """Log density of standardised residuals of a shape with tails, entry by entry."""
    found = shape.log_density(z)
    if share == 0.0:
        return found
    with np.errstate(over="ignore"):
        logs = -0.5 * (np.square(z)[..., None] / TAIL_VARIANCES + np.log(2.0 * math.pi * TAIL_VARIANCES))
    far = np.logaddexp.reduce(logs + np.log(TAIL_WEIGHTS), axis=-1)
    return np.asarray(np.logaddexp(found + math.log1p(-share), far + math.log(share)))


def tailed_quantiles(shape: NoiseShape, share: float, levels: Sequence[float]) -> Array:
    """Quantiles of a shape with tails, (len(levels),), by bisection between those of its parts."""
    u = np.array(levels, dtype=np.float64)
    base = shape.quantile(u)
    if share == 0.0:
        return base
    roots = np.sqrt(TAIL_VARIANCES)
    parts = np.column_stack([base, np.array([normal_quantile(level) for level in levels])[:, None] * roots])
    low, high = parts.min(1), parts.max(1)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = (1.0 - share) * shape.cdf(middle) + share * (normal_cdf(middle[:, None] / roots) @ TAIL_WEIGHTS) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))
