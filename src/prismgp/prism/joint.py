"""The joint recipe, from rows to a mixture of experts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from prismgp._random import Streams
from prismgp._types import Tensor
from prismgp.context import FitContext
from prismgp.core.frequencies import draw_frequencies
from prismgp.core.kernels import Kernel
from prismgp.core.parameters import Parameters
from prismgp.core.statistics import Statistics
from prismgp.data import ArraySource, StandardisedRows, standardise
from prismgp.prism.experts import Expert, InformedMap, MapStatistics, Mixture, PlainMap
from prismgp.prism.network import NetworkSizes, RevisedMap
from prismgp.prism.stacking import HeldOut, noise_scale, stack
from prismgp.prism.train import MemberSettings, TrainedMember, TrainingRows, held_out_rows, train_member
from prismgp.vae import Indices, Rows, torch_generator

__all__ = ["JointFit", "JointRecipe"]

_MOST_HELD_OUT = 10_000
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

    mixture: Mixture
    members: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    held_out_rows: int = 0
    held_out_nlpd: float | None = None
    interrupted: bool = False
    steps: int = 0


@dataclass(frozen=True)
class JointRecipe:
    """Encoder, mixture and SSGP trained together; an ensemble of them, stacked with the plain SSGP.

    Attributes
    ----------
    rows : StandardisedRows
        All rows; the final features are in their precision and on their device.
    sample : ArraySource
        Those the networks are trained on, with the held-out ones among them.
    kernel : Kernel
    frequencies : str
        How they are drawn.
    sizes : NetworkSizes
        Of every member; which noise a member has is decided by ``noise_model``.
    settings : MemberSettings
        Of every member, but for the dropout where that is None.
    n_members : int
    noise_model : str
        "constant", "input", or "auto": members differ.
    dropout : float or None
        None: members differ.
    validation_fraction : float
    """

    rows: StandardisedRows
    sample: ArraySource
    kernel: Kernel
    frequencies: str
    sizes: NetworkSizes
    settings: MemberSettings
    n_members: int
    noise_model: str
    dropout: float | None
    validation_fraction: float

    def fit(self, plain: Expert, start: Parameters, streams: Streams, context: FitContext) -> JointFit:
        """Train the members and stack them with the plain SSGP, whose optimisation began at ``start``."""
        start = self._usable(start)
        held_out = held_out_rows(self.sample.x, self.validation_fraction, _MOST_HELD_OUT, streams.generator("held-out"))
        rows = self._training_rows(held_out)
        result = JointFit(Mixture.alone(plain), held_out_rows=len(held_out))
        trained: list[tuple[int, RevisedMap]] = []
        before = context.iteration
        with context.progress("step", self.n_members * self.settings.max_steps):
            for number in range(self.n_members):

                def reached(now: TrainedMember, number: int = number) -> None:
                    context.reached(
                        f"member {number}",
                        self.rows.n_rows,
                        lambda: self._so_far(result, plain, trained, held_out, now),
                        iteration=before + result.steps + now.steps,
                    )

                try:
                    member = self._train(number, rows, start, streams, reached, context)
                except KeyboardInterrupt:  # before its first step; later ones are handled in the training
                    member = TrainedMember(interrupted=True, message="interrupted before the first step")
                result.steps += member.steps
                self._note(result, number, member)
                if member.map is not None:
                    trained.append((number, member.map))
                if member.interrupted:
                    result.interrupted = True
                    break
        self._stack(result, plain, trained, held_out, context)
        return result

    def _so_far(
        self,
        result: JointFit,
        plain: Expert,
        trained: list[tuple[int, RevisedMap]],
        held_out: Indices,
        member: TrainedMember,
    ) -> Mixture:
        """The mixture if the training of the present member, and with it that of all, ended here."""
        number = len(result.members)
        now = JointFit(result.mixture, members=list(result.members))
        self._note(now, number, member)
        # Copies, because posteriors are computed in another precision than the training.
        there = [*trained, *([] if member.map is None else [(number, member.map)])]
        self._stack(now, plain, [(k, copy.deepcopy(network)) for k, network in there], held_out, FitContext())
        return now.mixture

    def _usable(self, start: Parameters) -> Parameters:
        """Starting values a network can use.

        A column that never varied has a scale meant to make it vanish, so its length-scale says nothing about
        relevance; it gets an average one, which leaves the others theirs.
        """
        log_lengthscale = np.clip(start.log_lengthscale, *_LOG_LENGTHSCALES)
        silent = self.rows.standardiser.constant_inputs
        if silent.any():
            mean_square = np.mean(np.exp(-2.0 * log_lengthscale[~silent])) if not silent.all() else 1.0
            log_lengthscale = np.where(silent, -0.5 * np.log(mean_square), log_lengthscale)
        start = replace(start, log_lengthscale=log_lengthscale)
        if not self.settings.learn_kernel:
            return start
        # Extreme variances of a small exact GP would keep the network from learning anything.
        signal, noise = np.clip(start.signal, *_START_SIGNAL), np.clip(start.noise, *_START_NOISE)
        longer = start.log_lengthscale + np.log(_SKIP_LENGTHSCALE)
        return replace(start, log_lengthscale=longer, log_signal=np.log(signal), log_noise=np.log(noise))

    def _train(
        self,
        number: int,
        rows: TrainingRows,
        start: Parameters,
        streams: Streams,
        reached: Callable[[TrainedMember], None],
        context: FitContext,
    ) -> TrainedMember:
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
        member = RevisedMap(sizes, start, drawn, torch_generator(own, "initial network")).to(self.rows.device)
        settings = replace(self.settings, dropout=dropout)
        checkpoint = context.checkpoint.scope(f"member {number}")
        if (saved := checkpoint.get(_TRAINED)) is not None:
            trained = TrainedMember()
            trained.take_up(saved[1], member, saved[0])
            return trained
        scale = float(np.log(self.rows.standardiser.y_scale).mean())
        begin: int | None = number * settings.max_steps  # the member before may have stopped early

        def show(nlpd: float | None) -> None:
            nonlocal begin
            text = f"member {number + 1} of {self.n_members}, held-out NLPD"
            context.advance(None if nlpd is None else f"{text} {nlpd + scale:.4f}", to=begin)
            begin = None

        trained = train_member(member, rows, settings, own, monitor=show, observe=reached, checkpoint=checkpoint)
        if not trained.interrupted:
            state = {} if trained.map is None else trained.map.state_dict()
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

    def _note(self, result: JointFit, number: int, member: TrainedMember) -> None:
        noise, dropout = self._kind(number)
        result.members.append(
            {
                "noise": noise,
                "dropout": dropout,
                "steps": member.steps,
                "best_step": member.best_step,
                "held_out_nlpd": member.nlpd if np.isfinite(member.nlpd) else None,
                "message": member.message,
            }
        )
        length = len(member.history.get("step", []))
        for name, values in {"member": [number] * length, **member.history}.items():
            result.history.setdefault(name, []).extend(values)

    def _stack(
        self,
        result: JointFit,
        plain: Expert,
        trained: list[tuple[int, RevisedMap]],
        held_out: Indices,
        context: FitContext,
    ) -> None:
        """Posteriors on all rows; noise, weights and temperature by the held-out rows."""
        x, y = self._held_out_tensors(held_out)
        target = y.cpu().numpy()
        q = self.rows.n_outputs
        experts, seen = [], []
        try:
            for number, network in trained:
                network = network.to(self.rows.device, self.rows.dtype).eval()
                (stats,) = context.cached_statistics(f"statistics {number}", partial(self._statistics, network))
                experts.append(Expert.of(f"member {number}", network, network.parameters_now(), stats))
            experts += self._informed(result, plain, trained, x)
        except KeyboardInterrupt:  # those that are done will do
            result.interrupted = True
        simple = 1 + sum(isinstance(expert.map, InformedMap) for expert in experts)
        experts.append(plain)
        for k, expert in enumerate(experts):
            rows = _chunk_rows(expert.statistics.width)
            pairs = [(x[start : start + rows], y[start : start + rows]) for start in range(0, len(x), rows)]
            without = expert.with_statistics(expert.statistics.without(expert.accumulate(pairs, q)))
            found = HeldOut.joined([without.held_out(part) for part, _ in pairs])
            if expert is not plain:
                scale, _ = noise_scale(target, found.mean, found.variance, found.noise)
                experts[k] = replace(expert, noise_scale=scale)
                found = replace(found, noise=found.noise * scale)
            seen.append(found)
        chosen = stack(target, seen, simple=simple)
        kept = np.flatnonzero(chosen.weights > 0)
        result.mixture = Mixture(tuple(experts[k] for k in kept), chosen.weights[kept], chosen.temperature)
        result.weights = {expert.name: float(w) for expert, w in zip(experts, chosen.weights, strict=True)}
        result.held_out_nlpd = chosen.nlpd

    @staticmethod
    def _informed(result: JointFit, plain: Expert, trained: list[tuple[int, RevisedMap]], x: Tensor) -> list[Expert]:
        """The plain SSGP with the noise of the best member that has one: sometimes that is all there is to learn."""
        noisy = [(number, network) for number, network in trained if network.noise_head is not None]
        if not noisy or not isinstance(plain.map, PlainMap):
            return []
        reached = [result.members[number]["held_out_nlpd"] for number, _ in noisy]
        _, network = noisy[int(np.argmin([np.inf if nlpd is None else nlpd for nlpd in reached]))]
        return [plain.informed(network, x)]

    def _training_rows(self, held_out: Indices) -> TrainingRows:
        s = self.rows.standardiser
        place = {"dtype": torch.float32, "device": self.rows.device}
        return TrainingRows(
            Rows(self.sample.x, s.x_shift, s.x_scale, **place),  # type: ignore[arg-type]
            Rows(self.sample.y, s.y_shift, s.y_scale, **place),  # type: ignore[arg-type]
            held_out,
        )

    def _held_out_tensors(self, held_out: Indices) -> tuple[Tensor, Tensor]:
        s = self.rows.standardiser
        return (
            standardise(self.sample.x[held_out], s.x_shift, s.x_scale, dtype=self.rows.dtype, device=self.rows.device),
            standardise(self.sample.y[held_out], s.y_shift, s.y_scale, dtype=torch.float64, device=self.rows.device),
        )

    def _statistics(self, network: RevisedMap) -> tuple[Statistics]:
        """Of all rows under a network's features."""
        chunks = self.rows.chunks_of(_chunk_rows(network.sizes.width))
        return (chunks.reduce(MapStatistics(network)),)


def _chunk_rows(width: int) -> int:
    """Rows whose features fill a fixed amount of memory."""
    return int(np.clip(_FEATURE_BYTES // (8 * width), 256, 1 << 15))
