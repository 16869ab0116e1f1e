"""Mixtures of Gaussians whose parameters are networks of an input: encoder and decoder alike.

(R4) ``sum_j w_j(x) N(mean_j(x), diag(exp(log_var_j(x))))``, j = 1..k. Each component has a network of its own:
a linear layer of 10 neurons, batch norm, ReLU; then two heads, each a linear layer of 10 neurons with
ReLU and a linear layer to the dimension wanted, one for the mean and one for the log variance. The
weights are the softmax of one linear layer. All k networks are evaluated at once by batched products.

Departures from the printed architecture: the last linear layer of each head (the package's docstring,
item 10), and a soft bound on the log variance. Without the bound the likelihood of a column that takes
few distinct values has no maximum: a component would shrink onto one of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Tensor

__all__ = ["GaussianMixture", "GaussianMixtureNet"]

_LOG_VAR_BOUND = 10.0  # standard deviations between exp(-5) and exp(5) of the standardised unit
_MOMENTUM = 0.1  # of the running moments, as in torch's batch norm
_EPS = 1e-5  # likewise


@dataclass(frozen=True)
class GaussianMixture:
    """Mixtures of k diagonal Gaussians in ``out`` dimensions, one for each of n rows.

    Attributes
    ----------
    log_weights : Tensor, (n, k)
        Logarithms of weights that sum to one.
    mean, log_var : Tensor, (n, k, out)
    """

    log_weights: Tensor
    mean: Tensor
    log_var: Tensor

    def log_prob(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log density at x.

        Parameters
        ----------
        x : Tensor, (n, out) or any shape that broadcasts against it
        columns : Tensor, (out,), optional
            Ones for the coordinates that count, zeros for those to leave out.

        Returns
        -------
        Tensor, (n,)
        """
        squares = (x.unsqueeze(-2) - self.mean).square() * torch.exp(-self.log_var)
        # A product with ones: sums over a short last axis are several times slower.
        counted = torch.ones_like(self.mean[0, 0]) if columns is None else columns
        total = (squares + self.log_var) @ counted + math.log(2.0 * math.pi) * counted.sum()
        return torch.logsumexp(self.log_weights - 0.5 * total, -1)

    def mean_of_mixture(self) -> Tensor:
        """``sum_j w_j mean_j``, (n, out)."""
        return (self.log_weights.exp().unsqueeze(-1) * self.mean).sum(-2)


class GaussianMixtureNet(torch.nn.Module):
    """k Gaussian networks and their mixing weights (R4), vectorised over the components.

    Parameters
    ----------
    n_inputs, n_outputs : int
    n_components : int
        k.
    hidden : int, default 10
        Neurons of every hidden layer.
    generator : torch.Generator, optional
        Of the initial parameters, which follow torch's rule for linear layers: uniform within
        ``1 / sqrt(inputs of the layer)``. None: torch's global one.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        n_components: int,
        hidden: int = 10,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        k, h = n_components, hidden

        def uniform(*shape: int, fan_in: int) -> torch.nn.Parameter:
            bound = 1.0 / math.sqrt(max(fan_in, 1))
            return torch.nn.Parameter((2.0 * torch.rand(shape, generator=generator, dtype=torch.float32) - 1.0) * bound)

        self.first_weight = uniform(k * h, n_inputs, fan_in=n_inputs)
        self.first_bias = uniform(k * h, fan_in=n_inputs)
        self.norm_scale = torch.nn.Parameter(torch.ones(k * h, dtype=torch.float32))
        self.norm_shift = torch.nn.Parameter(torch.zeros(k * h, dtype=torch.float32))
        self.register_buffer("running_mean", torch.zeros(k * h, dtype=torch.float32))
        self.register_buffer("running_var", torch.ones(k * h, dtype=torch.float32))
        # The two heads read the same layer, so their hidden layers are one product: mean, then log variance.
        self.head_weight = uniform(k, h, 2 * h, fan_in=h)
        self.head_bias = uniform(k, 1, 2 * h, fan_in=h)
        self.mean_weight = uniform(k, h, n_outputs, fan_in=h)
        self.mean_bias = uniform(k, 1, n_outputs, fan_in=h)
        self.log_var_weight = uniform(k, h, n_outputs, fan_in=h)
        self.log_var_bias = uniform(k, 1, n_outputs, fan_in=h)
        self.mixing_weight = uniform(k, n_inputs, fan_in=n_inputs)
        self.mixing_bias = uniform(k, fan_in=n_inputs)

    def forward(self, x: Tensor) -> GaussianMixture:
        """Mixtures for rows x, (n, n_inputs)."""
        n, (k, h, _) = len(x), self.head_weight.shape
        # One row has no spread to be standardised by; the running moments stand in.
        batch_moments = self.training and n > 1
        first = F.batch_norm(
            F.linear(x, self.first_weight, self.first_bias),
            self.running_mean,
            self.running_var,
            self.norm_scale,
            self.norm_shift,
            training=batch_moments,
            momentum=_MOMENTUM,
            eps=_EPS,
        )
        by_component = torch.relu(first).reshape(n, k, h).transpose(0, 1)
        heads = torch.relu(torch.baddbmm(self.head_bias, by_component, self.head_weight))
        mean = torch.baddbmm(self.mean_bias, heads[..., :h], self.mean_weight)
        raw = torch.baddbmm(self.log_var_bias, heads[..., h:], self.log_var_weight)
        log_var = _LOG_VAR_BOUND * torch.tanh(raw / _LOG_VAR_BOUND)
        log_weights = torch.log_softmax(F.linear(x, self.mixing_weight, self.mixing_bias), -1)
        return GaussianMixture(log_weights, mean.transpose(0, 1), log_var.transpose(0, 1))
