"""Run folders, stores and plans: what is finished stays, what is stopped goes on."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm

from experiments.lab import LEVELS, Job, Limits, RunFolder, Store, carry_out, provenance, scores
from experiments.lab._jobs import _next
from prismgp.exceptions import DataError
from tests.experiments.conftest import alive, wait_for

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


# -- store and folder ----------------------------------------------------------------------------


def test_a_store_gives_back_what_it_holds(tmp_path):
    store = Store(tmp_path / "results")
    assert store.get("a") is None
    assert store.all() == {}
    store.put("b-s0-x_1", {"rmse": 0.5})
    store.put("a", {"rows": [1, 2]})
    assert store.get("b-s0-x_1") == {"rmse": 0.5}
    assert list(store.all()) == ["a", "b-s0-x_1"]
    store.put("a", {"rows": []})
    assert store.get("a") == {"rows": []}


@pytest.mark.parametrize("key", ["", "../a", "a/b", ".hidden", "a b", "a\n"])
def test_a_key_cannot_leave_the_folder(tmp_path, key):
    with pytest.raises(ValueError, match="cannot be the name"):
        Store(tmp_path).put(key, {})


def test_a_result_that_is_no_json_leaves_no_file(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        store.put("a", {"nlpd": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["{", "[1]", b"\xff\xfe"])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=r"a\.json: .*remove the file"):
        Store(tmp_path).get("a")


def open_run(folder: Path, **changed: object) -> RunFolder:
    asked = {"kind": "bench", "name": "bench", "command": "prismgp bench", "options": {"threads": 2}, **changed}
    return RunFolder.open(folder, **asked)


def test_a_run_is_begun_once_and_continued(tmp_path):
    first = open_run(tmp_path / "run", more=[1])
    again = open_run(tmp_path / "run", command="another way to say it")
    assert again.about == first.about == json.loads((tmp_path / "run" / "run.json").read_text())
    assert first.about["more"] == [1]
    assert RunFolder.read(tmp_path / "run").results.folder == tmp_path / "run" / "results"


def test_other_settings_are_refused_and_named(tmp_path):
    open_run(tmp_path / "run")
    with pytest.raises(DataError, match=r"other settings \(options: .*threads.*1"):
        open_run(tmp_path / "run", options={"threads": 1})
    with pytest.raises(DataError, match=r"kind: 'bench'"):
        open_run(tmp_path / "run", kind="reproduce")


def test_folders_that_are_no_run_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(DataError, match="not empty and holds no run"):
        open_run(tmp_path)
    with pytest.raises(DataError, match="no run"):
        RunFolder.read(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        RunFolder.read(tmp_path / "absent")
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="format 99"):
        RunFolder.read(tmp_path)


# -- scores and provenance -----------------------------------------------------------------------


def test_scores_are_those_of_the_normal_density(rng):
    y, mean, std = rng.standard_normal(500), rng.standard_normal(500), rng.uniform(0.5, 2, 500)
    found, scale = scores(y, mean, std, 3.0), 3.0
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / scale)
    assert found["mae"] == pytest.approx(np.mean(np.abs(y - mean)) / scale)
    # In units of the scale: the density of y / scale.
    assert found["nlpd"] == pytest.approx(-np.mean(norm.logpdf(y / scale, mean / scale, std / scale)))
    low, high = norm.interval(0.95, mean, std)
    assert found["coverage"] == pytest.approx(np.mean((low < y) & (y < high)))
    for level, share in zip(LEVELS, found["calibration"], strict=True):
        low, high = norm.interval(level, mean, std)
        assert share == pytest.approx(np.mean((low < y) & (y < high)))


def test_provenance_names_versions_and_source():
    about = provenance(("pytest", "no-such-package"))
    assert about["versions"]["pytest"] == pytest.__version__
    assert "no-such-package" not in about["versions"]
    assert len(about["source"]) == 12
    json.dumps(about, allow_nan=False)


# -- plans ---------------------------------------------------------------------------------------


def test_results_failures_and_time_limits(tmp_path, jobs, capfd):
    store = Store(tmp_path / "results")
    plan = [Job("good", f"{jobs}:double", {"x": 4}), Job("bad", f"{jobs}:fail", {"x": 1})]
    assert carry_out(store, plan, Limits(2, 1), describe=lambda result: f"is {result['twice']}") == plan[1:]
    plan.append(Job("slow", f"{jobs}:sleep", {"seconds": 600}))
    assert carry_out(store, plan, Limits(job_seconds=1), retry=False, show=False) == plan[2:]
    good, bad, slow = (store.get(key) for key in ("good", "bad", "slow"))
    assert (good["twice"], good["x"], good["warnings"]) == (8, 4, [])
    assert good["peak_bytes"] > 2**20
    assert good["machine"]["threads"] == 1
    assert bad["failed"] == "RuntimeError: nothing to see here"
    assert bad["log"][-1] == bad["failed"]
    assert not bad["timed_out"]
    assert slow["timed_out"]
    assert slow["failed"] == "timed out after 1 s"
    said = capfd.readouterr().err
    assert "good: is 8" in said
    assert "bad: FAILED: RuntimeError" in said

    # Again: what is there stays, also what failed unless it is to be tried again; force repeats all.
    before = store.path("good").stat().st_mtime_ns
    assert carry_out(store, plan, retry=False, show=False) == []
    assert store.path("good").stat().st_mtime_ns == before
    repaired = [plan[0], Job("bad", f"{jobs}:double", {"x": 1})]
    assert carry_out(store, repaired, show=False) == []
    assert store.get("bad")["twice"] == 2
    assert store.path("good").stat().st_mtime_ns == before
    assert carry_out(store, repaired, Limits(2), force=True, show=False) == []
    assert store.path("good").stat().st_mtime_ns > before
    broken = [Job("good", f"{jobs}:fail", {"x": 1})]
    assert carry_out(store, broken, force=True, show=False) == broken
    assert store.get("good")["twice"] == 8  # what was there before is not lost


def test_nothing_begins_after_the_plans_time(tmp_path, jobs):
    plan = [Job("a", f"{jobs}:double", {"x": 1})]
    assert carry_out(Store(tmp_path / "r"), plan, Limits(seconds=-1), show=False) == plan


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
from experiments.lab import Job, Limits, Store, carry_out
jobs = [
    Job("first", "some_jobs:double", {{"x": 1}}),
    Job("second", "some_jobs:sleep", {{"seconds": {seconds}, "pid": {pid!r}}}),
]
carry_out(Store(Path({store!r})), jobs, Limits(2, 1), show=False)
"""


@unix
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_plan_that_is_ended_leaves_no_worker_and_goes_on(tmp_path, jobs, start, sign):
    store, pid = Store(tmp_path / "results"), tmp_path / "pid"
    plan = start(PLAN.format(store=str(store.folder), pid=str(pid), seconds=600))
    wait_for(lambda: store.path("first").exists() and pid.exists() and pid.read_text())
    worker = int(pid.read_text())
    assert alive(worker)
    os.kill(plan.pid, sign)
    plan.wait(30)
    # After SIGTERM the plan has stopped its worker; after SIGKILL the worker notices by itself.
    wait_for(lambda: not alive(worker), 0.2 if sign == signal.SIGTERM else 10)
    assert store.get("second") is None
    before = store.path("first").stat().st_mtime_ns
    again = start(PLAN.format(store=str(store.folder), pid=str(pid), seconds=0))
    assert again.wait(60) == 0
    assert store.get("second")["slept"] == 0
    assert store.path("first").stat().st_mtime_ns == before
