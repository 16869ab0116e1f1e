"""Model files: one safetensors file whose metadata is JSON. Nothing in it is ever executed.

Layout (format version 5)

* The text of the file (:mod:`prismgp.model.container`) is a JSON object: format version, estimator,
  constructor arguments, and what a fit learned that is not an array.
* The tensors are named float64 arrays, coordinates of rows also float32; their shapes are checked
  against the JSON.
"""

from __future__ import annotations

import json
import math
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prismgp._system import compute_device, is_device
from prismgp._types import DTYPES, Array, Tensor
from prismgp.core.kernels import Parameters
from prismgp.core.shape import NoiseShape, shape_from_dict
from prismgp.data import Standardiser, TableEncoder
from prismgp.exceptions import ModelFileError, PrismGPError, PrismGPWarning
from prismgp.model.conformal import Conformal, kept_scores
from prismgp.model.container import (
    FORMAT_VERSION,
    PARAMETERS,
    check_count,
    count_bytes,
    parse_text,
    read_tensors,
    readable,
    take,
    take_parameters,
    write_tensors,
)
from prismgp.model.expert_state import is_coordinates
from prismgp.model.fitted import FittedModel
from prismgp.model.state import build_predictor, predictor_config, predictor_summary, predictor_tensors

_STANDARDISER = ("x_shift", "x_scale", "y_shift", "y_scale", "fixed_mean")


def save_model(model: FittedModel, path: str | PathLike[str]) -> None:
    """Write a fitted model to a file that appears whole or not at all.

    Where the model predicts from neighbours, the training rows are part of the file: their coordinates, and their
    targets or residuals. :func:`file_bytes` says how large it will be.
    """
    write_tensors(path, *_contents(model))


def file_bytes(model: FittedModel) -> int:
    """Return the size of the model's file, without writing it."""
    return count_bytes(*_contents(model))


def load_model(path: str | PathLike[str], *, device: str | None = None) -> FittedModel:
    """Read a model written by :func:`save_model`; a damaged file, or one of another kind, raises ModelFileError.

    Without a device it computes where it did when it was saved, or on the CPU, with a warning, when there is no such
    device here.
    """
    if device is not None:  # its absence is not the file's fault
        compute_device(device)
    with readable(path) as file:
        return _build(*_read(file), device)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read text and tensors of a file, after checking its checksum."""
    text, tensors = read_tensors(path)
    config = parse_text(text)
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64 and not is_coordinates(name):
            raise ModelFileError(f"tensor {name!r} is not made of finite float64 numbers")
    return config, tensors


def _contents(model: FittedModel) -> tuple[str, dict[str, Tensor]]:
    return json.dumps(_config_of(model), allow_nan=False), _tensors_of(model)


def _config_of(model: FittedModel) -> dict[str, Any]:
    """Return all but the arrays of a model, as plain data."""
    return {
        "format_version": FORMAT_VERSION,
        "estimator": model.kind,
        "arguments": {name: _plain(value) for name, value in model.arguments.items()},
        "rows": model.n_rows,
        "inputs": model.n_inputs,
        "outputs": model.n_outputs,
        "target_ndim": model.target_ndim,
        "feature_names": model.feature_names,
        "table": None if model.encoder is None else model.encoder.to_dict(),
        "log_evidence": model.log_evidence,
        "fit_status": model.status,
        "history": model.history,
        "n_iter": model.n_iter,
        "noise_shape": None if model.shapes is None else [shape.to_dict() for shape in model.shapes],
        "copy_shape": None if model.copy_shapes is None else [shape.to_dict() for shape in model.copy_shapes],
        "tail_share": model.tail_share,
        "conformal_rows": None if model.conformal is None else model.conformal.rows,
        "state": predictor_config(model.predictor),
        "summary": summarise(model),
    }


def summarise(model: FittedModel) -> dict[str, Any]:
    """Return what else ``prismgp info`` says of a model, as plain data, in the user's units; null for infinity."""
    relative = model.relative_lengthscale
    vectors = {
        "lengthscale": None if relative is None else relative * model.standardiser.x_scale,
        "relative_lengthscale": relative,
        "signal_std": np.sqrt(model.signal_variance),
        "noise_std": np.sqrt(model.noise_variance),
        "mean": model.mean,
    }
    numbers = {
        name: None if vector is None else [value if math.isfinite(value) else None for value in vector.tolist()]
        for name, vector in vectors.items()
    }
    return {**predictor_summary(model.predictor), **numbers}


def _tensors_of(model: FittedModel) -> dict[str, Tensor]:
    tensors = predictor_tensors(model.predictor)
    vectors = {f"s.{name}": getattr(model.standardiser, name) for name in _STANDARDISER}
    vectors |= {f"p.{name}": getattr(model.predictor.params, name) for name in PARAMETERS}
    tensors |= {name: torch.tensor(value, dtype=torch.float64) for name, value in vectors.items()}
    if model.kind == "prism" and model.input_lengthscale is not None:
        tensors["input_lengthscale"] = torch.tensor(model.input_lengthscale)
    if model.background is not None:
        tensors["background"] = torch.tensor(model.background)
    if model.conformal is not None:
        tensors["conformal_scores"] = torch.tensor(model.conformal.scores)
    return tensors


