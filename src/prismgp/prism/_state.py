"""A mixture of experts as named tensors and JSON, and back; the model file holds these."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from prismgp._tensors import take
from prismgp._types import Tensor
from prismgp.core.parameters import Parameters
from prismgp.core.statistics import Statistics
from prismgp.exceptions import ModelFileError
from prismgp.prism._experts import Expert, FeatureMap, InformedMap, Mixture, PlainMap, ReconfiguredMap
from prismgp.prism.network import NetworkSizes, RevisedMap
from prismgp.vae import state_tensors, vae_from_tensors

__all__ = ["mixture_config", "mixture_from_tensors", "mixture_tensors"]

_PARAMETERS = ("log_lengthscale", "log_signal", "log_noise", "mean")
_MAX_EXPERTS = 1_000
_MAX_LOG = 700.0
_MAX_NETWORK_LOG = 50.0  # of what the network exponentiates, in single precision


def mixture_config(mixture: Mixture) -> list[dict[str, Any]]:
    """What the tensors do not say, for every expert."""
    return [
        {
            "name": expert.name,
            "kind": _kind(expert.map),
            "detail": _detail(expert.map),
            "rows": expert.statistics.n,
            "log_noise_sum": expert.statistics.log_noise_sum,
        }
        for expert in mixture.experts
    ]


def mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """All numbers of the mixture, float64; posteriors are computed again from the statistics."""
    tensors = {"weights": torch.as_tensor(mixture.weights), "temperature": torch.as_tensor(mixture.temperature)}
    for k, expert in enumerate(mixture.experts):
        own = {"moments": expert.statistics.moments, "noise_scale": torch.as_tensor(expert.noise_scale)}
        own |= {name: torch.as_tensor(getattr(expert.params, name)) for name in _PARAMETERS}
        own |= {f"map.{name}": value for name, value in _map_tensors(expert.map).items()}
        tensors |= {f"e{k}.{name}": value for name, value in own.items()}
    # safetensors refuses tensors that share memory.
    return {name: value.detach().to("cpu", torch.float64).contiguous().clone() for name, value in tensors.items()}


def mixture_from_tensors(
    tensors: dict[str, Tensor], config: Any, *, n: int, d: int, q: int, dtype: torch.dtype
) -> Mixture:
    """The mixture of experts on n rows; anything that does not fit together raises ModelFileError."""
    if not isinstance(config, list) or not 1 <= len(config) <= _MAX_EXPERTS:
        raise ModelFileError("the file does not list its experts")
    weights = take(tensors, weights=(len(config),))[0].numpy()
    temperature = take(tensors, temperature=(q,))[0].numpy()
    if (weights <= 0).any() or abs(weights.sum() - 1.0) > 1e-9 or (temperature <= 0).any():
        raise ModelFileError("weights or temperature of the experts are out of range")
    experts = []
    for k, entry in enumerate(config):
        own = {name[len(f"e{k}.") :]: value for name, value in tensors.items() if name.startswith(f"e{k}.")}
        experts.append(_expert(own, entry, d=d, q=q, dtype=dtype))
    mixture = Mixture(tuple(experts), weights, temperature)
    if any(expert.statistics.n != n for expert in experts):
        raise ModelFileError("the experts were fitted to different rows")
    mean, spread, noise = mixture.predict(torch.zeros(1, d, dtype=dtype), variance=True)
    if spread is None or not bool(torch.isfinite(mean + spread + noise).all()):
        raise ModelFileError("the model predicts no finite numbers")
    return mixture


def _expert(own: dict[str, Tensor], entry: dict[str, Any], *, d: int, q: int, dtype: torch.dtype) -> Expert:
    inputs = own["log_lengthscale"].numel() if "log_lengthscale" in own else 0
    shapes = {"log_lengthscale": (inputs,), "log_signal": (q,), "log_noise": (q,), "mean": (q,)}
    params = Parameters(*(tensor.numpy() for tensor in take(own, **shapes)))
    logs = np.concatenate([params.log_lengthscale, params.log_signal, params.log_noise])
    if np.abs(logs).max() > _MAX_LOG:
        raise ModelFileError("a parameter is out of range")
    noise_scale = take(own, noise_scale=(q,))[0].numpy()
    if (noise_scale <= 0).any():
        raise ModelFileError("a noise factor is not positive")
    inner = {name[len("map.") :]: value for name, value in own.items() if name.startswith("map.")}
    feature_map, width = _feature_map(inner, entry["kind"], entry["detail"], params, d=d, q=q, dtype=dtype)
    size = width + 1 + q
    (moments,) = take(own, moments=(size, size))
    rows, log_noise_sum = entry["rows"], entry["log_noise_sum"]
    known = isinstance(rows, int) and isinstance(log_noise_sum, float)
    size_of = moments.diagonal().abs().max()
    symmetric = bool((moments - moments.T).abs_().max() <= 1e-6 * size_of)
    sound = symmetric and bool((moments.diagonal() >= 0).all())
    if not known or rows < 1 or not math.isfinite(log_noise_sum) or not sound:
        raise ModelFileError("the statistics of an expert are out of range")
    stats = Statistics(rows, q, moments, log_noise_sum)
    return replace(Expert.of(str(entry["name"]), feature_map, params, stats), noise_scale=noise_scale)


def _kind(feature_map: FeatureMap) -> str:
    kinds = {PlainMap: "plain", InformedMap: "informed", ReconfiguredMap: "reconfigured", RevisedMap: "revised"}
    return kinds[type(feature_map)]


def _detail(feature_map: FeatureMap) -> str:
    if isinstance(feature_map, InformedMap):
        return feature_map.network.sizes.gating
    if isinstance(feature_map, RevisedMap):
        return feature_map.sizes.gating
    return feature_map.output if isinstance(feature_map, ReconfiguredMap) else ""


def _map_tensors(feature_map: FeatureMap) -> dict[str, Tensor]:
    if isinstance(feature_map, PlainMap):
        return {"w": feature_map.w}
    if isinstance(feature_map, RevisedMap):
        return feature_map.state_dict()
    if isinstance(feature_map, InformedMap):
        network = {f"network.{name}": value for name, value in feature_map.network.state_dict().items()}
        return {"w": feature_map.plain.w, "level": torch.tensor([feature_map.level], dtype=torch.float64), **network}
    assert isinstance(feature_map, ReconfiguredMap)
    size = len(feature_map.vae.encoder.first_weight.T)
    own = {"w": feature_map.plain.w, "shift": feature_map.shift, "scale": feature_map.scale}
    return {**own, **state_tensors(feature_map.vae, np.zeros(size), np.ones(size))}


def _feature_map(
    tensors: dict[str, Tensor], kind: str, detail: str, params: Parameters, *, d: int, q: int, dtype: torch.dtype
) -> tuple[FeatureMap, int]:
    """The map and its number of features."""
    if kind == "revised":
        network = _network(tensors, detail, d=d, q=q)
        if len(params.log_lengthscale) != d + network.sizes.latent:
            raise ModelFileError("the length-scales are not those of the network")
        return network.to(dtype), network.sizes.width
    if kind not in ("plain", "informed", "reconfigured") or tensors["w"].ndim != 2:
        raise ModelFileError(f"an expert of kind {kind!r} is unknown to this version")
    inputs, p = tensors["w"].shape
    plain = PlainMap(tensors["w"].to(dtype))
    if kind in ("plain", "informed"):
        if inputs != d:
            raise ModelFileError(f"the plain SSGP has {inputs} inputs, the model {d}")
        if kind == "plain":
            return plain, 2 * p
        own = {name[len("network.") :]: value for name, value in tensors.items() if name.startswith("network.")}
        (level,) = take(tensors, level=(1,))
        return InformedMap(plain, _network(own, detail, d=d, q=q).to(dtype), float(level)), 2 * p
    inner = {name: value for name, value in tensors.items() if name not in ("w", "shift", "scale")}
    vae, _, _ = vae_from_tensors(inner)
    columns = vae.prior.directions.shape[1] if detail == "latent" else d
    if detail not in ("latent", "reconstruction") or inputs != columns or vae.encoder.first_weight.shape[1] != d:
        raise ModelFileError("the re-configuration does not fit the model")
    shift, scale = take(tensors, shift=(columns,), scale=(columns,))
    if bool((scale <= 0).any()):
        raise ModelFileError("a scale is not positive")
    return ReconfiguredMap(vae, detail, shift, scale, plain), 2 * p


def _network(tensors: dict[str, Tensor], gating: str, *, d: int, q: int) -> RevisedMap:
    """Sizes are read off the tensors, so that a file cannot ask for more memory than it has."""
    if gating not in ("soft", "hard", "none"):
        raise ModelFileError(f"gating {gating!r} is unknown to this version")
    hidden: list[int] = []
    while f"layers.{len(hidden)}.bias" in tensors:
        hidden.append(tensors[f"layers.{len(hidden)}.bias"].numel())
    sizes = NetworkSizes(
        inputs=d,
        outputs=q,
        frequencies=len(tensors["frequencies"]),
        latent=tensors["latent_head.bias"].numel(),
        hidden=tuple(hidden),
        components=tensors["prior.log_widths"].numel(),
        gating=gating,
        noise="input" if "noise_head.bias" in tensors else "constant",
    )
    if min(sizes.frequencies, sizes.latent, sizes.components, *hidden) < 1:
        raise ModelFileError("a layer of the network is empty")
    # Against the numbers there are, before anything is allocated.
    layers = sum(a * b for a, b in pairwise((d, *hidden, sizes.latent)))
    needed = layers + sizes.frequencies * (sizes.latent + d) + sizes.components * sizes.latent
    if needed > sum(tensor.numel() for tensor in tensors.values()):
        raise ModelFileError("the tensors do not make up the network")
    start = Parameters(np.zeros(d), np.zeros(q), np.zeros(q), np.zeros(q))
    frequencies = np.zeros((sizes.frequencies, sizes.latent + d))
    (directions,) = take(tensors, **{"prior.directions": (sizes.components, sizes.latent)})
    network = RevisedMap(sizes, start, frequencies, torch.Generator(), directions.numpy())
    expected = network.state_dict()
    take(tensors, **{name: tuple(value.shape) for name, value in expected.items()})
    for name in expected:
        exponent = "log_" in name and name != "prior.log_weights"  # whose weights may be tiny
        if exponent and bool((tensors[name].abs() > _MAX_NETWORK_LOG).any()):
            raise ModelFileError(f"tensor {name!r} is out of range")
    network.double().load_state_dict({name: tensors[name] for name in expected})
    return network.eval().requires_grad_(False)
