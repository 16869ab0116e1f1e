"""The bytes of model files: one safetensors file whose metadata is JSON. Nothing in it is ever executed.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from prismgp._files import atomic_path
from prismgp._tensors import take
from prismgp._types import Array, Tensor
from prismgp.core.parameters import Parameters
from prismgp.data import Standardiser, TableEncoder
from prismgp.exceptions import ModelFileError, PrismGPError

__all__ = ["FORMAT_VERSION", "Common", "count_in", "format_version", "read_model_file", "readable", "write_model_file"]

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
_STANDARDISER = ("x_shift", "x_scale", "y_shift", "y_scale", "fixed_mean")
_PARAMETERS = ("log_lengthscale", "log_signal", "log_noise", "mean")


@contextmanager
def readable(path: str | PathLike[str]) -> Iterator[Path]:
    """Whatever is wrong with the file at the path becomes a ModelFileError that names it."""
    try:
        yield Path(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except _UNUSABLE as error:
        raise ModelFileError(f"{path}: not a usable model file ({type(error).__name__}: {error})") from error
    except safetensors.SafetensorError as error:
        raise ModelFileError(f"{path}: not a usable model file ({error})") from error


def write_model_file(path: str | PathLike[str], config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file that appears whole or not at all."""
    metadata = {"prismgp": json.dumps(config, allow_nan=False), "sha256": _ZEROS.decode()}
    data = bytearray(safetensors.torch.save(tensors, metadata=metadata))
    place = _digest_place(data)
    data[place] = hashlib.sha256(data).hexdigest().encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def read_model_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
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


def format_version(path: str | PathLike[str]) -> int:
    """Of a file that has been read."""
    return int(_config(Path(path).read_bytes())["format_version"])


@dataclass(frozen=True)
class Common:
    """What every model file has, whatever its estimator.

    Attributes
    ----------
    rows, inputs, outputs, target_ndim : int
    standardiser : Standardiser
    params : Parameters
    feature_names : list of str or None
    encoder : TableEncoder or None
    """

    rows: int
    inputs: int
    outputs: int
    target_ndim: int
    standardiser: Standardiser
    params: Parameters
    feature_names: list[str] | None
    encoder: TableEncoder | None

    @classmethod
    def of(cls, config: dict[str, Any], tensors: dict[str, Tensor], *, reconfigures: bool) -> Common:
        """From what a file holds; a mismatch anywhere raises.

        Parameters
        ----------
        reconfigures : bool
            The kernel acts on something else than the inputs: there may be more or fewer length-scales than inputs.
        """
        n, d, q, ndim = (count_in(config, name) for name in ("rows", "inputs", "outputs", "target_ndim"))
        if ndim not in (1, 2) or (ndim == 1 and q != 1):
            raise ModelFileError(f"{q} outputs do not fit a target of {ndim} dimension(s)")
        columns = {"x": d, "y": q, "f": q, "log_lengthscale": d}
        standardiser = Standardiser(*_vectors(tensors, "s", {name: columns[name[0]] for name in _STANDARDISER}))
        if (standardiser.x_scale <= 0).any() or (standardiser.y_scale <= 0).any():
            raise ModelFileError("a scale is not positive")
        if reconfigures:
            columns["log_lengthscale"] = tensors["p.log_lengthscale"].numel()
        params = Parameters(*_vectors(tensors, "p", {name: columns.get(name, q) for name in _PARAMETERS}))
        logs = np.concatenate([params.log_lengthscale, params.log_signal, params.log_noise])
        if np.abs(logs).max() > _MAX_LOG:
            raise ModelFileError("a parameter is out of range")
        names = None if config["feature_names"] is None else [str(name) for name in config["feature_names"]]
        if names is not None and len(names) != d:
            raise ModelFileError(f"{len(names)} feature names for {d} inputs")
        encoder = None if config["table"] is None else TableEncoder.from_dict(config["table"])
        if encoder is not None and encoder.feature_names != config["feature_names"]:
            raise ModelFileError("the table's columns are not the model's inputs")
        return cls(n, d, q, ndim, standardiser, params, names, encoder)

    def to_config(self) -> dict[str, Any]:
        """What is no array, as in a file."""
        sizes = {name: getattr(self, name) for name in ("rows", "inputs", "outputs", "target_ndim")}
        table = None if self.encoder is None else self.encoder.to_dict()
        return {**sizes, "feature_names": self.feature_names, "table": table}

    def to_tensors(self) -> dict[str, Tensor]:
        """Its arrays, as in a file."""
        return {
            f"{prefix}.{field}": torch.tensor(getattr(owner, field), dtype=torch.float64)
            for prefix, owner, fields in (("s", self.standardiser, _STANDARDISER), ("p", self.params, _PARAMETERS))
            for field in fields
        }


def count_in(config: dict[str, Any], name: str) -> int:
    value = config[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**53:
        raise ModelFileError(f"{name} is {value!r:.40}, not a positive integer")
    return value


def _vectors(tensors: dict[str, Tensor], prefix: str, sizes: dict[str, int]) -> list[Array]:
    shapes = {f"{prefix}.{name}": (size,) for name, size in sizes.items()}
    return [tensor.numpy() for tensor in take(tensors, **shapes)]


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


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are; by the extremes, which takes no memory."""
    return not tensor.numel() or all(map(math.isfinite, tensor.aminmax()))


def _config(data: bytes) -> dict[str, Any]:
    """The JSON object of the header."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    config: dict[str, Any] = json.loads(header["__metadata__"]["prismgp"], parse_constant=_refuse_constant)
    return config


def _refuse_constant(name: str) -> Any:
    raise ModelFileError(f"{name} is no number of JSON")
