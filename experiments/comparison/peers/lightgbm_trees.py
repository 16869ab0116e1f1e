"""LightGBM: boosted trees for the mean; residuals of held-out rows give one standard deviation for all."""

from __future__ import annotations

import time
from typing import Any

import lightgbm

from experiments.comparison.peers.library import (
    PATIENCE,
    ROUNDS,
    ConstantStd,
    boosting_rate,
    split_off,
    usable_threads,
)
from experiments.internals import Array

__all__ = ["fit_lightgbm"]


def fit_lightgbm(X: Array, y: Array, *, seed: int, seconds: float, rounds: int = ROUNDS) -> ConstantStd:
    """Train on nine tenths of the rows; the error of the others says when to stop."""
    train, held_out = split_off(len(y), 0.1, seed, most=len(y))
    rate, deadline = boosting_rate(len(y)), time.perf_counter() + seconds
    late = False

    def watch(state: Any) -> None:
        nonlocal late
        late = time.perf_counter() > deadline
        if late:
            raise lightgbm.callback.EarlyStopException(state.iteration, state.evaluation_result_list)

    model = lightgbm.LGBMRegressor(
        n_estimators=rounds, learning_rate=rate, random_state=seed, n_jobs=usable_threads(), verbose=-1
    )
    model.fit(
        X[train],
        y[train],
        eval_set=[(X[held_out], y[held_out])],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), watch],
    )
    trees = int(model.best_iteration_ or model.n_estimators_)
    facts = {"trees": trees, "learning_rate": rate, "ended_by_time": late}
    return ConstantStd(model.booster_.predict, y[held_out] - model.booster_.predict(X[held_out]), facts)
