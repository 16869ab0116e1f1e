"""Stacking of the experts by held-out rows: the noise of each, the weights of the mixture, and its temperature.

Members are trained to explain their training rows, so their own noise is too small where they over-fit; held-out rows
show by how much. All three steps maximise the density of what ``predict`` returns, the Gaussian with the moments of
the mixture. A few pseudo-rows pull the noise factor and the temperature to one and the weights to equal members,
because small data holds out few rows; and the plain SSGP, without or with learned noise, is used alone unless the
mixture is significantly better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prismgp._types import Array, Indices, Tensor
from prismgp.core.rows import RowNoise, effective_rows

_NOISE_GRID = np.linspace(-3.0, 4.0, 141)  # logarithms of the factor on the noise variance
_COARSE = 10  # of its points that the first look passes over at a time
_NOISE_ROWS = 10.0  # pseudo-rows that pull the factor to one
_WEIGHT_ROWS = 10.0  # pseudo-rows that pull the weights to the prior ones
TEMPERATURE_ROWS = 50.0  # pseudo-rows that pull the temperature to one
_SELECTION_BIAS = 15.0  # of the mean square at held-out rows, times their number
_PLAIN_SHARE = 0.05  # prior weight of the plain SSGP; the members share the rest
_LEAST_WEIGHT = 0.01  # below it an expert is dropped: a wide expert blurs the moments more than it helps
_MOST_CORNERS = 12  # with more experts than this, only the centre is tried: each start costs as many evaluations
_LOG_WEIGHTS = (-12.0, 3.0)  # bounds of the search
MARGIN = 1.0  # standard errors by which the mixture must be better than the plain SSGP
_VARIANT_MARGIN = 0.5  # the same of a less simple variant of an expert


@dataclass(frozen=True)
class HeldOut:
    """Predictions of one expert at the held-out rows, in the model's units, all (m, q)."""

    mean: Array
    variance: Array  # of the function
    noise: Array

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, noise: Tensor) -> HeldOut:
        return cls(mean.cpu().numpy(), variance.cpu().numpy(), noise.cpu().numpy())

    @classmethod
    def join(cls, parts: list[HeldOut]) -> HeldOut:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("mean", "variance", "noise")))

    @property
    def total(self) -> Array:
        return self.variance + self.noise

    def at_rows(self, noise: RowNoise | None) -> HeldOut:
        """The same for targets whose noise differs from row to row (W1); known noise is added to the variance."""
        if noise is None:
            return self
        columns = noise.columns.cpu().numpy()
        weight, known = columns[:, :1], columns[:, 1:].sum(1, keepdims=True)
        return replace(self, variance=self.variance + known / weight, noise=self.noise / weight)


@dataclass(frozen=True)
class Residuals:
    """Standardised residuals of a model at rows that it did not know."""

    values: Array  # (m, q)
    x: Tensor  # these rows, standardised, (m, d)
    row_weights: Array | None  # of these rows, (m,), where rows have any
    chose: bool = True  # whether the model was selected by these rows, so that residuals of new rows are larger


@dataclass(frozen=True)
class Stack:
    """What stacking found."""

    weights: Array  # of the experts, (K,)
    temperature: Array  # the factor on all variances, (q,)
    nlpd: float  # of the held-out rows
    nlpd_by_row: Array  # (m,)


def noise_scale(y: Array, found: HeldOut, row_weights: Array | None = None) -> tuple[Array, float]:
    """Find the factor on the noise variance, (q,), that is best for the held-out rows, and their NLPD with it.

    ``y``, (m, q); a row of weight w, (m,), counts w times.
    """
    count, outputs = len(y) if row_weights is None else row_weights.sum(), np.arange(y.shape[1])

    def evaluate(points: Indices) -> tuple[Array, Array]:
        """NLPD, without and with the penalty, at points of the grid, (k, q)."""
        grid = _NOISE_GRID[points]
        values = normal_nlpd(y, found.mean, found.variance + found.noise * np.exp(grid)[:, None])
        nlpd = values.mean(1) if row_weights is None else np.average(values, 1, row_weights)
        return nlpd, nlpd + 0.5 * _NOISE_ROWS / count * grid**2

    coarse = np.repeat(np.arange(0, len(_NOISE_GRID), _COARSE)[:, None], len(outputs), 1)
    best = coarse[evaluate(coarse)[1].argmin(0), outputs]
    fine = np.clip(best + np.arange(1 - _COARSE, _COARSE)[:, None], 0, len(_NOISE_GRID) - 1)
    nlpd, penalised = evaluate(fine)
    at = penalised.argmin(0), outputs
    return np.exp(_NOISE_GRID[fine[at]]), float(nlpd[at].mean())


