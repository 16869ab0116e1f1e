"""Mixtures of normal distributions: density, distribution function and quantiles belong together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from prismgp.core.models import Marginals

LEVELS = [1e-12, 1e-6, 0.005, 0.025, 0.3, 0.5, 0.7, 0.975, 0.995, 1 - 1e-6, 1 - 1e-12]


def mixture(rng: np.random.Generator, k: int, *, n: int = 30, q: int = 2, spread: float = 3.0) -> Marginals:
    """Parts with standard deviations from 1/100 to 100, many of them apart."""
    weights = torch.as_tensor(rng.dirichlet(np.ones(k)))
    centers = torch.as_tensor(spread * rng.normal(size=(k, n, q)))
    variances = torch.as_tensor(10.0 ** rng.uniform(-4, 4, size=(k, n, q)))
    mean = torch.tensordot(weights, centers, 1)
    variance = torch.tensordot(weights, variances + (centers - mean).square(), 1)
    return Marginals(mean, variance, weights, centers, variances)


def cdf(found: Marginals, y: torch.Tensor) -> np.ndarray:
    """Probability of values up to y, entry by entry."""
    parts = stats.norm.cdf(y.numpy(), found.centers.numpy(), found.variances.sqrt().numpy())
    return np.tensordot(found.weights.numpy(), parts, 1)


@pytest.mark.parametrize("spread", [0.0, 3.0, 300.0])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_quantiles_invert_the_distribution_function(rng, k, spread):
    found = mixture(rng, k, spread=spread)
    quantiles = found.quantiles(LEVELS)
    assert quantiles.shape == (30, 2, len(LEVELS))
    for j, level in enumerate(LEVELS):
        # Where the density is high, rounding of the quantile shows in the probability.
        rounding = 4e-16 * (quantiles[..., j].abs() / found.variances.amin(0).sqrt()).numpy() + 1e-14
        error = np.abs(cdf(found, quantiles[..., j]) - level)
        assert (error <= rounding + 1e-12 * level).all()
    assert (quantiles.diff(dim=2) > 0).all()


def test_tails_keep_their_digits(rng):
    found = mixture(rng, 3)
    tail = cdf(found, found.quantiles([1e-12])[..., 0])
    np.testing.assert_allclose(tail, 1e-12, rtol=1e-12)


def test_one_part_is_normal(rng):
    found = mixture(rng, 1)
    expected = stats.norm.ppf(0.1, found.mean, found.variance.sqrt())
    np.testing.assert_allclose(found.quantiles([0.1])[..., 0], expected, rtol=1e-13)
    y = found.quantiles([0.9])[..., 0]
    np.testing.assert_allclose(found.log_density(y).numpy(), _log_density(found, y), rtol=1e-12)


def _log_density(found: Marginals, y: torch.Tensor) -> np.ndarray:
    parts = stats.norm.pdf(y.numpy(), found.centers.numpy(), found.variances.sqrt().numpy())
    return np.log(np.tensordot(found.weights.numpy(), parts, 1))


def test_density_is_the_slope_of_the_distribution_function(rng):
    found = mixture(rng, 3)
    y = found.quantiles([0.2])[..., 0]
    np.testing.assert_allclose(found.log_density(y).numpy(), _log_density(found, y), rtol=1e-10)
    # 16-point Gauss rule over an interval that is short for the narrowest part.
    width = 0.5 * found.variances.sqrt().amin(0)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    mass = sum(w * (found.log_density(y + width * node)).exp() for node, w in zip(nodes, weights, strict=True)) * width
    np.testing.assert_allclose(mass.numpy(), cdf(found, y + width) - cdf(found, y - width), rtol=1e-8)


def test_quantiles_do_not_depend_on_the_other_rows(rng):
    found = mixture(rng, 4)
    part = Marginals(found.mean[:5], found.variance[:5], found.weights, found.centers[:, :5], found.variances[:, :5])
    torch.testing.assert_close(part.quantiles(LEVELS), found.quantiles(LEVELS)[:5], rtol=0, atol=0)
