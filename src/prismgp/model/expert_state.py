"""Feature maps of experts and neighbour GPs as named tensors and JSON, and back; the GPs alone, or beside a mixture.

Neighbour GPs of one model share most of their numbers: coordinates without latent columns are the first columns of
those with them, and targets may be the same. A file holds the widest coordinates, and each array of targets, once:
``near.coordinates.0``, ``near.targets.0`` and so on, and the JSON says which belong to which neighbour GP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.kernels import KERNELS, Parameters
from prismgp.core.rows import RowNoise
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.model.container import PARAMETERS, take, take_parameters, under
from prismgp.neighbors.conditional import conditionals
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.model import NeighborModel
from prismgp.prism import FeatureMap, InformedMap, Mixture, NetworkSizes, PlainMap, ReconfiguredMap, RevisedMap
from prismgp.prism.local import LocalMixture, Near, View
from prismgp.vae import MixtureVAE, ReleasedVAE

N = TypeVar("N", bound=torch.nn.Module)

_MAX_NETWORK_LOG = 50.0  # of what the network exponentiates, in single precision
_COORDINATES = re.compile(r"near\.coordinates\.\d+")
_MOST_NEAR = 100  # neighbour GPs of a model
_MOST_NEIGHBORS = 2**14  # that are used: a few bytes must not ask for a kernel matrix of terabytes
_LARGEST = 1e100  # of targets, and of coordinates in length-scales: beyond it squares soon overflow
_LARGEST_LOG_RATIO = math.log(1e15)  # of signal to noise: beyond it factorisations fail
_TRIAL_NEIGHBORS = 256
_VIEW = ("residual", "latent", "whole")


# -- neighbour GPs -----------------------------------------------------------------------------------


def is_coordinates(name: str) -> bool:
    """Whether the tensor of that name may be float32."""
    return _COORDINATES.fullmatch(name) is not None


def local_tensors(model: NeighborModel | LocalMixture) -> dict[str, Tensor]:
    """All numbers of the neighbour GPs; of a :class:`NeighborModel`, without its parameters."""
    gps = _gps(model)
    coordinates, _ = _store([gp.coordinates for gp in gps])
    targets, _ = _store([gp.targets for gp in gps])
    tensors = {f"near.coordinates.{j}": each for j, each in enumerate(coordinates)}
    tensors |= {f"near.targets.{j}": each for j, each in enumerate(targets)}
    for k, gp in enumerate(gps):
        if gp.row_noise is not None:
            tensors[f"near.row_noise.{k}"] = gp.row_noise.columns
    if isinstance(model, NeighborModel):
        return tensors
    tensors |= {f"near.{name}": torch.as_tensor(getattr(model, name)) for name in ("weights", "temperature")}
    for k, gp in enumerate(gps):
        tensors |= {f"near.{k}.{name}": torch.as_tensor(getattr(gp.params, name)) for name in PARAMETERS}
    return tensors


def local_config(model: NeighborModel | LocalMixture) -> dict[str, Any]:
    """Return what is not in the tensors of the neighbour GPs, as plain data."""
    gps = _gps(model)
    for gp in gps:
        if fault := _fault(gp):  # a file that could not be read must not be written
            raise PrismGPError(f"a model file cannot hold this model: {fault}")
    _, coordinates = _store([gp.coordinates for gp in gps])
    _, targets = _store([gp.targets for gp in gps])
    entries: list[dict[str, Any]] = [
        {
            "kernel": gp.kernel.name,
            "n_neighbors": gp.n_neighbors,
            "coordinates": i,
            "targets": j,
            "degrees": float(gp.degrees) if math.isfinite(gp.degrees) else None,
        }
        for gp, i, j in zip(gps, coordinates, targets, strict=True)
    ]
    if isinstance(model, LocalMixture):
        for entry, near in zip(entries, model.near, strict=True):
            entry |= {name: getattr(near.view, name) for name in _VIEW}
    return {"near": entries}


def build_neighbors(
    tensors: dict[str, Tensor], config: dict[str, Any], params: Parameters, log_evidence: float, *, n: int, d: int
) -> NeighborModel:
    """The neighbour GP of n rows with d inputs; a mismatch raises ModelFileError."""
    entries = _entries(config)
    if len(entries) != 1:
        raise ModelFileError(f"{len(entries)} neighbour GPs, where the model is one")
    (gp,) = _build_gps(tensors, entries, [params], [d])
    if gp.n_rows != n:
        raise ModelFileError(f"the neighbours are {gp.n_rows:,} rows, the model's rows {n:,}")
    return NeighborModel(gp, log_evidence)


def build_local(tensors: dict[str, Tensor], config: dict[str, Any], mixture: Mixture, *, d: int) -> LocalMixture:
    """The mixture with its neighbour GPs; a mismatch raises ModelFileError."""
    entries = _entries(config)
    q = len(mixture.temperature)
    weights, temperature = (
        tensor.numpy() for tensor in take(tensors, **{"near.weights": (1 + len(entries),), "near.temperature": (q,)})
    )
    if (weights < 0).any() or abs(weights.sum() - 1.0) > 1e-9 or (temperature <= 0).any():
        raise ModelFileError("weights or temperature of the neighbour GPs are out of range")
    views = [_view(entry) for entry in entries]
    latent = sum(expert.map.sizes.latent for expert in mixture.experts if isinstance(expert.map, RevisedMap))
    widths = [d + view.latent * (latent + len(mixture.experts) * q) for view in views]
    params = [take_parameters(tensors, f"near.{k}.", width, q) for k, width in enumerate(widths)]
    gps = _build_gps(tensors, entries, params, widths)
    if any(gp.n_rows > mixture.n_rows for gp in gps):
        raise ModelFileError("there are more neighbours than rows of the model")
    near = tuple(Near(view, gp) for view, gp in zip(views, gps, strict=True))
    return LocalMixture(mixture, near, weights, temperature)


def _gps(model: NeighborModel | LocalMixture) -> list[LocalGP]:
    return [model.gp] if isinstance(model, NeighborModel) else [each.gp for each in model.near]


def _store(matrices: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Matrices to store, and for each of the given ones which of these has it as its first columns."""
    stored: list[Tensor] = []
    places = [0] * len(matrices)
    for k in sorted(range(len(matrices)), key=lambda k: -matrices[k].shape[1]):  # the widest first
        found = [j for j, each in enumerate(stored) if _begins_with(each, matrices[k])]
        places[k] = found[0] if found else len(stored)
        if not found:
            stored.append(matrices[k])
    return stored, places


