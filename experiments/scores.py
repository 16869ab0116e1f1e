"""Scores of predictions, in the unit that all tables use."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.internals import AnyArray
from prismgp import metrics

__all__ = ["LEVELS", "score"]

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
