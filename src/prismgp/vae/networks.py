"""The parts of the auto-encoder: mixtures of Gaussian networks, and the latent prior.

Encoder and decoder are mixtures of k Gaussians whose parameters are networks of an input,

- (R4) ``sum_j w_j(x) N(mean_j(x), diag(exp(log_var_j(x))))``, j = 1..k.

Each component has a network of its own: a linear layer of 10 neurons, batch norm, ReLU; then two heads, each a
linear layer of 10 neurons with ReLU and a linear layer to the output dimension, one for the mean and one for the
log variance. The weights are the softmax of one linear layer. All k networks are evaluated at once by batched
products.

Departures from the printed architecture: the last linear layer of each head, without which means would be non-negative
and of dimension 10, and a soft bound on the log variance. Without the bound the likelihood of a column with few
distinct values has no maximum: a component would shrink onto one of them.

The prior is a mixture of b Gaussians on a sphere in L latent dimensions, with clusters of growing weight,

- (R1) ``p(z) = sum_i pi_i N(z; R u_i, gamma_i^2 I)``, ``pi_i`` proportional to ``2^(i/2)``, i = 1..b;
- (R2) ``KL_ij = KL(N_i || N_j) = L/2 (r - 1 - log r) + R^2 |u_i - u_j|^2 / (2 gamma_j^2)``,
  with ``r = gamma_i^2 / gamma_j^2``;
- (R3) ``bonus = sum_{i != j} f(KL_ij)``, ``f(t) = t - t^2 / (2 cap)`` up to t = cap, and ``cap / 2`` beyond.

The weights pi and the unit directions u are fixed; the radius R and the widths gamma are learned.

Why R3 saturates, and where. KL_ij has no upper bound, so the printed sum would drive the radius to infinity, or the
widths to zero, and dominate every other term. f agrees with it for small t, and is flat once two clusters are far
enough apart. How far is that? For z from one cluster and z' from another, both of width gamma, the mean entry of a
Gaussian kernel with length-scale gamma is ``3^(-L/2) exp(-KL / 3)``. A length-scale as short as the cluster is the
least favourable one of interest: the theory needs clusters narrower than the length-scale only so that entries within
are near one, while entries between clusters must be negligible (of the order of lambda / 2n, for an error lambda on n
rows). The default cap is the KL at which ``exp(-KL / 3)`` is one in a million; it corresponds to centres 9.1 widths
apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Array, Tensor

SEPARATION_CAP = 3.0 * math.log(1e6)
_ENERGY_STARTS = 4
_LOG_VAR_BOUND = 10.0  # standard deviations between exp(-5) and exp(5) of the standardised unit
_MOMENTUM = 0.1  # of the running moments, as in torch's batch norm
_EPS = 1e-5  # likewise


@dataclass(frozen=True)
class GaussianMixture:
    """Mixtures of k diagonal Gaussians in ``out`` dimensions, one for each of n rows."""

    log_weights: Tensor  # (n, k), logarithms of weights that sum to one
    mean: Tensor  # (n, k, out)
    log_var: Tensor  # (n, k, out)

    def log_prob(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        """Log density at x, (n, out): (n,). ``columns``, (out,): ones for coordinates that count, else zeros."""
        squares = (x.unsqueeze(-2) - self.mean).square() * torch.exp(-self.log_var)
        # A product with ones: sums over a short last axis are several times slower.
        counted = torch.ones_like(self.mean[0, 0]) if columns is None else columns
        total = (squares + self.log_var) @ counted + math.log(2.0 * math.pi) * counted.sum()
        return torch.logsumexp(self.log_weights - 0.5 * total, -1)

    def mean_of_mixture(self) -> Tensor:
        """``sum_j w_j mean_j``, (n, out)."""
        return (self.log_weights.exp().unsqueeze(-1) * self.mean).sum(-2)


def draw_uniform(generator: torch.Generator, *shape: int, fan_in: int) -> torch.nn.Parameter:
    """Initial parameters by torch's rule for linear layers: uniform within ``1 / sqrt(fan_in)``."""
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    return torch.nn.Parameter((2.0 * torch.rand(shape, generator=generator, dtype=torch.float32) - 1.0) * bound)


