"""The terms of the objective against independent references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from prismgp.vae import GaussianMixture, MixturePrior, MixtureVAE, elbo_terms
from prismgp.vae.elbo import conditional_kl, marginal_kl, sample_components
from tests.vae.small import some_prior


def some_posterior(n, k, latent_dim, seed=0):
    rng = np.random.default_rng(seed)
    log_weights = torch.log_softmax(torch.as_tensor(rng.normal(size=(n, k))), -1)
    mean, log_var = (torch.as_tensor(rng.normal(size=(n, k, latent_dim))) for _ in range(2))
    return log_weights, mean, log_var - 1.0


def mixture_of(log_weights, mean, log_var):
    parts = torch.distributions.Independent(torch.distributions.Normal(mean, torch.exp(log_var / 2)), 1)
    return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=log_weights), parts)


def draws(q, count, seed):
    """Points of the mixtures by ancestral sampling: not the estimator's way."""
    log_weights, mean, log_var = q
    rng = np.random.default_rng(seed)
    n, k, latent_dim = mean.shape
    chosen = np.stack([rng.choice(k, count, p=row) for row in log_weights.exp().numpy()])
    picked = np.arange(n)[:, None]
    noise = rng.normal(size=(n, count, latent_dim))
    return mean[picked, chosen] + torch.exp(0.5 * log_var[picked, chosen]) * torch.as_tensor(noise)


@pytest.mark.parametrize("k", [1, 3])
def test_conditional_kl_is_unbiased_r6(k):
    q, prior = some_posterior(4, k, 2), some_prior()
    points = draws(q, 100_000, 1)
    log_ratio = torch.stack([mixture_of(*(part[i] for part in q)).log_prob(points[i]) for i in range(4)])
    reference = (log_ratio - prior.log_prob(points)).mean(1).detach()
    repeats = 20_000
    many = [part.repeat_interleave(repeats, 0) for part in q]
    noise = torch.randn(many[1].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = sample_components(many[1], many[2], noise)
    estimate = conditional_kl(GaussianMixture(*many), z, prior).detach().reshape(4, repeats)
    error = estimate.std(1) / math.sqrt(repeats)
    assert bool(((estimate.mean(1) - reference).abs() < 5 * error + 0.01).all())


def test_gaussian_conditional_kl_has_its_closed_form():
    """Against one cluster, a single Gaussian's divergence is known exactly."""
    prior, q = MixturePrior(1, 2).double(), some_posterior(1, 1, 2)
    torch.nn.init.constant_(prior.log_widths, math.log(0.8))
    normal = torch.distributions.Normal(q[1][0, 0], torch.exp(q[2][0, 0] / 2))
    exact = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 0.8)).sum()
    many = [part.repeat_interleave(50_000, 0) for part in q]
    noise = torch.randn(many[1].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = conditional_kl(GaussianMixture(*many), sample_components(many[1], many[2], noise), prior).detach()
    assert float(estimate.mean()) == pytest.approx(
        float(exact), abs=5 * float(estimate.std()) / math.sqrt(50_000) + 1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_marginal_kl_r7(k):
    """With S all rows it is unbiased for KL(q || p); with fewer rows it is too high, and less so for more."""
    n, prior = 48, some_prior()
    q = some_posterior(n, k, 2)
    points = draws(q, 2_000, 1).reshape(-1, 2)
    everything = mixture_of((q[0] - math.log(n)).reshape(-1), q[1].reshape(-1, 2), q[2].reshape(-1, 2))
    ratios = (everything.log_prob(points) - prior.log_prob(points)).detach()
    exact = float(ratios.mean())
    generator = torch.Generator().manual_seed(0)

    def average(reference_rows):
        values = []
        for _ in range(200):
            order = torch.randperm(n, generator=generator)
            rows = [part[order] for part in q]
            noise = torch.randn(rows[1].shape, generator=generator, dtype=torch.float64)
            z = sample_components(rows[1], rows[2], noise)
            found = marginal_kl(GaussianMixture(*rows), z, prior, reference_rows=reference_rows)
            values.append(float(found.detach()))
        return np.mean(values), np.std(values) / math.sqrt(len(values))

    full, error = average(n)
    assert full == pytest.approx(exact, abs=5 * error + 0.01)
    half, few = average(24)[0], average(4)[0]
    assert exact < half < few
    row, z = GaussianMixture(*(part[:1] for part in q)), q[1][:1]
    torch.testing.assert_close(marginal_kl(row, z, prior), conditional_kl(row, z, prior)[0])


def test_narrow_components_keep_their_digits_in_float32():
    log_weights, mean, _ = (part.float() for part in some_posterior(8, 2, 3))
    parts = [log_weights, mean + 20.0, torch.full_like(mean, -10.0)]
    z = sample_components(parts[1], parts[2], torch.ones_like(mean))
    prior = some_prior(2, 3)
    found = conditional_kl(GaussianMixture(*parts), z, prior.float())
    expected = conditional_kl(GaussianMixture(*(part.double() for part in parts)), z.double(), prior.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-2)


def test_gradients_reach_everything_and_are_right():
    generator = torch.Generator().manual_seed(0)
    vae = MixtureVAE(3, 3, 2, 4, generator=generator).double()
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(6, 3, 2, generator=generator, dtype=torch.float64)

    def objective():
        return elbo_terms(x, vae.encoder(x), vae.decoder, vae.prior, noise, alpha=8.0, beta=1.2).objective

    objective().backward()
    for name, parameter in vae.named_parameters():
        assert parameter.grad is not None, name
        if name.endswith("first_bias"):
            continue  # batch norm takes the shift away
        assert float(parameter.grad.abs().max()) > 0, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        step, values = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                values.append(objective().item())
                parameter.sub_(sign * step * direction)
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(
            float((parameter.grad * direction).sum()), rel=1e-4, abs=1e-6
        ), name


def test_terms_add_up():
    vae = MixtureVAE(3, 2, 2, 4, generator=torch.Generator().manual_seed(0))
    x, noise = torch.ones(4, 3), torch.zeros(4, 2, 2)
    terms = elbo_terms(x, vae.encoder(x), vae.decoder, vae.prior, noise, alpha=3.0, beta=0.5).as_floats()
    total = terms["reconstruction"] - terms["conditional_kl"] - 3 * terms["marginal_kl"] + 0.5 * terms["separation"]
    assert terms["objective"] == pytest.approx(total, rel=1e-5)
