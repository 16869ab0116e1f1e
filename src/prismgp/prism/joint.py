"""The joint recipe, from rows to a mixture of experts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prismgp._system import Streams
from prismgp._types import Array, Indices, Saved
from prismgp.checkpoint import Checkpoint
from prismgp.context import FitContext
from prismgp.core.kernels import Kernel, Parameters, draw_frequencies, get_kernel
from prismgp.core.numerics import Hashes
from prismgp.core.parallel import Workers
from prismgp.core.rows import Ending, time_twice
from prismgp.core.statistics import STATISTICS, Statistics
from prismgp.data import Source, StandardisedRows
from prismgp.prism.experts import Expert, Mixture
from prismgp.prism.judging import (
    MOST_ROWS,
    CrossFit,
    HeldOutRows,
    Judged,
    Refit,
    WeightedStatistics,
    cross_fit,
    held_out_rows_of,
)
from prismgp.prism.local import LocalMixture
from prismgp.prism.local_fit import LEAST_EXAMPLES, LocalResult, LocalStage
from prismgp.prism.maps import NetworkSizes, RevisedMap, chunk_rows, collect_statistics
from prismgp.prism.members import Member, MemberSettings
from prismgp.prism.shapes import Copies
from prismgp.prism.stacking import Residuals, average, mixture_moments, normal_nlpd, stack
from prismgp.prism.train import MemberTraining
from prismgp.prism.training_rows import hash_inputs, held_out_rows, open_rows
from prismgp.vae import STATE_NAME, TrainingResult, run_training, select_tensors, torch_generator

_MOST_HELD_OUT = 10_000
LOCAL_ROWS = 4_000_000  # that may be neighbours, at most
_LEAST_LOCAL_ROWS = 2 * LEAST_EXAMPLES  # at most half of them are examples
LOCAL_KERNEL = "matern32"  # what the spectrum leaves is rough
_TRAINED = "trained"  # the members, in a checkpoint
_LOG_LENGTHSCALES = (float(np.log(1e-3)), float(np.log(1e4)))  # as in the core
_SKIP_LENGTHSCALE = 1.5  # the latent columns carry part of what the exact GP explained by the inputs
_START_NOISE = (1e-4, 1.0)
_START_SIGNAL = (0.4, 8.0)
_PROBE_ROWS = 2_048  # to time the statistics of all rows
# Under a time limit: what the networks may take of the time left, and what neighbours get of that; the share of its
# steps without which a member is given up; the steps that show how long one takes.
_STACK_SECONDS = 1.5  # for each second of the statistics of a member, whose predictions of held-out rows follow
_NETWORK_SHARE, _LOCAL_SHARE, _LEAST_STEPS = 0.9, 0.35, 0.3
_PROBE_FROM, _PROBE_STEPS = 10, 20  # the first steps on a GPU are slow
_MEMBER_KINDS = (("input", 0.0), ("constant", 0.0), ("input", 0.05), ("input", 0.0))


@dataclass
class JointFit:
    """What the joint recipe did, beside the mixture."""

    mixture: Mixture  # of experts with the posteriors of all rows
    without: Mixture | None = None  # the same with posteriors that do not know the held-out rows
    predictor: Mixture | LocalMixture | None = None  # the mixture, or with neighbours
    local: dict[str, Any] = field(default_factory=dict)  # status of the local stage
    residuals: Residuals | None = None  # of the predictor at rows that it did not know
    cross: CrossFit | None = None  # of the plain SSGP, where rows are few
    copies: Callable[[], Copies | None] = lambda: None  # finds residuals at rows that have copies
    networks: dict[int, RevisedMap] = field(default_factory=dict)  # by number, of the members that were trained
    frequencies: list[Array] = field(default_factory=list)  # of the members' posteriors
    members: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    held_out_rows: int = 0
    held_out_nlpd: float | None = None
    steps: int = 0


@dataclass(frozen=True)
class JointRecipe:
    """Encoder, mixture and SSGP trained together; an ensemble of them, stacked with the plain SSGP."""

    rows: StandardisedRows  # all rows; the final features are in their precision and on their device
    sample: Source  # those the networks are trained on, with the held-out ones among them
    plain: Expert  # the SSGP without a network
    refit: Refit | None  # learns it again, from some of the rows; None where that is not wanted
    start: Parameters  # where its optimisation began
    kernel: Kernel
    frequencies: str  # how they are drawn
    sizes: NetworkSizes  # of every member; which noise a member has is decided by ``noise_model``
    trained_frequencies: int  # of a member; its posterior has them all
    settings: MemberSettings  # of every member
    n_members: int
    noise_model: str  # "constant", "input", or "auto": members differ
    dropout: float | None  # None: members differ
    validation_fraction: float
    local: str = "never"  # "auto", "always": whether neighbours may model what the mixture leaves
    n_neighbors: int = 32
    local_rows: int = LOCAL_ROWS

    def fit(self, streams: Streams, context: FitContext) -> JointFit:
        """Train the members and stack them with the plain SSGP."""
        fraction, rng = self.validation_fraction, streams.generator("held-out")
        hashes = hash_inputs(self.sample)
        held_out = held_out_rows(hashes, fraction, _MOST_HELD_OUT, rng, lambda: hash_inputs(self.sample, targets=True))
        examples = held_out_rows_of(self.rows, self.sample, held_out)
        cross = self._cross_fit(held_out, hashes, streams, context)
        result = JointFit(Mixture.from_expert(cross.plain if cross else self.plain), cross=cross)
        result.held_out_rows = len(held_out)
        enough = len(held_out) >= LEAST_EXAMPLES and self.local_rows >= _LEAST_LOCAL_ROWS
        local = self.local != "never" and enough
        share = _NetworkTime(context.ending.part(_NETWORK_SHARE), self.settings.first_steps, local)
        steps = self.n_members * self.settings.first_steps
        with context.part("members", "networks", unit="step", total=steps) as part, context.ending.catch_end():
            self._train(result, held_out, examples, streams, context, part, share)
        self._stack(result, examples, context)
        result.predictor = result.mixture
        if local and share.leaves_local and result.without is not None and not context.ending.over:
            self._localise(result, held_out, streams, context)
        return result

    def _localise(self, result: JointFit, held_out: Indices, streams: Streams, context: FitContext) -> None:
        """Add neighbours that model what the mixture leaves, if they improve predictions of the held-out rows."""
        assert result.without is not None
        stage = LocalStage(
            rows=self.rows,
            sample=self.sample,
            held_out=held_out,
            mixture=result.mixture,
            without=result.without,
            lengthscale=self.plain.params.lengthscale,
            start=self.start,
            kernel=get_kernel(LOCAL_KERNEL),
            exact_kernel=self.kernel,
            n_neighbors=self.n_neighbors,
            most_rows=self.local_rows,
            always=self.local == "always",
        )
        found: LocalResult | None = None
        with context.ending.catch_end(), context.part("neighbours", "neighbours", unit="view") as part:
            found = stage.fit(streams, part)
        if found is None:  # ended early: keep the mixture
            return
        result.predictor, result.local = found.predictor, found.status
        if found.predictor is result.mixture:
            return
        values = (found.targets - found.held_out.mean) / np.sqrt(found.held_out.total)
        result.residuals, result.copies = Residuals(values, found.x, found.weights), found.copies
        nlpd = normal_nlpd(found.targets, found.held_out.mean, found.held_out.total)
        result.held_out_nlpd = average(nlpd.sum(1), found.weights)

    def _train(
        self,
        result: JointFit,
        held_out: Indices,
        examples: HeldOutRows,
        streams: Streams,
        context: FitContext,
        part: FitContext,
        share: _NetworkTime,
    ) -> None:
        """Train the members and add them to a result."""
        members = [self._make_member(number, streams) for number in range(self.n_members)]
        result.frequencies = [member.frequencies for member in members]
        # If the plain SSGP has ended early, members start elsewhere than in a complete fit: no checkpoint.
        checkpoint = Checkpoint() if context.ending.early else part.checkpoint

        def restore(saved: Saved) -> list[TrainingResult]:
            tensors, info = saved
            return [
                TrainingResult.restore(about, members[number].network, select_tensors(tensors, str(number)))
                for number, about in enumerate(info["members"])
            ]

        known = checkpoint.recall(_TRAINED, restore)
        if known is not None:
            for trained in known:
                self._add(result, trained)
            return
        share.begin(lambda: self._time_statistics(members[0].network.with_frequencies(members[0].frequencies)))
        step_rows = self.n_members * self.settings.batch_size
        rows = open_rows(self.sample, self.rows.standardiser, held_out, self.rows.device, step_rows=step_rows)
        side_by_side = self.n_members > 1 and self.rows.device.type == "cpu"
        workers = Workers(wanted=side_by_side)
        task = MemberTraining(members, rows, self.settings, share.ending, workers)
        scale, before = float(np.log(self.rows.standardiser.y_scale).mean()), context.iteration
        share.lanes = torch.get_num_threads() if side_by_side else 1
        try:
            with workers:
                run_training(
                    task,
                    monitor=lambda values: self._show(task, values, scale, part, share),
                    observe=lambda now: self._report(result, now, examples, context, before),
                    checkpoint=checkpoint,
                    ending=share.ending,
                )
        finally:  # also after an interrupt
            rows.close()
            for run in task.runs:
                if run not in task.dropped:
                    self._add(result, run.result)
        if not any(run.result.early for run in task.runs):
            state = {
                f"{number}.{name}": value
                for number, network in result.networks.items()
                for name, value in network.state_dict().items()
            }
            checkpoint.drop(STATE_NAME)
            summaries = [run.result.summary() for run in task.runs]
            checkpoint.put(_TRAINED, lambda: (state, {"members": summaries}), now=True)

    def _make_member(self, number: int, streams: Streams) -> Member:
        own = Streams(int(streams.generator(f"member {number}").integers(2**31 - 1)))
        noise, dropout = self._kind(number)
        sizes = replace(self.sizes, noise=noise)
        drawn = draw_frequencies(
            self.kernel,
            sizes.frequencies,
            sizes.latent + sizes.inputs,
            self.frequencies,
            own.generator("frequencies"),
        )
        constant = self.rows.standardiser.constant_inputs
        start = usable_start(self.start, constant, learn_kernel=self.settings.learn_kernel)
        trained = drawn[: self.trained_frequencies]
        sizes = replace(sizes, frequencies=len(trained))
        network = RevisedMap(sizes, start, trained, torch_generator(own, "initial network")).to(self.rows.device)
        return Member(network, drawn, dropout, own)

    def _show(
        self, task: MemberTraining, values: Sequence[float], scale: float, context: FitContext, share: _NetworkTime
    ) -> None:
        """Show a step, and drop the members that there is no time for."""
        if values:
            text = f"held-out NLPD of the best member {min(values) + scale:.4f}"
            context.bar.set_postfix_str(text, refresh=False)
        context.bar.total = task.expected_steps
        context.bar.update(sum(each.steps for each in task.results) - context.bar.n)
        if share.ending.limited and task.steps in (_PROBE_FROM, _PROBE_STEPS) and self.rows.device.type == "cuda":
            torch.cuda.synchronize(self.rows.device)  # else only the launch of the steps would be timed
        if task.steps == _PROBE_FROM:
            share.watch()
        if task.steps == _PROBE_STEPS:
            task.drop(task.active[share.members(len(task.active)) :])

    def _report(
        self, result: JointFit, now: Sequence[TrainingResult], examples: HeldOutRows, context: FitContext, before: int
    ) -> None:
        context.report(
            "members",
            self.rows.n_rows,
            lambda: self._stack_so_far(result, now, examples),
            iteration=before + sum(each.steps for each in now),
        )

    def _kind(self, number: int) -> tuple[str, float]:
        """Noise and dropout of a member."""
        noise, dropout = _MEMBER_KINDS[number % len(_MEMBER_KINDS)]
        return (
            noise if self.noise_model == "auto" else self.noise_model,
            dropout if self.dropout is None else self.dropout,
        )

    def _add(self, result: JointFit, member: TrainingResult) -> None:
        """Add the next member to a result."""
        number = len(result.members)
        noise, dropout = self._kind(number)
        result.members.append(
            {
                "noise": noise,
                "dropout": dropout,
                "frequencies": self.trained_frequencies,  # that it was trained with
                "steps": member.steps,
                "best_step": member.best_step,
                "held_out_nlpd": member.score if np.isfinite(member.score) else None,
                "message": member.message,
                "rows_weighted": False,  # whether rows with large residuals count less in its posterior
            }
        )
        for name, values in {"member": [number] * len(member.records), **member.history}.items():
            result.history.setdefault(name, []).extend(values)
        result.steps += member.steps
        if member.best is not None:
            result.networks[number] = member.best

    def _stack_so_far(self, result: JointFit, members: Sequence[TrainingResult], examples: HeldOutRows) -> Mixture:
        """The mixture if the training of the members ended here."""
        now = JointFit(result.mixture, frequencies=result.frequencies, cross=result.cross)
        for member in members:
            self._add(now, member)
        self._stack(now, examples, FitContext())
        return now.mixture

    def _cross_fit(self, held_out: Indices, hashes: Hashes, streams: Streams, context: FitContext) -> CrossFit | None:
        """Residuals of the plain SSGP at rows left out of its fit, where rows are few."""
        if self.refit is None or len(hashes) > MOST_ROWS or len(hashes) < self.rows.n_rows:
            return None
        rng = streams.generator("cross-fit")
        with context.ending.catch_end(), context.part("cross-fit", "cross-fit", unit="fold") as part:
            return cross_fit(self.plain, self.rows, self.sample, held_out, hashes, self.refit, rng, part)
        return None

    def _stack(self, result: JointFit, examples: HeldOutRows, context: FitContext) -> None:
        """Posteriors on all rows; noise, weights and temperature by the held-out rows."""
        target = examples.targets
        experts = []
        for number, network in result.networks.items():
            # A copy: the training may go on, and is in another precision.
            network = network.with_frequencies(result.frequencies[number])
            network = result.networks[number] = network.to(self.rows.device, self.rows.dtype).eval()
            last_pass = partial(context.ending.compute_anyway, partial(self._statistics, network))
            (stats,) = context.recall(f"statistics {number}", last_pass, STATISTICS)
            experts.append(Expert.of(f"member {number}", network, network.parameters_now(), stats))
        judged = [self._judge(expert, examples, context) for expert in experts]
        simple = context.ending.compute_anyway(partial(self._judge_plain, result, examples))
        judged += simple
        experts, seen = [each.expert for each in judged], [each.found for each in judged]
        for number, each in zip(result.networks, judged, strict=False):  # the members come first
            result.members[number]["rows_weighted"] = each.expert.weighted_by is not None
        chosen = stack(target, seen, simple=len(simple), row_weights=examples.weights)
        kept = np.flatnonzero(chosen.weights > 0)
        result.mixture = Mixture(tuple(experts[k] for k in kept), chosen.weights[kept], chosen.temperature)
        result.without = replace(result.mixture, experts=tuple(judged[k].without for k in kept))
        result.weights = {expert.name: float(w) for expert, w in zip(experts, chosen.weights, strict=True)}
        result.held_out_nlpd = chosen.nlpd
        mean, total = mixture_moments(
            chosen.weights, np.stack([each.mean for each in seen]), np.stack([each.total for each in seen])
        )
        plain = chosen.weights[-1] == 1.0
        if plain and result.cross is not None:  # they are of more rows
            result.residuals = result.cross.residuals
        else:
            values = (target - mean) / np.sqrt(total * chosen.temperature)
            result.residuals = Residuals(values, examples.x, examples.weights, chose=not plain)

    def _judge(self, expert: Expert, examples: HeldOutRows, context: FitContext) -> Judged:
        """Predict the held-out rows by an expert; rows with large residuals count less if that is better (W3)."""
        judged = examples.predict_without(expert)
        if context.ending.left <= 0.0 or not examples.have_outliers(judged):
            return judged

        def weight(by: Expert, name: str) -> Expert:
            chunks = self.rows.chunks_of(chunk_rows(by.statistics.width))
            last_pass = partial(context.ending.compute_anyway, lambda: (chunks.reduce(WeightedStatistics(by)),))
            (found,) = context.recall(name, last_pass, STATISTICS)
            return by.with_statistics(found, weighted_by=by)

        again = examples.predict_without(weight(judged.without, f"weighted by others, {expert.name}"))
        if not examples.prefer(again, judged):
            return judged
        weighted = weight(judged.expert, f"weighted, {expert.name}")
        return replace(again, expert=replace(weighted, noise_scale=again.expert.noise_scale))

    def _judge_plain(self, result: JointFit, examples: HeldOutRows) -> list[Judged]:
        """The plain SSGP, last, and before it the same with the noise of the best member that has a noise head."""
        cross = result.cross
        plain, without = (self.plain, None) if cross is None else (cross.plain, cross.without)
        judged = [examples.predict_without(plain, scaled=False, without=without)]
        noisy = [number for number, network in result.networks.items() if network.noise_head is not None]
        if noisy:  # sometimes that is enough
            best = min(noisy, key=lambda number: result.members[number]["held_out_nlpd"])
            informed, x = result.networks[best], examples.x
            other = None if without is None else without.with_noise_of(informed, x)
            judged.insert(0, examples.predict_without(plain.with_noise_of(informed, x), without=other))
        return judged

    def _time_statistics(self, network: RevisedMap) -> float:
        """Seconds that :meth:`_statistics` will take, from those of a few rows."""
        few = replace(self.rows, source=self.sample.take(np.arange(min(_PROBE_ROWS, self.sample.n_rows))))
        network = network.to(self.rows.device, self.rows.dtype).eval()
        probe = replace(self, rows=few)
        return time_twice(lambda: probe._statistics(network)) * self.rows.n_rows / few.n_rows

    def _statistics(self, network: RevisedMap) -> tuple[Statistics]:
        """Of all rows under a network's features."""
        return (collect_statistics(self.rows, network, network.parameters_now(), network.sizes.width),)


