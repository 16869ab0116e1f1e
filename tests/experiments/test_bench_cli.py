"""``prismgp bench`` as people use it: what is written, what is refused, and a run that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import prismgp
from prismgp.cli import main
from prismgp.cli.common import splits
from prismgp.exceptions import DataError
from tests.experiments.conftest import alive, wait_for

RUN = ["bench", "--quick", "--datasets", "simulated", "--peers", "linear,trees", "--threads", "1"]
KEYS = ["agreement", "simulated-s0-prism-32", "simulated-s0-trees", "simulated-s0-linear"]


def workers_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after its first result, and then continued; the time stamp of that result before."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("children of a process are found by /proc")
    folder = tmp_path_factory.mktemp("bench") / "run"
    command = [sys.executable, "-m", "prismgp", *RUN, "-q", "-o", str(folder)]
    path = os.pathsep.join([str(Path(prismgp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    first = folder / "results" / f"{KEYS[0]}.json"
    wait_for(lambda: first.exists() and workers_of(process.pid), 120)
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), 10)
    there = {path.stem for path in (folder / "results").glob("*.json")}
    stamp = first.stat().st_mtime_ns
    code = main([*RUN, "-q", "-o", str(folder)])
    return folder, there, stamp, code


def test_a_killed_run_goes_on(killed):
    folder, there, stamp, code = killed
    assert there < set(KEYS)
    assert code == 0
    results = folder / "results"
    assert {path.stem for path in results.glob("*.json")} == set(KEYS)
    assert (results / f"{KEYS[0]}.json").stat().st_mtime_ns == stamp
    for key in KEYS[1:]:
        assert "failed" not in json.loads((results / f"{key}.json").read_text())
    assert not [path for path in results.iterdir() if path.name.startswith(".")]


def test_a_finished_run_has_its_tables(killed):
    folder = killed[0]
    assert "compares nothing" in (folder / "table.md").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["agreement"] is True
    assert summary["datasets"]["simulated"]["rmse"]["entries"] == 3
    about = json.loads((folder / "run.json").read_text())
    assert about["options"] == {"quick": True, "threads": 1, "job_seconds": 1800.0, "memory_gib": 8.0}
    pytest.importorskip("jinja2")
    assert "PrismGP and its peers" in (folder / "report.html").read_text()


def test_the_list_shows_plan_and_outcomes(killed, capsys):
    assert main([*RUN, "-o", str(killed[0]), "--list"]) == 0
    said = capsys.readouterr().out
    assert "Gradient-boosted trees (scikit-learn)" in said
    assert "simulated-s0-linear    rmse " in said
    assert "4 jobs, 0 to do, 0 left out" in said


def test_other_settings_for_the_same_folder_are_refused(killed, capsys):
    assert main([*RUN, "-q", "--job-seconds", "7", "-o", str(killed[0])]) == 2
    assert "holds a run with other settings" in capsys.readouterr().err


def test_listing_needs_no_data_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path))
    assert main(["bench", "--list", "--datasets", "flights"]) == 0
    said = capsys.readouterr().out
    assert "flights-s0-prism-32" in said
    assert "left out: takes at most 10,000 rows" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--datasets", "energy,bike"], "--datasets: bike unknown; choose from energy, concrete"),
        (["--datasets", ","], "--datasets: nothing given"),
        (["--peers", "gpflow"], "--peers: gpflow unknown; choose from prism-32"),
        (["--splits", "x"], "'x': give a number of splits"),
        (["--splits", "3-1"], "'3-1': give a number of splits"),
        (["--job-seconds", "0"], "'0' is not a number above 0"),
        (["--memory", "nan"], "'nan' is not a number above 0"),
        (["--jobs", "0"], "'0' is not a whole number of at least 1"),
        (["--threads", "many"], "'many' is not a whole number of at least 1"),
    ],
)
def test_bad_usage_ends_with_one_line(options, message, tmp_path, capsys):
    assert main(["bench", "-o", str(tmp_path / "run"), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("prismgp: error: ")
    assert said.count("\n") == 1
    assert message in said
    assert not (tmp_path / "run").exists()


def test_without_data_the_remedy_is_named(tmp_path, monkeypatch, capsys):
    def absent(name, split):
        raise DataError(f"{name}: not found, and the download failed")

    monkeypatch.setattr("experiments.lab.bench._data.load", absent)
    assert main(["bench", "--datasets", "energy,pol", "--peers", "linear", "-q", "-o", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "no data set is available (energy: energy: not found" in said
    assert "PRISMGP_DATA" in said
    assert "--datasets simulated" in said
    assert not (tmp_path / "run").exists()


def test_a_folder_with_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("")
    assert main([*RUN, "-q", "-o", str(tmp_path)]) == 2
    assert "not empty and holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), [("2", [0, 1]), ("1-3", [1, 2, 3]), ("4,1", [1, 4])])
def test_splits(text, expected):
    assert splits(text) == expected
