"""CatBoost: boosted trees that predict mean and variance of every row (``RMSEWithUncertainty``)."""

from __future__ import annotations

import time
from typing import Any

import catboost
import numpy as np

from experiments.comparison.peers.library import PATIENCE, ROUNDS, boosting_rate, split_off, usable_threads
from experiments.internals import Array

__all__ = ["fit_catboost"]


class _Deadline:
    """Ends the training when its time is over; the library keeps the best round so far."""

    def __init__(self, seconds: float) -> None:
        self.end, self.over = time.perf_counter() + seconds, False

    def after_iteration(self, info: Any) -> bool:
        """Called by the library after every round; False ends the training."""
        del info
        self.over = time.perf_counter() > self.end
        return not self.over


class _CatBoost:
    def __init__(self, model: Any, facts: dict[str, Any]) -> None:
        self.model, self.facts = model, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        mean, variance = self.model.predict(X, prediction_type="RMSEWithUncertainty").T
        return mean, np.sqrt(variance)


def fit_catboost(X: Array, y: Array, *, seed: int, seconds: float, rounds: int = ROUNDS) -> _CatBoost:
    """Train on nine tenths of the rows; the density of the others says when to stop."""
    train, held_out = split_off(len(y), 0.1, seed, most=len(y))
    rate, deadline = boosting_rate(len(y)), _Deadline(seconds)
    model = catboost.CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        iterations=rounds,
        learning_rate=rate,
        early_stopping_rounds=PATIENCE,
        random_seed=seed,
        thread_count=usable_threads(),
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(X[train], y[train], eval_set=(X[held_out], y[held_out]), callbacks=[deadline])
    facts = {"trees": int(model.tree_count_), "learning_rate": rate, "ended_by_time": deadline.over}
    return _CatBoost(model, facts)