class _NetworkTime:
    """The time of the networks, if that is limited.

    After the first steps it is known how long a step takes, and how many members can have a fair number of them; the
    others are given up. The learning rate falls with the time. ``local``: neighbours come after the networks, and get
    time if a member can have a fair number of steps without it.
    """

    def __init__(self, ending: Ending, steps: int, local: bool) -> None:
        self.ending, self.steps = ending, steps
        self.leaves_local = local and not ending.limited
        self.lanes = 1  # members whose steps are taken side by side
        self._local, self._began, self._statistics = local, time.perf_counter(), 0.0

    def begin(self, time_statistics: Callable[[], float]) -> None:
        """Called before the first step; the pass over all rows of one member is reserved."""
        if self.ending.limited:
            self._statistics = _STACK_SECONDS * time_statistics()
            self.ending.reserve(self._statistics)

    def watch(self) -> None:
        """Called before the steps that show how long one takes."""
        self._began = time.perf_counter()

    def members(self, count: int) -> int:
        """Return how many members there is time for, after their first steps; reserve the time of their passes."""
        if not (self.ending.limited and count):
            return count
        seconds = (time.perf_counter() - self._began) / ((_PROBE_STEPS - _PROBE_FROM) * -(-count // self.lanes))
        fair = seconds * self.steps * _LEAST_STEPS  # of as many members as there are lanes
        if self._local and self.ending.left * (1.0 - _LOCAL_SHARE) >= fair:
            self.leaves_local = True
            self.ending.shorten(1.0 - _LOCAL_SHARE)
        while count > 1 and fair * -(-count // self.lanes) + count * self._statistics > self.ending.left:
            count -= 1
        self.ending.reserve((count - 1) * self._statistics)
        return count


def usable_start(start: Parameters, silent: npt.NDArray[np.bool_], *, learn_kernel: bool) -> Parameters:
    """Starting values a network can use.

    A ``silent`` column, which never varied, has a scale meant to make it vanish, so its length-scale says nothing about
    relevance; it gets an average one, which leaves the others theirs.
    """
    log_lengthscale = np.clip(start.log_lengthscale, *_LOG_LENGTHSCALES)
    if silent.any():
        mean_square = np.mean(np.exp(-2.0 * log_lengthscale[~silent])) if not silent.all() else 1.0
        log_lengthscale = np.where(silent, -0.5 * np.log(mean_square), log_lengthscale)
    if not learn_kernel:
        return replace(start, log_lengthscale=log_lengthscale)
    # Extreme variances of a small exact GP would keep the network from learning anything.
    signal, noise = np.clip(start.signal, *_START_SIGNAL), np.clip(start.noise, *_START_NOISE)
    longer = log_lengthscale + np.log(_SKIP_LENGTHSCALE)
    return replace(start, log_lengthscale=longer, log_signal=np.log(signal), log_noise=np.log(noise))
