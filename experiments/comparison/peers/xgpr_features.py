"""xGPR: structured random features and conjugate gradients. Its licence is academic, non-commercial.

Its variance, as returned, is in units of beta squared, the scale its evidence fits beside the noise ratio. The
factor is put in for a second set of standard deviations; both are reported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xGPR

from experiments.internals import Array

__all__ = ["fit_xgpr"]

_BETA = (0.1, 10.0)  # between which the library keeps it


class _XGPR:
    def __init__(self, model: Any, beta: float, facts: dict[str, Any]) -> None:
        self.model, self.beta, self.facts = model, beta, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.model.predict(X, get_var=True)
        return mean, np.sqrt(np.maximum(variance, 1e-12))

    def variants(self, mean: Array, std: Array) -> dict[str, tuple[Array, Array]]:
        """The same means with the standard deviations that were meant."""
        return {"corrected": (mean, self.beta * std)}


def fit_xgpr(
    X: Array,
    y: Array,
    *,
    seed: int,
    features: int = 2_048,
    tune_features: int = 1_024,
    tune_rows: int = 20_000,
    variance_features: int = 1_024,
    device: str = "cpu",
) -> _XGPR:
    """Tune on few features and at most ``tune_rows`` rows, fit with more on all rows, as its documentation advises."""
    x, y = np.ascontiguousarray(X), np.asarray(y, dtype=np.float64)
    some = np.random.default_rng(seed).permutation(len(y))[:tune_rows]  # its own option for this fails
    common = {"kernel_choice": "RBF", "device": device, "verbose": False, "random_seed": seed}
    tuner = xGPR.xGPRegression(num_rffs=tune_features, variance_rffs=16, **common)
    parameters, evaluations, score = tuner.tune_hyperparams_crude(
        xGPR.build_regression_dataset(x[some], y[some], chunk_size=2000), random_seed=seed
    )
    model = xGPR.xGPRegression(num_rffs=features, variance_rffs=min(variance_features, features), **common)
    data = xGPR.build_regression_dataset(x, y, chunk_size=2000)
    model.set_hyperparams(np.asarray(parameters), data)
    model.fit(data, mode="exact" if features <= 2_048 else "cg", tol=1e-6)
    # The library's own rule for beta, of which its variance knows nothing: residual variance over lambda squared.
    noise = float(np.mean((y - y.mean()) / y.std() * (y - model.predict(x)) / y.std()))
    ratio = float(model.kernel.get_lambda())
    beta = float(np.clip(np.sqrt(max(noise, 0.0)) / ratio, *_BETA))
    facts = {"log_parameters": np.asarray(parameters).tolist(), "evaluations": int(evaluations), "beta": beta}
    return _XGPR(model, beta, {**facts, "tune_rows": len(some), "negative_log_evidence": float(score)})
