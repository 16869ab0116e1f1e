"""Limits of inputs with long tails: where they are, when the evidence chooses them, and who respects them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import prismgp
from prismgp import SSGPRegressor
from prismgp.core.features import NO_LIMIT, find_limits, limit_inputs
from prismgp.exceptions import ModelFileError
from prismgp.model import load_model, save_model
from tests.core.same import with_parameters_of


def test_long_tails_get_limits_and_others_do_not(rng):
    n = 2_000
    normal, above = rng.normal(size=n), rng.lognormal(sigma=1.5, size=n)
    indicator, both = (rng.random(n) < 0.005).astype(float), rng.standard_t(2, n)
    limits = find_limits(torch.as_tensor(np.stack([normal, above, -above, indicator, both], 1)))
    assert limits is not None
    assert limits[:, [0, 3]].abs().min() == NO_LIMIT
    assert limits[0, 1] == -NO_LIMIT
    assert limits[1, 1] == pytest.approx(np.quantile(above, 0.99))
    assert limits[:, 2].tolist() == pytest.approx([-float(limits[1, 1]), NO_LIMIT])
    assert limits[:, 4].tolist() == pytest.approx(np.quantile(both, [0.01, 0.99]).tolist())


def test_without_long_tails_there_are_no_limits(rng):
    assert find_limits(torch.as_tensor(rng.normal(size=(2_000, 3)))) is None
    assert find_limits(torch.as_tensor(rng.standard_t(1, (200, 3)))) is None


def test_limited_rows(rng):
    x = torch.as_tensor(rng.normal(size=(2, 5, 2)))
    assert limit_inputs(x, None) is x
    limits = torch.tensor([[-0.5, -NO_LIMIT], [0.5, 0.25]], dtype=torch.float64)
    np.testing.assert_array_equal(limit_inputs(x, limits), np.clip(x.numpy(), *limits.numpy()))
    assert limit_inputs(x.float(), limits).dtype == torch.float32


def make_rows(rng, function, n=600):
    x = np.column_stack([rng.lognormal(sigma=1.2, size=n), rng.normal(size=n)])
    return x, function(x) + 0.1 * rng.normal(size=n)


def saturating(x):
    return np.sin(np.minimum(x[:, 0], 4.0)) + 0.3 * x[:, 1]


@pytest.fixture(scope="module")
def limited(short_fits):
    """A model whose first input has a limit, and its rows."""
    x, y = make_rows(np.random.default_rng(0), saturating)
    return SSGPRegressor(8, random_state=0).fit(x, y), x, y


@pytest.mark.slow
def test_the_evidence_chooses(limited, rng):
    model, x, y = limited
    (entry,) = model.fit_status_["limited_inputs"]
    assert (entry["input"], entry["low"]) == (0, None)
    assert entry["high"] == pytest.approx(np.quantile(x[:, 0], 0.99))
    # A model of limited rows is a model of these rows.
    same = with_parameters_of(model)
    clipped = np.minimum(x, [entry["high"], np.inf])
    same.fit(clipped, y)
    assert same.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-6)
    np.testing.assert_allclose(model.predict(x), same.predict(clipped), rtol=1e-8)
    # What is in the tail matters here.
    straight = make_rows(rng, lambda x: x[:, 0])
    assert SSGPRegressor(8, random_state=0).fit(*straight).fit_status_["limited_inputs"] == []


def test_beyond_a_limit_nothing_changes(limited):
    model, _, _ = limited
    high = model.fit_status_["limited_inputs"][0]["high"]
    at = np.array([[high, 0.5], [high + 1.0, 0.5], [100.0 * high, 0.5]])
    mean, std = model.predict(at, return_std=True)
    np.testing.assert_allclose(mean, mean[0], rtol=1e-12)
    np.testing.assert_allclose(std, std[0], rtol=1e-12)


def test_all_that_is_made_of_the_model_has_the_limits(limited, tmp_path):
    model, x, y = limited
    expected, std = model.predict(x, return_std=True)
    model.save(tmp_path / "model.prism")
    loaded = prismgp.load(tmp_path / "model.prism")
    np.testing.assert_array_equal(loaded.predict(x), expected)
    assert loaded.fit_status_["limited_inputs"] == model.fit_status_["limited_inputs"]
    mean, spread = model.to_torch()(torch.as_tensor(x))
    np.testing.assert_allclose(mean, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(spread, std, rtol=1e-9)
    # The certificate would refuse other rows than those of the fit.
    assert prismgp.certify(model, x, y).holds
    far = 50.0 * x[:200]
    updated = loaded.partial_fit(far, y[:200])
    clipped = np.minimum(far, [model.fit_status_["limited_inputs"][0]["high"], np.inf])
    again = prismgp.load(tmp_path / "model.prism").partial_fit(clipped, y[:200])
    np.testing.assert_allclose(updated.predict(x), again.predict(x), rtol=1e-9, atol=1e-9)


def test_damaged_limits_are_refused(limited, tmp_path):
    limited[0].save(tmp_path / "model.prism")
    whole = load_model(tmp_path / "model.prism")
    limits = whole.predictor.limits.flip(0)
    save_model(replace(whole, predictor=replace(whole.predictor, limits=limits)), tmp_path / "broken.prism")
    with pytest.raises(ModelFileError, match="not below the upper one"):
        load_model(tmp_path / "broken.prism")
