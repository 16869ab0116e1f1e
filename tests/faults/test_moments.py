"""Signals at many moments of every command, and clocks that jump."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from tests.cli.test_interrupts import signal_at
from tests.faults.commands import COMMANDS, INTERRUPTED, OLD, Bench

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_READ = "prismgp.data.reader:TableReader._read"
_LOAD = "prismgp.model.container:read_entries"
_WRITE = "prismgp.model.container:split_bytes"
# The functions at whose call the signal comes, and which call, from opening the table to the rename.
MOMENTS: dict[str, list[tuple[str, int]]] = {
    "fit csv": [
        ("prismgp.data.tables:TableFile.raw_batches", 1),
        ("prismgp.data.files:scan_files", 1),
        (_READ, 1),
        (_READ, 2),
        ("prismgp.core.optimise:_lbfgs", 1),
        (_WRITE, 1),
        (_WRITE, 4),
        ("prismgp.model.container:digest_place", 1),
    ],
    "predict csv": [
        (_LOAD, 1),
        (_READ, 1),
        ("prismgp.model.fitted:FittedModel.predict_interval", 1),
        ("prismgp.data.text:TextWriter.write", 1),
        ("prismgp.data.text:TextWriter._quote", 5),
    ],
    "predict parquet": [
        (_READ, 1),
        ("prismgp.cli.common:ParquetWriter.write", 1),
        ("prismgp.cli.common:ParquetWriter._flush", 1),
        ("prismgp.cli.common:ParquetWriter.close", 1),
    ],
    "certify": [(_LOAD, 1), (_READ, 1), ("prismgp.cli.certify:certify", 1), ("prismgp.cli.certify:json_text", 1)],
    "certify figure": [("prismgp.cli.certify:certify", 1), ("prismgp.cli.certify:draw_certificate", 1)],
    "report": [
        (_LOAD, 1),
        (_READ, 1),
        ("prismgp.cli.report:examine", 1),
        ("prismgp.report.render:to_svg", 1),
        ("prismgp.report.render:to_svg", 4),
        ("prismgp.report.render:to_html", 1),
        ("prismgp.report.render:to_data_uri", 2),
    ],
    "suggest": [
        (_LOAD, 1),
        (_READ, 1),
        (_READ, 3),
        ("prismgp.cli.suggest:select_rows", 1),
        ("prismgp.data.text:TextWriter.write", 1),
    ],
}
CASES = [(name, place, call, number) for name, all_ in MOMENTS.items() for place, call in all_ for number in SIGNALS]


@pytest.mark.parametrize(("name", "place", "call", "number"), CASES)
def test_a_signal(
    bench: Bench, name: str, place: str, call: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.prepare(name)
    calls = signal_at(monkeypatch, place, call, number)
    before = [signal.getsignal(each) for each in SIGNALS]
    with bench.unharmed():
        outcome = bench.run(name)
    assert len(calls) == call, f"the command does not come by there: {outcome}"
    assert outcome == (130, "", INTERRUPTED)
    assert [signal.getsignal(each) for each in SIGNALS] == before


# -- clocks ----------------------------------------------------------------------------------------

JUMPS = {
    "back a day": lambda now, k: now - 86_400 * k,
    "ahead ten years": lambda now, k: now + 3.15e8 * (k % 2),
    "before 1970": lambda now, k: now - 2e9 - 1e6 * k,
    "after 2106": lambda now, k: now + 5e9 + k,
}
CLOCKED = ("fit csv", "predict csv", "predict gzip", "predict parquet", "certify figure", "report", "suggest")


def read(path: Path) -> object:
    """What must be the same of two outputs."""
    if path.suffix == ".prism":
        table = pd.read_csv(path.with_name("d.csv")).drop(columns="y")
        return prismgp.load(path).predict(table).tolist()
    if path.suffix == ".html":
        return path.stat().st_size > 10_000
    return path.read_bytes()


def jumping_clock(jump: str) -> Callable[[], float]:
    """A clock in place of ``time.time``."""
    calls, clock = count(1), time.time
    return lambda: float(JUMPS[jump](clock(), next(calls)))


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("name", CLOCKED)
def test_a_clock_that_jumps(bench: Bench, name: str, jump: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of a clock that is right; times of files may be any."""
    output = bench.prepare(name)
    assert bench.run(name).code == 0
    expected = read(output)
    output.write_bytes(OLD)
    for path in bench.folder.iterdir():
        os.utime(path, ns=(4_000_000_000_000_000_000, 4_000_000_000_000_000_000))  # from the future
    now = jumping_clock(jump)
    monkeypatch.setattr(time, "time", now)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * now()))
    with bench.unharmed(COMMANDS[name].output):
        outcome = bench.run(name)
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    assert read(output) == expected


@pytest.mark.parametrize("jump", ["back a day", "ahead ten years"])
def test_time_limits_do_not_ask_the_calendar(bench: Bench, jump: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = jumping_clock(jump)
    monkeypatch.setattr(time, "time", now)
    outcome = bench.run("fit csv", "--max-seconds", "600")
    assert (outcome.code, outcome.err) == (0, "")
    status = prismgp.load(bench.folder / "o.prism").fit_status_
    assert not status["timed_out"]
    assert 0 < status["seconds"] < 600
    assert np.isfinite(status["seconds"])
