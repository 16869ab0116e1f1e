"""What the authors' released code does: auto-encoder and SSGP trained together, with the labels.

The loss of a batch of n rows, with ``phi`` the features of the reconstructed inputs and ``s`` the noise's standard
deviation,

- (T2) ``loss = -0.01 ELBO + n/2 log(2 pi) + n log s + |y - m - phi w|^2 / (2 s^2)``,
  ``w = (phi'phi + s^2 I)^-1 phi'(y - m)``,

is no likelihood: the log-determinant and the penalty of the weights are missing. The ELBO (R9) is an average over the
rows, the rest is a sum. Frequencies are uniform on [0, 1), not normal, so the kernel is not Gaussian; the signal
variance is one. Adam at its defaults, gradients clipped at 10, and the state after the last step is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prismgp._system import Streams
from prismgp._types import AnyArray, Array, Tensor
from prismgp.context import FitContext
from prismgp.core.features import spectral_features
from prismgp.core.kernels import Parameters
from prismgp.data import StandardisedRows
from prismgp.prism.experts import Expert, Mixture
from prismgp.prism.maps import PlainMap, ReconfiguredMap, collect_statistics
from prismgp.vae import (
    TRAINING_ROWS,
    BatchRows,
    ReleasedVAE,
    TrainingResult,
    TrainingState,
    TrainingTask,
    draw_rows,
    run_training,
    torch_generator,
)

PASSES, PASS_BATCHES = 101, 51  # passes, of at most so many batches each
_ELBO_WEIGHT = 0.01
_CLIP = 10.0
_DRAWS, _ELBO_DRAWS = 10, 5  # of z, for the SSGP and for the ELBO
_MOMENT_ROWS = 65_536  # whose moments batch norm uses at prediction


@dataclass(frozen=True)
class ReleasedSettings:
    """The names are those of the estimator's parameters."""

    n_frequencies: int
    n_components: int
    latent_dim: int
    hidden: int
    output: str
    batch_size: int
    max_steps: int


class ReleasedModel(torch.nn.Module):
    """The auto-encoder, and what the SSGP learns: length-scales ``exp(w / 2)``, log noise deviations, means."""

    frequencies: Tensor  # (columns, p)

    def __init__(self, n_inputs: int, n_outputs: int, settings: ReleasedSettings, streams: Streams) -> None:
        super().__init__()
        generator = torch_generator(streams, "initial networks")
        sizes = (settings.n_components, settings.latent_dim, settings.hidden)
        self.vae = ReleasedVAE(n_inputs, *sizes, generator=generator)
        self.output = settings.output
        columns = settings.latent_dim if self.output == "latent" else n_inputs
        draws = streams.generator("frequencies")
        self.register_buffer("frequencies", torch.as_tensor(draws.random((columns, settings.n_frequencies))).float())
        self.log_square_scale = torch.nn.Parameter(torch.as_tensor(draws.standard_normal(columns)).float())
        self.log_noise_std = torch.nn.Parameter(torch.zeros(n_outputs))
        self.mean = torch.nn.Parameter(torch.zeros(n_outputs))

    def features(self, z: Tensor) -> Tensor:
        """Of rows as the auto-encoder encodes them, (n, L): (n, 2p)."""
        seen = z if self.output == "latent" else self.vae.reconstruct(z)
        return spectral_features(seen, self.frequencies * torch.exp(-0.5 * self.log_square_scale)[:, None])

    def negative_fit(self, phi: Tensor, y: Tensor) -> Tensor:
        """The loss T2 without the ELBO, of targets (n, q), summed over outputs."""
        centred, variance = y - self.mean, torch.exp(2.0 * self.log_noise_std)
        eye = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
        matrix = phi.T @ phi + variance[:, None, None] * eye  # (q, 2p, 2p)
        weights = torch.linalg.solve(matrix, (phi.T @ centred).T.unsqueeze(-1)).squeeze(-1)  # (q, 2p)
        squares = (centred - phi @ weights.T).square().sum(0)
        constant = 0.5 * len(y) * math.log(2.0 * math.pi)
        total: Tensor = (constant + len(y) * self.log_noise_std + 0.5 * squares / variance).sum()
        return total

    def parameters_now(self) -> Parameters:
        """Of the SSGP, as the library has them."""
        scale, noise, mean = (
            each.detach().double().cpu().numpy() for each in (self.log_square_scale, self.log_noise_std, self.mean)
        )
        return Parameters(0.5 * scale, np.zeros_like(noise), 2.0 * noise, mean)

    def finish(self, x: Tensor) -> ReleasedModel:
        """A copy in float64 for predictions, whose batch norm has the moments of rows x."""
        twin = copy.deepcopy(self).double().requires_grad_(False)
        twin.vae.set_moments(x.double())
        return twin.eval()


