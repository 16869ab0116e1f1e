"""Training of the mixture variational auto-encoder: Adam on mini-batches, with a watch on held-out rows.

Nothing here touches a global random state, and all random numbers are drawn on the CPU, so a seed means the
same batches, noise and starting values on every device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from prismgp._random import Streams
from prismgp._training_state import TrainingState, part
from prismgp._types import Array, Tensor
from prismgp.context import Checkpoint, Saved
from prismgp.vae._elbo import ElboTerms, elbo_terms
from prismgp.vae._gaussian_nets import GaussianMixture, GaussianMixtureNet
from prismgp.vae._prior import MixturePrior
from prismgp.vae._rows import Indices, Rows, draw_rows, torch_generator

__all__ = ["MixtureVAE", "TrainingResult", "train"]

Monitor = Callable[[float | None], None]

_LEARNING_RATE = 1e-3  # torch's default for Adam, as in the paper
_MATCH = 4.0  # log odds, at its cluster's centre, of a decoder component against one a right angle away
_CHECK_EVERY = 50  # steps between looks at the held-out rows
_HELD_OUT = 10  # one row in so many
_MOST_HELD_OUT = 2_048
_STATE = "training"  # its name in a checkpoint


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
        """Let component j of the encoder start at cluster j of the prior, and that of the decoder be used there.

        From a random start the decoder, a mixture itself, tends to explain clusters of the data on its
        own. Then z need not say which cluster a row belongs to, and the encoder never learns it.
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


@dataclass
class TrainingResult:
    """What a training did; the networks hold the best state.

    Attributes
    ----------
    steps : int
        Steps taken.
    best_step : int
        The step whose state was kept.
    message : str
        Why it ended.
    interrupted : bool
    held_out_rows : int
        0 when there were too few rows to hold any out: then the training rows are watched.
    history : dict of lists
    """

    steps: int = 0
    best_step: int = 0
    message: str = ""
    interrupted: bool = False
    held_out_rows: int = 0
    history: dict[str, list[Any]] = field(default_factory=dict)


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
    checkpoint: Checkpoint | None = None,
) -> TrainingResult:
    """Maximise R5 and leave the best state seen in ``vae``.

    Parameters
    ----------
    vae : MixtureVAE
        On the device and in the precision of ``rows``.
    rows : Rows
    streams : Streams
        Source of all random numbers.
    alpha, beta : float
    batch_size, max_steps : int
    patience : int or None
        Steps without a better held-out objective after which to stop; None: never.
    columns : Tensor, (d,), optional
        Ones for the columns to reconstruct.
    monitor : callable, optional
        Called after every step, with the held-out objective where it was computed. A KeyboardInterrupt, there or
        anywhere in a step, ends the training but loses nothing.
    checkpoint : Checkpoint, optional
        Where the training is put down at every check, and taken up.
    """
    loop = _Loop(vae, rows, streams, alpha, beta, batch_size, columns)
    result = loop.result
    checkpoint = checkpoint or Checkpoint()
    saved = checkpoint.get(_STATE)
    try:
        if saved is None:
            loop.check(loop.step(update=False))
        else:
            loop.take_up(saved)
        for step in range(result.steps + 1, max_steps + 1):
            terms = loop.step(update=True)
            result.steps = step
            watched = None
            if step % _CHECK_EVERY == 0 or step == max_steps:
                watched = loop.check(terms)
                if not np.isfinite(watched):
                    result.message = f"the objective left the range of floating-point numbers at step {step}"
                    break
            if monitor is not None:
                monitor(watched)
            if patience is not None and step - result.best_step >= patience:
                result.message = f"no better objective on held-out rows for {patience} steps"
                break
            if watched is not None:
                checkpoint.put(_STATE, loop.put_down, now=step == max_steps)
        else:
            result.message = f"all {max_steps} steps taken"
    except KeyboardInterrupt:
        result.interrupted = True
        result.message = f"interrupted after {result.steps} steps"
    vae.load_state_dict(loop.best)
    vae.eval()
    return result


