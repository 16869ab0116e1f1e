"""The mixture variational auto-encoder, trained without labels: Adam on mini-batches, checked on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import AnyArray, Array, Indices, Tensor
from prismgp.context import FitContext
from prismgp.data import StandardisedRows
from prismgp.vae.elbo import ElboTerms, elbo_terms
from prismgp.vae.networks import GaussianMixture, GaussianMixtureNet, MixturePrior
from prismgp.vae.training import (
    BatchRows,
    TrainingResult,
    TrainingState,
    TrainingTask,
    draw_rows,
    run_training,
    torch_generator,
)

# Networks are trained on all rows up to this number, else on a uniform random sample of this size. Batches drawn from
# the sample are uniform random subsets of all rows, each by itself; together they differ from draws from all rows in
# that rows come back once a network has seen as many as the sample holds.
TRAINING_ROWS = 2**19
_MATCH = 4.0  # log odds, at its cluster's centre, of a decoder component against one a right angle away
_HELD_OUT = 10  # one row in so many
_MOST_HELD_OUT = 2_048


@dataclass(frozen=True)
class VAESettings:
    """How the networks are built and trained; the names are those of the estimator's parameters."""

    n_components: int
    latent_dim: int
    hidden: int
    alpha: float
    beta: float
    batch_size: int
    max_steps: int
    patience: int | None


class MixtureVAE(torch.nn.Module):
    """Prior, encoder and decoder, all of ``n_components`` components (the paper's b = k)."""

    def __init__(
        self,
        n_inputs: int,
        n_components: int,
        latent_dim: int,
        hidden: int,
        *,
        generator: torch.Generator,
        directions: Array | None = None,
    ) -> None:
        super().__init__()
        self.prior = MixturePrior(n_components, latent_dim, directions=directions)
        self.encoder = GaussianMixtureNet(n_inputs, latent_dim, n_components, hidden, generator=generator)
        self.decoder = GaussianMixtureNet(latent_dim, n_inputs, n_components, hidden, generator=generator)
        self._match_components()

    @property
    def latent_dim(self) -> int:
        return int(self.prior.directions.shape[1])

    @torch.no_grad()
    def _match_components(self) -> None:
        """Start component j of the encoder at cluster j of the prior, and use component j of the decoder there.

        From a random start the decoder, a mixture itself, tends to explain clusters of the data on its
        own. Then z need not encode the cluster of a row, and the encoder never learns it.
        """
        self.encoder.mean_bias.add_(self.prior.centres().unsqueeze(1))
        self.decoder.mixing_weight.copy_(_MATCH * self.prior.directions / self.prior.log_radius.exp())
        self.decoder.mixing_bias.zero_()

    def encode(self, x: Tensor) -> Tensor:
        """Mean of ``q(z | x)``, (n, L)."""
        posterior: GaussianMixture = self.encoder(x)
        return posterior.mean_of_mixture()

    def reconstruct(self, z: Tensor) -> Tensor:
        """Mean of ``p(x | z)``, (n, d)."""
        likelihood: GaussianMixture = self.decoder(z)
        return likelihood.mean_of_mixture()


