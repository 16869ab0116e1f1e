"""How noisy each row is, where rows differ: weights and known error variances.

A row of weight w is the average of w observations, each with noise ``s2 + v``, v its known variance. So its noise is

- (W1) ``D_i = (s2 + v_i) / w_i = s2 V_i``, with ``V_i = e_i / w_i`` and ``e_i = 1 + v_i / s2``.

At given parameters the posterior is that of the row repeated w times. The evidence differs from that of repeated rows
by a function of s2 alone: repeated rows also say that w observations were equal to the last digit, from which one would
learn that there is no noise. With ``Q`` the covariance of the targets, r their residuals and ``alpha = Q^-1 r``,

- (W2) ``d log evidence / d log s2 = 1/2 sum_i (alpha_i^2 - (Q^-1)_ii) D_i / e_i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import Array, Tensor


def effective_rows(weights: Array) -> float:
    """The number of equal weights that says as much as unequal ones, (n,), do (Kish)."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


@dataclass(frozen=True)
class RowNoise:
    """Weights and known noise variances of rows (W1), in the model's units, float64."""

    weight: Tensor  # (n,), positive
    variance: Tensor | None = None  # (n,); known variances are for models of one output

    @classmethod
    def split(cls, y: Tensor, q: int) -> tuple[Tensor, RowNoise | None]:
        """Targets, (n, q), and the noise of the rows, None if they do not differ, from targets with noise columns."""
        if y.shape[1] == q:
            return y, None
        weight, *variance = (column.double().contiguous() for column in y[:, q:].unbind(1))
        return y[:, :q].contiguous(), cls(weight, variance[0] if variance else None)

    @classmethod
    def join(cls, parts: Sequence[tuple[RowNoise | None, int]], device: torch.device) -> RowNoise | None:
        """The noise of several sets of rows, each with the number of its rows; None where no row differs."""
        if all(noise is None for noise, _ in parts):
            return None
        known = any(noise is not None and noise.variance is not None for noise, _ in parts)
        weights, variances = [], []
        for noise, n in parts:
            plain = torch.ones(n, dtype=torch.float64, device=device)
            weights.append(plain if noise is None else noise.weight.to(device))
            variance = None if noise is None else noise.variance
            variances.append(torch.zeros_like(plain) if variance is None else variance.to(device))
        return cls(torch.cat(weights), torch.cat(variances) if known else None)

    @property
    def columns(self) -> Tensor:
        """The noise columns, (n, 1) or (n, 2)."""
        parts = [self.weight] if self.variance is None else [self.weight, self.variance]
        return torch.stack(parts, 1)

    def take(self, index: Tensor | slice) -> RowNoise:
        return RowNoise(self.weight[index], None if self.variance is None else self.variance[index])

    def to(self, device: torch.device) -> RowNoise:
        return RowNoise(self.weight.to(device), None if self.variance is None else self.variance.to(device))

    def log_level(self, noise: float | Tensor, log_noise: Tensor | None = None) -> Tensor:
        """``log e_i``, (n,), of one observation of each row; ``log_noise`` is added to the noise s2 of each row."""
        if self.variance is None:
            return torch.zeros_like(self.weight) if log_noise is None else log_noise.double()
        known = self.variance / noise
        return torch.log1p(known) if log_noise is None else torch.log(log_noise.double().exp() + known)

    def log_relative(self, noise: float | Tensor, log_noise: Tensor | None = None) -> Tensor:
        """``log V_i``, (n,)."""
        return self.log_level(noise, log_noise) - self.weight.log()
