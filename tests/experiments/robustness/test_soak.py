"""Random problems: the same for a seed, checked by invariants that can fail; failures are stored and repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from experiments.results import Study
from experiments.robustness import soak
from experiments.robustness.invariants import check_problem
from experiments.robustness.problems import make_problem
from tests.commands import Run


def test_a_seed_is_a_problem() -> None:
    for seed in range(30):
        one, other = make_problem(seed), make_problem(seed)
        assert repr(one.model) == repr(other.model)
        assert one.about == other.about
        np.testing.assert_array_equal(one.y, other.y)
        if one.about["frame"]:
            assert one.X.equals(other.X)
        else:
            np.testing.assert_array_equal(one.X, other.X)


def test_all_kinds_are_drawn() -> None:
    problems = [make_problem(seed) for seed in range(200)]
    assert set(Counter(each.name for each in problems)) == {"exact", "ssgp", "gated", "neighbors", "prism", "paper"}
    assert {each.about["rows"] for each in problems} >= {1, 2, 150}
    assert any(each.about["frame"] and each.X.isna().to_numpy().any() for each in problems)
    assert any(not each.about["frame"] and not np.ptp(each.X, axis=0).all() for each in problems)
    assert any("sample_weight" in each.fit_options for each in problems)


def cheap(name: str, count: int) -> list[int]:
    """The first seeds of an estimator with few rows."""
    seeds = (seed for seed in range(1_000) if make_problem(seed).name == name and make_problem(seed).about["rows"] < 9)
    return [next(seeds) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "ssgp", "gated", "neighbors"])
def test_the_invariants_hold(name: str) -> None:
    for seed in cheap(name, 1):
        assert check_problem(make_problem(seed)) == [], seed


# Problems in which something was violated: booleans in a column that was empty; near rows of an exact GP; one frequency
# in a file.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [474, 1324, 4582, 9640, 9984])
def test_what_failed_holds_now(seed: int) -> None:
    assert check_problem(make_problem(seed)) == []


def test_the_invariants_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(cheap("exact", 1)[0])
    predict = type(problem.model).predict

    def wrong(self: object, x: object, **options: object) -> object:
        mean, std = predict(self, x, **options)  # type: ignore[arg-type]
        return (1.0 + abs(mean)) * len(x), std - std  # type: ignore[arg-type]

    monkeypatch.setattr(type(problem.model), "predict", wrong)
    complaints = check_problem(problem)
    assert [each.split(":")[0] for each in complaints][:2] == ["predictions", "parts"]
    assert "a standard deviation is not a positive number" in complaints[0]

    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("in the fit")

    monkeypatch.setattr(type(problem.model), "fit", fails)
    assert "ZeroDivisionError: in the fit" in check_problem(problem)[0]


def test_failures_are_stored_with_their_seed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"name": "exact", "complaints": [], "seconds": 1.0}
    results = {5: good, 6: {**good, "complaints": ["fit: broken"]}, 7: good}
    monkeypatch.setattr(soak, "run_problems", lambda seeds, _: ((seed, results[seed]) for seed in seeds))
    found = run("soak", "--problems", 3, "--first-seed", 5, "--jobs", 1, "-o", tmp_path)
    assert found.code == 1
    assert "3 problems" in found.out
    assert "--seed 6" in found.out
    assert "seed 6 (exact): fit: broken" in found.err
    stored = Study(tmp_path, "soak").records
    assert sorted(stored) == ["seed-6", "summary"]
    assert stored["summary"]["failed"] == [6]
    results[6] = good
    assert run("soak", "--problems", 3, "--first-seed", 5, "--jobs", 1, "-o", tmp_path).code == 0


@pytest.mark.slow
def test_one_problem_is_repeated_here(run: Run) -> None:
    found = run("soak", "--seed", cheap("exact", 1)[0])
    assert found.code == 0
    assert "ExactGPRegressor" in found.out
    assert "nothing is violated" in found.out
