"""Shift and scale of every column, fitted on the training rows in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prismgp._types import Array
from prismgp.data._source import Source

__all__ = ["Standardiser"]

_IGNORE = 1e20  # scale of an input that never varied, in units of its magnitude
_NOTHING = 1e-18  # share of the spread below which a mean is zero, but for rounding
# An input in which as few rows differ from the others, and as few of all, tells nothing: there is no learning a
# length-scale from them, and where the next such row lies beyond them the kernel of few frequencies is arbitrary.
_FEW_ROWS, _FEW_OF_ALL = 3, 1 / 300


@dataclass(frozen=True)
class Standardiser:
    """Column-wise affine maps between the user's units and the model's, ``(value - shift) / scale``.

    In the model's units every column has a spread of one, so starting values and bounds need not
    know the data.

    Attributes
    ----------
    x_shift, x_scale : ndarray, (d,)
    y_shift, y_scale : ndarray, (q,)
    fixed_mean : ndarray, (q,)
        The constant mean, in the model's units, when it is neither learned nor given.
    """

    x_shift: Array
    x_scale: Array
    y_shift: Array
    y_scale: Array
    fixed_mean: Array

    @property
    def constant_inputs(self) -> npt.NDArray[np.bool_]:
        """Which inputs never varied in training, but for a few rows at most, (d,)."""
        return self.x_scale >= _IGNORE * _magnitude(self.x_shift)

    @classmethod
    def fit(cls, source: Source, *, normalize: bool, learned: bool = True) -> Standardiser:
        """Moments in one pass over the rows.

        The kernels are stationary, so shifting and scaling inputs and targets only changes the unit of the
        parameters, and keeps the arithmetic in range. What ``normalize`` decides is the constant mean
        where it is neither learned nor given: the targets' average, or zero. ``learned`` says that length-scales are
        learned; those a user has given hold for every input.
        """
        x, y = source.moments
        x_mean, x_std, y_mean, y_std = x.mean, x.std, y.mean, y.std
        # An input that never varied in training says nothing; the huge scale makes the model ignore
        # it at prediction too, where any other value would be infinitely many deviations away.
        few = min(_FEW_ROWS, int(_FEW_OF_ALL * x.count)) if learned else 0
        silent = (x_std == 0) | (x.apart <= few)
        # Not by the mean, which a few rows move and which may cancel to next to nothing.
        x_scale = np.where(silent, _IGNORE * np.maximum(_magnitude(x.usual), x.largest), x_std)
        x_shift = np.where(silent, x.usual, np.where(np.abs(x_mean) > _NOTHING * x_std, x_mean, 0.0))
        y_scale = np.where(y_std > 0, y_std, _magnitude(y_mean))
        return cls(x_shift, x_scale, y_mean, y_scale, np.zeros_like(y_mean) if normalize else -y_mean / y_scale)


def _magnitude(mean: Array) -> Array:
    return np.where(mean != 0, np.abs(mean), 1.0)
