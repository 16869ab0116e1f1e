"""Scores of predictions, in the unit that all tables use."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.internals import AnyArray, fit_shape
from prismgp import metrics

__all__ = ["LEVELS", "recalibrated_nlpd", "score"]

_FOLDS = 5
_SHAPE_ROWS = 20_000  # more residuals would not change a shape
LEVELS: tuple[float, ...] = (*(round(0.05 * k, 2) for k in range(1, 20)), 0.99)


def score(y: AnyArray, mean: AnyArray, std: AnyArray, scale: float) -> dict[str, Any]:
    """Scores of Gaussian predictions, in units of ``scale``, the training target's standard deviation.

    Returns
    -------
    dict
        "rmse", "mae", "nlpd" (mean negative log density), "coverage" of the central 95% intervals, and "calibration":
        the share of targets inside the central intervals of each of ``LEVELS``.
    """
    y, mean, std = (np.asarray(each, dtype=np.float64) for each in (y, mean, std))
    covered = metrics.calibration_curve(y, mean, std, LEVELS)[1].tolist()
    return {
        "rmse": metrics.rmse(y, mean) / scale,
        "mae": float(np.mean(np.abs(y - mean))) / scale,
        "nlpd": metrics.nlpd(y, mean, std) - float(np.log(scale)),
        "coverage": covered[LEVELS.index(0.95)],
        "calibration": covered,
    }


def recalibrated_nlpd(y: AnyArray, mean: AnyArray, std: AnyArray) -> float:
    """NLPD with the predicted means and standard deviations, and a learned shape of the noise instead of the normal.

    The shape is one of those that PrismGP chooses from, learned from the standardised residuals of other held-out rows:
    the rows are divided at random into five parts, and each is scored with the shape that the other four have. So a
    model needs no rows of its own for it, which favours it over one that learns the shape from its training rows.
    """
    y, mean, std = (np.asarray(each, dtype=np.float64) for each in (y, mean, std))
    z = (y - mean) / std
    log_density = np.empty_like(z)
    parts = np.array_split(np.random.default_rng(0).permutation(len(z)), _FOLDS)
    for k, own in enumerate(parts):
        others = np.random.default_rng(k).permutation(np.concatenate(parts[:k] + parts[k + 1 :]))[:_SHAPE_ROWS]
        log_density[own] = fit_shape(z[others]).shape.log_density(z[own])
    return float(np.mean(np.log(std) - log_density))
