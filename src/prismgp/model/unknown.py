"""Rows with unknown cells: the prediction is averaged over what the cells may be.

A cell is unknown if it is missing (NaN), or holds a category that training did not have (infinity). Its values are
taken from training rows: those that resemble the row in all that is known of it, or, as a new category is like no other
one, any of them. So the prediction is a mixture. Its mean is that of these rows, and by the law of total variance their
spread adds to its variance (M2).

Where many rows of the fit missed the very same cells, the model has learned what such rows are like. Held-out rows show
whether its intervals are right for them; if so, rows among them are predicted as any others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.models import Marginals, Standardiser
from prismgp.data import TableEncoder
from prismgp.prism.stacking import Residuals

Compute: TypeAlias = Callable[[AnyArray], tuple[Array, ...]]  # of rows: arrays whose first axis they are

DRAWS = 24  # rows of the background that an unknown cell takes its values from
_SMOOTHING = 0.1  # of the variance of the draws; a third of the usual for normal kernels, as cells may be uniform
_FEWEST = 2  # degrees of freedom
_ROUNDING = 1e-6  # of inputs that were standardised in single precision
_LEAST_TAUGHT = 50  # held-out rows that miss the same cells, to say whether their intervals are right
_EQUALLY_NEAR, _TINY = 1e-9, 1e-290  # relative to the largest of the numbers, and the least of these


def by_rows(x: AnyArray, known: Compute, unknown: Compute, *, step: int) -> tuple[Array, ...]:
    """Apply one function to the rows that are known, and another one to those with unknown cells.

    There are some of the latter, of which the second one gets at most ``step`` at a time.
    """
    gaps = ~np.isfinite(x).all(axis=1)
    places = [np.flatnonzero(~gaps)] if not gaps.all() else []
    parts = [known(x[own]) for own in places]
    holes = np.flatnonzero(gaps)
    for start in range(0, len(holes), step):
        places.append(holes[start : start + step])
        parts.append(unknown(x[places[-1]]))
    order = np.argsort(np.concatenate(places))
    return tuple(np.concatenate(each)[order] for each in zip(*parts, strict=True))


def fill_ignored(x: AnyArray, ignored: AnyArray, typical: Array) -> AnyArray:
    """Rows, (n, d or more), with typical values, (d,), in unknown cells of the inputs, (d,), that a model ignores.

    No prediction depends on them: an unknown cell there is not one more thing that may vary.
    """
    gaps = ~np.isfinite(x[:, : len(ignored)]) & ignored
    if not gaps.any():
        return x
    x = np.array(x)
    rows, columns = np.nonzero(gaps)
    x[rows, columns] = typical[columns]
    return x


@dataclass(frozen=True)
class Taught:
    """Cells that may be missing together because training has taught what such rows are like, and where they were."""

    cells: AnyArray  # of each set of inputs, (k, d)
    low: Array  # the least and the largest values of the other inputs among the rows that showed it, (k, d)
    high: Array

    def fill(self, x: AnyArray, encoder: TableEncoder) -> AnyArray:
        """Rows, (n, d or more), with imputed cells where they are like those of the fit that missed just these."""
        d = self.cells.shape[1]
        rows = np.flatnonzero(np.isnan(x[:, :d]).any(axis=1))
        own = x[rows, :d]
        like = np.zeros(len(rows), dtype=bool)
        for cells, low, high in zip(self.cells, self.low, self.high, strict=True):
            inside = (own >= low) & (own <= high)
            like |= (np.isnan(own) == cells).all(axis=1) & (inside | cells).all(axis=1)
        if not like.any():
            return x
        x = np.array(x)
        x[rows[like], :d] = encoder.impute(own[like])
        return x


def find_taught(seen: Residuals | None, units: Standardiser, encoder: TableEncoder | None) -> Taught | None:
    """Find cells that may be missing together; None where there are none.

    ``seen`` are residuals at held-out rows, in which missing cells are imputed. At least 50 of them must miss just
    these cells, and their mean square must not exceed one by more than its standard error. Nothing is said of cells of
    inputs that the model ignores.
    """
    if seen is None or encoder is None or not encoder.has_indicators:
        return None
    x, ignored = seen.x.double().cpu().numpy() * units.x_scale + units.x_shift, units.constant_inputs
    indicators, anything = encoder.indicators, np.finfo(np.float64).max
    gaps = (indicators >= 0) & (x[:, indicators] > 0.5) & ~ignored
    patterns, which = np.unique(gaps, axis=0, return_inverse=True)
    found = []
    for k, cells in enumerate(patterns):
        own = which.ravel() == k
        if own.sum() < _LEAST_TAUGHT or not cells.any():
            continue
        squares = np.square(seen.values[own])
        if (squares.mean(0) <= 1.0 + squares.std(0, ddof=1) / np.sqrt(len(squares))).all():
            low, high = x[own].min(0), x[own].max(0)
            rounding = _ROUNDING * (units.x_scale + np.abs(units.x_shift) + np.maximum(np.abs(low), np.abs(high)))
            low, high = np.where(ignored, -anything, low - rounding), np.where(ignored, anything, high + rounding)
            found.append((cells, low, high))
    return Taught(*(np.stack(each) for each in zip(*found, strict=True))) if found else None


def marginals_of_unknown(
    x: AnyArray,
    background: Array,
    scale: Array,
    encoder: TableEncoder | None,
    predict: Callable[[AnyArray], Marginals],
) -> Marginals:
    """Compute the distribution of rows with unknown cells, (n, d), from predictions at known rows (M2)."""

    def draw(rows: AnyArray) -> tuple[Marginals, Array]:
        filled, factor = fill_from(rows, background, scale)
        return predict(filled.reshape(-1, filled.shape[2])), factor

    def moments(found: Marginals) -> tuple[Array, Array]:
        return found.mean.cpu().numpy(), found.variance.cpu().numpy()

    if encoder is None or not encoder.has_indicators:
        return average_draws(*draw(x))
    # Where training had missing cells too, it has taught their mean: that of the imputed row, with its indicator.
    # What the cell may be counts for the spread, without the indicator.
    taught = by_rows(
        encoder.impute(x),
        lambda rows: moments(predict(rows)),
        lambda rows: moments(average_draws(*draw(rows))),  # these have new categories too
        step=len(x),
    )
    return average_draws(*draw(encoder.forget_indicators(x)), taught)


def fill_from(x: AnyArray, background: Array, scale: Array) -> tuple[Array, Array]:
    """Rows, (n, d), with unknown cells replaced in turn by those of background rows, (draws, n, d).

    Missing cells take those of the nearest rows, by the distance of the cells that are known in units of ``scale``,
    (d,). Also what the spread of the draws is to be multiplied by, (n,): the cell is one more draw, and a new category
    one more of those that are known, of which there may be few.
    """
    known, new = np.isfinite(x), np.isinf(x)
    centre = background.mean(axis=0)  # without it, a column far from zero would leave nothing but rounding
    rows = np.where(known, x - centre, 0.0) / scale
    others = (background - centre) / scale
    # |x - b|^2 over the known cells alone, without an array of n m d numbers.
    size = np.square(rows).sum(1)[:, None] + known @ np.square(others).T
    # Rounded, so that equal rows are equally near: how products round depends on how many rows there are.
    grid = np.exp2(np.floor(np.log2(_EQUALLY_NEAR * size.max(axis=1, keepdims=True, initial=_TINY))))
    distances = np.round((size - 2.0 * rows @ others.T) / grid)
    draws = min(DRAWS, len(background))
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :draws].T
    anywhere = np.linspace(0, len(background) - 1, draws).astype(np.intp)
    filled = np.where(known, x, background[nearest])
    factor = np.full(len(x), _factor_of_one_more(draws))
    if new.any():
        filled = np.where(new, background[anywhere][:, None, :], filled)
        patterns, which = np.unique(new, axis=0, return_inverse=True)
        for index, pattern in enumerate(patterns):
            if pattern.any():
                distinct = len(np.unique(background[:, pattern], axis=0))
                factor[which.ravel() == index] = _factor_of_new(min(distinct, draws))
    return filled, factor


def _factor_of_one_more(count: int) -> float:
    """Mean squared distance of one more value from the mean of ``count``, over the mean square of their deviations.

    It is (J + 1) / (J - 1) for J independent values of one distribution.
    """
    degrees = max(count - 1, 1)
    return (degrees + 2) / degrees


def _factor_of_new(levels: int) -> float:
    """Return the same factor for one more of this number of levels, for intervals of 95%.

    These are as those of Student's t: the exponential is the squared ratio of its quantile to the normal one, within a
    per cent.
    """
    degrees = max(levels - 1, _FEWEST)
    return float(_factor_of_one_more(degrees + 1) * np.exp(2.4 / degrees + 1.55 / degrees**2))


def average_draws(draws: Marginals, factor: Array, taught: tuple[Array, ...] | None = None) -> Marginals:
    """Mix the predictions at several draws of each row, which come draw by draw (M2).

    ``factor`` multiplies the spread of the draws, (n,). ``taught``: mean and variance, (n, q), that training taught of
    rows in which the cell is missing. Then the mixture is moved to that mean, and is never narrower.
    """
    mixed = _mix(draws, torch.as_tensor(factor).to(draws.mean)[:, None])
    if taught is None:
        return mixed
    mean, variance = (torch.as_tensor(each).to(mixed.mean) for each in taught)
    wider = (variance - mixed.variance).clamp(min=0.0)
    return Marginals(
        mean,
        mixed.variance + wider,
        mixed.weights,
        mixed.centers + (mean - mixed.mean),
        mixed.variances + wider,
    )


def _mix(draws: Marginals, factor: Tensor) -> Marginals:
    n, q = len(factor), draws.mean.shape[1]
    count = len(draws.mean) // n
    mean, variance = draws.mean.reshape(count, n, q), draws.variance.reshape(count, n, q)
    center, spread = mean.mean(0), mean.var(0, correction=0)
    # Between the draws there are other values: every one of them stands for a part of the spread, and moves to the
    # middle by as much, so that mean and variance stay the same.
    move = ((1.0 - _SMOOTHING) ** 0.5 - 1.0) * (mean - center)
    centers = draws.centers.reshape(-1, count, n, q) + move
    variances = draws.variances.reshape(-1, count, n, q) + (factor - 1.0 + _SMOOTHING) * spread
    weights = torch.repeat_interleave(draws.weights, count) / count
    total = variance.mean(0) + factor * spread  # (M2)
    return Marginals(center, total, weights, centers.reshape(-1, n, q), variances.reshape(-1, n, q))
