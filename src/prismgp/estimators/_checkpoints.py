"""The checkpoint of a fit, by the estimator's arguments and its data."""

from __future__ import annotations

import hashlib
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

import prismgp
from prismgp.data import Source
from prismgp.exceptions import DataError
from prismgp.model.checkpoint import Checkpoint

__all__ = ["open_checkpoint"]

_WITHOUT_EFFECT = ("verbose", "checkpoint")
_LONG = 16  # numbers; longer arrays are told apart by a digest


def open_checkpoint(model: BaseEstimator, source: Source) -> Checkpoint:
    """The checkpoint that the estimator's ``checkpoint`` names, if it names one, begun or continued."""
    path = model.checkpoint
    if path is None:
        return Checkpoint()
    name = type(model).__name__
    if not isinstance(path, str | PathLike):
        raise DataError(f"{name}: checkpoint={path!r} must be a path or None")
    if not isinstance(model.random_state, Integral):
        raise DataError(f"{name}: a checkpoint needs random_state to be a number, so that draws can be repeated")
    arguments = {key: value for key, value in model.get_params(deep=False).items() if key not in _WITHOUT_EFFECT}
    identity = {key: _identified(value) for key, value in arguments.items()}
    rows = {"rows": source.n_rows, "inputs": source.n_inputs, "outputs": source.n_outputs, "data": source.digest}
    return Checkpoint(path, {"estimator": name, "prismgp": prismgp.__version__, **identity, **rows})


def _identified(value: Any) -> Any:
    """An argument as JSON that differs where the argument does."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if hasattr(value, "get_params"):
        return f"{type(value).__name__}{value.get_params()!r}"
    array = np.asarray(value)
    if array.dtype == object or array.size > _LONG:
        return hashlib.sha256(repr(value).encode() if array.dtype == object else array.tobytes()).hexdigest()[:16]
    return array.tolist()
