"""Predictions of PrismGPRegressor, in the user's units, and updates with more rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError
from tests.prism.small import assert_same_predictions, data, has_members, model

# -- in the user's units ---------------------------------------------------------------------------


def test_predict_parts_agree(fitted, fitted_two):
    for fit, x, _ in (fitted, fitted_two):
        mean, std = fit.predict(x, return_std=True)
        _, function_std = fit.predict(x, return_std=True, include_noise=False)
        joint_mean, cov = fit.predict(x, return_cov=True)
        _, function_cov = fit.predict(x, return_cov=True, include_noise=False)
        diagonal = np.einsum("ii...->i...", cov)
        np.testing.assert_array_equal(fit.predict(x), mean)
        np.testing.assert_allclose(joint_mean, mean, rtol=1e-12)
        np.testing.assert_allclose(diagonal, std**2, rtol=1e-8)
        np.testing.assert_allclose(np.einsum("ii...->i...", function_cov), function_std**2, rtol=1e-8)
        off = ~np.eye(len(x), dtype=bool)
        np.testing.assert_array_equal(cov[off], function_cov[off])
        assert (std > function_std).all()


def test_units():
    """Rows and targets in other units: the same model, in those units."""
    x, y = data()
    first = model().fit(x, y)
    second = model(lengthscale=[1.0 * 8, 1.0 / 4], noise_variance=1e-3 * 256).fit(x * [8.0, 0.25], y * 16.0 - 5.0)
    mean, std = first.predict(x, return_std=True)
    moved_mean, moved_std = second.predict(x * [8.0, 0.25], return_std=True)
    # The differences are rounding, which the training magnifies.
    np.testing.assert_allclose((moved_mean + 5.0) / 16.0, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(moved_std / 16.0, std, rtol=1e-3)


def test_log_density_is_of_the_mixture(fitted, fitted_two):
    for fit, x, y in (fitted, fitted_two):
        got = replace(fit.model_, tail_share=0.0).log_density([(x, y.reshape(len(x), -1))])
        assert got.shape == fit.log_density(x, y).shape == (len(x),)
        s = fit.model_.standardiser
        z, target = ((v - shift) / scale for v, shift, scale in ((x, s.x_shift, s.x_scale), (y, s.y_shift, s.y_scale)))
        inner = fit.model_.predictor.log_density(torch.as_tensor(z), torch.as_tensor(target.reshape(len(x), -1)))
        np.testing.assert_allclose(got, inner.numpy() - np.log(s.y_scale).sum(), rtol=1e-10)


def test_log_density_integrates_to_one_in_the_users_units(fitted):
    fit, x, _ = fitted
    mean, std = fit.predict(x[:1], return_std=True)
    away = np.linspace(-10.0, 10.0, 20_001)
    grid = mean[0] + std[0] * np.sinh(away)  # to 11,000 standard deviations: the tails reach far (Z6)
    density = np.exp(fit.log_density(np.repeat(x[:1], len(grid), 0), grid)) * std[0] * np.cosh(away)
    assert np.trapezoid(density, away) == pytest.approx(1.0, rel=1e-7)
    assert np.trapezoid(density * grid, away) == pytest.approx(mean[0], rel=1e-7)
    assert np.trapezoid(density * (grid - mean[0]) ** 2, away) == pytest.approx(std[0] ** 2, rel=1e-7)


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", [SSGPRegressor, ExactGPRegressor])
def test_log_density_of_the_others_is_normal(kind, q):
    x, y = data(60, q=q)
    fit = kind(optimize=False).fit(x, y)
    mean, std = fit.predict(x, return_std=True)
    expected = distributions.norm.logpdf(y, mean, std).reshape(len(x), -1).sum(1)
    np.testing.assert_allclose(fit.log_density(x, y), expected, rtol=1e-9)
    with pytest.raises(DataError, match="y has"):
        fit.log_density(x, np.zeros((len(x), 3)))


def test_sampled_functions(fitted, fitted_two):
    fit, x, _ = fitted
    draws = fit.sample_y(x, 5, random_state=7)
    assert draws.shape == (len(x), 5)
    # The same functions, elsewhere, and however many are asked for.
    np.testing.assert_allclose(fit.sample_y(x[40:60], 5, random_state=7), draws[40:60], rtol=1e-9)
    np.testing.assert_allclose(fit.sample_y(x, 2, random_state=7), draws[:, :2], rtol=1e-9)
    assert not np.allclose(fit.sample_y(x, 5, random_state=8), draws)
    two, x, _ = fitted_two
    assert two.sample_y(x, 3, random_state=0).shape == (len(x), 2, 3)
    many = two.sample_y(x[:5], 1_000, random_state=0)
    mean, std = two.predict(x[:5], return_std=True, include_noise=False)
    assert (np.abs(many.mean(2) - mean) < 5 * std / np.sqrt(1_000)).all()
    np.testing.assert_allclose(many.std(2), std, rtol=5 * np.sqrt(1.5 / 1_000))


def test_two_dimensional_targets_of_one_column():
    x, y = data(80)
    flat, column = model().fit(x, y), model().fit(x, y[:, None])
    assert column.predict(x).shape == (80, 1)
    np.testing.assert_array_equal(column.predict(x)[:, 0], flat.predict(x))
    assert column.sample_y(x, 2).shape == (80, 1, 2)


# -- more rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"gating": "hard"}, {"recipe": "paper"}, {"q": 2}], ids=str)
def test_partial_fit_adds_rows_exactly(changes):
    x, y = data(150, q=changes.pop("q", None))
    fit = model(**changes).fit(x[:100], y[:100])
    assert has_members(fit) or "recipe" in changes
    before = fit.fit_status_, fit.history_, fit.n_iter_
    s = fit.model_.standardiser
    z = torch.as_tensor((x - s.x_shift) / s.x_scale)
    target = torch.as_tensor((y.reshape(150, -1) - s.y_shift) / s.y_scale)
    q = target.shape[1]
    expected = replace(
        fit.model_.predictor,
        experts=tuple(each.with_statistics(each.accumulate([(z, target)], q)) for each in fit.model_.predictor.experts),
    )
    fit.partial_fit(x[100:101], y[100:101]).partial_fit(x[101:], y[101:])
    mean, variance, noise = (part.numpy() for part in expected.predict(z, variance=True))
    got_mean, got_std = fit.predict(x, return_std=True)
    np.testing.assert_allclose(got_mean.reshape(150, -1), mean * s.y_scale + s.y_shift, rtol=1e-8)
    np.testing.assert_allclose(got_std.reshape(150, -1), np.sqrt(variance + noise) * s.y_scale, rtol=1e-8)
    evidence = expected.leader.log_evidence - 150 * np.log(s.y_scale).sum()
    assert fit.log_evidence_ == pytest.approx(evidence, rel=1e-8)
    assert fit.fit_status_["rows"] == 150
    assert (fit.history_, fit.n_iter_) == before[1:]
    assert fit.fit_status_["weights"] == before[0]["weights"]
    with pytest.raises(DataError, match="y has"):
        fit.partial_fit(x, np.zeros((150, 3)))


def test_partial_fit_keeps_the_stages():
    x, y = data()
    fit = model(optimize=True).fit(x, y)
    stages = fit.fit_status_["stages"]
    assert len(stages) > 0
    fit.partial_fit(x[:5], y[:5])
    assert fit.fit_status_["stages"] == stages


def test_first_partial_fit_is_a_fit():
    x, y = data()
    assert_same_predictions(model().partial_fit(x, y), model().fit(x, y), x)
