"""Rows with unknown cells: the prediction is averaged over possible values of the cells.

A cell is unknown if it is missing (NaN), or holds a category that training did not have (infinity). Its values are
taken from training rows: those nearest in the known cells, or, for a new category, which resembles none, any of them.
So the prediction is a mixture. Its mean is that of these rows, and by the law of total variance their spread adds to
its variance (M2).

If the very same cells were missing in many rows of the fit, the model has learned such rows. Held-out rows show whether
its intervals are right for them; if so, new rows like them are predicted as any others, with imputed cells.
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
_FEWEST = 2  # degrees of freedom, at least
_ROUNDING = 1e-6  # of inputs that were standardised in single precision
_LEAST_ROWS = 50  # held-out rows that miss the same cells, to say whether their intervals are right
_EQUALLY_NEAR, _TINY = 1e-9, 1e-290  # relative to the largest of the numbers, and the least of these


def by_rows(x: AnyArray, known: Compute, unknown: Compute, *, step: int) -> tuple[Array, ...]:
    """Apply ``known`` to complete rows and ``unknown`` to rows with unknown cells, at most ``step`` of these at a time.

    There must be rows with unknown cells.
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

    No prediction depends on these cells, so they add nothing to the variance.
    """
    gaps = ~np.isfinite(x[:, : len(ignored)]) & ignored
    if not gaps.any():
        return x
    x = np.array(x)
    rows, columns = np.nonzero(gaps)
    x[rows, columns] = typical[columns]
    return x


@dataclass(frozen=True)
class KnownGaps:
    """Patterns of missing cells that training covered, and the ranges of the other inputs there.

    Rows with such a pattern are predicted with imputed cells, as any other row.
    """

    cells: AnyArray  # which inputs are missing in each pattern, (k, d)
    low: Array  # least and largest values of the other inputs in the held-out rows with the pattern, (k, d)
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


def find_known_gaps(seen: Residuals | None, units: Standardiser, encoder: TableEncoder | None) -> KnownGaps | None:
    """Find the patterns of missing cells that need no average; None where there are none.

    ``seen`` are residuals at held-out rows, in which missing cells are imputed. At least 50 of them must miss just
    these cells, and their mean square must not exceed one by more than its standard error. Inputs that the model
    ignores do not count.
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
        if own.sum() < _LEAST_ROWS or not cells.any():
            continue
        squares = np.square(seen.values[own])
        if (squares.mean(0) <= 1.0 + squares.std(0, ddof=1) / np.sqrt(len(squares))).all():
            low, high = x[own].min(0), x[own].max(0)
            rounding = _ROUNDING * (units.x_scale + np.abs(units.x_shift) + np.maximum(np.abs(low), np.abs(high)))
            low, high = np.where(ignored, -anything, low - rounding), np.where(ignored, anything, high + rounding)
            found.append((cells, low, high))
    return KnownGaps(*(np.stack(each) for each in zip(*found, strict=True))) if found else None


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
    # If training had missing cells too, the mean is that of the imputed row, with its indicator. The possible values of
    # the cell add to the spread, without the indicator.
    learned = by_rows(
        encoder.impute(x),
        lambda rows: moments(predict(rows)),
        lambda rows: moments(average_draws(*draw(rows))),  # these have new categories too
        step=len(x),
    )
    return average_draws(*draw(encoder.forget_indicators(x)), learned)


def fill_from(x: AnyArray, background: Array, scale: Array) -> tuple[Array, Array]:
    """Rows, (n, d), with unknown cells replaced in turn by those of background rows, (draws, n, d).

    Missing cells take those of the nearest rows, by the distance of the cells that are known in units of ``scale``,
    (d,). Also returns the factor on the spread of the draws, (n,): the cell is one more draw, and a new category is one
    more level beside the known ones, of which there may be few.
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
    factor = np.full(len(x), _new_draw_factor(draws))
    if new.any():
        filled = np.where(new, background[anywhere][:, None, :], filled)
        patterns, which = np.unique(new, axis=0, return_inverse=True)
        for index, pattern in enumerate(patterns):
            if pattern.any():
                distinct = len(np.unique(background[:, pattern], axis=0))
                factor[which.ravel() == index] = _new_level_factor(min(distinct, draws))
    return filled, factor


def _new_draw_factor(count: int) -> float:
    """Mean squared distance of one more value from the mean of ``count``, over the mean square of their deviations.

    It is (J + 1) / (J - 1) for J independent values of one distribution.
    """
    degrees = max(count - 1, 1)
    return (degrees + 2) / degrees


def _new_level_factor(levels: int) -> float:
    """Return the same factor for a new level beside this number of levels, for intervals of 95%.

    These are as those of Student's t: the exponential is the squared ratio of its quantile to the normal one, within a
    per cent.
    """
    degrees = max(levels - 1, _FEWEST)
    return float(_new_draw_factor(degrees + 1) * np.exp(2.4 / degrees + 1.55 / degrees**2))


def average_draws(draws: Marginals, factor: Array, learned: tuple[Array, ...] | None = None) -> Marginals:
    """Mix the predictions at several draws of each row, which come draw by draw (M2).

    ``factor`` multiplies the spread of the draws, (n,). ``learned``: mean and variance, (n, q), that the
    model has learned for rows in which the cell is missing. Then the mixture is moved to that mean, and is never
    narrower.
    """
    mixed = _mix(draws, torch.as_tensor(factor).to(draws.mean)[:, None])
    if learned is None:
        return mixed
    mean, variance = (torch.as_tensor(each).to(mixed.mean) for each in learned)
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
    # Smoothed, as the cell may have values between the draws: every draw gets a part of the spread as variance, and is
    # moved to the centre, so that mean and variance stay the same.
    move = ((1.0 - _SMOOTHING) ** 0.5 - 1.0) * (mean - center)
    centers = draws.centers.reshape(-1, count, n, q) + move
    variances = draws.variances.reshape(-1, count, n, q) + (factor - 1.0 + _SMOOTHING) * spread
    weights = torch.repeat_interleave(draws.weights, count) / count
    total = variance.mean(0) + factor * spread  # (M2)
    return Marginals(center, total, weights, centers.reshape(-1, n, q), variances.reshape(-1, n, q))
