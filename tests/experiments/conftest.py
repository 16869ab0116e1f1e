"""Jobs for plans: a module that worker processes can import, and a way to run a plan in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

import prismgp
from experiments.__main__ import main
from experiments.jobs import Job, Limits, Running, perform
from experiments.machine import ROOT
from tests.commands import Run, assert_refused, make_run

JOBS = """
import os, time
from pathlib import Path

def double(order):
    return {"twice": 2 * order["x"]}

def fail(order):
    raise RuntimeError("nothing to see here")

def sleep(order):
    if "pid" in order:
        Path(order["pid"]).write_text(str(os.getpid()))
    time.sleep(order["seconds"])
    return {"slept": order["seconds"]}
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with jobs, for ``function="NAME:job"``."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "some_jobs.py").write_text(JOBS)
    path = [str(folder), str(Path(prismgp.__file__).parents[1]), str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.syspath_prepend(folder)
    return "some_jobs"


def perform_here(job: Job, limits: Limits, folder: Path) -> Running:
    """In place of ``experiments.jobs.start``: perform a job in this process, which has all modules already."""
    result, log, status = folder / f"{job.key}.json", BytesIO(), 0
    try:
        result.write_text(json.dumps(perform(job.function, job.order), allow_nan=False))
    except Exception as error:  # noqa: BLE001  as a process of its own ends with it
        log.write(f"{type(error).__name__}: {error}".encode())
        status = 1
    ended = SimpleNamespace(poll=lambda: status, returncode=status)
    return Running(job, ended, log, result, time.perf_counter())


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is done with results; a process of its own spends seconds on importing torch."""
    monkeypatch.setattr("experiments.jobs.start", perform_here)


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str], subprocess.Popen[bytes]]:
    """Run a piece of Python in a process of its own; ended with the test."""
    processes = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return make_run(main, capfd)


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Run a command that must fail with one line; returns the line."""
    return lambda *argv: assert_refused(run(*argv), program="experiments")


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until it holds; an error when it never does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet asked for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
