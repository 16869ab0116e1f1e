"""A job of the paper's experiments: fit one model to one split, and score it in the course of the fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.internals import AnyArray, observe_fit
from experiments.machine import peak_bytes
from experiments.paper.data import RunData, load
from experiments.paper.released import ReleasedSSGP, preprocess
from experiments.scores import score
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = ["Recorder", "fit", "make_model"]

_CURVE_ROWS = 20_000  # test rows in the course of a fit; the final scores are on all
# Rows up to which a full GP learns its parameters on all of them, and rows it learns them on where there are more.
_EXACT_ROWS, _EXACT_SUBSAMPLE = 4_000, 3_000
QUICK_EXACT_ROWS = 1_500  # both, in a quick run
_MANY_ROWS = 100_000  # from there on in single precision, and scored less often: a score takes passes over all rows
_GROWTH, _FAST_GROWTH = 1.4, 2.0
_PREDICT_ROWS = 65_536
_RACE = "race"
_QUICK_PASSES = 10  # of the released baseline
RELEASED = ("released", "released_ssgp")  # models that get their rows as the released scripts prepare them


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
    if name in RELEASED:
        batch = 200 if order["experiment"] == "abalone" else 512
        if name == "released":
            return PrismGPRegressor(p, recipe="released", normalize=False, batch_size=batch, **common)
        passes = {} if order["steps"] is None else {"passes": _QUICK_PASSES}
        return ReleasedSSGP(p, batch_size=batch, random_state=int(order["run"]), **passes)
    if name == "prism1":  # the claims are about the spectrum, which neighbours are no part of
        return PrismGPRegressor(p, n_members=1, local="never", **common)
    return PrismGPRegressor(p, **common)


class Recorder:
    """A callback that scores a model in the course of its fit, at iterations in a geometric sequence, and at the end.

    While starting points race, the one with the largest evidence so far is the model.

    Parameters
    ----------
    x, y : ndarray, (m, d) and (m,)
        Test rows.
    scale : float
        Unit of the scores.
    growth : float
        From one iteration that is scored to the next.
    between : bool
        False: only the end is scored.
    model : callable, optional
        Makes what is scored from the model of that moment.

    Attributes
    ----------
    points : list of dict
        Stage, iteration, seconds, rows and scores.
    seconds : float
        Of the fit so far.
    iterations : int
    """

    def __init__(
        self,
        x: AnyArray,
        y: AnyArray,
        scale: float,
        *,
        growth: float = _GROWTH,
        between: bool = True,
        model: Callable[[Any], Any] = lambda seen: seen,
    ) -> None:
        self.x, self.y, self.scale, self._between, self._model = x, y, scale, between, model
        self._growth, self._next, self._stage = growth, 0, ""
        self._leader: Any = None
        self.points: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.iterations = 0

    def __call__(self, seen: Any) -> None:
        """Score the model where a score is due; ``seen`` is what `observe_fit` describes."""
        self.seconds, self.iterations = seen.seconds, seen.iteration
        if seen.final:
            self.add(seen.model(), seen.stage, seen.iteration, seen.seconds, seen.rows)
            return
        changed, self._stage = seen.stage != self._stage, seen.stage
        if changed:
            self._leader = None
        if seen.stage == _RACE and (self._leader is None or _evidence(seen) > _evidence(self._leader)):
            self._leader = seen
        if not self._between or not (changed or seen.iteration >= self._next):
            return
        self._next = max(seen.iteration + 1, int(self._growth * seen.iteration))
        model = self._model((self._leader or seen).model())
        self.add(model, seen.stage, seen.iteration, seen.seconds, seen.rows)

    def add(self, model: Any, stage: str, iteration: int, seconds: float, rows: int) -> None:
        """Score a model as the one of that moment."""
        self.seconds, self.iterations = seconds, iteration
        mean, std = model.predict(self.x, return_std=True)
        found = score(self.y, mean, std, self.scale)
        point = {"stage": stage, "iteration": iteration, "seconds": seconds, "rows": rows}
        self.points.append({**point, **{name: found[name] for name in ("rmse", "nlpd", "coverage")}})


def _evidence(seen: Any) -> float:
    return -math.inf if seen.log_evidence is None else float(seen.log_evidence)


def fit(order: dict[str, Any]) -> dict[str, Any]:
    """Fit one model to one split; its curve, final scores and times."""
    data = load(order)
    if order["model"] in RELEASED:
        data = preprocess(data, standardise_target=order["experiment"] != "abalone")
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
    all_rows, learned_on = (QUICK_EXACT_ROWS,) * 2 if order["quick"] else (_EXACT_ROWS, _EXACT_SUBSAMPLE)
    if order["model"] == "exact" and data.rows > all_rows:
        chosen = np.random.default_rng([int(order["run"]), 3]).permutation(data.rows)[:learned_on]
        model = _fit_on_subsample(model, data, chosen, recorder)
    elif isinstance(model, ReleasedSSGP):
        model.callback = recorder
        model.fit(*data.fit)
        learned_on = data.rows
    else:
        observe_fit(model, recorder)
        model.fit(*data.fit)
        observe_fit(model, None)
        learned_on = data.rows
    began = time.perf_counter()
    mean, std = _predict(model, data.x_test)
    seconds = time.perf_counter() - began
    status = model.fit_status_
    return {
        "rows": data.rows,
        "test_rows": len(data.y_test),
        "curve_test_rows": min(_CURVE_ROWS, len(data.y_test)),
        "inputs": data.x_test.shape[1],
        "target_std": data.scale,
        "parameters_learned_on": learned_on,
        **score(data.y_test, mean, std, data.scale),
        "fit_seconds": recorder.seconds,
        "iterations": recorder.iterations,
        "predict_seconds": seconds,
        "peak_before_bytes": before,
        "curve": recorder.points,
        "message": status.get("message", ""),
        "weights": status.get("weights"),
        "jitter": status["jitter"],
    }


def _predict(model: Any, x: Any) -> tuple[Any, Any]:
    parts = [model.predict(x[at : at + _PREDICT_ROWS], return_std=True) for at in range(0, len(x), _PREDICT_ROWS)]
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([std for _, std in parts])


def _fit_on_subsample(model: ExactGPRegressor, data: RunData, chosen: AnyArray, recorder: Recorder) -> ExactGPRegressor:
    """A full GP on all rows with the parameters learned on a subsample."""
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

    ended: list[Any] = []
    course = Recorder(recorder.x, recorder.y, recorder.scale, model=on_all)
    observe_fit(model, lambda seen: ended.append(seen) if seen.final else course(seen))
    model.fit(x[chosen], y[chosen])
    began = time.perf_counter()
    whole = on_all(model)
    last, seconds = ended[0], time.perf_counter() - began
    recorder.points += course.points
    recorder.add(whole, last.stage, last.iteration, last.seconds + seconds, data.rows)
    return whole
