"""Held-out rows, their predictions by an expert, and whether all rows should count the same in its posterior."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.rows import RowNoise
from prismgp.core.shape import StudentShape
from prismgp.core.statistics import Statistics, accumulate_features
from prismgp.prism.experts import TRUST_DEGREES, Expert, weigh_noise
from prismgp.prism.stacking import HeldOut, average, is_significant, noise_scale, normal_nlpd

_FEATURE_BYTES = 64 * 2**20  # of the features of one chunk


def chunk_rows(width: int) -> int:
    """Rows whose features fill a fixed amount of memory."""
    return int(np.clip(_FEATURE_BYTES // (8 * width), 256, 1 << 15))


@dataclass(frozen=True)
class WeighedStatistics:
    """A pass: statistics of standardised rows and their targets, with the weights that an expert gives the rows."""

    judge: Expert

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> Statistics:  # noqa: ARG002
        return replace(self.judge, judge=self.judge).accumulate(chunks, q)

    def merge(self, first: Statistics, second: Statistics) -> Statistics:
        return first.merge(second)


def weigh_rows(judge: Expert, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Expert, Tensor]:
    """The expert with the posterior of all its rows and targets, weighed by a judge, and the weights, (n,)."""
    trusts = [judge.row_trust(x, y) for x, y in pairs]

    def weigh_chunks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for (x, y), trust in zip(pairs, trusts, strict=True):
            phi, log_noise = judge.map.training_features(x)
            yield phi, weigh_noise(log_noise, trust), y

    stats = accumulate_features(weigh_chunks(), len(judge.noise_scale), float(judge.params.noise[0]))
    return judge.with_statistics(stats, judge=judge), torch.cat(trusts)


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

    def judge(self, expert: Expert, *, scaled: bool = True, without: Expert | None = None) -> Judged:
        """Predict the rows by an expert after removing them from its posterior; scale its noise to fit them.

        ``without`` is the same expert with parameters that have not seen the rows either, where there is one.
        """
        expert = replace(expert, noise_scale=np.ones(self.n_outputs))
        judged = self.meet(without or expert.without(self._pairs(expert), self.n_outputs), scaled=scaled)
        return replace(judged, expert=replace(expert, noise_scale=judged.without.noise_scale))

    def meet(self, expert: Expert, *, scaled: bool = True) -> Judged:
        """Predict the rows by an expert whose posterior does not contain them."""
        expert = replace(expert, noise_scale=np.ones(self.n_outputs))
        found = HeldOut.join([expert.predict_held_out(x) for x, _ in self._pairs(expert)]).at_rows(self.noise)
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

    def are_far(self, judged: Judged) -> bool:
        """Whether a Student's t suits the rows better than the normal distribution, some being far away."""
        std = np.sqrt(judged.found.total)
        student = StudentShape(TRUST_DEGREES).log_density((self.targets - judged.found.mean) / std) - np.log(std)
        return average(self.nlpd(judged.found), self.weights) > average(-student, self.weights)

    def prefer(self, other: Judged, first: Judged) -> bool:
        """Whether the rows are significantly likelier under another expert than under the first."""
        gains = self.nlpd(first.found) - self.nlpd(other.found)
        return is_significant(gains.sum(1), self.weights, fitted=1)
