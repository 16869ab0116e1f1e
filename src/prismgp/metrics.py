"""How good predictions are: their error, their density, and whether their intervals cover what they promise.

All functions take arrays of the same shape, (n,) or (n, q), in any unit, and average over all entries. Those with
``std`` are about normal distributions. Of a model that is not normal, :meth:`log_density` of the regressor is the
density, the NLPD is minus the mean of that, and :meth:`predict_interval` has the intervals.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from prismgp._types import Array
from prismgp.core.models import normal_cdf, normal_log_density, normal_quantile
from prismgp.exceptions import DataError

__all__ = ["calibration_curve", "coverage", "crps", "interval_score", "nlpd", "rmse"]

_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def rmse(y: Any, mean: Any) -> float:
    """Root mean square error.

    Parameters
    ----------
    y, mean : array-like, (n,) or (n, q)

    Returns
    -------
    float

    Examples
    --------
    >>> from prismgp.metrics import rmse
    >>> rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
    """
    y, mean = _check_same_shape(y=y, mean=mean)
    return float(np.sqrt(np.mean(np.square(y - mean))))


def nlpd(y: Any, mean: Any, std: Any) -> float:
    """Mean negative log density of the observations under normal distributions.

    Several outputs count as several observations: the mean is over all entries.

    Parameters
    ----------
    y, mean, std : array-like, (n,) or (n, q)
        ``std`` is that of an observation, noise included.

    Returns
    -------
    float
    """
    y, mean, std = _check_same_shape(y=y, mean=mean, std=std)
    return -float(_log_density(y, mean, std).mean())


def coverage(y: Any, lower: Any, upper: Any) -> float:
    """Share of observations inside their intervals, ends included.

    Parameters
    ----------
    y, lower, upper : array-like, (n,) or (n, q)

    Returns
    -------
    float
    """
    y, lower, upper = _check_same_shape(y=y, lower=lower, upper=upper)
    return float(np.mean((lower <= y) & (y <= upper)))


def crps(y: Any, mean: Any, std: Any) -> float:
    """Mean continuous ranked probability score of normal distributions; smaller is better, in the unit of y.

    Parameters
    ----------
    y, mean, std : array-like, (n,) or (n, q)

    Returns
    -------
    float

    References
    ----------
    Gneiting and Raftery (2007), Strictly proper scoring rules, equation 21.
    """
    y, mean, std = _check_same_shape(y=y, mean=mean, std=std)
    z = (y - mean) / std
    density = np.exp(-0.5 * np.square(z)) / np.sqrt(2.0 * np.pi)
    return float(np.mean(std * (z * (2.0 * normal_cdf(z) - 1.0) + 2.0 * density - 1.0 / np.sqrt(np.pi))))


def interval_score(y: Any, lower: Any, upper: Any, coverage: float = 0.95) -> float:
    """Mean interval score of central intervals; smaller is better, in the unit of y.

    The width of the interval, plus ``2 / (1 - coverage)`` times the distance by which an observation lies outside.

    Parameters
    ----------
    y, lower, upper : array-like, (n,) or (n, q)
    coverage : float, default 0.95
        What the intervals promise.

    Returns
    -------
    float

    References
    ----------
    Gneiting and Raftery (2007), Strictly proper scoring rules, equation 43.
    """
    if not 0.0 < coverage < 1.0:
        raise DataError(f"coverage={coverage!r} must be between 0 and 1")
    y, lower, upper = _check_same_shape(y=y, lower=lower, upper=upper)
    outside = np.maximum(lower - y, 0.0) + np.maximum(y - upper, 0.0)
    return float(np.mean(upper - lower + 2.0 / (1.0 - coverage) * outside))


def calibration_curve(y: Any, mean: Any, std: Any, levels: Any = _LEVELS) -> tuple[Array, Array]:
    """Coverage of central intervals of normal distributions against what they promise.

    Parameters
    ----------
    y, mean, std : array-like, (n,) or (n, q)
    levels : sequence of float, default 0.1 to 0.99

    Returns
    -------
    levels : ndarray, (k,)
    covered : ndarray, (k,)
        Share of observations inside the central interval of each level; equal to ``levels`` if calibrated.
    """
    y, mean, std = _check_same_shape(y=y, mean=mean, std=std)
    asked = np.asarray(levels, dtype=np.float64)
    if asked.ndim != 1 or not ((asked > 0) & (asked < 1)).all():
        raise DataError("levels must be numbers between 0 and 1")
    z = np.abs(y - mean) / std
    return asked, np.array([float(np.mean(z <= normal_quantile(0.5 + 0.5 * level))) for level in asked])


class Scores:
    """Accuracy of predictions and coverage of intervals, accumulated over batches in constant memory."""

    def __init__(self, level: float) -> None:
        self.level = level
        self.rows = 0
        self._weight = self._squares = self._covered = self._log_density = 0.0

    def add(
        self,
        y: Array,
        mean: Array,
        std: Array,
        log_density: Array | None = None,
        interval: tuple[Array, Array] | None = None,
        weight: Array | None = None,
    ) -> None:
        """Compare predictions with observations, (n,); pairs with a NaN do not count.

        The log densities are those of the observations under the model, and the interval is the model's; None: those of
        normal distributions. A row of weight w counts as w rows.
        """
        scored = np.isfinite(y) & np.isfinite(mean)
        if not scored.any():
            return
        if interval is None:
            margin = normal_quantile(0.5 + self.level / 2) * std
            interval = mean - margin, mean + margin
        if log_density is None:
            log_density = _log_density(y, mean, std)
        own = np.ones(len(y)) if weight is None else weight
        own, inside = own[scored], (interval[0] <= y) & (y <= interval[1])
        self.rows += len(own)
        self._weight += float(own.sum())
        self._squares += float(own @ np.square(y - mean)[scored])
        self._covered += float(own @ inside[scored])
        self._log_density += float(own @ log_density[scored])

    def merge(self, other: Scores) -> Scores:
        """Scores of both sets of rows."""
        both = Scores(self.level)
        for name in ("rows", "_weight", "_squares", "_covered", "_log_density"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def to_dict(self, *, density: bool = True) -> dict[str, Any]:
        """RMSE, and for predictions of observations NLPD (mean negative log density) and coverage."""
        if not self.rows:
            return {"rows": 0}
        scores: dict[str, Any] = {"rows": self.rows, "rmse": math.sqrt(self._squares / self._weight)}
        if density:
            nlpd, coverage = -self._log_density / self._weight, self._covered / self._weight
            scores |= {"nlpd": nlpd, "level": self.level, "coverage": coverage}
        return scores


def _log_density(y: Array, mean: Array, std: Array) -> Array:
    """Return the log density of observations under normal distributions, entry by entry."""
    error, variance = torch.from_numpy(y - mean), torch.from_numpy(np.square(std))
    found: Array = normal_log_density(error, torch.zeros_like(error), variance).numpy()
    return found


def _check_same_shape(**arrays: Any) -> list[Array]:
    found = [np.asarray(value, dtype=np.float64) for value in arrays.values()]
    if any(each.shape != found[0].shape for each in found):
        shapes = ", ".join(f"{name} {each.shape}" for name, each in zip(arrays, found, strict=True))
        raise DataError(f"the arrays must have the same shape: {shapes}")
    if not found[0].size:
        raise DataError("there are no rows to score")
    return found
