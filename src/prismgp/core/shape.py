"""Shapes of the noise: distributions of standardised residuals ``z = (y - mean) / std``, all of mean 0 and variance 1.

A shape changes densities and quantiles of a prediction and leaves its mean and standard deviation alone (Z2).
``fit_shape`` of :mod:`prismgp.core.shape_fit` learns one from residuals.

The skewed t is that of Fernandez and Steel (1998), On Bayesian modeling of fat tails and skewness: two halves of a
Student's t, the right one stretched by ``skew`` and the left one shrunk by it. Here it is centred and scaled.

``scipy.special`` is imported inside functions: it takes 0.2 s to import, and most models are normal, which needs none.
``scipy.stats`` has the same distributions and takes a second to import.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch

from prismgp._types import Array
from prismgp.core.models import normal_cdf
from prismgp.exceptions import ModelFileError

MIN_DEGREES, MAX_DEGREES = 2.1, 200.0  # the variance is infinite at 2; above 200 a Student's t is normal
MAX_LOG_SKEW = 2.0
MAX_KNOTS = 256
KNOT_MARGIN = 1e-5  # knots keep this distance from 0 and 1, so that the tails are the base's
MIN_KNOT_GAP = 1e-8
MAX_LOG_RATIO = 20.0
_MIN_STD = 1e-3  # of a spline before it is scaled; less is a spike, and rounding would be seen

_LOG_2PI = math.log(2.0 * math.pi)
_SMALLEST_UNIFORM = 2.0**-54  # half the step of uniform random numbers


class NoiseShape(ABC):
    """A distribution with mean 0 and variance 1. All functions work entry by entry, on arrays of any shape."""

    kind: ClassVar[str]

    @abstractmethod
    def log_density(self, z: Array) -> Array:
        """Log density at z."""

    @abstractmethod
    def cdf(self, z: Array) -> Array:
        """Probability of values up to z."""

    @abstractmethod
    def quantile(self, u: Array) -> Array:
        """The inverse of ``cdf``, at probabilities u between 0 and 1."""

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> Array:
        """Independent draws: quantiles of uniform random numbers."""
        # The generator can return zero, whose quantile is infinite.
        return self.quantile(np.maximum(rng.random(size), _SMALLEST_UNIFORM))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The shape in types of JSON, for :func:`shape_from_dict`."""


@dataclass(frozen=True)
class NormalShape(NoiseShape):
    """The standard normal distribution."""

    kind: ClassVar[str] = "normal"

    def log_density(self, z: Array) -> Array:
        with np.errstate(over="ignore"):  # the log density of 1e200 is minus infinity, which is right
            return np.asarray(-0.5 * (np.square(np.asarray(z, dtype=np.float64)) + _LOG_2PI))

    def cdf(self, z: Array) -> Array:
        return normal_cdf(np.array(z, dtype=np.float64)).reshape(np.shape(z))

    def quantile(self, u: Array) -> Array:
        return np.asarray(torch.special.ndtri(torch.from_numpy(np.array(u, dtype=np.float64))).numpy())

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class SkewedShape(NoiseShape):
    """A skewed Student's t, centred and scaled (Z4).

    Parameters
    ----------
    degrees : float
        Degrees of freedom, above 2.
    skew : float
        Positive. The right half is ``skew**2`` times as wide as the left; 1 is symmetric.
    """

    degrees: float
    skew: float

    kind: ClassVar[str] = "skewed"

    @cached_property
    def center(self) -> float:
        """Mean of the skewed t before it is centred and scaled."""
        absolute = 2.0 * self.degrees / (self.degrees - 1.0) * math.exp(_log_peak(self.degrees))  # E|t|
        return absolute * (self.skew - 1.0 / self.skew)

    @cached_property
    def scale(self) -> float:
        """Standard deviation of the skewed t before it is centred and scaled."""
        g = self.skew
        second = self.degrees / (self.degrees - 2.0) * (g**3 + g**-3) / (g + 1.0 / g)
        return math.sqrt(second - self.center**2)

    def log_density(self, z: Array) -> Array:
        x = self._raw(z)
        t = np.where(x < 0.0, x * self.skew, x / self.skew)
        peak = _log_peak(self.degrees) + math.log(2.0 / (self.skew + 1.0 / self.skew) * self.scale)
        # hypot, as squares of large numbers overflow
        return np.asarray(peak - (self.degrees + 1.0) * np.log(np.hypot(1.0, t / math.sqrt(self.degrees))))

    def cdf(self, z: Array) -> Array:
        # Imported here, as it is slow to import and normal noise does not need it.
        from scipy.special import stdtr

        x = self._raw(z)
        t = np.where(x < 0.0, x * self.skew, -x / self.skew)
        tail = 2.0 * stdtr(self.degrees, t)
        left = self._left
        return np.asarray(np.where(x < 0.0, left * tail, 1.0 - (1.0 - left) * tail))

    def quantile(self, u: Array) -> Array:
        # Imported here, as it is slow to import and normal noise does not need it.
        from scipy.special import stdtrit

        u = np.asarray(u, dtype=np.float64)
        left = self._left
        below = u < left
        t = stdtrit(self.degrees, 0.5 * np.where(below, u / left, (1.0 - u) / (1.0 - left)))
        return np.asarray((np.where(below, t / self.skew, -t * self.skew) - self.center) / self.scale)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "degrees": self.degrees, "skew": self.skew}

    def moments_below(self, z: float) -> Array:
        """Integrals of 1, z and z^2 times the density, from minus infinity to z, (3,)."""
        x = z * self.scale + self.center
        g, left = self.skew, self._left
        power = np.arange(3)
        if x < 0.0:
            raw = 2.0 * left * _student_moments_below(self.degrees, x * g) * g**-power
        else:
            second = self.scale**2 + self.center**2
            above = 2.0 * (1.0 - left) * _student_moments_below(self.degrees, -x / g) * (-g) ** power
            raw = np.array([1.0, self.center, second]) - above
        zero, one, two = raw
        first = (one - self.center * zero) / self.scale
        return np.array([zero, first, (two - 2.0 * self.center * one + self.center**2 * zero) / self.scale**2])

    @property
    def mode(self) -> float:
        """Where the halves meet."""
        return -self.center / self.scale

    @property
    def _left(self) -> float:
        """Probability of the left half."""
        return 1.0 / (1.0 + self.skew**2)

    def _raw(self, z: Array) -> Array:
        return np.asarray(np.asarray(z, dtype=np.float64) * self.scale + self.center)