def stack(
    y: Array,
    experts: list[HeldOut],
    *,
    simple: int,
    margin: float = MARGIN,
    share: float = _PLAIN_SHARE,
    row_weights: Array | None = None,
) -> Stack:
    """Find the weights that maximise the held-out density of the mixture's moments, then its temperature.

    The simplest expert is used alone, as it is, unless something less simple is significantly better: first each of
    the last experts is compared with the one after it, then the mixture of all with the best of these. ``simple`` says
    how many of the last may be used alone: the plain SSGP, last, and before it the same with learned noise. ``margin``
    is in standard errors by which a gain must exceed what is expected by chance; ``-inf``: the mixture is always used.
    ``share`` is the prior weight of the last expert; the others share the rest. A row of weight w, ``row_weights``
    (m,), counts w times.
    """
    means = np.stack([expert.mean for expert in experts])
    totals = np.stack([expert.total for expert in experts])
    weights = _fit_weights(y, means, totals, share if simple else None, row_weights)
    mean, variance = mixture_moments(weights, means, totals)
    temperature = find_temperature((y - mean) ** 2 / variance, row_weights)
    nlpd = normal_nlpd(y, mean, variance * temperature).sum(1)
    if 0 < simple < len(experts) and margin > -np.inf:
        base, alone = _find_simplest(y, means, totals, simple, margin, row_weights)
        if not is_significant(alone - nlpd, row_weights, fitted=2 * (len(experts) - 1), margin=margin):
            only = (np.arange(len(experts)) == base).astype(np.float64)
            return Stack(only, np.ones_like(temperature), average(alone, row_weights), alone)
    return Stack(weights, temperature, average(nlpd, row_weights), nlpd)


def stack_forward(
    y: Array,
    views: Sequence[Sequence[HeldOut]],
    base: HeldOut,
    *,
    margin: float = MARGIN,
    share: float = _PLAIN_SHARE,
    row_weights: Array | None = None,
) -> tuple[Stack, list[int]]:
    """Begin with one expert alone; others join one by one, the best first, while each is a significant gain.

    With few held-out rows every further expert is a further chance to fit them, so that an expert that adds nothing
    must not take part. Each of the ``views`` to join has variants, the simplest first, one of which takes part: one
    after it must be significantly better. ``margin``, ``share`` and ``row_weights`` are those of :func:`stack`;
    ``-inf``: all views take part. The first to join changes the kind of model and needs the whole margin, those after
    it half of that.

    Also returns which variant of each view was used. The weights are those of the views, and last of ``base``.
    """
    chosen: dict[int, int] = {}  # variants, by the number of the view
    alone = normal_nlpd(y, base.mean, base.total).sum(1)
    found = Stack(np.ones(1), np.ones(y.shape[1]), average(alone, row_weights), alone)
    needed = margin

    def add(k: int, variant: int) -> Stack:
        parts = [*(views[j][v] for j, v in (*chosen.items(), (k, variant))), base]
        return stack(y, parts, simple=1, margin=-np.inf, share=share, row_weights=row_weights)

    def gains(before: Stack, after: Stack, fitted: int, least: float) -> bool:
        return is_significant(before.nlpd_by_row - after.nlpd_by_row, row_weights, fitted=fitted, margin=least)

    def try_view(k: int) -> tuple[Stack, int, int]:
        best, variant = add(k, 0), 0
        for other in range(1, len(views[k])):
            trial = add(k, other)
            if gains(best, trial, 1, _VARIANT_MARGIN):
                best, variant = trial, other
        return best, k, variant

    while left := [k for k in range(len(views)) if k not in chosen]:
        trial, k, variant = min((try_view(k) for k in left), key=lambda each: each[0].nlpd)
        if not gains(found, trial, 2, needed):
            break
        chosen[k] = variant
        found, needed = trial, 0.5 * margin
    weights = np.zeros(len(views) + 1)
    weights[[*chosen, len(views)]] = found.weights
    return replace(found, weights=weights), [chosen.get(k, 0) for k in range(len(views))]


def find_temperature(squares: Array, row_weights: Array | None) -> Array:
    """The factor on all variances, (q,), from squares of standardised residuals, (m, q)."""
    total, count = (squares.sum(0), len(squares)) if row_weights is None else (row_weights @ squares, row_weights.sum())
    return np.asarray((total + TEMPERATURE_ROWS) / (count + TEMPERATURE_ROWS))


