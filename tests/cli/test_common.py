"""Scores of predictions, accumulated over batches."""

from __future__ import annotations

import numpy as np
import pytest

from prismgp import metrics
from prismgp.cli.common import Scores
from prismgp.core.normal import NORMAL_95


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
    assert found["coverage"] == pytest.approx(metrics.coverage(y, mean - NORMAL_95 * std, mean + NORMAL_95 * std))
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
