"""Model files: one safetensors file whose metadata is JSON. Nothing in it is ever executed.

Layout (format version 2; version 1 is the same without gates, and is read as well)

* The safetensors header's metadata has two entries. ``prismgp`` is a JSON object: format version,
  estimator, constructor arguments, and what a fit learned that is not an array. ``sha256`` is the
  digest of the whole file with the 64 digits of the digest itself replaced by zeros, so that every
  flipped bit is noticed.
* The tensors are named float64 arrays; their shapes are checked against the JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from prismgp._files import atomic_path
from prismgp._tensors import take
from prismgp._types import Array, Tensor
from prismgp._validate import compute_device
from prismgp.data import Standardiser
from prismgp.data._table import TableEncoder
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.estimators._base import GPRegressor
from prismgp.exceptions import ModelFileError, PrismGPError, PrismGPWarning
from prismgp.parameters import Parameters

__all__ = ["FORMAT_VERSION", "format_version", "load", "save_model"]

FORMAT_VERSION = 2
_READABLE = (1, 2)
_MAX_HEADER = 64 * 2**20
_MAX_LOG = 700.0  # beyond it, exp is infinite or zero
# What reading numbers and text that do not fit together may raise; RuntimeError is torch's.
_UNUSABLE = (
    PrismGPError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    RecursionError,
    OverflowError,
    MemoryError,
    RuntimeError,
)
_ZEROS = b"0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
_CLASSES: tuple[type[GPRegressor], ...] = (ExactGPRegressor, SSGPRegressor, PrismGPRegressor)
_ESTIMATORS = {cls._kind: cls for cls in _CLASSES}
_STANDARDISER = ("x_shift", "x_scale", "y_shift", "y_scale", "fixed_mean")
_PARAMETERS = ("log_lengthscale", "log_signal", "log_noise", "mean")


def save_model(model: GPRegressor, path: str | PathLike[str]) -> None:
    """Write a fitted model atomically; see :meth:`GPRegressor.save`."""
    encoder: TableEncoder | None = getattr(model, "table_encoder_", None)
    arguments = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    # What the posterior depends on is that of the fit, whatever has been set since.
    arguments |= {name: _plain(value) for name, value in model._fitted_arguments().items()}
    names = getattr(model, "feature_names_in_", None)
    config = {
        "format_version": FORMAT_VERSION,
        "estimator": model._kind,
        "arguments": arguments,
        "rows": model.fit_status_["rows"],
        "inputs": model.n_features_in_,
        "outputs": len(model._params.mean),
        "target_ndim": model._target_ndim,
        "feature_names": None if names is None else [str(name) for name in names],
        "log_evidence": model.log_evidence_,
        "fit_status": model.fit_status_,
        "history": model.history_,
        "n_iter": model.n_iter_,
        "table": None if encoder is None else encoder.to_dict(),
        "state": model._state_config(),
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in model._state_tensors().items()}
    for prefix, owner, fields in (("s", model._standardiser, _STANDARDISER), ("p", model._params, _PARAMETERS)):
        for field in fields:
            tensors[f"{prefix}.{field}"] = torch.tensor(getattr(owner, field), dtype=torch.float64)
    metadata = {"prismgp": json.dumps(config, allow_nan=False), "sha256": _ZEROS.decode()}
    data = bytearray(safetensors.torch.save(tensors, metadata=metadata))
    place = _digest_place(data)
    data[place] = hashlib.sha256(data).hexdigest().encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def load(path: str | PathLike[str], *, device: str | None = None) -> Any:
    """Read a model written by ``save``.

    Parameters
    ----------
    path : path
    device : {"cpu", "cuda", "auto"} or None, default None
        Where the model computes. None: where it did when it was saved, or on the CPU, with a
        warning, when there is no such device here.

    Raises
    ------
    ModelFileError
        When the file is not a model, is damaged, or is of another format version.
    """
    if device is not None:
        compute_device(device)  # its absence is not the file's fault
    try:
        return _build(*_contents(Path(path)), device)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except _UNUSABLE as error:
        raise ModelFileError(f"{path}: not a usable model file ({type(error).__name__}: {error})") from error
    except safetensors.SafetensorError as error:
        raise ModelFileError(f"{path}: not a usable model file ({error})") from error


def format_version(path: str | PathLike[str]) -> int:
    """Of a file that :func:`load` has read."""
    return int(_config(Path(path).read_bytes())["format_version"])


def _digest_place(data: bytes | bytearray) -> slice:
    """Where the 64 digits of the digest stand in the file."""
    if len(data) < 8:
        raise ModelFileError("too short for a model file")
    size = int.from_bytes(data[:8], "little")
    if size > _MAX_HEADER or size > len(data) - 8:
        raise ModelFileError(f"header claims {size:,} bytes; the file is truncated, damaged, or not a model file")
    found = list(_DIGEST.finditer(bytes(data[8 : 8 + size])))
    if len(found) != 1:
        raise ModelFileError("no checksum in the header; damaged, or not a PrismGP model file")
    start, end = found[0].span(1)
    return slice(8 + start, 8 + end)


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says and the numbers it holds, after its checksum."""
    data = path.read_bytes()
    place = _digest_place(data)
    view, digest = memoryview(data), hashlib.sha256()
    for part in (view[: place.start], _ZEROS, view[place.stop :]):
        digest.update(part)
    if digest.hexdigest().encode() != data[place]:
        raise ModelFileError("checksum mismatch: the file is damaged")
    config = _config(data)
    version = config["format_version"]
    if version not in _READABLE or isinstance(version, bool):
        known = " and ".join(map(str, _READABLE))
        raise ModelFileError(f"format version {version!r}; this PrismGP reads versions {known}")
    tensors = safetensors.torch.load(data)
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64 or not _finite(tensor):
            raise ModelFileError(f"tensor {name!r} is not made of finite float64 numbers")
    return config, tensors


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are; by the extremes, which takes no memory."""
    return not tensor.numel() or all(map(math.isfinite, tensor.aminmax()))


def _config(data: bytes) -> dict[str, Any]:
    """The JSON object of the header."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    config: dict[str, Any] = json.loads(header["__metadata__"]["prismgp"], parse_constant=_refuse_constant)
    return config