@dataclass(frozen=True)
class StudentShape(SkewedShape):
    """Student's t, scaled to variance 1 (Z3).

    Parameters
    ----------
    degrees : float
        Degrees of freedom, above 2.
    """

    skew: float = field(default=1.0, init=False, repr=False)

    kind: ClassVar[str] = "student"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "degrees": self.degrees}


@dataclass(frozen=True)
class SplineShape(NoiseShape):
    """A skewed t whose density is multiplied by a spline, centred and scaled (Z5).

    The logarithm of the factor is linear in ``u``, the distribution function of the skewed t, between the knots, and
    constant outside: the tails are those of the skewed t. Probabilities and quantiles have a closed form.

    Parameters
    ----------
    degrees, skew : float
        Those of the skewed t, see :class:`SkewedShape`.
    knots : tuple of float, (k,)
        Values of u, increasing, inside (0, 1).
    log_ratio : tuple of float, (k,)
        Logarithm of the factor at the knots, up to a constant.
    """

    degrees: float
    skew: float
    knots: tuple[float, ...]
    log_ratio: tuple[float, ...]

    kind: ClassVar[str] = "spline"

    def log_density(self, z: Array) -> Array:
        mean, std = self.moments
        w = np.asarray(z, dtype=np.float64) * std + mean
        return np.asarray(self._base.log_density(w) + self._log_factor(self._base.cdf(w)) + math.log(std))

    def cdf(self, z: Array) -> Array:
        mean, std = self.moments
        u = self._base.cdf(np.asarray(z, dtype=np.float64) * std + mean)
        edges, start, slope, below = self._pieces
        j = np.clip(np.searchsorted(edges, u, side="right") - 1, 0, len(start) - 1)
        t = u - edges[j]
        return np.asarray(np.minimum(below[j] + start[j] * t * _mean_exp(slope[j] * t), 1.0))

    def quantile(self, u: Array) -> Array:
        mean, std = self.moments
        edges, start, slope, below = self._pieces
        u = np.asarray(u, dtype=np.float64)
        j = np.clip(np.searchsorted(below, u, side="right") - 1, 0, len(start) - 1)
        r = (u - below[j]) / start[j]
        t = r * _mean_log(slope[j] * r)
        return np.asarray((self._base.quantile(np.minimum(edges[j] + t, edges[j + 1])) - mean) / std)

    def to_dict(self) -> dict[str, Any]:
        lists = {"knots": list(self.knots), "log_ratio": list(self.log_ratio)}
        return {"kind": self.kind, "degrees": self.degrees, "skew": self.skew, **lists}

    @cached_property
    def _base(self) -> SkewedShape:
        return SkewedShape(self.degrees, self.skew)

    @cached_property
    def _pieces(self) -> tuple[Array, Array, Array, Array]:
        """Edges of the pieces, (k + 2,), and of each, (k + 1,): factor at its start, slope, probability before it."""
        edges = np.array([0.0, *self.knots, 1.0])
        value = np.array([self.log_ratio[0], *self.log_ratio, self.log_ratio[-1]])
        width = np.diff(edges)
        slope = np.diff(value) / width
        mass = np.exp(value[:-1]) * width * _mean_exp(slope * width)
        total = mass.sum()
        below = np.concatenate([[0.0], np.cumsum(mass[:-1])]) / total
        return edges, np.exp(value[:-1]) / total, slope, below

    def _log_factor(self, u: Array) -> Array:
        edges, start, _, _ = self._pieces
        ends = np.append(np.log(start), math.log(start[-1]))  # the last piece is constant
        return np.asarray(np.interp(u, edges, ends))

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation before centring and scaling."""
        base, (edges, start, _, _) = self._base, self._pieces
        low, *_, high = ends = base.quantile(edges[1:-1])
        total = start[0] * base.moments_below(low)
        total += start[-1] * (np.array([1.0, 0.0, 1.0]) - base.moments_below(high))
        # The mode is an end too: the second derivative of the base jumps there.
        ends = np.union1d(ends, np.clip(base.mode, low, high))
        nodes, weights = np.polynomial.legendre.leggauss(32)
        half = 0.5 * np.diff(ends)[:, None]
        w = ends[:-1, None] + half * (nodes + 1.0)
        density = half * weights * np.exp(base.log_density(w) + self._log_factor(base.cdf(w)))
        total += [float((density * w**power).sum()) for power in range(3)]
        mean = float(total[1] / total[0])
        return mean, math.sqrt(max(float(total[2] / total[0]) - mean**2, 0.0))


def shape_from_dict(state: Any) -> NoiseShape:
    """The shape that :meth:`NoiseShape.to_dict` described; anything else raises ModelFileError."""
    if not isinstance(state, dict):
        raise ModelFileError("the shape of the noise is not an object")
    kind = state.get("kind")
    if kind == "normal":
        _check_names(state, "kind")
        return NormalShape()
    if kind == "student":
        _check_names(state, "kind", "degrees")
        return StudentShape(_degrees(state))
    if kind == "skewed":
        _check_names(state, "kind", "degrees", "skew")
        return SkewedShape(_degrees(state), _skew(state))
    if kind == "spline":
        _check_names(state, "kind", "degrees", "skew", "knots", "log_ratio")
        knots = _numbers(state, "knots", KNOT_MARGIN, 1.0 - KNOT_MARGIN)
        ratio = _numbers(state, "log_ratio", -MAX_LOG_RATIO, MAX_LOG_RATIO)
        if len(knots) != len(ratio) or any(b - a < MIN_KNOT_GAP for a, b in pairwise(knots)):
            raise ModelFileError("the knots of the noise shape do not increase, or do not fit their ratios")
        shape = SplineShape(_degrees(state), _skew(state), knots, ratio)
        if shape.moments[1] < _MIN_STD:
            raise ModelFileError("the spline of the noise shape is a spike")
        return shape
    named = f" {kind!r:.40}" if isinstance(kind, str) else ""
    raise ModelFileError(f"the kind of noise shape{named} is unknown to this version")


def _check_names(state: dict[str, Any], *names: str) -> None:
    if set(state) != set(names):
        raise ModelFileError(f"a noise shape of kind {state['kind']!r} has {', '.join(names)} and nothing else")


def _degrees(state: dict[str, Any]) -> float:
    return _number(state["degrees"], "degrees", MIN_DEGREES, MAX_DEGREES)


def _skew(state: dict[str, Any]) -> float:
    return _number(state["skew"], "skew", math.exp(-MAX_LOG_SKEW), math.exp(MAX_LOG_SKEW))


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ModelFileError(f"{name} of the noise shape is not a number from {low:.4g} to {high:.4g}")
    return float(value)


def _numbers(state: dict[str, Any], name: str, low: float, high: float) -> tuple[float, ...]:
    values = state[name]
    if not isinstance(values, list) or not 2 <= len(values) <= MAX_KNOTS:
        raise ModelFileError(f"{name} of the noise shape is not a list of 2 to {MAX_KNOTS} numbers")
    return tuple(_number(value, name, low, high) for value in values)


def _log_peak(degrees: float) -> float:
    """Log density of Student's t at zero."""
    return math.lgamma(0.5 * (degrees + 1.0)) - math.lgamma(0.5 * degrees) - 0.5 * math.log(math.pi * degrees)


