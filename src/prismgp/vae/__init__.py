"""Re-configuring the inputs: a variational auto-encoder whose latent prior is a mixture of Gaussians.

The aim (section 3.3 of the paper) is a latent space in which the data form few, compact, well
separated clusters, because there a sparse spectrum GP needs few frequencies. The model is

- prior ``p(z)``: a mixture of b Gaussians on a sphere; encoder ``q(z | x)`` and decoder ``p(x | z)``: mixtures of k
  Gaussian networks (``networks.py``);
- objective: the evidence lower bound with two more terms (``elbo.py``);
- the auto-encoder of the authors' released code, which is another one (``released.py``);
- the auto-encoder made of these, and its training by Adam (``vae.py``), in the loop of all networks (``training.py``).

The prior and the terms of the objective take any Gaussian mixture ``q(z | x)``, so an encoder of another shape, also a
single Gaussian (k = 1), can be trained with them. Where the paper cannot be followed literally, what is done instead is
listed in docs/reconfiguration.md, "Corrections to the paper".
"""

from prismgp.vae.elbo import ElboTerms, elbo_terms
from prismgp.vae.networks import GaussianMixture, GaussianMixtureNet, MixturePrior
from prismgp.vae.released import ReleasedVAE
from prismgp.vae.training import (
    STATE_NAME,
    BatchRows,
    Training,
    TrainingResult,
    TrainingState,
    TrainingTask,
    draw_rows,
    run_training,
    select_tensors,
    torch_generator,
)
from prismgp.vae.vae import TRAINING_ROWS, MixtureVAE, VAESettings, VAETraining, fit_vae

__all__ = [
    "STATE_NAME",
    "TRAINING_ROWS",
    "BatchRows",
    "ElboTerms",
    "GaussianMixture",
    "GaussianMixtureNet",
    "MixturePrior",
    "MixtureVAE",
    "ReleasedVAE",
    "Training",
    "TrainingResult",
    "TrainingState",
    "TrainingTask",
    "VAESettings",
    "VAETraining",
    "draw_rows",
    "elbo_terms",
    "fit_vae",
    "run_training",
    "select_tensors",
    "torch_generator",
]
