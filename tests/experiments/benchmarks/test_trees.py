"""The comparison with trees: the same rows for both, and the table made from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks import trees
from experiments.results import Study

MADE = {
    "prismgp": "0",
    "commit": "",
    "versions": {"torch": "2"},
    "jobs": 1,
    "machine": {"gpu": None, "processor": "x", "threads": 1},
}


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_defaults: None) -> None:
    """A table with text, dates, missing inputs and missing targets."""
    rng = np.random.default_rng(0)
    n = 150
    frame = pd.DataFrame({"a": rng.normal(size=n), "k": rng.choice(["u", "v"], n), "extra": 1})
    frame["t"] = pd.date_range("2024-01-01", periods=n, freq="5h").astype(str)
    frame["y"] = frame["a"] + (frame["k"] == "u") + 0.1 * rng.normal(size=n)
    frame.loc[::10, "a"] = np.nan
    frame.loc[5:7, "y"] = np.nan
    (tmp_path / "tables").mkdir()
    frame.to_csv(tmp_path / "tables" / "small.csv", index=False)
    monkeypatch.setattr(trees, "TABLES", {"small": trees.Table("small.csv", "y", exclude=("extra",))})
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path))


@pytest.mark.slow
def test_both_are_scored_on_the_same_rows(small_table: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"table": "small", "seed": 1, "device": "cpu"}
    found = trees.measure(order)
    assert (found["rows"], found["test_rows"]) == (118, 29)
    assert found["rmse_ratio"] == found["prismgp_scores"]["rmse"] / found["trees"]["rmse"]
    study = Study(tmp_path, "trees")
    study.begin(kind="trees", options={}, command="", planned=[], skipped={})
    study.put("small-1", {**MADE, **order, **found})
    text = trees.markdown(study)
    assert f"{found['trees']['rmse']:.5g}" in text
    assert f"{found['rmse_ratio'] - 1:+.1%}" in trees.describe(found)
    monkeypatch.setattr(trees, "split_rows", lambda *_: (np.arange(100), np.arange(100, 147), np.arange(0)))
    with pytest.raises(RuntimeError, match="other rows"):
        trees.measure(order)


def test_columns_as_trees_take_them() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan], "t": ["2024-01-01", "2024-01-02 12:00:00"], "k": ["u", None]})
    found = frame.apply(trees.native)
    assert found["t"].diff().iloc[1] == 1.5 * 86_400
    assert isinstance(found["k"].dtype, pd.CategoricalDtype)
    assert found["a"].isna().tolist() == [False, True]
