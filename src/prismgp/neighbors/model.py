"""The fitted neighbour GP: a model that predicts every row from its nearest training rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.kernels import Parameters
from prismgp.core.models import Predictor
from prismgp.core.numerics import Factor
from prismgp.core.process import Functions
from prismgp.core.rows import RowNoise
from prismgp.data import StandardisedRows
from prismgp.neighbors.fit import log_evidence
from prismgp.neighbors.local import LocalGP, check_observations
from prismgp.neighbors.shards import PointShards

_PREDICTION_ROWS = 16_384  # of a search; their matrices come in smaller blocks
_PASS_FREQUENCIES = 1  # chunks of a pass that collects rows


@dataclass(frozen=True)
class CollectRows:
    """A pass: all rows, with targets and noise columns in float64."""

    def over(
        self,
        chunks: Iterable[tuple[Tensor, Tensor]],
        *,
        rows: int,  # noqa: ARG002
        q: int,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        found = [(x, y.double()) for x, y in chunks]
        return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])

    def merge(self, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])


def collect_rows(rows: StandardisedRows) -> tuple[Tensor, Tensor, RowNoise | None]:
    """Inputs, in the precision of the computation, targets, float64, and noise of all rows."""
    x, y = rows.chunks(_PASS_FREQUENCIES).reduce(CollectRows())
    return x, *RowNoise.split(y, rows.n_outputs)


def keep_rows(rows: StandardisedRows) -> tuple[Tensor, Tensor, RowNoise | None, PointShards | None]:
    """The same; and the inputs in the memory of the workers, if the rows are on a cluster."""
    kept = rows.chunks(_PASS_FREQUENCIES).keep(CollectRows())
    parts = kept.load()
    x, y = parts[0] if len(parts) == 1 else (torch.cat(each) for each in zip(*parts, strict=True))
    shards = PointShards(kept, len(x), itemgetter(0)) if kept.distributed else None
    return x, *RowNoise.split(y, rows.n_outputs), shards


@dataclass(frozen=True)
class NeighborModel(Predictor):
    """A GP on the nearest training rows, whose coordinates are the standardised inputs."""

    gp: LocalGP
    log_evidence: float  # as neighbors.fit.log_evidence defines it
    factors: tuple[Factor, ...] = (Factor(torch.empty(0)),)  # matrices are factored when rows are predicted

    @classmethod
    def of(cls, gp: LocalGP) -> NeighborModel:
        """The model with its evidence, which workers help to find, if there are any."""
        return cls(gp.leave_cluster(), log_evidence(gp))

    @property
    def params(self) -> Parameters:  # type: ignore[override]
        return self.gp.params

    @property
    def n_rows(self) -> int:
        return self.gp.n_rows

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        return _PREDICTION_ROWS

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        mean, spread, noise, _ = self.gp.predict(x.reshape(-1, x.shape[-1]))
        shape = (*x.shape[:-1], -1)
        return mean.reshape(shape), spread.reshape(shape) if variance else None, noise.reshape(shape)

    def covariance(self, x: Tensor) -> Tensor:
        return self.gp.covariance(x)

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        return self.gp.draw(count, rng)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> NeighborModel:
        """The rows join those that may be neighbours, as by :meth:`update`; the evidence stays that of the fit."""
        check_observations(x, y, noise)
        return replace(self, gp=self.gp.extend(x, y))

    def to(self, device: torch.device) -> NeighborModel:
        return replace(self, gp=self.gp.to(device))

    def status(self) -> dict[str, Any]:
        return {"neighbors": self.gp.k}

    def update(self, rows: StandardisedRows) -> NeighborModel:  # type: ignore[override]
        return NeighborModel.of(self.gp.to(rows.device).extend(*collect_rows(rows)))
