"""Maximise the evidence: L-BFGS on growing subsamples, then a finish on all rows.

A full-data evaluation costs as much as hundreds on a subsample, and the optimum on a large random
subsample is already close to the one on all rows. So SciPy's L-BFGS does the travelling on
subsamples; on all rows a few quasi-Newton steps, with the curvature L-BFGS has learned, remove what
is left. Each of them is accepted only if it raises the evidence of all rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from scipy.optimize import LbfgsInvHessProduct, OptimizeResult, minimize

from prismgp._types import Array
from prismgp.core.kernels import Parameters, Prior
from prismgp.core.parallel import use_one_thread
from prismgp.core.rows import Callback, Ending

_MEMORY = 20  # pairs kept by L-BFGS
_FTOL = 1e-7  # change of the evidence per row, in nats, at which L-BFGS stops
_STAGE_FTOL = 1e-6  # the same on a subsample, whose optimum is only known to about d / n nats per row anyway
_GTOL = 1e-6
_FINISH_GAIN = 5e-6  # log evidence per row that a step on all rows must promise to be worth a pass
_LAST_GAIN = 5e-3  # below this promise, one step is enough
_SHRINK = (1.0, 0.3)
_DENSE = 1_000  # parameters up to which an inverse Hessian is kept as a matrix


class Objective(Protocol):
    """A log evidence on a fixed set of rows."""

    n_rows: int

    @property
    def work(self) -> float:
        """What an evaluation costs, compared with objectives of the same class."""

    @property
    def small(self) -> bool:
        """Whether an evaluation is so short that the threads of its operations would wait rather than help."""

    def value(self, params: Parameters) -> float: ...

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]: ...


@dataclass(frozen=True)
class Monitor:
    """A callback, and how to make a model from an objective and the parameters that an iteration has reached.

    ``last_work`` is what must be done after the optimisation, in units of :attr:`Objective.work`: a time limit leaves
    time for it.
    """

    callback: Callback
    model_at: Callable[[Objective, Parameters], Any]
    last_work: float = 0.0
    _pace: dict[type, float] = field(default_factory=dict)  # seconds per unit of work, by class of objective

    @property
    def ending(self) -> Ending:
        return self.callback.ending

    def check_time(self, objective: Objective) -> None:
        """End the stage if there is no time for another evaluation and for what must follow."""
        self.ending.check(self._pace.get(type(objective), 0.0) * (objective.work + self.last_work))

    def record_time(self, objective: Objective, seconds: float) -> None:
        """Remember how long an evaluation took."""
        self._pace[type(objective)] = seconds / objective.work


class _Negated:
    """Minus the evidence per row as SciPy wants it, or that of evidence times prior."""

    def __init__(
        self, objective: Objective, layout: Parameters, method: str, monitor: Monitor, prior: Prior | None
    ) -> None:
        self.objective, self.layout, self.method, self.monitor = objective, layout, method, monitor
        self.prior = prior
        self.n, self.evaluations = objective.n_rows, 0
        self.best: tuple[float, Array] | None = None  # the smallest value so far, and where

    def __call__(self, vector: Array) -> tuple[float, Array]:
        def compute() -> tuple[float, Array]:
            value, gradient = self.objective.value_and_gradient(self.layout.unpack(vector))
            return value, gradient.pack()

        value, gradient = self._evaluate(vector, compute)
        if self.prior is not None:
            log_prior, slope = self.prior.log_density(vector)
            value, gradient = value + log_prior, gradient + slope
        return -value / self.n, -gradient / self.n

    def value(self, vector: Array) -> float:
        def compute() -> tuple[float, Array]:
            return self.objective.value(self.layout.unpack(vector)), np.empty(0)

        value = self._evaluate(vector, compute)[0]
        if self.prior is not None:
            value += self.prior.log_density(vector)[0]
        return -value / self.n

    def _evaluate(self, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        self.monitor.check_time(self.objective)
        began = time.perf_counter()
        value, gradient = self.monitor.callback.evaluate(self.n, vector, compute)
        self.monitor.record_time(self.objective, time.perf_counter() - began)
        self.evaluations += 1
        if self.best is None or -value / self.n < self.best[0]:
            self.best = -value / self.n, vector.copy()
        return value, gradient

    def report(self, vector: Array, value: float) -> None:
        """Tell the callback about the end of an iteration."""
        params = self.layout.unpack(vector)
        model = partial(self.monitor.model_at, self.objective, params)
        self.monitor.callback.report(self.method, self.n, model, -value * self.n)

    def summarise(
        self, iterations: int, converged: bool, message: str, value: float | None, began: float
    ) -> dict[str, Any]:
        """What the stage did; the value is None where nothing was evaluated."""
        return {
            "rows": self.n,
            "method": self.method,
            "evaluations": self.evaluations,
            "iterations": iterations,
            "converged": converged,
            "message": message,
            "log_evidence": None if value is None else -value * self.n,
            "seconds": time.perf_counter() - began,
        }


def screen(
    runners: Sequence[tuple[Objective, Parameters]], *, monitor: Monitor, prior: Prior | None = None
) -> tuple[list[int], dict[str, Any]]:
    """Evaluate starting points without a step; returns their indices, the best first, and what was done.

    Objectives must be on the same rows. Where the fit ends early, those that were not evaluated come last.
    """
    began = time.perf_counter()
    values, reason = np.full(len(runners), np.inf), "the best starting points take part in the race"
    with monitor.ending.catch_end(), use_one_thread(all(objective.small for objective, _ in runners)):
        for index, (objective, params) in enumerate(runners):
            values[index] = _Negated(objective, params, "screen", monitor, prior).value(params.pack())
    known = np.isfinite(values)
    ended = monitor.ending.over
    n = runners[0][0].n_rows
    report = {
        "rows": n,
        "method": "screen",
        "evaluations": int(known.sum()),
        "iterations": 0,
        "converged": not ended,
        "message": monitor.ending.reason if ended else reason,
        "log_evidence": float(-values.min() * n) if known.any() else None,
        "seconds": time.perf_counter() - began,
    }
    return np.argsort(values, kind="stable").tolist(), report


def race(
    runners: Sequence[tuple[Objective, Parameters]],
    boxes: list[tuple[float, float]],
    *,
    rounds: Sequence[int],
    monitor: Monitor,
    method: str = "race",
    prior: Prior | None = None,
) -> tuple[int, Parameters, list[dict[str, Any]]]:
    """Let starting points compete by short runs of L-BFGS; after each round the better third goes on.

    The evidence has local optima; a short race on few rows costs little and avoids the poor ones. Objectives must
    be on the same rows, so that their evidences compare; ``boxes`` are bounds of the packed parameters; ``rounds``
    the iterations of each round. Returns the index of the winner, where it stands, and what was done, an entry for
    each run, named by ``method``. A ``prior`` is added to the evidence, and to what the entries call it. Where the fit
    ends early, the winner is the best runner so far.
    """
    standing = [(index, params) for index, (_, params) in enumerate(runners)]
    report: list[dict[str, Any]] = []
    for number, max_iter in enumerate(rounds):
        ranked = []
        for index, params in standing:
            reached, _, stage = _lbfgs(runners[index][0], params, boxes, max_iter, _STAGE_FTOL, monitor, method, prior)
            report.append(stage)
            if stage["log_evidence"] is not None:
                ranked.append((float(stage["log_evidence"]), index, reached))
            if monitor.ending.over:
                break
        if not ranked:
            break
        ranked.sort(key=lambda item: -item[0])
        keep = 1 if number == len(rounds) - 1 else -(-len(ranked) // 3)
        standing = [(index, reached) for _, index, reached in ranked[:keep]]
        if monitor.ending.over:
            break
    return *standing[0], report


def maximise(
    stages: Sequence[Objective],
    start: Parameters,
    boxes: list[tuple[float, float]],
    *,
    max_iter: int,
    finish: bool,
    monitor: Monitor,
    prior: Prior | None = None,
) -> tuple[Parameters, list[dict[str, Any]]]:
    """Maximise the last of several objectives of growing size; returns the parameters and what each stage did.

    ``boxes`` are bounds of the packed parameters, ``max_iter`` limits the iterations of each stage. With ``finish``
    the last stage takes quasi-Newton steps with the curvature of the stage before; it is for many rows, without prior.
    """
    params = start
    learned: LbfgsInvHessProduct | None = None
    report: list[dict[str, Any]] = []
    # A dense inverse Hessian is for few parameters; learned frequencies can be many.
    finish = finish and len(boxes) <= _DENSE
    for objective in stages[:-1] if finish else stages:
        ftol = _FTOL if objective is stages[-1] else _STAGE_FTOL
        params, learned, stage = _lbfgs(objective, params, boxes, max_iter, ftol, monitor, prior=prior)
        report.append(stage)
        if monitor.ending.over:
            return params, report
    if finish and learned is not None:
        params, stage = _finish(stages[-1], params, learned.todense(), boxes, max_iter, monitor)
        report.append(stage)
    return params, report


def _lbfgs(
    objective: Objective,
    start: Parameters,
    boxes: list[tuple[float, float]],
    max_iter: int,
    ftol: float,
    monitor: Monitor,
    method: str = "l-bfgs",
    prior: Prior | None = None,
) -> tuple[Parameters, LbfgsInvHessProduct | None, dict[str, Any]]:
    """SciPy's L-BFGS-B; also returns the inverse Hessian it has learned, per row; None where the fit ends early."""
    began = time.perf_counter()
    low, high = np.array(boxes).T
    target = _Negated(objective, start, method, monitor, prior)

    begin, iterations, result = np.clip(start.pack(), low, high), 0, None

    def after_iteration(intermediate_result: OptimizeResult) -> None:  # SciPy goes by the argument's name
        nonlocal iterations
        iterations += 1
        target.report(intermediate_result.x, float(intermediate_result.fun))

    with monitor.ending.catch_end(), use_one_thread(objective.small):
        result = minimize(
            target,
            begin,
            jac=True,
            method="L-BFGS-B",
            bounds=boxes,
            callback=after_iteration,
            options={"maxiter": max_iter, "maxcor": _MEMORY, "ftol": ftol, "gtol": _GTOL, "maxls": 30},
        )
    if result is None:
        value, vector = target.best or (None, begin)
        stage = target.summarise(iterations, False, monitor.ending.reason, value, began)
        return start.unpack(vector), None, stage
    stage = target.summarise(int(result.nit), bool(result.success), str(result.message), float(result.fun), began)
    return start.unpack(result.x), cast(LbfgsInvHessProduct, result.hess_inv), stage


