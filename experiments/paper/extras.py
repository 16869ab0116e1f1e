"""Jobs beside the fits: the inputs before and after re-configuration as pictures, and a certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from experiments.internals import Array, find_network, reconfigure, standardise, unpack_exact
from experiments.paper.data import load
from experiments.paper.fits import make_model
from prismgp import PrismGPRegressor, SSGPRegressor, check_conditions

__all__ = ["certificate", "embedding"]

_PICTURED, QUICKLY_PICTURED = 2_000, 800  # rows; t-SNE takes its time
_CLUSTERS = 8  # as the paper's mixture has
_BOUND = 0.1  # of the rows: what |K - K'| is to stay below when the conditions are checked
_TEST_POINTS = 100
_DECIMALS = 2  # of the places of points in a picture


def embedding(order: dict[str, Any]) -> dict[str, Any]:
    """The inputs in the plane, as they are and as two networks re-configure them, with the paper's conditions."""
    data = load(order)
    x, y = data.fit
    ssgp = SSGPRegressor(order["p"], random_state=0, device=order["device"]).fit(x, y)
    steps = {} if order["steps"] is None else {"max_steps": order["steps"]}
    two_stage = PrismGPRegressor(
        order["p"], recipe="paper", output="latent", random_state=0, device=order["device"], **steps
    ).fit(x, y)
    joint = make_model({**order, "model": "prism1"}, data.rows).fit(x, y)
    rng = np.random.default_rng(0)
    shown = QUICKLY_PICTURED if order["quick"] else _PICTURED
    pictured = x[np.sort(rng.permutation(len(x))[:shown])]
    spaces = [_space("inputs", "Inputs, standardised", standardise(ssgp, pictured), unpack_exact(ssgp)[1].lengthscale)]
    latent, lengthscale = reconfigure(two_stage, pictured)
    spaces.append(_space("two_stage", "Latent inputs, the two stages as printed", latent, lengthscale))
    found = find_network(joint)
    if found is not None:
        network, lengthscale = found
        standardised = standardise(joint, pictured)
        latent = network(standardised.to(next(network.parameters()).dtype)).latent.detach()
        whole = np.column_stack([latent.double().cpu().numpy(), standardised.cpu().numpy()])
        spaces.append(_space("joint", "Latent inputs, our joint training", latent, lengthscale, metric_space=whole))
    return {"rows": len(pictured), "spaces": spaces, "clusters": _CLUSTERS, "joint_network": found is not None}


def _space(name: str, title: str, z: Any, lengthscale: Array, *, metric_space: Array | None = None) -> dict[str, Any]:
    """Two pictures of points, their clusters, and how far the paper's conditions hold for them.

    The conditions are about what the kernel sees, which is more than the latent columns where inputs skip the network.
    """
    points = z.detach().double().cpu().numpy()
    labels = KMeans(_CLUSTERS, n_init=4, random_state=0).fit_predict(points)
    pca = PCA(2, random_state=0).fit_transform(points)
    perplexity = min(30.0, (len(points) - 1) / 4)
    tsne = TSNE(2, init="pca", random_state=0, perplexity=perplexity).fit_transform(points)
    seen = points if metric_space is None else metric_space
    report = check_conditions(seen, lengthscale=lengthscale, bound=_BOUND * len(points), labels=labels)
    return {
        "name": name,
        "title": title,
        "columns": points.shape[1],
        "labels": labels.tolist(),
        "pca": np.round(pca, _DECIMALS).tolist(),
        "tsne": np.round(tsne.astype(np.float64), _DECIMALS).tolist(),
        "silhouette": float(silhouette_score(points, labels)),
        "conditions": {
            "holds": report.holds,
            "holds_printed": report.holds_printed,
            "conclusion": report.conclusion,
            "bound": report.bound,
            "checks": [
                {"form": form, "name": check.name, "margin": _finite(check.margin), "holds": bool(check.holds)}
                for form in ("printed", "corrected", "sufficient")
                for check in getattr(report, form)
            ],
        },
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def certificate(order: dict[str, Any]) -> dict[str, Any]:
    """How far the SSGP of the first run is from the exact GP with the same parameters."""
    data = load(order)
    x, y = data.fit
    model = SSGPRegressor(order["p"], random_state=0, device=order["device"]).fit(x, y)
    found = model.certify(x, y, data.x_test[:_TEST_POINTS], random_state=0)
    return {"certificate": found.to_dict(), "points": min(_TEST_POINTS, len(data.x_test))}
