"""NGBoost: natural gradient boosting of a normal distribution's mean and scale, with its default trees."""

from __future__ import annotations

import time
from typing import Any

import ngboost
import numpy as np

from experiments.comparison.peers.library import PATIENCE, ROUNDS, boosting_rate, predict_blocks, split_off
from experiments.internals import Array

__all__ = ["fit_ngboost"]


class _LateError(Exception):
    """The time is over."""


class _NGBoost:
    def __init__(self, model: Any, facts: dict[str, Any]) -> None:
        self.model, self.facts = model, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        def block(rows: Array) -> tuple[Array, Array]:
            found = self.model.pred_dist(rows, max_iter=self.facts["trees"])
            return np.asarray(found.loc), np.asarray(found.scale)

        return predict_blocks(block, X, 100_000)


def fit_ngboost(
    X: Array, y: Array, *, seed: int, seconds: float, rounds: int = ROUNDS, batch: int = 50_000
) -> _NGBoost:
    """Train on nine tenths of the rows, at most ``batch`` in a round; the density of the others says when to stop."""
    train, held_out = split_off(len(y), 0.1, seed, most=len(y))
    rate, deadline = boosting_rate(len(y)), time.perf_counter() + seconds

    def loss(distribution: Any, targets: Array) -> float:
        # The library has no limit of time. When its own loss of held-out rows is due, a round is complete.
        if time.perf_counter() > deadline:
            raise _LateError
        return float(distribution.total_score(targets))

    model = ngboost.NGBRegressor(
        n_estimators=rounds,
        learning_rate=rate,
        minibatch_frac=min(1.0, batch / len(train)),
        random_state=seed,
        verbose=False,
    )
    late = False
    try:
        model.fit(
            X[train],
            y[train],
            X_val=X[held_out],
            Y_val=y[held_out],
            val_loss_monitor=loss,
            early_stopping_rounds=PATIENCE,
        )
    except _LateError:
        late = True
    best = model.best_val_loss_itr  # None where time was over in the first round
    facts = {"trees": 1 if best is None else int(best) + 1, "learning_rate": rate, "ended_by_time": late}
    return _NGBoost(model, facts)