class _Loop:
    """The moving parts of one training."""

    def __init__(
        self,
        vae: MixtureVAE,
        rows: Rows,
        streams: Streams,
        alpha: float,
        beta: float,
        batch_size: int,
        columns: Tensor | None,
    ) -> None:
        self.vae, self.rows, self.columns = vae, rows, columns
        self.alpha, self.beta, self.batch_size = alpha, beta, batch_size
        self.result = TrainingResult()
        self.optimiser = torch.optim.Adam(vae.parameters(), lr=_LEARNING_RATE)
        self.batches = streams.generator("batches")
        self.noise = torch_generator(streams, "noise")
        self.began = time.perf_counter()
        n = len(rows)
        held = n // _HELD_OUT
        self.held_out = np.sort(streams.generator("held-out").choice(n, min(held, _MOST_HELD_OUT), replace=False))
        self.result.held_out_rows = len(self.held_out)
        # Rows in random order: the estimate of q(z) compares with the first of them.
        watched = self.held_out if held else self._draw(min(n, _MOST_HELD_OUT))
        self.watched = streams.generator("watched").permutation(watched)
        # The same noise at every check, so that checks differ by the state alone.
        self.watched_noise = self._noise(len(self.watched), torch_generator(streams, "watched noise"))
        self.best = _copied_state(vae)
        self.best_objective = -np.inf

    def put_down(self) -> Saved:
        """All that the next step depends on."""
        state = self._state()
        best = {f"best.{name}": value.clone() for name, value in self.best.items()}
        info = {"seconds": time.perf_counter() - self.began, "objective": self.best_objective, **state.info()}
        result = {name: getattr(self.result, name) for name in ("steps", "best_step", "history")}
        return {**state.tensors(), **best}, {**info, "result": result}

    def take_up(self, saved: Saved) -> None:
        """What :meth:`put_down` gave."""
        tensors, info = saved
        self._state().restore(tensors, info)
        self.best = {name: value.to(self.rows.device) for name, value in part(tensors, "best").items()}
        self.best_objective, self.began = float(info["objective"]), time.perf_counter() - float(info["seconds"])
        for name, value in info["result"].items():
            setattr(self.result, name, value)

    def _state(self) -> TrainingState:
        return TrainingState({"vae": self.vae}, self.optimiser, {"batches": self.batches}, {"noise": self.noise})

    def step(self, *, update: bool) -> ElboTerms:
        """The terms on a fresh batch and, when asked for, a step of Adam."""
        x = self.rows[self._draw(self.batch_size)]
        self.vae.train(update)
        with torch.set_grad_enabled(update):
            terms = self._terms(x, self._noise(len(x), self.noise))
        if update:
            self.optimiser.zero_grad(set_to_none=True)
            (-terms.objective).backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
        return terms

    def check(self, terms: ElboTerms) -> float:
        """Look at the held-out rows, note everything, keep the state if it is the best so far."""
        self.vae.eval()
        with torch.no_grad():
            x = self.rows[self.watched]
            watched = float(self._terms(x, self.watched_noise).objective)
            found = self.vae.prior.log_joint(self.vae.encode(x)).argmax(-1)
            sizes = torch.bincount(found, minlength=len(self.vae.prior.log_widths)).tolist()
            radius, nearest = float(self.vae.prior.log_radius.exp()), float(self.vae.prior.nearest_centres())
        entry: dict[str, Any] = {**terms.as_floats()}
        if not np.isfinite([watched, *entry.values()]).all():
            return float("nan")  # the history is for numbers
        entry |= {"held_out_objective": watched, "radius": radius, "smallest_separation": nearest}
        entry |= {"step": self.result.steps, "seconds": time.perf_counter() - self.began, "cluster_sizes": sizes}
        for name, value in entry.items():
            self.result.history.setdefault(name, []).append(value)
        if watched > self.best_objective:
            self.best_objective, self.result.best_step = watched, self.result.steps
            # A new dictionary, so that an interrupt finds either the old state or the new one, never a blend.
            self.best = _copied_state(self.vae)
        return watched

    def _terms(self, x: Tensor, noise: Tensor) -> ElboTerms:
        return elbo_terms(
            x,
            self.vae.encoder(x),
            self.vae.decoder,
            self.vae.prior,
            noise,
            alpha=self.alpha,
            beta=self.beta,
            columns=self.columns,
        )

    def _draw(self, count: int) -> Indices:
        return draw_rows(len(self.rows), self.held_out, count, self.batches)

    def _noise(self, count: int, generator: torch.Generator) -> Tensor:
        k, latent_dim = self.vae.prior.directions.shape
        return torch.randn(count, k, latent_dim, generator=generator, dtype=self.rows.dtype).to(self.rows.device)


def _copied_state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}
