"""From fitted models to predictions in the data's units: of the estimators, and of model files alone.

``prismgp predict`` reads a file without the estimators: scikit-learn, SciPy and pandas, which fits need, take some
100 MB, more than the model and its rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp._validate import DEVICES, check_choice, check_number, compute_device, compute_dtype
from prismgp.core.features import GATINGS
from prismgp.data import Standardiser, standardise
from prismgp.exceptions import ModelFileError, PrismGPWarning
from prismgp.model.file import Common, read_model_file, readable
from prismgp.model.fitted import ExactModel, FittedModel
from prismgp.model.state import exact_from_tensors, spectral_from_tensors
from prismgp.prism._state import mixture_from_tensors

__all__ = ["Predictor", "check_asked", "device_here", "load_predictor", "predict_chunks"]


def predict_chunks(
    fitted: FittedModel, chunks: Iterable[Tensor], standardiser: Standardiser, *, std: bool, include_noise: bool
) -> tuple[Array, Array | None]:
    """Mean and standard deviation at rows in the model's units, both (n, q) in the data's.

    Parameters
    ----------
    std : bool
        Whether standard deviations are wanted; they take most of the time.
    include_noise : bool
        True: of a new observation. False: of the underlying function.
    """
    means, variances = [], []
    shift, scale = standardiser.y_shift, standardiser.y_scale
    for chunk in chunks:
        mean, variance, noise = fitted.predict(chunk, variance=std)
        means.append(mean.cpu().numpy() * scale + shift)
        if variance is not None:
            total = variance + noise if include_noise else variance
            variances.append(total.cpu().numpy() * scale**2)
    return np.concatenate(means), np.sqrt(np.concatenate(variances)) if std else None


@dataclass(frozen=True)
class Predictor:
    """A model from a file, for predictions alone.

    Attributes
    ----------
    fitted : FittedModel
    common : Common
    rows : int
        Predicted at a time.
    dtype, device
        Of the computation.
    """

    fitted: FittedModel
    common: Common
    rows: int
    dtype: torch.dtype
    device: torch.device

    def predict(self, x: AnyArray, *, include_noise: bool = True) -> tuple[Array, Array]:
        """Mean and standard deviation at rows of finite numbers, (n, d), n above zero; both (n, q)."""
        s = self.common.standardiser
        parts = (x[start : start + self.rows] for start in range(0, len(x), self.rows))
        chunks = (standardise(part, s.x_shift, s.x_scale, dtype=self.dtype, device=self.device) for part in parts)
        mean, std = predict_chunks(self.fitted, chunks, s, std=True, include_noise=include_noise)
        assert std is not None
        return mean, std


def load_predictor(path: str | PathLike[str], *, device: str | None = None) -> Predictor:
    """Read a model for predictions alone; arguments and errors are those of :func:`prismgp.load`."""
    check_asked(device)
    with readable(path) as file:
        config, tensors = read_model_file(file)
        kind, arguments = config["estimator"], config["arguments"]
        common = Common.of(config, tensors, reconfigures=kind == "prism")
        there = compute_device(device_here(arguments["device"], device))
        check_choice(kind, "dtype", arguments["dtype"], ("float64", "float32"))
        dtype = torch.float64 if kind == "exact" else compute_dtype(arguments["dtype"])
        fitted = _fitted(kind, tensors, common, arguments, config.get("state", {}), dtype, there)
        rows = arguments.get("chunk_size", "auto")
        if rows == "auto":
            rows = fitted.prediction_rows(there)
        check_number(kind, "chunk_size", rows, low=1, integer=True)
        return Predictor(fitted, common, rows, dtype, there)


def _fitted(
    kind: str,
    tensors: dict[str, Tensor],
    common: Common,
    arguments: dict[str, Any],
    state: dict[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> FittedModel:
    n, d, params = common.rows, common.inputs, common.params
    if kind == "exact":
        return ExactModel(exact_from_tensors(tensors, params, kernel=arguments["kernel"], n=n, d=d).to(device))
    if kind == "ssgp":
        gating = arguments.get("gating", "none")  # version 1 of the format knew no gates
        check_choice(kind, "gating", gating, GATINGS)
        p = arguments["n_frequencies"]
        return spectral_from_tensors(tensors, state, params, gating=gating, n=n, p=p, d=d)[0].to(device)
    if kind == "prism":
        return mixture_from_tensors(tensors, state["experts"], n=n, d=d, q=common.outputs, dtype=dtype).to(device)
    raise ModelFileError(f"estimator {kind!r} is unknown to this version")


def check_asked(device: str | None) -> None:
    """The device that a user asks for must be there, before a file is read: its absence is not the file's fault."""
    if device is not None:
        check_choice("load", "device", device, DEVICES)
        compute_device(device)


def device_here(saved: Any, asked: str | None) -> str:
    """Where a model computes: as asked for, or where it did when it was saved if there is such a device here."""
    check_choice("model file", "device", saved, DEVICES)
    if asked is not None:
        return asked
    if saved == "cuda" and not torch.cuda.is_available():
        warnings.warn(
            "the model was saved on a GPU and there is none here: it runs on the CPU", PrismGPWarning, stacklevel=4
        )
        return "cpu"
    return str(saved)
