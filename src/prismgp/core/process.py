"""Fitted models as processes: joint predictions, conditioning and function draws, all differentiable.

What libraries of Bayesian optimisation ask of a model. Rows may come in batches, (..., n, d), and observations too;
batches of rows and of observations are broadcast against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from prismgp._types import Tensor

_JOINT_ROWS = 256  # whose joint covariance is computed where only that with observations is needed

Joint = tuple[Tensor, Tensor, Tensor]
Functions = Callable[[Tensor], Tensor]


class Process(Protocol):
    """A distribution of functions in the model's units."""

    def joint(self, x: Tensor) -> Joint:
        """Mean, (..., n, q), covariance of the function, (..., n, n, q), and noise variance, (..., n, q)."""
        ...

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Process:
        """The process given targets y, (..., n, q), at rows x, (..., n, d); NaN where an output was not observed.

        ``noise`` are their noise variances, broadcastable to y, or None for the model's own.
        """
        ...

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the process, which take rows, (n, d), and return values, (n, q, count)."""
        ...


def fill_unobserved(y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Targets and noise variances, with zero and infinity in place of missing targets, which then change nothing."""
    noise = noise.expand(np.broadcast_shapes(y.shape, noise.shape))
    missing = y.isnan()
    return y.masked_fill(missing, 0.0), noise.masked_fill(missing, torch.inf)


@dataclass(frozen=True)
class ConditionedProcess:
    """A GP given further observations, by the conditional normal distribution; O((n + m)^3) for n observations.

    ``mean + C_xo (C_oo + N)^-1 (y - mean_o)`` and ``C - C_xo (C_oo + N)^-1 C_ox``, for observations o.          (C1)
    """

    base: Process
    x: Tensor  # (..., n, d)
    y: Tensor  # (..., n, q); zero where an output was not observed
    noise: Tensor  # variances, (..., n, q); infinite where an output was not observed

    @classmethod
    def of(cls, base: Process, x: Tensor, y: Tensor, noise: Tensor) -> ConditionedProcess:
        """The base given targets y, NaN where an output was not observed, with noise variances broadcastable to y."""
        return cls(base, x, *fill_unobserved(y, noise))

    def joint(self, x: Tensor) -> Joint:
        n = self.x.shape[-2]
        batch = np.broadcast_shapes(self.x.shape[:-2], x.shape[:-2])
        rows = torch.cat([each.expand(*batch, *each.shape[-2:]) for each in (self.x, x)], -2)
        mean, covariance, noise = self.base.joint(rows)
        root, residual = self._whiten(mean[..., :n, :], covariance[..., :n, :n, :])
        means, covariances = [], []
        for k in range(mean.shape[-1]):
            cross = covariance[..., :n, n:, k] * self.noise[..., k, None].rsqrt()
            half = torch.linalg.solve_triangular(root[k], cross, upper=False)
            change = half.mT @ torch.linalg.solve_triangular(root[k], residual[..., k, None], upper=False)
            means.append(mean[..., n:, k] + change[..., 0])
            covariances.append(covariance[..., n:, n:, k] - half.mT @ half)
        return torch.stack(means, -1), torch.stack(covariances, -1), noise[..., n:, :]

    def _whiten(self, mean: Tensor, covariance: Tensor) -> tuple[list[Tensor], Tensor]:
        """Factors of ``I + N^-1/2 C_oo N^-1/2`` of all outputs, and residuals divided by the roots of the noise."""
        scale = self.noise.rsqrt()  # zero where nothing was observed
        eye = torch.eye(mean.shape[-2]).to(mean)
        inner = covariance * scale[..., :, None, :] * scale[..., None, :, :]
        roots = [torch.linalg.cholesky(eye + inner[..., k]) for k in range(mean.shape[-1])]
        return roots, (self.y - mean) * scale

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> ConditionedProcess:
        noise = self.joint(x)[2] if noise is None else noise
        batch = np.broadcast_shapes(*(each.shape[:-2] for each in (self.x, self.y, self.noise, x, y, noise)))
        y, noise = fill_unobserved(y, noise)
        pairs = ((self.x, x), (self.y, y), (self.noise, noise))
        joined = (torch.cat([each.expand(*batch, *each.shape[-2:]) for each in pair], -2) for pair in pairs)
        return ConditionedProcess(self.base, *joined)

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Pathwise conditioning: ``f(x) + C_xo (C_oo + N)^-1 (y - f(o) - noise)`` for draws f of the base. (C2)"""
        functions = self.base.draw(count, rng)
        n, q = self.y.shape
        normal = torch.as_tensor(np.stack([each.standard_normal((n, q)) for each in rng.spawn(count)], 2)).to(self.y)
        spread = self.noise.masked_fill(self.noise.isinf(), 0.0).sqrt()
        values = functions(self.x) + spread[:, :, None] * normal
        roots, _ = self._whiten(*self.base.joint(self.x)[:2])
        scale = self.noise.rsqrt()
        residual = (self.y[:, :, None] - values) * scale[:, :, None]
        solved = torch.stack([torch.cholesky_solve(residual[:, k], root) for k, root in enumerate(roots)], 1)
        weights = solved * scale[:, :, None]

        def change(rows: Tensor) -> Tensor:
            cross = self.base.joint(torch.cat([self.x, rows]))[1][n:, :n]
            return torch.einsum("mnq,nqs->mqs", cross, weights)

        def draw_conditioned(x: Tensor) -> Tensor:
            return functions(x) + torch.cat([change(rows) for rows in torch.split(x, _JOINT_ROWS)])

        return draw_conditioned
