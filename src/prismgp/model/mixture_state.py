"""Mixtures of experts, with their feature maps, as named tensors and JSON, and back; model files hold these."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.features import WeightPosterior
from prismgp.core.kernels import Parameters
from prismgp.core.statistics import Statistics
from prismgp.exceptions import ModelFileError
from prismgp.model.container import PARAMETERS, take, take_parameters
from prismgp.prism import Expert, FeatureMap, InformedMap, Mixture, NetworkSizes, PlainMap, ReconfiguredMap, RevisedMap
from prismgp.vae import MixtureVAE, ReleasedVAE, select_tensors

N = TypeVar("N", bound=torch.nn.Module)

_MAX_EXPERTS = 1_000
_MAX_NETWORK_LOG = 50.0  # of what the network exponentiates, in single precision
_POSTERIOR = ("weight_mean", "inverse_root")


def mixture_config(mixture: Mixture) -> list[dict[str, Any]]:
    """Return what is not in the tensors, for every expert."""
    return [
        {
            "name": expert.name,
            "kind": _map_kind(expert.map),
            "detail": _map_detail(expert.map),
            "rows": expert.statistics.n,
            "log_noise_sum": expert.statistics.log_noise_sum,
            "log_evidence": expert.log_evidence,
        }
        for expert in mixture.experts
    ]


def mixture_tensors(mixture: Mixture) -> dict[str, Tensor]:
    """All numbers of the mixture, float64."""
    tensors = {"weights": torch.as_tensor(mixture.weights), "temperature": torch.as_tensor(mixture.temperature)}
    for k, expert in enumerate(mixture.experts):
        own = {"moments": expert.statistics.moments, "noise_scale": torch.as_tensor(expert.noise_scale)}
        own |= {name: getattr(expert.posterior, name) for name in _POSTERIOR}
        if expert.weighted_by is not None:
            own |= {f"judge.{name}": getattr(expert.weighted_by.posterior, name) for name in _POSTERIOR}
            own["judge.noise_scale"] = torch.as_tensor(expert.weighted_by.noise_scale)
        own |= {name: torch.as_tensor(getattr(expert.params, name)) for name in PARAMETERS}
        own |= {f"map.{name}": value for name, value in _map_tensors(expert.map).items()}
        tensors |= {f"e{k}.{name}": value for name, value in own.items()}
    return {name: value.detach().to(torch.float64) for name, value in tensors.items()}


def build_mixture(tensors: dict[str, Tensor], config: Any, *, n: int, d: int, q: int, dtype: torch.dtype) -> Mixture:
    """The mixture of experts on n rows; anything that does not fit together raises ModelFileError."""
    if not isinstance(config, list) or not 1 <= len(config) <= _MAX_EXPERTS:
        raise ModelFileError("the file does not list its experts")
    weights = take(tensors, weights=(len(config),))[0].numpy()
    temperature = take(tensors, temperature=(q,))[0].numpy()
    if (weights <= 0).any() or abs(weights.sum() - 1.0) > 1e-9 or (temperature <= 0).any():
        raise ModelFileError("weights or temperature of the experts are out of range")
    parts = ((select_tensors(tensors, f"e{k}"), entry) for k, entry in enumerate(config))
    experts = tuple(_build_expert(own, entry, d=d, q=q, dtype=dtype) for own, entry in parts)
    mixture = Mixture(experts, weights, temperature)
    if any(expert.statistics.n != n for expert in experts):
        raise ModelFileError("the experts were fitted to different rows")
    mean, spread, noise = mixture.predict(torch.zeros(1, d, dtype=dtype), variance=True)
    if spread is None or not bool(torch.isfinite(mean + spread + noise).all()):
        raise ModelFileError("predictions of the model are not finite")
    return mixture


def _build_expert(own: dict[str, Tensor], entry: dict[str, Any], *, d: int, q: int, dtype: torch.dtype) -> Expert:
    inputs = own["log_lengthscale"].numel() if "log_lengthscale" in own else 0
    params = take_parameters(own, "", inputs, q)
    feature_map, width = _build_map(
        select_tensors(own, "map"), entry["kind"], entry["detail"], params, d=d, q=q, dtype=dtype
    )
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
    judge = select_tensors(own, "judge")
    if not judge:
        return found
    posterior, noise_scale = _build_posterior(judge, *known_by)
    return replace(found, weighted_by=replace(found, posterior=posterior, noise_scale=noise_scale))


def _build_posterior(own: dict[str, Tensor], params: Parameters, width: int, q: int) -> tuple[WeightPosterior, Array]:
    """The posterior of an expert's weights, and the factor on its noise."""
    weight_mean, inverse_root, scale = take(
        own, weight_mean=(width, q), inverse_root=(q, width, width), noise_scale=(q,)
    )
    if bool((scale <= 0).any()):
        raise ModelFileError("a noise factor is not positive")
    signal, mean = torch.as_tensor(params.signal), torch.as_tensor(params.mean)
    return WeightPosterior(weight_mean, inverse_root, signal, mean), scale.numpy()


# -- feature maps ------------------------------------------------------------------------------------


def _map_kind(feature_map: FeatureMap) -> str:
    if isinstance(feature_map, ReconfiguredMap) and isinstance(feature_map.vae, ReleasedVAE):
        return "released"
    kinds = {PlainMap: "plain", InformedMap: "informed", ReconfiguredMap: "reconfigured", RevisedMap: "revised"}
    return kinds[type(feature_map)]


def _map_detail(feature_map: FeatureMap) -> str:
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
    vae = {f"vae.{name}": value for name, value in feature_map.vae.state_dict().items()}
    return {"w": feature_map.plain.w, "shift": feature_map.shift, "scale": feature_map.scale, **vae}


