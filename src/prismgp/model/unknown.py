"""Rows with unknown cells: the prediction is averaged over what the cells may be.

A cell is unknown if it is missing, or holds a category that training did not have. Its values are taken from training
rows that resemble the row in all that is known of it, so the prediction is a mixture: its mean is that of the rows like
it, and by the law of total variance their spread adds to its variance (U1).
"""

from __future__ import annotations

import numpy as np
import torch

from prismgp._types import AnyArray, Array
from prismgp.core.normal import Marginals
from prismgp.data import Source, TableEncoder

BACKGROUND_ROWS = 512
DRAWS = 24  # rows of the background that an unknown cell takes its values from


def draw_background(source: Source, encoder: TableEncoder | None) -> Array:
    """A random sample of the rows of a fit, (m, d), in which no cell is missing.

    Missing numbers are replaced by those of other rows, so that the sample has what they may have been.
    """
    size = min(source.n_rows, BACKGROUND_ROWS)
    x = np.array(source.subsamples([size], np.random.default_rng(0))[0].x, dtype=np.float64)
    for indicator in np.unique(encoder.indicators) if encoder is not None else ():
        known = np.flatnonzero(x[:, indicator] == 0.0)
        if indicator < 0 or not len(known):
            continue
        own = np.flatnonzero(encoder.indicators == indicator) if encoder is not None else np.empty(0, np.intp)
        missing = np.flatnonzero(x[:, indicator] != 0.0)
        donors = known[np.arange(len(missing)) % len(known)]
        x[np.ix_(missing, own)] = x[np.ix_(donors, own)]
        x[missing, indicator] = 0.0
    return x


def fill_from(x: AnyArray, background: Array, scale: Array) -> Array:
    """Rows, (n, d), with NaN replaced in turn by the values of the nearest background rows: (draws, n, d).

    Distances are those of the cells that are known, in units of ``scale``, (d,).
    """
    known = ~np.isnan(x)
    rows = np.where(known, x, 0.0) / scale
    others = background / scale
    # |x - b|^2 over the known cells alone, without an array of n m d numbers.
    distances = np.square(rows).sum(1)[:, None] - 2.0 * rows @ others.T + known @ np.square(others).T
    draws = min(DRAWS, len(background))
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :draws].T
    return np.where(known, x, background[nearest])


def average(draws: Marginals, count: int, anchor: Marginals | None = None) -> Marginals:
    """The mixture of the predictions at ``count`` draws of each row, which come draw by draw (U1).

    ``anchor``: what training taught of rows in which the cell is missing, also draw by draw. Then the mixture is moved
    to its mean, and is never narrower than it.
    """
    mixed = _mix(draws, count)
    if anchor is None:
        return mixed
    learned = _mix(anchor, count)
    wider = (learned.variance - mixed.variance).clamp(min=0.0)
    return Marginals(
        learned.mean,
        mixed.variance + wider,
        mixed.weights,
        mixed.centers + (learned.mean - mixed.mean),
        mixed.variances + wider,
    )


def _mix(draws: Marginals, count: int) -> Marginals:
    n, q = draws.mean.shape[0] // count, draws.mean.shape[1]
    mean, variance = draws.mean.reshape(count, n, q), draws.variance.reshape(count, n, q)
    centers, variances = (each.reshape(-1, n, q) for each in (draws.centers, draws.variances))
    weights = torch.repeat_interleave(draws.weights, count) / count
    total = variance.mean(0) + mean.var(0, correction=0)  # (U1)
    return Marginals(mean.mean(0), total, weights, centers, variances)
