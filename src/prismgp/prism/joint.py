"""The joint recipe, from rows to a mixture of experts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prismgp._system import Streams
from prismgp._types import Array, Tensor
from prismgp.context import FitContext
from prismgp.core.features import Statistics
from prismgp.core.kernels import Kernel, Parameters, draw_frequencies, get_kernel
from prismgp.data import ArraySource, StandardisedRows, standardise
from prismgp.prism.experts import Expert, InformedMap, MapStatistics, Mixture
from prismgp.prism.local import LocalMixture
from prismgp.prism.local_fit import LEAST_EXAMPLES, LocalStage
from prismgp.prism.network import NetworkSizes, RevisedMap
from prismgp.prism.stacking import HeldOut, mixture_moments, noise_scale, normal_nlpd, stack
from prismgp.prism.train import MemberSettings, MemberTraining, TrainingRows, held_out_rows
from prismgp.vae import BatchRows, Indices, TrainingResult, run_training, torch_generator

_MOST_HELD_OUT = 10_000
LOCAL_ROWS = 4_000_000  # that may be neighbours, at most
_LEAST_LOCAL_ROWS = 2 * LEAST_EXAMPLES  # at most half of them are examples
LOCAL_KERNEL = "matern32"  # what the spectrum leaves is rough
_TRAINED = "trained"  # a member, in a checkpoint
_LOG_LENGTHSCALES = (float(np.log(1e-3)), float(np.log(1e4)))  # as in the core
_SKIP_LENGTHSCALE = 1.5  # the latent columns carry part of what the exact GP explained by the inputs
_START_NOISE = (1e-4, 1.0)
_START_SIGNAL = (0.4, 8.0)
_FEATURE_BYTES = 64 * 2**20  # of the features of one chunk
_MEMBER_KINDS = (("input", 0.0), ("constant", 0.0), ("input", 0.05), ("input", 0.0))


@dataclass
class JointFit:
    """What the joint recipe did, beside the mixture."""

    mixture: Mixture  # of experts with the posteriors of all rows
    without: Mixture | None = None  # the same with posteriors that do not know the held-out rows
    predictor: Mixture | LocalMixture | None = None  # the mixture, or with neighbours
    local: dict[str, Any] = field(default_factory=dict)  # what the local stage says of itself
    residuals: Array | None = None  # standardised, of the predictor at the held-out rows, (m, q)
    networks: dict[int, RevisedMap] = field(default_factory=dict)  # by number, of the members that were trained
    members: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    held_out_rows: int = 0
    held_out_nlpd: float | None = None
    interrupted: bool = False
    steps: int = 0


@dataclass(frozen=True)
class JointRecipe:
    """Encoder, mixture and SSGP trained together; an ensemble of them, stacked with the plain SSGP."""

    rows: StandardisedRows  # all rows; the final features are in their precision and on their device
    sample: ArraySource  # those the networks are trained on, with the held-out ones among them
    plain: Expert  # the SSGP without a network
    start: Parameters  # where its optimisation began
    kernel: Kernel
    frequencies: str  # how they are drawn
    sizes: NetworkSizes  # of every member; which noise a member has is decided by ``noise_model``
    settings: MemberSettings  # of every member, but for the dropout where that is None
    n_members: int
    noise_model: str  # "constant", "input", or "auto": members differ
    dropout: float | None  # None: members differ
    validation_fraction: float
    local: str = "never"  # "auto", "always": whether neighbours may model what the mixture leaves
    n_neighbors: int = 32
    local_rows: int = LOCAL_ROWS

    def fit(self, streams: Streams, context: FitContext) -> JointFit:
        """Train the members and stack them with the plain SSGP."""
        s, device = self.rows.standardiser, self.rows.device
        held_out = held_out_rows(self.sample.x, self.validation_fraction, _MOST_HELD_OUT, streams.generator("held-out"))
        rows = TrainingRows(
            BatchRows(self.sample.x, s.x_shift, s.x_scale, dtype=torch.float32, device=device),
            BatchRows(self.sample.y, s.y_shift, s.y_scale, dtype=torch.float32, device=device),
            held_out,
        )
        result = JointFit(Mixture.alone(self.plain), held_out_rows=len(held_out))
        before = context.iteration

        def observe(now: TrainingResult) -> None:
            context.report(
                f"member {len(result.members)}",
                self.rows.n_rows,
                lambda: self._stack_so_far(result, now, held_out),
                iteration=before + result.steps + now.steps,
            )

        with context.progress("step", self.n_members * self.settings.max_steps):
            for number in range(self.n_members):
                try:
                    member = self._train(number, rows, streams, observe, context)
                except KeyboardInterrupt:  # before its first step; later ones are handled in the training
                    member = TrainingResult(interrupted=True, message="interrupted before the first step")
                self._add(result, member)
                if result.interrupted:
                    break
        self._stack(result, held_out, context)
        result.predictor = result.mixture
        enough = len(held_out) >= LEAST_EXAMPLES
        if self.local != "never" and enough and result.without is not None and not result.interrupted:
            self._localise(result, held_out, streams, context)
        return result

    def _localise(self, result: JointFit, held_out: Indices, streams: Streams, context: FitContext) -> None:
        """Let neighbours model what the mixture leaves, where the held-out rows say so."""
        assert result.without is not None
        if self.local_rows < _LEAST_LOCAL_ROWS:
            return
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
        try:
            found = stage.fit(streams, context)
        except KeyboardInterrupt:  # the mixture will do
            result.interrupted = True
            return
        result.predictor, result.local = found.predictor, found.status
        result.residuals = (found.targets - found.held_out.mean) / np.sqrt(found.held_out.total)
        nlpd = normal_nlpd(found.targets, found.held_out.mean, found.held_out.total)
        result.held_out_nlpd = float(nlpd.sum(1).mean())

    def _train(
        self,
        number: int,
        rows: TrainingRows,
        streams: Streams,
        observe: Callable[[TrainingResult], None],
        context: FitContext,
    ) -> TrainingResult:
        own = Streams(int(streams.generator(f"member {number}").integers(2**31 - 1)))
        noise, dropout = self._kind(number)
        sizes, settings = replace(self.sizes, noise=noise), replace(self.settings, dropout=dropout)
        drawn = draw_frequencies(
            self.kernel,
            sizes.frequencies,
            sizes.latent + sizes.inputs,
            self.frequencies,
            own.generator("frequencies"),
        )
        start = usable_start(self.start, self.rows.standardiser.constant_inputs, learn_kernel=settings.learn_kernel)
        member = RevisedMap(sizes, start, drawn, torch_generator(own, "initial network")).to(self.rows.device)
        checkpoint = context.checkpoint.scope(f"member {number}")
        if (saved := checkpoint.get(_TRAINED)) is not None:
            trained = TrainingResult()
            trained.take_up(saved[1], member, saved[0])
            return trained
        scale = float(np.log(self.rows.standardiser.y_scale).mean())
        begin: int | None = number * settings.max_steps  # the member before may have stopped early

        def show(nlpd: float | None) -> None:
            nonlocal begin
            text = f"member {number + 1} of {self.n_members}, held-out NLPD"
            context.advance(None if nlpd is None else f"{text} {nlpd + scale:.4f}", to=begin)
            begin = None

        task = MemberTraining(member, rows, settings, own)
        trained = run_training(task, monitor=show, observe=observe, checkpoint=checkpoint)
        if not trained.interrupted:
            state = {} if trained.best is None else trained.best.state_dict()
            checkpoint.drop("training")
            checkpoint.put(_TRAINED, lambda: (state, trained.summary()), now=True)
        return trained

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
                "steps": member.steps,
                "best_step": member.best_step,
                "held_out_nlpd": member.score if np.isfinite(member.score) else None,
                "message": member.message,
            }
        )
        for name, values in {"member": [number] * len(member.records), **member.history}.items():
            result.history.setdefault(name, []).extend(values)
        result.steps += member.steps
        result.interrupted |= member.interrupted
        if member.best is not None:
            result.networks[number] = member.best

    def _stack_so_far(self, result: JointFit, member: TrainingResult, held_out: Indices) -> Mixture:
        """The mixture if the training of the present member, and with it that of all, ended here."""
        now = JointFit(result.mixture, networks=dict(result.networks), members=list(result.members))
        self._add(now, member)
        # Copies, because posteriors are computed in another precision than the training.
        now.networks = {number: copy.deepcopy(network) for number, network in now.networks.items()}
        self._stack(now, held_out, FitContext())
        return now.mixture

    def _stack(self, result: JointFit, held_out: Indices, context: FitContext) -> None:
        """Posteriors on all rows; noise, weights and temperature by the held-out rows."""
        s, device = self.rows.standardiser, self.rows.device
        x = standardise(self.sample.x[held_out], s.x_shift, s.x_scale, dtype=self.rows.dtype, device=device)
        y = standardise(self.sample.y[held_out], s.y_shift, s.y_scale, dtype=torch.float64, device=device)
        target = y.cpu().numpy()
        experts, seen, withouts = [], [], []
        try:
            for number, network in result.networks.items():
                network = network.to(self.rows.device, self.rows.dtype).eval()
                (stats,) = context.cached_statistics(f"statistics {number}", partial(self._statistics, network))
                experts.append(Expert.of(f"member {number}", network, network.parameters_now(), stats))
            experts += self._inform(result, x)
        except KeyboardInterrupt:  # those that are done will do
            result.interrupted = True
        simple = 1 + sum(isinstance(expert.map, InformedMap) for expert in experts)
        experts.append(self.plain)
        for k, expert in enumerate(experts):
            rows = _chunk_rows(expert.statistics.width)
            pairs = [(x[start : start + rows], y[start : start + rows]) for start in range(0, len(x), rows)]
            without = expert.with_statistics(expert.statistics.without(expert.accumulate(pairs, self.rows.n_outputs)))
            found = HeldOut.join([without.held_out(part) for part, _ in pairs])
            withouts.append(without)
            if expert is not self.plain:
                scale, _ = noise_scale(target, found.mean, found.variance, found.noise)
                experts[k] = replace(expert, noise_scale=scale)
                withouts[k] = replace(without, noise_scale=scale)
                found = replace(found, noise=found.noise * scale)
            seen.append(found)
        chosen = stack(target, seen, simple=simple)
        kept = np.flatnonzero(chosen.weights > 0)
        result.mixture = Mixture(tuple(experts[k] for k in kept), chosen.weights[kept], chosen.temperature)
        result.without = replace(result.mixture, experts=tuple(withouts[k] for k in kept))
        result.weights = {expert.name: float(w) for expert, w in zip(experts, chosen.weights, strict=True)}
        result.held_out_nlpd = chosen.nlpd
        mean, total = mixture_moments(
            chosen.weights, np.stack([each.mean for each in seen]), np.stack([each.total for each in seen])
        )
        result.residuals = (target - mean) / np.sqrt(total * chosen.temperature)

    def _inform(self, result: JointFit, x: Tensor) -> list[Expert]:
        """The plain SSGP with the noise of the best member that has one: sometimes that is all there is to learn."""
        noisy = [number for number, network in result.networks.items() if network.noise_head is not None]
        if not noisy:
            return []
        best = min(noisy, key=lambda number: result.members[number]["held_out_nlpd"])
        return [self.plain.with_noise_of(result.networks[best], x)]

    def _statistics(self, network: RevisedMap) -> tuple[Statistics]:
        """Of all rows under a network's features."""
        chunks = self.rows.chunks_of(_chunk_rows(network.sizes.width))
        return (chunks.reduce(MapStatistics(network)),)


def _chunk_rows(width: int) -> int:
    """Rows whose features fill a fixed amount of memory."""
    return int(np.clip(_FEATURE_BYTES // (8 * width), 256, 1 << 15))


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
