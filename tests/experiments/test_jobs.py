"""The job runner: results, failures, limits, and plans that are interrupted."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from experiments import plan as plan_module
from experiments.jobs import Job, Limits, _next, carry_out
from experiments.machine import Lock, code_version
from experiments.plan import Experiment, Plan
from experiments.results import Study
from prismgp.exceptions import PrismGPError
from tests.experiments.conftest import alive, perform_here, wait_for

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


@pytest.mark.slow
def test_results_failures_and_time_limits(tmp_path, jobs, capfd, monkeypatch):
    study = Study(tmp_path, "s")
    plan = [Job("good", f"{jobs}:double", {"x": 4}), Job("bad", f"{jobs}:fail", {"x": 1})]
    done = carry_out(study, plan, Limits(2, 1), describe=lambda result: f"is {result['twice']}", digest=lambda _: "abc")
    assert done == plan[1:]
    slow_job = Job("slow", f"{jobs}:sleep", {"seconds": 600})
    assert carry_out(study, [slow_job], Limits(job_seconds=1), digest=lambda _: "abc", show=False) == [slow_job]
    good, bad, slow = (study.get(key) for key in ("good", "bad", "slow"))
    assert (good["twice"], good["x"], good["warnings"]) == (8, 4, [])
    assert good["peak_bytes"] > 2**20
    assert good["machine"]["threads"] == 1
    assert bad["failed"] == "RuntimeError: nothing to see here"
    assert bad["log"][-1] == bad["failed"]
    assert not bad["timed_out"]
    assert slow["timed_out"]
    assert slow["failed"] == "timed out after 1 s"
    for outcome in (bad, slow):  # a failure says as well what code it is of
        assert {name: outcome[name] for name in code_version()} == code_version()
        assert outcome["parts"] == "abc"
    assert good["commit"] == code_version()["commit"]
    said = capfd.readouterr().err
    assert "good: is 8" in said
    assert "bad: FAILED: RuntimeError" in said

    monkeypatch.setattr("experiments.jobs.start", perform_here)

    # Again: what is there stays, also what ran out of time unless it is to be tried again; force repeats all.
    def lines():
        return study.path.read_text().splitlines()

    before = lines()
    assert carry_out(study, [plan[0], slow_job], show=False) == []
    assert lines() == before
    shorter = Job("slow", f"{jobs}:double", {"x": 1})
    assert carry_out(study, [plan[0], shorter], retry=True, show=False) == []
    repaired = [plan[0], Job("bad", f"{jobs}:double", {"x": 1})]
    assert carry_out(study, repaired, Limits(2), show=False) == []
    assert [study.get(key)["twice"] for key in ("good", "bad", "slow")] == [8, 2, 2]
    assert lines()[: len(before)] == before
    assert len(lines()) == len(before) + 2
    broken = [Job("good", f"{jobs}:fail", {"x": 1})]
    assert carry_out(study, broken, force=True, digest=lambda _: "abc", show=False) == broken
    assert study.get("good")["twice"] == 8  # a failed repetition does not replace a result


def test_nothing_begins_after_the_plans_time(tmp_path, jobs):
    plan = [Job("a", f"{jobs}:double", {"x": 1})]
    assert carry_out(Study(tmp_path, "s"), plan, Limits(seconds=-1), show=False) == plan


def test_memory_decides_what_runs_together():
    def running(*memory):
        return [SimpleNamespace(job=Job("r", "m:f", {}, each)) for each in memory]

    large, small = Job("large", "m:f", {}, 8), Job("small", "m:f", {}, 2)
    limits = Limits(at_a_time=3, memory=9)
    assert _next([large, small], [], limits) is large
    assert _next([large, small], running(4), limits) is small
    assert _next([large], running(4), limits) is None
    assert _next([Job("huge", "m:f", {}, 99)], [], limits).key == "huge"  # alone, it gets the machine
    assert _next([small], running(1, 1, 1), limits) is None
    assert _next([], [], limits) is None


PLAN = """
from pathlib import Path
from experiments.jobs import Job, Limits, carry_out
from experiments.results import Study
jobs = [
    Job("first", "some_jobs:double", {{"x": 1}}),
    Job("second", "some_jobs:sleep", {{"seconds": 600, "pid": {pid!r}}}),
]
carry_out(Study(Path({folder!r}), "s"), jobs, Limits(2, 1), show=False)
"""


@unix
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_plan_that_is_ended_leaves_no_worker_and_can_be_continued(tmp_path, jobs, start, sign, monkeypatch):
    folder, pid = tmp_path / "results", tmp_path / "pid"
    Study(folder, "s").put("first", {"twice": 2})
    before = Study(folder, "s").path.read_text()
    plan = start(PLAN.format(folder=str(folder), pid=str(pid)))
    wait_for(lambda: pid.exists() and pid.read_text())
    worker = int(pid.read_text())
    assert alive(worker)
    os.kill(plan.pid, sign)
    plan.wait(30)
    # After SIGTERM the plan has stopped its worker; after SIGKILL the worker notices by itself.
    wait_for(lambda: not alive(worker), 0.2 if sign == signal.SIGTERM else 60)
    assert Study(folder, "s").path.read_text() == before
    monkeypatch.setattr("experiments.jobs.start", perform_here)
    todo = [Job("first", f"{jobs}:fail", {}), Job("second", f"{jobs}:sleep", {"seconds": 0})]
    assert carry_out(Study(folder, "s"), todo, show=False) == []
    after = Study(folder, "s")
    assert after.get("second")["slept"] == 0
    assert after.path.read_text().startswith(before)


def test_two_runs_of_one_study(tmp_path, monkeypatch, capfd):
    """The second gets one line; another study in the same folder is not concerned."""
    empty = Experiment("tiny", "nothing", lambda _: None, lambda _: Plan("s", []), str, lambda _: "")
    args = SimpleNamespace(jobs=1, threads=1, job_seconds=9.0, limit_seconds=9.0, device="cpu", list=False, quiet=True)
    vars(args).update(results=tmp_path / "r", command="x", retry=False, force=False, stale=False)
    assert plan_module.run(empty, args) == 0
    with (
        Lock(tmp_path / "r" / "s.jsonl"),
        pytest.raises(PrismGPError, match=f"s.jsonl: is in use by process {os.getpid()}"),
    ):
        plan_module.run(empty, args)
    with Lock(tmp_path / "r" / "other.jsonl"):
        assert plan_module.run(empty, args) == 0
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["s.jsonl"]
