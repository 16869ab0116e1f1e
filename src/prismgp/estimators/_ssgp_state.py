"""The posterior and the gate of an SSGPRegressor as named tensors and JSON, and back; the model file holds these.

Under hard gates every array of the posterior has one more axis in front, the cluster; under soft gates there
are 2p features for each cluster; without gates it is as if there were one cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prismgp._tensors import take
from prismgp._types import Tensor
from prismgp.estimators._clusterers import ClustererGate
from prismgp.estimators._gating import Gating
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.gating import RuleGate
from prismgp.parameters import Parameters
from prismgp.posterior import BlockPosterior, WeightPosterior
from prismgp.statistics import Statistics

__all__ = ["blocks_from_tensors", "gating_from_tensors", "state_config", "state_tensors"]


def state_tensors(stats: Sequence[Statistics], posterior: BlockPosterior, gating: Gating) -> dict[str, Tensor]:
    """Statistics, posterior and gate."""
    tensors = {
        "moments": [block.moments for block in stats],
        "weight_mean": [block.weight_mean for block in posterior.blocks],
        "inverse_root": [block.inverse_root for block in posterior.blocks],
    }
    joined = {name: torch.stack(parts) if gating.kind == "hard" else parts[0] for name, parts in tensors.items()}
    gate = gating.gate
    if gate is None:
        return joined
    if isinstance(gate, ClustererGate):
        raise PrismGPError(
            f"the partition is a {type(gate.clusterer).__name__}, which a model file cannot hold "
            "(files hold numbers and text, never code); fit again with partition=labels, such as its predict(X), "
            "or with a KMeans or a GaussianMixture of diagonal covariances"
        )
    assert isinstance(gate, RuleGate)
    return {**joined, "gate.centres": gate.centres, "gate.roots": gate.roots, "gate.offsets": gate.offsets}


def state_config(stats: Sequence[Statistics], gating: Gating) -> dict[str, Any]:
    """What the tensors do not say."""
    if gating.gate is None:
        return {}
    rows = [block.n for block in stats]
    return {"gate": gating.about, "clusters": gating.gate.n_clusters, "cluster_rows": rows}


def gating_from_tensors(tensors: dict[str, Tensor], config: dict[str, Any], kind: str, d: int) -> Gating:
    """The gate; a mismatch raises ModelFileError."""
    if kind == "none":
        return Gating()
    b = config["clusters"]
    if not isinstance(b, int) or isinstance(b, bool) or b < 1:
        raise ModelFileError(f"{b!r:.40} is no number of clusters")
    shapes = {"gate.centres": (b, d), "gate.roots": (b, d), "gate.offsets": (b,)}
    return Gating(RuleGate(kind, *take(tensors, **shapes)), dict(config["gate"]))


def blocks_from_tensors(
    tensors: dict[str, Tensor], config: dict[str, Any], gating: Gating, params: Parameters, n: int, p: int
) -> tuple[tuple[Statistics, ...], BlockPosterior]:
    """Statistics and posterior; a mismatch raises ModelFileError."""
    q = len(params.mean)
    width = 2 * p * gating.widening
    front = () if gating.gate is None or gating.kind == "soft" else (gating.gate.n_clusters,)
    moments, weight_mean, inverse_root = take(
        tensors,
        moments=(*front, width + 1 + q, width + 1 + q),
        weight_mean=(*front, width, q),
        inverse_root=(*front, q, width, width),
    )
    if not front:
        moments, weight_mean, inverse_root = moments[None], weight_mean[None], inverse_root[None]
    rows = config["cluster_rows"] if gating.gate is not None else [n]
    sound = all(isinstance(count, int) and count >= 0 for count in rows)
    if not sound or len(rows) != len(moments) or sum(rows) != n:
        raise ModelFileError("the rows of the clusters are not those of the model")
    signal, mean = torch.as_tensor(params.signal), torch.as_tensor(params.mean)
    stats = tuple(Statistics(count, q, each) for count, each in zip(rows, moments, strict=True))
    parts = zip(weight_mean, inverse_root, strict=True)
    return stats, BlockPosterior(tuple(WeightPosterior(*part, signal, mean) for part in parts))