def _build_map(
    tensors: dict[str, Tensor], kind: str, detail: str, params: Parameters, *, d: int, q: int, dtype: torch.dtype
) -> tuple[FeatureMap, int]:
    """The map and its number of features."""
    if kind == "revised":
        network = _build_network(tensors, detail, d=d, q=q)
        if len(params.log_lengthscale) != d + network.sizes.latent:
            raise ModelFileError("the length-scales are not those of the network")
        return network.to(dtype), network.sizes.width
    if kind not in ("plain", "informed", "reconfigured", "released") or tensors["w"].ndim != 2:
        raise ModelFileError(f"an expert of kind {kind!r} is unknown to this version")
    inputs, p = tensors["w"].shape
    plain = PlainMap(tensors["w"].to(dtype))
    if kind in ("plain", "informed"):
        if inputs != d:
            raise ModelFileError(f"the plain SSGP has {inputs} inputs, the model {d}")
        if kind == "plain":
            return plain, 2 * p
        network = _build_network(select_tensors(tensors, "network"), detail, d=d, q=q).to(dtype)
        (level,) = take(tensors, level=(1,))
        return InformedMap(plain, network, float(level)), 2 * p
    vae = (_build_released if kind == "released" else _build_vae)(select_tensors(tensors, "vae"))
    columns = vae.latent_dim if detail == "latent" else d
    if detail not in ("latent", "reconstruction") or inputs != columns or vae.encoder.first_weight.shape[1] != d:
        raise ModelFileError("the re-configuration does not fit the model")
    shift, scale = take(tensors, shift=(columns,), scale=(columns,))
    if bool((scale <= 0).any()):
        raise ModelFileError("a scale is not positive")
    return ReconfiguredMap(vae, detail, shift, scale, plain), 2 * p


def _build_network(tensors: dict[str, Tensor], gating: str, *, d: int, q: int) -> RevisedMap:
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
    layers = sum(a * b for a, b in pairwise((d, *hidden, sizes.latent)))
    needed = layers + sizes.frequencies * (sizes.latent + d) + sizes.components * sizes.latent
    _check_count(tensors, needed, "the network")
    start = Parameters(np.zeros(d), np.zeros(q), np.zeros(q), np.zeros(q))
    frequencies = np.zeros((sizes.frequencies, sizes.latent + d))
    (directions,) = take(tensors, **{"prior.directions": (sizes.components, sizes.latent)})
    network = _load_network(RevisedMap(sizes, start, frequencies, torch.Generator(), directions.numpy()), tensors)
    for name, value in network.state_dict().items():
        exponent = "log_" in name and name != "prior.log_weights"  # whose weights may be tiny
        if exponent and bool((value.abs() > _MAX_NETWORK_LOG).any()):
            raise ModelFileError(f"tensor {name!r} is out of range")
    return network


def _build_released(tensors: dict[str, Tensor]) -> ReleasedVAE:
    """As :func:`_build_vae`."""
    try:
        n_components, hidden, latent_dim = tensors["encoder.mean_weight"].shape
        _, n_inputs = tensors["encoder.first_weight"].shape
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"the tensors are not those of the released recipe ({error})") from error
    if min(n_components, hidden, latent_dim, n_inputs) < 1:
        raise ModelFileError("a layer of the networks is empty")
    needed = 2 * n_components * hidden * (n_inputs + 2 * latent_dim) + hidden * (latent_dim + 2 * n_inputs)
    _check_count(tensors, needed, "the networks")
    vae = ReleasedVAE(n_inputs, n_components, latent_dim, hidden, generator=torch.Generator())
    vae = _load_network(vae, tensors)
    if any(bool((tensors[f"{name}.hidden_var"] < 0).any()) for name in ("encoder", "decoder")):
        raise ModelFileError("a variance is negative")
    return vae


def _build_vae(tensors: dict[str, Tensor]) -> MixtureVAE:
    """The networks in float64; sizes are read off the tensors, and any disagreement raises ModelFileError."""
    try:
        n_components, hidden, _ = tensors["encoder.head_weight"].shape
        _, latent_dim = tensors["prior.directions"].shape
        _, n_inputs = tensors["encoder.first_weight"].shape
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"the tensors are not those of a Reconfigurer ({error})") from error
    if min(n_components, hidden, latent_dim, n_inputs) < 1:
        raise ModelFileError("a layer of the networks is empty")
    columns = n_inputs + latent_dim
    needed = n_components * hidden * (columns + 2 * hidden) + n_components * (2 * columns + latent_dim)
    _check_count(tensors, needed, "a Reconfigurer")
    (directions,) = take(tensors, **{"prior.directions": (n_components, latent_dim)})
    sizes = n_inputs, n_components, latent_dim, hidden
    vae = MixtureVAE(*sizes, generator=torch.Generator(), directions=directions.numpy())
    vae = _load_network(vae, tensors)
    if any(bool((tensors[name] <= 0).any()) for name in ("encoder.running_var", "decoder.running_var")):
        raise ModelFileError("a scale is not positive")
    return vae


def _check_count(tensors: dict[str, Tensor], needed: int, what: str) -> None:
    """Compare the sizes with how many numbers the file has, before anything is allocated."""
    if needed > sum(tensor.numel() for tensor in tensors.values()):
        raise ModelFileError(f"the tensors do not make up {what}")


def _load_network(network: N, tensors: dict[str, Tensor]) -> N:
    """The network in float64 with the tensors of a file, after a check of their shapes."""
    expected = network.double().state_dict()
    take(tensors, **{name: tuple(value.shape) for name, value in expected.items()})
    network.load_state_dict({name: tensors[name] for name in expected})
    return network.eval().requires_grad_(False)
