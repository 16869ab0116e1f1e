"""Training of one member: evidence of mini-batches plus a weighted augmented ELBO, watched on held-out rows.

What is maximised, per row of a batch,

- (T1) ``log p(Y_batch) / n + elbo_weight * (reconstruction - KL - alpha KL + beta separation)``,

the evidence (B1) of a fresh random batch, and the objective R5 of the re-configuration on some rows of it. The
evidence of all rows at once would be the wrong objective for a network: it rewards features that have
memorised the rows. A batch has to be explained by features made from other rows.

Every few steps the averaged network is given the exact posterior of many training rows, and scored by
the density of the held-out rows, with the noise they want. The best state is kept.

All random numbers are drawn on the CPU, from streams of the member's own.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prismgp._random import Streams
from prismgp._training_state import TrainingState, part
from prismgp._types import AnyArray, Tensor
from prismgp.context import Checkpoint, Saved
from prismgp.exceptions import NumericalError
from prismgp.prism._batch import batch_log_evidence, batch_predict
from prismgp.prism._network import Encoded, RevisedMap, limited
from prismgp.prism._stack import HeldOut, noise_scale
from prismgp.prism.experts import Expert, map_statistics
from prismgp.vae import ElboTerms, GaussianMixture, GaussianMixtureNet, Rows, elbo_terms, torch_generator
from prismgp.vae._rows import Indices, draw_rows

__all__ = ["MemberSettings", "TrainedMember", "TrainingRows", "held_out_rows", "train_member"]

_LEARNING_RATE = 1e-2
_WEIGHT_DECAY = 0.01
_WARM_UP = 50  # steps over which the learning rate rises; then it falls to zero like half a cosine
_LONGEST_GRADIENT = 10.0
_AVERAGE = 0.98  # share of the past in the running average of the weights
_CHECK_EVERY = 25
_CONTEXT_ROWS = 8_192  # training rows behind the posterior of a check
_WIDE = 1_024  # features above which there are fewer
_WIDE_CONTEXT_ROWS = 2_048
_ELBO_ROWS = 128  # rows of a batch that enter the ELBO, whose weight is small
_ELBO_EVERY = 8  # steps; it then counts eight times
_DECODER_HIDDEN = 32
_CHUNK_ROWS = 2_048
_START_LOG_VAR = -4.0  # of the encoder's posterior
_STATE = "training"  # its name in a checkpoint
_TERMS = ("reconstruction", "conditional_kl", "marginal_kl", "separation")

Monitor = Callable[[float | None], None]


@dataclass(frozen=True)
class MemberSettings:
    """How a member is trained; the names are those of the estimator's parameters."""

    alpha: float
    beta: float
    elbo_weight: float
    dropout: float
    batch_size: int
    max_steps: int
    patience: int | None
    learn_kernel: bool


@dataclass(frozen=True)
class TrainingRows:
    """Rows by index, standardised, and those held out.

    Attributes
    ----------
    x, y : Rows
        Inputs and targets.
    held_out : ndarray of int
        Sorted indices.
    """

    x: Rows
    y: Rows
    held_out: Indices

    def draw(self, count: int, rng: np.random.Generator) -> Indices:
        """Distinct training rows in random order."""
        return draw_rows(len(self.x), self.held_out, count, rng)


