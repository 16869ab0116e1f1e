"""Real runs, as small as they can be: jobs, the command line, and a run that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.lab import RunFolder
from experiments.lab.reproduce import _extras, page
from experiments.lab.reproduce._data import prepare
from experiments.lab.reproduce._work import fit
from prismgp.cli import main

ORDER: dict[str, Any] = {
    "experiment": "gas10k",
    "simulated": True,
    "quick": True,
    "rows": 300,
    "device": "cpu",
    "steps": 25,
    "data": None,
    "p": 4,
    "run": 0,
}
OPTIONS = {name: ORDER[name] for name in ("simulated", "quick", "rows", "device", "steps")}


def test_jobs_and_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extras, "_QUICKLY_PICTURED", 80)
    run = RunFolder.open(tmp_path / "run", kind="reproduce", name="gas10k", command="c", options=OPTIONS)
    for model in ("exact", "ssgp", "prism1"):
        order = {**ORDER, "kind": "fit", "model": model, "p": None if model == "exact" else 4}
        result = json.loads(json.dumps(fit(order), allow_nan=False))
        assert result["rows"] == 240
        assert result["test_rows"] == result["curve_test_rows"] == 60
        assert result["curve"][0]["iteration"] == 0
        assert result["curve"][-1]["stage"] == "final"
        for name in ("rmse", "nlpd", "coverage"):
            assert result["curve"][-1][name] == result[name]
        assert result["curve"][-1]["seconds"] == result["fit_seconds"]
        run.results.put(f"{model}-run0", {**order, **result, "peak_bytes": 2**28})
    for job in (_extras.embedding, _extras.certificate):
        order = {**ORDER, "kind": job.__name__}
        run.results.put(job.__name__, {**order, **json.loads(json.dumps(job(order), allow_nan=False))})
    found = page(run.folder)
    titles = [section.title for section in found.sections]
    assert "Do the paper's conditions hold?" in titles
    assert titles[-1].startswith("Certificate: SSGP, p = 4")
    assert all("simulated" in title for title in (found.title, titles[-1]))
    conditions = found.sections[titles.index("Do the paper's conditions hold?")]
    assert all("heorem 2" in sentence for _, sentence in conditions.facts)
    assert {row[1] for row in conditions.tables[0].rows} == {"printed", "corrected", "sufficient"}


def test_full_gp_with_parameters_of_a_subsample(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.lab.reproduce import _work

    monkeypatch.setattr(_work, "_QUICK_EXACT_ROWS", 100)
    result = fit({**ORDER, "kind": "fit", "model": "exact", "p": None})
    assert result["parameters_learned_on"] == 100
    assert result["curve"][-1]["rmse"] == result["rmse"]
    assert result["curve"][-1]["rows"] == 240
    assert result["curve"][-2]["rmse"] == pytest.approx(result["rmse"], rel=0.02)  # nearly the same parameters


def test_killed_run_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    command = ["reproduce", "gas10k", "--simulated", "--rows", "200", "--models", "ssgp", "--frequencies", "3,4"]
    command += ["--runs", "1", "--threads", "1", "-q", "-o", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "prismgp", *command])
    store = folder / "results"
    deadline = time.monotonic() + 60
    while not any(store.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in store.glob("*.json")}
    assert len(kept) == 1
    time.sleep(1.5)  # the job in flight notices that it is alone
    assert {path.name for path in store.glob("*.json")} == set(kept)
    assert main(command) == 0
    assert {path.stem for path in store.glob("*.json")} == {f"ssgp-p{p}-run0" for p in (3, 4)}
    for name, (modified, content) in kept.items():
        assert (store / name).stat().st_mtime_ns == modified
        assert (store / name).read_bytes() == content
    assert (folder / "report.html").stat().st_size > 10_000
    assert "(simulated data)" in (folder / "table.md").read_text()
    # More of it, in the same folder; other settings are refused.
    capfd.readouterr()
    assert main([*command, "--quick"]) == 2
    assert "other settings" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "invalid choice"),
        (["abalone", "--simulated"], "--simulated"),
        (["gas10k", "--simulated", "--models", "ssgp,forest"], "forest"),
        (["gas4m", "--simulated", "--models", "exact"], "exact"),
        (["gas10k", "--simulated", "--frequencies", "16,x"], "'x'"),
        (["gas10k", "--simulated", "--runs", "0"], "at least 1"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *arguments, "-o", str(tmp_path / "run")]) == 2
    said = capfd.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_absent_files_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from prismgp.datasets import gas_sensor as _gas_sensor
    from prismgp.exceptions import DataError

    def absent(_: Any) -> Path:
        raise DataError("there is no network")

    monkeypatch.setattr(_gas_sensor, "fetch", absent)
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PRISMGP_CACHE", str(tmp_path / "cache"))
    assert main(["reproduce", "gas10k", "-o", str(tmp_path / "run")]) == 2
    said = capfd.readouterr().err
    assert "--simulated" in said
    assert "no network" in said
    assert not (tmp_path / "run").exists()


def test_streamed_experiment(tmp_path: Path) -> None:
    prepare({**ORDER, "rows": 2_000, "runs": 1, "data": str(tmp_path)})
    result = fit({**ORDER, "experiment": "gas4m", "kind": "fit", "model": "ssgp", "data": str(tmp_path)})
    assert result["rows"] == 1_600
    assert result["test_rows"] == 400
    assert np.isfinite(result["rmse"])
    assert len(list((tmp_path / "run-0" / "train").glob("*.parquet"))) == 8
