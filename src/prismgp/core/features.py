"""The feature map, X to ``[cos(X W), sin(X W)]``, its gates, limits of its inputs, and the posterior of its weights.

The posterior of the weights has the mean ``S A^-1 b / s2`` and the covariance ``S A^-1``, with the matrices of
:mod:`prismgp.core.statistics`. The mean and variance that it predicts are equation 2 of the paper.

Beyond the limits of an input with long tails, a row is taken to be at the limit. The kernel of a few frequencies does
not vanish at large distances. Where an input has long tails, a few rows lie far from all others, the length-scales that
suit the many are far too short for the few, and what the model predicts beyond the rows it has seen is arbitrary:
errors of tens of standard deviations, of which the model's own standard deviation knows nothing. The evidence shows
that. The targets of the rows are the same with limits and without, so that their evidences compare, and a fit chooses
the higher one (:class:`prismgp.core.fit.SSGPSettings`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch

from prismgp._types import Array, GatingKind, Tensor
from prismgp.core.gating import Gate
from prismgp.core.process import fill_unobserved
from prismgp.core.statistics import OutputEvidence

GATINGS = get_args(GatingKind)
_LIMITED_ROWS = 300  # among fewer, next to no rows are beyond a limit
_BEYOND = 0.01  # of the rows are beyond a limit
NO_LIMIT = 1e30  # finite, because model files hold finite numbers
_LONG = 2.0  # a tail is long if it ends so many times as far from the median as the limit is


def find_limits(x: Tensor) -> Tensor | None:
    """Lower and upper limits of each input, (2, d), from rows, (n, d); None where no input has long tails.

    Tails that are not long have the limit ``NO_LIMIT``. So have indicators, and other tails where almost all rows have
    the same value.
    """
    if len(x) < _LIMITED_ROWS:
        return None
    values = x.double().cpu().numpy()
    low, middle, high = np.quantile(values, [_BEYOND, 0.5, 1.0 - _BEYOND], axis=0)
    below = (low < middle) & (middle - values.min(0) > _LONG * (middle - low))
    above = (high > middle) & (values.max(0) - middle > _LONG * (high - middle))
    if not (below.any() or above.any()):
        return None
    limits = np.stack([np.where(below, low, -NO_LIMIT), np.where(above, high, NO_LIMIT)])
    return torch.as_tensor(limits, device=x.device)


def limit_inputs(x: Tensor, limits: Tensor | None) -> Tensor:
    """Rows, (..., d), within the limits, (2, d); None leaves them as they are."""
    if limits is None:
        return x
    low, high = limits.to(x)
    limited: Tensor = torch.clamp(x, low, high)
    return limited


def projection(frequencies: Array, lengthscale: Array, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``W = (E / lengthscale)'``, (d, p)."""
    # Copied: a single frequency counts as contiguous with any strides, by which products choose how they sum.
    return torch.as_tensor(np.array((frequencies / lengthscale).T, order="C"), dtype=dtype, device=device)


def spectral_features(x: Tensor, w: Tensor) -> Tensor:
    """``Phi = [cos(X W), sin(X W)] / sqrt(p)``, (n, 2p); every row has norm one."""
    p = w.shape[1]
    z = x @ w
    if z.requires_grad:
        differentiable: Tensor = torch.cat([z.cos(), z.sin()], 1) * p**-0.5
        return differentiable
    phi = x.new_empty(x.shape[0], 2 * p)  # not len(x), which would fix the number of rows of an exported model
    torch.cos(z, out=phi[:, :p])
    torch.sin(z, out=phi[:, p:])
    return phi.mul_(p**-0.5)


def gated_features(phi: Tensor, gates: Tensor) -> Tensor:
    """``r(x) (x) phi(x)``, (..., n, 2p b): features whose kernel is ``(r'r) k``, by the Schur product theorem.

    Rows of the gates, (..., n, b), have norm one, so that rows of the result have the norm of those of phi,
    (..., n, 2p).
    One-hot rows give the masked kernel, zero between clusters.
    """
    return (gates.unsqueeze(-1) * phi.unsqueeze(-2)).flatten(-2)


@dataclass(frozen=True)
class Gating:
    """The gate of a model, or none."""

    gate: Gate | None = None
    about: dict[str, Any] = field(default_factory=dict)  # what fit_status_ says of it

    @property
    def kind(self) -> str:
        return "none" if self.gate is None else self.gate.kind

    @property
    def soft(self) -> Gate | None:
        """Gates that multiply the features; hard ones split the rows instead."""
        return self.gate if self.kind == "soft" else None

    @property
    def widening(self) -> int:
        """By how much they multiply the number of features."""
        return 1 if self.soft is None else self.soft.n_clusters

    def features(self, phi: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gated features of rows in the model's units, or the features and the blocks they belong to."""
        if self.gate is None:
            return phi, None
        if self.kind == "hard":
            return phi, self.gate.labels(x)
        return gated_features(phi, self.gate.gates(x).to(phi)), None


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
        y, noise = fill_unobserved(y, noise.double())
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
