"""The auto-encoder of the authors' released code, reproduced from what that code does: it is not that of the paper.

- (R8) encoder ``q(z | x) = sum_j w_j N(m_j(x) + o_j, ...)``: weights w do not depend on x, and the offsets o_j, random
  directions of norm 10, are not learned; prior ``p(z)``: the same kind of network, of an input of zeros; decoder
  ``p(x | z)``: one Gaussian network, no mixture. A network is a linear layer, batch norm, ReLU, and a linear layer each
  for means and log variances, the latter through tanh.
- (R9) ``objective = log p(x|z) - beta (log q(z|x) - log p(z)) - alpha (log q(z) - log p(z)) + separation``, averaged
  over rows and samples of z.

Reproduced with its flaws: log densities have ``exp(-2 log_var)`` where ``exp(-log_var)`` is right, though samples are
drawn with ``exp(log_var / 2)``; ``log q(z)`` is the logarithm of the mean of ``q(z_i | x_i)``, each z under its own
row; one component is drawn for all rows of a batch; weights get no gradient from the samples.

Not reproduced: the released code encodes rows at prediction with ten new random draws, and normalises them by the
moments of the batch they are in. Here an encoding is the mean over all draws, and moments are those of the training
rows, so that a prediction does not depend on chance or on other rows.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Tensor
from prismgp.vae.networks import draw_uniform

_OFFSET = 10.0  # norm
_EPS = 1e-5  # of torch's batch norm


class OffsetGaussianNets(torch.nn.Module):
    """k Gaussian networks from ``n_inputs`` to ``n_outputs`` columns; ``offset``: whether their means have offsets."""

    offsets: Tensor  # (k, 1, n_outputs)
    hidden_mean: Tensor  # (k * h,), moments of the first layer over the training rows
    hidden_var: Tensor

    def __init__(
        self, n_inputs: int, n_outputs: int, k: int, hidden: int, *, offset: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        draw = partial(draw_uniform, generator)
        self.first_weight = draw(k * hidden, n_inputs, fan_in=n_inputs)
        self.first_bias = draw(k * hidden, fan_in=n_inputs)
        self.norm_scale = torch.nn.Parameter(torch.ones(k * hidden))
        self.norm_shift = torch.nn.Parameter(torch.zeros(k * hidden))
        self.mean_weight = draw(k, hidden, n_outputs, fan_in=hidden)
        self.mean_bias = draw(k, 1, n_outputs, fan_in=hidden)
        self.log_var_weight = draw(k, hidden, n_outputs, fan_in=hidden)
        self.log_var_bias = draw(k, 1, n_outputs, fan_in=hidden)
        directions = 2.0 * torch.rand((k, 1, n_outputs), generator=generator, dtype=torch.float32) - 1.0
        directions = _OFFSET * directions / directions.norm(dim=-1, keepdim=True)
        self.register_buffer("offsets", directions if offset else torch.zeros_like(directions))
        self.register_buffer("hidden_mean", torch.zeros(k * hidden))
        self.register_buffer("hidden_var", torch.ones(k * hidden))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances at rows x, (n, n_inputs): both (k, n, n_outputs)."""
        k, h, _ = self.mean_weight.shape
        first = F.linear(x, self.first_weight, self.first_bias)
        mean, var = self.hidden_mean, self.hidden_var
        if self.training and x.shape[0] > 1:  # a single row has no spread
            mean, var = first.mean(0), first.var(0, unbiased=False)
        first = (first - mean) * torch.rsqrt(var + _EPS) * self.norm_scale + self.norm_shift
        by_component = torch.relu(first).reshape(-1, k, h).transpose(0, 1)
        means = torch.baddbmm(self.mean_bias, by_component, self.mean_weight) + self.offsets
        return means, torch.tanh(torch.baddbmm(self.log_var_bias, by_component, self.log_var_weight))

    @torch.no_grad()
    def set_moments(self, x: Tensor) -> None:
        """Let the moments of batch norm be those of rows x."""
        first = F.linear(x, self.first_weight, self.first_bias)
        self.hidden_mean.copy_(first.mean(0))
        self.hidden_var.copy_(first.var(0, unbiased=False))


