"""Fitted models as named tensors and JSON, and back; model files hold these.

Under hard gates every array of a sparse spectrum GP has one more axis in front, the cluster; under soft gates there
are 2p features for each cluster; without gates it is as if there were one cluster.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from prismgp._types import Array, Tensor
from prismgp.core.exact import ExactModel, ExactPosterior
from prismgp.core.features import GATINGS, BlockPosterior, Gating, WeightPosterior
from prismgp.core.gating import RuleGate
from prismgp.core.kernels import Parameters, get_kernel
from prismgp.core.models import Predictor, SpectralModel
from prismgp.core.statistics import Statistics
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.model.container import PARAMETERS, take, take_parameters, under
from prismgp.model.expert_state import (
    build_local,
    build_map,
    build_neighbors,
    local_config,
    local_tensors,
    map_detail,
    map_kind,
    map_tensors,
)
from prismgp.neighbors.model import NeighborModel
from prismgp.prism import Expert, Mixture
from prismgp.prism.local import LocalMixture

_MAX_EXPERTS = 1_000
_POSTERIOR = ("weight_mean", "inverse_root")


def predictor_tensors(predictor: Predictor) -> dict[str, Tensor]:
    """All numbers of a fitted model, by name."""
    if isinstance(predictor, ExactModel):
        return {name: getattr(predictor.posterior, name) for name in ("x", "lower", "alpha")}
    if isinstance(predictor, SpectralModel):
        return _spectral_tensors(predictor)
    if isinstance(predictor, NeighborModel):
        return local_tensors(predictor)
    if isinstance(predictor, LocalMixture):
        return {**_mixture_tensors(predictor.base), **local_tensors(predictor)}
    assert isinstance(predictor, Mixture)
    return _mixture_tensors(predictor)


def predictor_config(predictor: Predictor) -> dict[str, Any]:
    """Return what is not in the tensors, as plain data for JSON."""
    if isinstance(predictor, SpectralModel):
        return _spectral_config(predictor)
    if isinstance(predictor, NeighborModel):
        return local_config(predictor)
    if isinstance(predictor, LocalMixture):
        return {"experts": _mixture_config(predictor.base), **local_config(predictor)}
    return {"experts": _mixture_config(predictor)} if isinstance(predictor, Mixture) else {}


def predictor_summary(predictor: Predictor) -> dict[str, Any]:
    """Return the gates of a model and its neighbour GPs, whose rows are part of the file, as plain data; or nulls."""
    gate = predictor.gating.gate if isinstance(predictor, SpectralModel) else None
    gating = None if gate is None else {"kind": gate.kind, "clusters": gate.n_clusters}
    if isinstance(predictor, NeighborModel):
        found = [("neighbours in inputs alone", 1.0, predictor.gp)]
    elif isinstance(predictor, LocalMixture):
        pairs = zip(predictor.near, predictor.weights[1:], strict=True)
        found = [(near.view.name, float(weight), near.gp) for near, weight in pairs]
    else:
        return {"gating": gating, "neighbors": None}
    neighbors = [
        {
            "name": name,
            "weight": weight,
            "rows": gp.n_rows,
            "neighbors": gp.k,
            "degrees": gp.degrees if math.isfinite(gp.degrees) else None,
        }
        for name, weight, gp in found
    ]
    return {"gating": gating, "neighbors": neighbors}


def build_predictor(
    kind: str,
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    arguments: dict[str, Any],
    params: Parameters,
    log_evidence: float,
    *,
    n: int,
    d: int,
    dtype: torch.dtype,
) -> Predictor:
    """Build the model of n rows with d inputs from its tensors and config; a mismatch raises ModelFileError."""
    if kind == "exact":
        return _build_exact(tensors, params, arguments["kernel"], log_evidence, n=n, d=d)
    if kind == "ssgp":
        return _build_spectral(tensors, config, arguments, params, log_evidence, n=n, d=d)
    if kind == "neighbors":
        return build_neighbors(tensors, config, params, log_evidence, n=n, d=d)
    if kind == "prism":
        mixture = _build_mixture(tensors, config["experts"], n=n, d=d, q=len(params.mean), dtype=dtype)
        return build_local(tensors, config, mixture, d=d) if "near" in config else mixture
    raise ModelFileError(f"estimator {kind!r} is unknown to this version")


def _build_exact(
    tensors: dict[str, Tensor], params: Parameters, kernel: str, log_evidence: float, *, n: int, d: int
) -> ExactModel:
    q = len(params.mean)
    x, lower, alpha = take(tensors, x=(n, d), lower=(q, n, n), alpha=(n, q))
    return ExactModel(params, ExactPosterior.at(params, x, lower, alpha, get_kernel(kernel)), log_evidence, ())


def _spectral_tensors(model: SpectralModel) -> dict[str, Tensor]:
    """Frequencies, statistics, posterior and gate."""
    gating = model.gating
    tensors = {
        "moments": [block.moments for block in model.blocks],
        "weight_mean": [block.weight_mean for block in model.posterior.blocks],
        "inverse_root": [block.inverse_root for block in model.posterior.blocks],
    }
    joined = {name: torch.stack(parts) if gating.kind == "hard" else parts[0] for name, parts in tensors.items()}
    joined["frequencies"] = torch.as_tensor(model.base)
    if model.limits is not None:
        joined["limits"] = model.limits
    gate = gating.gate
    if gate is None:
        return joined
    if not isinstance(gate, RuleGate):
        raise PrismGPError(
            f"the partition is a {type(getattr(gate, 'clusterer', gate)).__name__}, which a model file cannot hold "
            "(files hold numbers and text, never code); fit again with partition=labels, such as its predict(X), "
            "or with a KMeans or a GaussianMixture of diagonal covariances"
        )
    return {**joined, "gate.centres": gate.centres, "gate.roots": gate.roots, "gate.offsets": gate.offsets}


def _spectral_config(model: SpectralModel) -> dict[str, Any]:
    gating = model.gating
    config: dict[str, Any] = {}
    if any(block.log_noise_sum for block in model.blocks):
        config["log_noise_sums"] = [block.log_noise_sum for block in model.blocks]
    if gating.gate is None:
        return config
    rows = [block.n for block in model.blocks]
    return {"gate": gating.about, "clusters": gating.gate.n_clusters, "cluster_rows": rows, **config}


def _build_gating(tensors: dict[str, Tensor], config: dict[str, Any], kind: str, d: int) -> Gating:
    """The gate; a mismatch raises ModelFileError."""
    if kind == "none":
        return Gating()
    b = config["clusters"]
    if not isinstance(b, int) or isinstance(b, bool) or b < 1:
        raise ModelFileError(f"{b!r:.40} is no number of clusters")
    shapes = {"gate.centres": (b, d), "gate.roots": (b, d), "gate.offsets": (b,)}
    return Gating(RuleGate(kind, *take(tensors, **shapes)), dict(config["gate"]))


def _build_spectral(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    arguments: dict[str, Any],
    params: Parameters,
    log_evidence: float,
    *,
    n: int,
    d: int,
) -> SpectralModel:
    p, gating = arguments["n_frequencies"], arguments["gating"]
    if gating not in GATINGS:
        raise ModelFileError(f"gating {gating!r} is unknown to this version")
    q = len(params.mean)
    (frequencies,) = take(tensors, frequencies=(p, d))
    gate = _build_gating(tensors, config, gating, d)
    width = 2 * p * gate.widening
    front = () if gate.gate is None or gate.kind == "soft" else (gate.gate.n_clusters,)
    moments, weight_mean, inverse_root = take(
        tensors,
        moments=(*front, width + 1 + q, width + 1 + q),
        weight_mean=(*front, width, q),
        inverse_root=(*front, q, width, width),
    )
    if not front:
        moments, weight_mean, inverse_root = moments[None], weight_mean[None], inverse_root[None]
    rows = config["cluster_rows"] if gate.gate is not None else [n]
    sound = all(isinstance(count, int) and count >= 0 for count in rows)
    if not sound or len(rows) != len(moments) or sum(rows) != n:
        raise ModelFileError("the rows of the clusters are not those of the model")
    signal, mean = torch.as_tensor(params.signal), torch.as_tensor(params.mean)
    sums = config.get("log_noise_sums", [0.0] * len(rows))
    if not isinstance(sums, list) or len(sums) != len(rows) or not all(type(s) is float for s in sums):
        raise ModelFileError("the file does not say how noisy the rows are")
    stats = tuple(Statistics(count, q, each, own) for count, each, own in zip(rows, moments, sums, strict=True))
    parts = zip(weight_mean, inverse_root, strict=True)
    posterior = BlockPosterior(tuple(WeightPosterior(*part, signal, mean) for part in parts))
    limits = _build_limits(tensors, d) if "limits" in tensors else None
    return SpectralModel(frequencies.numpy(), params, gate, stats, posterior, log_evidence, (), limits)


def _build_limits(tensors: dict[str, Tensor], d: int) -> Tensor:
    (limits,) = take(tensors, limits=(2, d))
    if not bool((limits[0] < limits[1]).all()):
        raise ModelFileError("a lower limit of an input is not below the upper one")
    return limits


def _mixture_config(mixture: Mixture) -> list[dict[str, Any]]:
    """Return what is not in the tensors, for every expert."""
    return [
        {
            "name": expert.name,
            "kind": map_kind(expert.map),
            "detail": map_detail(expert.map),
            "rows": expert.statistics.n,
            "log_noise_sum": expert.statistics.log_noise_sum,
            "log_evidence": expert.log_evidence,
        }
        for expert in mixture.experts
    ]


def _mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """All numbers of the mixture, float64."""
    tensors = {"weights": torch.as_tensor(mixture.weights), "temperature": torch.as_tensor(mixture.temperature)}
    for k, expert in enumerate(mixture.experts):
        own = {"moments": expert.statistics.moments, "noise_scale": torch.as_tensor(expert.noise_scale)}
        own |= {name: getattr(expert.posterior, name) for name in _POSTERIOR}
        if expert.judge is not None:
            own |= {f"judge.{name}": getattr(expert.judge.posterior, name) for name in _POSTERIOR}
            own["judge.noise_scale"] = torch.as_tensor(expert.judge.noise_scale)
        own |= {name: torch.as_tensor(getattr(expert.params, name)) for name in PARAMETERS}
        own |= {f"map.{name}": value for name, value in map_tensors(expert.map).items()}
        tensors |= {f"e{k}.{name}": value for name, value in own.items()}
    return {name: value.detach().to(torch.float64) for name, value in tensors.items()}


def _build_mixture(tensors: dict[str, Tensor], config: Any, *, n: int, d: int, q: int, dtype: torch.dtype) -> Mixture:
    """The mixture of experts on n rows; anything that does not fit together raises ModelFileError."""
    if not isinstance(config, list) or not 1 <= len(config) <= _MAX_EXPERTS:
        raise ModelFileError("the file does not list its experts")
    weights = take(tensors, weights=(len(config),))[0].numpy()
    temperature = take(tensors, temperature=(q,))[0].numpy()
    if (weights <= 0).any() or abs(weights.sum() - 1.0) > 1e-9 or (temperature <= 0).any():
        raise ModelFileError("weights or temperature of the experts are out of range")
    parts = ((under(f"e{k}.", tensors), entry) for k, entry in enumerate(config))
    experts = tuple(_build_expert(own, entry, d=d, q=q, dtype=dtype) for own, entry in parts)
    mixture = Mixture(experts, weights, temperature)
    if any(expert.statistics.n != n for expert in experts):
        raise ModelFileError("the experts were fitted to different rows")
    mean, spread, noise = mixture.predict(torch.zeros(1, d, dtype=dtype), variance=True)
    if spread is None or not bool(torch.isfinite(mean + spread + noise).all()):
        raise ModelFileError("the model predicts no finite numbers")
    return mixture


def _build_expert(own: dict[str, Tensor], entry: dict[str, Any], *, d: int, q: int, dtype: torch.dtype) -> Expert:
    inputs = own["log_lengthscale"].numel() if "log_lengthscale" in own else 0
    params = take_parameters(own, "", inputs, q)
    feature_map, width = build_map(under("map.", own), entry["kind"], entry["detail"], params, d=d, q=q, dtype=dtype)
    size = width + 1 + q
    (moments,) = take(own, moments=(size, size))
    rows, log_noise_sum, log_evidence = (entry[name] for name in ("rows", "log_noise_sum", "log_evidence"))
    known = isinstance(rows, int) and all(isinstance(each, float) for each in (log_noise_sum, log_evidence))
    size_of = moments.diagonal().abs().max()
    symmetric = bool((moments - moments.T).abs_().max() <= 1e-6 * size_of)
    sound = symmetric and bool((moments.diagonal() >= 0).all())
    if not known or rows < 1 or not math.isfinite(log_noise_sum + log_evidence) or not sound:
        raise ModelFileError("the statistics of an expert are out of range")
    stats = Statistics(rows, q, moments, log_noise_sum)
    known_by = (params, width, q)
    found = Expert(str(entry["name"]), feature_map, params, stats, *_build_posterior(own, *known_by), log_evidence, ())
    judge = under("judge.", own)
    if not judge:
        return found
    posterior, noise_scale = _build_posterior(judge, *known_by)
    return replace(found, judge=replace(found, posterior=posterior, noise_scale=noise_scale))


def _build_posterior(own: dict[str, Tensor], params: Parameters, width: int, q: int) -> tuple[WeightPosterior, Array]:
    """The posterior of an expert's weights, and the factor on its noise."""
    weight_mean, inverse_root, scale = take(
        own, weight_mean=(width, q), inverse_root=(q, width, width), noise_scale=(q,)
    )
    if bool((scale <= 0).any()):
        raise ModelFileError("a noise factor is not positive")
    signal, mean = torch.as_tensor(params.signal), torch.as_tensor(params.mean)
    return WeightPosterior(weight_mean, inverse_root, signal, mean), scale.numpy()
