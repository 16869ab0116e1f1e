"""A fitted model as a torch module of tensors and elementary operations, for ``torch.export`` and ONNX.

The predictors compute as they always do. Three of their steps depend on the data in ways that a graph of operations
cannot, or ONNX has no operation for them; here they are replaced by others with the same result:

- rows under hard gates are predicted by all clusters, and one of the results is taken;
- the triangular solves of the exact GP become products with the inverse of the factor, and its distances differences of
  coordinates, as there is no telling which rows are near;
- nearest rows are found by all distances, and the systems of their kernel matrices are solved by elimination.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch

from prismgp._types import Tensor
from prismgp.core.exact import ExactModel, ExactPosterior
from prismgp.core.features import BlockPosterior, Gating
from prismgp.core.gating import RuleGate, hard_gates
from prismgp.core.models import Predictor, SpectralModel, standardise_tensor
from prismgp.core.numerics import Factor
from prismgp.core.statistics import Statistics
from prismgp.exceptions import DataError
from prismgp.model.fitted import FittedModel
from prismgp.neighbors import NeighborModel
from prismgp.neighbors.conditional import Conditionals, conditionals
from prismgp.neighbors.local import LocalGP
from prismgp.prism import LocalMixture, Mixture

MOST_NEIGHBOR_ROWS = 50_000  # every row to predict is compared with all of them


class PredictModule(torch.nn.Module):
    """Predict mean and standard deviation of new observations from raw inputs.

    Parameters
    ----------
    model : FittedModel
    """

    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor

    def __init__(self, model: FittedModel) -> None:
        super().__init__()
        s = model.standardiser
        for name in ("x_shift", "x_scale", "y_shift", "y_scale"):
            self.register_buffer(name, torch.as_tensor(getattr(s, name)).double().to(model.device, copy=True))
        self.predictor = _Held(_make_traceable(model.predictor))
        self.dtype, self.flat = model.dtype, model.target_ndim == 1
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, (n,) or (n, q), at rows (n, d), all float64."""
        predictor = self.predictor.value()
        rows = standardise_tensor(x, self.x_shift, self.x_scale, dtype=self.dtype)
        mean, variance, noise = predictor.predict(rows, variance=True)
        mean, std = mean * self.y_scale + self.y_shift, (variance + noise).sqrt() * self.y_scale
        return (mean[:, 0], std[:, 0]) if self.flat else (mean, std)


class _Held(torch.nn.Module):
    """A dataclass whose tensors, those of the dataclasses in it included, are buffers: they move and are saved."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._kind = type(value)
        self._others: dict[str, Any] = {}
        for field in fields(value):
            part = getattr(value, field.name)
            if isinstance(part, Tensor):
                self.register_buffer(field.name, part.detach().clone())
            elif isinstance(part, torch.nn.Module):
                self.add_module(field.name, copy.deepcopy(part))  # which may be moved; the model stays
            elif _holds_tensors(part):
                self.add_module(field.name, _Held(part))
            elif isinstance(part, tuple) and any(_holds_tensors(each) for each in part):
                self.add_module(field.name, torch.nn.ModuleList([_Held(each) for each in part]))
            else:
                self._others[field.name] = part

    def value(self) -> Any:
        """The dataclass with the present tensors."""
        found = {**self._others, **self._buffers}
        for name, part in self.named_children():
            if isinstance(part, torch.nn.ModuleList):
                found[name] = tuple(each.value() for each in part if isinstance(each, _Held))
            else:
                found[name] = part.value() if isinstance(part, _Held) else part
        return self._kind(**found)


def _holds_tensors(value: Any) -> bool:
    if not is_dataclass(value):
        return False
    parts = [getattr(value, field.name) for field in fields(value)]
    return any(isinstance(part, Tensor | torch.nn.Module | tuple) or _holds_tensors(part) for part in parts)


# -- predictors that can be traced -------------------------------------------------------------------


@dataclass(frozen=True)
class _AllBlocks(BlockPosterior):
    """Every row is predicted by all blocks, and its own result is taken."""

    def to(self, device: torch.device) -> _AllBlocks:  # noqa: ARG002 - the module is moved as a whole
        return self

    def predict(self, phi: Tensor, block: Tensor | None, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        if block is None:
            return self.blocks[0].predict(phi, variance=variance)
        own = hard_gates(block, len(self.blocks))
        found = [each.predict(phi, variance=variance) for each in self.blocks]
        mean = torch.einsum("nb,bnq->nq", own, torch.stack([each for each, _ in found]))
        spreads = [each for _, each in found if each is not None]
        return mean, torch.einsum("nb,bnq->nq", own, torch.stack(spreads)) if variance else None


@dataclass(frozen=True)
class _InverseFactors(ExactPosterior):
    """``lower`` has the inverses of the factors."""

    def to(self, device: torch.device) -> _InverseFactors:  # noqa: ARG002 - the module is moved as a whole
        return self

    def half_solve(self, k: int, cross: Tensor) -> Tensor:
        return self.lower[k] @ cross

    def _cross(self, x: Tensor) -> Tensor:
        return self.kernel.value(_distances(self.x, x, self.lengthscale))


@dataclass(frozen=True)
class _AllRows(LocalGP):
    """Every row is a neighbour of every point: the exact GP."""

    posterior: _InverseFactors | None = None

    @cached_property
    def whole(self) -> ExactPosterior | None:
        return self.posterior


@dataclass(frozen=True)
class _AllDistances(LocalGP):
    """Neighbours by all distances."""

    def predict(self, points: Tensor) -> Conditionals:
        points = self.round(points)
        near = self.gather(points, self._find_nearest(points))
        return conditionals(self.kernel, self.params, near, self.degrees, _eliminate)

    def _find_nearest(self, points: Tensor) -> Tensor:
        """Rows of the nearest, (m, k), by (distance, row number)."""
        scale = torch.as_tensor(self.params.lengthscale).to(points.device)
        total = _distances(points.double(), self.coordinates.double(), scale)
        if torch.onnx.is_in_onnx_export():  # which has no stable sort, but whose TopK is stable by its definition
            return total.topk(self.k, dim=1, largest=False).indices
        return total.sort(dim=1, stable=True).indices[:, : self.k]


def _distances(a: Tensor, b: Tensor, lengthscale: Tensor) -> Tensor:
    """Scaled squared distances of rows, (n, d) and (m, d): (n, m)."""
    total = a.new_zeros(a.shape[0], b.shape[0])
    for j in range(a.shape[1]):  # coordinate by coordinate: the memory is that of the distances
        total = total + ((a[:, j, None] - b[:, j]) / lengthscale[j]).square()
    return total


def _eliminate(a: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Solve A X = B, (m, k, c), by Gaussian elimination, for A with eigenvalues of at least one, and so pivots."""
    c = right.shape[2]
    rest = torch.cat([a, right], 2)
    rows = []
    for _ in range(a.shape[1]):
        row = rest[:, 0, 1:] / rest[:, 0, :1].clamp_min(1.0)
        rest = rest[:, 1:, 1:] - rest[:, 1:, :1] * row[:, None]
        rows.append(row)
    found = rows[-1][:, None]
    for row in rows[-2::-1]:
        known = (row[:, :-c, None] * found).sum(1, keepdim=True)
        found = torch.cat([row[:, None, -c:] - known, found], 1)
    return found, a


