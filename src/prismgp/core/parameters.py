"""The kernel parameters, their vector form for the optimiser, starting values and bounds.

One parameterisation everywhere: logarithms of length-scales and variances, in the model's
(standardised) units. Estimators convert to the user's units at the border.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prismgp._types import Array

# Relative to the spread of the data. Noise far below 1e-8 of the variance is beyond what a
# float64 factorisation resolves, and beyond what measured data holds. A prior standard deviation of
# more than 17 times that of the data gains little evidence and makes extrapolation wild.
_LENGTHSCALE_RANGE = (1e-3, 1e4)
_SIGNAL_RANGE = (1e-6, 300.0)
_NOISE_RANGE = {"float64": (1e-8, 1e2), "float32": (1e-6, 1e2)}
_PERTURBATION = 1.5  # half-width, in logarithms, of random restarts
_MEAN_RANGE = 1e3
_FREQUENCY_RANGE = 1e3


@dataclass(frozen=True)
class Parameters:
    """Kernel parameters, or a gradient with respect to them."""

    log_lengthscale: Array  # (d,)
    log_signal: Array  # of the signal variance, (q,)
    log_noise: Array  # of the noise variance, (q,)
    mean: Array  # (q,)
    frequencies: Array | None = None  # (p, d), only when they are learned

    @property
    def lengthscale(self) -> Array:
        return np.exp(self.log_lengthscale)

    @property
    def signal(self) -> Array:
        return np.exp(self.log_signal)

    @property
    def noise(self) -> Array:
        return np.exp(self.log_noise)

    def base(self, frequencies: Array) -> Array:
        """The learned frequencies, or else those given, (p, d)."""
        return frequencies if self.frequencies is None else self.frequencies

    def pack(self) -> Array:
        """All parameters as one vector."""
        parts = [self.log_lengthscale, self.log_signal, self.log_noise, self.mean]
        if self.frequencies is not None:
            parts.append(self.frequencies.ravel())
        return np.concatenate(parts)

    def unpack(self, vector: Array) -> Parameters:
        """A vector of this object's layout, as parameters."""
        d, q = len(self.log_lengthscale), len(self.mean)
        cuts = np.cumsum([d, q, q, q])
        ls, signal, noise, mean, rest = np.split(vector, cuts)
        frequencies = None if self.frequencies is None else rest.reshape(self.frequencies.shape)
        return Parameters(ls, signal, noise, mean, frequencies)


def default_start(d: int, q: int) -> Parameters:
    """Length-scales of sqrt(d) standard deviations, and noise of a tenth of the variance."""
    return Parameters(np.full(d, 0.5 * np.log(d)), np.zeros(q), np.full(q, np.log(0.1)), np.zeros(q))


def bounds(layout: Parameters, *, dtype: str) -> list[tuple[float, float]]:
    """Box bounds in the order of :meth:`Parameters.pack`, for data of unit spread."""
    d, q = len(layout.log_lengthscale), len(layout.mean)
    ranges = ((_LENGTHSCALE_RANGE, d), (_SIGNAL_RANGE, q), (_NOISE_RANGE[dtype], q))
    boxes = [(float(np.log(low)), float(np.log(high))) for (low, high), count in ranges for _ in range(count)]
    # A mean that the user starts far away must lie inside.
    boxes += [(min(-_MEAN_RANGE, 2 * m), max(_MEAN_RANGE, 2 * m)) for m in layout.mean.tolist()]
    if layout.frequencies is not None:
        boxes += [(-_FREQUENCY_RANGE, _FREQUENCY_RANGE)] * layout.frequencies.size
    return boxes


def perturb(start: Parameters, rng: np.random.Generator) -> Parameters:
    """A random restart around a starting point; the mean stays."""
    logs = (start.log_lengthscale, start.log_signal, start.log_noise)
    lengthscale, signal, noise = (each + rng.uniform(-_PERTURBATION, _PERTURBATION, each.shape) for each in logs)
    return Parameters(lengthscale, signal, noise, start.mean, start.frequencies)
