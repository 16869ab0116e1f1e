"""Experts, which are features with the exact posterior of their weights on all rows; and the mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.features import WeightPosterior
from prismgp.core.kernels import Parameters
from prismgp.core.models import Marginals, Predictor, SpectralModel, drop_matrices, normal_log_density, rows_to_predict
from prismgp.core.numerics import Factor
from prismgp.core.process import Functions
from prismgp.core.rows import RowNoise
from prismgp.core.statistics import Statistics, accumulate_features, solve_outputs
from prismgp.data import StandardisedRows
from prismgp.prism.maps import FeatureMap, InformedMap, MapStatistics, PlainMap, ReconfiguredMap, RevisedMap

ROBUST_DEGREES = 3.0  # of the Student's t distribution assumed when residuals have outliers
_LEAST_NOISE_SHARE = 1e-6  # of the noise that a row's own variance leaves, below which rounding decides


@dataclass(frozen=True)
class Expert:
    """A feature map and the posterior of its weights."""

    name: str
    map: FeatureMap
    params: Parameters
    statistics: Statistics  # of the rows the posterior is about
    posterior: WeightPosterior
    noise_scale: Array  # (q,), factor on the noise variance at prediction, from held-out rows
    log_evidence: float
    factors: tuple[Factor, ...]  # how the factorisations went; the matrices are in the posterior
    # The expert whose residuals weighted the rows of this posterior (W3); None: all of them count the same.
    weighted_by: Expert | None = None

    @classmethod
    def of(cls, name: str, feature_map: FeatureMap, params: Parameters, statistics: Statistics) -> Expert:
        """The expert whose posterior these statistics give."""
        solved = solve_outputs(statistics, params)
        return cls(
            name,
            feature_map,
            params,
            statistics,
            WeightPosterior.from_evidence(solved, device=statistics.moments.device),
            np.ones(len(params.mean)),
            sum(out.log_evidence for out in solved),
            drop_matrices([out.factor for out in solved]),
        )

    @classmethod
    def plain(cls, model: SpectralModel, *, dtype: torch.dtype, device: torch.device) -> Expert:
        """A fitted sparse spectrum GP as an expert; nothing is solved again."""
        return cls(
            "ssgp",
            PlainMap.of(model.base, model.params, dtype=dtype),
            model.params,
            model.blocks[0],
            model.posterior.blocks[0],
            np.ones(len(model.params.mean)),
            model.log_evidence,
            model.factors,
        ).to(device)

    def with_noise_of(self, network: RevisedMap, x: Tensor) -> Expert:
        """This plain expert with the noise of a network, whose average at rows x is to be this expert's."""
        assert isinstance(self.map, PlainMap)
        log_noise = network.relative_noise(x)
        assert log_noise is not None
        level = float(torch.logsumexp(log_noise.double(), 0)) - math.log(len(x))
        return replace(self, name=f"{self.name} with learned noise", map=InformedMap(self.map, network, level))

    def with_variances_times(self, factor: Array) -> Expert:
        """The same means, and all variances times a factor, (q,)."""
        change = np.log(factor)
        params = replace(
            self.params, log_signal=self.params.log_signal + change, log_noise=self.params.log_noise + change
        )
        return Expert.of(self.name, self.map, params, self.statistics)

    def with_statistics(self, statistics: Statistics, *, weighted_by: Expert | None = None) -> Expert:
        """The same expert with the posterior of other rows."""
        solved = Expert.of(self.name, self.map, self.params, statistics)
        return replace(solved, noise_scale=self.noise_scale, weighted_by=weighted_by)

    def robust_weights(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute weights of rows of the posterior, (n,): rows far from what the others predict for them count less.

        ``w = min(1, (t + 1) / (t + z^2))``, z the standardised leave-one-out residual and t the degrees of freedom of a
        Student's t: one step of its likelihood's maximisation by weights (Lange, Little and Taylor, 1989).  (W3)
        """
        mean, variance, noise = self.leave_one_out(x, y)
        targets, rows = RowNoise.split(y, mean.shape[1])
        if rows is not None:
            log_noise = self.map.training_features(x)[1]
            noise = _row_noise(self.params.noise * self.noise_scale, log_noise, rows, mean)
        square = ((targets - mean).square() / (variance + noise)).mean(1)
        return ((ROBUST_DEGREES + 1.0) / (ROBUST_DEGREES + square)).clamp(max=1.0)

    def _training_features(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features and logarithms of the relative noise of rows in training, with their weights."""
        phi, log_noise = self.map.training_features(x)
        if self.weighted_by is not None:
            log_noise = weight_noise(log_noise, self.weighted_by.robust_weights(x, y))
        return phi, log_noise

    def accumulate(self, chunks: Iterable[tuple[Tensor, Tensor]], q: int) -> Statistics:
        """Statistics of more rows under this expert's features."""
        noise = float(self.params.noise[0])
        return accumulate_features(((*self._training_features(x, y), y) for x, y in chunks), q, noise)

    def without(self, chunks: Iterable[tuple[Tensor, Tensor]], q: int) -> Expert:
        """The same expert with the posterior of its other rows."""
        return self.with_statistics(self.statistics.without(self.accumulate(chunks, q)), weighted_by=self.weighted_by)

    def to(self, device: torch.device) -> Expert:
        moved = replace(self.statistics, moments=self.statistics.moments.to(device))
        weighted_by = None if self.weighted_by is None else self.weighted_by.to(device)
        return replace(
            self,
            map=self.map.to(device),
            posterior=self.posterior.to(device),
            statistics=moved,
            weighted_by=weighted_by,
        )

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Mean, variance of the function and noise variance, (..., n, q) in float64, in the model's units."""
        phi, log_noise = _of_batches(self.map.features, x)
        mean, spread = self.posterior.predict(phi, variance=variance)
        return mean, spread, _noise(self.params.noise * self.noise_scale, log_noise, mean)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None) -> Expert:
        """With the posterior given more targets, (..., n, q); statistics and evidence stay those of the fit."""
        phi, log_noise = _of_batches(self.map.training_features, x)
        if noise is None:
            noise = _noise(self.params.noise, log_noise, y)
        return replace(self, posterior=self.posterior.condition(phi, y, noise), weighted_by=None)

    def leave_one_out(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As :meth:`predict`, at rows of the posterior with targets y, (n, q), each without its own row (L3).

        Behind the targets there may be the noise columns of the rows.
        """
        mean, variance, noise = self.predict(x, variance=True)
        assert variance is not None
        log_noise = self._training_features(x, y)[1]
        known = _noise(self.params.noise, log_noise, mean)
        y, rows = RowNoise.split(y, mean.shape[1])
        if rows is not None:
            known = _row_noise(self.params.noise, log_noise, rows, mean)
        # In exact arithmetic the variance is below the noise.
        grow = known / (known - torch.minimum(variance, (1.0 - _LEAST_NOISE_SHARE) * known))
        return y - (y - mean) * grow, variance * grow, noise

    def functions(self, x: Tensor, weights: Tensor) -> Tensor:
        """Values at x of functions with the given weights, (k, q, s): (n, q, s)."""
        phi = self.map.features(x)[0].double()
        values: Tensor = torch.tensordot(phi, weights.to(phi), dims=1)
        return values + self.posterior.mean[:, None]

    def covariance(self, x: Tensor) -> Tensor:
        """Of the function, (..., n, n, q)."""
        return self.posterior.covariance(_of_batches(self.map.features, x)[0])


def _of_batches(features: Callable[[Tensor], tuple[Tensor, Tensor | None]], x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features and relative noise of batches of rows, (..., n, d)."""
    phi, log_noise = features(x.reshape(-1, x.shape[-1]))
    return phi.reshape(*x.shape[:-1], -1), None if log_noise is None else log_noise.reshape(x.shape[:-1])


def _noise(level: Array, log_noise: Tensor | None, like: Tensor) -> Tensor:
    """Noise variances of rows, (..., n, q), from their levels, (q,), and logarithms of their factors, (..., n)."""
    levels = torch.as_tensor(level).to(like)
    if log_noise is not None:
        levels = levels * log_noise.double().exp()[..., None]
    # Not broadcast_shapes, which loads SymPy, 0.4 s; NumPy's fixes the number of rows of an exported program.
    noise: Tensor = torch.broadcast_tensors(levels, like)[0]  # type: ignore[no-untyped-call] # of torch
    return noise


def weight_noise(log_noise: Tensor | None, weights: Tensor) -> Tensor:
    """Logarithms of the relative noise of rows with weights, both (n,); None: the rows differ in their weights only."""
    return -weights.log() if log_noise is None else log_noise.double() - weights.log()


def _row_noise(level: Array, log_noise: Tensor | None, rows: RowNoise, like: Tensor) -> Tensor:
    """The same of rows that have weights or known variances (W1)."""
    return _noise(level, rows.log_relative(float(level[0]), log_noise), like)


def combine_moments(
    found: Sequence[tuple[Tensor, Tensor | None, Tensor]], weights: Array, temperature: Array
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Mean, variance of the function if its parts have one, and noise of a mixture; variances times a temperature."""
    means = torch.stack([mean for mean, _, _ in found])
    shares, factor = torch.as_tensor(weights).to(means), torch.as_tensor(temperature).to(means)
    mean = torch.tensordot(shares, means, 1)
    noise = factor * torch.tensordot(shares, torch.stack([each for _, _, each in found]), 1)
    variances = [each for _, each, _ in found if each is not None]
    if not variances:
        return mean, None, noise
    return mean, factor * torch.tensordot(shares, torch.stack(variances) + (means - mean).square(), 1), noise


def combine_covariances(
    means: Sequence[Tensor], covariances: Iterable[Tensor], weights: Array, temperature: Array
) -> Tensor:
    """Joint covariance of the function of a mixture, (..., n, n, q), from means and covariances of its parts."""
    stacked = torch.stack(list(means))
    shares, factor = torch.as_tensor(weights).to(stacked), torch.as_tensor(temperature).to(stacked)
    away = stacked - torch.tensordot(shares, stacked, 1)
    total = torch.einsum("k,k...iq,k...jq->...ijq", shares, away, away)
    for share, covariance in zip(shares, covariances, strict=True):
        total = total + share * covariance
    return total * factor


@dataclass(frozen=True)
class Mixture(Predictor):
    """Experts with weights; predicts by the moments of the mixture, all variances times a temperature."""

    experts: tuple[Expert, ...]  # those of weight above zero
    weights: Array  # (K,)
    temperature: Array  # (q,)

    @classmethod
    def from_expert(cls, expert: Expert) -> Mixture:
        """One expert with all the weight."""
        return cls((expert,), np.ones(1), np.ones(len(expert.params.mean)))

    @property
    def leader(self) -> Expert:
        """The expert of the largest weight, whose parameters are reported."""
        return self.experts[int(self.weights.argmax())]

    @property
    def params(self) -> Parameters:  # type: ignore[override]
        return self.leader.params

    @property
    def log_evidence(self) -> float:  # type: ignore[override]
        return self.leader.log_evidence

    @property
    def factors(self) -> tuple[Factor, ...]:  # type: ignore[override]
        return tuple(factor for expert in self.experts for factor in expert.factors)

    @property
    def n_rows(self) -> int:
        return self.leader.statistics.n

    @property
    def frequencies(self) -> Array:
        feature_map = self.leader.map
        if isinstance(feature_map, ReconfiguredMap | InformedMap):
            feature_map = feature_map.plain
        if isinstance(feature_map, PlainMap):
            return feature_map.w.double().cpu().numpy().T * self.params.lengthscale
        assert isinstance(feature_map, RevisedMap)
        return np.asarray(feature_map.frequencies.double().cpu().numpy())

    @property
    def noise_level(self) -> Array:
        return self.params.noise * self.leader.noise_scale

    def kernel_input_scale(self, input_scale: Array) -> Array:
        """Latent columns come first, in latent units, then the inputs."""
        if isinstance(self.leader.map, ReconfiguredMap):
            return np.asarray(self.leader.map.scale.cpu().numpy())
        return np.append(np.ones(len(self.params.log_lengthscale) - len(input_scale)), input_scale)

    def status(self) -> dict[str, Any]:
        return {"temperature": self.temperature.tolist()}

    def update(self, rows: StandardisedRows) -> Mixture:  # type: ignore[override]
        chunks = rows.chunks_of(rows.chunk_rows or self.prediction_rows(rows.device))
        experts = []
        for expert in self.to(rows.device).experts:
            new = chunks.reduce(MapStatistics(expert.map, float(expert.params.noise[0])))
            experts.append(expert.with_statistics(expert.statistics.merge(new)))
        return replace(self, experts=tuple(experts))

    def to(self, device: torch.device) -> Mixture:
        return replace(self, experts=tuple(expert.to(device) for expert in self.experts))

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Mean, variance of the function and noise variance, (..., n, q), in the model's units."""
        return self.combine([expert.predict(x, variance=variance) for expert in self.experts])

    def combine(self, found: Sequence[tuple[Tensor, Tensor | None, Tensor]]) -> tuple[Tensor, Tensor | None, Tensor]:
        """The same from the predictions of the experts."""
        return combine_moments(found, self.weights, self.temperature)

    def prediction_rows(self, device: torch.device) -> int:
        """Rows to predict at a time."""
        return rows_to_predict(max(expert.statistics.width for expert in self.experts), device)

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the function under the mixture, (..., n, n, q)."""
        means = [expert.predict(x, variance=False)[0] for expert in self.experts]
        covariances = (expert.covariance(x) for expert in self.experts)
        return combine_covariances(means, covariances, self.weights, self.temperature)

    def marginals(self, x: Tensor, *, include_noise: bool = True) -> Marginals:
        """The mixture itself, output by output (Z1).

        The temperature stretches every expert about the common mean, so that the moments are those of
        :meth:`predict`.
        """
        weights, temperature = self._tensors(x)
        found = [expert.predict(x, variance=True) for expert in self.experts]
        mean, variance, noise = self.combine(found)
        assert variance is not None
        centers = mean + temperature.sqrt() * (torch.stack([each for each, _, _ in found]) - mean)
        inner = [each + own if include_noise else each for _, each, own in found if each is not None]
        total = variance + noise if include_noise else variance
        return Marginals(mean, total, weights, centers, temperature * torch.stack(inner))

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density of targets y, (n, q), under the mixture itself: (n,). Outputs share the expert that made them."""
        parts = self.marginals(x)
        logs = normal_log_density(y, parts.centers, parts.variances).sum(2)
        return torch.logsumexp(logs + parts.weights.log()[:, None], 0)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Mixture:
        """The same as :meth:`update`, in batches: every expert is given the targets, their weights stay."""
        return replace(self, experts=tuple(expert.condition(x, y, noise) for expert in self.experts))

    def to_float64(self) -> Mixture:
        return replace(self, experts=tuple(replace(expert, map=expert.map.to_float64()) for expert in self.experts))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the mixture, which take rows, (n, d), and return values, (n, q, count).

        Each function is one expert's. The draws do not depend on the rows, and the first functions not on how
        many are drawn.
        """
        owners, drawn = np.empty(count, dtype=np.int64), []
        for s in range(count):
            owners[s] = rng.choice(len(self.weights), p=self.weights)
            drawn.append(self.experts[owners[s]].posterior.draw_weights(1, rng))
        groups = [(k, np.flatnonzero(owners == k)) for k in np.unique(owners)]
        weights = {k: torch.cat([drawn[s] for s in own], 2) for k, own in groups}

        def functions(x: Tensor) -> Tensor:
            mean = self.predict(x, variance=False)[0][:, :, None]
            values = mean.new_empty(*mean.shape[:2], count)
            for k, own in groups:
                values[:, :, torch.as_tensor(own, device=x.device)] = self.experts[k].functions(x, weights[k])
            return mean + self._tensors(x)[1].sqrt()[:, None] * (values - mean)

        return functions

    def _tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and temperature on the device of x."""
        return torch.as_tensor(self.weights, device=x.device), torch.as_tensor(self.temperature, device=x.device)
