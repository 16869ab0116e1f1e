"""From rows to a trained mixture VAE, without labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prismgp._random import Streams
from prismgp._system import limit_blas_threads
from prismgp.context import FitContext
from prismgp.data import StandardisedRows
from prismgp.vae.training import Rows, TrainingResult, torch_generator
from prismgp.vae.vae import MixtureVAE, train

__all__ = ["TRAINING_ROWS", "VAESettings", "fit_vae"]

# Networks are trained on all rows up to this number, else on a uniform random sample of this size. Batches drawn from
# the sample are uniform random subsets of all rows, each by itself; together they differ from draws from all rows in
# that rows come back once a network has seen as many as the sample holds.
TRAINING_ROWS = 2**19


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


def fit_vae(
    rows: StandardisedRows, settings: VAESettings, streams: Streams, context: FitContext
) -> tuple[MixtureVAE, TrainingResult]:
    """Train the networks in float32; they are returned in float64, ready to use."""
    s, device = rows.standardiser, rows.device
    x = rows.sample(TRAINING_ROWS, streams.generator("training rows")).x
    vae = MixtureVAE(
        x.shape[1],
        settings.n_components,
        settings.latent_dim,
        settings.hidden,
        generator=torch_generator(streams, "initial networks"),
    ).to(device)

    def show(objective: float | None) -> None:
        context.advance(None if objective is None else f"objective per row {objective:.3f}")

    with (
        limit_blas_threads(),
        torch.inference_mode(False),
        torch.enable_grad(),
        context.progress("step", settings.max_steps),
    ):
        result = train(
            vae,
            Rows(x, s.x_shift, s.x_scale, dtype=torch.float32, device=device),
            streams,
            alpha=settings.alpha,
            beta=settings.beta,
            batch_size=settings.batch_size,
            max_steps=settings.max_steps,
            patience=settings.patience,
            # A column that never varied need not be reconstructed.
            columns=torch.as_tensor(~s.constant_inputs, dtype=torch.float32, device=device),
            monitor=show,
            checkpoint=context.checkpoint,
        )
    return vae.double().requires_grad_(False), result
