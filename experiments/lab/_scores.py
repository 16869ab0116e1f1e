"""How good predictions are: error, density, coverage."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from prismgp._types import AnyArray, Array

__all__ = ["LEVELS", "scores"]

LEVELS: tuple[float, ...] = (*(round(0.05 * k, 2) for k in range(1, 20)), 0.99)


def scores(y: AnyArray, mean: AnyArray, std: AnyArray, scale: float) -> dict[str, Any]:
    """Scores of Gaussian predictions, in units of ``scale``, the training target's standard deviation.

    Returns
    -------
    dict
        "rmse", "mae", "nlpd" (mean negative log density), "coverage" of the central 95% intervals, and "calibration":
        the share of targets inside the central intervals of each of ``LEVELS``.
    """
    y, mean, std = (np.asarray(each, dtype=np.float64) for each in (y, mean, std))
    error: Array = y - mean
    z = error / std
    inside = np.abs(z)
    return {
        "rmse": float(np.sqrt(np.mean(error**2)) / scale),
        "mae": float(np.mean(np.abs(error)) / scale),
        "nlpd": float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)) - np.log(scale)),
        "coverage": float(np.mean(inside < ndtri(0.975))),
        "calibration": [float(np.mean(inside < ndtri(0.5 + level / 2))) for level in LEVELS],
    }