def _begins_with(wide: Tensor, narrow: Tensor) -> bool:
    """Whether the first columns of one matrix are the other, bit for bit."""
    if wide.dtype != narrow.dtype or len(wide) != len(narrow):
        return False
    bits = torch.int64 if wide.dtype == torch.float64 else torch.int32  # zeros have signs
    return torch.equal(wide[:, : narrow.shape[1]].view(bits), narrow.view(bits))


def _entries(config: dict[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = config["near"]
    sound = isinstance(entries, list) and 1 <= len(entries) <= _MOST_NEAR
    if not sound or not all(isinstance(entry, dict) for entry in entries):
        raise ModelFileError("the file does not list its neighbour GPs")
    for entry in entries:
        if type(entry["n_neighbors"]) is not int or not 1 <= entry["n_neighbors"] < 2**53:
            raise ModelFileError(f"n_neighbors is {entry['n_neighbors']!r:.40}, not a positive integer")
        if not isinstance(entry["kernel"], str) or entry["kernel"] not in KERNELS:
            raise ModelFileError(f"kernel {entry['kernel']!r:.40} is unknown to this version")
        if not all(type(entry[name]) is int and 0 <= entry[name] < len(entries) for name in ("coordinates", "targets")):
            raise ModelFileError("the file does not say which rows are the neighbours")
        if not isinstance(entry.get("degrees"), float | None) or math.isinf(entry.get("degrees") or 0.0):
            raise ModelFileError(f"a neighbour GP has {entry['degrees']!r:.40} degrees of freedom")
    return entries


def _view(entry: dict[str, Any]) -> View:
    about = {name: entry[name] for name in _VIEW}
    if not all(type(each) is bool for each in about.values()):
        raise ModelFileError("the file does not say what a neighbour GP sees")
    if about["residual"] and entry.get("degrees") is not None:
        raise ModelFileError("degrees of freedom are for neighbour GPs that predict targets")
    return View(**about)


def _build_gps(
    tensors: dict[str, Tensor], entries: list[dict[str, Any]], params: list[Parameters], widths: list[int]
) -> list[LocalGP]:
    """Neighbour GPs of that many coordinates; those that share rows in the file share them in memory."""
    gps: list[LocalGP] = []
    widest: dict[int, int] = {}
    for entry, width in zip(entries, widths, strict=True):
        widest[entry["coordinates"]] = max(width, widest.get(entry["coordinates"], 0))
    columns: dict[tuple[int, int], Tensor] = {}
    for number, (entry, own, width) in enumerate(zip(entries, params, widths, strict=True)):
        i, q = entry["coordinates"], len(own.mean)
        names = f"near.coordinates.{i}", f"near.targets.{entry['targets']}"
        rows = len(tensors[names[0]]) if names[0] in tensors and tensors[names[0]].ndim else 0
        whole, targets = take(tensors, **{names[0]: (rows, widest[i]), names[1]: (rows, q)})
        if rows < 1:
            raise ModelFileError("a neighbour GP has no rows")
        if (i, width) not in columns:
            columns[i, width] = whole[:, :width].contiguous()  # no copy of the widest
        noise = _build_row_noise(tensors.get(f"near.row_noise.{number}"), rows, q)
        degrees = math.inf if entry.get("degrees") is None else entry["degrees"]
        rows_of = columns[i, width], targets, entry["n_neighbors"], noise
        gp = LocalGP(KERNELS[entry["kernel"]], own, *rows_of, degrees=degrees)
        if fault := _fault(gp):
            raise ModelFileError(fault)
        gps.append(gp)
    return gps


def _build_row_noise(columns: Tensor | None, rows: int, q: int) -> RowNoise | None:
    if columns is None:
        return None
    width = columns.shape[1] if columns.ndim == 2 else 0
    if len(columns) != rows or width not in ((1, 2) if q == 1 else (1,)):
        raise ModelFileError(f"the noise of the neighbours has shape {tuple(columns.shape)} for {rows:,} rows")
    if not bool((columns[:, 0] > 0).all()) or not bool((columns >= 0).all()):
        raise ModelFileError("the noise of the neighbours is out of range")
    return RowNoise.split(columns, 0)[1]


def _fault(gp: LocalGP) -> str:
    """Return why a neighbour GP cannot predict finite numbers, or not in the available memory; else an empty text."""
    if not (2.0 < gp.degrees <= _LARGEST or gp.degrees == math.inf):
        return f"the neighbours have {gp.degrees:g} degrees of freedom"
    if gp.k > _MOST_NEIGHBORS:
        return f"{gp.k:,} neighbours are more than {_MOST_NEIGHBORS:,}"
    farthest = _extreme(gp.coordinates) * math.exp(-float(gp.params.log_lengthscale.min()))
    if not max(farthest, _extreme(gp.targets), *np.abs(gp.params.mean)) <= _LARGEST:
        return "coordinates, targets or mean of the neighbours are out of range"
    if (gp.params.log_signal - gp.params.log_noise).max() > _LARGEST_LOG_RATIO:
        return "the noise of the neighbours is too low for their signal"
    trial = torch.arange(min(gp.k, _TRIAL_NEIGHBORS), device=gp.coordinates.device)[None]
    mean, variance, *_ = conditionals(gp.kernel, gp.params, gp.gather(gp.coordinates[:1], trial), gp.degrees)
    sound = bool(torch.isfinite(mean + variance).all()) and bool((variance > 0).all())
    return "" if sound else "the neighbours predict no finite numbers"


def _extreme(tensor: Tensor) -> float:
    return max(abs(float(each)) for each in tensor.aminmax())


# -- feature maps ------------------------------------------------------------------------------------


def map_kind(feature_map: FeatureMap) -> str:
    if isinstance(feature_map, ReconfiguredMap) and isinstance(feature_map.vae, ReleasedVAE):
        return "released"
    kinds = {PlainMap: "plain", InformedMap: "informed", ReconfiguredMap: "reconfigured", RevisedMap: "revised"}
    return kinds[type(feature_map)]


def map_detail(feature_map: FeatureMap) -> str:
    if isinstance(feature_map, InformedMap):
        return feature_map.network.sizes.gating
    if isinstance(feature_map, RevisedMap):
        return feature_map.sizes.gating
    return feature_map.output if isinstance(feature_map, ReconfiguredMap) else ""


def map_tensors(feature_map: FeatureMap) -> dict[str, Tensor]:
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


def build_map(
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
        network = _build_network(under("network.", tensors), detail, d=d, q=q).to(dtype)
        (level,) = take(tensors, level=(1,))
        return InformedMap(plain, network, float(level)), 2 * p
    vae = (_build_released if kind == "released" else _build_vae)(under("vae.", tensors))
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
