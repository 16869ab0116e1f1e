"""Variances from a sketch of what the low rank leaves, (E16): true as often as they say, and far closer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from prismgp.certificates.certify_problem import certify_problem
from prismgp.certificates.kernel_matrix import Limits
from prismgp.certificates.lowrank import LowRank, NystromMap, select_pivots
from prismgp.certificates.predictions import VarianceByRank, quantiles, sketch_task
from prismgp.certificates.problem import Effort
from tests.certificates.coverage import FEWER_SEEDS, cases, low_rank, rarely, run, start
from tests.certificates.exact import KERNELS, random_case, truth, unit_gates

NOTHING = 1e-12  # a probability of failure that no number of tries will see


def bounds(problem, low, *, count, seed, delta):
    """Lower and upper bounds on the variance of a kernel of variance one."""
    sketch = run(problem, sketch_task(problem, low, count=count, generator=start(seed)), 1)
    by_rank = VarianceByRank(problem, low, problem.test.rows, sketch)
    for j, block in problem.rows.cross(problem.test.rows):
        by_rank.add(j, block)
    found = by_rank.by_sketch(delta)
    assert found is not None
    return tuple(each.numpy() for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "count", "delta"), [(8, 32, 0.2), pytest.param(25, 32, 0.5, marks=pytest.mark.nightly), (25, 64, 0.2)]
)
def test_all_points_at_once(rank, count, delta):
    """Over 1,000 seeds, all test points of a problem are inside but for a share of delta at most."""
    failures = trials = 0
    for case in cases():
        problem, value = case.problem(), truth(case).variance / case.signal
        low = low_rank(problem, rank)
        for seed in range(FEWER_SEEDS // 4):
            lower, upper = bounds(problem, low, count=count, seed=seed, delta=delta)
            failures += not ((lower <= value) & (value <= upper)).all()
            trials += 1
    assert trials == FEWER_SEEDS
    assert rarely(failures, trials, delta)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.3, pytest.param(0.6, marks=pytest.mark.nightly)])
def test_several_outputs(delta):
    """Three outputs and test points far from each other: the union bound is over all of them."""
    rng = np.random.default_rng(8)
    case = random_case(rng, n=90, d=1, kernel="matern32", noise=0.3, q=3, m=6)
    far = np.repeat(np.arange(6.0) * 30.0, 15)[:, None]
    case = replace(case, x=case.x + far, x_test=far[::15] + rng.normal(size=(6, 1)) * 0.1)
    problem, value = case.problem(), truth(case).variance / case.signal
    low = low_rank(problem, 60)
    failures = 0
    for seed in range(FEWER_SEEDS):
        lower, upper = bounds(problem, low, count=24, seed=seed, delta=delta)
        failures += not ((lower <= value) & (value <= upper)).all()
    assert rarely(failures, FEWER_SEEDS, delta)
    assert failures > 0.1 * delta * FEWER_SEEDS  # the statements are nearly independent here, and most of them sharp


@pytest.mark.slow
@pytest.mark.parametrize(("count", "delta"), [(32, 0.9), (4, 0.15)])
def test_it_does_fail(count, delta):
    """One point, and three statements of delta / 3 each, of which one is on either side of the slope.

    Where little is left, the bounds are Student's interval, which holds exactly as often as it says.
    """
    case = random_case(np.random.default_rng(4), n=80, d=2, kernel="matern52", noise=0.1, m=2)
    case = replace(case, x_test=case.x_test[1:])
    problem, value = case.problem(), truth(case).variance / case.signal
    low = low_rank(problem, 40)
    under = over = 0
    for seed in range(FEWER_SEEDS):
        lower, upper = bounds(problem, low, count=count, seed=seed, delta=delta)
        under, over = under + int(value[0, 0] < lower[0, 0]), over + int(upper[0, 0] < value[0, 0])
    assert rarely(under, FEWER_SEEDS, delta / 3)
    assert rarely(over, FEWER_SEEDS, delta / 3)
    assert over > 0.2 * delta * FEWER_SEEDS
    assert under > 0.1 * delta * FEWER_SEEDS  # less often: from below there is the second order, too


@pytest.mark.parametrize("count", [4, 24, 256])
@pytest.mark.parametrize("tail", [0.3, 1e-2, 1e-7, 1e-15])
def test_quantiles(count, tail):
    student, least = quantiles(count, tail)
    assert student == pytest.approx(stats.t.isf(tail, count - 1), rel=1e-6)
    assert least == pytest.approx(stats.chi2.ppf(tail, count), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_problems_and_rounding(kernel):
    """With a delta that leaves nothing to chance, the extended precision value is inside, however little noise."""
    rng = np.random.default_rng([9, KERNELS.index(kernel)])
    finite = []
    for k in range(60):
        n, d, q = int(rng.integers(30, 120)), int(rng.integers(1, 12)), 1 + k % 2
        case = random_case(rng, n=n, d=d, kernel=kernel, noise=10.0 ** rng.uniform(-4, 0), q=q, m=12)
        if k % 3 == 1:
            case = replace(case, weight=np.exp(rng.normal(size=n)))
        if k % 3 == 2:
            case = replace(case, gates=unit_gates(rng, n, 3, hard=False), test_gates=unit_gates(rng, 12, 3, hard=False))
        far = case.x_test.copy()
        far[-1] += 60.0  # where the kernel is nothing: no vector to sketch
        case = replace(case, x_test=far)
        problem, value = case.problem(), truth(case).variance / case.signal
        low = low_rank(problem, int(rng.integers(1, n)))
        lower, upper = bounds(problem, low, count=64, seed=k, delta=NOTHING)
        assert (lower <= value).all()
        assert (value <= upper).all()
        assert not np.isnan(lower).any()
        assert not np.isnan(upper).any()
        finite.append(np.isfinite(lower[:-1]) & np.isfinite(upper[:-1]))
    assert np.mean([each.mean() for each in finite]) > 0.95


@pytest.mark.parametrize("noise", [1.0, 1e3, 1e6, 1e8])
@pytest.mark.parametrize("spread", [0.3, 50.0])
def test_nothing_but_rounding(noise, spread):
    """Noise so loud, or rows so far apart, that chance and second order are less than the last digit."""
    rng = np.random.default_rng(int(spread))
    for k in range(20):
        case = random_case(rng, n=50, d=3, kernel="rbf", noise=noise, m=6)
        case = replace(case, x=case.x * spread, x_test=np.concatenate([case.x[-5:], case.x_test[:1]]) * spread)
        problem, value = case.problem(), truth(case).variance / case.signal
        pivots, _ = select_pivots(problem.rows, 5, weight=None, generator=start(0))
        low = LowRank.of(NystromMap.of(problem.rows.rows(pivots)), problem.rows, None)
        lower, upper = bounds(problem, low, count=24, seed=k, delta=NOTHING)
        assert (lower <= value).all()
        assert (value <= upper).all()
        if noise >= 1e6:
            assert (upper - lower < 1e-9).all()


def test_certificates_use_it():
    """Through the whole certificate, with weights, gates and two outputs; and the probabilities add up."""
    rng = np.random.default_rng(12)
    for k in range(24):
        q = 1 + k % 2
        case = random_case(rng, n=100, d=2, kernel=KERNELS[k % 4], noise=10.0 ** rng.uniform(-2, 0), q=q, m=40)
        if k % 3 == 1:
            case = replace(case, weight=np.exp(rng.normal(size=100)))
        if k % 3 == 2:
            gates, there = (unit_gates(rng, rows, 2, hard=False) for rows in (100, 40))
            case = replace(case, gates=gates, test_gates=there)
        effort = Effort(rank=35, products=5, seconds=None, delta=1e-9, tolerance=1e9, seed=k)
        found, value = certify_problem(case.problem(), effort), truth(case).variance
        assert not found.reason
        how = found.variance.method
        assert "random vectors" in how
        assert "solved" not in how
        used = 1 + ("Lanczos" in how)
        assert found.variance.probability == pytest.approx(1.0 - used * 1e-9 / (q + 4), abs=1e-13)
        assert (found.variance.lower <= value).all()
        assert (value <= found.variance.upper).all()
        assert (found.variance.width <= found.variance.certain.width).all()


def test_closer_than_the_norm_of_the_rest():
    """What it is for: every point, many times closer than by (E12), and nothing solved for."""
    rng = np.random.default_rng(2)
    case = random_case(rng, n=400, d=3, kernel="rbf", noise=0.01, m=60)
    problem = case.problem()
    common = {"rank": 90, "products": 8, "seconds": None, "tolerance": 1.0, "seed": 0}
    with_sketch = certify_problem(problem, Effort(delta=0.01, **common))
    assert "random vectors" in with_sketch.variance.method
    value = truth(case).variance
    assert (with_sketch.variance.lower <= value).all()
    assert (value <= with_sketch.variance.upper).all()
    assert with_sketch.variance.probability < 1.0
    sure = with_sketch.variance.certain
    assert (sure.lower <= value).all()
    assert (value <= sure.upper).all()
    assert np.median(with_sketch.variance.width / sure.width) < 0.05
    without = certify_problem(problem, Effort(delta=0.0, **common))
    assert without.variance.probability == 1.0


def test_sketch_does_not_depend_on_blocks():
    """The same numbers for test points in one block and in many."""
    case = random_case(np.random.default_rng(3), n=70, d=2, kernel="rbf", noise=0.05, m=20, q=2)
    found = []
    for limits in (None, Limits(cross_bytes=0, cross_columns=3)):
        problem = case.problem(limits)
        found.append(bounds(problem, low_rank(problem, 20), count=40, seed=1, delta=0.1))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_no_products_no_sketch():
    case = random_case(np.random.default_rng(3), n=70, d=2, kernel="rbf", noise=0.05)
    problem = case.problem()
    low = low_rank(problem, 20)
    assert VarianceByRank(problem, low, problem.test.rows).by_sketch(0.1) is None
    task = sketch_task(problem, low, count=32, generator=torch.Generator())
    next(task)
    with pytest.raises(StopIteration) as end:
        task.send(None)
    assert end.value.value is None
