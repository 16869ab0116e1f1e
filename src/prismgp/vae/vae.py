"""The mixture variational auto-encoder and its training: Adam on mini-batches, checked on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from prismgp._random import Streams
from prismgp._types import Array, Tensor
from prismgp.context import Checkpoint
from prismgp.vae.elbo import ElboTerms, elbo_terms
from prismgp.vae.networks import GaussianMixture, GaussianMixtureNet, MixturePrior
from prismgp.vae.training import (
    Indices,
    Monitor,
    Rows,
    TrainingResult,
    TrainingState,
    TrainingTask,
    draw_rows,
    run_training,
    torch_generator,
)

__all__ = ["MixtureVAE", "VAETraining", "train"]

_MATCH = 4.0  # log odds, at its cluster's centre, of a decoder component against one a right angle away
_HELD_OUT = 10  # one row in so many
_MOST_HELD_OUT = 2_048


class MixtureVAE(torch.nn.Module):
    """Prior, encoder and decoder.

    Parameters
    ----------
    n_inputs : int
    n_components : int
        Of the prior, the encoder and the decoder (the paper's b = k).
    latent_dim, hidden : int
    generator : torch.Generator, optional
        Of the initial parameters.
    directions : ndarray, (b, L), optional
        Of the prior's centres, where they are known.
    """

    def __init__(
        self,
        n_inputs: int,
        n_components: int,
        latent_dim: int,
        hidden: int,
        *,
        generator: torch.Generator | None = None,
        directions: Array | None = None,
    ) -> None:
        super().__init__()
        self.prior = MixturePrior(n_components, latent_dim, directions=directions)
        self.encoder = GaussianMixtureNet(n_inputs, latent_dim, n_components, hidden, generator=generator)
        self.decoder = GaussianMixtureNet(latent_dim, n_inputs, n_components, hidden, generator=generator)
        self._match_components()

    @torch.no_grad()
    def _match_components(self) -> None:
        """Start component j of the encoder at cluster j of the prior, and use component j of the decoder there.

        From a random start the decoder, a mixture itself, tends to explain clusters of the data on its
        own. Then z need not encode the cluster of a row, and the encoder never learns it.
        """
        centres = self.prior.centres()
        self.encoder.mean_bias.add_(centres.unsqueeze(1))
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


def train(
    vae: MixtureVAE,
    rows: Rows,
    streams: Streams,
    *,
    alpha: float,
    beta: float,
    batch_size: int,
    max_steps: int,
    patience: int | None,
    columns: Tensor | None = None,
    monitor: Monitor | None = None,
    observe: Callable[[TrainingResult], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> TrainingResult:
    """Maximise R5 and leave the best state in ``vae``.

    Parameters
    ----------
    vae : MixtureVAE
        On the device and in the precision of ``rows``.
    rows : Rows
    streams : Streams
        Source of all random numbers.
    alpha, beta : float
    batch_size : int
    columns : Tensor, (d,), optional
        Ones for the columns to reconstruct.
    max_steps, patience, monitor, observe, checkpoint
        See :func:`run_training`; checks measure the objective on held-out rows.
    """
    task = VAETraining(vae, rows, streams, alpha=alpha, beta=beta, batch_size=batch_size, columns=columns)
    start = {name: value.clone() for name, value in vae.state_dict().items()}
    result = run_training(
        task,
        TrainingResult(held_out_rows=len(task.held_out)),
        max_steps=max_steps,
        patience=patience,
        monitor=monitor,
        observe=observe,
        checkpoint=checkpoint,
    )
    vae.load_state_dict(start if result.best is None else result.best.state_dict())
    vae.eval()
    return result


class VAETraining(TrainingTask):
    """Training of a mixture VAE on the objective R5; the parameters are those of :func:`train`."""

    model: MixtureVAE
    learning_rate = 1e-3  # torch's default for Adam, as in the paper
    check_every = 50
    check_start = True
    higher_is_better = True
    criterion = "objective on held-out rows"

    def __init__(
        self,
        vae: MixtureVAE,
        rows: Rows,
        streams: Streams,
        *,
        alpha: float,
        beta: float,
        batch_size: int,
        columns: Tensor | None,
    ) -> None:
        self.model, self.rows, self.columns = vae, rows, columns
        self.alpha, self.beta, self.batch_size = alpha, beta, batch_size
        self.optimiser = torch.optim.Adam(vae.parameters(), lr=self.learning_rate)
        self.batches = streams.generator("batches")
        self.noise = torch_generator(streams, "noise")
        n = len(rows)
        count = n // _HELD_OUT
        self.held_out = np.sort(streams.generator("held-out").choice(n, min(count, _MOST_HELD_OUT), replace=False))
        # Rows in random order: the estimate of q(z) compares with the first of them.
        checked = self.held_out if count else self._draw(min(n, _MOST_HELD_OUT))
        self.checked = streams.generator("watched").permutation(checked)
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
            nearest_cluster = vae.prior.log_joint(vae.encode(x)).argmax(-1)
            sizes = torch.bincount(nearest_cluster, minlength=len(vae.prior.log_widths)).tolist()
            radius, separation = float(vae.prior.log_radius.exp()), float(vae.prior.nearest_centres())
        entries: dict[str, Any] = self.terms.as_floats()
        if not np.isfinite([objective, *entries.values()]).all():
            return math.nan, {}
        entries |= {"held_out_objective": objective, "radius": radius, "smallest_separation": separation}
        return objective, {**entries, "cluster_sizes": sizes}

    def _batch_terms(self) -> ElboTerms:
        x = self.rows[self._draw(self.batch_size)]
        return self._compute_terms(x, self._draw_noise(len(x), self.noise))

    def _compute_terms(self, x: Tensor, noise: Tensor) -> ElboTerms:
        return elbo_terms(
            x,
            self.model.encoder(x),
            self.model.decoder,
            self.model.prior,
            noise,
            alpha=self.alpha,
            beta=self.beta,
            columns=self.columns,
        )

    def _draw(self, count: int) -> Indices:
        return draw_rows(len(self.rows), self.held_out, count, self.batches)

    def _draw_noise(self, count: int, generator: torch.Generator) -> Tensor:
        k, latent_dim = self.model.prior.directions.shape
        return torch.randn(count, k, latent_dim, generator=generator, dtype=self.rows.dtype).to(self.rows.device)
