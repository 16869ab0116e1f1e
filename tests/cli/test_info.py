"""``prismgp info``: what a model file holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import SSGPRegressor
from prismgp.model import save_model
from prismgp.model.container import read_tensors, write_tensors
from tests.prism import small
from tests.prism.test_local_files import neighbors

from .conftest import Run

Refused = Callable[..., str]


def test_json(run: Run, model: Path) -> None:
    outcome = run("info", model, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    info = json.loads(outcome.out)
    loaded = prismgp.load(model)
    assert info["estimator"] == "SSGPRegressor"
    assert info["frequencies"] == 8
    assert info["rows"] == 150
    assert info["target"] == "price"
    assert info["format_version"] == 5
    assert info["gating"] is None
    assert info["bytes"] == model.stat().st_size
    assert info["noise_std"] == pytest.approx(loaded.noise_variance_**0.5)
    assert info["log_evidence"] == loaded.log_evidence_
    assert info["fit_status"]["stages"] == loaded.fit_status_["stages"]
    lengthscales = {each["name"]: each["lengthscale"] for each in info["inputs"]}
    assert lengthscales == dict(zip(loaded.table_encoder_.feature_names, loaded.lengthscale_, strict=True))
    assert [column["name"] for column in info["columns"]] == ["size", "grade", "count", "flag"]


def test_text(run: Run, model: Path) -> None:
    outcome = run("info", model)
    assert (outcome.code, outcome.err) == (0, "")
    for expected in ("SSGPRegressor (rbf, 8 frequencies)", "150", "price", "grade=high", "l-bfgs", "format version 5"):
        assert expected in outcome.out


def test_model_without_names_and_several_outputs(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((30, 25)), rng.standard_normal((30, 2))
    SSGPRegressor(2, random_state=0, max_iter=2).fit(x, y).save(tmp_path / "m.prism")
    outcome = run("info", tmp_path / "m.prism")
    assert outcome.code == 0
    assert "column 1" in outcome.out
    assert "and 5 more" in outcome.out
    info = json.loads(run("info", tmp_path / "m.prism", "--json").out)
    assert len(info["inputs"]) == 25
    assert len(info["noise_std"]) == 2
    assert info["target"] is None


def test_early_stages_do_not_look_like_failures(run: Run, model: Path) -> None:
    """They are meant to end after a few iterations."""
    text = run("info", model).out
    assert "    race: 150 rows" in text
    assert "REACHED LIMIT" not in text


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_gates(run: Run, tmp_path: Path, kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((40, 2))
    SSGPRegressor(2, gating=kind, n_components=3, optimize=False, random_state=0).fit(x, x[:, 0]).save(tmp_path / "m")
    assert f"{kind}, 3 clusters" in run("info", tmp_path / "m").out
    assert json.loads(run("info", tmp_path / "m", "--json").out)["gating"] == {"kind": kind, "clusters": 3}


@pytest.mark.slow
def test_neighbors(run: Run, tmp_path: Path) -> None:
    x, y = small.data(n=300)
    fit = small.model(local="always", n_neighbors=9).fit(x, y)
    fit.save(tmp_path / "m")
    found = json.loads(run("info", tmp_path / "m", "--json").out)["neighbors"]
    near = fit.model_.predictor.near
    assert [each["name"] for each in found] == [each.view.name for each in near]
    # The exact GP, which has all rows as neighbours, may be one of them.
    assert all((each["rows"], each["neighbors"]) == (300, 300 if each["name"] == "exact GP" else 9) for each in found)
    weights = fit.fit_status_["local"]["weights"]
    assert {each["name"]: each["weight"] for each in found}.items() <= weights.items()
    local = [each for each in near if not each.view.whole]
    assert run("info", tmp_path / "m").out.count("9 of 300 rows, in inputs") == len(local) > 0


def test_neighbors_alone(run: Run, tmp_path: Path) -> None:
    save_model(neighbors(k=7), tmp_path / "m")
    text = run("info", tmp_path / "m").out
    assert text.startswith("NeighborGPRegressor (matern32)")
    assert "7 of 150 rows, in inputs alone, weight 100%" in text


def test_models_without_neighbors(run: Run, model: Path) -> None:
    assert json.loads(run("info", model, "--json").out)["neighbors"] is None
    assert "Neighbours" not in run("info", model).out


@pytest.mark.slow
def test_torch_is_not_loaded(model: Path) -> None:
    """Loading it takes a second."""
    code = "import sys, prismgp.cli; print(prismgp.cli.main(sys.argv[1:]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "info", model], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SSGPRegressor")
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0 False", "")


def change_text(model: Path, path: Path, **changes: object) -> None:
    """Write the file with other entries."""
    text, tensors = read_tensors(model)
    write_tensors(path, json.dumps({**json.loads(text), **changes}), tensors)


def change_summary(model: Path, path: Path, **changes: object) -> None:
    """Write the file with another summary; without changes, with none."""
    text, tensors = read_tensors(model)
    config = json.loads(text)
    summary = config.pop("summary")
    write_tensors(path, json.dumps({**config, "summary": {**summary, **changes}} if changes else config), tensors)


@pytest.mark.parametrize(
    "changes",
    [{"fit_status": {}}, {"fit_status": {"stages": 3}}, {"fit_status": {"stages": ["a"]}}, {"inputs": 2**50}],
)
def test_a_text_that_does_not_fit(refused: Refused, model: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    change_text(model, tmp_path / "m", **changes)
    assert str(tmp_path / "m") in refused("info", tmp_path / "m")


def test_text_of_a_file_cannot_control_the_terminal(run: Run, model: Path, tmp_path: Path) -> None:
    change_text(model, tmp_path / "m", arguments={"kernel": "\x1b[2Jrbf", "n_frequencies": "\x1b]0;8"})
    outcome = run("info", tmp_path / "m")
    assert outcome.code == 0
    assert "?[2Jrbf" in outcome.out
    assert "\x1b" not in outcome.out


def test_a_file_without_a_summary(run: Run, model: Path, tmp_path: Path) -> None:
    change_summary(model, tmp_path / "m")
    found, expected = (json.loads(run("info", path, "--json").out) for path in (tmp_path / "m", model))
    differing = {name for name in expected if found[name] != expected[name]}
    assert differing == {"file", "bytes"}


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": [1.0, 2.0]},
        {"noise_std": "a lot"},
        {"relative_lengthscale": [1.0]},
        {"gating": {"kind": "hard", "clusters": "many"}},
        {"neighbors": [{}]},
        {"neighbors": 3},
        {"mean": ["nan"]},
        {"mean": [True]},
    ],
)
def test_a_summary_that_does_not_fit(refused: Refused, model: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    change_summary(model, tmp_path / "m", **changes)
    assert str(tmp_path / "m") in refused("info", tmp_path / "m")


def test_a_column_of_which_something_is_used_is_not_said_to_tell_nothing(run: Run, tmp_path: Path) -> None:
    """Forty sensors with as many rows each: their frequency never varies, their effect does."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"sensor": np.repeat([f"s{k}" for k in range(40)], 5), "x": rng.normal(size=200)})
    frame["y"] = np.repeat(rng.normal(size=40), 5) + 0.1 * frame["x"]
    SSGPRegressor(4, max_iter=3, random_state=0).fit(frame[["sensor", "x"]], frame["y"]).save(tmp_path / "m.prism")
    text = run("info", tmp_path / "m.prism").out
    assert "sensor log frequency - ignored: constant, or next to it" in " ".join(text.split())
    assert "tell nothing" not in text
