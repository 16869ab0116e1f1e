"""The evidence as a function of the length-scales and frequencies alone: variances and mean are always the best ones.

A pass over the rows gives the moments of the features at some length-scales, and these give the evidence (E1) at every
signal variance S, noise variance s2 and mean m. With the eigenvalues g of the Gram matrix, ``b`` and ``c`` the products
of features with targets and with ones in the basis of its eigenvectors, ``rho = S / s2`` and ``f = rho / (1 + rho g)``,

    m        = (1'y - f'(b c)) / (1'1 - f'(c c))                                                                (P1)
    n s2     = (y - m)'(y - m) - f'(b - m c)^2                                                                  (P2)
    log p(y) = -1/2 (n log(2 pi s2) + log |V| + sum log(1 + rho g) + n)                                         (P3)

are the best mean, the best noise, and the evidence at both. What is left is to find rho, a search along a line at a
cost of O(p) a point. Where S and s2 are at their bounds, (P2) gives way to the bound.

By the envelope theorem, the gradient with respect to length-scales and frequencies is that of the evidence at the best
variances and mean.

This is what the optimiser works with. An evidence with a noise variance that is far too small, such as that of an exact
GP which explains far more than a few frequencies can, is dominated by the noise: its gradients are huge, and from there
the optimiser ended in length-scales that explain nothing. Here every point has the noise that it needs, evidences of
starting points compare, and there are fewer parameters to learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import brentq

from prismgp._types import Array
from prismgp.core.evidence import BlockEvidence
from prismgp.core.features import Statistics
from prismgp.core.gating import Gate
from prismgp.core.kernels import Parameters, bounds
from prismgp.core.rows import Chunked

_STEP = 0.25  # of the search for log rho
_POINTS = 21  # of its second round, between the neighbours of the best


class ProfiledEvidence(BlockEvidence):
    """The evidence at the best variances and mean; those that the parameters have are ignored.

    Gradients with respect to them are zero, so that an optimiser leaves them alone, and :meth:`complete` finds them.
    Known noise variances of rows are not for this class: the moments would depend on the noise.
    """

    def __init__(self, blocks: Sequence[Chunked], frequencies: Array, gate: Gate | None = None) -> None:
        super().__init__(blocks, frequencies, gate)
        for part in self.parts:
            part.precise = True  # the moments must be good for every ratio of the variances

    def complete(self, params: Parameters) -> Parameters:
        """The parameters with the best variances and mean; one pass where the statistics are not known."""
        dtype = str(self.parts[0].chunks.dtype).removeprefix("torch.")
        return profile(self.statistics(params), params, dtype)

    def value(self, params: Parameters) -> float:
        return super().value(self.complete(params))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        value, gradient = super().value_and_gradient(self.complete(params))
        nothing = np.zeros_like(params.mean)
        return value, replace(gradient, log_signal=nothing, log_noise=nothing, mean=nothing)


def profile(blocks: Sequence[Statistics], params: Parameters, dtype: str) -> Parameters:
    """The parameters with the variances and the mean that are best for the statistics, (P1) to (P3).

    The statistics are those of independent blocks of rows, at the length-scales of the parameters; ``dtype`` is that of
    the features, which the bounds of the noise depend on. O(p^3) for the eigenvalues.
    """
    parts = [_Rotated.of(block) for block in blocks]
    first, q = len(params.log_lengthscale), len(params.mean)
    boxes = np.array(bounds(params, dtype=dtype))[first : first + 3 * q].reshape(3, q, 2)
    found = np.array([_Output(parts, k).best(boxes[:, k]) for k in range(q)])
    return replace(params, log_signal=found[:, 0], log_noise=found[:, 1], mean=found[:, 2])


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


class _Rotated:
    """The statistics of one block in the basis of the eigenvectors of its Gram matrix."""

    def __init__(self, stats: Statistics, values: Array, targets: Array, ones: Array) -> None:
        self.stats, self.values, self.targets, self.ones = stats, values, targets, ones

    @classmethod
    def of(cls, stats: Statistics) -> _Rotated:
        values, vectors = torch.linalg.eigh(stats.gram)
        targets, ones = vectors.T @ stats.feature_target, vectors.T @ stats.feature_sum
        # Theory has no negative ones.
        return cls(stats, values.clamp_min(0.0).cpu().numpy(), targets.cpu().numpy(), ones.cpu().numpy())


class _Output:
    """One output: the evidence as a function of ``log rho``."""

    def __init__(self, parts: Sequence[_Rotated], k: int) -> None:
        self.g = np.concatenate([part.values for part in parts])
        self.b = np.concatenate([part.targets[:, k] for part in parts])
        self.c = np.concatenate([part.ones for part in parts])
        blocks = [part.stats for part in parts]
        self.n = sum(each.n for each in blocks)
        self.log_noise_sum = sum(each.log_noise_sum for each in blocks)
        self.weight = sum(float(each.weight) for each in blocks)
        self.target_sum = sum(float(each.target_sum[k]) for each in blocks)
        self.target_square = sum(float(each.target_square[k]) for each in blocks)

    def best(self, boxes: Array) -> tuple[float, float, float]:
        """Log signal variance, log noise variance and mean, within boxes, (3, 2)."""
        (low, high), (noise_low, noise_high), _ = boxes
        ends = low - noise_high, high - noise_low
        grid = np.linspace(*ends, 1 + math.ceil((ends[1] - ends[0]) / _STEP))
        for _ in range(2):
            top = int(np.argmax(self._at(grid, boxes)[0]))
            around = grid[max(top - 1, 0)], grid[min(top + 1, len(grid) - 1)]
            log_rho, grid = float(grid[top]), np.linspace(*around, _POINTS)

        def slope(point: float) -> float:
            return float(self._slope(np.array([point]), boxes)[0])

        # By the slope, which is zero to the last digits; values near their maximum are alike to half of them.
        if slope(around[0]) > 0.0 > slope(around[1]):
            log_rho = float(brentq(slope, *around, xtol=1e-13))
        _, log_noise, mean, _ = self._at(np.array([log_rho]), boxes)
        return log_rho + float(log_noise[0]), float(log_noise[0]), float(mean[0])

    def _slope(self, log_rho: Array, boxes: Array) -> Array:
        """Derivative of (P3) by ``log rho``; the noise counts where it follows from a bound of the signal."""
        _, log_noise, mean, square = self._at(log_rho, boxes)
        rho = np.exp(log_rho)[:, None]
        shares = 1.0 / (1.0 + rho * self.g)
        fits = (rho * shares**2 * (self.b - mean[:, None] * self.c) ** 2).sum(1)
        noise = np.exp(-log_noise)
        slope = 0.5 * (fits * noise - (rho * self.g * shares).sum(1))
        (low, high), *_ = boxes
        bound = (log_noise == low - log_rho) | (log_noise == high - log_rho)
        return np.asarray(np.where(bound, slope + 0.5 * (self.n - square * noise), slope))

    def _at(self, log_rho: Array, boxes: Array) -> tuple[Array, Array, Array, Array]:
        """Log evidence, log noise variance, mean, and n s2 of (P2) at each ``log rho``."""
        (low, high), (noise_low, noise_high), (mean_low, mean_high) = boxes
        rho = np.exp(log_rho)[:, None]
        f = rho / (1.0 + rho * self.g)
        left = np.maximum(self.weight - f @ self.c**2, 1e-12 * self.weight)
        mean = np.clip((self.target_sum - f @ (self.b * self.c)) / left, mean_low, mean_high)  # (P1)
        square = self.target_square - 2.0 * mean * self.target_sum + mean**2 * self.weight
        # Both differences lose digits when almost everything is explained; they are never negative.
        square = np.maximum(square - (f * (self.b - mean[:, None] * self.c) ** 2).sum(1), 0.0)
        with np.errstate(divide="ignore"):
            log_noise = np.log(square / self.n)  # (P2)
        log_noise = np.clip(log_noise, np.maximum(noise_low, low - log_rho), np.minimum(noise_high, high - log_rho))
        # (P3), which has n in place of the last term where no bound holds.
        value = self.n * (math.log(2.0 * math.pi) + log_noise) + np.log1p(rho * self.g).sum(1)
        return -0.5 * (value + self.log_noise_sum + square * np.exp(-log_noise)), log_noise, mean, square
