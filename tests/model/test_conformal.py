"""Split conformal intervals: ranks, the guarantee over many draws, and where they are remembered."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.data import from_csv
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning
from prismgp.model import Conformal, rows_needed
from prismgp.model import conformal as module
from prismgp.model.container import read_tensors, write_tensors
from tests.tolerances import PREDICTION


def rows(n: int, rng: np.random.Generator, q: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Skewed noise that grows with the input, which the models here know nothing of."""
    x = rng.uniform(-2, 2, (n, 1))
    noise = (0.1 + 0.2 * np.abs(x)) * (rng.standard_exponential((n, q or 1)) - 1.0)
    y = np.sin(2 * x) + noise
    return x, y if q else y[:, 0]


@pytest.fixture(scope="module")
def fitted() -> ExactGPRegressor:
    """Its noise is a tenth of the true one."""
    x, y = rows(40, np.random.default_rng(0))
    return ExactGPRegressor(optimize=False, lengthscale=0.7, noise_variance=1e-3).fit(x, y)


@pytest.mark.parametrize(("n", "coverage"), [(19, 0.9), (40, 0.95), (57, 0.8)])
def test_coverage_is_guaranteed_over_draws(fitted: ExactGPRegressor, n: int, coverage: float) -> None:
    """(H1) and (H2): 200 draws of held-out rows, 40 new rows each."""
    rng = np.random.default_rng(1)
    below, above = [], []
    for _ in range(200):
        fitted.conformalize(*rows(n, rng), coverage=coverage)
        x, y = rows(40, rng)
        low, high = fitted.predict_interval(x, coverage).T
        below.append(np.mean(y < low))
        above.append(np.mean(y > high))
    rank = math.ceil(round((n + 1) * (1 + coverage) / 2, 9))
    beyond = 1 - rank / (n + 1)  # exactly, because no two scores are equal
    assert beyond <= (1 - coverage) / 2 + 1e-12
    for share in (below, above):
        assert abs(np.mean(share) - beyond) < 4 * np.std(share) / np.sqrt(200)
    inside = 1 - np.mean(below) - np.mean(above)
    error = 4 * np.std(np.add(below, above)) / np.sqrt(200)
    assert coverage - error < inside < coverage + 2 / (n + 1) + error
    # The model's own intervals are far from it.
    fitted.model_ = replace(fitted.model_, conformal=None)
    low, high = fitted.predict_interval(*rows(400, rng)[:1], coverage).T
    _, y = rows(400, np.random.default_rng(1))
    assert np.mean((low <= y) & (y <= high)) < coverage - 0.1


def test_ends_are_order_statistics(rng: np.random.Generator) -> None:
    scores = rng.normal(size=(99, 2))
    ordered = np.sort(scores, axis=0)
    found = Conformal.of(scores)
    for coverage, rank in ((0.9, 95), (0.95, 98), (0.5, 75), (0.98, 99)):
        expected = np.stack([ordered[99 - rank], ordered[rank - 1]], axis=1)
        np.testing.assert_array_equal(found.factors(coverage), expected)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.123456])
def test_rows_needed(coverage: float) -> None:
    n = rows_needed(coverage)
    Conformal(np.zeros((n, 1)), n).check(coverage)
    with pytest.raises(DataError, match=f"need at least {n:,} held-out rows, but there are {n - 1:,}"):
        Conformal(np.zeros((n - 1, 1)), n - 1).check(coverage)


