"""Jobs of the paper's experiments, as small as they can be, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.paper import extras, fits
from experiments.paper.data import prepare
from experiments.paper.fits import fit
from experiments.paper.page import page
from experiments.results import Study
from prismgp.exceptions import DataError

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
OPTIONS = {name: ORDER[name] for name in ("experiment", "simulated", "quick", "rows", "device", "steps")}


@pytest.mark.slow
@pytest.mark.usefixtures("short_race", "short_local")
def test_jobs_and_their_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "QUICKLY_PICTURED", 80)
    study = Study(tmp_path, "s")
    few = {**ORDER, "rows": 200}  # too few for neighbours, which none of this needs
    study.begin(kind="reproduce", options={**OPTIONS, "rows": 200}, command="c", planned=[], skipped={})
    for model in ("exact", "ssgp", "prism1"):
        order = {**few, "kind": "fit", "model": model, "p": None if model == "exact" else 4}
        result = json.loads(json.dumps(fit(order), allow_nan=False))
        assert result["rows"] == 160
        assert result["test_rows"] == result["curve_test_rows"] == 40
        assert result["curve"][0]["iteration"] == 0
        assert result["curve"][-1]["stage"] == "final"
        for name in ("rmse", "nlpd", "coverage"):
            assert result["curve"][-1][name] == result[name]
        assert result["curve"][-1]["seconds"] == result["fit_seconds"]
        study.put(f"{model}-run0", {**order, **result, "peak_bytes": 2**28})
    for job in (extras.embedding, extras.certificate):
        order = {**few, "kind": job.__name__}
        study.put(job.__name__, {**order, **json.loads(json.dumps(job(order), allow_nan=False))})
    found = page(study)
    titles = [section.title for section in found.sections]
    assert "Do the paper's conditions hold?" in titles
    assert titles[-1].startswith("Certificate: SSGP, p = 4")
    assert all("simulated" in title for title in (found.title, titles[-1]))
    conditions = found.sections[titles.index("Do the paper's conditions hold?")]
    assert all("heorem 2" in sentence for _, sentence in conditions.facts)
    assert {row[1] for row in conditions.tables[0].rows} == {"printed", "corrected", "sufficient"}


@pytest.mark.usefixtures("short_race")
def test_full_gp_with_parameters_of_a_subsample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "QUICK_EXACT_ROWS", 100)
    result = fit({**ORDER, "kind": "fit", "model": "exact", "p": None})
    assert result["parameters_learned_on"] == 100
    assert result["curve"][-1]["rmse"] == result["rmse"]
    assert result["curve"][-1]["rows"] == 240
    assert result["curve"][-2]["rmse"] == pytest.approx(result["rmse"], rel=0.02)  # nearly the same parameters


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_here", "short_race")
def test_an_interrupted_experiment_is_continued(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "gas10k", "--simulated", "--rows", "200", "--models", "ssgp", "--runs", "1"]
    command += ["--threads", "1", "-q", "--results", str(tmp_path)]
    with monkeypatch.context() as patch:  # figures take seconds, and the second run draws them again
        patch.setattr("experiments.plan.write_outputs", lambda *_: [])
        assert main([*command, "--frequencies", "3"]) == 0
    before = Study(tmp_path, "gas10k-simulated").path.read_text()
    assert main([*command, "--frequencies", "3,4"]) == 0
    study = Study(tmp_path, "gas10k-simulated")
    assert set(study.records) == {f"ssgp-p{p}-run0" for p in (3, 4)}
    assert study.path.read_text().startswith(before)  # the first result was not measured again
    assert (tmp_path / "gas10k-simulated.html").stat().st_size > 10_000
    assert "(simulated data)" in (tmp_path / "gas10k-simulated.md").read_text()
    capfd.readouterr()
    assert main([*command, "--rows", "100"]) == 2
    assert "other settings" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "invalid choice"),
        (["abalone", "--simulated"], "--simulated"),
        (["gas10k", "--simulated", "--models", "ssgp,forest"], "forest"),
        (["gas4m", "--simulated", "--models", "exact"], "exact"),
        (["gas10k", "--simulated", "--frequencies", "16,x"], "'16,x'"),
        (["gas10k", "--simulated", "--runs", "0"], "at least 1"),
    ],
)
def test_bad_usage(arguments: list[str], words: str, tmp_path: Path, refused: Any) -> None:
    assert words in refused("reproduce", *arguments, "--results", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_absent_files_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Any) -> None:
    def absent() -> list[Path]:
        raise DataError("there is no network")

    monkeypatch.setattr("experiments.paper.data.gas_sensor_files", absent)
    line = refused("reproduce", "gas10k", "--results", tmp_path / "run")
    assert "--simulated" in line
    assert "no network" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_streamed_experiment(tmp_path: Path) -> None:
    prepare({**ORDER, "rows": 2_000, "runs": 1, "data": str(tmp_path)})
    result = fit({**ORDER, "experiment": "gas4m", "kind": "fit", "model": "ssgp", "data": str(tmp_path)})
    assert result["rows"] == 1_600
    assert result["test_rows"] == 400
    assert np.isfinite(result["rmse"])
    assert len(list((tmp_path / "run-0" / "train").glob("*.parquet"))) == 8
