"""The log determinant by random probes fails no more often than it says, and is better than the certain bound."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp.certificates.evidence import logdet_by_probes, logdet_by_rank, logdet_task
from tests.certificates.coverage import SEEDS, apart, cases, low_rank, rarely, run, start
from tests.certificates.exact import LONG, kernel_matrix, random_case


@pytest.mark.slow
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
    lower, upper = found.log_quadrature(floor=1.0 - 1e-9)
    assert float((upper - lower).mean()) < 0.03 * logdet_by_probes(found, low, noise, delta=1e-9).width
    # Steps that would bound the largest eigenvalue are all made.
    assert run(problem, logdet_task(low, noise, steps=20, starts=2, generator=start(1), delta=0.1), 20).steps == 20


@pytest.mark.slow
def test_probes_do_fail():  # (E10)
    """One probe of a matrix of large trace: with nothing charged for chance it would fail nearly always."""
    case = random_case(np.random.default_rng(0), n=80, d=6, kernel="rbf", noise=0.01)
    problem = case.problem()
    low = low_rank(problem, 1)
    value = np.linalg.slogdet(kernel_matrix(case, case.x, case.x, None, None).astype(float) + case.noise * np.eye(80))[
        1
    ]
    task = logdet_task(low, float(case.noise[0]), steps=30, starts=SEEDS, generator=start(1), delta=0.1)
    lower, upper = run(problem, task, 30).log_quadrature(floor=1.0 - 1e-9)
    known = low.logdet(float(case.noise[0]))
    failures = int(((known + lower > value) | (known + upper < value)).sum())
    assert failures > 0.5 * SEEDS
