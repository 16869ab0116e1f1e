"""Frequencies follow the right d-dimensional law: the kernel estimate converges to the exact kernel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from prismgp import SpectralFeatures
from prismgp.core.kernels import KERNELS, draw_frequencies, resolve_kind
from prismgp.exceptions import DataError
from tests import reference

KINDS = ("iid", "orthogonal", "sobol")


def rms_error(name, kind, d, p, seeds):
    """Root mean square error of kernel entries over pairs of points and draws."""
    rng = np.random.default_rng(99)
    x = rng.normal(size=(24, d))
    lengthscale = np.full(d, np.sqrt(d)) * rng.uniform(0.7, 1.4, d)
    exact = reference.kernel(name, x, x, lengthscale)
    errors = []
    for seed in seeds:
        e = draw_frequencies(KERNELS[name], p, d, kind, np.random.default_rng(seed))
        errors.append(reference.spectral_kernel(e, x, x, lengthscale) - exact)
    return float(np.sqrt(np.mean(np.square(errors)))), np.mean(errors, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [3, 8])
@pytest.mark.parametrize("name", list(KERNELS))
def test_error_shrinks_like_the_square_root(name, d, kind):
    """Sixteen times the frequencies: a quarter of the error or less, and no floor."""
    few, _ = rms_error(name, kind, d, 64, range(12))
    many, bias = rms_error(name, kind, d, 1024, range(12))
    assert few < 64**-0.5  # the standard deviation of a cosine is at most 1 / sqrt(2), and 1 is generous
    assert many < few / 4 * 1.25
    # Unbiased: what is left of the mean error is sampling noise.
    assert np.abs(bias).max() < 6 * (1024 * 12) ** -0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KERNELS))
def test_iid_error_has_the_known_constant(name):
    """E (k_p - k)^2 = (1 + k(2s) - 2 k(s)^2) / 2p for the normal law: checks the rate's constant too."""
    d, p = 3, 256
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, d))
    one = np.ones(d)
    exact = reference.kernel(name, x, x, one)
    doubled = reference.kernel(name, 2 * x, 2 * x, one)  # cos^2 = (1 + cos 2a) / 2
    variance = (0.5 * (1 + doubled) - exact**2) / p
    measured, _ = zip(*[(_one_error(name, x, p, seed), 0) for seed in range(60)], strict=True)
    off = ~np.eye(30, dtype=bool)
    ratio = np.mean(measured, axis=0)[off].mean() / variance[off].mean()
    assert ratio == pytest.approx(1.0, abs=0.15)


def _one_error(name, x, p, seed):
    e = draw_frequencies(KERNELS[name], p, x.shape[1], "iid", np.random.default_rng(seed))
    one = np.ones(x.shape[1])
    return (reference.spectral_kernel(e, x, x, one) - reference.kernel(name, x, x, one)) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_matern_coordinates_share_their_mixing_variable(kind):
    """Independent t coordinates would give a product kernel. A shared one shows in the norms."""
    d, p = 8, 4096
    e = draw_frequencies(KERNELS["matern32"], p, d, kind, np.random.default_rng(0))
    norms = np.linalg.norm(e, axis=1) ** 2 / d
    assert stats.kstest(norms, stats.f(d, 3).cdf).pvalue > 1e-3


def test_orthogonal_blocks_and_stratified_norms():
    d, p = 5, 12
    e = draw_frequencies(KERNELS["rbf"], p, d, "orthogonal", np.random.default_rng(0))
    directions = e / np.linalg.norm(e, axis=1, keepdims=True)
    for start in (0, 5, 10):
        block = directions[start : start + 5]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-12)
    strata = np.sort(np.floor(stats.chi(d).cdf(np.linalg.norm(e, axis=1)) * p))
    np.testing.assert_array_equal(strata, np.arange(p))


def test_orthogonal_and_sobol_beat_iid():
    """The reason they exist; data and length-scales differ from those of any tuning."""
    for d, kind in ((2, "sobol"), (6, "orthogonal")):
        better, _ = rms_error("rbf", kind, d, 64, range(30))
        plain, _ = rms_error("rbf", "iid", d, 64, range(30))
        assert better < 0.95 * plain


def test_auto():
    assert resolve_kind("auto", 4) == "sobol"
    assert resolve_kind("auto", 5) == "orthogonal"
    with pytest.raises(DataError, match="choose one of auto, iid"):
        resolve_kind("halton", 3)


@pytest.mark.parametrize("p", [1, 2, 3, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_any_count_and_reproducible(kind, p):
    first, second = (draw_frequencies(KERNELS["rbf"], p, 3, kind, np.random.default_rng(7)) for _ in range(2))
    assert first.shape == (p, 3)
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(first, second)


def test_transformer_approximates_the_kernel(rng):
    x = rng.normal(size=(50, 3)) * [1, 20, 0.01] + [5, -100, 3]
    lengthscale = np.array([1.0, 30.0, 0.02])
    z = SpectralFeatures(2048, lengthscale=lengthscale, random_state=0).fit_transform(x)
    assert z.shape == (50, 4096)
    np.testing.assert_allclose((z**2).sum(1), 1.0, rtol=1e-12)
    assert np.abs(z @ z.T - reference.kernel("rbf", x, x, lengthscale)).max() < 5 * 2048**-0.5