def _finish(
    objective: Objective,
    start: Parameters,
    curvature: Array,
    boxes: list[tuple[float, float]],
    max_iter: int,
    monitor: Monitor,
) -> tuple[Parameters, dict[str, Any]]:
    """BFGS on all rows, from the inverse Hessian (per row) of a subsample.

    A step that promises little is checked by the value alone, which takes one pass instead of two,
    and is the last.
    """
    began = time.perf_counter()
    low, high = np.array(boxes).T
    target = _Negated(objective, start, "quasi-newton", monitor, None)
    vector, value = np.clip(start.pack(), low, high), None
    accepted, converged, message = 0, False, ""
    with monitor.ending.catch_end():
        value, gradient = target(vector)
        while accepted < max_iter:
            # Parameters held by a bound they push against do not move.
            free = ~(((vector <= low) & (gradient > 0)) | ((vector >= high) & (gradient < 0)))
            step = np.zeros_like(vector)
            step[free] = -curvature[np.ix_(free, free)] @ gradient[free]
            promised = -0.5 * float(gradient @ step)
            if promised < _FINISH_GAIN:
                message, converged = f"a further step promises {max(promised, 0.0):.1e} nats per row", True
                break
            last = promised < _LAST_GAIN
            for shrink in _SHRINK:
                proposal = np.clip(vector + shrink * step, low, high)
                new_value, new_gradient = (target.value(proposal), gradient) if last else target(proposal)
                if new_value < value:
                    break
            else:
                message, converged = "no step along the quasi-Newton direction raises the evidence", True
                break
            curvature = _bfgs_update(curvature, proposal - vector, new_gradient - gradient)
            vector, value, gradient = proposal, new_value, new_gradient
            accepted += 1
            target.report(vector, value)
            if last:
                message, converged = f"the last step promised {promised:.1e} nats per row", True
                break
    if not message:
        message = monitor.ending.reason if monitor.ending.over else f"stopped after {max_iter} steps"
    return start.unpack(vector), target.summarise(accepted, converged, message, value, began)


def _bfgs_update(inverse: Array, step: Array, change: Array) -> Array:
    """The BFGS update of an inverse Hessian; skipped where the curvature along the step is not positive."""
    along = float(step @ change)
    if along <= 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
        return inverse
    left = np.eye(len(step)) - np.outer(step, change) / along
    updated: Array = left @ inverse @ left.T + np.outer(step, step) / along
    return updated
