"""Write model files: one safetensors file whose metadata is JSON. Nothing in it is ever executed.

Layout (format version 5)

* The text of the file (:mod:`prismgp.model.container`) is a JSON object: format version, estimator,
  constructor arguments, and what a fit learned that is not an array.
* The tensors are named float64 arrays, coordinates of rows also float32; their shapes are checked
  against the JSON when it is read (:mod:`prismgp.model.load`).
* Under hard gates every array of a sparse spectrum GP has one more axis in front, the cluster; under soft gates there
  are 2p features for each cluster; without gates it is as if there were one cluster.
"""

from __future__ import annotations

import json
import math
from os import PathLike
from typing import Any

import numpy as np
import torch

from prismgp._system import to_plain
from prismgp._types import Tensor
from prismgp.core.exact import ExactModel
from prismgp.core.gating import RuleGate
from prismgp.core.models import Predictor, SpectralModel
from prismgp.exceptions import PrismGPError
from prismgp.model.container import FORMAT_VERSION, PARAMETERS, STANDARDISER, count_bytes, write_tensors
from prismgp.model.fitted import FittedModel
from prismgp.model.mixture_state import mixture_config, mixture_tensors
from prismgp.model.neighbor_state import local_config, local_tensors
from prismgp.neighbors.model import NeighborModel
from prismgp.prism import Mixture
from prismgp.prism.local import LocalMixture


def save_model(model: FittedModel, path: str | PathLike[str]) -> None:
    """Write a fitted model to a file that appears whole or not at all.

    Where the model predicts from neighbours, the training rows are part of the file: their coordinates, and their
    targets or residuals. :func:`file_bytes` says how large it will be.
    """
    write_tensors(path, *_contents(model))


def file_bytes(model: FittedModel) -> int:
    """Return the size of the model's file, without writing it."""
    return count_bytes(*_contents(model))


def _contents(model: FittedModel) -> tuple[str, dict[str, Tensor]]:
    return json.dumps(_config_of(model), allow_nan=False), _tensors_of(model)


def _config_of(model: FittedModel) -> dict[str, Any]:
    """Return all but the arrays of a model, as plain data."""
    return {
        "format_version": FORMAT_VERSION,
        "estimator": model.kind,
        "arguments": {name: _plain_argument(value) for name, value in model.arguments.items()},
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
        "taught": None
        if model.known_gaps is None
        else [np.flatnonzero(cells).tolist() for cells in model.known_gaps.cells],
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
    return {**predictor_summary(model.predictor), **to_plain(vectors)}


def _tensors_of(model: FittedModel) -> dict[str, Tensor]:
    tensors = predictor_tensors(model.predictor)
    vectors = {f"s.{name}": getattr(model.standardiser, name) for name in STANDARDISER}
    vectors |= {f"p.{name}": getattr(model.predictor.params, name) for name in PARAMETERS}
    tensors |= {name: torch.tensor(value, dtype=torch.float64) for name, value in vectors.items()}
    if model.kind == "prism" and model.input_lengthscale is not None:
        tensors["input_lengthscale"] = torch.tensor(model.input_lengthscale)
    if model.background is not None:
        tensors["background"] = torch.tensor(model.background)
    if model.known_gaps is not None:
        tensors |= {
            "taught.low": torch.tensor(model.known_gaps.low),
            "taught.high": torch.tensor(model.known_gaps.high),
        }
    if model.conformal is not None:
        tensors["conformal_scores"] = torch.tensor(model.conformal.scores)
    return tensors


def _plain_argument(value: Any) -> Any:
    """Convert a constructor argument to JSON; a generator cannot be stored and becomes null."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_plain_argument(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None


# -- the predictor -----------------------------------------------------------------------------------


def predictor_tensors(predictor: Predictor) -> dict[str, Tensor]:
    """All numbers of a fitted model, by name."""
    if isinstance(predictor, ExactModel):
        return {name: getattr(predictor.posterior, name) for name in ("x", "lower", "alpha")}
    if isinstance(predictor, SpectralModel):
        return _spectral_tensors(predictor)
    if isinstance(predictor, NeighborModel):
        return local_tensors(predictor)
    if isinstance(predictor, LocalMixture):
        return {**mixture_tensors(predictor.base), **local_tensors(predictor)}
    assert isinstance(predictor, Mixture)
    return mixture_tensors(predictor)


def predictor_config(predictor: Predictor) -> dict[str, Any]:
    """Return what is not in the tensors, as plain data for JSON."""
    if isinstance(predictor, SpectralModel):
        return _spectral_config(predictor)
    if isinstance(predictor, NeighborModel):
        return local_config(predictor)
    if isinstance(predictor, LocalMixture):
        return {"experts": mixture_config(predictor.base), **local_config(predictor)}
    return {"experts": mixture_config(predictor)} if isinstance(predictor, Mixture) else {}


def predictor_summary(predictor: Predictor) -> dict[str, Any]:
    """Return the gates of a model and its neighbour GPs, whose rows are part of the file, as plain data; or nulls."""
    gate = predictor.gating.gate if isinstance(predictor, SpectralModel) else None
    gating = None if gate is None else {"kind": gate.kind, "clusters": gate.n_clusters}
    if isinstance(predictor, NeighborModel):
        found = [("neighbours in inputs alone", 1.0, predictor.gp)]
    elif isinstance(predictor, LocalMixture):
        pairs = zip(predictor.near, predictor.weights[1:], strict=True)
        found = [(near.view.name, float(weight), near.gp) for near, weight in pairs]
    else:
        return {"gating": gating, "neighbors": None}
    neighbors = [
        {
            "name": name,
            "weight": weight,
            "rows": gp.n_rows,
            "neighbors": gp.k,
            "degrees": gp.degrees if math.isfinite(gp.degrees) else None,
        }
        for name, weight, gp in found
    ]
    return {"gating": gating, "neighbors": neighbors}


def _spectral_tensors(model: SpectralModel) -> dict[str, Tensor]:
    """Frequencies, statistics, posterior and gate."""
    gating = model.gating
    tensors = {
        "moments": [block.moments for block in model.blocks],
        "weight_mean": [block.weight_mean for block in model.posterior.blocks],
        "inverse_root": [block.inverse_root for block in model.posterior.blocks],
    }
    joined = {name: torch.stack(parts) if gating.kind == "hard" else parts[0] for name, parts in tensors.items()}
    joined["frequencies"] = torch.as_tensor(model.base)
    if model.limits is not None:
        joined["limits"] = model.limits
    gate = gating.gate
    if gate is None:
        return joined
    if not isinstance(gate, RuleGate):
        raise PrismGPError(
            f"the partition is a {type(getattr(gate, 'clusterer', gate)).__name__}, which a model file cannot hold "
            "(files hold numbers and text, never code); fit again with partition=labels, such as its predict(X), "
            "or with a KMeans or a GaussianMixture of diagonal covariances"
        )
    return {**joined, "gate.centres": gate.centres, "gate.roots": gate.roots, "gate.offsets": gate.offsets}


def _spectral_config(model: SpectralModel) -> dict[str, Any]:
    gating = model.gating
    config: dict[str, Any] = {}
    if any(block.log_noise_sum for block in model.blocks):
        config["log_noise_sums"] = [block.log_noise_sum for block in model.blocks]
    if gating.gate is None:
        return config
    rows = [block.n for block in model.blocks]
    return {"gate": gating.about, "clusters": gating.gate.n_clusters, "cluster_rows": rows, **config}
