"""Re-configuring the inputs: a variational auto-encoder whose latent prior is a mixture of Gaussians.

The aim (section 3.3 of the paper) is a latent space in which the data form few, compact, well
separated clusters, because there a sparse spectrum GP needs few frequencies. The model is

- prior ``p(z)``: a mixture of b Gaussians on a sphere; encoder ``q(z | x)`` and decoder ``p(x | z)``: mixtures of k
  Gaussian networks (``networks.py``);
- objective: the evidence lower bound with two more terms (``elbo.py``);
- the auto-encoder made of these, and its training by Adam (``vae.py``), in the loop that trains every network here
  (``training.py``).

The prior and the terms of the objective take any ``(log_weights, mean, log_var)``, so an encoder of
another shape, also a single Gaussian (k = 1), can be trained with them.

What is printed in the paper, and what is done here
---------------------------------------------------
1. Printed: ``p(x, z) = p(z) p(z | x)``, with ``p(z | x)`` called the likelihood. Meant: ``p(z) p(x | z)``.
2. Printed: ``p(x | z)`` is the encoder and ``q(z | x)`` the decoder. It is the other way round.
3. Printed: ``KL(q(z || x) || p(z))``. Meant: ``KL(q(z | x) || p(z))``.
4. Printed: cluster covariances ``gamma^2 Theta^-1``, with Theta the squared length-scales. Only
   ``gamma^2 Theta`` makes clusters round in the kernel's metric, which the proofs need. Here Theta is the
   identity: latent units are arbitrary, and the GP learns its length-scales afterwards.
5. Printed: the gammas are "variances". They enter squared; here they are standard deviations, ``widths``.
6. Printed: ``gamma^2 Theta^-1 I`` in the separation term; the identity is superfluous.
7. Printed: a fixed prior ``p(z)``, but a radius that is optimised. Here weights and directions are fixed;
   the radius and the widths are learned.
8. Printed: k = 8 equidistant points on a sphere in 4 dimensions. At most 5 points there have equal
   distances. Here: a regular simplex where it exists, else a cross-polytope, else points of least energy.
9. Printed: the sum of divergences between clusters is maximised. It has no upper bound: radius over width
   would grow without limit. Here every term saturates (``networks.py``, R3).
10. Printed: outputs of ReLU layers of 10 neurons "form" means and covariances. They would be
    non-negative and of dimension 10. Here a linear layer follows, to the right dimension, without ReLU.
11. Not printed: ``q(z)`` is an average over all rows; how to estimate it within a mini-batch (``elbo.py``, R7).
12. Not printed: how to get an encoding from a distribution. Here it is the mean of the mixture: the same
    input always gives the same output.
"""

from prismgp.vae.elbo import ElboTerms, conditional_kl, elbo_terms, marginal_kl, sample_components
from prismgp.vae.networks import SEPARATION_CAP, GaussianMixture, GaussianMixtureNet, MixturePrior, sphere_directions
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
from prismgp.vae.vae import MixtureVAE, VAETraining, train

__all__ = [
    "SEPARATION_CAP",
    "ElboTerms",
    "GaussianMixture",
    "GaussianMixtureNet",
    "Indices",
    "MixturePrior",
    "MixtureVAE",
    "Monitor",
    "Rows",
    "TrainingResult",
    "TrainingState",
    "TrainingTask",
    "VAETraining",
    "conditional_kl",
    "draw_rows",
    "elbo_terms",
    "marginal_kl",
    "run_training",
    "sample_components",
    "sphere_directions",
    "torch_generator",
    "train",
]
