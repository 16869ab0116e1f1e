"""The weight posterior of the sparse spectrum GP, and what it predicts (paper, equation 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.evidence import OutputEvidence


@dataclass(frozen=True)
class WeightPosterior:
    """``w | y ~ N(weight_mean, S A^-1)`` for every output.

    The predictive variance is ``S |T phi|^2`` with ``A^-1 = T'T``: a sum of squares, so it is
    positive, and since all eigenvalues of A are at least one it never exceeds the prior's S.
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
        """Mean and noise-free variance at rows with features phi, (n, 2p); both (n, q), in float64."""
        phi = phi.double()
        mean = phi @ self.weight_mean + self.mean
        if not variance:
            return mean, None
        # The clamp only undoes rounding: rows of float32 features have norm one to seven digits.
        share = [(phi @ root.T).square_().sum(1).clamp_max(1.0) for root in self.inverse_root]
        return mean, torch.stack(share, dim=1) * self.signal

    def covariance(self, phi: Tensor) -> Tensor:
        """Noise-free joint covariance at rows with features phi, (n, n, q)."""
        roots = [phi.double() @ root.T for root in self.inverse_root]
        return torch.stack([r @ r.T for r in roots], dim=2) * self.signal

    def draw_weights(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Weights of sampled functions, (2p, q, n_samples): ``weight_mean + S^(1/2) T' normal``."""
        width, q = self.weight_mean.shape
        # Sample by sample, so that the first k functions do not depend on how many are drawn.
        normal = np.stack([rng.standard_normal((q, width)) for _ in range(n_samples)], axis=2)
        draws = torch.as_tensor(normal).to(self.inverse_root)
        spread = torch.einsum("qji,qjs->iqs", self.inverse_root, draws)
        scaled = self.weight_mean[:, :, None] + spread * self.signal.sqrt()[None, :, None]
        return np.asarray(scaled.cpu().numpy())


@dataclass(frozen=True)
class BlockPosterior:
    """The posteriors of independent blocks, each with weights of its own (G4).

    Rows come with the block they belong to, (n,), or None where there is one block alone.
    """

    blocks: tuple[WeightPosterior, ...]

    def to(self, device: torch.device) -> BlockPosterior:
        """The same posterior on another device."""
        return BlockPosterior(tuple(block.to(device) for block in self.blocks))

    def predict(self, phi: Tensor, block: Tensor | None, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        """Mean and noise-free variance at rows with features phi, (n, 2p); both (n, q), in float64."""
        if block is None:
            return self.blocks[0].predict(phi, variance=variance)
        mean = phi.new_empty(len(phi), len(self.blocks[0].mean), dtype=torch.float64)
        spread = torch.empty_like(mean) if variance else None
        for part, own in self._parts(block):
            mean[own], inner = part.predict(phi[own], variance=variance)
            if spread is not None and inner is not None:
                spread[own] = inner
        return mean, spread

    def covariance(self, phi: Tensor, block: Tensor | None) -> Tensor:
        """Noise-free joint covariance, (n, n, q); zero between blocks."""
        if block is None:
            return self.blocks[0].covariance(phi)
        total = phi.new_zeros(len(phi), len(phi), len(self.blocks[0].mean), dtype=torch.float64)
        for part, own in self._parts(block):
            total[own[:, None], own] = part.covariance(phi[own])
        return total

    def draw_weights(self, n_samples: int, rng: np.random.Generator) -> list[Array]:
        """Weights of sampled functions, (2p, q, n_samples) for each block."""
        # A stream for each block, so that the first functions do not depend on how many are drawn.
        streams = [rng] if len(self.blocks) == 1 else rng.spawn(len(self.blocks))
        return [block.draw_weights(n_samples, each) for block, each in zip(self.blocks, streams, strict=True)]

    def functions(self, phi: Tensor, block: Tensor | None, weights: Sequence[Array]) -> Array:
        """Values of functions with the given weights at rows with features phi, (n, q, n_samples)."""
        features = phi.double().cpu().numpy()
        if block is None:
            values = np.tensordot(features, weights[0], axes=1)
        else:
            values = np.empty((len(phi), *weights[0].shape[1:]))
            owners = block.cpu().numpy()
            for c in np.unique(owners):
                values[owners == c] = np.tensordot(features[owners == c], weights[c], axes=1)
        return np.asarray(values + self.blocks[0].mean.cpu().numpy()[:, None])

    def _parts(self, block: Tensor) -> list[tuple[WeightPosterior, Tensor]]:
        """Blocks that have rows, and which."""
        return [(self.blocks[c], torch.nonzero(block == c)[:, 0]) for c in np.unique(block.cpu().numpy())]
