"""Posteriors as named tensors and JSON, and back; model files hold these. Those of mixtures: ``revised/_state.py``.

Under hard gates every array of the posterior has one more axis in front, the cluster; under soft gates there
are 2p features for each cluster; without gates it is as if there were one cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prismgp._tensors import take
from prismgp._types import Tensor
from prismgp.core.exact import ExactPosterior
from prismgp.core.features import Gating
from prismgp.core.gating import RuleGate
from prismgp.core.kernels import get_kernel
from prismgp.core.parameters import Parameters
from prismgp.core.posterior import BlockPosterior, WeightPosterior
from prismgp.core.statistics import Statistics
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.model.fitted import SpectralModel

__all__ = ["exact_from_tensors", "spectral_config", "spectral_from_tensors", "spectral_tensors"]


def exact_from_tensors(
    tensors: dict[str, Tensor], params: Parameters, *, kernel: str, n: int, d: int
) -> ExactPosterior:
    """The posterior of n rows with d inputs; a mismatch raises ModelFileError."""
    q = len(params.mean)
    x, lower, alpha = take(tensors, x=(n, d), lower=(q, n, n), alpha=(n, q))
    return ExactPosterior(
        x=x,
        lower=lower,
        alpha=alpha,
        lengthscale=torch.as_tensor(params.lengthscale),
        signal=torch.as_tensor(params.signal),
        noise=torch.as_tensor(params.noise),
        mean=torch.as_tensor(params.mean),
        kernel=get_kernel(kernel),
    )


def spectral_tensors(stats: Sequence[Statistics], model: SpectralModel) -> dict[str, Tensor]:
    """Frequencies, statistics, posterior and gate."""
    gating = model.gating
    tensors = {
        "moments": [block.moments for block in stats],
        "weight_mean": [block.weight_mean for block in model.posterior.blocks],
        "inverse_root": [block.inverse_root for block in model.posterior.blocks],
    }
    joined = {name: torch.stack(parts) if gating.kind == "hard" else parts[0] for name, parts in tensors.items()}
    joined["frequencies"] = torch.as_tensor(model.frequencies)
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


def spectral_config(stats: Sequence[Statistics], gating: Gating) -> dict[str, Any]:
    """What the tensors do not say."""
    if gating.gate is None:
        return {}
    rows = [block.n for block in stats]
    return {"gate": gating.about, "clusters": gating.gate.n_clusters, "cluster_rows": rows}


def _gating_from_tensors(tensors: dict[str, Tensor], config: dict[str, Any], kind: str, d: int) -> Gating:
    """The gate; a mismatch raises ModelFileError."""
    if kind == "none":
        return Gating()
    b = config["clusters"]
    if not isinstance(b, int) or isinstance(b, bool) or b < 1:
        raise ModelFileError(f"{b!r:.40} is no number of clusters")
    shapes = {"gate.centres": (b, d), "gate.roots": (b, d), "gate.offsets": (b,)}
    return Gating(RuleGate(kind, *take(tensors, **shapes)), dict(config["gate"]))


def spectral_from_tensors(
    tensors: dict[str, Tensor], config: dict[str, Any], params: Parameters, *, gating: str, n: int, p: int, d: int
) -> tuple[SpectralModel, tuple[Statistics, ...]]:
    """The model of n rows, p frequencies and d inputs, and its statistics; a mismatch raises ModelFileError."""
    q = len(params.mean)
    (frequencies,) = take(tensors, frequencies=(p, d))
    gate = _gating_from_tensors(tensors, config, gating, d)
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
    stats = tuple(Statistics(count, q, each) for count, each in zip(rows, moments, strict=True))
    parts = zip(weight_mean, inverse_root, strict=True)
    posterior = BlockPosterior(tuple(WeightPosterior(*part, signal, mean) for part in parts))
    return SpectralModel(frequencies.numpy(), params, gate, posterior), stats
