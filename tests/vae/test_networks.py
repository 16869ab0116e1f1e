"""Prior and networks of the auto-encoder against independent references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from prismgp.vae import GaussianMixtureNet, MixturePrior
from prismgp.vae.networks import SEPARATION_CAP, sphere_directions
from tests.vae.small import some_prior

ROUNDING = 1e-5  # relative, float32 parameters against float64 references


# -- prior ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "latent_dim"), [(1, 3), (3, 2), (8, 4)])
def test_prior_density_r1(b, latent_dim):
    prior = some_prior(b, latent_dim)
    z = np.random.default_rng(1).normal(size=(20, latent_dim))
    weights = 2.0 ** (np.arange(1, b + 1) / 2)
    weights /= weights.sum()
    widths = np.exp(prior.log_widths.detach().numpy())
    centres = 1.7 * sphere_directions(b, latent_dim)
    parts = np.stack(
        [
            np.log(w) + stats.multivariate_normal(c, g**2).logpdf(z)
            for w, c, g in zip(weights, centres, widths, strict=True)
        ],
        1,
    )
    found = prior.log_joint(torch.as_tensor(z)).detach().numpy()
    np.testing.assert_allclose(found, parts, rtol=ROUNDING, atol=ROUNDING)
    expected = logsumexp(parts, axis=1)
    np.testing.assert_allclose(prior.log_prob(torch.as_tensor(z)).detach(), expected, rtol=ROUNDING, atol=ROUNDING)
    responsibilities = prior.responsibilities(torch.as_tensor(z)).detach().numpy()
    np.testing.assert_allclose(responsibilities, np.exp(parts - expected[:, None]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("b", "latent_dim"), [(2, 1), (3, 2), (5, 4), (4, 7)])
def test_simplex_is_equidistant(b, latent_dim):
    u = sphere_directions(b, latent_dim)
    distances = np.linalg.norm(u[:, None] - u[None], axis=2)[np.triu_indices(b, 1)]
    np.testing.assert_allclose(distances, math.sqrt(2 * b / (b - 1)), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(u.sum(0), 0.0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("b", "latent_dim", "least"),
    [(8, 4, math.sqrt(2)), (7, 4, math.sqrt(2)), (7, 2, 2 * math.sin(math.pi / 7)), (12, 3, 1.0514), (20, 4, 0.85)],
)
def test_other_directions_are_spread_evenly(b, latent_dim, least):
    """12 points in space: the icosahedron, whose edge is 1.05146 radii, is the known optimum."""
    u = sphere_directions(b, latent_dim)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1.0, rtol=1e-12)
    distances = np.linalg.norm(u[:, None] - u[None], axis=2)[np.triu_indices(b, 1)]
    assert distances.min() >= least - 1e-3
    np.testing.assert_array_equal(u, sphere_directions(b, latent_dim))


def test_special_directions():
    np.testing.assert_array_equal(sphere_directions(1, 3), np.zeros((1, 3)))
    np.testing.assert_allclose(sphere_directions(5, 1)[:, 0], [-1, -0.5, 0, 0.5, 1])


def test_separations_r2_against_torch():
    prior = some_prior(5, 3)
    normals = [
        torch.distributions.MultivariateNormal(c, g**2 * torch.eye(3, dtype=torch.float64))
        for c, g in zip(prior.centres().detach(), prior.log_widths.detach().exp(), strict=True)
    ]
    expected = [[torch.distributions.kl_divergence(p, q).item() for q in normals] for p in normals]
    np.testing.assert_allclose(prior.separations().detach(), expected, rtol=1e-9, atol=1e-12)


def test_bonus_r3_saturates():
    def bonus(radius):
        return float(MixturePrior(4, 2, radius=radius).double().separation_bonus().detach())

    # For clusters close together it is the printed sum of divergences.
    near = MixturePrior(4, 2, radius=0.01).double()
    assert near.separation_bonus().item() == pytest.approx(near.separations().sum().item(), rel=1e-3)
    values = [bonus(radius) for radius in (0.1, 1.0, 3.0, 6.0)]
    assert values == sorted(values)
    assert bonus(20.0) == bonus(1e3) == pytest.approx(12 * SEPARATION_CAP / 2)
    far = MixturePrior(4, 2, radius=50.0)
    far.separation_bonus().backward()
    assert float(far.log_radius.grad) == 0.0  # nothing drives them further apart


def test_cap_is_where_kernel_entries_between_clusters_are_negligible():
    """The mean kernel entry between clusters of the kernel's width is 3^(-L/2) exp(-KL/3)."""
    rng = np.random.default_rng(0)
    gap, latent_dim = 2.0, 3
    z, other = rng.normal(size=(2, 400_000, latent_dim))
    other[:, 0] += gap
    mean = np.exp(-0.5 * np.square(z - other).sum(1)).mean()
    assert mean == pytest.approx(3 ** (-latent_dim / 2) * math.exp(-(gap**2 / 2) / 3), rel=0.02)
    assert math.exp(-SEPARATION_CAP / 3) == pytest.approx(1e-6)


# -- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_vectorised_nets_equal_a_loop_r4(training):
    k, d, out, h, n = 3, 5, 2, 10, 16
    net = GaussianMixtureNet(d, out, k, h, generator=torch.Generator().manual_seed(0)).double()
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(n, d)))
    net(x)  # moves the running moments away from their start
    net.train(training)
    moments = net.running_mean.clone(), net.running_var.clone()
    found = net(x)
    for j in range(k):
        part = slice(j * h, (j + 1) * h)
        first, norm = torch.nn.Linear(d, h).double(), torch.nn.BatchNorm1d(h).double()
        first.weight.data, first.bias.data = net.first_weight[part], net.first_bias[part]
        norm.weight.data, norm.bias.data = net.norm_scale[part], net.norm_shift[part]
        norm.running_mean.data, norm.running_var.data = moments[0][part].clone(), moments[1][part].clone()
        shared = torch.relu(norm.train(training)(first(x)))
        heads = []
        for half, weight, bias in (
            (slice(0, h), net.mean_weight, net.mean_bias),
            (slice(h, 2 * h), net.log_var_weight, net.log_var_bias),
        ):
            hidden = torch.relu(shared @ net.head_weight[j][:, half] + net.head_bias[j][:, half])
            heads.append(hidden @ weight[j] + bias[j])
        torch.testing.assert_close(found.mean[:, j], heads[0])
        torch.testing.assert_close(found.log_var[:, j], 10 * torch.tanh(heads[1] / 10))
        torch.testing.assert_close(net.running_var[part], norm.running_var)
    logits = x @ net.mixing_weight.T + net.mixing_bias
    torch.testing.assert_close(found.log_weights.exp(), torch.softmax(logits, 1))


def test_mixture_density_and_mean():
    net = GaussianMixtureNet(3, 2, 4, 10, generator=torch.Generator().manual_seed(1)).double()
    q = net(torch.as_tensor(np.random.default_rng(0).normal(size=(6, 3))))
    x = torch.as_tensor(np.random.default_rng(1).normal(size=(6, 2)))
    parts = torch.distributions.Independent(torch.distributions.Normal(q.mean, torch.exp(q.log_var / 2)), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=q.log_weights), parts)
    torch.testing.assert_close(q.log_prob(x), mixture.log_prob(x))
    torch.testing.assert_close(q.mean_of_mixture(), mixture.mean)
    only_first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    moved = x.clone()
    moved[:, 1] += 100.0
    torch.testing.assert_close(q.log_prob(x, only_first), q.log_prob(moved, only_first))
