"""From a fitted model and its training rows to the problems that are certified: one per member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from prismgp._types import AnyArray, Tensor
from prismgp.certificates.kernel_matrix import ReferenceKernel
from prismgp.certificates.problem import Features, Problem, TestPoints
from prismgp.core.features import spectral_features
from prismgp.core.gating import hard_gates
from prismgp.core.kernels import Kernel, get_kernel
from prismgp.core.models import SpectralModel
from prismgp.core.parameters import Parameters
from prismgp.core.statistics import Statistics
from prismgp.data import standardise
from prismgp.estimators import GPRegressor, given_labels
from prismgp.exceptions import DataError
from prismgp.prism import Expert, Mixture, ReconfiguredMap, RevisedMap, limited

REFERENCES = ("auto", "gated", "full")
_ROWS = 16_384  # of the networks and features at a time
_SAME = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the norms, the difference of two sums over the same rows


@dataclass(frozen=True)
class Member:
    """A problem, and the weight of its model in the whole."""

    problem: Problem
    weight: float


@dataclass(frozen=True)
class _Inputs:
    """What the kernel of a member sees of some rows, and its own features of them."""

    points: Tensor  # divided by the length-scales, float64
    features: Features
    log_noise: Tensor | None


_Look = Callable[[Tensor, slice | None], _Inputs]  # standardised rows, and which training rows they are


def members_of(estimator: GPRegressor, X: Any, y: Any, X_test: Any, *, reference: str) -> list[Member]:
    """The problems of a fitted model, in the model's units."""
    source = estimator.read_rows(X, y).load()
    model = estimator.current_model()
    predictor, s, device = model.predictor, model.standardiser, model.device
    place: dict[str, Any] = {"dtype": torch.float64, "device": device}
    x = standardise(source.x, s.x_shift, s.x_scale, **place)
    target = standardise(source.y, s.y_shift, s.y_scale, **place)
    test = None if X_test is None else estimator.read_inputs(X_test)
    x_test = None if test is None else standardise(test, s.x_shift, s.x_scale, **place)
    kernel = get_kernel(model.kernel)
    if isinstance(predictor, Mixture):
        return [
            Member(_expert_problem(kernel, expert, x, target, x_test, reference), float(weight))
            for expert, weight in zip(predictor.experts, predictor.weights, strict=True)
        ]
    if not isinstance(predictor, SpectralModel):
        raise DataError("an ExactGPRegressor is the exact GP: there is nothing to certify")
    labels = None
    if predictor.gating.kind == "hard":
        labels = given_labels(getattr(estimator, "partition", None), len(x), x.shape[1])
    problem = _ssgp_problem(kernel, predictor, x, target, x_test, reference, dtype=model.dtype, labels=labels)
    return [Member(problem, 1.0)]


def _ssgp_problem(
    kernel: Kernel,
    predictor: SpectralModel,
    x: Tensor,
    target: Tensor,
    x_test: Tensor | None,
    reference: str,
    *,
    dtype: torch.dtype,
    labels: AnyArray | None,
) -> Problem:
    w = predictor.projection(dtype=dtype, device=x.device)
    lengthscale = torch.as_tensor(predictor.params.lengthscale).to(x)
    gate = predictor.gating.gate

    def inputs(rows: Tensor, training: slice | None) -> _Inputs:
        phi = spectral_features(rows.to(dtype), w).double()
        gates = None if gate is None else gate.gates(rows.to(dtype))
        if training is not None and labels is not None and gates is not None:
            # The mask itself, not the rule for new rows.
            gates = hard_gates(torch.as_tensor(labels[training], device=rows.device), gates.shape[1])
        return _Inputs(rows / lengthscale, Features(phi, gates), None)

    return _problem(
        "sparse spectrum GP",
        inputs,
        lambda rows: predictor.predict(rows.to(dtype), variance=True),
        kernel,
        predictor.params,
        list(predictor.blocks),
        predictor.log_evidence,
        (x, target, x_test),
        gated_reference=reference == "gated",
        inputs_named="inputs",
        tolerance=_SAME[dtype],
    )


def _expert_problem(
    kernel: Kernel, expert: Expert, x: Tensor, target: Tensor, x_test: Tensor | None, reference: str
) -> Problem:
    lengthscale = torch.as_tensor(expert.params.lengthscale).to(x)
    kind, named = expert.map, "inputs"

    def inputs(rows: Tensor, _: slice | None) -> _Inputs:
        if isinstance(kind, RevisedMap):
            with torch.no_grad():
                encoded = kind(rows.to(kind.mean.dtype))
            seen = torch.cat([encoded.latent, limited(rows.to(kind.mean.dtype))], 1).double()
            gates = None if encoded.gates is None else encoded.gates.double()
            noise = None if encoded.log_noise is None else encoded.log_noise.double()
            return _Inputs(seen / lengthscale, Features(encoded.phi.double(), gates), noise)
        phi, log_noise = kind.training_features(rows)
        seen = (kind.reconfigure(rows) - kind.shift) / kind.scale if isinstance(kind, ReconfiguredMap) else rows
        noise = None if log_noise is None else log_noise.double()
        return _Inputs(seen / lengthscale, Features(phi.double(), None), noise)

    if isinstance(kind, RevisedMap | ReconfiguredMap):
        named = "latent inputs" if isinstance(kind, RevisedMap) else "re-configured inputs"
    return _problem(
        expert.name,
        inputs,
        lambda rows: expert.predict(rows, variance=True),
        kernel,
        expert.params,
        [expert.statistics],
        expert.log_evidence,
        (x, target, x_test),
        gated_reference=reference != "full",
        inputs_named=named,
        tolerance=_SAME[torch.float32],
    )