class GaussianMixtureNet(torch.nn.Module):
    """k Gaussian networks and their mixing weights (R4), vectorised over the components.

    ``hidden`` is the number of neurons of every hidden layer.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, n_inputs: int, n_outputs: int, n_components: int, hidden: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        k, h = n_components, hidden
        draw = partial(draw_uniform, generator)
        self.first_weight = draw(k * h, n_inputs, fan_in=n_inputs)
        self.first_bias = draw(k * h, fan_in=n_inputs)
        self.norm_scale = torch.nn.Parameter(torch.ones(k * h, dtype=torch.float32))
        self.norm_shift = torch.nn.Parameter(torch.zeros(k * h, dtype=torch.float32))
        self.register_buffer("running_mean", torch.zeros(k * h, dtype=torch.float32))
        self.register_buffer("running_var", torch.ones(k * h, dtype=torch.float32))
        # The two heads read the same layer, so their hidden layers are one product: mean, then log variance.
        self.head_weight = draw(k, h, 2 * h, fan_in=h)
        self.head_bias = draw(k, 1, 2 * h, fan_in=h)
        self.mean_weight = draw(k, h, n_outputs, fan_in=h)
        self.mean_bias = draw(k, 1, n_outputs, fan_in=h)
        self.log_var_weight = draw(k, h, n_outputs, fan_in=h)
        self.log_var_bias = draw(k, 1, n_outputs, fan_in=h)
        self.mixing_weight = draw(k, n_inputs, fan_in=n_inputs)
        self.mixing_bias = draw(k, fan_in=n_inputs)

    def forward(self, x: Tensor) -> GaussianMixture:
        """Mixtures for rows x, (n, n_inputs)."""
        n, (k, h, _) = x.shape[0], self.head_weight.shape  # not len(x), as in spectral_features
        first = F.batch_norm(
            F.linear(x, self.first_weight, self.first_bias),
            self.running_mean,
            self.running_var,
            self.norm_scale,
            self.norm_shift,
            training=self.training and n > 1,  # a single row has no spread: use the running moments
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


class MixturePrior(torch.nn.Module):
    """The prior (R1) with learned radius and widths.

    Clusters that overlap at the start let rows find theirs before a gap opens. ``directions`` are unit vectors to use
    instead of :func:`sphere_directions`, where they are known already.
    """

    directions: Tensor  # (b, L)
    log_weights: Tensor  # (b,)

    def __init__(
        self, n_components: int, latent_dim: int, *, radius: float = 0.5, directions: Array | None = None
    ) -> None:
        super().__init__()
        self.log_radius = torch.nn.Parameter(torch.tensor(math.log(radius), dtype=torch.float32))
        self.log_widths = torch.nn.Parameter(torch.zeros(n_components, dtype=torch.float32))
        if directions is None:
            directions = sphere_directions(n_components, latent_dim)
        self.register_buffer("directions", torch.as_tensor(directions, dtype=torch.float32))
        halves = 0.5 * math.log(2.0) * torch.arange(1, n_components + 1, dtype=torch.float64)
        self.register_buffer("log_weights", torch.log_softmax(halves, 0).to(torch.float32))

    def centres(self) -> Tensor:
        """``R u_i``, (b, L)."""
        return self.log_radius.exp() * self.directions

    def log_joint(self, z: Tensor) -> Tensor:
        """``log pi_i + log N(z; R u_i, gamma_i^2 I)`` for z of shape (..., L), (..., b)."""
        latent_dim = self.directions.shape[1]
        # A product with ones: sums over a short last axis are several times slower.
        squares = (z.unsqueeze(-2) - self.centres()).square() @ z.new_ones(latent_dim)
        log_normal = -0.5 * squares * torch.exp(-2.0 * self.log_widths)
        return self.log_weights + log_normal - latent_dim * (self.log_widths + 0.5 * math.log(2.0 * math.pi))

    def log_prob(self, z: Tensor) -> Tensor:
        """``log p(z)`` (R1) for z of shape (..., L), (...)."""
        return torch.logsumexp(self.log_joint(z), -1)

    def responsibilities(self, z: Tensor) -> Tensor:
        """Probability of each cluster given z, (..., b); rows sum to one."""
        return torch.softmax(self.log_joint(z), -1)

    def separations(self) -> Tensor:
        """``KL(N_i || N_j)`` (R2), (b, b), with a zero diagonal."""
        latent_dim = self.directions.shape[1]
        log_ratio = 2.0 * (self.log_widths[:, None] - self.log_widths[None, :])
        spread = 0.5 * latent_dim * (torch.expm1(log_ratio) - log_ratio)
        centres = self.centres()
        squares = (centres[:, None, :] - centres[None, :, :]).square().sum(-1)
        return spread + 0.5 * squares * torch.exp(-2.0 * self.log_widths)[None, :]

    def separation_bonus(self) -> Tensor:
        """Sum of the saturated divergences over ordered pairs (R3), a scalar of at most ``b (b - 1) cap / 2``."""
        reached = self.separations().clamp(max=SEPARATION_CAP)
        return (reached - reached.square() / (2.0 * SEPARATION_CAP)).sum()  # the diagonal adds zero

    def nearest_centres(self) -> Tensor:
        """Smallest distance of two centres over the root mean square of their widths, a scalar; 0 for b = 1."""
        first, second = torch.triu_indices(len(self.directions), len(self.directions), offset=1)
        if not len(first):
            return torch.zeros_like(self.log_radius)
        centres, variances = self.centres(), torch.exp(2.0 * self.log_widths)
        squares = (centres[first] - centres[second]).square().sum(-1)
        return torch.sqrt(squares / (0.5 * (variances[first] + variances[second]))).min()

    @torch.no_grad()
    def describe(self, z: Tensor) -> dict[str, Any]:
        """Describe the clusters in plain numbers: radius, smallest separation, and points of z, (n, L), in each."""
        sizes = torch.bincount(self.log_joint(z).argmax(-1), minlength=len(self.log_widths))
        return {
            "radius": float(self.log_radius.exp()),
            "smallest_separation": float(self.nearest_centres()),
            "cluster_sizes": sizes.tolist(),
        }


def sphere_directions(count: int, dim: int) -> Array:
    """Points spread evenly over the unit sphere, (count, dim); the same ones every time.

    A regular simplex where there is one, corners of a cross-polytope where these are enough, a regular
    polygon in the plane, and points of least Riesz energy otherwise. Two cases have no such points:
    a single one lies at the origin, and on a line, whose unit "sphere" has two points only, more than two
    are spread evenly between them.
    """
    if count == 1:
        return np.zeros((1, dim))
    if count <= dim + 1:
        return _simplex(count, dim)
    if dim == 1:
        return np.linspace(-1.0, 1.0, count)[:, None]
    if count <= 2 * dim:
        return np.concatenate([np.eye(dim), -np.eye(dim)])[:count]
    if dim == 2:
        angles = 2.0 * np.pi * np.arange(count) / count
        return np.stack([np.cos(angles), np.sin(angles)], 1)
    return _minimise_energy(count, dim)


def _simplex(count: int, dim: int) -> Array:
    """Corners of a regular simplex, built coordinate by coordinate: all inner products are -1/(count - 1)."""
    corners = np.zeros((count, dim))
    inner = -1.0 / (count - 1)
    for axis in range(count - 1):
        corners[axis, axis] = math.sqrt(1.0 - float(corners[axis, :axis] @ corners[axis, :axis]))
        corners[axis + 1 :, axis] = (inner - corners[axis + 1 :, :axis] @ corners[axis, :axis]) / corners[axis, axis]
    return corners


def _minimise_energy(count: int, dim: int) -> Array:
    """A (local) minimum of ``sum |u_i - u_j|^-dim``, the best of a few fixed starts.

    From exponent dim - 1 on, points of least Riesz energy cover the sphere evenly.
    """
    pairs = np.triu_indices(count, 1)

    def energy(vector: Array) -> tuple[float, Array]:
        raw = vector.reshape(count, dim)
        norms = np.linalg.norm(raw, axis=1, keepdims=True)
        unit = raw / norms
        gaps = unit[pairs[0]] - unit[pairs[1]]
        squares = np.maximum(np.square(gaps).sum(1), 1e-12)
        terms = squares ** (-0.5 * dim)
        pull = (-dim * terms / squares)[:, None] * gaps
        gradient = np.zeros_like(unit)
        np.add.at(gradient, pairs[0], pull)
        np.add.at(gradient, pairs[1], -pull)
        # Only the part along the sphere moves a point.
        gradient -= (gradient * unit).sum(1, keepdims=True) * unit
        return float(terms.mean()), (gradient / norms / len(terms)).ravel()

    from scipy.optimize import minimize  # slow to import, and predictions do not need it

    rng = np.random.default_rng(0)  # a constant of the construction, not a source of randomness
    starts = [rng.standard_normal(count * dim) for _ in range(_ENERGY_STARTS)]
    runs = [minimize(energy, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}) for start in starts]
    best: Array = min(runs, key=lambda run: float(run.fun)).x.reshape(count, dim)
    unit: Array = best / np.linalg.norm(best, axis=1, keepdims=True)
    return unit
