"""The factorisation never fails on a finite matrix, and says what it did."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.core.numerics import factor, factor_all, invert_lower
from prismgp.exceptions import NumericalError


def low_rank(rng, k, rank):
    b = torch.tensor(rng.normal(size=(k, rank)))
    return b @ b.T


@pytest.mark.slow
def test_ordinary_case_is_plain_cholesky(rng):
    a = torch.eye(20, dtype=torch.float64) + low_rank(rng, 20, 5)
    fac = factor(a)
    assert (fac.method, fac.jitter) == ("cholesky", 0.0)
    torch.testing.assert_close(fac.lower @ fac.lower.T, a)
    torch.testing.assert_close(fac.inverse() @ a, torch.eye(20, dtype=torch.float64))
    torch.testing.assert_close(fac.inverse_root().T @ fac.inverse_root(), fac.inverse())
    assert float(fac.logdet()) == pytest.approx(float(torch.logdet(a)))


@pytest.mark.parametrize("scale", [1e8, 1e14, 1e18, 1e30])
def test_hopelessly_conditioned(rng, scale):
    a = torch.eye(60, dtype=torch.float64) + scale * low_rank(rng, 60, 3)
    fac = factor(a)
    assert torch.isfinite(fac.lower).all()
    assert torch.isfinite(fac.logdet())
    difference = (fac.lower @ fac.lower.T - a).abs().max()
    assert float(difference) <= 1e-10 * float(a.abs().max())


def test_indefinite_by_rounding_is_repaired_and_recorded(rng):
    q = torch.linalg.qr(torch.tensor(rng.normal(size=(30, 30)))).Q
    values = torch.logspace(0, 12, 30, dtype=torch.float64)
    values[0] = -1e-3
    fac = factor((q * values) @ q.T)
    assert fac.method != "cholesky"
    assert fac.jitter > 0
    assert torch.isfinite(fac.lower).all()


def test_strongly_indefinite_falls_back_to_eigenvalues(rng):
    q = torch.linalg.qr(torch.tensor(rng.normal(size=(10, 10)))).Q
    values = torch.linspace(1, 10, 10, dtype=torch.float64)
    values[0] = -5.0
    fac = factor((q * values) @ q.T)
    assert fac.method == "eigen"
    assert fac.jitter == pytest.approx(6.0)
    clamped = (q * values.clamp_min(1.0)) @ q.T
    torch.testing.assert_close(fac.lower @ fac.lower.T, clamped)
    assert bool((fac.lower.diagonal() > 0).all())


def test_nan_is_refused():
    a = torch.full((3, 3), np.nan, dtype=torch.float64)
    with pytest.raises(NumericalError, match="NaN"):
        factor(a)


def test_several_matrices_are_factored_each_for_itself(rng):
    """One that needs no help, one that does, and one that cannot be factored."""
    q = torch.linalg.qr(torch.tensor(rng.normal(size=(10, 10)))).Q
    values = torch.linspace(1, 10, 10, dtype=torch.float64)
    values[0] = -5.0
    plain = torch.eye(10, dtype=torch.float64) + low_rank(rng, 10, 4)
    repaired, hopeless = (q * values) @ q.T, torch.full((10, 10), np.nan, dtype=torch.float64)
    found = factor_all(torch.stack([plain, repaired, hopeless]))
    torch.testing.assert_close(found[0], factor(plain).lower, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found[1], factor(repaired).lower)
    assert bool(torch.isnan(found[2]).all())


@pytest.mark.parametrize("k", [1, 31, 32, 33, 100, 257])
def test_triangular_matrices_are_inverted_by_blocks(rng, k):
    a = torch.tensor(rng.normal(size=(3, k, k)))
    lower = torch.linalg.cholesky(torch.eye(k, dtype=torch.float64) + 100.0 * a @ a.mT)
    eye = torch.eye(k, dtype=torch.float64).expand_as(lower)
    torch.testing.assert_close(
        invert_lower(lower), torch.linalg.solve_triangular(lower, eye, upper=False), rtol=1e-10, atol=1e-13
    )
