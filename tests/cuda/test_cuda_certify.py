"""Certificates on a GPU; skipped, saying so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp import PrismGPRegressor, SSGPRegressor, certify

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

FIXED = {"lengthscale": 1.5, "signal_variance": 2.0, "noise_variance": 0.1, "mean": 0.2, "optimize": False}


def rows(n=1500, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern52"])
@pytest.mark.parametrize("options", [{}, {"gating": "soft", "n_components": 3}, {"gating": "hard", "n_components": 3}])
def test_certificates_agree_with_the_cpu(kernel, options):
    x, y = rows()
    found = []
    for device in ("cpu", "cuda"):
        model = SSGPRegressor(64, kernel=kernel, device=device, random_state=0, **FIXED, **options).fit(x, y)
        found.append(certify(model, x, y, x[:50] + 0.1, rank=200, products=9, random_state=0))
    cpu, gpu = found
    assert cpu.holds
    assert gpu.holds
    assert gpu.probability == pytest.approx(cpu.probability)
    for name in ("kernel_error", "kernel_error_frobenius", "log_evidence", "mean", "variance"):
        a, b = getattr(cpu, name), getattr(gpu, name)
        # Pivots are nearly ties, and rounding breaks them differently; but both contain the same value, and overlap.
        assert (np.maximum(a.lower, b.lower) <= np.minimum(a.upper, b.upper)).all()
        small = 1e-6 * np.max(np.abs(a.upper))
        assert 0.2 * np.max(a.width) - small < np.max(b.width) < 5.0 * np.max(a.width) + small


def test_ensembles_on_the_gpu():
    x, y = rows(400)
    model = PrismGPRegressor(8, n_members=2, max_steps=25, device="cuda", random_state=0).fit(x, y)
    certificate = certify(model, x, y, x[:20] + 0.1, rank=100, products=6, random_state=0)
    assert certificate.holds
    assert certificate.mean.ordered
    np.testing.assert_allclose(certificate.mean.ours, model.predict(x[:20] + 0.1), rtol=1e-5, atol=1e-5)
