"""What the statistics of the features say at given parameters: the evidence, the posterior of the weights, predictions.

For one output, with residual ``r = y - m`` and ``A = I + (S / s2) G``,

    log p(y) = const + logdet + quad                                            (E1)
    const    = -n/2 log(2 pi s2)
    logdet   = -1/2 log |A|
    quad     = -1/2 (r'r - (S / s2) b'A^-1 b) / s2,       b = Phi'r             (E2)

which is the multivariate normal density of ``N(m, S Phi Phi' + s2 I)`` (paper, equation 3) by the Woodbury and
Sylvester identities. With ``w = Phi'Q^-1 r = A^-1 b / s2``, the posterior of the weights has the mean ``S w`` and the
covariance ``S A^-1``; the mean and variance that it predicts are equation 2 of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.features import Statistics
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import Factor, factor
from prismgp.core.process import observed


@dataclass(frozen=True)
class OutputEvidence:
    """The evidence of one output at given parameters, with the factors others need."""

    const: float  # the three terms of (E1)
    logdet: float
    quad: float
    weights: Tensor  # w = A^-1 Phi'r / s2, (2p,); the posterior mean of the feature weights is S w
    factor: Factor  # of A
    signal: float
    noise: float
    mean: float

    @property
    def log_evidence(self) -> float:
        return self.const + self.logdet + self.quad


def solve_outputs(stats: Statistics, params: Parameters) -> list[OutputEvidence]:
    """Evaluate (E1) and (E2) for every output from the statistics alone; O(q p^3)."""
    solved = []
    for k in range(stats.q):
        signal, noise, mean = float(params.signal[k]), float(params.noise[k]), float(params.mean[k])
        ratio = signal / noise
        a = ratio * stats.gram
        a.diagonal().add_(1.0)
        fac = factor(a)
        del a  # as large as all that is kept
        b = stats.feature_target[:, k] - mean * stats.feature_sum
        half = fac.half_solve(b[:, None])
        weight = float(stats.weight)
        residual_square = float(stats.target_square[k] - 2.0 * mean * stats.target_sum[k]) + mean**2 * weight
        # The difference loses digits when almost everything is explained; it is never negative.
        explained = max(0.0, residual_square - ratio * float(half.square().sum()))
        solved.append(
            OutputEvidence(
                const=-0.5 * (stats.n * math.log(2.0 * math.pi * noise) + stats.log_noise_sum),
                logdet=-0.5 * float(fac.logdet()),
                quad=-0.5 * explained / noise,
                weights=fac.solve(b[:, None])[:, 0] / noise,
                factor=fac,
                signal=signal,
                noise=noise,
                mean=mean,
            )
        )
    return solved


def noise_log_evidence(blocks: Sequence[Statistics]) -> float:
    """Log evidence of independent noise around a mean, both the best ones, summed over outputs.

    Minus infinity where an output does not vary, because then there is nothing to explain.
    """
    n, weight = sum(each.n for each in blocks), sum(float(each.weight) for each in blocks)
    total = 0.0
    for k in range(blocks[0].q):
        mean = sum(float(each.target_sum[k]) for each in blocks) / weight
        square = sum(float(each.target_square[k]) for each in blocks)
        variance = (square - weight * mean**2) / n
        if variance <= 1e-12 * square / n or square == 0.0:
            return -math.inf
        total -= 0.5 * (n * (math.log(2.0 * math.pi * variance) + 1.0) + sum(each.log_noise_sum for each in blocks))
    return total


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
            values: Tensor = torch.tensordot(phi, weights[0].to(phi), 1)
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
    chosen: Tensor = torch.gather(stacked, -1, index)
    return chosen[..., 0]
