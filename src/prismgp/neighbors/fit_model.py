"""The fit of a neighbour GP alone: from standardised rows to a model, by the density of rows given their neighbours."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from prismgp._system import Streams
from prismgp._types import Saved
from prismgp.context import FitContext
from prismgp.core.fit import exact_start, fit_exact, start_rows
from prismgp.core.kernels import Kernel, Parameters, perturb, widen
from prismgp.core.optimise import Monitor
from prismgp.core.rows import Codec, time_twice
from prismgp.data import StandardisedRows
from prismgp.neighbors.fit import LocalTraining, draw_examples, fit_local, predict_examples
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.model import NeighborModel, keep_rows

MOST_ROWS = 4_000_000
_STEPS_PER_SEARCH = 50
_PROBE_ROWS = 512  # to time the predictions of all examples
_LEAST_NOISE = {torch.float64: 1e-6, torch.float32: 1e-5}
_LEARNED = "neighbors"  # entry of the checkpoint


@dataclass(frozen=True)
class NeighborSettings:
    """How a neighbour GP is fitted; the names are those of the estimator's parameters."""

    kernel: Kernel
    n_neighbors: int
    find_start: bool = True  # by an exact GP on a subsample, which finds the length-scales
    optimize: bool = True
    max_iter: int = 400
    n_restarts: int = 0
    most_rows: int = MOST_ROWS


def fit_neighbors(
    rows: StandardisedRows, start: Parameters, settings: NeighborSettings, streams: Streams, context: FitContext
) -> tuple[NeighborModel, list[dict[str, Any]]]:
    """Learn the parameters and keep the rows; also returns what each stage did.

    ``start`` are starting values, or the values to keep where ``settings.optimize`` is False. Where all rows are
    neighbours of every point, this is the exact GP, and the parameters maximise its evidence.
    """
    chosen = rows.source.select_sample(settings.most_rows, streams.generator("neighbours kept"))
    rows = replace(rows, source=chosen)
    x, y, noise, shards = keep_rows(rows)
    gp = LocalGP(settings.kernel, start, x, y, settings.n_neighbors, noise, shards)
    context.report("start", rows.n_rows, lambda: NeighborModel.of(gp))
    stages: list[dict[str, Any]] = []
    if settings.optimize:
        learn = partial(_learn, rows, gp, settings, streams, context)
        params, stages = context.recall(_LEARNED, learn, _learned_codec(context, start))
        gp = gp.with_parameters(params)
    return NeighborModel.of(gp), stages


def _learned_codec(context: FitContext, layout: Parameters) -> Codec[tuple[Parameters, list[dict[str, Any]]]]:
    """How parameters of this layout and stages are stored, with the history of the fit."""

    def write(found: tuple[Parameters, list[dict[str, Any]]]) -> Saved:
        params, stages = found
        return {"parameters": torch.as_tensor(params.pack())}, {"stages": stages, "history": context.history}

    def read(saved: Saved) -> tuple[Parameters, list[dict[str, Any]]]:
        tensors, info = saved
        params, stages = layout.unpack(tensors["parameters"].numpy()), list(info["stages"])
        context.history.update(info["history"])
        return params, stages

    return Codec(write, read)


def _learn(
    rows: StandardisedRows, gp: LocalGP, settings: NeighborSettings, streams: Streams, context: FitContext
) -> tuple[Parameters, list[dict[str, Any]]]:
    if not gp.whole_rows:
        return _learn_by_neighbors(rows, gp, settings, streams, context)
    exact, stages = fit_exact(
        rows,
        gp.params,
        settings.kernel,
        streams,
        max_iter=settings.max_iter,
        n_restarts=settings.n_restarts,
        callback=context,
    )
    return exact.params, stages


def _learn_by_neighbors(
    rows: StandardisedRows, gp: LocalGP, settings: NeighborSettings, streams: Streams, context: FitContext
) -> tuple[Parameters, list[dict[str, Any]]]:
    start, stages = gp.params, []
    if settings.find_start:
        small = rows.subsamples([start_rows(rows.n_rows, rows.n_inputs)], streams.generator("subsamples"))[0]
        monitor = Monitor(context, lambda _, params: NeighborModel.of(gp.with_parameters(params)))
        start, stage = exact_start(small, start, settings.kernel, monitor)
        stages.append(stage)
    began, rng, steps = time.perf_counter(), streams.generator("neighbours"), settings.max_iter
    restarts = streams.generator("restarts")
    examples, before = draw_examples(gp, rng), len(context.history["rows"])
    if context.ending.limited:  # the model predicts so many rows at the end, for its evidence
        few = examples.take(torch.arange(min(_PROBE_ROWS, len(examples))))
        seconds = time_twice(lambda: predict_examples(gp, few))
        context.ending.reserve(seconds * len(examples) / len(few))
    learned = fit_local(
        gp.with_parameters(start),
        examples,
        rng,
        LocalTraining(steps=steps, searches=-(-steps // _STEPS_PER_SEARCH)),
        least_noise=_LEAST_NOISE[rows.dtype],
        starts=[start, *(perturb(start, restarts) for _ in range(settings.n_restarts))],
        callback=context,
        model=NeighborModel.of,
    )
    stage = {"rows": len(examples), "method": "adam", "iterations": steps, "seconds": time.perf_counter() - began}
    if context.ending.over:
        evaluations = len(context.history["rows"]) - before
        stage |= {"iterations": min(steps, evaluations), "converged": False, "message": context.ending.reason}
    stages.append(stage)
    return widen(learned.params, rows.n_rows), stages
