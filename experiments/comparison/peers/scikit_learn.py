"""scikit-learn: its Gaussian process, kernel approximations with Bayesian ridge regression, boosted trees, forest.

The kernel approximations have one length-scale for all inputs, as scikit-learn's ``gamma`` has. It is the median of the
distances between rows, or chosen around it by held-out density. Bayesian ridge regression holds all features of
all rows in memory several times.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import BayesianRidge

from experiments.comparison.peers.library import (
    ROUNDS,
    ConstantStd,
    boosting_rate,
    predict_blocks,
    split_off,
    usable_threads,
)
from experiments.internals import Array
from prismgp.metrics import nlpd

__all__ = ["fit_features", "fit_forest", "fit_gpr", "fit_linear", "fit_trees", "median_distance"]

_MEDIAN_ROWS = 1_000
_OUT_OF_BAG_ROWS = 10_000
_PATIENCE = 30  # less than for other libraries: the rounds after the best one stay in the model


# -- the exact GP ----------------------------------------------------------------------------------


@dataclass
class _GPR:
    model: GaussianProcessRegressor
    facts: dict[str, Any]

    def predict(self, X: Array) -> tuple[Array, Array]:
        # The noise is a part of the kernel, so this is the standard deviation of an observation.
        return predict_blocks(lambda rows: self.model.predict(rows, return_std=True), X, 2048)


def fit_gpr(X: Array, y: Array, *, seed: int, restarts: int = 2, max_iter: int | None = None) -> _GPR:
    """``GaussianProcessRegressor`` with one length-scale per input and learned noise."""
    # Wider bounds than the default for inputs that turn out not to matter, and for data without noise.
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(np.full(X.shape[1], np.sqrt(X.shape[1])), (1e-2, 1e4))
    kernel += WhiteKernel(0.1, (1e-6, 1e1))
    more = {} if max_iter is None else {"optimizer": _limited(max_iter)}
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed, **more)
    with warnings.catch_warnings():  # that a length-scale ends at its bound is how an input is dropped
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return _GPR(model, {"kernel": str(model.kernel_), "log_evidence": float(model.log_marginal_likelihood_value_)})


def _limited(max_iter: int) -> Any:
    from scipy.optimize import minimize

    def optimise(objective: Any, start: Array, bounds: Any) -> tuple[Array, float]:
        found = minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": max_iter})
        return found.x, found.fun

    return optimise


# -- kernel approximations -------------------------------------------------------------------------


@dataclass
class _Features:
    approximation: Any
    ridge: BayesianRidge
    facts: dict[str, Any]

    def predict(self, X: Array) -> tuple[Array, Array]:
        return predict_blocks(
            lambda rows: self.ridge.predict(self.approximation.transform(rows), return_std=True), X, 8192
        )


def median_distance(X: Array, seed: int) -> float:
    """The median distance between rows, the usual first guess of a length-scale."""
    some = np.random.default_rng(seed).permutation(len(X))[:_MEDIAN_ROWS]
    return float(np.median(pdist(X[some]))) or 1.0


def fit_features(
    X: Array,
    y: Array,
    *,
    seed: int,
    kind: str,
    components: int,
    factors: tuple[float, ...] = (1.0,),
    choose_rows: int = 10_000,
) -> _Features:
    """Nystroem or random Fourier features, then Bayesian ridge regression on them.

    Parameters
    ----------
    kind : {"nystroem", "rff"}
    components : int
    factors : tuple of float
        Length-scales over the median distance; where there are several, the held-out density chooses.
    choose_rows : int
        At most so many rows serve the choice, a fifth of them held out.
    """
    median = median_distance(X, seed)

    def fit(rows: Array, targets: Array, lengthscale: float) -> _Features:
        gamma = 0.5 / lengthscale**2
        if kind == "nystroem":
            made: Any = Nystroem(gamma=gamma, n_components=min(components, len(rows)), random_state=seed)
        else:
            made = RBFSampler(gamma=gamma, n_components=components, random_state=seed)
        return _Features(made, BayesianRidge().fit(made.fit_transform(rows), targets), {})

    tried: list[dict[str, float]] = []
    if len(factors) > 1:
        some = np.random.default_rng(seed).permutation(len(y))[:choose_rows]
        train, held_out = split_off(len(some), 0.2, seed)
        for factor in factors:
            model = fit(X[some[train]], y[some[train]], factor * median)
            mean, std = model.predict(X[some[held_out]])
            tried.append({"factor": factor, "held_out_nlpd": nlpd(y[some[held_out]], mean, std)})
        factors = (min(tried, key=lambda each: each["held_out_nlpd"])["factor"],)
    model = fit(X, y, factors[0] * median)
    model.facts = {"lengthscale": factors[0] * median, "median_distance": median, "tried": tried}
    return model


# -- references ------------------------------------------------------------------------------------


@dataclass
class _Linear:
    ridge: BayesianRidge
    facts: dict[str, Any] = field(default_factory=dict)

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, std = self.ridge.predict(X, return_std=True)
        return mean, std


def fit_linear(X: Array, y: Array, *, seed: int) -> _Linear:  # noqa: ARG001  nothing is random here
    """Bayesian linear regression on the inputs: what any other method has to beat."""
    return _Linear(BayesianRidge().fit(X, y))


def fit_trees(X: Array, y: Array, *, seed: int, rounds: int = ROUNDS) -> ConstantStd:
    """Histogram gradient boosting, stopped early on held-out rows, whose residuals give the standard deviation."""
    train, held_out = split_off(len(y), 0.1, seed, most=len(y))
    rate = boosting_rate(len(y))
    model = HistGradientBoostingRegressor(
        max_iter=rounds, learning_rate=rate, early_stopping=True, n_iter_no_change=_PATIENCE, random_state=seed
    )
    model.fit(X[train], y[train], X_val=X[held_out], y_val=y[held_out])
    facts = {"trees": int(model.n_iter_), "learning_rate": rate}
    return ConstantStd(model.predict, y[held_out] - model.predict(X[held_out]), facts)


def fit_forest(X: Array, y: Array, *, seed: int, trees: int = 300, tree_rows: int = 100_000) -> ConstantStd:
    """A random forest; what its trees predict of rows they have not seen gives the standard deviation.

    Parameters
    ----------
    tree_rows : int
        At most so many rows, drawn at random, grow a tree: with all of millions the forest would not fit into memory.
    """
    model = RandomForestRegressor(
        trees, max_samples=min(tree_rows, len(y)), n_jobs=usable_threads(), random_state=seed
    ).fit(X, y)
    some = np.random.default_rng(seed).permutation(len(y))[:_OUT_OF_BAG_ROWS]
    total, count = np.zeros(len(some)), np.zeros(len(some))
    for tree, bag in zip(model.estimators_, model.estimators_samples_, strict=True):
        unseen = ~np.isin(some, bag)
        total[unseen] += tree.predict(X[some[unseen]])
        count[unseen] += 1
    known = count > 0
    facts = {"trees": trees, "out_of_bag_rows": int(known.sum())}
    return ConstantStd(model.predict, y[some[known]] - total[known] / count[known], facts)
