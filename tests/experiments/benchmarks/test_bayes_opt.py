"""The benchmark of Bayesian optimisation: its functions, its plan, one short loop of every model, its tables."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from experiments.benchmarks import bayes_opt
from experiments.plan import Parser
from experiments.results import Study
from prismgp import NeighborGPRegressor

pytest.importorskip("botorch", reason="BoTorch is not installed: install prismgp[botorch]")


def plan_of(*words):
    parser = Parser()
    bayes_opt.add_options(parser)
    return bayes_opt.make_plan(parser.parse_args([*words, "--list"]))


def test_maxima_are_where_the_literature_has_them():
    best = torch.tensor([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]], dtype=torch.float64)
    for name, d in (("hartmann6", 6), ("hartmann20", 20)):
        function, largest = bayes_opt.objective(name)
        padded = torch.cat([best, torch.rand(1, d - 6, dtype=torch.float64)], 1)
        assert float(function(padded)) == pytest.approx(largest, abs=1e-4)
        assert bool((function(torch.rand(50, d, dtype=torch.float64)) < largest).all())
    function, largest = bayes_opt.objective("ackley10")
    assert float(function(torch.full((1, 10), 0.5, dtype=torch.float64))) == pytest.approx(largest, abs=1e-6)


def test_plan():
    plan = plan_of()
    keys = [job.key for job in plan.jobs]
    assert len(keys) == len(set(keys)) == 3 * 3 * 10 + 3 * 10
    assert keys[0].startswith("large-")  # which take longest
    assert "19 GiB" in plan.skipped["large-singletask-0"]["skipped"]
    assert next(job.key for job in plan_of("--cases", "ackley10", "--seeds", "1-1").jobs) == "ackley10-singletask-1"


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_loops_and_tables(tmp_path, monkeypatch):
    settings = {"EVALUATIONS": 20, "INITIAL": 16, "REFIT_EVERY": 4, "SHOWN": (17, 18, 20), "P": 8, "PART": 120}
    many = {"LARGE_ROWS": 130, "LARGE_EVALUATIONS": 11, "RAW_SAMPLES": 8, "RESTARTS": 1, "STEPS": 5}
    for name, value in {**settings, **many}.items():
        monkeypatch.setattr(bayes_opt, name, value)
    monkeypatch.setattr(bayes_opt, "NeighborGPRegressor", partial(NeighborGPRegressor, max_iter=5))
    study = Study(tmp_path, "bayes-opt")
    plan = plan_of("--cases", "hartmann6,large", "--seeds", "1")
    study.begin(kind="bayes-opt", options={}, command="", planned=[], skipped=plan.skipped)
    starts = set()
    for job in plan.jobs:
        found = getattr(bayes_opt, job.function.split(":")[1])(job.order)
        regret = found["regret"]
        assert len(regret) == (11 if job.order["case"] == "large" else 20)
        assert min(regret) >= 0.0
        if job.order["case"] == "hartmann6":
            assert regret == sorted(regret, reverse=True)
            starts.add(tuple(regret[:16]))
        study.put(job.key, {**job.order, **found})
    assert len(starts) == 1  # all models begin alike
    text = bayes_opt.markdown(study)
    assert text.count("not run") == 2 * 3  # two functions, three models
    assert text.count("one kernel matrix") == 1
    assert text.count("**") >= 8  # the best of each column
    assert {type(make()).__name__ for make in bayes_opt.figures(study).values()} == {"Figure"}
