"""The objective: the evidence lower bound, pulled towards separated clusters of the prior's sizes.

Averaged over the rows x of a mini-batch (the paper's equations 8 to 10),

- (R5) ``objective = E_q log p(x | z) - KL(q(z|x) || p(z)) - alpha KL(q(z) || p(z)) + beta bonus``

with the bonus R3 of the prior and ``q(z)``, the average of ``q(z | x)`` over all rows.

How the terms are estimated. q(z | x) is a mixture with weights w_j. One z_j is drawn from every
component, ``z_j = mean_j + std_j * noise``, and what is computed at z_j is weighted by w_j:

- (R6) ``E_q f = sum_j w_j E_j f``, estimated by ``sum_j w_j f(z_j)``.

This is unbiased, its variance is never above that of one draw from the mixture, and gradients reach
the weights as well as means and variances.

``q(z)`` is an average over all rows; a batch has only some. With ``q_S``, the average over M rows S of the batch,

- (R7) ``KL(q(z) || p(z)) ~ KL(q_S || p)``, estimated as in R6 at points drawn from rows of S.

This is an unbiased estimate of ``KL(q_S || p)``. The divergence is convex and q is the mean of q_S, so on
average over S it is too high, never too low: what is maximised is a lower bound of R5, and there is no
error for the optimiser to exploit. (Estimates that give z's own row its true, smaller share are biased
low, and were seen to turn negative.) The excess is about ``(chi - 1) / (2 M)`` while posteriors overlap,
where chi is the mean of ``q(z|x) / q(z)`` at points of q(z|x); it sets in for encoders that carry
more than ``log M`` nats about x. Cost: M densities for each point instead of one for every row there is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from prismgp._types import Tensor
from prismgp.vae.networks import GaussianMixture, GaussianMixtureNet, MixturePrior

_REFERENCE_ROWS = 128  # M
_PAIRS = 1 << 17  # most pairs of a latent point and a component in a step; more no longer fit into a cache


@dataclass(frozen=True)
class ElboTerms:
    """The terms of R5, each a scalar tensor: the average over the rows of a batch.

    ``separation`` is the bonus before its factor beta, ``marginal_kl`` before its factor alpha.
    """

    reconstruction: Tensor
    conditional_kl: Tensor
    marginal_kl: Tensor
    separation: Tensor
    alpha: float
    beta: float

    @property
    def objective(self) -> Tensor:
        """R5; to be maximised."""
        elbo = self.reconstruction - self.conditional_kl
        return elbo - self.alpha * self.marginal_kl + self.beta * self.separation

    @staticmethod
    def names() -> tuple[str, ...]:
        """Names of the terms."""
        return ("reconstruction", "conditional_kl", "marginal_kl", "separation")

    def as_tensors(self) -> dict[str, Tensor]:
        """The terms by name."""
        return {name: getattr(self, name) for name in self.names()}

    def as_floats(self) -> dict[str, float]:
        """All terms and the objective as plain numbers, for a history."""
        names = ("objective", *self.names())
        values = torch.stack([getattr(self, name).detach().double() for name in names]).tolist()
        return dict(zip(names, values, strict=True))


def sample_components(mean: Tensor, log_var: Tensor, noise: Tensor) -> Tensor:
    """One point from every component, ``mean + exp(log_var / 2) * noise``, all (n, k, L)."""
    return mean + torch.exp(0.5 * log_var) * noise


def conditional_kl(q: GaussianMixture, z: Tensor, prior: MixturePrior) -> Tensor:
    """Unbiased estimate of ``KL(q(z | x) || p(z))`` (R6) at z of :func:`sample_components`, row by row: (n,)."""
    log_q = _mixture_log_prob(z, q.log_weights, q.mean, q.log_var)  # every z_j under all components of its row
    return (q.log_weights.exp() * (log_q - prior.log_prob(z))).sum(-1)


def marginal_kl(q: GaussianMixture, z: Tensor, prior: MixturePrior, *, reference_rows: int = _REFERENCE_ROWS) -> Tensor:
    """Estimate of ``KL(q(z) || p(z))`` (R7), a scalar; biased high, see the module's docstring.

    Rows must be in random order: the first ``reference_rows`` are the subset S. Where S times its points
    would be too many pairs, the points of the first rows of S alone are used; that adds noise, no bias.
    """
    n, k, latent_dim = z.shape
    m = min(n, reference_rows)
    some = min(m, max(1, _PAIRS // (m * k * k)))
    points = z[:some].reshape(some * k, latent_dim)
    mean, log_var = (values[:m].reshape(m * k, latent_dim) for values in (q.mean, q.log_var))
    log_q = _mixture_log_prob(points, (q.log_weights[:m] - math.log(m)).reshape(m * k), mean, log_var)
    return (q.log_weights[:some].reshape(-1).exp() * (log_q - prior.log_prob(points))).sum() / some


def elbo_terms(
    x: Tensor,
    posterior: GaussianMixture,
    decoder: GaussianMixtureNet,
    prior: MixturePrior,
    noise: Tensor,
    *,
    alpha: float,
    beta: float,
    columns: Tensor | None = None,
) -> ElboTerms:
    """All terms of R5 for standardised rows, (n, d), and ``q(z | x)`` of these rows in L dimensions.

    ``noise``, (n, k, L), is standard normal; ``columns``, (d,), has ones for the columns to reconstruct.
    """
    z = sample_components(posterior.mean, posterior.log_var, noise)
    n, k, latent_dim = z.shape
    decoded: GaussianMixture = decoder(z.reshape(n * k, latent_dim))
    log_likelihood = decoded.log_prob(x.repeat_interleave(k, 0), columns).reshape(n, k)
    return ElboTerms(
        reconstruction=(posterior.log_weights.exp() * log_likelihood).sum(-1).mean(),
        conditional_kl=conditional_kl(posterior, z, prior).mean(),
        marginal_kl=marginal_kl(posterior, z, prior),
        separation=prior.separation_bonus(),
        alpha=alpha,
        beta=beta,
    )


def _mixture_log_prob(z: Tensor, log_weights: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """Log density of mixtures of c diagonal Gaussians at p points: (..., p, L), (..., c), 2 x (..., c, L) to (..., p).

    The squares are expanded, ``z^2 / v - 2 z m / v + m^2 / v``, so that all pairs are one matrix product,
    several times faster than differences. In float64, because the expansion cancels for narrow components.
    """
    precision = torch.exp(-log_var.double())
    scaled = mean * precision
    constant = (scaled * mean + log_var).sum(-1) + z.shape[-1] * math.log(2.0 * math.pi)
    # The constants are one more column, which saves passes over the pairs.
    components = torch.cat([-0.5 * precision, scaled, (log_weights - 0.5 * constant).unsqueeze(-1)], -1)
    point = z.double()
    points = torch.cat([point.square(), point, torch.ones_like(point[..., :1])], -1)
    return torch.logsumexp((points @ components.transpose(-1, -2)).to(z.dtype), -1)
