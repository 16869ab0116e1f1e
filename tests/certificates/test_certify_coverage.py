"""Bounds with a probability fail no more often than they say, and are not so wide that they could not fail.

Each statement is tried over more than a thousand seeds with delta far larger than anybody would use. The number of
failures is compared with delta by a binomial test: a statement that is true fails it once in 10^4 tries at most.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from prismgp.certificates._effort import Effort
from prismgp.certificates._evidence_bounds import logdet_by_probes, logdet_by_rank, logdet_task
from prismgp.certificates._kernel_error import (
    frobenius_by_pairs,
    frobenius_exact,
    spectral_by_lanczos,
    spectral_by_rank,
    spectral_task,
)
from prismgp.certificates._krylov import Lanczos, lanczos, ritz_shortfall
from prismgp.certificates._lowrank import LowRank
from prismgp.certificates._matrix import KernelMatrix
from prismgp.certificates._member import _Run
from prismgp.certificates._nystrom import NystromMap, select_pivots
from prismgp.certificates._passes import Budget, run_together
from tests.certificates.exact import KERNELS, LONG, kernel_matrix, random_case, truth, unit_gates

SEEDS = 2_000


def rarely(failures: int, trials: int, delta: float) -> bool:
    """Whether a probability of failure of delta explains so many of them."""
    return stats.binom.sf(failures - 1, trials, delta) > 1e-4


def cases():
    """Four problems of different kinds, 250 seeds for each."""
    for k, kernel in enumerate(KERNELS):
        case = random_case(np.random.default_rng([5, k]), n=60, d=1 + 2 * k, kernel=kernel, noise=0.1)
        if k == 2:
            case = replace(case, weight=np.exp(np.random.default_rng(k).normal(size=60)))
        if k == 3:
            case = replace(case, model_gates=unit_gates(np.random.default_rng(k), 60, 2, hard=True))
        yield case


def low_rank(problem, rank):
    pivots, _ = select_pivots(problem.rows, rank, weight=problem.weight, generator=torch.Generator())
    return LowRank.of(NystromMap.of(problem.rows.rows(pivots), jitter=1e-4), problem.rows, problem.weight)


def run(problem, task, steps):
    return run_together(KernelMatrix(problem.rows).product, [task], Budget.of(steps, None))[0]


def start(seed):
    return torch.Generator().manual_seed(seed)


def apart(found, starts):
    """Independent runs of so many starts each: the columns of a run in step never meet."""
    for k in range(0, found.starts, starts):
        own = slice(k, k + starts)
        yield Lanczos(found.diagonal[:, own], found.beside[:, own], found.size[own])


@pytest.mark.parametrize(("steps", "starts", "delta"), [(24, 1, 0.2), (12, 4, 0.2), (16, 8, 0.5)])
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


@pytest.mark.parametrize(("n", "steps", "starts", "delta"), [(400, 8, 1, 0.2), (400, 5, 2, 0.2), (100, 3, 4, 0.5)])
def test_norm_of_a_psd_matrix(n, steps, starts, delta):  # (K1), (K2)
    """A hard spectrum: a single large eigenvalue just above a continuum; the shortfall is seen to bite."""
    values = torch.linspace(0.0, 1.0, n, dtype=torch.float64) ** 2
    shortfall = ritz_shortfall(n, steps, starts, delta)
    assert 0.0 < shortfall < 1.0
    failures, short = 0, []
    first = torch.randn(n, starts * SEEDS, generator=start(1), dtype=torch.float64)
    task = lanczos(first, before=lambda v: v, after=lambda _, kv: kv, steps=steps)
    whole = run_together(lambda v: values[:, None] * v, [task], Budget.of(steps, None))[0]
    for found in apart(whole, starts):
        ritz = found.extremes()[1]
        assert ritz <= 1.0 + 1e-12
        short.append(1.0 - ritz)
        failures += ritz < 1.0 - shortfall
    assert len(short) == SEEDS
    assert rarely(failures, SEEDS, delta)
    # Lanczos is indeed short, by a tenth or more of what is allowed for: none at all would be too small a charge.
    assert np.mean(short) > 0.03 * shortfall


def test_shortfall_is_that_of_independent_starts():  # (K1)
    one, many = (ritz_shortfall(400, 10, k, 0.2) for k in (1, 8))
    assert one == pytest.approx((math.log(1.648 * 20.0 / 0.2) / 19.0) ** 2)
    assert many == pytest.approx((math.log(1.648 * 20.0 / 0.2 ** (1 / 8)) / 19.0) ** 2)
    assert ritz_shortfall(10, 10, 1, 0.2) == 0.0
    assert ritz_shortfall(10, 0, 1, 0.2) == ritz_shortfall(10, 3, 1, 0.0) == 1.0


@pytest.mark.parametrize(("rank", "steps", "starts", "delta"), [(2, 20, 4, 0.2), (10, 8, 8, 0.2), (25, 4, 2, 0.5)])
def test_log_determinant_by_probes(rank, steps, starts, delta):  # (E10)
    failures = trials = 0
    widths = []
    for case in cases():
        problem = case.problem()
        low, noise = low_rank(problem, rank), float(case.noise[0])
        w = np.ones(60) if case.weight is None else case.weight
        k = kernel_matrix(case, case.x, case.x, None, None) * np.sqrt(np.multiply.outer(w, w)).astype(LONG)
        value = np.linalg.slogdet(k.astype(float) + noise * np.eye(60))[1]
        sure = logdet_by_rank(low, noise)
        assert sure.lower <= value <= sure.upper
        task = logdet_task(low, noise, steps=steps, starts=starts * SEEDS // 4, generator=start(1), delta=delta)
        for found in apart(run(problem, task, steps), starts):
            interval = logdet_by_probes(found, low, noise, delta=delta)
            failures += not interval.lower <= value <= interval.upper
            widths.append(interval.width / sure.width)
            trials += 1
    assert trials == SEEDS
    assert rarely(failures, trials, delta)
    assert np.min(widths) < 0.85  # better than what is certain


def test_no_more_steps_than_are_of_use():
    """What the probes leave open is much more than what their quadrature does, after few steps."""
    case = random_case(np.random.default_rng(5), n=300, d=3, kernel="rbf", noise=0.1)
    problem = case.problem()
    low, noise = low_rank(problem, 80), 0.1
    task = logdet_task(low, noise, steps=4, starts=2, generator=start(1), delta=1e-9)
    found = run(problem, task, 4)
    assert 1 <= found.steps < 4
    lower, upper = found.quadrature(torch.log, floor=1.0 - 1e-9)
    assert float((upper - lower).mean()) < 0.03 * logdet_by_probes(found, low, noise, delta=1e-9).width
    # Steps that would bound the largest eigenvalue are all made.
    assert run(problem, logdet_task(low, noise, steps=20, starts=2, generator=start(1), delta=0.1), 20).steps == 20


def test_probes_do_fail():  # (E10)
    """One probe of a matrix of large trace: with nothing charged for chance it would fail nearly always."""
    case = random_case(np.random.default_rng(0), n=80, d=6, kernel="rbf", noise=0.01)
    problem = case.problem()
    low = low_rank(problem, 1)
    value = np.linalg.slogdet(kernel_matrix(case, case.x, case.x, None, None).astype(float) + case.noise * np.eye(80))[
        1
    ]
    task = logdet_task(low, float(case.noise[0]), steps=30, starts=SEEDS, generator=start(1), delta=0.1)
    lower, upper = run(problem, task, 30).quadrature(torch.log, floor=1.0 - 1e-9)
    known = low.logdet(float(case.noise[0]))
    failures = int(((known + lower > value) | (known + upper < value)).sum())
    assert failures > 0.5 * SEEDS


def test_quadrature_encloses():  # (K3)
    """Gauss from above and Gauss-Radau from below, for every start and number of steps."""
    generator = np.random.default_rng(0)
    for k in range(200):
        n = 30
        values = 1.0 + generator.exponential(size=n) * 10.0 ** generator.uniform(-3, 3)
        a = torch.as_tensor(values)
        g = torch.as_tensor(generator.normal(size=(n, 3)))
        exact = (g.square() * a.log()[:, None]).sum(0)
        task = lanczos(g, before=lambda v: v, after=lambda _, kv: kv, steps=1 + k % 8)
        found = run_together(lambda v, a=a: a[:, None] * v, [task], Budget.of(99, None))[0]
        lower, upper = found.quadrature(torch.log, floor=1.0)
        assert (lower <= exact * (1 + 1e-12)).all()
        assert (exact <= upper * (1 + 1e-12)).all()
        if k % 8 < 2:
            assert (upper - lower > 1e-9 * exact).all()  # they differ, so that the order is a statement


@pytest.mark.parametrize(("pairs", "delta"), [(400, 0.2), (4_000, 0.5)])
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


def test_norm_of_what_is_left():  # (K2)
    """The t of (E12) by Lanczos is above the norm of ``K - L L'``, and below the trace."""
    for k, case in enumerate(cases()):
        problem = case.problem()
        spent = Effort(rank=6, products=20, seconds=None, delta=0.2, tolerance=0.0, seed=k)
        run_of = _Run(problem, low_rank(problem, 6), spent, start(k), 0.2)
        run_of.work(Budget.of(19, None))
        norm, low = run_of._norm_left(), run_of.low
        w = np.ones(60) if case.weight is None else case.weight
        whole = kernel_matrix(case, case.x, case.x, None, None).astype(float) * np.sqrt(np.multiply.outer(w, w))
        own = low.features(slice(0, 60)).numpy()
        value = np.linalg.eigvalsh(whole - own @ own.T)[-1]
        assert norm is not None
        assert value <= norm < low.excess
        found = run_of.found["rest"]
        assert norm >= found.extremes()[1] / (1.0 - ritz_shortfall(60, found.steps, found.starts, 0.2))


def test_rounding_does_not_choose_pivots():
    """All rows are worth the same at first; the first is taken, whatever the last digit of the diagonal."""
    for seed in range(20):
        case = random_case(np.random.default_rng(seed), n=80, d=7, kernel=KERNELS[seed % 4], noise=0.1)
        pivots, _ = select_pivots(case.problem().rows, 5, weight=None, generator=start(0))
        assert int(pivots[0]) == 0


def test_riders_ask_for_no_product():
    """They see every product that others ask for, and end with them."""

    def asks(times):
        seen = 0
        for _ in range(times):
            if (yield torch.ones(3, 1)) is None:
                break
            seen += 1
        return seen

    made = []

    def product(v):
        made.append(v.shape[1])
        return v

    assert run_together(product, [asks(9), asks(2), asks(1)], Budget.of(20, None), riders=[0]) == [2, 2, 1]
    assert made == [3, 2]
    assert run_together(product, [asks(9)], Budget.of(20, None), riders=[0]) == [0]
    assert len(made) == 2