class ReleasedVAE(torch.nn.Module):
    """Encoder, prior and decoder (R8)."""

    def __init__(
        self, n_inputs: int, n_components: int, latent_dim: int, hidden: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        k = n_components
        self.encoder = OffsetGaussianNets(n_inputs, latent_dim, k, hidden, offset=True, generator=generator)
        self.prior = OffsetGaussianNets(n_inputs, latent_dim, k, hidden, offset=True, generator=generator)
        self.decoder = OffsetGaussianNets(latent_dim, n_inputs, 1, hidden, offset=False, generator=generator)
        # Logits of the weights; theirs are a linear layer of ones, which is as free.
        self.mixing, self.prior_mixing = (
            torch.nn.Parameter(2.0 * torch.rand(k, generator=generator, dtype=torch.float32) - 1.0) for _ in range(2)
        )

    @property
    def latent_dim(self) -> int:
        return int(self.encoder.offsets.shape[-1])

    def probabilities(self) -> Tensor:
        """Of the components when z is drawn, (k,): proportional to ``w / (1 - w)``, as released, not to w."""
        w = torch.softmax(self.mixing.detach().double(), 0)
        odds = w / (1.0 - w).clamp(min=1e-12)
        return odds / odds.sum()

    def encode(self, x: Tensor) -> Tensor:
        """Mean over all draws of z, (n, L)."""
        means, _ = self.encoder(x)
        z: Tensor = torch.tensordot(self.probabilities().to(means), means, 1)
        return z

    def reconstruct(self, z: Tensor) -> Tensor:
        """Mean of ``p(x | z)``, (n, d)."""
        return torch.squeeze(self.decoder(z)[0], 0)

    def draw(self, means: Tensor, log_vars: Tensor, components: Tensor, noise: Tensor) -> Tensor:
        """Draws of z, (s, n, L): of one component for each, (s,), with the noise, (s, n, L)."""
        return means[components] + torch.exp(0.5 * log_vars[components]) * noise

    def elbo(self, x: Tensor, components: Tensor, noise: Tensor, *, alpha: float, beta: float) -> Tensor:
        """The objective R9 of rows x, (n, d), a scalar."""
        means, log_vars = self.encoder(x)
        z = self.draw(means, log_vars, components, noise)  # (s, n, L)
        log_q = _log_density(z, means, log_vars, self.mixing)
        prior_means, prior_log_vars = self.prior(torch.zeros_like(x))
        log_p = _log_density(z, prior_means, prior_log_vars, self.prior_mixing)
        decoded, decoded_log_var = (each.reshape(*z.shape[:2], -1) for each in self.decoder(z.flatten(0, 1)))
        squares = (x - decoded).square() * torch.exp(-2.0 * decoded_log_var)
        log_x = -0.5 * (squares + decoded_log_var).sum(-1).mean()
        log_q_all = torch.logsumexp(log_q.flatten(), 0) - math.log(log_q.numel())
        # A divergence of every component from their average, of which the smallest counts.
        centre, centre_log_var = means.mean(0), log_vars.mean(0)
        apart = log_vars - centre_log_var + torch.exp(centre_log_var - log_vars)
        apart = apart + (centre - means).square() * torch.exp(centre_log_var)
        separation = 0.5 * apart.sum((1, 2)).min() / len(x)
        conditional, marginal = log_q.mean() - log_p.mean(), log_q_all - log_p.mean()
        total: Tensor = log_x - beta * conditional - alpha * marginal + separation
        return total

    @torch.no_grad()
    def set_moments(self, x: Tensor) -> None:
        """Let the moments of batch norm be those of rows x, and of what becomes of them."""
        self.encoder.set_moments(x)
        self.eval()
        self.decoder.set_moments(self.encode(x))


def _log_density(z: Tensor, means: Tensor, log_vars: Tensor, logits: Tensor) -> Tensor:
    """Of z, (s, n, L), under mixtures of k components, 2 x (k, n, L): (s, n); as released, without 2 pi."""
    squares = (z.unsqueeze(1) - means).square() * torch.exp(-2.0 * log_vars)  # (s, k, n, L)
    log_weights = torch.log_softmax(logits, 0)[:, None]
    return torch.logsumexp(log_weights - 0.5 * (squares.sum(-1) + log_vars.sum(-1)), 1)
