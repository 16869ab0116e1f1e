"""Held-out rows: their predictions by experts, and what these decide.

They say how noisy an expert is, and whether all rows should count the same in its posterior (W3). Where rows are few,
the plain SSGP is also learned without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from prismgp._types import Array, Indices, Tensor
from prismgp.context import FitContext
from prismgp.core.models import standardise
from prismgp.core.numerics import Hashes
from prismgp.core.parallel import Workers
from prismgp.core.rows import Callback, RowNoise
from prismgp.core.shape import StudentShape
from prismgp.core.statistics import Statistics, accumulate_features
from prismgp.data import Source, StandardisedRows
from prismgp.prism.experts import ROBUST_DEGREES, Expert, weight_noise
from prismgp.prism.maps import chunk_rows
from prismgp.prism.stacking import (
    HeldOut,
    Residuals,
    average,
    find_temperature,
    is_significant,
    noise_scale,
    normal_nlpd,
)
from prismgp.prism.training_rows import MOST_COPIED

Refit = Callable[[StandardisedRows, Callback], Expert]

# With more rows than the first, only the held-out ones are predicted so; with more than the second, parameters no
# longer follow single rows.
_FOLDED_ROWS, MOST_ROWS = 2_000, 10_000
_FOLDS = 5  # the held-out rows and four parts of the others
_FARTHEST = 10.0  # standard deviations; larger residuals are clipped to this, as no factor can explain them


@dataclass(frozen=True)
class WeightedStatistics:
    """A pass: statistics of standardised rows and their targets, with the weights that an expert gives the rows."""

    weighted_by: Expert

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> Statistics:  # noqa: ARG002
        return replace(self.weighted_by, weighted_by=self.weighted_by).accumulate(chunks, q)

    def merge(self, first: Statistics, second: Statistics) -> Statistics:
        return first.merge(second)


def weight_rows(expert: Expert, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Expert, Tensor]:
    """The expert with the posterior of all its rows and targets, weighted by its own residuals; the weights, (n,)."""
    weights = [expert.robust_weights(x, y) for x, y in pairs]

    def weight_chunks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for (x, y), own in zip(pairs, weights, strict=True):
            phi, log_noise = expert.map.training_features(x)
            yield phi, weight_noise(log_noise, own), y

    stats = accumulate_features(weight_chunks(), len(expert.noise_scale), float(expert.params.noise[0]))
    return expert.with_statistics(stats, weighted_by=expert), torch.cat(weights)


@dataclass(frozen=True)
class Judged:
    """An expert, the same expert without the held-out rows in its posterior, and its predictions of these rows."""

    expert: Expert
    without: Expert
    found: HeldOut


@dataclass(frozen=True)
class HeldOutRows:
    """Held-out rows, standardised, and their targets, (m, q), with the noise columns of the rows behind them."""

    x: Tensor
    y: Tensor
    n_outputs: int

    @property
    def noise(self) -> RowNoise | None:
        """Of the rows, where they differ."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[Tensor, RowNoise | None]:
        return RowNoise.split(self.y, self.n_outputs)

    @cached_property
    def targets(self) -> Array:
        return np.asarray(self._split[0].cpu().numpy())

    @cached_property
    def weights(self) -> Array | None:
        """Of the rows, (m,), where they have any."""
        return None if self.noise is None else np.asarray(self.noise.weight.cpu().numpy())

    def predict_without(self, expert: Expert, *, scaled: bool = True, without: Expert | None = None) -> Judged:
        """Predict the rows by an expert after removing them from its posterior; scale its noise to fit them.

        ``without`` is the same expert with parameters that have not seen the rows either, where there is one.
        """
        expert = replace(expert, noise_scale=np.ones(self.n_outputs))
        judged = self.predict_by(without or expert.without(self._pairs(expert), self.n_outputs), scaled=scaled)
        return replace(judged, expert=replace(expert, noise_scale=judged.without.noise_scale))

    def predict_by(self, expert: Expert, *, scaled: bool = True) -> Judged:
        """Predict the rows by an expert whose posterior does not contain them."""
        expert = replace(expert, noise_scale=np.ones(self.n_outputs))
        parts = []
        for x, _ in self._pairs(expert):
            mean, variance, noise = expert.predict(x, variance=True)
            assert variance is not None
            parts.append(HeldOut.of(mean, variance, noise))
        found = HeldOut.join(parts).at_rows(self.noise)
        if scaled:
            scale, found = self.scale(found)
            expert = replace(expert, noise_scale=scale)
        return Judged(expert, expert, found)

    def scale(self, found: HeldOut) -> tuple[Array, HeldOut]:
        """The factor on the noise, (q,), that suits the rows best, and predictions with it."""
        scale, _ = noise_scale(self.targets, found, self.weights)
        return scale, replace(found, noise=found.noise * scale)

    def _pairs(self, expert: Expert) -> list[tuple[Tensor, Tensor]]:
        step = chunk_rows(expert.statistics.width)
        return [(self.x[start : start + step], self.y[start : start + step]) for start in range(0, len(self.x), step)]

    def nlpd(self, found: HeldOut) -> Array:
        """Of each row and output under normal distributions, (m, q)."""
        return normal_nlpd(self.targets, found.mean, found.total)

    def have_outliers(self, judged: Judged) -> bool:
        """Whether a Student's t distribution suits the residuals better than the normal one."""
        std = np.sqrt(judged.found.total)
        student = StudentShape(ROBUST_DEGREES).log_density((self.targets - judged.found.mean) / std) - np.log(std)
        return average(self.nlpd(judged.found), self.weights) > average(-student, self.weights)

    def prefer(self, other: Judged, first: Judged) -> bool:
        """Whether the rows are significantly likelier under another expert than under the first."""
        gains = self.nlpd(first.found) - self.nlpd(other.found)
        return is_significant(gains.sum(1), self.weights, fitted=1)


