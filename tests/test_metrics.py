"""Scores of predictions against SciPy, quadrature and cases known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

import prismgp
from prismgp import metrics
from prismgp.core.models import normal_quantile
from prismgp.exceptions import DataError
from prismgp.metrics import Scores


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


# -- accumulated over batches -----------------------------------------------------------------------


def test_batches_add_up_to_the_metrics() -> None:
    rng = np.random.default_rng(0)
    y, mean, std = rng.standard_normal(100), rng.standard_normal(100), rng.uniform(0.5, 2, 100)
    known = np.ones(100, dtype=bool)
    known[[3, 50]] = False
    first, second = Scores(0.95), Scores(0.95)
    first.add(np.where(known, y, np.nan)[:40], mean[:40], std[:40])
    second.add(y[40:], np.where(known, mean, np.nan)[40:], std[40:])
    second.add(np.full(2, np.nan), np.ones(2), np.ones(2))
    y, mean, std = y[known], mean[known], std[known]
    found = first.merge(second).to_dict()
    assert found["rows"] == 98
    assert found["rmse"] == pytest.approx(metrics.rmse(y, mean), rel=1e-14)
    assert found["nlpd"] == pytest.approx(metrics.nlpd(y, mean, std), rel=1e-14)
    half = normal_quantile(0.975)
    assert found["coverage"] == pytest.approx(metrics.coverage(y, mean - half * std, mean + half * std))
    assert set(first.to_dict(density=False)) == {"rows", "rmse"}
    assert Scores(0.95).to_dict() == {"rows": 0}


def test_intervals_of_the_model() -> None:
    scores = Scores(0.5)
    lower, upper = np.array([0.0, 0.0, 5.0, np.nan]), np.array([2.0, 0.5, 6.0, np.nan])
    scores.add(np.array([1.0, 1.0, np.nan, 1.0]), np.array([1.0, 1.0, 1.0, np.nan]), np.ones(4), None, (lower, upper))
    assert scores.to_dict()["coverage"] == 0.5


def test_log_densities_of_the_model() -> None:
    scores = Scores(0.5)
    scores.add(np.array([1.0, np.nan, 2.0]), np.zeros(3), np.ones(3), np.array([-1.0, np.nan, -4.0]))
    assert scores.to_dict()["nlpd"] == 2.5


def test_weights_repeat_rows() -> None:
    rng = np.random.default_rng(1)
    y, mean, std, w = rng.normal(size=50), rng.normal(size=50), rng.uniform(0.5, 2, 50), rng.integers(0, 4, 50)
    many = np.repeat(np.arange(50), w)
    weighted, repeated = Scores(0.8), Scores(0.8)
    weighted.add(y, mean, std, weight=w.astype(float))
    repeated.add(y[many], mean[many], std[many])
    found, expected = weighted.to_dict(), repeated.to_dict()
    assert (found.pop("rows"), expected.pop("rows")) == (50, len(many))
    assert found == pytest.approx(expected)
