"""From a fitted model and its training rows to the problems that are certified: one per member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from prismgp._types import AnyArray, Tensor
from prismgp.certificates.kernel_matrix import ReferenceKernel
from prismgp.certificates.problem import Features, Problem, TestPoints
from prismgp.core.exact import ExactModel
from prismgp.core.features import limit_inputs, spectral_features
from prismgp.core.gating import hard_gates
from prismgp.core.kernels import Kernel, get_kernel
from prismgp.core.models import Predictor, SpectralModel, standardise
from prismgp.core.rows import RowNoise
from prismgp.core.statistics import Statistics
from prismgp.data import Source, merge_copies
from prismgp.exceptions import DataError
from prismgp.model import FittedModel
from prismgp.neighbors import NeighborModel
from prismgp.prism import Expert, LocalMixture, Mixture, ReconfiguredMap, RevisedMap, clip_inputs, weight_noise

REFERENCES = ("auto", "gated", "full")
_ROWS = 16_384  # of the networks and features at a time
_SAME = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the norms, the difference of two sums over the same rows


class Certifiable(Protocol):
    """What a certificate needs of a fitted estimator."""

    model_: FittedModel

    def read_training_rows(self, X: Any, y: Any, sample_weight: Any, noise_variance: Any) -> Source:
        """Rows and targets of the fit as the model takes them."""

    def read_inputs(self, X: Any) -> AnyArray:
        """Inputs as the model takes them."""

    def current_model(self) -> FittedModel:
        """The fitted model where the estimator computes."""


@dataclass(frozen=True)
class _Seen:
    """What the kernel of a member sees of some rows, and its own features of them."""

    points: Tensor  # divided by the length-scales, float64
    features: Features
    log_noise: Tensor | None


@dataclass(frozen=True)
class _Data:
    """Standardised rows, float64, and the kernel of the model that is fitted to them."""

    x: Tensor
    target: Tensor
    x_test: Tensor | None
    kernel: Kernel
    row_noise: RowNoise | None  # of the rows, where they differ


_See = Callable[[Tensor, slice | None], _Seen]  # standardised rows, and which training rows they are


def spectral_part(predictor: Predictor) -> Predictor:
    """The part of a predictor that is certified: of a mixture with neighbours, the mixture without them."""
    return predictor.base if isinstance(predictor, LocalMixture) else predictor


def problems_of(
    estimator: Certifiable, X: Any, y: Any, X_test: Any, *, reference: str, noise: tuple[Any, Any] = (None, None)
) -> list[Problem]:
    """The problems of a fitted model, one per member, in the model's units.

    ``noise`` are weights and known noise variances of the rows.
    """
    if isinstance(estimator.model_.predictor, ExactModel):
        raise DataError("an ExactGPRegressor is the exact GP: there is nothing to certify")
    rows = estimator.read_training_rows(X, y, *noise)
    if estimator.model_.status.get("weighted") and not rows.n_noise:
        raise DataError(
            "the model was fitted with sample_weight or noise_variance; certify needs them too: pass those of the fit"
        )
    source = rows.load().with_labels(rows.labels)  # load may drop the labels
    model = estimator.current_model()
    if source.n_rows != model.n_rows:
        source = merge_copies(source).load()  # as a fit to few rows does
    predictor, s = model.predictor, model.standardiser
    place: dict[str, Any] = {"dtype": torch.float64, "device": model.device}
    x = standardise(model.complete(source.x), s.x_shift, s.x_scale, **place)
    columns = standardise(source.y, *s.target_units(source.n_noise), **place)
    target, row_noise = RowNoise.split(columns, source.n_outputs)
    test = None if X_test is None else model.complete(estimator.read_inputs(X_test))
    x_test = None if test is None else standardise(test, s.x_shift, s.x_scale, **place)
    data = _Data(x, target, x_test, get_kernel(model.kernel), row_noise)
    predictor = spectral_part(predictor)
    if isinstance(predictor, Mixture):
        return [_expert_problem(expert, data, gated=reference != "full") for expert in predictor.experts]
    if isinstance(predictor, NeighborModel):
        return [_neighbor_problem(predictor, data, dtype=model.dtype)]
    assert isinstance(predictor, SpectralModel)
    return [_ssgp_problem(predictor, data, gated=reference == "gated", dtype=model.dtype, labels=source.labels)]


def _ssgp_problem(
    predictor: SpectralModel, data: _Data, *, gated: bool, dtype: torch.dtype, labels: AnyArray | None
) -> Problem:
    w = predictor.projection(dtype=dtype, device=data.x.device)
    lengthscale = torch.as_tensor(predictor.params.lengthscale).to(data.x)
    gate = predictor.gating.gate

    def see(rows: Tensor, training: slice | None) -> _Seen:
        rows = limit_inputs(rows, predictor.limits)
        phi = spectral_features(rows.to(dtype), w).double()
        gates = None if gate is None else gate.gates(rows.to(dtype))
        if training is not None and labels is not None and gates is not None:
            # By the given labels, not by the rule for new rows.
            gates = hard_gates(torch.as_tensor(labels[training], device=rows.device), gates.shape[1])
        return _Seen(rows / lengthscale, Features(phi, gates), None)

    common: dict[str, Any] = {"gated": gated, "dtype": dtype, "tolerance": _SAME[dtype]}
    return _problem(predictor, see, predictor.blocks, data, name="sparse spectrum GP", inputs="inputs", **common)


def _neighbor_problem(predictor: NeighborModel, data: _Data, *, dtype: torch.dtype) -> Problem:
    """The problem of a neighbour GP, which has no kernel matrix of its own: only its predictions can be certified."""
    gp, lengthscale = predictor.gp, torch.as_tensor(predictor.params.lengthscale).to(data.x)
    kept = torch.cat([gp.coordinates.double(), torch.ones_like(gp.targets[:, :1]), gp.targets], 1)
    if gp.row_noise is not None:
        kept = kept * torch.exp(-0.5 * gp.row_noise.log_relative(float(gp.params.noise[0])))[:, None]
    sums = Statistics(gp.n_rows, gp.targets.shape[1], kept.T @ kept)  # as if the inputs were features

    def see(rows: Tensor, _: slice | None) -> _Seen:
        return _Seen(rows / lengthscale, Features(rows, None), None)

    common: dict[str, Any] = {"gated": False, "dtype": dtype, "tolerance": _SAME[dtype]}
    return _problem(predictor, see, [sums], data, name="neighbour GP", inputs="inputs", **common)


def _expert_problem(expert: Expert, data: _Data, *, gated: bool) -> Problem:
    kind, lengthscale = expert.map, torch.as_tensor(expert.params.lengthscale).to(data.x)
    columns = data.target if data.row_noise is None else torch.cat([data.target, data.row_noise.columns], 1)

    def see(rows: Tensor, training: slice | None) -> _Seen:
        if isinstance(kind, RevisedMap):
            narrow = rows.to(kind.mean.dtype)
            with torch.no_grad():
                encoded = kind(narrow)
            points, gates = torch.cat([encoded.latent, clip_inputs(narrow)], 1).double(), encoded.gates
            phi, log_noise = encoded.phi, encoded.log_noise
        else:
            (phi, log_noise), points, gates = kind.training_features(rows), rows, None
            if isinstance(kind, ReconfiguredMap):
                points = (kind.reconfigure(rows) - kind.shift) / kind.scale
        features = Features(phi.double(), None if gates is None else gates.double())
        log_noise = None if log_noise is None else log_noise.double()
        if training is not None and expert.weighted_by is not None:  # some rows count less in the posterior
            log_noise = weight_noise(log_noise, expert.weighted_by.robust_weights(rows, columns[training]))
        return _Seen(points / lengthscale, features, log_noise)

    prefix = (
        "latent " if isinstance(kind, RevisedMap) else "re-configured " if isinstance(kind, ReconfiguredMap) else ""
    )
    common: dict[str, Any] = {"gated": gated, "dtype": torch.float64, "tolerance": _SAME[torch.float32]}
    return _problem(expert, see, [expert.statistics], data, name=expert.name, inputs=f"{prefix}inputs", **common)


def _problem(
    predictor: SpectralModel | Expert | NeighborModel,
    see: _See,
    blocks: Sequence[Statistics],
    data: _Data,
    *,
    name: str,
    inputs: str,
    gated: bool,
    dtype: torch.dtype,
    tolerance: float,
) -> Problem:
    """A problem; ``gated``: the exact GP has the gates too, where there are any; ``dtype`` of rows to predict."""
    params, seen = predictor.params, _see_all(data.x, see, training=True)
    log_noise = seen.log_noise
    if data.row_noise is not None:
        log_noise = data.row_noise.log_relative(float(params.noise[0]), log_noise)
    weight = None if log_noise is None else torch.exp(-log_noise)
    _check_same_rows(seen, weight, data.target, blocks, tolerance)
    centre = seen.points.mean(0)
    gated = gated and seen.features.gates is not None
    rows = ReferenceKernel.on(data.kernel, seen.points - centre, _unit(seen.features.gates) if gated else None)
    test = None
    if data.x_test is not None:
        there = _see_all(data.x_test, see, training=False)
        at = rows.at(there.points - centre, _unit(there.features.gates) if gated else None)
        parts = (data.x_test[i : i + _ROWS].to(dtype) for i in range(0, len(data.x_test), _ROWS))
        found = [predictor.predict(part, variance=True) for part in parts]
        columns = ([each for each in column if each is not None] for column in zip(*found, strict=True))
        test = TestPoints(at, *(torch.cat(column).cpu().numpy() for column in columns))
    where = "with the gated kernel on the same" if gated else "on the same"
    return Problem(
        rows=rows,
        features=seen.features,
        target=data.target - torch.as_tensor(params.mean).to(data.target),
        weight=weight,
        signal=params.signal,
        noise=params.noise,
        mean=params.mean,
        log_evidence=predictor.log_evidence,
        test=test,
        name=name,
        statement=f"the exact GP {where} {inputs}, with the same kernel parameters and noise",
    )


def _see_all(x: Tensor, see: _See, *, training: bool) -> _Seen:
    """Apply ``see`` to all rows, chunk by chunk, as networks need much memory."""
    slices = [slice(i, i + _ROWS) for i in range(0, len(x), _ROWS)]
    parts = [see(x[part], part if training else None) for part in slices]

    def join(values: list[Tensor | None]) -> Tensor | None:
        return None if values[0] is None else torch.cat([each for each in values if each is not None])

    points = torch.cat([part.points for part in parts])
    phi = torch.cat([part.features.phi for part in parts])
    gates = join([part.features.gates for part in parts])
    return _Seen(points, Features(phi, gates), join([part.log_noise for part in parts]))


def _unit(gates: Tensor | None) -> Tensor | None:
    """Gates normalised in float64, so that the diagonal of the exact kernel is one."""
    return None if gates is None else gates / gates.square().sum(1, keepdim=True).sqrt()


def _check_same_rows(
    seen: _Seen, weight: Tensor | None, target: Tensor, blocks: Sequence[Statistics], tolerance: float
) -> None:
    """Raise an error unless these are exactly the rows of the fit, as a certificate needs them.

    The sums ``[Phi, 1]' V^-1 [1, Y]`` are compared, relative to the product of the norms of their two columns.
    """
    n = sum(block.n for block in blocks)
    if len(target) != n:
        raise DataError(
            f"X has {len(target):,} rows, but the model has seen {n:,}; a certificate needs exactly the rows the "
            "model was fitted on"
        )

    def join(parts: list[Tensor]) -> Tensor:
        # Features of blocks are columns side by side; the ones, the last row of each, are common to all.
        return torch.cat([*(part[:-1] for part in parts), torch.stack([part[-1:] for part in parts]).sum(0)])

    norms = [block.moments.diagonal().clamp_min(0.0).sqrt().cpu() for block in blocks]
    sizes = join(
        [each[: block.width + 1, None] * each[block.width :] for block, each in zip(blocks, norms, strict=True)]
    )
    stored = join([block.moments[: block.width + 1, block.width :].cpu() for block in blocks])
    found = torch.zeros_like(stored)
    fixed = torch.cat([torch.ones_like(target[:, :1]), target], 1)
    if weight is not None:
        fixed *= weight[:, None]
    for i in range(0, n, _ROWS):  # gated features are wide
        part = slice(i, i + _ROWS)
        wide = seen.features.rows(part).expand()
        found += torch.cat([wide, torch.ones_like(wide[:, :1])], 1).T.cpu() @ fixed[part].cpu()
    if found.shape != stored.shape or not bool(((found - stored).abs() <= tolerance * sizes).all()):
        raise DataError(
            "X and y are not the rows the model was fitted on: their sums differ; pass the training rows "
            "(and a model with the partition it was fitted with, where that was given as labels)"
        )
