"""Certificates against reference values.

The values come from an independent implementation of the same bounds, dense and in NumPy, run once with the seeds named
here: 1,500 rows of a toy function in four dimensions, noise 0.1, an SSGP of 256 frequencies with the true kernel.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from prismgp.certificates.certify_problem import certify_problem
from prismgp.certificates.evidence import Solution, logdet_by_rank, quadratic
from prismgp.certificates.kernel_error import spectral_by_rank
from prismgp.certificates.kernel_matrix import KernelMatrix, ReferenceKernel
from prismgp.certificates.krylov import Budget, conjugate_gradients, ritz_shortfall, run_together
from prismgp.certificates.lowrank import LowRank, NystromMap, select_pivots
from prismgp.certificates.problem import Effort, Features, Problem, TestPoints
from prismgp.core.kernels import get_kernel

N, NOISE = 1500, 0.1
NLL, LOGDET, QUADRATIC = -714.5973037315538, -3066.765299708635, 1637.5706922455277  # without n/2 log(2 pi)
DIFFERENCE = 1.573026137504998  # largest |mu - mu'| over 300 test points
CERTIFIED = 1.5730261375081662  # bound on it from 5 products and rank 400
INTERVAL = (-714.9281618332687, -714.3728380118131)  # for the NLL, from the same
LARGEST, WIDTH = 15.687, 15.798 - 15.687  # eigenvalue of K - K', and how closely rank 400 knows it


def toy(rows: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of the draws fixes the reference values."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, d))
    mix = np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d)
    x = x @ mix
    x = (x - x.mean(0)) / x.std(0)
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * np.cos(x[:, 2]) + 0.3 * rng.standard_normal(rows)
    return x / 1.5, (y - y.mean()) / y.std()


def features(x: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    angle = x @ frequencies.T
    return np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(len(frequencies))


@pytest.fixture(scope="module")
def problem() -> Problem:
    x, y = toy(1800, 4, 62)
    frequencies = np.random.default_rng(7).standard_normal((256, 4))
    phi = features(x, frequencies)
    inner = phi[:N].T @ phi[:N] + NOISE * np.eye(512)
    weights = np.linalg.solve(inner, phi[:N].T @ y[:N])
    evidence = np.linalg.slogdet(inner)[1] + (N - 512) * np.log(NOISE)
    evidence += (y[:N] @ y[:N] - y[:N] @ phi[:N] @ weights) / NOISE + N * np.log(2 * np.pi)
    variance = NOISE * (phi[N:] * np.linalg.solve(inner, phi[N:].T).T).sum(1)
    rows = ReferenceKernel.on(get_kernel("rbf"), torch.as_tensor(x[:N]))
    return Problem(
        rows=rows,
        features=Features(torch.as_tensor(phi[:N]), None),
        target=torch.as_tensor(y[:N, None]),
        weight=None,
        signal=np.ones(1),
        noise=np.full(1, NOISE),
        mean=np.zeros(1),
        log_evidence=-0.5 * evidence,
        test=TestPoints(
            rows.at(torch.as_tensor(x[N:]), None),
            (phi[N:] @ weights)[:, None],
            variance[:, None],
            np.full((300, 1), NOISE),
        ),
        name="toy",
        statement="",
    )


@pytest.fixture(scope="module")
def exact(problem) -> tuple[float, float, np.ndarray]:
    """Log determinant, quadratic form and means, by a dense Cholesky factorisation."""
    x, test = problem.rows.points.numpy(), problem.test.rows.points.numpy()

    def kernel(a):
        return np.exp(-0.5 * ((a[:, None] - x[None]) ** 2).sum(-1))

    lower = np.linalg.cholesky(kernel(x) + NOISE * np.eye(N))
    y = problem.target.numpy()[:, 0]
    alpha = np.linalg.solve(lower.T, np.linalg.solve(lower, y))
    return 2 * np.log(np.diag(lower)).sum(), y @ alpha, kernel(test) @ alpha


def low_rank(problem, rank):
    pivots, _ = select_pivots(problem.rows, rank, weight=None, generator=torch.Generator())
    return LowRank.of(NystromMap.of(problem.rows.rows(pivots)), problem.rows, None)


def solved(problem, solve, steps):
    """Conjugate gradients after so many steps, the first solution being number zero, and its residual."""
    noise = torch.full((1,), NOISE, dtype=torch.float64)
    task = conjugate_gradients(
        problem.target,
        solve=solve,
        before=lambda v: v,
        after=lambda v, kv: kv + NOISE * v,
        noise=noise,
        enough=torch.zeros(1),
    )
    a = run_together(KernelMatrix(problem.rows).product, [task], Budget(steps + 1 if steps else 0))[0]
    product, error = KernelMatrix(problem.rows).bounded_product(a, closely=1, norm=float(N))
    return Solution.of_product(problem.target, a, noise, product, error)


def test_the_reference_is_regenerated(problem, exact):
    logdet, form, mean = exact
    assert logdet == pytest.approx(LOGDET, rel=1e-11)
    assert form == pytest.approx(QUADRATIC, rel=1e-11)
    assert 0.5 * (logdet + form) == pytest.approx(NLL, rel=1e-11)
    assert np.abs(mean - problem.test.mean[:, 0]).max() == pytest.approx(DIFFERENCE, rel=1e-10)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (200, ["2.20e+00", "3.92e-01", "1.25e-04", "5.79e-09"]),
        (400, ["5.64e-02", "3.08e-04"]),
    ],
)
def test_half_widths_of_conjugate_gradients(problem, rank, expected):
    """The same steps; our pivots come by blocks, so widths are those of the reference to a factor of a few."""
    low = low_rank(problem, rank)
    noise = torch.full((1,), NOISE, dtype=torch.float64)
    for steps, width in zip((0, 1, 5, 10), expected, strict=False):
        found = solved(problem, lambda v: low.solve(noise, v), steps)
        half = float(found.norm[0]) / (2 * math.sqrt(NOISE))
        assert 0.1 * float(width) < half < 5.0 * float(width) + 1e-9


def test_half_widths_with_the_model_as_preconditioner(problem):
    """No choice of pivots here: to the digits given."""
    phi = problem.features.phi
    inner = torch.linalg.cholesky(phi.T @ phi + NOISE * torch.eye(512, dtype=torch.float64))

    def solve(v):
        return (v - phi @ torch.cholesky_solve(phi.T @ v, inner)) / NOISE

    expected = {0: "1.92e+02", 1: "2.86e+01", 5: "3.19e+00", 10: "5.03e-01", 20: "9.50e-03"}
    for steps, width in expected.items():
        found = solved(problem, solve, steps)
        assert f"{float(found.norm[0]) / (2 * math.sqrt(NOISE)):.2e}" == width


def test_evidence_of_five_products(problem):
    low = low_rank(problem, 400)
    noise = torch.full((1,), NOISE, dtype=torch.float64)
    found = solved(problem, lambda v: low.solve(noise, v), 5)
    form, logdet = quadratic(found, low), logdet_by_rank(low, NOISE)
    lower, upper = (0.5 * (a + float(b[0])) for a, b in ((logdet.lower, form[0]), (logdet.upper, form[1])))
    assert lower <= NLL <= upper
    assert upper - lower <= INTERVAL[1] - INTERVAL[0]


def test_certificate(problem, exact):
    effort = Effort(rank=400, products=6, seconds=None, delta=0.0, tolerance=0.0, seed=0)
    found = certify_problem(problem, effort)
    constant = 0.5 * N * math.log(2 * math.pi)
    assert not found.reason
    assert found.log_evidence.lower <= -NLL - constant <= found.log_evidence.upper
    assert found.log_evidence.width <= INTERVAL[1] - INTERVAL[0]
    assert found.mean.contains(exact[2][:, None]).all()
    assert DIFFERENCE - 1e-9 <= found.mean.difference.max() <= CERTIFIED + 1e-8
    assert found.mean.difference_at_least.max() == pytest.approx(DIFFERENCE, abs=1e-8)


def test_kernel_error(problem):  # (F1)
    x, phi = problem.rows.points.numpy(), problem.features.phi.numpy()
    values = np.linalg.eigvalsh(np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) - phi @ phi.T)
    assert values[-1] == pytest.approx(LARGEST, abs=5e-4)
    norm = spectral_by_rank(problem, low_rank(problem, 400))
    assert norm.lower <= np.abs(values).max() <= norm.upper
    assert norm.width <= WIDTH


@pytest.mark.parametrize(
    ("n", "steps", "delta", "factor"),
    [
        (600, 10, 0.05, 1.0685062696119658),
        (2000, 10, 0.01, 1.1320404619917068),
        (2000, 20, 0.01, 1.02713494302616),
        (4_000_000, 15, 0.01, 1.112453608963728),
        (4_000_000, 25, 0.01, 1.035414079107916),
    ],
)
def test_kuczynski_wozniakowski(n, steps, delta, factor):  # (K1)
    assert 1.0 / math.sqrt(1.0 - ritz_shortfall(n, steps, 1, delta)) == pytest.approx(factor, rel=1e-14)