def _build(config: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> GPRegressor:
    """An estimator from checked bytes; a mismatch anywhere raises."""
    if config["estimator"] not in _ESTIMATORS:
        raise ModelFileError(f"estimator {config['estimator']!r} is unknown to this version")
    model = _ESTIMATORS[config["estimator"]](**config["arguments"])
    _place_on(model, device)
    model._check_parameters()
    n, d, q, ndim = (_count(config, name) for name in ("rows", "inputs", "outputs", "target_ndim"))
    if ndim not in (1, 2) or (ndim == 1 and q != 1):
        raise ModelFileError(f"{q} outputs do not fit a target of {ndim} dimension(s)")
    columns = {"x": d, "y": q, "f": q, "log_lengthscale": d}
    standardiser = Standardiser(*_vectors(tensors, "s", {name: columns[name[0]] for name in _STANDARDISER}))
    if (standardiser.x_scale <= 0).any() or (standardiser.y_scale <= 0).any():
        raise ModelFileError("a scale is not positive")
    if model._reconfigures:
        # It may have more or fewer inputs than the data, and as many length-scales.
        columns["log_lengthscale"] = tensors["p.log_lengthscale"].numel()
    params = Parameters(*_vectors(tensors, "p", {name: columns.get(name, q) for name in _PARAMETERS}))
    logs = np.concatenate([params.log_lengthscale, params.log_signal, params.log_noise])
    if np.abs(logs).max() > _MAX_LOG:
        raise ModelFileError("a parameter is out of range")
    if config["fit_status"]["rows"] != n:
        raise ModelFileError("the status is that of another fit")
    model.n_features_in_ = d
    model._target_ndim = ndim
    model._standardiser = standardiser
    if config["feature_names"] is not None:
        names = [str(name) for name in config["feature_names"]]
        if len(names) != d:
            raise ModelFileError(f"{len(names)} feature names for {d} inputs")
        model.feature_names_in_ = np.array(names, dtype=object)
    if config["table"] is not None:
        model.table_encoder_ = TableEncoder.from_dict(config["table"])
        if model.table_encoder_.feature_names != config["feature_names"]:
            raise ModelFileError("the table's columns are not the model's inputs")
    model._restore(tensors, params, n, config.get("state", {}))
    model._publish_parameters()
    model.log_evidence_ = float(config["log_evidence"])
    model.fit_status_ = dict(config["fit_status"])
    model._record(list(model.fit_status_["stages"]), dict(config["history"]))
    if "n_iter" in config:
        model.n_iter_ = _count(config, "n_iter")
    return model


def _refuse_constant(name: str) -> Any:
    raise ModelFileError(f"{name} is no number of JSON")


def _place_on(model: GPRegressor, device: str | None) -> None:
    if device is not None:
        model.set_params(device=device)
    elif model.device == "cuda" and not torch.cuda.is_available():
        warnings.warn(
            "the model was saved on a GPU and there is none here: it runs on the CPU", PrismGPWarning, stacklevel=5
        )
        model.set_params(device="cpu")


def _count(config: dict[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
        raise ModelFileError(f"{name} is {value!r:.40}, not a positive integer")
    return value


def _vectors(tensors: dict[str, Tensor], prefix: str, sizes: dict[str, int]) -> list[Array]:
    shapes = {f"{prefix}.{name}": (size,) for name, size in sizes.items()}
    return [tensor.numpy() for tensor in take(tensors, **shapes)]


def _plain(value: Any) -> Any:
    """A constructor argument as JSON; a generator object has no place in a file and becomes null."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None
