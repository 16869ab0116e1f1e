"""Read model files, in the layout of :mod:`prismgp.model.save`; whatever does not fit together is a ModelFileError."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prismgp._system import compute_device, is_device
from prismgp._types import DTYPES, Array, Tensor
from prismgp.core.exact import ExactModel, ExactPosterior
from prismgp.core.features import GATINGS, BlockPosterior, Gating, WeightPosterior
from prismgp.core.gating import RuleGate
from prismgp.core.kernels import Parameters, get_kernel
from prismgp.core.models import Predictor, SpectralModel, Standardiser
from prismgp.core.shape import NoiseShape, shape_from_dict
from prismgp.core.statistics import Statistics
from prismgp.data import TableEncoder
from prismgp.exceptions import ModelFileError, PrismGPError, PrismGPWarning
from prismgp.model.conformal import Conformal, kept_scores
from prismgp.model.container import (
    STANDARDISER,
    check_count,
    parse_text,
    read_tensors,
    take,
    take_parameters,
    translate_errors,
)
from prismgp.model.fitted import FittedModel
from prismgp.model.mixture_state import build_mixture
from prismgp.model.neighbor_state import build_local, build_neighbors, is_coordinates
from prismgp.model.unknown import KnownGaps


def load_model(path: str | PathLike[str], *, device: str | None = None) -> FittedModel:
    """Read a model written by :func:`save_model`; a damaged file, or one of another kind, raises ModelFileError.

    Without a device it computes where it did when it was saved, or on the CPU, with a warning, when there is no such
    device here.
    """
    if device is not None:  # its absence is not the file's fault
        compute_device(device)
    with translate_errors(path) as file:
        return _build(*_read(file), device)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read text and tensors of a file, after checking its checksum."""
    text, tensors = read_tensors(path)
    config = parse_text(text)
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float64 and not is_coordinates(name):
            raise ModelFileError(f"tensor {name!r} is not made of finite float64 numbers")
    return config, tensors


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
    predictor = _build_predictor(
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
        encoder=None if encoder is None else encoder.ignore(standardiser.constant_inputs),
        background=_build_background(tensors, d),
        known_gaps=_build_known_gaps(config.get("taught"), tensors, d),
        status=dict(config["fit_status"]),
        history=config["history"],
        n_iter=n_iter,
        arguments=arguments,
    )


def _build_standardiser(tensors: dict[str, Tensor], d: int, q: int) -> Standardiser:
    shapes = {f"s.{name}": (d if name.startswith("x_") else q,) for name in STANDARDISER}
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


def _build_known_gaps(sets: Any, tensors: dict[str, Tensor], d: int) -> KnownGaps | None:
    if sets is None:
        return None
    found = np.zeros((len(sets), d), dtype=bool)
    for own, cells in zip(found, sets, strict=True):
        if not cells or not all(type(each) is int and 0 <= each < d for each in cells):
            raise ModelFileError(f"cells that may be missing are not numbers of the {d} inputs")
        own[cells] = True
    low, high = take(tensors, **{"taught.low": found.shape, "taught.high": found.shape})
    return KnownGaps(found, low.numpy(), high.numpy())


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


# -- the predictor -----------------------------------------------------------------------------------


def _build_predictor(
    kind: str,
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    arguments: dict[str, Any],
    params: Parameters,
    log_evidence: float,
    *,
    n: int,
    d: int,
    dtype: torch.dtype,
) -> Predictor:
    """Build the model of n rows with d inputs from its tensors and config; a mismatch raises ModelFileError."""
    if kind == "exact":
        return _build_exact(tensors, params, arguments["kernel"], log_evidence, n=n, d=d)
    if kind == "ssgp":
        return _build_spectral(tensors, config, arguments, params, log_evidence, n=n, d=d)
    if kind == "neighbors":
        return build_neighbors(tensors, config, params, log_evidence, n=n, d=d)
    if kind == "prism":
        mixture = build_mixture(tensors, config["experts"], n=n, d=d, q=len(params.mean), dtype=dtype)
        return build_local(tensors, config, mixture, d=d) if "near" in config else mixture
    raise ModelFileError(f"estimator {kind!r} is unknown to this version")


def _build_exact(
    tensors: dict[str, Tensor], params: Parameters, kernel: str, log_evidence: float, *, n: int, d: int
) -> ExactModel:
    q = len(params.mean)
    x, lower, alpha = take(tensors, x=(n, d), lower=(q, n, n), alpha=(n, q))
    return ExactModel(params, ExactPosterior.at(params, x, lower, alpha, get_kernel(kernel)), log_evidence, ())


def _build_spectral(
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    arguments: dict[str, Any],
    params: Parameters,
    log_evidence: float,
    *,
    n: int,
    d: int,
) -> SpectralModel:
    p, gating = arguments["n_frequencies"], arguments["gating"]
    if gating not in GATINGS:
        raise ModelFileError(f"gating {gating!r} is unknown to this version")
    q = len(params.mean)
    (frequencies,) = take(tensors, frequencies=(p, d))
    gate = _build_gating(tensors, config, gating, d)
    width = 2 * p * gate.widening
    front = () if gate.gate is None or gate.kind == "soft" else (gate.gate.n_clusters,)
    moments, weight_mean, inverse_root = take(
        tensors,
        moments=(*front, width + 1 + q, width + 1 + q),
        weight_mean=(*front, width, q),
        inverse_root=(*front, q, width, width),
    )
    if not front:
        moments, weight_mean, inverse_root = moments[None], weight_mean[None], inverse_root[None]
    rows = config["cluster_rows"] if gate.gate is not None else [n]
    sound = all(isinstance(count, int) and count >= 0 for count in rows)
    if not sound or len(rows) != len(moments) or sum(rows) != n:
        raise ModelFileError("the rows of the clusters are not those of the model")
    signal, mean = torch.as_tensor(params.signal), torch.as_tensor(params.mean)
    sums = config.get("log_noise_sums", [0.0] * len(rows))
    if not isinstance(sums, list) or len(sums) != len(rows) or not all(type(s) is float for s in sums):
        raise ModelFileError("log_noise_sums is not one number per cluster")
    stats = tuple(Statistics(count, q, each, own) for count, each, own in zip(rows, moments, sums, strict=True))
    parts = zip(weight_mean, inverse_root, strict=True)
    posterior = BlockPosterior(tuple(WeightPosterior(*part, signal, mean) for part in parts))
    limits = _build_limits(tensors, d) if "limits" in tensors else None
    return SpectralModel(frequencies.numpy(), params, gate, stats, posterior, log_evidence, (), limits)


def _build_gating(tensors: dict[str, Tensor], config: dict[str, Any], kind: str, d: int) -> Gating:
    """The gate; a mismatch raises ModelFileError."""
    if kind == "none":
        return Gating()
    b = check_count(config, "clusters")
    shapes = {"gate.centres": (b, d), "gate.roots": (b, d), "gate.offsets": (b,)}
    return Gating(RuleGate(kind, *take(tensors, **shapes)), dict(config["gate"]))


def _build_limits(tensors: dict[str, Tensor], d: int) -> Tensor:
    (limits,) = take(tensors, limits=(2, d))
    if not bool((limits[0] < limits[1]).all()):
        raise ModelFileError("a lower limit of an input is not below the upper one")
    return limits
