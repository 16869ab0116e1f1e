"""Fitted models in their own units: standardised inputs and targets, tensors in and out.

The weight posterior of the sparse spectrum GP and what it predicts are equation 2 of the paper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.evidence import BlockEvidence, OutputEvidence, solve_outputs
from prismgp.core.exact import ExactEvidence, ExactPosterior
from prismgp.core.features import Gating, Statistics, projection, spectral_features
from prismgp.core.gating import GateLabels
from prismgp.core.kernels import Parameters
from prismgp.core.normal import Marginals
from prismgp.core.numerics import Factor, factor
from prismgp.core.process import ConditionedProcess, Functions, Joint, Process, observed
from prismgp.core.rows import Rows


@dataclass(frozen=True)
class WeightPosterior:
    """``w | y ~ N(weight_mean, S A^-1)`` for every output.

    The predictive variance is ``S |T phi|^2`` with ``A^-1 = T'T``: a sum of squares, so it is
    positive, and since all eigenvalues of A are at least one it never exceeds the prior's S.

    After :meth:`condition` there may be a batch of posteriors, in leading dimensions of the first two tensors.
    """

    weight_mean: Tensor  # (2p, q)
    inverse_root: Tensor  # T for every output, (q, 2p, 2p)
    signal: Tensor  # (q,)
    mean: Tensor  # (q,)

    @classmethod
    def from_evidence(cls, solved: list[OutputEvidence], *, device: torch.device) -> WeightPosterior:
        """The posterior that the evidence's factors imply."""
        roots = [out.factor.inverse_root() for out in solved]
        # One matrix, the usual case, is not copied where its rows are in order. In another order products round
        # otherwise, and a model read from a file would differ from the one written.
        inverse_root = roots[0].contiguous()[None] if len(roots) == 1 else torch.stack(roots)
        weight_mean = torch.stack([out.signal * out.weights for out in solved], dim=1)
        signal = torch.tensor([out.signal for out in solved], dtype=torch.float64)
        mean = torch.tensor([out.mean for out in solved], dtype=torch.float64)
        return cls(weight_mean, inverse_root, signal, mean).to(device)

    def to(self, device: torch.device) -> WeightPosterior:
        """The same posterior on another device."""
        tensors = (self.weight_mean, self.inverse_root, self.signal, self.mean)
        return WeightPosterior(*(tensor.to(device) for tensor in tensors))

    def predict(self, phi: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        """Mean and noise-free variance at rows with features phi, (..., n, 2p); both (..., n, q), in float64."""
        phi = phi.double()
        mean = phi @ self.weight_mean + self.mean
        if not variance:
            return mean, None
        # The clamp only undoes rounding: rows of float32 features have norm one to seven digits.
        share = [(phi @ root.mT).square_().sum(-1).clamp_max(1.0) for root in self._roots()]
        return mean, torch.stack(share, dim=-1) * self.signal

    def covariance(self, phi: Tensor) -> Tensor:
        """Noise-free joint covariance at rows with features phi, (..., n, n, q)."""
        roots = [phi.double() @ root.mT for root in self._roots()]
        return torch.stack([r @ r.mT for r in roots], dim=-1) * self.signal

    def condition(self, phi: Tensor, y: Tensor, noise: Tensor) -> WeightPosterior:
        """The posterior given targets y, (..., n, q), at rows with features phi, (..., n, 2p), exactly.

        The square-root update of Andrews (1968), A square root formulation of the Kalman covariance equations. With
        ``V = (S / N)^(1/2) Phi T'`` and ``L L' = I + V V'``, for the noise variances N, broadcastable to y:

            T <- T - V' (I + L)^-T L^-1 V T                                     (C3)
            w <- w + S^(1/2) T' V' (L L')^-1 N^(-1/2) (y - mean)                (C4)

        O(n p^2) where refactoring takes O(p^3). A missing target, NaN, changes nothing.
        """
        phi = phi.double()
        y, noise = observed(y, noise.double())
        scale = noise.rsqrt()
        residual = (y - (phi @ self.weight_mean + self.mean)) * scale
        eye = torch.eye(phi.shape[-2], dtype=torch.float64, device=phi.device)
        means, roots = [], []
        for k, root in enumerate(self._roots()):
            spread = self.signal[k].sqrt()
            v = (phi @ root.mT) * (spread * scale[..., k])[..., None]
            lower = torch.linalg.cholesky(eye + v @ v.mT)
            solved = torch.cholesky_solve(residual[..., k, None], lower)
            means.append((self.weight_mean[..., k, None] + spread * (root.mT @ (v.mT @ solved)))[..., 0])
            half = torch.linalg.solve_triangular(lower, v @ root, upper=False)
            roots.append(root - v.mT @ torch.linalg.solve_triangular((eye + lower).mT, half, upper=True))
        return replace(self, weight_mean=torch.stack(means, -1), inverse_root=torch.stack(roots, -3))

    def _roots(self) -> tuple[Tensor, ...]:
        """T for each output, (..., 2p, 2p)."""
        return self.inverse_root.unbind(-3)

    def draw_weights(self, n_samples: int, rng: np.random.Generator) -> Tensor:
        """Weights of sampled functions, (2p, q, n_samples): ``weight_mean + S^(1/2) T' normal``."""
        width, q = self.weight_mean.shape
        # Sample by sample, so that the first k functions do not depend on how many are drawn.
        normal = np.stack([rng.standard_normal((q, width)) for _ in range(n_samples)], axis=2)
        draws = torch.as_tensor(normal).to(self.inverse_root)
        spread = torch.einsum("qji,qjs->iqs", self.inverse_root, draws)
        weights: Tensor = self.weight_mean[:, :, None] + spread * self.signal.sqrt()[None, :, None]
        return weights


@dataclass(frozen=True)
class BlockPosterior:
    """The posteriors of independent blocks, each with weights of its own (G4).

    Rows come with the block they belong to, (..., n), or None where there is one block alone.
    """

    blocks: tuple[WeightPosterior, ...]

    def to(self, device: torch.device) -> BlockPosterior:
        """The same posterior on another device."""
        return BlockPosterior(tuple(block.to(device) for block in self.blocks))

    def predict(self, phi: Tensor, block: Tensor | None, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        """Mean and noise-free variance at rows with features phi, (n, 2p); both (n, q), in float64."""
        if block is None:
            return self.blocks[0].predict(phi, variance=variance)
        if block.ndim > 1 or self._batched:
            found = [part.predict(phi, variance=variance) for part in self.blocks]
            means = _select(block, [each for each, _ in found])
            return means, _select(block, [each for _, each in found if each is not None]) if variance else None
        mean = phi.new_empty(len(phi), len(self.blocks[0].mean), dtype=torch.float64)
        spread = torch.empty_like(mean) if variance else None
        for part, own in self._parts(block):
            mean[own], inner = part.predict(phi[own], variance=variance)
            if spread is not None and inner is not None:
                spread[own] = inner
        return mean, spread

    def covariance(self, phi: Tensor, block: Tensor | None) -> Tensor:
        """Noise-free joint covariance, (..., n, n, q); zero between blocks."""
        if block is None:
            return self.blocks[0].covariance(phi)
        if block.ndim > 1 or self._batched:
            owned = (self._mask(phi, block, c) for c in range(len(self.blocks)))
            return sum(part.covariance(each) for part, each in zip(self.blocks, owned, strict=True))  # type: ignore[return-value]
        total = phi.new_zeros(len(phi), len(phi), len(self.blocks[0].mean), dtype=torch.float64)
        for part, own in self._parts(block):
            total[own[:, None], own] = part.covariance(phi[own])
        return total

    def condition(self, phi: Tensor, block: Tensor | None, y: Tensor, noise: Tensor) -> BlockPosterior:
        """The posteriors given targets y, (..., n, q), each of the rows of its own block."""
        if block is None:
            return BlockPosterior((self.blocks[0].condition(phi, y, noise),))
        owned = (self._mask(phi, block, c) for c in range(len(self.blocks)))  # zeros change nothing
        return BlockPosterior(
            tuple(part.condition(each, y, noise) for part, each in zip(self.blocks, owned, strict=True))
        )

    @property
    def _batched(self) -> bool:
        return self.blocks[0].weight_mean.ndim > 2

    @staticmethod
    def _mask(phi: Tensor, block: Tensor, c: int) -> Tensor:
        """The features of the rows of one block, and zeros."""
        return phi * (block == c)[..., None]

    def draw_weights(self, n_samples: int, rng: np.random.Generator) -> list[Tensor]:
        """Weights of sampled functions, (2p, q, n_samples) for each block."""
        # A stream for each block, so that the first functions do not depend on how many are drawn.
        streams = [rng] if len(self.blocks) == 1 else rng.spawn(len(self.blocks))
        return [block.draw_weights(n_samples, each) for block, each in zip(self.blocks, streams, strict=True)]

    def functions(self, phi: Tensor, block: Tensor | None, weights: Sequence[Tensor]) -> Tensor:
        """Values of functions with the given weights at rows with features phi, (n, q, n_samples)."""
        phi = phi.double()
        if block is None:
            values = torch.tensordot(phi, weights[0].to(phi), 1)
        else:
            values = phi.new_empty(len(phi), *weights[0].shape[1:])
            for c in np.unique(block.cpu().numpy()):
                own = torch.nonzero(block == c)[:, 0]
                values[own] = torch.tensordot(phi[own], weights[c].to(phi), 1)
        return values + self.blocks[0].mean.to(phi)[:, None]

    def _parts(self, block: Tensor) -> list[tuple[WeightPosterior, Tensor]]:
        """Blocks that have rows, and which."""
        return [(self.blocks[c], torch.nonzero(block == c)[:, 0]) for c in np.unique(block.cpu().numpy())]


def _select(block: Tensor, found: Sequence[Tensor]) -> Tensor:
    """What each row's own block has found, (..., n, q)."""
    stacked = torch.stack(list(found), -1)
    index = block[..., None, None].expand(*stacked.shape[:-1], 1)
    return torch.gather(stacked, -1, index)[..., 0]


PREDICTION_ROWS = 2_048


class Predictor(ABC):
    """A fitted model in its own units."""

    params: Parameters
    log_evidence: float
    factors: tuple[Factor, ...]  # how the factorisations went

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

    def cdf(self, x: Tensor, y: Tensor) -> Tensor:
        """Probability of targets up to y, (n, q), output by output."""
        return self.marginals(x).cdf(y)

    def quantiles(self, x: Tensor, levels: Sequence[float]) -> Tensor:
        """The inverse of :meth:`cdf` at levels between 0 and 1, (n, q, len(levels))."""
        return self.marginals(x).quantiles(levels)

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

    @classmethod
    def solve(
        cls, base: Array, params: Parameters, gating: Gating, blocks: tuple[Statistics, ...], *, device: torch.device
    ) -> SpectralModel:
        """The model whose posterior these statistics give."""
        solved = [solve_outputs(block, params) for block in blocks]
        posterior = BlockPosterior(tuple(WeightPosterior.from_evidence(each, device=device) for each in solved))
        outputs = [out for block in solved for out in block]
        log_evidence = sum(out.log_evidence for out in outputs)
        factors = _without_matrices([out.factor for out in outputs])
        return cls(base, params, gating, blocks, posterior, log_evidence, factors)

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
        rows = x.reshape(-1, x.shape[-1])
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

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        return max(1, PREDICTION_ROWS // self.gating.widening)

    def to(self, device: torch.device) -> SpectralModel:
        return replace(self, posterior=self.posterior.to(device))

    def update(self, rows: Rows) -> SpectralModel:
        more = spectral_objective(rows, self.base, self.gating).statistics(self.params)
        both = tuple(old.merge(new) for old, new in zip(self.blocks, more, strict=True))
        return SpectralModel.solve(self.base, self.params, self.gating, both, device=rows.device)


def spectral_objective(rows: Rows, base: Array, gating: Gating) -> BlockEvidence:
    """The log evidence of all rows as a function of the parameters.

    Hard gates connect only the rows of each cluster, which is given by their labels or else by the rule.
    """
    p = len(base) * gating.widening
    if gating.gate is None or gating.kind == "soft":
        return BlockEvidence([rows.chunks(p)], base, gating.soft)
    labels = rows.chunks(p).reduce(GateLabels(gating.gate)) if rows.labels is None else rows.labels
    return BlockEvidence([part.chunks(p) for part in rows.split(labels, gating.gate.n_clusters)], base)
