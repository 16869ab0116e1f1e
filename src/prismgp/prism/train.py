"""Training of one member: evidence of mini-batches plus a weighted augmented ELBO, checked on held-out rows.

What is maximised, per row of a batch,

- (T1) ``log p(Y_batch) / n + elbo_weight * (reconstruction - KL - alpha KL + beta separation)``,

the evidence (B1) of a new random batch, and the objective R5 of the re-configuration on some rows of it. The
evidence of all rows at once would be the wrong objective for a network: it rewards features that have
memorised the rows. A batch has to be explained by features made from other rows.

A check gives the averaged network the exact posterior of many training rows, and measures the negative log predictive
density (NLPD) of the held-out rows, with the noise that is best for them. The best network is kept.

All random numbers are drawn on the CPU, from streams of the member's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from prismgp._system import Streams
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.ending import Ending
from prismgp.core.features import accumulate_features
from prismgp.core.row_noise import RowNoise
from prismgp.prism.experts import Expert
from prismgp.prism.network import (
    NetworkOutput,
    NetworkSizes,
    RevisedMap,
    batch_log_evidence,
    batch_predict,
    clip_inputs,
)
from prismgp.prism.stacking import HeldOut, average, noise_scale
from prismgp.vae import (
    BatchRows,
    ElboTerms,
    GaussianMixture,
    GaussianMixtureNet,
    Indices,
    TrainingState,
    TrainingTask,
    draw_rows,
    elbo_terms,
    torch_generator,
)

_LEARNING_RATE = 1e-2
_WEIGHT_DECAY = 0.01
_WARM_UP = 50  # steps over which the learning rate rises; then it falls to zero like half a cosine
_LONGEST_GRADIENT = 10.0
_AVERAGE = 0.98  # share of the past in the running average of the weights
_CONTEXT_ROWS = 8_192  # training rows behind the posterior of a check
_WIDE_CONTEXT_ROWS = 2_048  # the same for wide features
_ELBO_ROWS = 128  # rows of a batch that enter the ELBO, whose weight is small
_ELBO_EVERY = 8  # steps; it then counts eight times
_DECODER_HIDDEN = 32
_CHUNK_ROWS = 2_048
_START_LOG_VAR = -4.0  # of the encoder's posterior


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
    """Inputs and targets by index, standardised, and the rows held out."""

    x: BatchRows
    y: BatchRows
    held_out: Indices  # sorted
    noise: Array | None = None  # noise columns in the model's units, (n, 1) or (n, 2), where rows differ

    def row_noise(self, index: Indices) -> RowNoise | None:
        """Of the rows of these indices."""
        if self.noise is None:
            return None
        return RowNoise.split(torch.as_tensor(self.noise[index], device=self.x.device), 0)[1]

    def draw(self, count: int, rng: np.random.Generator) -> Indices:
        """Draw distinct training rows in random order."""
        return draw_rows(len(self.x), self.held_out, count, rng)


class MemberTraining(TrainingTask):
    """Training of one member, which is changed, on (T1); checks measure the NLPD of the held-out rows."""

    model: RevisedMap
    check_every = 25
    criterion = "held-out density"
    wide = 1_024  # features above which a check uses the kernel matrix of fewer rows instead of the features' moments

    def __init__(
        self,
        member: RevisedMap,
        rows: TrainingRows,
        settings: MemberSettings,
        streams: Streams,
        ending: Ending | None = None,
    ) -> None:
        ending = ending or Ending()
        self.member, self.rows, self.settings, self.held_out = member, rows, settings, rows.held_out
        self.max_steps, self.patience = settings.max_steps, settings.patience
        self.elbo = _Elbo(member.sizes, torch_generator(streams, "decoder")).to(rows.x.device)
        for parameter in (member.log_lengthscale, member.log_signal, member.log_noise, member.mean):
            parameter.requires_grad_(settings.learn_kernel)
        candidates = (*member.parameters(), *self.elbo.decoder.parameters(), self.elbo.log_var)
        self.trained = [parameter for parameter in candidates if parameter.requires_grad]
        groups = [
            {"params": [p for p in self.trained if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in self.trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=_LEARNING_RATE, fused=True)
        self.schedule = LambdaLR(
            self.optimiser, lambda done: _learning_rate(done + 1, settings.max_steps, ending.share)
        )
        self.average = AveragedModel(member, multi_avg_fn=_average_weights).requires_grad_(False)
        self.average.update_parameters(member)  # the initial weights are the first to be averaged
        self.model = cast(RevisedMap, self.average.module)
        self.batches = streams.generator("batches")
        self.context = streams.generator("context")
        self.masks = torch_generator(streams, "dropout")
        self.noise = torch_generator(streams, "latent noise")
        self.held_x = rows.x[rows.held_out]
        self.held_y = rows.y[rows.held_out].double().cpu().numpy()
        self.held_noise = rows.row_noise(rows.held_out)
        self.held_weights = None if self.held_noise is None else self.held_noise.weight.cpu().numpy()
        self.evidence: Tensor  # of the last batch
        self.terms: dict[str, float] = {}  # of the last ELBO

    def state(self) -> TrainingState:
        return TrainingState(
            {"member": self.member, "average": self.average, "elbo": self.elbo},
            self.optimiser,
            {"batches": self.batches, "context": self.context},
            {"masks": self.masks, "noise": self.noise},
            self.schedule,
            self.terms,
        )

    def step(self, number: int) -> None:
        """Take a step of Adam on a new batch."""
        settings = self.settings
        index = self.rows.draw(settings.batch_size, self.batches)
        x, y = self.rows.x[index], self.rows.y[index]
        output: NetworkOutput = self.member(x, dropout=settings.dropout, generator=self.masks)
        evidence = batch_log_evidence(self.member, output, y, self.rows.row_noise(index)) / len(x)
        loss = -evidence
        if (number - 1) % _ELBO_EVERY == 0:  # for the history also where its weight is zero
            terms = self._elbo_terms(x, output)
            self.terms.update(terms.as_floats())
            if settings.elbo_weight:
                loss = loss - _ELBO_EVERY * settings.elbo_weight * terms.objective
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.trained, _LONGEST_GRADIENT)
        self.optimiser.step()
        self.schedule.step()
        self.member.limit()
        self.average.update_parameters(self.member)
        self.evidence = evidence.detach()

    def check(self) -> tuple[float, dict[str, Any]]:
        """Compute the NLPD of the averaged network at the held-out rows."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters()):
            return math.nan, {}
        found = self._predict_held_out().at_rows(self.held_noise)
        _, nlpd = noise_scale(self.held_y, found, self.held_weights)
        rmse = float(np.sqrt(average((self.held_y - found.mean) ** 2, self.held_weights)))
        with torch.no_grad():
            clusters = self.model.prior.describe(self.model(self.held_x).latent)
        entries = {"evidence": float(self.evidence), **self.terms, "validation_nlpd": nlpd, "validation_rmse": rmse}
        return nlpd, {**entries, **clusters}

    def _predict_held_out(self) -> HeldOut:
        """Predict the held-out rows by the averaged network, given many training rows."""
        params = self.model.parameters_now()
        if self.model.sizes.width > self.wide:
            # With so many features, the kernel matrix of fewer rows is the smaller one.
            index = self.rows.draw(_WIDE_CONTEXT_ROWS, self.context)
            with torch.no_grad():
                context, held = self.model(self.rows.x[index]), self.model(self.held_x)
                noise = self.rows.row_noise(index)
                return HeldOut.of(*batch_predict(params, context, self.rows.y[index], held, noise))
        index = self.rows.draw(_CONTEXT_ROWS, self.context)
        chunks = [index[start : start + _CHUNK_ROWS] for start in range(0, len(index), _CHUNK_ROWS)]
        encoded = ((*self.model.features(self.rows.x[chunk]), self._targets(chunk)) for chunk in chunks)
        stats = accumulate_features(encoded, len(params.mean), float(params.noise[0]))
        return Expert.of("check", self.model, params, stats).held_out(self.held_x)

    def _targets(self, index: Indices) -> Tensor:
        """Targets with the noise columns of the rows behind them."""
        y, noise = self.rows.y[index], self.rows.row_noise(index)
        return y if noise is None else torch.cat([y.double(), noise.columns], 1)

    def _elbo_terms(self, x: Tensor, output: NetworkOutput) -> ElboTerms:
        """Compute R5 on the first rows of a batch, with one Gaussian ``q(z | x)`` about the latent input."""
        mean = output.latent[:_ELBO_ROWS, None]
        noise = torch.randn(mean.shape, generator=self.noise, dtype=torch.float32).to(mean)
        return elbo_terms(
            clip_inputs(x[: len(mean)]),
            GaussianMixture(mean.new_zeros(len(mean), 1), mean, self.elbo.log_var.expand_as(mean)),
            self.elbo.decoder,
            self.member.prior,
            noise,
            alpha=self.settings.alpha,
            beta=self.settings.beta,
        )


