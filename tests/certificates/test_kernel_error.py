"""Norms of the kernel error: random bounds fail no more often than they say, and are not too wide to fail."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from prismgp.certificates.kernel_error import (
    frobenius_by_pairs,
    frobenius_exact,
    spectral_by_lanczos,
    spectral_by_rank,
    spectral_task,
)
from prismgp.certificates.krylov import ritz_shortfall
from tests.certificates.coverage import SEEDS, apart, cases, low_rank, rarely, run, start
from tests.certificates.exact import LONG, kernel_matrix, random_case, spectral_features, truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "starts", "delta"), [(24, 1, 0.2), (12, 4, 0.2), pytest.param(16, 8, 0.5, marks=pytest.mark.slow)]
)
def test_spectral_norm_by_lanczos(steps, starts, delta):  # (F2), (K1)
    failures = trials = 0
    ratios = []
    for case in cases():
        problem, value = case.problem(), truth(case).spectral
        everything = spectral_by_rank(problem, low_rank(problem, 60))
        all_starts = starts * SEEDS // 4
        whole = run(problem, spectral_task(problem, steps=steps, starts=all_starts, generator=start(1)), steps)
        for found in apart(whole, starts):
            interval = spectral_by_lanczos(found, problem, delta=delta)
            assert interval.probability == 1.0 - delta
            assert interval.lower <= value  # Ritz values are inside the spectrum, always
            # 2k steps with E are k steps with its square.
            assert interval.upper >= interval.lower / math.sqrt(1.0 - ritz_shortfall(60, steps // 2, starts, delta))
            failures += not interval.upper >= value
            trials += 1
            ratios.append(interval.upper / value)
            assert everything.lower <= value <= everything.upper
    assert trials == SEEDS
    assert rarely(failures, trials, delta)
    assert np.median(ratios) < 1.25  # not vacuous


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "delta"), [(400, 0.2), pytest.param(4_000, 0.5, marks=pytest.mark.slow)])
def test_frobenius_norm_by_pairs(pairs, delta):  # (F3)
    failures = trials = 0
    ratios = []
    for case in cases():
        # Far apart and next to no features: large entries, so that the range of the sample counts.
        case = replace(case, phi=case.phi[:, :1] / np.abs(case.phi[:, :1])) if trials == 0 else case
        problem, value = case.problem(), truth(case).frobenius
        exact = frobenius_exact(problem)
        assert exact.lower <= value <= exact.upper
        for seed in range(SEEDS // 4):
            interval = frobenius_by_pairs(problem, pairs=pairs, delta=delta, seed=seed)
            failures += not interval.lower <= value <= interval.upper
            ratios.append(interval.width / value)
            trials += 1
    assert trials == SEEDS
    assert rarely(failures, trials, delta)
    assert np.min(ratios) < 0.75


def test_the_bound_of_maurer_and_pontil():  # (F3)
    """The formula by itself: both sides at delta / 2 each, values in [0, 4]. It is too wide to be seen to fail."""
    case = next(cases())
    problem, pairs, delta = case.problem(), 500, 0.1
    rng = np.random.default_rng(3)
    u = rng.integers(0, 60, pairs)
    v = rng.integers(0, 59, pairs)
    v = v + (v >= u)
    error = kernel_matrix(case, case.x, case.x, None, None).astype(float) - case.phi @ case.phi.T
    z = error[u, v] ** 2 / 4.0
    log = math.log(2.0 / (delta / 2.0))
    margin = math.sqrt(2.0 * z.var(ddof=1) * log / pairs) + 7.0 * log / (3.0 * (pairs - 1))
    known = (np.diag(error) ** 2).sum()
    ends = [math.sqrt(known + 60 * 59 * 4.0 * max(z.mean() + sign * margin, 0.0)) for sign in (-1, 1)]
    found = frobenius_by_pairs(problem, pairs=pairs, delta=delta, seed=3)
    assert (found.lower, found.upper) == pytest.approx(ends, rel=1e-9)


def test_sums_of_a_million_equal_entries():
    """A single binary input: errors of the entries take three values, and rounding of their sum has one direction."""
    x = np.repeat([[0.0], [1.0]], [900, 600], 0)
    case = random_case(np.random.default_rng(0), n=1500, d=1, kernel="rbf", noise=0.1)
    case = replace(case, x=x, phi=spectral_features(x, np.random.default_rng(1).normal(size=(6, 1))))
    k = np.exp(LONG(-0.5) * (x - x.T).astype(LONG) ** 2)
    phi = case.phi.astype(LONG)
    error = {(i, j): k[i, j] - (phi[i] * phi[j]).sum() for i in (0, -1) for j in (0, -1)}
    squares = 900**2 * error[0, 0] ** 2 + 2 * 900 * 600 * error[0, -1] ** 2 + 600**2 * error[-1, -1] ** 2
    found = frobenius_exact(case.problem())
    assert found.lower <= np.sqrt(squares) <= found.upper
    assert found.width < 1e-9 * found.upper
