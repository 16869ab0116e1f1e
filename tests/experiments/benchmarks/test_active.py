"""The benchmark of active learning on few rows, and the tables made from it."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import active
from experiments.results import Study

MADE = {
    "prismgp": "0",
    "commit": "",
    "versions": {"torch": "2"},
    "jobs": 1,
    "device": "cpu",
    "machine": {"gpu": None, "processor": "x", "threads": 1},
}


@pytest.fixture
def few(monkeypatch):
    """Small sizes, and a data set of 120 training rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, (160, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(160)
    monkeypatch.setattr(active, "SIZES", (10, 20, 40))
    monkeypatch.setattr(active, "FREQUENCIES", 8)
    monkeypatch.setattr(active, "load_split", lambda *_: (x[:120], y[:120], x[120:], y[120:]))


@pytest.mark.slow
def test_curves_begin_with_the_same_rows(few, tmp_path):
    orders = [{"dataset": "airfoil", "split": 0, "method": method, "device": "cpu"} for method in active.METHODS]
    found = [active.measure(order) for order in orders]
    assert len({each["rmse"][0] for each in found}) == 1
    assert len({each["rmse"][-1] for each in found}) == len(found)
    study = Study(tmp_path, "active")
    study.begin(kind="active", options={}, command="", planned=[], skipped={})
    for order, each in zip(orders, found, strict=True):
        study.put(active.key("airfoil", 0, order["method"]), {**MADE, **order, **each})
    text = active.markdown(study)
    assert f"{found[0]['rmse'][-1]:.3f}" in text
    assert "- kin40k-0-random" in text
    assert "- airfoil-0-random" not in text
    assert active.describe(found[1]).startswith("rmse ")


def test_rows_needed(monkeypatch):
    monkeypatch.setattr(active, "SIZES", (100, 400, 800))
    curve = np.array([0.4, 0.2, 0.15])  # error falls as rows^-1/2 at first
    assert active.rows_needed(curve, 0.4) == pytest.approx(100)
    assert active.rows_needed(curve, 0.4 / 2**0.5) == pytest.approx(200)
    assert active.rows_needed(curve, 0.15) == pytest.approx(800)
    assert active.rows_needed(curve, 0.1) is None
