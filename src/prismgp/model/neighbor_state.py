"""Neighbour GPs as named tensors and JSON, and back, alone or beside a mixture; model files hold these.

Neighbour GPs of one model share most of their numbers: coordinates without latent columns are the first columns of
those with them, and targets may be the same. A file holds the widest coordinates, and each array of targets, once:
``near.coordinates.0``, ``near.targets.0`` and so on, and the JSON says which belong to which neighbour GP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.kernels import KERNELS, Parameters
from prismgp.core.rows import RowNoise
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.model.container import PARAMETERS, check_count, take, take_parameters
from prismgp.neighbors.conditional import conditionals
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.model import NeighborModel
from prismgp.prism import Mixture, RevisedMap
from prismgp.prism.local import LocalMixture, NeighborExpert, View

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
        raise ModelFileError(f"expected one neighbour GP, found {len(entries)}")
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
    near = tuple(NeighborExpert(view, gp) for view, gp in zip(views, gps, strict=True))
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
        check_count(entry, "n_neighbors")
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
        raise ModelFileError("the view of a neighbour GP is not three booleans")
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
    """Return why a neighbour GP cannot predict finite numbers in the available memory; an empty text if it can."""
    if not (2.0 < gp.degrees <= _LARGEST or gp.degrees == math.inf):
        return f"the neighbours have {gp.degrees:g} degrees of freedom"
    if gp.k > _MOST_NEIGHBORS:
        return f"{gp.k:,} neighbours are more than {_MOST_NEIGHBORS:,}"
    farthest = _largest_magnitude(gp.coordinates) * math.exp(-float(gp.params.log_lengthscale.min()))
    if not max(farthest, _largest_magnitude(gp.targets), *np.abs(gp.params.mean)) <= _LARGEST:
        return "coordinates, targets or mean of the neighbours are out of range"
    if (gp.params.log_signal - gp.params.log_noise).max() > _LARGEST_LOG_RATIO:
        return "the noise of the neighbours is too low for their signal"
    trial = torch.arange(min(gp.k, _TRIAL_NEIGHBORS), device=gp.coordinates.device)[None]
    mean, variance, *_ = conditionals(gp.kernel, gp.params, gp.gather(gp.coordinates[:1], trial), gp.degrees)
    sound = bool(torch.isfinite(mean + variance).all()) and bool((variance > 0).all())
    return "" if sound else "predictions of the neighbours are not finite"


def _largest_magnitude(tensor: Tensor) -> float:
    return max(abs(float(each)) for each in tensor.aminmax())