def held_out_rows_of(rows: StandardisedRows, source: Source, index: Indices) -> HeldOutRows:
    """Some rows of a source, in the model's units."""
    held, s = source.take(index), rows.standardiser
    x = standardise(held.x, s.x_shift, s.x_scale, dtype=rows.dtype, device=rows.device)
    y = standardise(held.y, *s.target_units(held.n_noise), dtype=torch.float64, device=rows.device)
    return HeldOutRows(x, y, rows.n_outputs)


# -- the plain SSGP without the held-out rows ------------------------------------------------------------

# Length-scales, frequencies and noise of highest evidence follow the rows they were learned from, the more so the more
# inputs there are, so that errors at new rows are larger than they should be: of 886 rows of 25 columns, mostly text,
# the mean square of the standardised residuals of new rows was 1.9. Leaving a row out of the posterior alone does not
# show it. Here other parameters are learned without the rows.


@dataclass(frozen=True)
class CrossFit:
    """Residuals of plain SSGPs at rows left out of their fits, and experts corrected by these."""

    plain: Expert  # of all rows, with corrected variances
    without: Expert  # of the rows that are not held out, likewise
    residuals: Residuals  # of all rows left out, standardised by the corrected variances


def cross_fit(
    plain: Expert,
    rows: StandardisedRows,
    sample: Source,
    held_out: Indices,
    hashes: Hashes,
    refit: Refit,
    rng: np.random.Generator,
    context: FitContext,
) -> CrossFit | None:
    """Fit the plain SSGP without the held-out rows, and where all rows are few also without each part of the others.

    ``sample`` are all rows, and ``hashes`` numbers that are the same for rows with the same inputs, (n,), which stay
    together. None where most rows have copies, and where the fit ends before that is done.
    """
    _, group, sizes = np.unique(hashes, return_inverse=True, return_counts=True)
    if (sizes[group] > 1).mean() > MOST_COPIED:
        return None
    parts = [held_out, *(_split(held_out, group, rng) if rows.n_rows <= _FOLDED_ROWS else [])]
    context.bar.total = len(parts)

    def fit_others(number: int) -> Expert:
        others = np.setdiff1d(np.arange(rows.n_rows), parts[number])
        expert = refit(replace(rows, source=sample.take(others)), context.part(f"fold {number}"))
        context.bar.update()
        return expert

    with Workers(wanted=rows.device.type == "cpu") as workers:
        experts = workers.map(fit_others, range(len(parts)))
    if context.ending.early:
        return None
    examples = [held_out_rows_of(rows, sample, part) for part in parts]
    found = [each.predict_by(expert, scaled=False).found for each, expert in zip(examples, experts, strict=True)]
    together, targets = HeldOut.join(found), np.concatenate([each.targets for each in examples])
    weights = None if examples[0].weights is None else np.concatenate([each.weights for each in examples])
    residuals = (targets - together.mean) / np.sqrt(together.total)
    factor = find_temperature(np.minimum(residuals**2, _FARTHEST**2), weights)
    return CrossFit(
        plain.with_variances_times(factor),
        experts[0].with_variances_times(factor),
        Residuals(residuals / np.sqrt(factor), torch.cat([each.x for each in examples]), weights, chose=False),
    )


def _split(held_out: Indices, group: Indices, rng: np.random.Generator) -> list[Indices]:
    """Split the other rows into parts of about the same size; rows of the same group, (n,), stay together."""
    others = np.setdiff1d(np.arange(len(group)), held_out)
    kinds = rng.permutation(np.unique(group[others]))
    return [others[np.isin(group[others], part)] for part in np.array_split(kinds, _FOLDS - 1) if len(part)]
