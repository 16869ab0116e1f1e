"""PrismGP's own regressors, behind the interface of the peers.

They standardise what they get, as they do for every user; nothing is set but what the entry names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.internals import Array
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = ["fit_exact", "fit_prism", "fit_ssgp"]

_MODELS: dict[str, type] = {
    "exact": ExactGPRegressor,
    "ssgp": SSGPRegressor,
    "prism": PrismGPRegressor,
}


@dataclass
class _Ours:
    model: Any
    facts: dict[str, Any] = field(default_factory=dict)

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, std = self.model.predict(X, return_std=True)
        return mean, std

    def log_density(self, X: Array, y: Array) -> Array:
        """Of the predictive distribution itself, which need not be normal, (n,)."""
        return np.asarray(self.model.log_density(X, y))


def _fit(kind: str, X: Array, y: Array, seed: int, settings: dict[str, Any]) -> _Ours:
    model: Any = _MODELS[kind](random_state=seed, **settings)
    model.fit(X, y)
    return _Ours(model, {"log_evidence": float(model.log_evidence_)})


def fit_exact(X: Array, y: Array, *, seed: int, seconds: float, **settings: Any) -> _Ours:
    """The exact GP; ``seconds`` end its search for parameters early."""
    return _fit("exact", X, y, seed, {"max_seconds": seconds, **settings})


def fit_ssgp(X: Array, y: Array, *, seed: int, **settings: Any) -> _Ours:
    """The sparse spectrum GP."""
    return _fit("ssgp", X, y, seed, settings)


def fit_prism(X: Array, y: Array, *, seed: int, **settings: Any) -> _Ours:
    """The revised sparse spectrum GP."""
    return _fit("prism", X, y, seed, settings)