class ReleasedTraining(TrainingTask):
    """Training on T2. No rows are held out, and the last state is kept: checks only record."""

    model: ReleasedModel
    patience = None
    criterion = "number of steps"

    # The same shape as VAETraining: both declare what the loop asks of a task, with other values.
    def __init__(
        self,
        model: ReleasedModel,
        x: BatchRows,
        y: BatchRows,
        settings: ReleasedSettings,
        streams: Streams,
        weight: AnyArray | None = None,
    ) -> None:
        self.model, self.x, self.y, self.settings, self.weight = model, x, y, settings, weight
        self.max_steps, self.check_every = settings.max_steps, max(1, math.ceil(len(x) / settings.batch_size))
        self.held_out = np.zeros(0, dtype=np.int64)
        self.optimiser = torch.optim.Adam(model.parameters())
        self.batches, self.noise = streams.generator("batches"), torch_generator(streams, "noise")
        self._steps, self._loss, self._elbo = 0.0, math.nan, math.nan

    def state(self) -> TrainingState:
        return TrainingState({"released": self.model}, self.optimiser, {"batches": self.batches}, {"noise": self.noise})

    def step(self, number: int) -> None:
        """Take a step of Adam on a new batch."""
        model = self.model.train()
        drawn = draw_rows(len(self.x), self.held_out, self.settings.batch_size, self.batches, self.weight)
        x, y = self.x[drawn], self.y[drawn]
        elbo = model.vae.elbo(x, *self._draws(_ELBO_DRAWS, len(x)), alpha=1.0, beta=1.0)
        components, noise = self._draws(_DRAWS, len(x))
        means, log_vars = model.vae.encoder(x)
        z = model.vae.draw(means, log_vars, components, noise).mean(0)
        loss = model.negative_fit(model.features(z), y) - _ELBO_WEIGHT * elbo
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_value_(model.parameters(), _CLIP)
        self.optimiser.step()
        self._steps, self._loss, self._elbo = float(number), float(loss.detach()) / len(x), float(elbo.detach())

    def check(self) -> tuple[float, dict[str, Any]]:
        """Record the last batch; the value grows with the steps, so that the last state is the one to keep."""
        value = self._steps if math.isfinite(self._loss) else math.nan
        return value, {"loss": self._loss, "objective": self._elbo}

    def _draws(self, count: int, rows: int) -> tuple[Tensor, Tensor]:
        """Components, one for each draw, and the noise of the draws."""
        chances = self.model.vae.probabilities().float().cpu()
        components = torch.multinomial(chances, count, replacement=True, generator=self.noise)
        shape = (count, rows, self.model.vae.encoder.offsets.shape[-1])
        noise = torch.randn(shape, generator=self.noise, dtype=torch.float32)
        return components.to(self.x.device), noise.to(self.x.device)


def fit_released(
    rows: StandardisedRows, settings: ReleasedSettings, streams: Streams, context: FitContext
) -> tuple[Mixture, TrainingResult]:
    """Train, and compute the posterior on all rows at the parameters of the last step."""
    s, device = rows.standardiser, rows.device
    sample = rows.sample(TRAINING_ROWS, streams.generator("training rows"))
    x = BatchRows(sample.x, s.x_shift, s.x_scale, dtype=torch.float32, device=device)
    y = BatchRows(sample.targets, s.y_shift, s.y_scale, dtype=torch.float32, device=device)
    model = ReleasedModel(rows.n_inputs, rows.n_outputs, settings, streams).to(device)
    weight = None if sample.noise is None else sample.noise[:, 0]

    def as_mixture(trained: ReleasedModel) -> Mixture:
        done = trained.finish(x[slice(_MOMENT_ROWS)])
        params = done.parameters_now()
        frequencies: Array = done.frequencies.T.cpu().numpy()
        plain = PlainMap.of(frequencies, params, dtype=rows.dtype)
        columns = len(params.log_lengthscale)
        shift, scale = torch.zeros(columns, dtype=torch.float64), torch.ones(columns, dtype=torch.float64)
        feature_map = ReconfiguredMap(done.vae, settings.output, shift, scale, plain).to(device)
        stats = collect_statistics(rows, feature_map, params, 2 * settings.n_frequencies)
        return Mixture.from_expert(Expert.of("released", feature_map, params, stats))

    def observe(now: Sequence[TrainingResult]) -> None:
        context.report("members", rows.n_rows, lambda: as_mixture(model), iteration=now[0].steps)

    def show(values: Sequence[float]) -> None:
        if values:
            part.bar.set_postfix_str(f"loss per row {task._loss:.3f}", refresh=False)
        part.bar.update()

    task = ReleasedTraining(model, x, y, settings, streams, weight)
    with context.part("networks", "networks", unit="step", total=settings.max_steps) as part:
        (result,) = run_training(task, monitor=show, observe=observe, checkpoint=part.checkpoint, ending=context.ending)
    return as_mixture(model if result.best is None else result.best), result
