"""Shift and scale of every column, fitted on the training rows in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prismgp._types import AnyArray, Array
from prismgp.data._source import ArraySource

__all__ = ["Standardiser"]

_PASS_ROWS = 65_536
_CONSTANT = 1e-13  # a range below this share of the magnitude is rounding, not signal
_IGNORE = 1e20  # scale of an input that never varied, in units of its magnitude


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
        """Which inputs never varied in training, (d,)."""
        return self.x_scale >= _IGNORE * _magnitude(self.x_shift)

    @classmethod
    def fit(cls, source: ArraySource, *, normalize: bool) -> Standardiser:
        """Moments in one pass over the rows.

        The kernels are stationary, so shifting and scaling inputs and targets only changes the unit of the
        parameters, and keeps the arithmetic in range. What ``normalize`` decides is the constant mean
        where it is neither learned nor given: the targets' average, or zero.
        """
        x_mean, x_std = _moments(source, inputs=True)
        y_mean, y_std = _moments(source, inputs=False)
        # An input that never varied in training says nothing; the huge scale makes the model ignore
        # it at prediction too, where any other value would be infinitely many deviations away.
        x_scale = np.where(x_std > 0, x_std, _IGNORE * _magnitude(x_mean))
        y_scale = np.where(y_std > 0, y_std, _magnitude(y_mean))
        return cls(x_mean, x_scale, y_mean, y_scale, np.zeros_like(y_mean) if normalize else -y_mean / y_scale)


def _moments(source: ArraySource, *, inputs: bool) -> tuple[Array, Array]:
    """Mean and standard deviation by column (0 where constant), merged block by block (Chan, Golub and LeVeque)."""
    count = 0
    mean: Array = np.zeros(source.n_inputs if inputs else source.n_outputs)
    squares = np.zeros_like(mean)
    low, high = np.full_like(mean, np.inf), np.full_like(mean, -np.inf)
    for x, y in source.blocks(_PASS_ROWS):
        # In one memory order, so that the sums do not depend on that of the user's array.
        block: AnyArray = np.ascontiguousarray(x if inputs else y, dtype=np.float64)
        np.minimum(low, block.min(0), out=low)
        np.maximum(high, block.max(0), out=high)
        block_mean = block.mean(0)
        block_squares = np.square(block - block_mean).sum(0)
        total = count + len(block)
        delta = block_mean - mean
        squares += block_squares + delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    # The range tells constants apart; their mean and deviation are rounding errors.
    constant = high - low <= _CONSTANT * np.maximum(np.abs(low), np.abs(high))
    return np.where(constant, low, mean), np.where(constant, 0.0, np.sqrt(squares / count))


def _magnitude(mean: Array) -> Array:
    return np.where(mean != 0, np.abs(mean), 1.0)