def test_many_scores_are_thinned_outwards(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    scores = rng.normal(size=(1_003, 1))
    whole = Conformal.of(scores)
    monkeypatch.setattr(module, "MOST_SCORES", 50)
    thin = Conformal.of(scores)
    assert thin.scores.shape == (50, 1)
    assert thin.scores[[0, -1], 0].tolist() == [scores.min(), scores.max()]
    for coverage in (0.1, 0.5, 0.9, 0.95, 0.99):
        (low, high), (own_low, own_high) = whole.factors(coverage)[0], thin.factors(coverage)[0]
        assert own_low <= low < high <= own_high
        # At most one of the kept steps wider.
        assert np.mean((own_low <= scores) & (scores <= own_high)) < coverage + 2 * 1.01 / 49 + 2 / 1_003


def test_scores_are_scaled_by_the_std(fitted: ExactGPRegressor) -> None:
    x, y = rows(60, np.random.default_rng(2))
    mean, std = fitted.predict(x, return_std=True)
    scores = np.sort((y - mean) / std)
    fitted.conformalize(x, y, coverage=0.9)
    rank = math.ceil(61 * 0.95)
    expected = np.stack([mean + std * scores[60 - rank], mean + std * scores[rank - 1]], axis=1)
    np.testing.assert_allclose(fitted.predict_interval(x, 0.9), expected, rtol=PREDICTION, atol=PREDICTION)
    np.testing.assert_array_equal(fitted.predict_quantiles(x, [0.5])[:, 0], mean)


def test_messages(fitted: ExactGPRegressor) -> None:
    x, y = rows(20, np.random.default_rng(3))
    with pytest.raises(DataError, match=r"coverage 0.95 need at least 39 .* there are 20; .* at most 0.904"):
        fitted.conformalize(x, y)
    fitted.conformalize(x, y, coverage=0.9)
    with pytest.raises(DataError, match="need at least 199"):
        fitted.predict_interval(x, 0.99)
    with pytest.raises(DataError, match=r"coverage=2\.0 must be a number between 0 and 1"):
        fitted.conformalize(x, y, coverage=2.0)


def test_several_outputs_in_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x, y = rows(100, rng, q=2)
    y[:, 1] *= 5.0
    model = SSGPRegressor(4, random_state=0, max_iter=5).fit(x[:50], y[:50])
    own = model.predict_interval(x)
    assert model.conformalize(x[50:], y[50:], coverage=0.8) is model
    found = model.predict_interval(x, coverage=0.8)
    assert found.shape == own.shape == (100, 2, 2)
    for k in range(2):
        alone = np.sort((y[50:, k] - model.predict(x[50:])[:, k]) / model.predict(x[50:], return_std=True)[1][:, k])
        np.testing.assert_allclose(model.model_.conformal.scores[:, k], alone, rtol=PREDICTION, atol=PREDICTION)
    model.save(tmp_path / "m.prism")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "m.prism").predict_interval(x, coverage=0.8), found)


def test_more_rows_and_another_fit_drop_the_scores() -> None:
    x, y = rows(120, np.random.default_rng(5))
    model = SSGPRegressor(4, random_state=0, max_iter=5).fit(x[:50], y[:50]).conformalize(x[50:100], y[50:100])
    with pytest.warns(PrismGPWarning, match="no longer conformal"):
        model.partial_fit(x[100:], y[100:])
    own = model.predict_quantiles(x, [0.025, 0.975])
    np.testing.assert_allclose(model.predict_interval(x), own, rtol=PREDICTION, atol=PREDICTION)
    model.conformalize(x[50:100], y[50:100])
    assert model.fit(x, y).model_.conformal is None


def test_sources(tmp_path: Path) -> None:
    x, y = rows(90, np.random.default_rng(6))
    frame = pd.DataFrame({"x": x[:, 0], "y": y})
    frame.to_csv(tmp_path / "d.csv", index=False)
    model = SSGPRegressor(4, random_state=0, max_iter=5).fit(from_csv(tmp_path / "d.csv", target="y"))
    by_source = model.conformalize(from_csv(tmp_path / "d.csv", target="y")).model_.conformal
    np.testing.assert_allclose(
        by_source.scores, model.conformalize(frame[["x"]], y).model_.conformal.scores, rtol=PREDICTION, atol=PREDICTION
    )


@pytest.mark.parametrize("change", [{"conformal_rows": 3}, {"conformal_rows": -1}, {"conformal_rows": "many"}])
def test_damaged_files(fitted: ExactGPRegressor, change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "m.prism"
    fitted.conformalize(*rows(50, np.random.default_rng(7))).save(path)
    text, tensors = read_tensors(path)
    assert prismgp.load(path).model_.conformal.rows == 50
    write_tensors(path, json.dumps({**json.loads(text), **change}), tensors)
    with pytest.raises(ModelFileError, match="conformal"):
        prismgp.load(path)
