"""The benchmark of the SSGP's starts: its runs, and which of them are said to be stuck."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import starts
from experiments.plan import Parser
from experiments.results import Study

ABOUT = {
    "machine": {"processor": "abacus", "threads": 1, "gpu": None},
    "versions": {"torch": "1"},
    "device": "cpu",
    "prismgp": "0",
    "commit": None,
    "source": "x",
    "jobs": 1,
}


def record(dataset, p, seed, rmse, *, converged=True):
    found = {"dataset": dataset, "p": p, "seed": seed, "rmse": rmse, "evidence_per_row": -rmse, "rows": 1000}
    return {**ABOUT, **found, "cpu_seconds": 2.0, "iterations": 40, "converged": converged}


def test_plan():
    parser = Parser()
    starts.add_options(parser)
    jobs = starts.make_plan(parser.parse_args(["--datasets", "pol,categories", "--p", "16,32", "--list"])).jobs
    assert [job.key for job in jobs][:6] == [*(f"pol-p16-{seed}" for seed in range(5)), "categories-p16-0"]
    assert len(jobs) == 20
    everything = starts.make_plan(parser.parse_args(["--list"])).jobs
    assert len({job.key for job in everything}) == len(everything) == len(starts.DATASETS) * 5 * 5


def test_stuck_runs_are_named(tmp_path):
    study = Study(tmp_path, "ssgp-starts")
    for seed, rmse in enumerate((0.30, 0.31, 0.30, 0.34, 0.36)):
        study.put(starts.key("pol", 32, seed), record("pol", 32, seed, rmse, converged=seed != 1))
    study.put(starts.key("pol", 64, 0), {"failed": "MemoryError"})
    text = starts.markdown(study)
    assert "| pol | 1,000 | 32 | 5 | 0.3100 | 1.161 | -0.3600 to -0.3000 | 2.0 | 2.0 | 40 | 1 |" in text
    assert "- pol, p = 32, seed 4: 0.3600, 1.161 times the median" in text
    assert "seed 3" not in text
    assert starts.complain(study) == ["pol, p = 32, seed 4: RMSE 1.16 times the median of the seeds"]


@pytest.mark.parametrize("name", starts.SIMULATIONS)
def test_simulations_are_the_same_every_time(name):
    rows, again = starts.load(name), starts.load(name)
    np.testing.assert_array_equal(rows.y, again.y)
    assert len(rows.X) == len(rows.y) == {"categories": 40_000}.get(name, 3_700)
    assert rows.X.shape[1] == rows.X_test.shape[1] == {"categories": 9, "heavy-tails": 8}.get(name, 26)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_a_run_has_what_the_tables_need(monkeypatch, tmp_path):
    monkeypatch.setattr(starts, "MOST_ROWS", 200)
    order = {"dataset": "linear", "p": 8, "seed": 0, "device": "cpu"}
    found = starts.measure(order)
    assert found["rows"] == 200
    assert found["rmse"] < 1.0
    study = Study(tmp_path, "ssgp-starts")
    study.put(starts.key("linear", 8, 0), {**ABOUT, **order, **found})
    assert "| linear | 200 | 8 | 1 |" in starts.markdown(study)
    assert "rmse 0." in starts.describe(found)
