"""Fitted models in their own units: standardised inputs and targets, tensors in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.evidence import BlockEvidence
from prismgp.core.exact import ExactEvidence, ExactPosterior
from prismgp.core.features import Gating, Statistics, limit_inputs, projection, spectral_features
from prismgp.core.gating import GateLabels
from prismgp.core.kernels import Parameters
from prismgp.core.normal import Marginals
from prismgp.core.numerics import Factor, factor
from prismgp.core.posterior import BlockPosterior, WeightPosterior, solve_outputs
from prismgp.core.process import ConditionedProcess, Functions, Joint, Process
from prismgp.core.rows import Rows

PREDICTION_ROWS = 2_048
# Most rows of a chunk, and bytes of its features: a processor's cache holds them, and few do not keep a GPU busy.
_CHUNKS = {"cpu": (PREDICTION_ROWS, 2**22), "cuda": (2**15, 2**28)}


def rows_to_predict(width: int, device: torch.device) -> int:
    """Rows of this many features for one chunk: a power of two, which divides larger ones that others may use."""
    most_rows, most_bytes = _CHUNKS[device.type]
    most = min(max(most_bytes // (8 * width), 64), most_rows)
    return 1 << (most.bit_length() - 1)


class Predictor(ABC):
    """A fitted model in its own units."""

    params: Parameters
    log_evidence: float
    factors: tuple[Factor, ...]  # how the factorisations went
    limits: Tensor | None = None  # of the inputs, (2, d), see :mod:`prismgp.core.features`

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Rows behind the posterior."""

    @abstractmethod
    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Mean, variance of the function (None unless asked for) and noise variance, all (..., n, q)."""

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the function, (..., n, n, q)."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the posterior, which take rows, (n, d), and return values, (n, q, count)."""

    def sample(self, chunks: Iterable[Tensor], count: int, rng: np.random.Generator) -> Array:
        """Functions drawn from the posterior at all rows of the chunks, (n, q, count)."""
        functions = self.draw(count, rng)
        return np.concatenate([functions(x).cpu().numpy() for x in chunks])

    def joint(self, x: Tensor) -> Joint:
        """Mean, (..., n, q), covariance of the function, (..., n, n, q), and noise variance, (..., n, q)."""
        mean, _, noise = self.predict(x, variance=False)
        return mean, self.covariance(x), noise

    @abstractmethod
    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Process:
        """The process given more targets, see :class:`prismgp.core.process.Process`."""

    def precise(self) -> Self:
        """The same model with networks in float64, whose weights need no gradients: for derivatives by the inputs."""
        return self

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """The same model on another device."""

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        """Rows to predict at a time, to bound the memory."""
        return PREDICTION_ROWS

    def marginals(self, x: Tensor, *, include_noise: bool = True) -> Marginals:
        """The distribution of a new observation, or without noise of the function, output by output."""
        mean, variance, noise = self.predict(x, variance=True)
        assert variance is not None
        return Marginals.normal(mean, variance + noise if include_noise else variance)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density of targets y, (n, q), summed over outputs: (n,)."""
        return self.marginals(x).log_density(y).sum(1)

    def update(self, rows: Rows) -> Self:  # noqa: ARG002
        """The model that knows more rows, at the same parameters."""
        raise TypeError(f"{type(self).__name__} cannot take more rows")

    def status(self) -> dict[str, Any]:
        """What ``fit_status_`` says about the model."""
        return {}

    @property
    def frequencies(self) -> Array | None:
        """Base frequencies, (p, inputs of the kernel), before division by the length-scales."""
        return None

    @property
    def noise_level(self) -> Array:
        """Noise variance, (q,); before factors that depend on the inputs."""
        return self.params.noise

    def kernel_input_scale(self, input_scale: Array) -> Array:
        """Units of the kernel's inputs, given those of the model's inputs, (d,)."""
        return input_scale


def _without_matrices(factors: list[Factor]) -> tuple[Factor, ...]:
    """How the factorisations went; the matrices themselves are in the posterior."""
    return tuple(replace(each, lower=torch.empty(0)) for each in factors)


@dataclass(frozen=True)
class ExactModel(Predictor):
    """The fitted full GP."""

    params: Parameters
    posterior: ExactPosterior
    log_evidence: float
    factors: tuple[Factor, ...]

    @classmethod
    def solve(cls, objective: ExactEvidence, params: Parameters) -> ExactModel:
        """The model at given parameters, on the rows of the objective."""
        posterior, log_evidence, factors = objective.posterior(params)
        return cls(params, posterior, log_evidence, _without_matrices(factors))

    @property
    def n_rows(self) -> int:
        return len(self.posterior.x)

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        posterior = self.posterior.to(x.device)
        mean, spread = posterior.predict(x, variance=variance)
        return mean, spread, posterior.noise.to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(x)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> ConditionedProcess:
        return ConditionedProcess.of(self, x, y, self.posterior.noise.to(y) if noise is None else noise)

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        return self.posterior.draw(count, rng)

    def sample(self, chunks: Iterable[Tensor], count: int, rng: np.random.Generator) -> Array:
        """Draws are exact and joint at all rows, so they depend on which rows are asked for."""
        x = torch.cat(list(chunks))
        mean, _, _ = self.predict(x, variance=False)
        covariance = self.covariance(x)
        sampled = np.empty((*mean.shape, count))
        for k in range(mean.shape[1]):
            # Scaled so that the smallest resolvable eigenvalue is one, as `factor` expects.
            floor = float(self.params.signal[k]) * 1e-10
            root = factor(covariance[:, :, k] / floor + torch.eye(len(x)).to(covariance)).lower * floor**0.5
            normal = torch.as_tensor(rng.standard_normal((len(x), count))).to(root)
            sampled[:, k] = (mean[:, k : k + 1] + root @ normal).cpu().numpy()
        return sampled

    def to(self, device: torch.device) -> ExactModel:
        return replace(self, posterior=self.posterior.to(device))


@dataclass(frozen=True)
class SpectralModel(Predictor):
    """The fitted sparse spectrum GP, with or without gates."""

    base: Array  # frequencies before division by the length-scales, (p, d)
    params: Parameters
    gating: Gating
    blocks: tuple[Statistics, ...]  # of each independent block: of each cluster under hard gates, else of all rows
    posterior: BlockPosterior
    log_evidence: float
    factors: tuple[Factor, ...]
    limits: Tensor | None = None

    @classmethod
    def solve(
        cls,
        base: Array,
        params: Parameters,
        gating: Gating,
        blocks: tuple[Statistics, ...],
        *,
        device: torch.device,
        limits: Tensor | None = None,
    ) -> SpectralModel:
        """The model whose posterior these statistics give, of rows with these limits."""
        solved = [solve_outputs(block, params) for block in blocks]
        posterior = BlockPosterior(tuple(WeightPosterior.from_evidence(each, device=device) for each in solved))
        outputs = [out for block in solved for out in block]
        log_evidence = sum(out.log_evidence for out in outputs)
        factors = _without_matrices([out.factor for out in outputs])
        return cls(base, params, gating, blocks, posterior, log_evidence, factors, limits)

    @property
    def n_rows(self) -> int:
        return sum(block.n for block in self.blocks)

    @property
    def frequencies(self) -> Array:
        return self.base

    def status(self) -> dict[str, Any]:
        if self.gating.gate is None:
            return {}
        rows = {"rows": [block.n for block in self.blocks]} if self.gating.kind == "hard" else {}
        return {"gating": {**self.gating.about, **rows}}

    def projection(self, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """``W``, (d, p)."""
        return projection(self.base, self.params.lengthscale, dtype=dtype, device=device)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features of rows, (..., n, d), and the blocks they belong to under hard gates."""
        rows = limit_inputs(x.reshape(-1, x.shape[-1]), self.limits)
        phi = spectral_features(rows, self.projection(dtype=x.dtype, device=x.device))
        phi, block = self.gating.features(phi, rows)
        return phi.reshape(*x.shape[:-1], -1), None if block is None else block.reshape(x.shape[:-1])

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        mean, spread = self.posterior.to(x.device).predict(*self.features(x), variance=variance)
        return mean, spread, torch.as_tensor(self.params.noise).to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(*self.features(x))

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> SpectralModel:
        """The same as :meth:`update`, in batches, except that statistics and evidence stay those of the fit."""
        noise = torch.as_tensor(self.params.noise).to(y) if noise is None else noise
        phi, block = self.features(x)
        return replace(self, posterior=self.posterior.condition(phi, block, y, noise))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        weights = self.posterior.draw_weights(count, rng)
        return lambda x: self.posterior.functions(*self.features(x), weights)

    def prediction_rows(self, device: torch.device) -> int:
        if device.type == "cuda":
            return rows_to_predict(2 * len(self.base) * self.gating.widening, device)
        return max(1, PREDICTION_ROWS // self.gating.widening)

    def to(self, device: torch.device) -> SpectralModel:
        limits = None if self.limits is None else self.limits.to(device)
        return replace(self, posterior=self.posterior.to(device), limits=limits)

    def update(self, rows: Rows) -> SpectralModel:
        more = spectral_objective(rows.limit(self.limits), self.base, self.gating).statistics(self.params)
        both = tuple(old.merge(new) for old, new in zip(self.blocks, more, strict=True))
        return SpectralModel.solve(self.base, self.params, self.gating, both, device=rows.device, limits=self.limits)


def spectral_objective(
    rows: Rows, base: Array, gating: Gating, kind: type[BlockEvidence] = BlockEvidence
) -> BlockEvidence:
    """The log evidence of all rows as a function of the parameters.

    Hard gates connect only the rows of each cluster, which is given by their labels or else by the rule.
    """
    p = len(base) * gating.widening
    if gating.gate is None or gating.kind == "soft":
        return kind([rows.chunks(p)], base, gating.soft)
    labels = rows.chunks(p).reduce(GateLabels(gating.gate)) if rows.labels is None else rows.labels
    return kind([part.chunks(p) for part in rows.split(labels, gating.gate.n_clusters)], base)
