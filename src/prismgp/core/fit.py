"""Fits: from standardised rows and starting values to fitted models, by the evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from prismgp._system import Streams
from prismgp._types import Array, Tensor
from prismgp.core.evidence import BlockEvidence, ProfiledEvidence, profile
from prismgp.core.exact import ExactEvidence, ExactModel, Groups, TiedEvidence
from prismgp.core.features import Gating, find_limits
from prismgp.core.kernels import (
    FEW_ROWS,
    Kernel,
    Parameters,
    Prior,
    bounds,
    check_frequencies,
    default_start,
    draw_frequencies,
    perturb,
    widen,
)
from prismgp.core.models import SpectralModel, spectral_objective
from prismgp.core.optimise import Monitor, Objective, maximise, race, screen
from prismgp.core.parallel import use_one_thread
from prismgp.core.rows import Callback, Rows
from prismgp.core.statistics import STATISTICS, noise_log_evidence


@dataclass(frozen=True)
class Stages:
    """Sizes of the stages of an optimisation, which travels on subsamples and finishes on all rows."""

    race_rows: int  # of the race between starting points
    race_rounds: tuple[int, ...]  # iterations of its rounds
    main_rows: int  # of the stage before the finish on all rows


EXACT_STAGES = Stages(1_000, (60,), 3_000)
SSGP_STAGES = Stages(8_192, (10, 30), 65_536)
# Draws of the frequencies that are tried: at least, at most, and how many times p. Few frequencies differ more.
_DRAWS, MOST_DRAWS, _DRAWS_TIMES_P = 4, 12, 256
_RACE_DRAWS = 4  # the best draws, which take part in the race
_LIMITED_DRAWS = 2  # of these, with limits of the inputs; it matters more whether there are any than which draw
_SCALES = (1.0, 2.0, 4.0)  # multiples of the exact GP's length-scales: few frequencies favour smoother functions
_LONG = 4.0  # multiple of the default length-scales, for functions that are nearly linear
_LARGER = 1.5  # a stage is worth it only if the next one is larger by this factor
START_ITER = 60  # of the exact GP that finds a start, which need not be an optimum


def fit_exact(
    rows: Rows,
    start: Parameters,
    kernel: Kernel,
    streams: Streams,
    *,
    optimize: bool = True,
    max_iter: int = 200,
    n_restarts: int = 0,
    callback: Callback | None = None,
) -> tuple[ExactModel, list[dict[str, Any]]]:
    """Learn the parameters by the evidence and factor the kernel matrix; also returns what each stage did."""
    objective = ExactEvidence.of(rows, kernel)
    callback = callback or Callback()
    monitor = Monitor(callback, lambda _, params: ExactModel.solve(objective, params), objective.work)
    callback.report("start", rows.n_rows, lambda: ExactModel.solve(objective, start))
    if not optimize:
        return callback.ending.compute_anyway(lambda: ExactModel.solve(objective, start)), []
    n = rows.n_rows
    plan = EXACT_STAGES
    sizes = [min(plan.race_rows, n), *([plan.main_rows] if n > plan.main_rows * _LARGER else [])]
    samples = rows.subsamples(sizes, streams.generator("subsamples"))
    trial, *parts = (ExactEvidence.of(part, kernel) for part in samples)
    boxes = bounds(start, dtype="float64")
    rng = streams.generator("restarts")
    starts = [start, *(perturb(start, rng) for _ in range(n_restarts))]
    common: dict[str, Any] = {"monitor": monitor, "prior": Prior.of(n, start)}
    _, params, tried = race([(trial, each) for each in starts], boxes, rounds=plan.race_rounds, **common)
    if not monitor.ending.over:
        params, done = maximise([*parts, objective], params, boxes, max_iter=max_iter, finish=bool(parts), **common)
        tried += done
    return callback.ending.compute_anyway(lambda: ExactModel.solve(objective, widen(params, n))), tried


def start_rows(n: int, d: int) -> int:
    """Rows of the exact GP that finds a start, of n: to find length-scales, more inputs need more rows."""
    return min(n, 500 + 16 * min(d, 64))


def exact_start(small: Rows, start: Parameters, kernel: Kernel, monitor: Monitor) -> tuple[Parameters, dict[str, Any]]:
    """Parameters of an exact GP on a small subsample, and what was done.

    With few frequencies and many irrelevant inputs, the sparse spectrum evidence has poor local optima around
    isotropic length-scales, and so have densities given neighbours, which depend on the metric; the exact GP's
    evidence finds out which inputs matter. Indicators of a category share a length-scale, and need fewer rows.
    """
    x, y = small.tensors()
    noise, groups = small.noise(), Groups.find(x)
    rows = start_rows(len(x), groups.count)
    if rows < len(x):  # they are in the order of the data: some from all parts of it
        some = torch.linspace(0, len(x) - 1, rows, device=x.device).round().long()
        x, y, noise = x[some], y[some], None if noise is None else noise.take(some)
    tied = groups.tie(start)
    runner = (TiedEvidence(ExactEvidence(x, y, kernel, noise), groups), tied)
    boxes = bounds(tied, dtype="float64")
    untying = replace(monitor, model_at=lambda objective, params: monitor.model_at(objective, groups.untie(params)))
    common: dict[str, Any] = {"monitor": untying, "prior": Prior.of(rows, tied)}
    with use_one_thread():  # two gain little with so few rows, and lose much where the machine has other work
        _, found, report = race([runner], boxes, rounds=[START_ITER], method="exact GP start", **common)
    return groups.untie(found), report[0]


@dataclass(frozen=True)
class SSGPSettings:
    """How a sparse spectrum GP is fitted; the names are those of the estimator's parameters."""

    kernel: Kernel
    n_frequencies: int
    frequencies: Any = "auto"  # how they are drawn, or the frequencies themselves, (p, d)
    learn_frequencies: bool = False
    find_start: bool = True  # by an exact GP on a subsample, which finds the length-scales
    optimize: bool = True
    max_iter: int = 200
    n_restarts: int = 0
    limit_inputs: bool = True  # where some have long tails and the evidence is higher for it
    dtype: str = "float64"  # of the features; the bounds of the parameters depend on it