def _student_moments_below(degrees: float, b: float) -> Array:
    """Integrals of 1, t and t^2 times the density of Student's t, from minus infinity to b, (3,)."""
    # Imported here, as it is slow to import and normal noise does not need it.
    from scipy.special import stdtr

    zero = float(stdtr(degrees, b))
    density = math.exp(_log_peak(degrees) - 0.5 * (degrees + 1.0) * math.log1p(b * b / degrees))
    first = -(degrees + b * b) / (degrees - 1.0) * density
    # (1 + t^2 / degrees) times the density is that of a Student's t with two degrees less, in another unit.
    fewer = float(stdtr(degrees - 2.0, b * math.sqrt((degrees - 2.0) / degrees)))
    return np.array([zero, first, degrees * ((degrees - 1.0) / (degrees - 2.0) * fewer - zero)])


def _mean_exp(x: Array) -> Array:
    """``(exp(x) - 1) / x``, which is the mean of exp between 0 and x."""
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, x)
    return np.asarray(np.where(small, 1.0 + 0.5 * x, np.expm1(safe) / safe))


def _mean_log(x: Array) -> Array:
    """``log(1 + x) / x``, the inverse of ``_mean_exp``: ``r = t _mean_exp(s t)`` gives ``t = r _mean_log(s r)``."""
    small = np.abs(x) < 1e-8
    safe = np.where(small, 1.0, np.maximum(x, -1.0 + 1e-16))
    return np.asarray(np.where(small, 1.0 - 0.5 * x, np.log1p(safe) / safe))
