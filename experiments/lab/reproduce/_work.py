"""What a job does: fit one model to one split, and score it along the way."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.lab._scores import scores
from experiments.lab.reproduce._curve import Recorder
from experiments.lab.reproduce._data import RunData, load
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp._memory import peak_bytes
from prismgp._types import AnyArray
from prismgp.model.observe import Observation

__all__ = ["fit", "make_model"]

_CURVE_ROWS = 20_000  # test rows along the fit; the final scores are on all
# Rows up to which a full GP learns its parameters on all of them, and rows it learns them on where there are more.
_EXACT_ROWS, _EXACT_SUBSAMPLE = 4_000, 3_000
_QUICK_EXACT_ROWS = 1_500  # both, in a quick run
_MANY_ROWS = 100_000  # from there on in single precision, and looked at less often: a look takes passes over all rows
_GROWTH, _FAST_GROWTH = 1.4, 2.0
_PREDICT_ROWS = 65_536


def make_model(order: dict[str, Any], rows: int) -> Any:
    """The estimator of an order."""
    name, p = order["model"], order["p"]
    common: dict[str, Any] = {"random_state": int(order["run"]), "device": order["device"]}
    if name == "exact":
        return ExactGPRegressor(**common)
    common["dtype"] = "float32" if rows >= _MANY_ROWS else "float64"
    if name == "ssgp":
        return SSGPRegressor(p, **common)
    if order["steps"] is not None:
        common["max_steps"] = order["steps"]
    if name == "paper":
        return PrismGPRegressor(p, recipe="paper", **common)
    return PrismGPRegressor(p, n_members=1 if name == "prism1" else None, **common)


def fit(order: dict[str, Any]) -> dict[str, Any]:
    """One model on one split: its course, final scores, times."""
    data = load(order)
    before = peak_bytes()
    model = make_model(order, data.rows)
    few = slice(_CURVE_ROWS)
    recorder = Recorder(
        data.x_test[few],
        data.y_test[few],
        data.scale,
        growth=_GROWTH if data.rows < _MANY_ROWS else _FAST_GROWTH,
        between=order["model"] != "prism",
    )
    all_rows, learned_on = (_QUICK_EXACT_ROWS,) * 2 if order["quick"] else (_EXACT_ROWS, _EXACT_SUBSAMPLE)
    if order["model"] == "exact" and data.rows > all_rows:
        chosen = np.random.default_rng([int(order["run"]), 3]).permutation(data.rows)[:learned_on]
        model = _exact_on_subsample(model, data, chosen, recorder)
    else:
        model._observer = recorder
        model.fit(*data.fit)
        model._observer = None
        learned_on = data.rows
    began = time.perf_counter()
    mean, std = _predicted(model, data.x_test)
    seconds = time.perf_counter() - began
    status = model.fit_status_
    return {
        "rows": data.rows,
        "test_rows": len(data.y_test),
        "curve_test_rows": min(_CURVE_ROWS, len(data.y_test)),
        "inputs": data.x_test.shape[1],
        "target_std": data.scale,
        "parameters_learned_on": learned_on,
        **scores(data.y_test, mean, std, data.scale),
        "fit_seconds": recorder.seconds,
        "iterations": recorder.iterations,
        "predict_seconds": seconds,
        "peak_before_bytes": before,
        "curve": recorder.points,
        "message": status.get("message", ""),
        "weights": status.get("weights"),
        "jitter": status["jitter"],
    }


def _predicted(model: Any, x: Any) -> tuple[Any, Any]:
    parts = [model.predict(x[at : at + _PREDICT_ROWS], return_std=True) for at in range(0, len(x), _PREDICT_ROWS)]
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([std for _, std in parts])


def _exact_on_subsample(
    model: ExactGPRegressor, data: RunData, chosen: AnyArray, recorder: Recorder
) -> ExactGPRegressor:
    """A full GP on all rows with the parameters that a subsample has taught."""
    x, y = data.fit

    def on_all(seen: ExactGPRegressor) -> ExactGPRegressor:
        whole = ExactGPRegressor(
            lengthscale=seen.lengthscale_,
            signal_variance=seen.signal_variance_,
            noise_variance=seen.noise_variance_,
            mean=seen.mean_,
            optimize=False,
            device=model.device,
        )
        return whole.fit(x, y)

    ended: list[Observation] = []
    course = Recorder(recorder.x, recorder.y, recorder.scale, model=on_all)
    model._observer = lambda seen: ended.append(seen) if seen.final else course(seen)
    model.fit(x[chosen], y[chosen])
    began = time.perf_counter()
    whole = on_all(model)
    seconds = ended[0].seconds + time.perf_counter() - began
    recorder.points += course.points
    recorder(replace(ended[0], seconds=seconds, rows=data.rows, model=lambda: whole))
    return whole