class VAETraining(TrainingTask):
    """Training of a mixture VAE on the objective R5; ``columns``, (d,), has ones for the columns to reconstruct.

    Rows are drawn in proportion to their weights, where they have any, also those of checks.
    """

    model: MixtureVAE
    learning_rate = 1e-3  # torch's default for Adam, as in the paper
    check_every = 50
    check_start = True
    criterion = "objective on held-out rows"

    # The same shape as ReleasedTraining: both declare what the loop asks of a task, with other values.
    def __init__(
        self,
        vae: MixtureVAE,
        rows: BatchRows,
        settings: VAESettings,
        streams: Streams,
        columns: Tensor,
        weight: AnyArray | None = None,
    ) -> None:
        self.model, self.rows, self.settings, self.columns, self.weight = vae, rows, settings, columns, weight
        self.max_steps, self.patience = settings.max_steps, settings.patience
        self.optimiser = torch.optim.Adam(vae.parameters(), lr=self.learning_rate)
        self.batches = streams.generator("batches")
        self.noise = torch_generator(streams, "noise")
        n = len(rows)
        count = n // _HELD_OUT
        self.held_out = np.sort(streams.generator("held-out").choice(n, min(count, _MOST_HELD_OUT), replace=False))
        # Rows in random order: the estimate of q(z) compares with the first of them. The names of streams fix the
        # random numbers, so they stay.
        checked = self.held_out if count else self._draw(min(n, _MOST_HELD_OUT))
        watched = streams.generator("watched")
        self.checked = watched.permutation(checked)
        if weight is not None:
            share = weight[checked]
            self.checked = watched.choice(checked, len(checked), p=share / share.sum())
        # The same noise at every check, so that checks differ by the state alone.
        self.checked_noise = self._draw_noise(len(self.checked), torch_generator(streams, "watched noise"))
        self.terms: ElboTerms | None = None  # of the last batch

    def state(self) -> TrainingState:
        return TrainingState({"vae": self.model}, self.optimiser, {"batches": self.batches}, {"noise": self.noise})

    def step(self, number: int) -> None:  # noqa: ARG002 - the learning rate is the same in all steps
        """Take a step of Adam on a new batch."""
        self.model.train()
        self.terms = self._batch_terms()
        self.optimiser.zero_grad(set_to_none=True)
        (-self.terms.objective).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def check(self) -> tuple[float, dict[str, Any]]:
        """Compute the objective on the held-out rows."""
        vae = self.model.eval()
        with torch.no_grad():
            if self.terms is None:  # before the first step
                self.terms = self._batch_terms()
            x = self.rows[self.checked]
            objective = float(self._compute_terms(x, self.checked_noise).objective)
            clusters = vae.prior.describe(vae.encode(x))
        terms = self.terms.as_floats()
        if not np.isfinite([objective, *terms.values()]).all():
            return math.nan, {}
        return objective, {**terms, "held_out_objective": objective, **clusters}

    def _batch_terms(self) -> ElboTerms:
        x = self.rows[self._draw(self.settings.batch_size)]
        return self._compute_terms(x, self._draw_noise(len(x), self.noise))

    def _compute_terms(self, x: Tensor, noise: Tensor) -> ElboTerms:
        return elbo_terms(
            x,
            self.model.encoder(x),
            self.model.decoder,
            self.model.prior,
            noise,
            alpha=self.settings.alpha,
            beta=self.settings.beta,
            columns=self.columns,
        )

    def _draw(self, count: int) -> Indices:
        return draw_rows(len(self.rows), self.held_out, count, self.batches, self.weight)

    def _draw_noise(self, count: int, generator: torch.Generator) -> Tensor:
        k, latent_dim = self.model.prior.directions.shape
        return torch.randn(count, k, latent_dim, generator=generator, dtype=self.rows.dtype).to(self.rows.device)


def fit_vae(
    rows: StandardisedRows, settings: VAESettings, streams: Streams, context: FitContext
) -> tuple[MixtureVAE, TrainingResult]:
    """Train the networks in float32; they are returned in float64, ready to use, at the best check.

    The block of the context is this training.
    """
    s, device = rows.standardiser, rows.device
    sample = rows.sample(TRAINING_ROWS, streams.generator("training rows"))
    x, noise = sample.x, sample.noise
    sizes = (x.shape[1], settings.n_components, settings.latent_dim, settings.hidden)
    vae = MixtureVAE(*sizes, generator=torch_generator(streams, "initial networks")).to(device)
    start = {name: value.clone() for name, value in vae.state_dict().items()}
    inputs = BatchRows(x, s.x_shift, s.x_scale, dtype=torch.float32, device=device)
    # A column that never varied need not be reconstructed.
    columns = torch.as_tensor(~s.constant_inputs, dtype=torch.float32, device=device)

    def show(values: Sequence[float]) -> None:
        if values:
            context.bar.set_postfix_str(f"objective per row {values[0]:.3f}", refresh=False)
        context.bar.update()

    with limit_blas_threads(), torch.inference_mode(False), torch.enable_grad(), context:
        task = VAETraining(vae, inputs, settings, streams, columns, None if noise is None else noise[:, 0])
        (result,) = run_training(task, monitor=show, checkpoint=context.checkpoint, ending=context.ending)
        vae.load_state_dict(start if result.best is None else result.best.state_dict())
    return vae.eval().double().requires_grad_(False), result