def _build(config: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> FittedModel:
    """Build a model from the contents of a file; raise an error if anything does not match."""
    kind, arguments = config["estimator"], dict(config["arguments"])
    n, d, q, ndim, n_iter = (
        check_count(config, name) for name in ("rows", "inputs", "outputs", "target_ndim", "n_iter")
    )
    if ndim not in (1, 2) or (ndim == 1 and q != 1):
        raise ModelFileError(f"{q} outputs do not fit a target of {ndim} dimension(s)")
    if config["fit_status"]["rows"] != n:
        raise ModelFileError("the status is that of another fit")
    stages = config["fit_status"]["stages"]
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ModelFileError("the stages of the status are not a list of objects")
    if not isinstance(config["history"], dict):
        raise ModelFileError("the history is not an object")
    arguments["device"] = _device(arguments["device"], device)
    there = compute_device(arguments["device"])
    dtype = torch.float64 if kind == "exact" else DTYPES[arguments.get("dtype", "float64")]
    chunk_rows = None if arguments.get("chunk_size", "auto") == "auto" else arguments["chunk_size"]
    if chunk_rows is not None:
        check_count(arguments, "chunk_size")
    standardiser = _build_standardiser(tensors, d, q)
    # The kernel of a mixture's first expert may act on more or fewer inputs than the model has.
    params = take_parameters(tensors, "p.", tensors["p.log_lengthscale"].numel() if kind == "prism" else d, q)
    names, encoder = _build_columns(config, d)
    log_evidence = float(config["log_evidence"])
    predictor = build_predictor(
        kind,
        tensors,
        config["state"],
        arguments,
        params,
        log_evidence + n * float(np.log(standardiser.y_scale).sum()),
        n=n,
        d=d,
        dtype=dtype,
    )
    return FittedModel(
        kind=kind,
        predictor=predictor.to(there),
        standardiser=standardiser,
        kernel=arguments["kernel"],
        target_ndim=ndim,
        log_evidence=log_evidence,
        dtype=dtype,
        device=there,
        chunk_rows=chunk_rows,
        input_lengthscale=_build_relevance(kind, tensors, params, d),
        shapes=_build_shapes(config.get("noise_shape"), q),
        copy_shapes=_build_shapes(config.get("copy_shape"), q),
        tail_share=_build_tail_share(config.get("tail_share", 0.0)),
        conformal=_build_conformal(config, tensors, q),
        feature_names=names,
        encoder=encoder,
        background=_build_background(tensors, d),
        status=dict(config["fit_status"]),
        history=config["history"],
        n_iter=n_iter,
        arguments=arguments,
    )


def _build_standardiser(tensors: dict[str, Tensor], d: int, q: int) -> Standardiser:
    shapes = {f"s.{name}": (d if name.startswith("x_") else q,) for name in _STANDARDISER}
    standardiser = Standardiser(*(tensor.numpy() for tensor in take(tensors, **shapes)))
    if (standardiser.x_scale <= 0).any() or (standardiser.y_scale <= 0).any():
        raise ModelFileError("a scale is not positive")
    return standardiser


def _build_columns(config: dict[str, Any], d: int) -> tuple[list[str] | None, TableEncoder | None]:
    names = None if config["feature_names"] is None else [str(name) for name in config["feature_names"]]
    if names is not None and len(names) != d:
        raise ModelFileError(f"{len(names)} feature names for {d} inputs")
    encoder = None if config["table"] is None else TableEncoder.from_dict(config["table"])
    if encoder is not None and encoder.feature_names != names:
        raise ModelFileError("the table's columns are not the model's inputs")
    if encoder is not None and encoder.targets and len(encoder.targets) != config["outputs"]:
        raise ModelFileError(f"{len(encoder.targets)} targets of the table for {config['outputs']} outputs")
    return names, encoder


def _build_background(tensors: dict[str, Tensor], d: int) -> Array | None:
    if "background" not in tensors:
        return None
    rows = tensors["background"]
    if rows.ndim != 2 or rows.shape[1] != d or not len(rows):
        raise ModelFileError(f"the background is not one of rows of {d} inputs")
    found: Array = rows.numpy()
    return found


def _build_shapes(states: Any, q: int) -> tuple[NoiseShape, ...] | None:
    if states is None:
        return None
    if not isinstance(states, list) or len(states) != q:
        raise ModelFileError(f"the noise has no list of {q} shapes, one for each output")
    return tuple(shape_from_dict(state) for state in states)


def _build_tail_share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 0.5:
        raise ModelFileError("the share of the tails is not a number from 0 to 0.5")
    return float(value)


def _build_conformal(config: dict[str, Any], tensors: dict[str, Tensor], q: int) -> Conformal | None:
    if config.get("conformal_rows") is None:
        return None
    rows = check_count(config, "conformal_rows")
    (scores,) = take(tensors, conformal_scores=(kept_scores(rows), q))
    if (scores.diff(dim=0) < 0).any():
        raise ModelFileError("the scores for conformal prediction are not sorted")
    return Conformal(scores.numpy(), rows)


def _build_relevance(kind: str, tensors: dict[str, Tensor], params: Parameters, d: int) -> Array | None:
    if kind != "prism":
        return params.lengthscale
    if "input_lengthscale" not in tensors:
        return None
    found: Array = take(tensors, input_lengthscale=(d,))[0].numpy()
    if (found <= 0).any():
        raise ModelFileError("a length-scale is not positive")
    return found


def _device(saved: Any, asked: str | None) -> str:
    """Choose the device of a model: the one asked for, or that of the saved model if it is present."""
    if not is_device(saved):
        raise ModelFileError(f"device {saved!r:.40} is unknown to this version")
    if asked is not None:
        return asked
    try:
        compute_device(saved)
    except PrismGPError:
        found = compute_device("auto").type
        what = (
            "there is none here: it runs on the CPU" if found == "cpu" else f"{saved} is not here: it runs on another"
        )
        warnings.warn(f"the model was saved on a GPU and {what}", PrismGPWarning, stacklevel=5)
        return found
    return str(saved)


def _plain(value: Any) -> Any:
    """Convert a constructor argument to JSON; a generator cannot be stored and becomes null."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None