def _problem(
    name: str,
    inputs: _Look,
    predict: Callable[[Tensor], tuple[Tensor, Tensor | None, Tensor]],
    kernel: Kernel,
    params: Parameters,
    blocks: list[Statistics],
    log_evidence: float,
    data: tuple[Tensor, Tensor, Tensor | None],
    *,
    gated_reference: bool,
    inputs_named: str,
    tolerance: float,
) -> Problem:
    x, target, x_test = data
    seen = _all(x, inputs, training=True)
    weight = None if seen.log_noise is None else torch.exp(-seen.log_noise)
    _check_same_rows(seen, weight, target, blocks, tolerance)
    centre = seen.points.mean(0)
    features = seen.features
    gated = gated_reference and features.gates is not None
    rows = ReferenceKernel.on(kernel, seen.points - centre, _unit(features.gates) if gated else None)
    test = None
    if x_test is not None:
        there = _all(x_test, inputs, training=False)
        at = rows.at(there.points - centre, _unit(there.features.gates) if gated else None)
        found = [predict(x_test[i : i + _ROWS]) for i in range(0, len(x_test), _ROWS)]
        columns = ([each for each in column if each is not None] for column in zip(*found, strict=True))
        test = TestPoints(at, *(torch.cat(column).cpu().numpy() for column in columns))
    where = "with the gated kernel on the same" if gated else "on the same"
    return Problem(
        rows=rows,
        features=features,
        target=target - torch.as_tensor(params.mean).to(target),
        weight=weight,
        signal=params.signal,
        noise=params.noise,
        mean=params.mean,
        log_evidence=log_evidence,
        test=test,
        name=name,
        statement=f"the exact GP {where} {inputs_named}, with the same kernel parameters and noise",
    )


def _all(x: Tensor, inputs: _Look, *, training: bool) -> _Inputs:
    """All rows, chunk by chunk: networks are wide."""
    slices = [slice(i, i + _ROWS) for i in range(0, len(x), _ROWS)]
    parts = [inputs(x[part], part if training else None) for part in slices]

    def join(values: list[Tensor | None]) -> Tensor | None:
        return None if values[0] is None else torch.cat([each for each in values if each is not None])

    points = torch.cat([part.points for part in parts])
    phi = torch.cat([part.features.phi for part in parts])
    gates = join([part.features.gates for part in parts])
    return _Inputs(points, Features(phi, gates), join([part.log_noise for part in parts]))


def _unit(gates: Tensor | None) -> Tensor | None:
    """Gates of norm one to the last digit: the exact kernel has a diagonal of one."""
    return None if gates is None else gates / gates.square().sum(1, keepdim=True).sqrt()


def _check_same_rows(
    seen: _Inputs, weight: Tensor | None, target: Tensor, blocks: list[Statistics], tolerance: float
) -> None:
    """A certificate compares with the exact GP on the rows the model has seen, all of them and no others."""
    n = sum(block.n for block in blocks)
    if len(target) != n:
        raise DataError(
            f"X has {len(target):,} rows, but the model has seen {n:,}; certify needs exactly the rows the "
            "model was fitted on"
        )
    stored, sizes = _sums(blocks)
    found = torch.zeros_like(stored)
    fixed = torch.cat([torch.ones_like(target[:, :1]), target], 1)
    if weight is not None:
        fixed *= weight[:, None]
    for i in range(0, n, _ROWS):  # gated features are wide
        part = slice(i, i + _ROWS)
        wide = seen.features.rows(part).wide()
        found += torch.cat([wide, torch.ones_like(wide[:, :1])], 1).T.cpu() @ fixed[part].cpu()
    if found.shape != stored.shape or not bool(((found - stored).abs() <= tolerance * sizes).all()):
        raise DataError(
            "X and y are not the rows the model was fitted on: their sums differ; pass the training rows "
            "(and a model with the partition it was fitted with, where that was given as labels)"
        )


def _sums(blocks: list[Statistics]) -> tuple[Tensor, Tensor]:
    """``[Phi, 1]' V^-1 [1, Y]`` as the model has it, and for each entry the norms of its columns, multiplied."""
    sums, sizes = [], []
    for block in blocks:
        k = block.width
        norms = block.moments.diagonal().clamp_min(0.0).sqrt().cpu()
        sums.append(block.moments[: k + 1, k:].cpu())
        sizes.append(norms[: k + 1, None] * norms[k:])

    def join(parts: list[Tensor]) -> Tensor:
        # Features of blocks are columns side by side; the ones, the last row of each, are common to all.
        return torch.cat([*(part[:-1] for part in parts), torch.stack([part[-1:] for part in parts]).sum(0)])

    return join(sums), join(sizes)
