"""The evidence equals the multivariate normal density; gradients equal central differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.core.evidence import SpectralEvidence
from prismgp.core.exact import ExactEvidence
from prismgp.core.kernels import KERNELS, Parameters
from prismgp.core.models import Standardiser
from prismgp.core.statistics import solve_outputs
from prismgp.data import ArraySource, Chunks
from tests import reference
from tests.tolerances import EVIDENCE, FLOAT32, GRADIENT

CPU = torch.device("cpu")


def spectral(rng, *, n=80, d=3, q=2, p=7, rows=33, dtype=torch.float64, learn=False):
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, q)) + 0.3
    source = ArraySource(x, y)
    identity = Standardiser(np.zeros(d), np.ones(d), np.zeros(q), np.ones(q), np.zeros(q))
    chunks = Chunks(source, identity, rows=rows, dtype=dtype, device=CPU)
    frequencies = rng.normal(size=(p, d))
    params = Parameters(
        rng.normal(size=d) * 0.5,
        rng.normal(size=q),
        rng.normal(size=q) - 1.5,
        rng.normal(size=q),
        frequencies if learn else None,
    )
    return x, y, frequencies, params, SpectralEvidence(chunks, frequencies)


def central_differences(value, vector, step=1e-6):
    steps = step * np.eye(len(vector))
    return np.array([(value(vector + e) - value(vector - e)) / (2 * step) for e in steps])


@pytest.mark.parametrize("n", [1, 5, 80])
@pytest.mark.parametrize("p", [1, 7, 60])
def test_spectral_evidence_is_the_normal_density(rng, n, p):
    x, y, frequencies, params, objective = spectral(rng, n=n, p=p)
    k = reference.spectral_kernel(frequencies, x, x, params.lengthscale)
    expected = sum(
        reference.log_density(y[:, o], params.mean[o], params.signal[o] * k + params.noise[o] * np.eye(n))
        for o in range(2)
    )
    assert objective.value(params) == pytest.approx(expected, rel=EVIDENCE)
    assert objective.value_and_gradient(params)[0] == pytest.approx(expected, rel=EVIDENCE)


def test_evidence_terms_add_up_and_match_their_definitions(rng):
    x, y, frequencies, params, objective = spectral(rng)
    out = solve_outputs(objective.statistics(params), params)[1]
    n, noise = len(x), params.noise[1]
    k = params.signal[1] * reference.spectral_kernel(frequencies, x, x, params.lengthscale)
    covariance = k + noise * np.eye(n)
    residual = y[:, 1] - params.mean[1]
    assert out.const == pytest.approx(-0.5 * n * np.log(2 * np.pi * noise))
    assert out.logdet == pytest.approx(-0.5 * (np.linalg.slogdet(covariance)[1] - n * np.log(noise)), rel=EVIDENCE)
    assert out.quad == pytest.approx(-0.5 * residual @ np.linalg.solve(covariance, residual), rel=EVIDENCE)


@pytest.mark.parametrize("learn", [False, True])
def test_spectral_gradient(rng, learn):
    *_, params, objective = spectral(rng, learn=learn)
    _, gradient = objective.value_and_gradient(params)
    expected = central_differences(lambda v: objective.value(params.unpack(v)), params.pack())
    np.testing.assert_allclose(gradient.pack(), expected, rtol=GRADIENT, atol=GRADIENT)


def test_float32_features_stay_close(rng):
    state = rng.bit_generator.state
    *_, params, double = spectral(rng, n=500)
    rng.bit_generator.state = state
    *_, single = spectral(rng, n=500, dtype=torch.float32)
    value, gradient = double.value_and_gradient(params)
    value32, gradient32 = single.value_and_gradient(params)
    assert value32 == pytest.approx(value, rel=FLOAT32)
    np.testing.assert_allclose(
        gradient32.pack(), gradient.pack(), rtol=FLOAT32, atol=FLOAT32 * np.abs(gradient.pack()).max()
    )


@pytest.mark.parametrize("name", list(KERNELS))
def test_exact_evidence_and_gradient(rng, name):
    n, d, q = 40, 3, 2
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, q))
    x[1] = x[0]  # a duplicate row: distance zero off the diagonal
    objective = ExactEvidence(torch.tensor(x), torch.tensor(y), KERNELS[name])
    params = Parameters(rng.normal(size=d) * 0.5, rng.normal(size=q), rng.normal(size=q) - 1, rng.normal(size=q))
    value, gradient = objective.value_and_gradient(params)
    k = reference.kernel(name, x, x, params.lengthscale)
    expected = sum(
        reference.log_density(y[:, o], params.mean[o], params.signal[o] * k + params.noise[o] * np.eye(n))
        for o in range(q)
    )
    # The product form of the distance leaves about 1e-8 between duplicate rows, which the
    # kink of matern12 at zero lets through.
    assert value == pytest.approx(expected, rel=1e-6 if name == "matern12" else EVIDENCE)
    numeric = central_differences(lambda v: objective.value(params.unpack(v)), params.pack())
    np.testing.assert_allclose(gradient.pack(), numeric, rtol=GRADIENT, atol=GRADIENT * np.abs(numeric).max())
