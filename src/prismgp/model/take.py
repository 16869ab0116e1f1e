"""Tensors of a model file by name, after a check of what they are."""

from __future__ import annotations

import numpy as np

from prismgp._types import Tensor
from prismgp.core.kernels import Parameters
from prismgp.exceptions import ModelFileError

PARAMETERS = ("log_lengthscale", "log_signal", "log_noise", "mean")
_MAX_LOG = 700.0  # beyond it, exp is infinite or zero


def take(tensors: dict[str, Tensor], **shapes: tuple[int, ...]) -> list[Tensor]:
    """Tensors of a model file by name, after a check of their shapes."""
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ModelFileError(f"tensor {name!r} has shape {found}, expected {shape}")
    return [tensors[name] for name in shapes]


def take_parameters(tensors: dict[str, Tensor], prefix: str, inputs: int, q: int) -> Parameters:
    """Parameters of a kernel with that many inputs, after a check of their range."""
    shapes = {prefix + name: (inputs if name == "log_lengthscale" else q,) for name in PARAMETERS}
    params = Parameters(*(tensor.numpy() for tensor in take(tensors, **shapes)))
    if np.abs(np.concatenate([params.log_lengthscale, params.log_signal, params.log_noise])).max() > _MAX_LOG:
        raise ModelFileError("a parameter is out of range")
    return params


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
