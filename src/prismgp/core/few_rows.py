"""Few rows: weak priors on the parameters, and wider predictions.

The evidence of a handful of rows is highest without noise, and for functions that hardly vary or that vary wildly
between the rows. With fewer than ``FEW_ROWS`` rows, what is maximised is therefore the evidence times priors of the
parameters in the model's units, where inputs and targets have a spread of one,

- (F1) ``log lengthscale ~ N(log (0.35 sqrt(d)), 0.7^2)``, ``log S ~ N(0, 1)``, ``log s2 ~ N(log 0.1, 1.5^2)``,

and then all variances are multiplied by

- (F2) ``c = (t / z)^2 (n + 3) / (n - 1)``,

t and z the 97.5% quantiles of Student's t with n - 1 degrees of freedom and of the normal distribution. With
``(n + 1) / (n - 1)`` this is how much wider a 95% interval is where mean and variance of a normal sample are estimated;
the rest is for the length-scales, and was found by simulation. One row counts as two. Both fade: the logarithms of
priors and factor are multiplied by ``1 - n / FEW_ROWS``, and from ``FEW_ROWS`` rows on nothing is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from prismgp._types import Array
from prismgp.core.kernels import Parameters
from prismgp.core.normal import NORMAL_95

FEW_ROWS = 100
_LENGTHSCALE = 0.35  # centre, in units of sqrt(d)
_NOISE = 0.1
_LENGTHSCALE_SPREAD, _SIGNAL_SPREAD, _NOISE_SPREAD = 0.7, 1.0, 1.5


@dataclass(frozen=True)
class Prior:
    """Normal priors of the packed parameters; those of the mean and of frequencies are flat."""

    centre: Array
    precision: Array

    @classmethod
    def of(cls, n: int, layout: Parameters) -> Prior | None:
        """The priors for n rows (F1), None from ``FEW_ROWS`` rows on."""
        if n >= FEW_ROWS:
            return None
        d, q = len(layout.log_lengthscale), len(layout.mean)
        centre, precision = np.zeros_like(layout.pack()), np.zeros_like(layout.pack())
        centre[:d] = math.log(_LENGTHSCALE * math.sqrt(d))
        centre[d + q : d + 2 * q] = math.log(_NOISE)
        spreads = (_LENGTHSCALE_SPREAD, d), (_SIGNAL_SPREAD, q), (_NOISE_SPREAD, q)
        precision[: d + 2 * q] = np.concatenate([np.full(count, spread**-2.0) for spread, count in spreads])
        return cls(centre, precision * _fading(n))

    def log_density(self, vector: Array) -> tuple[float, Array]:
        """Log density at packed parameters, up to a constant, and its gradient."""
        away = vector - self.centre
        return -0.5 * float(self.precision @ away**2), -self.precision * away


def widen(params: Parameters, n: int) -> Parameters:
    """Parameters learned from n rows, with wider variances (F2) where these are few."""
    if n >= FEW_ROWS:
        return params
    from scipy.special import stdtrit  # to learn, not to predict

    rows = max(n, 2)
    log_factor = 2.0 * math.log(float(stdtrit(rows - 1, 0.975)) / NORMAL_95) + math.log((rows + 3) / (rows - 1))
    change = _fading(n) * log_factor
    return replace(params, log_signal=params.log_signal + change, log_noise=params.log_noise + change)


def _fading(n: int) -> float:
    return 1.0 - n / FEW_ROWS