def selection_factor(row_weights: Array | None, m: int) -> float:
    """The factor by which variances must be larger than m held-out rows say, which may have weights, (m,).      (Z9)

    They select among the checks of a training, the experts and their neighbours, so that residuals of new rows are
    larger. That is like fitting a few parameters to them: the factor falls as the rows become more.
    """
    rows = m if row_weights is None else effective_rows(row_weights)
    return 1.0 + _SELECTION_BIAS / (rows + TEMPERATURE_ROWS)


def tail_share(row_weights: Array | None, m: int) -> float:
    """The share of the tails that m held-out rows, which may have weights, (m,), cannot rule out.               (Z6)"""
    return 1.0 / ((m if row_weights is None else effective_rows(row_weights)) + 1.0)


def average(values: Array, row_weights: Array | None) -> float:
    """Mean of values of rows, (m,) or (m, q), each row counted as often as its weight says."""
    return float(values.mean() if row_weights is None else np.average(values, 0, row_weights).mean())


def _find_simplest(
    y: Array, means: Array, totals: Array, simple: int, margin: float, row_weights: Array | None
) -> tuple[int, Array]:
    """Find the simplest expert to which no less simple one is significantly superior, and its NLPD by row."""
    base = len(means) - 1
    alone = normal_nlpd(y, means[base], totals[base]).sum(1)
    for k in range(len(means) - 2, len(means) - 1 - simple, -1):
        other = normal_nlpd(y, means[k], totals[k]).sum(1)
        if is_significant(alone - other, row_weights, fitted=2, margin=margin):
            base, alone = k, other
    return base, alone


def is_significant(gains: Array, row_weights: Array | None, *, fitted: int, margin: float = MARGIN) -> bool:
    """Whether gains in log density, row by row, are more than chance.

    Their mean must exceed what so many numbers fitted to these rows gain by themselves (Akaike's correction) by
    ``margin`` standard errors. With few held-out rows, or a function that needs no network, the plain SSGP is used.
    Unequal weights count as the number of equal ones that says as much (Kish).
    """
    n = len(gains)
    if row_weights is not None:
        effective = effective_rows(row_weights)
        mean = np.average(gains, weights=row_weights)
        error = np.sqrt(np.average((gains - mean) ** 2, weights=row_weights) / max(effective - 1.0, 1e-9))
        return n > 1 and bool(mean > fitted / effective + margin * error)
    return n > 1 and bool(gains.mean() > fitted / n + margin * float(gains.std(ddof=1)) / np.sqrt(n))


def mixture_moments(weights: Array, means: Array, variances: Array) -> tuple[Array, Array]:
    """Compute mean and variance of mixtures: weights (K,), the others (K, ...)."""
    mean = np.tensordot(weights, means, 1)
    return mean, np.tensordot(weights, variances + (means - mean) ** 2, 1)


def _fit_weights(y: Array, means: Array, totals: Array, share: float | None, row_weights: Array | None = None) -> Array:
    """The weights of the highest density, (K,), some dropped; ``share``: prior weight of the last, None: as others."""
    count = len(means)
    if count == 1:
        return np.ones(1)
    from scipy.optimize import minimize  # slow to import, and predictions do not need it
    from scipy.special import softmax

    prior = np.full(count, 1.0 / count)
    if share is not None:
        prior = np.append(np.full(count - 1, (1.0 - share) / (count - 1)), share)
    log_prior = np.log(prior)
    values = y.size if row_weights is None else y.shape[1] * row_weights.sum()

    def loss(logits: Array) -> float:
        weights = softmax(logits)
        mean, variance = mixture_moments(weights, means, totals)
        pull = prior @ (log_prior - np.log(np.maximum(weights, 1e-300)))
        level = average(normal_nlpd(y, mean, variance), row_weights)
        return float(level + _WEIGHT_ROWS / values * pull)

    # The density of the moments is not concave in the weights: start at the centre and near every corner.
    corners = range(count if count <= _MOST_CORNERS else 0)
    starts = [log_prior, *(log_prior - 4.0 * (np.arange(count) != k) for k in corners)]
    runs = [minimize(loss, start, method="L-BFGS-B", bounds=[_LOG_WEIGHTS] * count) for start in starts]
    weights = softmax(min(runs, key=lambda run: float(run.fun)).x)
    weights = np.where(weights < np.minimum(_LEAST_WEIGHT, 0.5 * prior), 0.0, weights)
    return np.asarray(weights / weights.sum())


def normal_nlpd(y: Array, mean: Array, variance: Array) -> Array:
    """Negative log density of normals, entry by entry."""
    # One logarithm, unlike core.models, whose rounding moves the weights that the search finds by some 1e-8.
    return np.asarray(0.5 * ((y - mean) ** 2 / variance + np.log(2.0 * np.pi * variance)))
