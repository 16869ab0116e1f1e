"""Runs of the accuracy, efficiency, frequencies and variants benchmarks."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks import accuracy, efficiency, frequencies, suite, variants
from experiments.benchmarks.suite import DATASETS, Run
from experiments.plan import Parser
from experiments.results import Study


def plan_of(which, *words):
    parser = Parser()
    which.add_options(parser)
    return which.make_plan(parser.parse_args([*words, "--list"]))


def test_keys_and_plans():
    assert Run("pol", 2, "prism", 32).key == "pol-2-prism-p32"
    assert Run("pol", 0, "exact", None).key == "pol-0-exact"
    jobs = plan_of(accuracy.SUITE).jobs
    assert len(jobs) == len({job.key for job in jobs}) == 9 * 3 * 4 + 2 * 4 + 9 * 3 * 2
    assert len(plan_of(efficiency.SUITE).jobs) == 9 * 2 * 7
    assert len(plan_of(frequencies.SUITE).jobs) == 3 * 5 * 5
    assert len(plan_of(variants.SUITE).jobs) == 2 * len(suite.VARIANTS)
    chosen = plan_of(accuracy.SUITE, "--datasets", "pol", "--splits", "1-1", "--models", "exact,ssgp", "--p", "8")
    assert {job.key for job in chosen.jobs} == {"pol-1-exact", "pol-1-ssgp-p8"}
    assert chosen.jobs[0].order["seed"] == 1


def test_short_runs_come_first_and_large_ones_ask_for_memory():
    words = ["--datasets", "energy,kin40k", "--splits", "1", "--models", "exact,ssgp", "--p", "16"]
    keys = [job.key for job in plan_of(accuracy.SUITE, *words).jobs]
    assert keys[0] == "energy-0-ssgp-p16"
    assert keys == [job.key for job in plan_of(accuracy.SUITE, *words, "--no-shortest-first").jobs][::-1]
    memory = {job.key: job.memory for job in plan_of(accuracy.SUITE, *words).jobs}
    assert memory["kin40k-0-exact"] > 10 * memory["kin40k-0-ssgp-p16"]


def test_simulated_rows_are_split_by_seed():
    x, y, x_test, y_test = suite.load_split("gas10k", 1)
    assert x.shape == (suite.SIMULATED["gas10k"], 18)
    assert len(x) + len(x_test) == len(y) + len(y_test) == 10_000
    assert not np.array_equal(x, suite.load_split("gas10k", 2)[0])


def test_a_rise_is_chance_or_not():
    level, noise = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([0.1, -0.1, 0.0, 0.1, -0.1])
    falling = frequencies.largest_rise({16: level, 32: level - 0.5 + noise, 64: level - 1.0})
    assert falling is not None
    assert falling.is_chance
    rising = frequencies.largest_rise({16: level, 32: level - 1.0, 64: level - 0.5 + noise})
    assert rising is not None
    assert (rising.smaller, rising.larger, rising.is_chance) == (32, 64, False)
    assert rising.mean == pytest.approx(0.5)
    assert rising.error == pytest.approx(0.1 / np.sqrt(5))
    assert frequencies.largest_rise({}) is None


def test_the_table_of_frequencies_reads_both_predictions(tmp_path):
    study = Study(tmp_path, "frequencies")
    about = {"machine": {"processor": "abacus", "threads": 1, "gpu": None}, "versions": {"torch": "1"}, "device": "cpu"}
    about |= {"prismgp": "1", "commit": "c", "jobs": 1}
    for seed in frequencies.SEEDS:
        for p in frequencies.FREQUENCIES:
            own = {"rmse": 1.0 / p + seed, "nlpd": 2.0}
            spectrum = {"spectrum": {"rmse": 0.01 * p + seed, "nlpd": 3.0}} if p < 200 else {}
            study.put(Run("elevators", seed, "prism", p).key, {**about, **own, **spectrum})
    page = frequencies.markdown(study)
    assert "| elevators | with neighbours | RMSE | 2.0625 | 2.0312 |" in page
    assert "**beyond chance**" in page  # without neighbours the error rises with p
    assert "| gas10k | with neighbours | RMSE | not run |" in page
    assert "kin40k, PrismGP, p = 16, splits 0, 1, 2, 3, 4: not run" in page


@pytest.mark.slow
@pytest.mark.usefixtures("short_race", "short_local")
@pytest.mark.parametrize("model", ["exact", "ssgp", "base"])
def test_a_run_has_what_the_tables_need(model, data_folder, monkeypatch):
    monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
    monkeypatch.setattr(suite, "EXACT_RESTARTS", 0)
    monkeypatch.setattr(suite, "EXACT_LIMIT", 100)
    monkeypatch.setattr(suite, "EXACT_ROWS", 80)
    monkeypatch.setitem(suite.VARIANTS, "base", {"max_steps": 20})
    order = {"dataset": "energy", "split": 0, "model": model, "p": None if model == "exact" else 4, "device": "cpu"}
    found = suite.measure(order)
    assert {"rmse", "nlpd", "coverage", "fit_seconds", "test_rows"} <= set(found)
    assert found["rows"] == pytest.approx(DATASETS["energy"], abs=1)
    assert found.get("exact_rows") == (80 if model == "exact" else None)
    assert ("nlpd_mixture" in found) == (model == "base")
    assert "rmse 0." in suite.describe(found)


def test_missing_and_failed_runs_are_named(tmp_path):
    study = Study(tmp_path, "variants")
    about = {"machine": {"processor": "abacus", "threads": 1, "gpu": None}, "versions": {"torch": "1"}, "device": "cpu"}
    done = {**about, "rmse": 0.25, "nlpd": -0.5, "prismgp": "0", "commit": None, "source": "x", "jobs": 1}
    study.put("concrete-0-base-p32", done)
    study.put("airfoil-0-no-gates-p32", {"failed": "MemoryError"})
    text = variants.markdown(study)
    assert "| 0.2500 / -0.500 | not run |" in text
    assert "- airfoil, one member, no-gates, p = 32, split 0: failed, MemoryError" in text
    assert "- concrete, one member, half-batch, p = 32, split 0: not run" in text
    assert "commit not recorded, source x, torch 1, abacus CPU, 1 threads, 1 at a time: 1 runs" in text
