"""A fitted model as a process in the user's units: tensors in, tensors out, differentiable by the inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.models import Standardiser, standardise
from prismgp.core.process import Functions, Joint, Process
from prismgp.model.fitted import FittedModel


@dataclass(frozen=True)
class FittedProcess:
    """A :class:`prismgp.core.process.Process` in the units of the rows and targets of the fit, in float64."""

    process: Process
    standardiser: Standardiser
    device: torch.device

    @classmethod
    def of(cls, model: FittedModel) -> FittedProcess:
        """The process of a fitted model, where it computes. Networks compute in float64 too."""
        return cls(model.predictor.to_float64().to(model.device), model.standardiser, model.device)

    def joint(self, x: Tensor) -> Joint:
        """Mean, (..., n, q), covariance of the function, (..., n, n, q), and noise variance, (..., n, q)."""
        shift, scale = self._target_units()
        mean, covariance, noise = self.process.joint(self._rows(x))
        return mean * scale + shift, covariance * scale.square(), noise * scale.square()

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> FittedProcess:
        """The process given targets y, (..., n, q), at rows x, (..., n, d), with noise variances or the model's own."""
        shift, scale = self._target_units()
        targets = (y.to(shift) - shift) / scale
        variances = None if noise is None else noise.to(shift) / scale.square()
        return replace(self, process=self.process.condition(self._rows(x), targets, variances))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the process, which take rows, (n, d), and return values, (n, q, count)."""
        shift, scale = self._target_units()
        functions = self.process.draw(count, rng)
        return lambda x: functions(self._rows(x)) * scale[:, None] + shift[:, None]

    def _rows(self, x: Tensor) -> Tensor:
        s = self.standardiser
        return standardise(x, s.x_shift, s.x_scale, dtype=torch.float64, device=self.device)

    def _target_units(self) -> tuple[Tensor, Tensor]:
        def tensor(values: Array) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=self.device)

        return tensor(self.standardiser.y_shift), tensor(self.standardiser.y_scale)