class _Elbo(torch.nn.Module):
    """What the ELBO needs beside the member: a decoder, and the variances of ``q(z | x)``, the same for all rows."""

    def __init__(self, sizes: NetworkSizes, generator: torch.Generator) -> None:
        super().__init__()
        self.decoder = GaussianMixtureNet(sizes.latent, sizes.inputs, 1, _DECODER_HIDDEN, generator=generator)
        self.log_var = torch.nn.Parameter(torch.full((sizes.latent,), _START_LOG_VAR, dtype=torch.float32))


def _learning_rate(step: int, max_steps: int, time_share: float = 0.0) -> float:
    """Share of the learning rate at a step, counted from one; a time limit makes it fall sooner."""
    angle = max(math.pi * (step - 1) / max_steps, math.pi * time_share)
    return min(1.0, step / _WARM_UP) * 0.5 * (1.0 + math.cos(angle))


def _average_weights(average: Any, weights: Any, count: Tensor | int) -> None:
    """Update a running average in place; it forgets the start quickly, then averages over some fifty steps."""
    share = 1.0 - min(_AVERAGE, int(count) / (9.0 + int(count)))
    torch._foreach_lerp_(average, weights, share)


def held_out_rows(x: AnyArray, fraction: float, most: int, rng: np.random.Generator) -> Indices:
    """Choose a random share of the rows of x, (n, d); their indices, sorted.

    Rows with the same inputs stay together: a copy among the training rows would make the held-out density that of
    memorised rows.
    """
    n = len(x)
    count = min(max(1, round(fraction * n)), most, n - 1)
    _, group, sizes = np.unique(_hash_rows(x), return_inverse=True, return_counts=True)
    if len(sizes) == n:
        return np.sort(rng.choice(n, count, replace=False))
    order = rng.permutation(len(sizes))
    total = np.cumsum(sizes[order])
    # As many groups as fit, and at least one; never all of them.
    chosen = order[: min(max(1, int(np.searchsorted(total, count, side="right"))), len(sizes) - 1)]
    held = np.flatnonzero(np.isin(group, chosen))
    return held if len(held) else np.sort(rng.choice(n, count, replace=False))


def _hash_rows(x: AnyArray) -> npt.NDArray[np.uint64]:
    """Compute a number for each row that is the same for rows with the same values."""
    from pandas.util import hash_array  # slow to import, and predictions do not need it

    hashes = np.zeros(len(x), dtype=np.uint64)
    for column in range(x.shape[1]):
        values = np.ascontiguousarray(x[:, column], dtype=np.float64) + 0.0  # -0.0 is 0.0
        hashes = hash_array(values.view(np.uint64) ^ (hashes * np.uint64(0x9E3779B97F4A7C15)))
    return hashes