@dataclass(frozen=True)
class SSGPFit:
    """What a fit returns: the model, where the optimisation started, and what each stage did."""

    model: SpectralModel
    start: Parameters
    stages: list[dict[str, Any]]
    gain: float  # of the log evidence over that of noise alone

    @property
    def no_better_than_noise(self) -> bool:
        """Whether the gain is below what as many parameters gain from noise, one each (Akaike's criterion).

        False with few rows, for which priors matter more than the evidence.
        """
        params = self.model.params
        learned = len(params.log_lengthscale) + len(params.log_signal)
        return self.model.n_rows >= FEW_ROWS and self.gain <= learned


def fit_ssgp(
    rows: Rows,
    start: Parameters,
    settings: SSGPSettings,
    streams: Streams,
    *,
    gate: Callable[[Parameters], Gating] = lambda _: Gating(),
    callback: Callback | None = None,
) -> SSGPFit:
    """Learn the parameters by the evidence and compute the posterior on all rows.

    ``start`` are starting values, or the values to keep where ``settings.optimize`` is False. ``gate`` makes the
    gate from the parameters that the learning starts from.
    """
    return _Fit(rows, settings, streams, callback or Callback()).run(start, gate)


class _Fit:
    """One fit: what its stages share."""

    def __init__(self, rows: Rows, settings: SSGPSettings, streams: Streams, callback: Callback) -> None:
        self.rows, self.settings, self.streams, self.callback = rows, settings, streams, callback
        self.base = self._draw(streams.generator("frequencies"))
        self.gating = Gating()
        self.monitor = Monitor(callback, self._model_at, float(rows.n_rows))
        # With priors, and where the moments depend on the noise, all parameters are learned by the optimiser.
        profiled = settings.optimize and rows.n_rows >= FEW_ROWS and not rows.chunks(1).known_noise
        self.kind: type[BlockEvidence] = ProfiledEvidence if profiled else BlockEvidence

    def run(self, start: Parameters, gate: Callable[[Parameters], Gating]) -> SSGPFit:
        begin = start
        self.callback.report("start", self.rows.n_rows, lambda: self._model_at(None, begin))
        samples = self._subsamples() if self.settings.optimize else None
        report = []
        if samples is not None and self.settings.find_start:
            start, stage = exact_start(samples[0], start, self.settings.kernel, self.monitor)
            report.append(stage)
        self.gating = self.callback.ending.compute_anyway(lambda: gate(start))
        params, objective = start, None
        if samples is not None:
            params, objective, stages = self._learn(samples, start)
            report += stages
        objective = objective or self._objective(self.rows)
        last_pass = partial(
            self.callback.ending.compute_anyway, lambda: objective.statistics(objective.complete(params))
        )
        blocks = self.callback.recall("statistics", last_pass, STATISTICS)
        if self.kind is ProfiledEvidence:
            params = profile(blocks, params, self.settings.dtype)
        common: dict[str, Any] = {"device": self.rows.device, "limits": objective.limits}
        model = SpectralModel.solve(self.base, params, self.gating, blocks, **common)
        return SSGPFit(model, start, report, model.log_evidence - noise_log_evidence(blocks))

    def _subsamples(self) -> Sequence[Rows]:
        """Rows of the exact GP, of the race, and of the stage before the finish where it is worth it."""
        n, d = self.rows.n_rows, self.rows.n_inputs
        main = min(SSGP_STAGES.main_rows, n)
        sizes = [start_rows(n, d), min(SSGP_STAGES.race_rows, n), *([main] if main * _LARGER < n else [])]
        return self.rows.subsamples(sizes, self.streams.generator("subsamples"))

    def _learn(
        self, samples: Sequence[Rows], start: Parameters
    ) -> tuple[Parameters, BlockEvidence, list[dict[str, Any]]]:
        """Parameters, the evidence of all rows, which keeps its last statistics, and what each stage did.

        Also finds the frequencies and the limits of the inputs.
        """
        _, trial, *parts = samples
        runners, screened = self._runners(trial, start)
        boxes = bounds(runners[0][1], dtype=self.settings.dtype)
        common: dict[str, Any] = {"monitor": self.monitor, "prior": Prior.of(self.rows.n_rows, runners[0][1])}
        winner, params, tried = race(runners, boxes, rounds=SSGP_STAGES.race_rounds, **common)
        tried.insert(0, screened)
        chosen = runners[winner][0]
        self.base, self.rows = chosen.frequencies, self.rows.limit(chosen.limits)
        del runners  # and the statistics they keep
        whole = self._objective(self.rows)
        if not self.monitor.ending.over:
            stages = [*(self._objective(part.limit(chosen.limits)) for part in parts), whole]
            limit, finish = self.settings.max_iter, bool(parts)
            params, done = maximise(stages, params, boxes, max_iter=limit, finish=finish, **common)
            tried += done
        if params.frequencies is not None:
            self.base = whole.frequencies = params.frequencies
            params = replace(params, frequencies=None)
        return widen(params, self.rows.n_rows), whole, tried

    def _runners(self, trial: Rows, start: Parameters) -> tuple[list[tuple[BlockEvidence, Parameters]], dict[str, Any]]:
        """Starting points of the race, the most promising ones first, and what it took to find them.

        Several draws of the frequencies are tried at several multiples of the length-scales. The best ones take part
        in the race; of the best draw also length-scales that do not depend on the exact GP, which may be wrong. Where
        inputs have long tails, the best ones also take part with limits.
        """
        settings = self.settings
        default = default_start(trial.n_inputs, trial.n_outputs)
        if self.kind is BlockEvidence:
            # Few frequencies explain less than the exact GP: with its small noise, gradients would be huge.
            start = replace(start, log_noise=np.maximum(start.log_noise, default.log_noise))
        rng = self.streams.generator("restarts")
        objective = self._objective(trial)
        draws = [objective]
        # Among several draws, the evidence of few rows favours the one that happens to follow their noise.
        if isinstance(settings.frequencies, str) and self.rows.n_rows >= FEW_ROWS:
            count = min(MOST_DRAWS, max(_DRAWS, _DRAWS_TIMES_P // settings.n_frequencies))
            draws += [objective.with_frequencies(self._draw(rng)) for _ in range(count - 1)]
        scaled = [replace(start, log_lengthscale=start.log_lengthscale + np.log(scale)) for scale in _SCALES]
        tried = [(draw, each) for draw in draws for each in scaled]
        order, report = screen(tried, monitor=self.monitor, prior=Prior.of(self.rows.n_rows, start))
        if len(draws) > 1:  # of each draw the best
            best = {index // len(scaled): index for index in reversed(order)}
            order = [index for index in order if index in best.values()]
        runners = [tried[index] for index in order[:_RACE_DRAWS]]
        plain, limits = default.log_lengthscale, self._find_limits(trial)
        others = [(runners[0][0], replace(start, log_lengthscale=each)) for each in (plain, plain + np.log(_LONG))]
        if limits is not None:
            limited = self._objective(trial.limit(limits))
            best_draws = runners[:_LIMITED_DRAWS]
            others += [(limited.with_frequencies(each.frequencies), params) for each, params in best_draws]
        runners += others
        for _ in range(settings.n_restarts):
            runners.append((objective.with_frequencies(self._draw(rng)), perturb(start, rng)))
        if settings.learn_frequencies:
            runners = [(runner, replace(each, frequencies=runner.frequencies)) for runner, each in runners]
        return runners, report

    def _find_limits(self, trial: Rows) -> Tensor | None:
        """Limits of the inputs to try; none with gates, whose clusters are those of the inputs as they are."""
        if not self.settings.limit_inputs or self.gating.gate is not None:
            return None
        return find_limits(trial.tensors()[0])

    def _draw(self, rng: np.random.Generator) -> Array:
        settings, d = self.settings, self.rows.n_inputs
        given = check_frequencies(settings.frequencies, settings.n_frequencies, d)
        if given is not None:
            return given
        return draw_frequencies(settings.kernel, settings.n_frequencies, d, settings.frequencies, rng)

    def _objective(self, rows: Rows) -> BlockEvidence:
        return spectral_objective(rows, self.base, self.gating, self.kind)

    def _model_at(self, objective: Objective | None, params: Parameters) -> SpectralModel:
        """The model on all rows at the parameters an iteration has reached; without gates before there are any."""
        base, kind, rows = self.base, BlockEvidence, self.rows
        if isinstance(objective, BlockEvidence):
            base, kind, rows = objective.frequencies, self.kind, rows.limit(objective.limits)
        base, params = params.base(base), replace(params, frequencies=None)
        whole = spectral_objective(rows, base, self.gating, kind)
        params = whole.complete(params)
        common: dict[str, Any] = {"device": rows.device, "limits": whole.limits}
        return SpectralModel.solve(base, params, self.gating, whole.statistics(params), **common)
