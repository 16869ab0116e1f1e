"""The benchmark of the SSGP's starts: its runs, and which of them are said to be stuck."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import starts
from experiments.plan import Parser
from experiments.results import Study
from tests.experiments.benchmarks.about import ABOUT


def record(dataset, p, seed, rmse, *, converged=True):
    found = {"dataset": dataset, "p": p, "seed": seed, "rmse": rmse, "evidence_per_row": -rmse, "rows": 1000}
    return {**ABOUT, **found, "cpu_seconds": 2.0, "iterations": 40, "converged": converged}


def test_plan():
    parser = Parser()
    starts.add_options(parser)
    jobs = starts.make_plan(parser.parse_args(["--datasets", "pol,categories", "--p", "16,32", "--list"])).jobs
    assert [job.key for job in jobs][:10] == [f"pol-p{p}-{seed}" for p in (16, 32) for seed in range(5)]
    assert len(jobs) == 20
    everything = starts.make_plan(parser.parse_args(["--list"])).jobs
    assert len({job.key for job in everything}) == len(everything) == len(starts.DATASETS) * 5 * 5
    assert {job.order["dataset"] for job in everything[:40]} == set(starts.ONCE_STUCK)
    costs = [starts.estimate_seconds(job.order["dataset"], job.order["p"]) for job in everything[40:]]
    assert costs == sorted(costs)
    assert set(starts.SIZES) == set(starts.DATASETS)


def test_stuck_runs_are_named(tmp_path):
    study = Study(tmp_path, "ssgp-starts")
    for seed, rmse in enumerate((0.30, 0.31, 0.30, 0.34, 0.36)):
        study.put(starts.key("pol", 32, seed), record("pol", 32, seed, rmse, converged=seed != 1))
    study.put(starts.key("pol", 64, 0), {"failed": "MemoryError"})
    text = starts.markdown(study)
    assert "| pol | 1,000 | 32 | 5 | 0.3100 | 1.161 | -0.3600 to -0.3000 | 2.0 | 2.0 | 40 | 1 |" in text
    assert "- pol, p = 32, seed 4: 0.3600, 1.161 times the median" in text
    assert "| pol | 0.3100, 1.161, 2 s |" in text
    assert "seed 3" not in text
    assert starts.complain(study) == ["pol, p = 32, seed 4: RMSE 1.16 times the median of the seeds"]


@pytest.mark.parametrize(
    ("last", "planned", "verdict"), [(0.36, 5, "NOT MET"), (0.35, 5, "MET"), (0.35, 6, "MET SO FAR")]
)
def test_the_verdict(tmp_path, last, planned, verdict):
    study = Study(tmp_path, "ssgp-starts")
    keys = [starts.key("pol", 32, seed) for seed in range(planned)]
    study.begin(kind="ssgp-starts", options={}, command="", planned=keys, skipped={})
    for seed, rmse in enumerate((0.30, 0.31, 0.30, 0.34, last)):
        study.put(keys[seed], record("pol", 32, seed, rmse))
    text = starts.conclude(study)
    assert text.startswith(f"{verdict}: ")
    assert f"5 of {planned} runs done, all seeds of {int(planned == 5)} data sets" in text
    assert f"**{text}.**" in starts.markdown(study)


@pytest.mark.parametrize("name", starts.SIMULATIONS)
def test_simulations_are_the_same_every_time(name):
    rows, again = starts.load(name), starts.load(name)
    np.testing.assert_array_equal(rows.y, again.y)
    assert len(rows.X) == len(rows.y) == {"categories": 40_000}.get(name, 3_700)
    assert rows.X.shape[1] == rows.X_test.shape[1] == {"categories": 9, "heavy-tails": 8}.get(name, 26)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_a_run_has_what_the_tables_need(tmp_path):
    order = {"dataset": "linear", "p": 8, "seed": 0, "device": "cpu", "most_rows": 200}
    found = starts.measure(order)
    assert found["rows"] == 200
    assert found["rmse"] < 1.0
    study = Study(tmp_path, "ssgp-starts")
    study.put(starts.key("linear", 8, 0), {**ABOUT, **order, **found})
    assert "| linear | 200 | 8 | 1 |" in starts.markdown(study)
    assert "rmse 0." in starts.describe(found)
