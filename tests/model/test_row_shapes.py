"""Tails beside a predictive distribution (Z6): moments stay, far values stay possible, quantiles invert the cdf."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.core.models import Marginals
from prismgp.core.shape import NormalShape, SkewedShape, StudentShape
from prismgp.model.row_shapes import (
    TAIL_VARIANCES,
    TAIL_WEIGHTS,
    add_tail_density,
    add_tails,
    tailed_log_density,
    tailed_quantiles,
)

SHARE = 1.0 / 101.0
AWAY = np.linspace(-10.0, 10.0, 40_001)
GRID, WIDTH = np.sinh(AWAY), np.cosh(AWAY)


def mixture(rng, n=4, q=2, parts=3):
    """Mixtures of normals with their true moments."""
    weights = torch.as_tensor(rng.dirichlet(np.ones(parts)))
    centers, variances = (
        torch.as_tensor(rng.normal(size=(parts, n, q))),
        torch.as_tensor(rng.uniform(0.1, 2, (parts, n, q))),
    )
    mean = torch.tensordot(weights, centers, 1)
    variance = torch.tensordot(weights, variances + (centers - mean) ** 2, 1)
    return Marginals(mean, variance, weights, centers, variances)


def test_tails_have_variance_one():
    assert TAIL_WEIGHTS.sum() == pytest.approx(1.0)
    assert pytest.approx(1.0) == TAIL_WEIGHTS @ TAIL_VARIANCES


@pytest.mark.parametrize("shape", [NormalShape(), StudentShape(5.0), SkewedShape(8.0, 1.5)], ids=lambda s: s.kind)
def test_shapes_keep_mean_and_variance(shape):
    density = np.exp(tailed_log_density(shape, SHARE, GRID)) * WIDTH
    moments = [np.trapezoid(density * GRID**power, AWAY) for power in range(3)]
    np.testing.assert_allclose(moments, [1.0, 0.0, 1.0], atol=1e-5)


def test_mixtures_keep_their_moments(rng):
    before = mixture(rng)
    after = add_tails(before, SHARE)
    assert float(after.weights.sum()) == pytest.approx(1.0)
    mean = torch.tensordot(after.weights, after.centers, 1)
    torch.testing.assert_close(mean, before.mean)
    variance = torch.tensordot(after.weights, after.variances + (after.centers - mean) ** 2, 1)
    torch.testing.assert_close(variance, before.variance)
    assert add_tails(before, 0.0) is before


def test_what_is_near_is_hardly_touched_and_what_is_far_is_possible():
    z = np.array([0.0, 1.0, 2.0, 5.0, 50.0, 500.0])
    plain, tailed = NormalShape().log_density(z), tailed_log_density(NormalShape(), SHARE, z)
    np.testing.assert_allclose(tailed[:3], plain[:3], atol=0.02)
    # The density falls like the fourth power of the distance, up to what the steps between the widths are.
    slopes = np.diff(tailed[3:]) / np.diff(np.log(z[3:]))
    assert (slopes > -5.0).all()
    assert (slopes < -3.0).all()
    assert plain[-1] < -1e5 < -40 < tailed[-1]


def test_log_densities_of_shapes_and_mixtures_agree(rng):
    z = rng.normal(size=(20, 1)) * 10
    zeros = torch.zeros(20, 1, dtype=torch.float64)
    found = add_tails(Marginals.normal(zeros, zeros + 1.0), SHARE).log_density(torch.as_tensor(z))
    np.testing.assert_allclose(found.numpy(), tailed_log_density(NormalShape(), SHARE, z), rtol=1e-12)


@pytest.mark.parametrize("shape", [NormalShape(), StudentShape(3.0), SkewedShape(8.0, 0.6)], ids=lambda s: s.kind)
def test_quantiles_invert_the_distribution(shape):
    levels = [1e-4, 0.025, 0.5, 0.9, 0.975, 0.9999]
    density = np.exp(tailed_log_density(shape, SHARE, GRID)) * WIDTH
    below = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(AWAY)))
    found = tailed_quantiles(shape, SHARE, levels)
    np.testing.assert_allclose(np.interp(found, GRID, below), levels, atol=1e-6)
    np.testing.assert_array_equal(tailed_quantiles(shape, 0.0, levels), shape.quantile(np.array(levels)))


def test_joint_density_of_outputs(rng):
    """One output: the marginal. Several: (1 - e) times the joint density and e times independent tails."""
    one = mixture(rng, q=1)
    y = torch.as_tensor(rng.normal(size=(4, 1)) * 5)
    joint = add_tail_density(one.log_density(y).sum(1), one, y, SHARE)
    torch.testing.assert_close(joint, add_tails(one, SHARE).log_density(y).sum(1))
    two = mixture(rng)
    y = torch.as_tensor(rng.normal(size=(4, 2)) * 5)
    given = torch.as_tensor(rng.normal(size=4))
    z = ((y - two.mean) / two.variance.sqrt()).numpy()
    far = [
        tailed_log_density(NormalShape(), 1.0 - 1e-15, z[:, k]) - 0.5 * np.log(two.variance[:, k].numpy())
        for k in (0, 1)
    ]
    expected = np.logaddexp(given.numpy() + np.log1p(-SHARE), far[0] + far[1] + np.log(SHARE))
    np.testing.assert_allclose(add_tail_density(given, two, y, SHARE).numpy(), expected, rtol=1e-9)
    assert add_tail_density(given, two, y, 0.0) is given
