"""The local stage of a fit: neighbour GPs beside the mixture, learned and judged on held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from prismgp._system import Streams
from prismgp._types import Array, Indices, Saved, Tensor
from prismgp.context import FitContext
from prismgp.core.fit import start_rows
from prismgp.core.kernels import Kernel, Parameters, bounds, default_start
from prismgp.core.optimise import Monitor, race
from prismgp.core.rows import Codec, RowNoise
from prismgp.data import Kept, Source, StandardisedRows
from prismgp.neighbors.conditional import Conditionals, spread_factor
from prismgp.neighbors.fit import Examples, LocalTraining, examples_of, fit_local, predict_examples
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.shards import PointShards
from prismgp.prism.experts import Mixture
from prismgp.prism.local import (
    LeaveOneOut,
    LocalMixture,
    MixtureOutput,
    NeighborExpert,
    View,
    combine,
    evaluate,
    join,
    make_local,
    read_coordinates,
    start_lengthscales,
)
from prismgp.prism.shapes import Copies, find_copies, group_duplicates
from prismgp.prism.stacking import MARGIN, HeldOut, average, mixture_moments, normal_nlpd, stack_forward

_RESIDUAL, _TARGET = View(residual=True, latent=True), View(residual=False, latent=True)
_PLAIN_RESIDUAL, _INPUTS = View(residual=True, latent=False), View(residual=False, latent=False)
_EXACT = View(residual=False, latent=False, whole=True)
# With few rows the exact GP is cheap, and where the function is smooth nothing is better. Its parameters are learned
# on some of the rows, from those that the plain SSGP started from.
MOST_WHOLE_ROWS, _EXACT_ROWS = 8_000, 2_000
EXACT_ROUNDS = (15, 60)  # iterations of the race between starts
# Beyond the first number of rows, learning them would take longer than the rest of a fit to many inputs. It is left out
# if the exact GP does not join with the parameters of the start, and is this much behind in held-out log density.
CHEAP_ROWS, HOPELESS = 1_000, 1.0
_ALL = 2**14  # neighbours: the most that a model file allows
# With fewer held-out rows, neighbours in the latent space model the targets, since residuals of rows that the networks
# remember are smaller than those of new rows; with more, the residuals.
_FEW_EXAMPLES = 300
# Student's t, so that the metric is not that of a few rows far away; with few examples, quickly.
FEW = LocalTraining(steps=200, searches=4, batch_rows=256, degrees=10.0, coarse=True)
MANY = LocalTraining(steps=400, searches=8, degrees=10.0, coarse=True)
LEAST_NOISE = {True: 0.05, False: 1e-5}  # of the residuals, whose variance is about one; of the targets
LEAST_EXAMPLES, _MOST_EXAMPLES = 20, 10_000
_CROSS_ROWS, _FOLDS = 2_000, 5  # with fewer examples each part is judged by parameters learned on the others
_MARGIN = 0.5 * MARGIN  # a neighbour GP that adds nothing has a small weight and does little harm
_MANY_ROWS = 200_000  # with more rows, the mixture without the held-out rows is good enough
_LAST_PASSES = 1.5  # times as long as the first pass of the mixture, under a time limit, for the last and the search
_BASE_SHARE = 0.4  # prior weight of the mixture; the neighbour GPs share the rest
_MOMENTS = ("mean", "total")
_LENGTHSCALES = (1e-2, 1e3)
_SILENT = 1e4  # length-scale of inputs that never varied
# Degrees of freedom that a neighbour GP on the targets may have (N6), the simplest first. Residuals are already in
# units of a spread that depends on the row, and those of rows that the networks remember would make it too small.
DEGREES = (math.inf, 34.0, 10.0, 4.0)


class _JudgedView(NamedTuple):
    """Predictions of a neighbour GP at the examples, all (m, q), with infinite degrees of freedom."""

    mean: Array
    variance: Array
    noise: Array
    misfit: Array  # beta of (N6)

    @classmethod
    def of(cls, view: View, output: MixtureOutput, near: Conditionals) -> _JudgedView:
        nothing = torch.zeros_like(near.mean)
        parts = *combine(view, output, *near[:3]), nothing if near.misfit is None else near.misfit
        return cls(*(each.cpu().numpy() for each in parts))

    def spread(self, gp: LocalGP, degrees: float) -> HeldOut:
        """The same with another number of degrees of freedom."""
        factor = spread_factor(torch.as_tensor(self.misfit), gp.k, degrees).numpy()
        return HeldOut(self.mean, factor * self.variance, factor * self.noise)


@dataclass(frozen=True)
class LocalResult:
    """What the local stage found."""

    predictor: LocalMixture | Mixture
    x: Tensor  # the examples, standardised, (m, d)
    held_out: HeldOut  # the predictor at these, in the model's units
    targets: Array  # of the examples, (m, q)
    weights: Array | None  # of the examples, (m,), where rows have any
    status: dict[str, Any]
    copies: Callable[[], Copies | None] = lambda: None  # finds residuals at rows that have copies


@dataclass(frozen=True)
class LocalStage:
    """Neighbour GPs beside a mixture."""

    rows: StandardisedRows
    sample: Source  # the rows of the networks: all of them, or a part
    held_out: Indices  # of the sample
    mixture: Mixture  # with the posteriors of all rows
    without: Mixture  # with posteriors that do not know the held-out rows
    lengthscale: Array  # of the plain SSGP, (d,)
    start: Parameters  # of the exact GP on a subsample that the plain SSGP started from
    kernel: Kernel
    exact_kernel: Kernel  # of the exact GP on all rows, where they are few
    n_neighbors: int
    most_rows: int
    always: bool  # use neighbours even if the mixture alone is no worse

    def fit(self, streams: Streams, context: FitContext) -> LocalResult:
        """Learn the neighbour GPs, and find weights of them and the mixture by the density of the examples."""
        pool, own = self._pool(streams.generator("neighbours"))
        if len(own) < LEAST_EXAMPLES:
            raise ValueError(f"{len(own)} examples are too few")
        began, ending = time.perf_counter(), context.ending
        ending.check()
        output, y, on_workers = self._keep_outputs(pool, self.without)
        if ending.limited:  # there is another pass at the end, and a search
            ending.reserve(_LAST_PASSES * (time.perf_counter() - began))
            ending.check()
        held = torch.as_tensor(own, device=y.device)
        if self.whole:
            output = output.replace_rows(held, self._predict_unknown(pool, own))
        changed = held if self.whole else held[:0]  # the workers' copies of these rows are stale
        targets, noise = RowNoise.split(y[held], self.rows.n_outputs)
        target, weights = targets.cpu().numpy(), None if noise is None else noise.weight.cpu().numpy()
        inputs = output.coordinates[:, : self.rows.n_inputs]
        groups = group_duplicates(inputs, y[:, : self.rows.n_outputs], self.n_neighbors)
        known = output.take(held)
        base = HeldOut.of(known.mean, known.variance, known.noise).at_rows(noise)
        margin = -np.inf if self.always else _MARGIN
        find_weights = partial(stack_forward, target, base=base, share=_BASE_SHARE, margin=margin, row_weights=weights)
        learned: list[tuple[View, Parameters]] = []
        found: list[list[HeldOut]] = []  # of each view with each of the degrees of freedom

        def may_join(first: HeldOut) -> bool:
            """Whether the exact GP could join the views so far, by its predictions before learning."""
            first = first.at_rows(noise)
            trial, _ = find_weights([*found, [first]])
            alone = average(normal_nlpd(target, first.mean, first.total).sum(1), weights)
            return self.always or trial.weights[-2] > 0.0 or alone < trial.nlpd + HOPELESS * self.rows.n_outputs

        views = self.choose_views(output, len(held))
        context.bar.total = len(views)
        for done, view in enumerate(views):
            context.bar.set_postfix_str(view.name, refresh=False)
            context.bar.update()
            part = context.part(view.name, share=1.0 / (len(views) - done))
            gp = self._make(view, output, y, self._start(view))
            if on_workers is not None:
                gp = replace(gp, shards=_shard(on_workers, gp, changed))
            rng = streams.generator(view.name)
            if view.whole:
                learn = partial(self._judge_exact, view, gp, output, held, may_join, rng, part)
            else:
                learn = partial(self._judge, view, gp, output, held, groups, rng, part)
            params, judged = context.recall(view.name, learn, _judged_codec(gp.params))
            if ending.interrupted:
                ending.check()
            learned.append((view, params))
            found.append([judged.spread(gp, each).at_rows(noise) for each in self._degrees(view, gp)])
        chosen, variants = find_weights(found)
        kept, degrees = np.flatnonzero(chosen.weights[:-1] > 0), [DEGREES[k] for k in variants]
        status = {
            "weights": {
                name: float(weight)
                for name, weight in zip([*(view.name for view, _ in learned), "mixture"], chosen.weights, strict=True)
            },
            "gain": average(normal_nlpd(target, base.mean, base.total).sum(1), weights) - chosen.nlpd,
            "rows": len(y),
            "degrees": {learned[k][0].name: degrees[k] for k in kept if math.isfinite(degrees[k])},
        }
        if duplicates := len(groups) - len(torch.unique(groups)):
            status["duplicates"] = duplicates
        if not len(kept):
            return LocalResult(self.mixture, inputs[held], base, target, weights, status)
        evaluate_again = any(learned[k][0].residual or learned[k][0].latent for k in kept)
        if evaluate_again and self.whole and len(y) <= _MANY_ROWS:  # with more, the held-out rows make no difference
            output, y = self._keep_outputs(pool, self.mixture)[:2]
        near = tuple(self._make_near(*learned[k], degrees[k], output, y) for k in kept)
        shares = chosen.weights[[len(learned), *kept]]
        predictor = LocalMixture(self.mixture, near, shares, chosen.temperature)
        used = [base, *(found[k][variants[k]] for k in kept)]
        mean, variance = mixture_moments(shares, *(np.stack([getattr(each, n) for each in used]) for n in _MOMENTS))
        total = variance * chosen.temperature
        copies = partial(find_copies, predictor, pool, own, streams.generator("copies"))
        final = HeldOut(mean, total, np.zeros_like(total))
        return LocalResult(predictor, inputs[held], final, target, weights, status, copies)

    def _make_near(
        self, view: View, params: Parameters, degrees: float, output: MixtureOutput, y: Tensor
    ) -> NeighborExpert:
        gp = self._make(view, output, y, params.lengthscale).with_parameters(params)
        return NeighborExpert(view, replace(gp, degrees=degrees))

    def _make(self, view: View, output: MixtureOutput, y: Tensor, lengthscale: Array) -> LocalGP:
        kernel, count = (self.exact_kernel, _ALL) if view.whole else (self.kernel, self.n_neighbors)
        return make_local(view, output, y, kernel, lengthscale, count)

    def _degrees(self, view: View, gp: LocalGP) -> Sequence[float]:
        return DEGREES[:1] if view.residual or gp.whole_rows else DEGREES

    def choose_views(self, output: MixtureOutput, examples: int) -> list[View]:
        exact = [_EXACT] if len(output.mean) <= MOST_WHOLE_ROWS else []
        return [*self.near_views(output, examples), *exact]

    def near_views(self, output: MixtureOutput, examples: int) -> list[View]:
        if output.coordinates.shape[1] == self.rows.n_inputs + self.rows.n_outputs:
            return [_PLAIN_RESIDUAL, _INPUTS]  # no expert has latent columns
        return [_TARGET if examples < _FEW_EXAMPLES else _RESIDUAL, _INPUTS]

    @property
    def whole(self) -> bool:
        """Whether the networks' rows are all rows."""
        return self.sample.n_rows == self.rows.n_rows

    def _pool(self, rng: np.random.Generator) -> tuple[StandardisedRows, Indices]:
        """Rows that may be neighbours, and which of them are the examples."""
        if self.whole:
            examples, source = self.held_out, self.sample
            limited = source.n_rows > self.most_rows
            most = min(_MOST_EXAMPLES, self.most_rows // 2) if limited else _MOST_EXAMPLES
            if len(examples) > most:
                examples = np.sort(rng.choice(examples, most, replace=False))
            if limited:
                # Other held-out rows are no neighbours: the posterior does not know them, so nothing can be left out.
                others = np.setdiff1d(np.arange(source.n_rows), self.held_out)
                more = rng.choice(others, min(len(others), self.most_rows - len(examples)), replace=False)
                kept = np.union1d(examples, more)
                source, examples = source.select(kept), np.searchsorted(kept, examples)
            return replace(self.rows, source=source), examples
        # Most rows are not among those of the networks, and there are so many of them that none is remembered.
        rows = replace(self.rows, source=self.rows.source.select_sample(self.most_rows, rng))
        count = min(_MOST_EXAMPLES, max(LEAST_EXAMPLES, rows.n_rows // 10))
        return rows, np.sort(rng.choice(rows.n_rows, count, replace=False))

    def _keep_outputs(self, pool: StandardisedRows, mixture: Mixture) -> tuple[MixtureOutput, Tensor, Kept[Any] | None]:
        """The output of the mixture at all rows, their targets, and both as workers keep them, for the search."""
        kept = pool.chunks_of(mixture.prediction_rows(pool.device)).keep(LeaveOneOut(mixture))
        return *join(kept.load()), kept if kept.distributed else None

    def _predict_unknown(self, pool: StandardisedRows, own: Indices) -> MixtureOutput:
        """The output at the examples, which are not in the posterior: nothing is left out."""
        x, _ = replace(pool, source=pool.source.take(own)).tensors()
        x, step = x.to(pool.dtype), self.without.prediction_rows(pool.device)
        return MixtureOutput.join([evaluate(self.without, x[start : start + step]) for start in range(0, len(x), step)])

    def _start(self, view: View) -> Array:
        silent = self.rows.standardiser.constant_inputs
        inputs = np.where(silent, _SILENT, np.clip(self.lengthscale, *_LENGTHSCALES))
        return start_lengthscales(self.mixture, inputs, view)

    def _judge(
        self,
        view: View,
        gp: LocalGP,
        output: MixtureOutput,
        held: Tensor,
        groups: Tensor,
        rng: np.random.Generator,
        context: FitContext,
    ) -> tuple[Parameters, _JudgedView]:
        """Parameters learned at the examples, and predictions of these, each by parameters that did not see it.

        Rows of the same group are no neighbours of each other.
        """
        examples, m = examples_of(gp, held, groups), len(held)
        training, names = FEW if m < _CROSS_ROWS else MANY, map(str, count())

        def learn(given: Examples, share: float) -> LocalGP:
            least, callback = LEAST_NOISE[view.residual], context.part(next(names), share=share)
            return fit_local(gp, given, rng, training, least_noise=least, callback=callback)

        if not (view.residual or view.latent):  # no network has seen the rows: learn from others
            free = np.setdiff1d(np.arange(gp.n_rows), held.cpu().numpy())
            drawn = rng.choice(free, min(_MOST_EXAMPLES, len(free)), replace=False)
            these = torch.as_tensor(np.sort(drawn), device=held.device)
            learned = learn(examples_of(gp, these, groups), 1.0)
            return learned.params, _JudgedView.of(
                view, output.take(held), predict_examples(learned, examples, misfit=True)
            )
        order = torch.as_tensor(rng.permutation(m), device=held.device)
        parts = [order] if m >= _CROSS_ROWS else list(order.chunk(_FOLDS))
        learned = learn(examples, 1.0 if len(parts) == 1 else 1.0 / (1 + len(parts)))
        judges = [learned]
        if len(parts) > 1:
            others = [torch.cat([*parts[:k], *parts[k + 1 :]]) for k in range(len(parts))]
            judges = [learn(examples.take(each), 1.0 / (len(parts) - k)) for k, each in enumerate(others)]
        near = [
            predict_examples(judge, examples.take(part), misfit=True) for part, judge in zip(parts, judges, strict=True)
        ]
        index = torch.cat(parts)
        back = Conditionals(*(each[index.argsort()] for each in Conditionals.join(near) if each is not None))
        return learned.params, _JudgedView.of(view, output.take(held), back)

    def _judge_exact(
        self,
        view: View,
        gp: LocalGP,
        output: MixtureOutput,
        held: Tensor,
        may_join: Callable[[HeldOut], bool],
        rng: np.random.Generator,
        context: FitContext,
    ) -> tuple[Parameters, _JudgedView]:
        """Parameters by the evidence of rows that are no examples, and predictions of the examples given these.

        Nothing is learned if that takes long and the predictions with the parameters that the plain SSGP started from
        show that the exact GP will not join.
        """
        free = torch.as_tensor(np.setdiff1d(np.arange(gp.n_rows), held.cpu().numpy()), device=held.device)
        known = gp.take(free)

        def judge(params: Parameters) -> _JudgedView:
            return _JudgedView.of(view, output.take(held), known.with_parameters(params).predict(gp.coordinates[held]))

        rows = min(len(free), _EXACT_ROWS, 2 * start_rows(len(free), self.rows.n_inputs))
        if rows > CHEAP_ROWS:
            first = judge(self.start)
            if not may_join(first.spread(gp, math.inf)):
                return self.start, first
        drawn = np.sort(rng.choice(len(free), rows, replace=False))
        objective = known.take(torch.as_tensor(drawn, device=held.device)).evidence
        starts = [self.start, default_start(self.rows.n_inputs, self.rows.n_outputs)]
        monitor = Monitor(context, lambda _, params: params)
        boxes = bounds(self.start, dtype="float64")
        _, params, _ = race([(objective, each) for each in starts], boxes, rounds=EXACT_ROUNDS, monitor=monitor)
        return params, judge(params)


def _judged_codec(layout: Parameters) -> Codec[tuple[Parameters, _JudgedView]]:
    """How a view is stored whose parameters have this layout."""

    def write(found: tuple[Parameters, _JudgedView]) -> Saved:
        params, judged = found
        tensors = {name: torch.as_tensor(value) for name, value in judged._asdict().items()}
        return {**tensors, "params": torch.as_tensor(params.pack())}, {}

    def read(saved: Saved) -> tuple[Parameters, _JudgedView]:
        tensors = saved[0]
        judged = _JudgedView(*(tensors[name].numpy() for name in _JudgedView._fields))
        return layout.unpack(tensors["params"].numpy()), judged

    return Codec(write, read)


def _shard(kept: Kept[Any], gp: LocalGP, changed: Tensor) -> PointShards:
    """The coordinates of a neighbour GP on the workers, with some rows changed since."""
    shards = PointShards(kept, gp.n_rows, partial(read_coordinates, width=gp.coordinates.shape[1]))
    return shards.change(changed, gp.coordinates[changed])
