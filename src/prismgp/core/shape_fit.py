"""Learning the shape of the noise from standardised residuals of rows that the model was not fitted to.

Each family of :mod:`prismgp.core.shape` is fitted by penalised likelihood with mean 0 and variance 1 held fixed.
Cross-validation chooses among them, and a less simple shape must be convincingly better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from prismgp._types import Array
from prismgp.core.shape import (
    KNOT_MARGIN,
    MAX_DEGREES,
    MAX_LOG_RATIO,
    MAX_LOG_SKEW,
    MIN_DEGREES,
    MIN_KNOT_GAP,
    NoiseShape,
    NormalShape,
    SkewedShape,
    SplineShape,
    StudentShape,
)
from prismgp.exceptions import DataError

_MIN_VALUES = 20  # fewer cannot show a shape
_MIN_FLEXIBLE = 200  # fewer cannot show skewness or lumps
_FARTHEST = 1e4  # residuals beyond are broken predictions, not noise
_FOLDS = 5
_WIDTH = 0.005  # of the narrowest spike, in standard deviations: repeated values must not have an infinite density
_OFFSETS = _WIDTH * np.array([-0.75, -0.25, 0.25, 0.75])
_STEPS = (0.03, 0.1, 0.3, 1.0, 3.0)  # how much the log ratio of the spline may change from knot to knot
_COSTS = {"student": 2.0, "skewed": 2.0, "spline": 4.0}  # nats, over all values, that a kind must gain beyond its error
_PRIOR_VALUES = 10.0  # the priors of tails and skewness are as strong as about as many values
_MOMENT_PENALTY = 1e3
_MIN_KNOTS = 3


@dataclass(frozen=True)
class ShapeFit:
    """What :func:`fit_shape` found.

    Attributes
    ----------
    shape : NoiseShape
        The shape that was chosen, fitted to all values.
    scores : dict
        Mean negative log density of values held out in cross-validation, for each kind of shape that competed; empty
        if the values could not be used.
    """

    shape: NoiseShape
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """By how much the chosen shape is better than the normal distribution, in nats per held-out value."""
        return self.scores["normal"] - self.scores[self.shape.kind] if self.scores else 0.0


def fit_shape(z: Array, *, weights: Array | None = None) -> ShapeFit:
    """Learn the shape of the noise.

    Parameters
    ----------
    z : ndarray, (n,)
        Standardised residuals of rows that the model was not fitted to. If these are fewer than 20, or all the same,
        or one is not finite or farther than 10,000 standard deviations away, the shape is normal.
    weights : ndarray, (n,), or None
        How much each value counts, in any unit; None: all the same. Unequal weights count as fewer values.

    Returns
    -------
    ShapeFit

    Raises
    ------
    DataError
        The weights are negative or not finite, or not as many as the values.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp.core.shape_fit import fit_shape
    >>> found = fit_shape(np.random.default_rng(0).standard_t(3, size=2000) / np.sqrt(3))
    >>> found.shape.kind, round(found.gain, 2) > 0.1
    ('student', True)
    """
    z = np.asarray(z, dtype=np.float64).ravel()
    w = _check_weights(z, weights)
    z, w = z[w > 0.0], w[w > 0.0]
    if not len(z) or not np.abs(z).max() <= _FARTHEST or np.ptp(z) < _WIDTH:
        return ShapeFit(NormalShape())
    # Equal weights sum to n; unequal ones to the number of equal weights that are as informative.
    w = w / w.max()
    w *= w.sum() / np.square(w).sum()
    if w.sum() < _MIN_VALUES:
        return ShapeFit(NormalShape())
    held_out, step = _cross_validate(z, w)
    kind = _choose(held_out, w)
    scores = {each: -float(np.average(value, weights=w)) for each, value in held_out.items()}
    return ShapeFit(_fit(kind, step, z, w), scores)


def _check_weights(z: Array, weights: Array | None) -> Array:
    if weights is None:
        return np.ones_like(z)
    w = np.asarray(weights, dtype=np.float64).ravel()
    if w.shape != z.shape or not np.isfinite(w).all() or (w < 0.0).any():
        raise DataError(f"weights must be {len(z)} finite numbers, none of them negative: one for each value")
    return w


def _cross_validate(z: Array, w: Array) -> tuple[dict[str, Array], float]:
    """Log densities of the values when held out, (n,) for each kind, and the best step of the spline."""
    names: list[tuple[str, float]] = [("normal", 0.0), ("student", 0.0)]
    if w.sum() >= _MIN_FLEXIBLE:
        names += [("skewed", 0.0), *(("spline", step) for step in _STEPS)]
    found = {name: np.empty_like(z) for name in names}
    # Values may come in any order, even sorted.
    fold = np.random.default_rng(0).permutation(len(z)) % _FOLDS
    for k in range(_FOLDS):
        own = fold == k
        fits = _fit_all(z[~own], w[~own], names)
        for name, shape in fits.items():
            found[name][own] = shape.log_density(z[own])
    steps = {step: float(np.average(found["spline", step], weights=w)) for kind, step in names if kind == "spline"}
    step = max(steps, key=steps.__getitem__, default=0.0)
    return {kind: value for (kind, each), value in found.items() if kind != "spline" or each == step}, step


def _choose(held_out: dict[str, Array], w: Array) -> str:
    """The simplest shape, unless another is convincingly better."""
    best = "normal"
    cost = 0.0
    for kind in ("student", "skewed", "spline"):
        if kind not in held_out:
            continue
        cost += _COSTS[kind]
        gains = held_out[kind] - held_out[best]
        mean = np.average(gains, weights=w)
        error = math.sqrt(np.average(np.square(gains - mean), weights=w) / w.sum())
        if mean > error + cost / w.sum():
            best, cost = kind, 0.0
    return best


def _fit(kind: str, step: float, z: Array, w: Array) -> NoiseShape:
    return _fit_all(z, w, [(kind, step)])[kind, step]


def _fit_all(z: Array, w: Array, names: list[tuple[str, float]]) -> dict[tuple[str, float], NoiseShape]:
    """Shapes of the given kinds, and of the given steps, fitted to the same values."""
    kinds = {kind for kind, _ in names}
    fits: dict[tuple[str, float], NoiseShape] = {}
    skewed = _fit_skewed(z, w) if kinds & {"skewed", "spline"} else None
    spline = None if skewed is None or "spline" not in kinds else _SplineFit(z, w, skewed)
    for kind, step in names:
        if kind == "normal":
            fits[kind, step] = NormalShape()
        elif kind == "student":
            fits[kind, step] = _fit_student(z, w)
        elif kind == "skewed" and skewed is not None:
            fits[kind, step] = skewed
        elif spline is not None:
            fits[kind, step] = spline.solve(step)
    return fits


def _fit_student(z: Array, w: Array) -> StudentShape:
    # Slow to import, and predictions do not need it.
    from scipy.optimize import minimize_scalar

    def loss(inverse: float) -> float:
        return _PRIOR_VALUES * inverse - float(w @ StudentShape(1.0 / inverse).log_density(z))

    # Optimised in one over the degrees, in which the tails change evenly.
    found = minimize_scalar(loss, bounds=(1.0 / MAX_DEGREES, 1.0 / MIN_DEGREES), method="bounded")
    return StudentShape(_degrees(found.x))


def _fit_skewed(z: Array, w: Array) -> SkewedShape:
    # Slow to import, and predictions do not need it.
    from scipy.optimize import minimize

    def loss(theta: Array) -> float:
        shape = SkewedShape(_degrees(theta[0]), math.exp(theta[1]))
        prior = _PRIOR_VALUES * (theta[0] + 0.5 * theta[1] ** 2)
        return float((prior - w @ shape.log_density(z)) / w.sum())

    bounds = [(1.0 / MAX_DEGREES, 1.0 / MIN_DEGREES), (-MAX_LOG_SKEW, MAX_LOG_SKEW)]
    starts = [(0.1, 0.0), (0.1, 0.5 * float(np.sign(w @ z**3)))]
    start = min(starts, key=lambda theta: loss(np.array(theta)))
    found = minimize(loss, np.array(start), method="L-BFGS-B", bounds=bounds)
    return SkewedShape(_degrees(found.x[0]), math.exp(found.x[1]))


def _degrees(inverse: float) -> float:
    return float(np.clip(1.0 / inverse, MIN_DEGREES, MAX_DEGREES))  # rounding of the inverse may leave the bounds


class _SplineFit:
    """Fits of a spline to the ratio between the density of the values and that of a skewed t.

    An exponential family whose statistics are means of the hat functions of the knots, so that fits cost nothing more
    as values become many. Jumps of the log ratio from knot to knot have a normal prior with deviation ``step``.

    A penalty keeps mean and variance at 0 and 1. Shifting the fit afterwards would be simpler, and would move a spike
    away from its place by the sampling error of the mean, which is more than the width of the spike.
    """

    def __init__(self, z: Array, w: Array, base: SkewedShape) -> None:
        self.base = base
        self.total = float(w.sum())
        self.knots = _place_knots(z, w, base)
        if len(self.knots) >= _MIN_KNOTS:
            # Every value is spread over the width of the narrowest spike.
            spread = np.repeat(w / (len(_OFFSETS) * self.total), len(_OFFSETS))
            self.statistics = self._average_hats(base.cdf(z[:, None] + _OFFSETS).ravel(), spread)
            self._prepare_quadrature()

    def solve(self, step: float) -> NoiseShape:
        """The fit with the given prior, by Newton's method."""
        k = len(self.knots)
        if k < _MIN_KNOTS:
            return self.base
        jumps = np.diff(np.eye(k), axis=0)
        prior = (jumps.T @ jumps / step**2 + np.eye(k)) / self.total
        theta = np.zeros(k)
        value, gradient, hessian = self._evaluate(theta, prior)
        for _ in range(50):
            change = np.linalg.solve(hessian, gradient)
            decrement = float(gradient @ change)
            if decrement < 1e-8:  # nats per value
                break
            rate = 1.0
            while rate > 1e-6:
                trial = np.clip(theta - rate * change, -MAX_LOG_RATIO, MAX_LOG_RATIO)
                new = self._evaluate(trial, prior)
                if new[0] <= value - 1e-4 * rate * decrement:
                    break
                rate *= 0.5
            else:
                break
            theta, (value, gradient, hessian) = trial, new
        return SplineShape(self.base.degrees, self.base.skew, tuple(self.knots.tolist()), tuple(theta.tolist()))

    def _average_hats(self, u: Array, w: Array) -> Array:
        """Weighted means of the hat functions, (k,); beyond the knots the outermost hat is one."""
        k = len(self.knots)
        j = np.clip(np.searchsorted(self.knots, u, side="right") - 1, 0, k - 2)
        t = np.clip((u - self.knots[j]) / (self.knots[j + 1] - self.knots[j]), 0.0, 1.0)
        return np.asarray(np.bincount(j, (1.0 - t) * w, k) + np.bincount(j + 1, t * w, k))

    def _prepare_quadrature(self) -> None:
        """Nodes between the knots, (k - 1, 12), and integrals of 1, z and z^2 over the base's tails, (2, 3)."""
        nodes, weights = np.polynomial.legendre.leggauss(12)
        self.way = 0.5 * (nodes + 1.0)
        width = np.diff(self.knots)[:, None]
        self.node_weights = 0.5 * weights * width
        self.node_values = self.base.quantile(self.knots[:-1, None] + width * self.way)
        low, high = self.base.quantile(self.knots[[0, -1]])
        above = np.array([1.0, 0.0, 1.0]) - self.base.moments_below(high)
        self.tails = np.stack([self.base.moments_below(low), above])

    def _evaluate(self, theta: Array, prior: Array) -> tuple[float, Array, Array]:
        """Minus the penalised log likelihood per value, its gradient and its Hessian."""
        top = theta.max()
        t, z = self.way, self.node_values
        mass = self.node_weights * np.exp(theta[:-1, None] + np.diff(theta)[:, None] * t - top)
        ends = self.tails * np.exp(theta[[0, -1]] - top)[:, None]
        k = len(theta)
        moments = np.zeros((k, 3))  # integrals of hat functions times 1, z and z^2
        left, right = mass * (1.0 - t), mass * t
        moments[:-1] += np.stack([left.sum(1), (left * z).sum(1), (left * z * z).sum(1)], axis=1)
        moments[1:] += np.stack([right.sum(1), (right * z).sum(1), (right * z * z).sum(1)], axis=1)
        moments[[0, -1]] += ends
        second = np.zeros((k, k))
        i = np.arange(k - 1)
        second[i, i] += (left * (1.0 - t)).sum(1)
        second[i + 1, i + 1] += (right * t).sum(1)
        second[i, i + 1] = second[i + 1, i] = (left * t).sum(1)
        second[[0, -1], [0, -1]] += ends[:, 0]
        norm = moments[:, 0].sum()  # hats sum to one
        mean = moments[:, 0] / norm
        total = moments.sum(0) / norm
        off = total[1:] - (0.0, 1.0)
        slopes = moments[:, 1:] / norm - np.outer(mean, total[1:])  # of mean and second moment, (k, 2)
        pull = prior @ theta
        value = math.log(norm) + top - self.statistics @ theta + 0.5 * (theta @ pull + _MOMENT_PENALTY * off @ off)
        gradient = mean - self.statistics + pull + _MOMENT_PENALTY * slopes @ off
        # The moments' own curvature is left out, as Gauss and Newton do, so that the Hessian stays positive.
        hessian = second / norm - np.outer(mean, mean) + prior + _MOMENT_PENALTY * slopes @ slopes.T
        return float(value), gradient, hessian