def _make_traceable(predictor: Predictor) -> Predictor:
    """The same predictor from operations that can be exported, without what predictions do not need."""
    if isinstance(predictor, SpectralModel):
        gate = predictor.gating.gate
        if gate is not None and not isinstance(gate, RuleGate):
            raise DataError(
                "to_torch: the gates of this model come from a clusterer of yours, whose code cannot be exported; fit "
                "with partition=None, or with a KMeans or GaussianMixture"
            )
        return replace(
            predictor,
            gating=Gating(gate),
            blocks=(),
            posterior=_AllBlocks(predictor.posterior.blocks),
            factors=(),
        )
    if isinstance(predictor, ExactModel):
        return replace(predictor, posterior=_invert(predictor.posterior), factors=())
    if isinstance(predictor, Mixture):
        nothing = Statistics(0, 0, torch.empty(0, 0))
        experts = (replace(expert, statistics=nothing, factors=()) for expert in predictor.experts)
        return replace(predictor, experts=tuple(experts))
    if isinstance(predictor, LocalMixture):
        base = _make_traceable(predictor.base)
        assert isinstance(base, Mixture)
        near = (replace(each, gp=_all_distances(each.gp)) for each in predictor.near)
        return replace(predictor, base=base, near=tuple(near))
    if isinstance(predictor, NeighborModel):
        return replace(predictor, gp=_all_distances(predictor.gp), factors=())
    raise DataError(f"to_torch: a {type(predictor).__name__} cannot be exported")


def _invert(old: ExactPosterior) -> _InverseFactors:
    inverse = torch.stack([Factor(lower).inverse_root() for lower in old.lower])
    values = {field.name: getattr(old, field.name) for field in fields(old)}
    return _InverseFactors(**{**values, "lower": inverse})


def _all_distances(gp: LocalGP) -> LocalGP:
    if gp.n_rows > MOST_NEIGHBOR_ROWS:
        raise DataError(
            f"to_torch: this model predicts from neighbours among {gp.n_rows:,} rows, and an exported model compares "
            f"with all of them; at most {MOST_NEIGHBOR_ROWS:,} can be exported. Fit with "
            f"local_rows={MOST_NEIGHBOR_ROWS} or fewer, or PrismGPRegressor with local='never'"
        )
    parts = gp.kernel, gp.params, gp.coordinates, gp.targets, gp.n_neighbors, gp.row_noise, None, gp.degrees
    return _AllDistances(*parts) if gp.whole is None else _AllRows(*parts, _invert(gp.whole))