@dataclass
class TrainedMember:
    """What a training did; ``map`` holds the best state, or None if there was no time to find one."""

    map: RevisedMap | None = None
    steps: int = 0
    best_step: int = 0
    nlpd: float = math.inf
    message: str = ""
    interrupted: bool = False
    history: dict[str, list[Any]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """All but the map, as JSON."""
        names = ("steps", "best_step", "message", "history")
        nlpd = self.nlpd if math.isfinite(self.nlpd) else None
        return {**{name: getattr(self, name) for name in names}, "nlpd": nlpd}

    def take_up(self, summary: dict[str, Any], like: RevisedMap, best: dict[str, Tensor]) -> None:
        """A summary, and the state of the best map where there is one; ``like`` is a map of its kind."""
        for name, value in summary.items():
            setattr(self, name, value)
        if summary["nlpd"] is None:
            self.nlpd = math.inf
        if best:
            self.map = copy.deepcopy(like)
            self.map.load_state_dict(best)


def train_member(
    member: RevisedMap,
    rows: TrainingRows,
    settings: MemberSettings,
    streams: Streams,
    *,
    monitor: Monitor,
    observe: Callable[[TrainedMember], None] = lambda _: None,
    checkpoint: Checkpoint | None = None,
) -> TrainedMember:
    """Maximise (T1); ``monitor`` is called after every step, with the held-out NLPD where it was computed,
    and there ``observe`` with what has been reached.

    An interrupt ends the training and keeps the best state. With a checkpoint the training is put down there at
    every look, and taken up.
    """
    loop = _Loop(member, rows, settings, streams)
    result = loop.result
    checkpoint = checkpoint or Checkpoint()
    saved = checkpoint.get(_STATE)
    if saved is not None:
        loop.take_up(saved)
    try:
        for step in range(result.steps + 1, settings.max_steps + 1):
            loop.step(step)
            result.steps = step
            watched = None
            if step % _CHECK_EVERY == 0 or step == settings.max_steps:
                watched = loop.check()
                if not math.isfinite(watched):
                    result.message = f"the objective left the range of floating-point numbers at step {step}"
                    break
            monitor(watched)
            if watched is not None:
                observe(result)
            if settings.patience is not None and step - result.best_step >= settings.patience:
                result.message = f"no better held-out density for {settings.patience} steps"
                break
            if watched is not None:
                checkpoint.put(_STATE, loop.put_down)
        else:
            result.message = f"all {settings.max_steps} steps taken"
    except NumericalError:
        result.message = f"the objective left the range of floating-point numbers after step {result.steps}"
    except KeyboardInterrupt:
        result.interrupted = True
        result.message = f"interrupted after {result.steps} steps"
    return result


class _Loop:
    """The moving parts of one training."""

    def __init__(self, member: RevisedMap, rows: TrainingRows, settings: MemberSettings, streams: Streams) -> None:
        self.member, self.rows, self.settings = member, rows, settings
        device = rows.x.device
        sizes = member.sizes
        self.decoder = GaussianMixtureNet(
            sizes.latent, sizes.inputs, 1, _DECODER_HIDDEN, generator=torch_generator(streams, "decoder")
        ).to(device)
        self.log_var = torch.nn.Parameter(
            torch.full((sizes.latent,), _START_LOG_VAR, dtype=torch.float32, device=device)
        )
        kernel = (member.log_lengthscale, member.log_signal, member.log_noise, member.mean)
        for parameter in kernel:
            parameter.requires_grad_(settings.learn_kernel)
        trained = [p for p in (*member.parameters(), *self.decoder.parameters(), self.log_var) if p.requires_grad]
        self.trained = trained
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=_LEARNING_RATE, fused=True)
        self.average = copy.deepcopy(member).requires_grad_(False)
        self.batches = streams.generator("batches")
        self.context = streams.generator("context")
        self.masks = torch_generator(streams, "dropout")
        self.noise = torch_generator(streams, "latent noise")
        self.held_x = rows.x[rows.held_out]
        self.held_y = rows.y[rows.held_out].double().cpu().numpy()
        self.result = TrainedMember()
        self.began = time.perf_counter()
        self.evidence: Tensor
        self.terms: ElboTerms

    def put_down(self) -> Saved:
        """All that the next step depends on."""
        state = self._state()
        tensors = {**state.tensors(), "log_var": self.log_var.detach().clone()}
        if self.result.map is not None:
            tensors |= {f"best.{name}": value.clone() for name, value in self.result.map.state_dict().items()}
        terms = {name: float(getattr(self.terms, name).detach()) for name in _TERMS}
        about = {"seconds": time.perf_counter() - self.began, "terms": terms, **state.info()}
        return tensors, {**about, "result": self.result.summary()}

    def take_up(self, saved: Saved) -> None:
        """What :meth:`put_down` gave."""
        tensors, info = saved
        self._state().restore(tensors, info)
        with torch.no_grad():
            self.log_var.copy_(tensors["log_var"])
        self.result.take_up(info["result"], self.average, part(tensors, "best"))
        terms = {name: torch.tensor(value) for name, value in info["terms"].items()}
        self.terms = ElboTerms(**terms, alpha=self.settings.alpha, beta=self.settings.beta)
        self.began = time.perf_counter() - float(info["seconds"])

    def _state(self) -> TrainingState:
        modules = {"member": self.member, "average": self.average, "decoder": self.decoder}
        draws = {"batches": self.batches, "context": self.context}
        return TrainingState(modules, self.optimiser, draws, {"masks": self.masks, "noise": self.noise})

    def step(self, step: int) -> None:
        """One step of Adam on a fresh batch."""
        settings = self.settings
        index = self.rows.draw(settings.batch_size, self.batches)
        x, y = self.rows.x[index], self.rows.y[index]
        encoded: Encoded = self.member(x, dropout=settings.dropout, generator=self.masks)
        evidence = batch_log_evidence(self.member, encoded, y) / len(x)
        loss = -evidence
        if (step - 1) % _ELBO_EVERY == 0:  # for the history also where its weight is zero
            self.terms = self._elbo(x, encoded)
            if settings.elbo_weight:
                loss = loss - _ELBO_EVERY * settings.elbo_weight * self.terms.objective
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.trained, _LONGEST_GRADIENT)
        for group in self.optimiser.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, settings.max_steps)
        self.optimiser.step()
        self.member.limit()
        with torch.no_grad():
            # The average forgets the start quickly, then averages over the last fifty steps or so.
            share = 1.0 - min(_AVERAGE, step / (9.0 + step))
            torch._foreach_lerp_(list(self.average.parameters()), list(self.member.parameters()), share)
        self.evidence = evidence.detach()

    def check(self) -> float:
        """Score the averaged network on the held-out rows, note everything, keep it if it is the best so far."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.average.parameters()):
            return math.nan
        found = self._held_out()
        _, nlpd = noise_scale(self.held_y, found.mean, found.variance, found.noise)
        rmse = float(np.sqrt(np.mean((self.held_y - found.mean) ** 2)))
        self._note(nlpd, rmse)
        if nlpd < self.result.nlpd:
            # A new object, so that an interrupt finds either the old state or the new one, never a blend.
            self.result.map = copy.deepcopy(self.average)
            self.result.nlpd, self.result.best_step = nlpd, self.result.steps
        return nlpd

    def _held_out(self) -> HeldOut:
        """Predictions of the averaged network at the held-out rows, given many training rows."""
        params = self.average.parameters_now()
        if self.average.sizes.width > _WIDE:
            # With so many features, the kernel matrix of fewer rows is the smaller one.
            index = self.rows.draw(_WIDE_CONTEXT_ROWS, self.context)
            with torch.no_grad():
                context, held = self.average(self.rows.x[index]), self.average(self.held_x)
                return HeldOut.of(*batch_predict(params, context, self.rows.y[index], held))
        index = self.rows.draw(_CONTEXT_ROWS, self.context)
        chunks = [index[start : start + _CHUNK_ROWS] for start in range(0, len(index), _CHUNK_ROWS)]
        pairs = ((self.rows.x[chunk], self.rows.y[chunk]) for chunk in chunks)
        stats = map_statistics(self.average, pairs, len(params.mean))
        return Expert.of("check", self.average, params, stats).held_out(self.held_x)

    def _note(self, nlpd: float, rmse: float) -> None:
        prior = self.average.prior
        with torch.no_grad():
            latent = self.average(self.held_x).latent
            found = prior.log_joint(latent).argmax(-1)
            sizes = torch.bincount(found, minlength=self.average.sizes.components).tolist()
            radius, nearest = float(prior.log_radius.exp()), float(prior.nearest_centres())
        entry = {"step": self.result.steps, "seconds": time.perf_counter() - self.began}
        entry |= {"evidence": float(self.evidence), **self.terms.as_floats()}
        entry |= {"validation_nlpd": nlpd, "validation_rmse": rmse, "radius": radius, "smallest_separation": nearest}
        if np.isfinite(list(entry.values())).all():  # the history is for numbers
            for name, value in {**entry, "cluster_sizes": sizes}.items():
                self.result.history.setdefault(name, []).append(value)

    def _elbo(self, x: Tensor, encoded: Encoded) -> ElboTerms:
        mean = encoded.latent[:_ELBO_ROWS, None]
        log_weights = mean.new_zeros(len(mean), 1)
        noise = torch.randn(mean.shape, generator=self.noise, dtype=torch.float32).to(mean)
        return elbo_terms(
            limited(x[: len(mean)]),
            GaussianMixture(log_weights, mean, self.log_var.expand_as(mean)),
            self.decoder,
            self.member.prior,
            noise,
            alpha=self.settings.alpha,
            beta=self.settings.beta,
        )


def _schedule(step: int, max_steps: int) -> float:
    """Share of the learning rate at a step."""
    return min(1.0, step / _WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * (step - 1) / max_steps))


def held_out_rows(x: AnyArray, fraction: float, most: int, rng: np.random.Generator) -> Indices:
    """Sorted indices of a random share of the rows of x, (n, d).

    Rows with the same inputs stay together: a copy among the training rows would make the held-out density that of
    memorised rows.
    """
    n = len(x)
    count = min(max(1, round(fraction * n)), most, n - 1)
    _, group, sizes = np.unique(_row_hashes(x), return_inverse=True, return_counts=True)
    if len(sizes) == n:
        return np.sort(rng.choice(n, count, replace=False))
    order = rng.permutation(len(sizes))
    total = np.cumsum(sizes[order])
    # As many groups as fit, and at least one; never all of them.
    chosen = order[: min(max(1, int(np.searchsorted(total, count, side="right"))), len(sizes) - 1)]
    held = np.flatnonzero(np.isin(group, chosen))
    return held if len(held) else np.sort(rng.choice(n, count, replace=False))


def _row_hashes(x: AnyArray) -> npt.NDArray[np.uint64]:
    """A number for each row that is the same for rows with the same values."""
    from pandas.util import hash_array  # to train, not to predict

    hashes = np.zeros(len(x), dtype=np.uint64)
    for column in range(x.shape[1]):
        values = np.ascontiguousarray(x[:, column], dtype=np.float64) + 0.0  # -0.0 is 0.0
        hashes = hash_array(values.view(np.uint64) ^ (hashes * np.uint64(0x9E3779B97F4A7C15)))
    return hashes
