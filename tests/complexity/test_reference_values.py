"""Sample sizes against reference values.

The values come from an independent implementation of the formulas and experiments, run once with the seeds named here.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from prismgp import check_conditions, sample_size
from prismgp.complexity import formulas
from prismgp.complexity.inputs import exact_inputs
from prismgp.core.kernels import get_kernel
from tests.complexity.data import approximation, condition_data, norm, squared_distances

DIGITS = 1e-8  # relative: the slack of 1e-9 on upper bounds, and rounding


@pytest.mark.parametrize(
    ("n", "n_clusters", "bound", "delta", "expected"),
    [
        (216, 12, 1.0, 0.05, 5565),
        (871, 16, 10.0, 0.05, 90),
        (1745, 18, 5.0, 0.1, 424),
        (1745, 18, 20.0, 0.1, 27),
        (1745, 18, 20.0, 0.05, 28),
        (1745, 18, 40.0, 0.1, 7),
        (13982, 24, 20.0, 0.05, 46),
    ],
)
def test_printed(n, n_clusters, bound, delta, expected):
    assert formulas.printed(n, n_clusters, bound, delta) == expected  # S1
    sizes = sample_size(n=n, n_clusters=n_clusters, bound=bound, delta=delta)
    assert sizes.printed.p == expected
    assert not sizes.printed.holds
    assert "printed, not valid for the plain kernel" in sizes.printed.reason
    # 12 and 24 clusters of 2^(i/2) rows hold 215 and 13,981 rows: Condition 2 fails by a row, and nothing is proved.
    assert sizes.corrected.holds == (n_clusters in (16, 18)) == (formulas.implied_clusters(n) == n_clusters)


def test_caps():
    variance, root = formulas.condition_caps()  # S10
    assert variance == pytest.approx(0.3086638703476998, rel=1e-14)
    assert root == pytest.approx(0.8846110577291494, rel=1e-14)


@pytest.mark.parametrize(
    ("room", "markov", "tight"), [(0.05, 2470, 1486), (0.25, 99, 152), (0.5, 25, 54), (1.0, 7, 17)]
)
def test_corrected_under_the_conditions(room, markov, tight):
    variance, root = formulas.condition_caps()
    assert formulas.markov(variance, room, 0.05) == markov  # S2
    assert formulas.bernstein_tight(variance, root, room, 0.05) == tight  # S5
    assert formulas.chernoff(variance, root, room, 0.05) <= tight  # S6
    sizes = sample_size(n=871, bound=2.0 * room, delta=0.05)  # half the bound is for the off-cluster part
    found = {record.name: record.p for record in sizes.bounds if record.estimator == "masked"}
    assert found["markov"] == markov
    assert found["bern_tight"] == tight
    assert sizes.corrected.p == min(found.values())
    assert any("Condition 3 as corrected" in text for text in sizes.corrected.assumptions)


def test_matrix_bernstein():
    n, norm_of_k = 800, 119.6
    assert formulas.matrix_bernstein(n * norm_of_k, float(n**2), n, 40.0, 0.05) == 928  # S8


def test_bernstein_bounded():
    assert formulas.bernstein_bounded(17615.661, 450.199, 39.9962, 0.05) == 109  # S3
    assert formulas.bennett(17615.661, 450.199, 39.9962, 0.05) <= 109  # S4


@pytest.fixture(scope="module")
def golden_data():
    """b = 16, d = 256, bound 10, seed 10."""
    return condition_data(16, 256, 10.0, 10)


@pytest.mark.slow
def test_inputs(golden_data):
    x, labels, apart = golden_data
    assert len(x) == 871
    assert apart == pytest.approx(5.177615478136126, rel=1e-13)
    inputs = exact_inputs(x, labels, np.ones(256), get_kernel("rbf"))
    assert inputs.variance == pytest.approx(0.11212907290727782, rel=DIGITS)
    assert math.sqrt(inputs.theory_clipped) == pytest.approx(0.5101152116084806, rel=DIGITS)
    assert inputs.tau_out == pytest.approx(0.0010986469327885543, rel=DIGITS)
    k = np.exp(-0.5 * squared_distances(x))
    inside = labels[:, None] == labels[None, :]
    assert norm(np.where(inside, 1.0 - k, 0.0)) == pytest.approx(0.11640368836339166, rel=DIGITS)


@pytest.mark.slow
def test_masked_and_unmasked(golden_data):
    """Theorem 2 as printed: the masked matrix is far inside the bound of 10, the plain one far outside."""
    x, labels, _ = golden_data
    k = np.exp(-0.5 * squared_distances(x))
    inside = labels[:, None] == labels[None, :]
    p = formulas.printed(871, 16, 10.0, 0.05)
    expected = [(0.0280, 30.395), (0.0130, 59.902), (0.0116, 34.191), (0.0260, 39.401), (0.0164, 33.227)]
    for seed, (masked, plain) in zip(range(100, 105), expected, strict=True):
        error = k - approximation(x, np.random.default_rng(seed).standard_normal((p, 256)))
        assert norm(np.where(inside, error, k)) == pytest.approx(masked, abs=6e-5)
        assert norm(error) == pytest.approx(plain, abs=6e-4)


@pytest.mark.slow
def test_conditions_and_sizes(golden_data):
    x, labels, _ = golden_data
    report = check_conditions(x, lengthscale=1.0, bound=10.0, labels=labels)
    assert report.holds
    assert all(check.holds for check in report.corrected)
    sizes = sample_size(bound=10.0, delta=0.05, X=x, labels=labels, lengthscale=1.0)
    assert sizes.printed.p == 90
    assert sizes.corrected.p == 1  # Markov: .112 / (.05 * 9.999^2) is below 1
    assert sizes.plain.p > 1000
    # Twice the length-scales: the mask fails, and no number is given.
    assert not check_conditions(x, lengthscale=2.0, bound=10.0, labels=labels).holds
    wide = sample_size(bound=10.0, delta=0.05, X=x, labels=labels, lengthscale=2.0)
    assert wide.corrected.p is None
    assert "clusters overlap" in wide.corrected.reason
