"""Scores of predictions against SciPy, quadrature and cases known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

import prismgp
from prismgp import metrics
from prismgp.exceptions import DataError


@pytest.fixture(params=[(50,), (30, 2)])
def predictions(request):
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=request.param), rng.uniform(0.3, 3.0, request.param)
    return mean + std * rng.normal(size=request.param), mean, std


def test_nlpd_is_that_of_scipy(predictions):
    y, mean, std = predictions
    assert metrics.nlpd(y, mean, std) == pytest.approx(-stats.norm(mean, std).logpdf(y).mean(), rel=1e-12)


def test_crps_is_the_integral_that_defines_it(predictions):
    y, mean, std = (each.ravel()[:5] for each in predictions)

    def score(observed, m, s):
        below = integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, m - 12 * s, observed)[0]
        above = integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, observed, m + 12 * s)[0]
        return below + above

    expected = np.mean([score(*each) for each in zip(y, mean, std, strict=True)])
    assert metrics.crps(y, mean, std) == pytest.approx(expected, rel=1e-6)


def test_rmse_coverage_and_interval_score_by_hand():
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == pytest.approx(np.sqrt(2.0))
    assert metrics.coverage([0.0, 1.0, 2.0, 5.0], [0.0] * 4, [2.0] * 4) == 0.75
    # Widths of two, and one observation three above its interval: 2 / 0.1 times three, for one row in four.
    assert metrics.interval_score([0.0, 1.0, 2.0, 5.0], [0.0] * 4, [2.0] * 4, coverage=0.9) == pytest.approx(2.0 + 15.0)


def test_calibration_of_true_normals_is_the_diagonal():
    rng = np.random.default_rng(1)
    std = rng.uniform(0.1, 5.0, 40_000)
    levels, covered = metrics.calibration_curve(std * rng.normal(size=len(std)), np.zeros_like(std), std)
    np.testing.assert_allclose(covered, levels, atol=0.01)
    narrow = metrics.calibration_curve(rng.normal(size=1_000), np.zeros(1_000), np.full(1_000, 0.5))[1]
    assert (narrow < levels).all()


def test_bad_arguments():
    with pytest.raises(DataError, match=r"y \(2,\), mean \(3,\)"):
        metrics.rmse([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="no rows"):
        metrics.rmse([], [])
    with pytest.raises(DataError, match=r"coverage=1\.5"):
        metrics.interval_score([1.0], [0.0], [2.0], coverage=1.5)
    with pytest.raises(DataError, match="levels"):
        metrics.calibration_curve([1.0], [0.0], [2.0], levels=[2.0])


def test_modules_of_the_package_are_attributes():
    assert prismgp.metrics is metrics
    assert prismgp.data.from_csv.__name__ == "from_csv"
