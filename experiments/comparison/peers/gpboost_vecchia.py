"""GPBoost: Vecchia's approximation, with neighbours in the space that the length-scales stretch."""

from __future__ import annotations

from typing import Any

import gpboost
import numpy as np

from experiments.comparison.peers.library import predict_blocks
from experiments.internals import AnyArray, Array

__all__ = ["fit_vecchia"]


class _Vecchia:
    def __init__(self, model: Any, y: Array, parameters: Array, varies: AnyArray, facts: dict[str, Any]) -> None:
        self.model, self.y, self.parameters, self.varies, self.facts = model, y, parameters, varies, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        def block(rows: Array) -> tuple[Array, Array]:
            found = self.model.predict(
                y=self.y,
                cov_pars=self.parameters,
                gp_coords_pred=rows[:, self.varies],
                predict_var=True,
                predict_response=True,
            )
            return np.asarray(found["mu"]), np.sqrt(np.asarray(found["var"]))

        return predict_blocks(block, X, 20_000)


def fit_vecchia(
    X: Array,
    y: Array,
    *,
    seed: int,
    kernel: str = "matern_ard",
    shape: float = 1.5,
    neighbours: int = 20,
    learn_rows: int = 10_000,
    max_iter: int = 1_000,
) -> _Vecchia:
    """Learn the parameters on at most ``learn_rows`` random rows; condition on all rows.

    Parameters
    ----------
    kernel : {"matern_ard", "gaussian_ard"}
    shape : float
        Smoothness of the Matern kernel.
    neighbours : int
        In training; twice as many in prediction, which is the library's default.
    """

    def model_of(rows: Array) -> Any:
        return gpboost.GPModel(
            gp_coords=rows,
            cov_function=kernel,
            cov_fct_shape=shape,
            likelihood="gaussian",
            gp_approx="vecchia",
            num_neighbors=neighbours,
            seed=seed,
        )

    some = np.random.default_rng(seed).permutation(len(y))[:learn_rows]
    varies = np.ptp(X[some], axis=0) > 0  # the library refuses inputs that do not, and its users leave them out
    X = X[:, varies]
    small = model_of(X[some])
    small.fit(y=y[some], params={"maxit": max_iter, "trace": False})
    parameters = np.asarray(small.get_cov_pars(format_pandas=False), dtype=np.float64).reshape(-1)
    model = small if len(some) == len(y) else model_of(X)
    targets = y[some] if model is small else y
    facts = {"learn_rows": len(some), "parameters": parameters.tolist()}
    facts |= {"iterations": int(small._get_num_optim_iter()), "neighbours": neighbours}
    return _Vecchia(model, targets, parameters, varies, facts)