def _place_knots(z: Array, w: Array, base: SkewedShape) -> Array:
    """Knots at quantiles of the values, in terms of the distribution function of the base."""
    n = float(w.sum())
    count = int(min(3.0 * n ** (1.0 / 3.0), 96))
    body = (np.arange(count) + 0.5) / count
    # Beyond the outermost of these, levels halve up to the outermost value: light tails end there.
    tail = body[0] * 0.5 ** np.arange(1, max(1, math.floor(math.log2(body[0] * n)) + 1))
    levels = np.sort(np.concatenate([tail, body, 1.0 - tail]))
    order = np.argsort(z)
    at = np.searchsorted((np.cumsum(w[order]) - 0.5 * w[order]) / n, levels)
    # On a grid as fine as the narrowest spike. Where several quantiles agree there is one, and its edges are knots too.
    cell, times = np.unique(np.round(z[order][np.minimum(at, len(z) - 1)] / _WIDTH), return_counts=True)
    repeated = cell[times > 1]
    u = base.cdf(np.unique(np.concatenate([cell, repeated - 1.0, repeated + 1.0])) * _WIDTH)
    u = u[(u > KNOT_MARGIN) & (u < 1.0 - KNOT_MARGIN)]
    return u[np.diff(u, prepend=0.0) > MIN_KNOT_GAP]
