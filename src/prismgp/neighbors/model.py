"""The fitted neighbour GP: a model that predicts every row from its nearest training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.kernels import Parameters
from prismgp.core.models import Predictor
from prismgp.core.numerics import Factor
from prismgp.data import StandardisedRows
from prismgp.neighbors.local import LocalGP


@dataclass(frozen=True)
class NeighborModel(Predictor):
    """A GP on the nearest training rows, whose coordinates are the standardised inputs."""

    gp: LocalGP
    log_evidence: float  # log density of rows, each given its neighbours among the others, times the number of rows
    factors: tuple[Factor, ...] = ()

    @property
    def params(self) -> Parameters:  # type: ignore[override]
        return self.gp.params

    @property
    def n_rows(self) -> int:
        return self.gp.n_rows

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        mean, spread = self.gp.predict(x)
        noise = torch.as_tensor(self.params.noise).to(mean).expand_as(mean)
        return mean, spread if variance else None, noise

    def covariance(self, x: Tensor) -> Tensor:
        return self.gp.covariance(x)

    def sample(self, chunks: Iterable[Tensor], count: int, rng: np.random.Generator) -> Array:
        draw = self.gp.draw(count, rng)
        return np.concatenate([draw(x).cpu().numpy() for x in chunks])

    def to(self, device: torch.device) -> NeighborModel:
        return replace(self, gp=self.gp.to(device))

    def status(self) -> dict[str, Any]:
        return {"neighbors": self.gp.k}

    def update(self, rows: StandardisedRows) -> NeighborModel:  # type: ignore[override]
        x, y = rows.tensors()
        return replace(self, gp=self.gp.to(rows.device).extend(x, y))
