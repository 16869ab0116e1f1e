"""The normal distribution, and mixtures of normal distributions, which is what fitted models predict.

Its density, distribution function and quantiles on tensors are written down here and nowhere else. On arrays,
:class:`prismgp.core.shape.NormalShape` is one of the shapes of the noise, and stacking has a form with one logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.exceptions import DataError

_STANDARD = NormalDist()
_ACCURACY = 1e-9  # of the last step of Newton's method, in the smallest standard deviation; its error is far less
_MOST_STEPS = 200
_HALVE_EVERY = 3  # steps; of the others, those of Newton's method that stay in the bracket are taken


def normal_log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Log density of y under N(mean, variance), entry by entry."""
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))


def normal_cdf(z: Array) -> Array:
    """Distribution function of the standard normal, entry by entry."""
    found: Array = _cdf(torch.from_numpy(np.ascontiguousarray(z))).numpy()
    return found


def _cdf(z: Tensor) -> Tensor:
    # torch.special.ndtr has lost all digits at -9.
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


def normal_quantile(level: float) -> float:
    """Quantile of the standard normal."""
    return _STANDARD.inv_cdf(level)


def central_levels(coverage: Any) -> list[float]:
    """Return the probabilities at the ends of a central interval."""
    real = isinstance(coverage, Real) and not isinstance(coverage, bool)
    if not real or not 0.0 < coverage < 1.0:
        raise DataError(f"coverage={coverage!r:.80} must be a number between 0 and 1, such as 0.95")
    half = 0.5 * float(coverage)
    if 0.5 + half >= 1.0:
        raise DataError(f"coverage={coverage!r:.80} is 1 up to rounding: the interval would be infinite")
    return [0.5 - half, 0.5 + half]


@dataclass(frozen=True)
class Marginals:
    """The distribution of every output of every row: a mixture of K normal distributions with common weights (Z1).

    Functions of y work output by output; those of several outputs are not independent if K > 1.
    """

    mean: Tensor  # (n, q)
    variance: Tensor  # (n, q)
    weights: Tensor  # (K,)
    centers: Tensor  # (K, n, q)
    variances: Tensor  # (K, n, q)

    @classmethod
    def normal(cls, mean: Tensor, variance: Tensor) -> Marginals:
        """One normal distribution."""
        return cls(mean, variance, mean.new_ones(1), mean[None], variance[None])

    @property
    def is_normal(self) -> bool:
        return len(self.weights) == 1

    def log_density(self, y: Tensor) -> Tensor:
        """Log density of y, (n, q), entry by entry (Z1)."""
        logs = normal_log_density(y, self.centers, self.variances)
        return torch.logsumexp(logs + self.weights.log()[:, None, None], 0)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles at levels between 0 and 1, (n, q, len(levels)).

        A quantile of a mixture lies between the smallest and the largest of its parts' quantiles. In there Newton's
        method finds it, with bisection where a step would leave, and every third time. An entry that has converged is
        left alone, so that it does not depend on the rows it is computed with.
        """
        z = torch.tensor([normal_quantile(level) for level in levels], dtype=torch.float64).to(self.mean)
        centers, roots = self.centers[..., None], self.variances.sqrt()[..., None]
        parts = centers + roots * z
        low, high = parts.amin(0), parts.amax(0)
        if self.is_normal:
            return low
        # Of the nearer tail, in which small probabilities keep their digits.
        sign = torch.where(z > 0, -torch.ones_like(z), torch.ones_like(z))
        tail = _cdf(sign * z)
        tolerance = _ACCURACY * roots.amin(0)
        found = 0.5 * (low + high)
        done = high - low <= tolerance
        for step in range(_MOST_STEPS):
            if bool(done.all()):
                break
            away = (found - centers) / roots
            excess = sign * (torch.tensordot(self.weights, _cdf(sign * away), 1) - tail)
            slope = torch.tensordot(self.weights, torch.exp(-0.5 * away.square()) / roots, 1) / math.sqrt(2.0 * math.pi)
            low, high = torch.where(excess > 0, low, found), torch.where(excess > 0, found, high)
            newton = found - excess / slope
            middle = 0.5 * (low + high)
            take = (newton >= low) & (newton <= high)  # false for NaN
            near = take & ((newton - found).abs() <= tolerance)
            if step % _HALVE_EVERY == _HALVE_EVERY - 1:
                take = near
            found = torch.where(done, found, torch.where(take, newton, middle))
            done = done | near | (high - low <= tolerance)
        return found
