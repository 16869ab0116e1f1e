"""Ctrl-C and SIGTERM on the command line: code 130, one line, the old model untouched, the checkpoint kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import checkpoint as checkpoints
from prismgp.prism import fit as recipes
from prismgp.prism import local_fit
from tests.cli.conftest import Run, make_frame

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Where the signal arrives, and at which call: from reading the table to writing the file.
MOMENTS = [
    ("prismgp.cli.fit:file_source", 1),
    ("prismgp.estimators.base:fit_standardiser", 1),
    ("prismgp.core.exact:ExactEvidence.value_and_gradient", 1),
    ("prismgp.core.exact:ExactEvidence.value_and_gradient", 3),
    ("prismgp.core.evidence:SpectralEvidence.value_and_gradient", 1),
    ("prismgp.core.evidence:SpectralEvidence.value_and_gradient", 9),
    ("prismgp.core.fit:race", 1),
    ("prismgp.context:FitContext.recall", 1),
    ("prismgp.prism.train:MemberTraining.step", 1),
    ("prismgp.prism.train:MemberTraining.check", 1),
    ("prismgp.prism.train:MemberTraining.step", 12),
    ("prismgp.prism.joint:run_training", 1),
    ("prismgp.prism.experts:MapStatistics.over", 1),
    ("prismgp.prism.joint:stack", 1),
    ("prismgp.prism.local_fit:evaluate", 1),
    ("prismgp.prism.local_fit:fit_local", 1),
    ("prismgp.prism.local_fit:fit_local", 3),
    ("prismgp.prism.shapes:fit_shape", 1),
    ("prismgp.model.save:write_tensors", 1),
    ("prismgp.model.container:split_bytes", 1),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A table, and fits of it that take no time."""
    for name, value in {"hidden": 8, "n_members": 2, "batch_size": 64, "max_steps": 30}.items():
        monkeypatch.setitem(recipes.DEFAULTS["joint"], name, value)
    monkeypatch.setattr(local_fit, "FEW", replace(local_fit.FEW, steps=5, searches=1, batch_rows=64))
    monkeypatch.setattr(checkpoints, "WRITE_SECONDS", 0.0)
    make_frame(300, seed=0).drop(columns=["id", "grade"]).to_csv(tmp_path / "d.csv", index=False)
    return tmp_path / "d.csv"


def signal_at(monkeypatch: pytest.MonkeyPatch, place: str, call: int, number: signal.Signals) -> list[int]:
    """Send a signal to this process at a call of a function; returns the calls seen."""
    home, _, path = place.partition(":")
    owner = import_module(home)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    static = vars(owner)[name]
    original = getattr(owner, name)
    calls: list[int] = []

    def wrapped(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == call:
            assert signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN)  # or it would end the tests
            os.kill(os.getpid(), number)
            time.sleep(5)  # the handler runs in between
            pytest.fail("the signal was not noticed")
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, staticmethod(wrapped) if isinstance(static, classmethod) else wrapped)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_twenty_moments_of_a_fit(run: Run, small: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Signals one after the other; the fit goes on each time, and ends as if nothing had happened."""
    output, checkpoint, whole = tmp_path / "m.prism", tmp_path / "c", tmp_path / "whole.prism"
    command = ["fit", small, "-t", "price", "-p", 4, "-q"]
    assert run(*command, "-o", whole).code == 0
    output.write_bytes(b"the old model")
    files = {small, output, whole}
    for place, call in MOMENTS:
        with pytest.MonkeyPatch.context() as patch:
            calls = signal_at(patch, place, call, number)
            outcome = run(*command, "-o", output, "--checkpoint", checkpoint)
        assert len(calls) == call, place
        assert outcome == (130, "", "prismgp: interrupted\n"), place
        assert output.read_bytes() == b"the old model"
        assert set(tmp_path.iterdir()) - {checkpoint} == files, "nothing else is left behind"
    assert checkpoint.exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert run(*command, "-o", output, "--checkpoint", checkpoint).code == 0
    assert not checkpoint.exists()
    frame = pd.read_csv(small).drop(columns="price")
    for mine, theirs in zip(
        prismgp.load(output).predict(frame, return_std=True),
        prismgp.load(whole).predict(frame, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_kept_interrupts_are_saved_and_say_so(
    run: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    output, checkpoint = tmp_path / "m.prism", tmp_path / "c"
    signal_at(monkeypatch, "prismgp.prism.train:MemberTraining.step", 28, number)
    command = ("fit", small, "-t", "price", "-p", 4, "-o", output, "--checkpoint", checkpoint, "--keep-interrupted")
    outcome = run(*command)
    assert outcome.code == 0
    assert outcome.err == "prismgp: warning: the fit was interrupted; the best states so far are used\n"
    assert f"by an interrupt, with the best model so far; the same command continues from {checkpoint}" in outcome.out
    assert checkpoint.exists()
    assert "interrupted: the best state until then" in run("info", output).out


def test_the_summary_is_not_interrupted(run: Run, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the model is written, the command has succeeded."""
    from prismgp.cli import fit

    print_summary: Callable[..., None] = fit.print_summary

    def interrupted(summary: dict[str, object]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        print_summary(summary)

    monkeypatch.setattr(fit, "print_summary", interrupted)
    outcome = run("fit", small, "-t", "price", "--model", "ssgp", "-p", 2, "-o", tmp_path / "m.prism")
    assert (outcome.code, outcome.err) == (0, "")
    assert (tmp_path / "m.prism").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_time_limit(run: Run, small: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    output = tmp_path / "m.prism"
    outcome = run("fit", small, "-t", "price", "-p", 4, "-o", output, "--max-seconds", 0.05)
    assert outcome.code == 0
    assert "by the time limit, with the best model so far" in outcome.out
    assert "ended by its time limit, after " in run("info", output).out
    assert prismgp.load(output).max_seconds == 0.05
    assert "'0' is not a number above 0" in refused("fit", small, "-t", "price", "-o", output, "--max-seconds", 0)


CHILD = "import sys; from prismgp.cli import main; print('ready', flush=True); sys.exit(main(sys.argv[1:]))"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGINT, 0.1), (signal.SIGTERM, 2.0)])
def test_processes(tmp_path: Path, number: signal.Signals, seconds: float) -> None:
    """While modules are loaded, and in the middle of reading or fitting."""
    make_frame(20_000, seed=0).to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "m.prism").write_bytes(b"old")
    argv = ["fit", str(tmp_path / "d.csv"), "-t", "price", "--exclude", "id", "-o", str(tmp_path / "m.prism")]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(seconds)
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (130, "", "prismgp: interrupted\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d.csv", "m.prism"]
    assert (tmp_path / "m.prism").read_bytes() == b"old"
