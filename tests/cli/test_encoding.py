"""Tables as they come, from the file to predictions and certificates: dates, many categories, missing values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp.data import from_csv

from .conftest import Run


def rides(n: int, seed: int) -> pd.DataFrame:
    """Rides of a taxi: times, zones, missing cells, and a fare that depends on all of them."""
    rng = np.random.default_rng(seed)
    zones = np.random.default_rng(0).normal(size=40)
    zone, hours = rng.integers(40, size=n), rng.uniform(0, 24 * 30, n)
    distance = rng.gamma(2.0, 1.0, n)
    fare = 3 + 2 * distance + zones[zone] + np.sin(2 * np.pi * hours / 24) + 0.3 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "pickup": (pd.Timestamp("2019-03-01") + pd.to_timedelta(hours, unit="h")).strftime("%Y-%m-%d %H:%M:%S"),
            "zone": [f" zone {each}" for each in zone],
            "distance": np.where(rng.random(n) < 0.1, np.nan, distance),
            "city": "New York",
            "fare": np.where(rng.random(n) < 0.02, np.nan, fare),
        }
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rides") / "rides.csv"
    rides(400, 1).to_csv(path, index=False)
    return path


FIT = ("--model", "ssgp", "-t", "fare", "-p", 16)


def test_fit_predict_and_certify(run: Run, table: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.prism"
    outcome = run("fit", table, *FIT, "-o", model, "--holdout", 0.2, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    summary = json.loads(outcome.out)
    frame = pd.read_csv(table)
    without = int(frame["fare"].isna().sum())
    assert (summary["rows_read"], summary["rows_without_target"], summary["rows_dropped"]) == (400, without, without)
    assert summary["constant"] == ["city"]
    assert summary["encoded"] == {"pickup": 5, "zone": 2, "distance": 2, "city": 1}
    assert summary["holdout"]["rmse"] < 0.6 * summary["holdout"]["rmse_of_mean"]
    assert summary["holdout"]["coverage"] > 0.85
    text = run("info", model).out
    assert "zone effect" in text
    new = rides(60, 2)
    new.loc[0, "zone"] = "nowhere"
    new.loc[1, "pickup"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    outcome = run("predict", model, tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert outcome.code == 0
    assert "column 'zone': 1 value(s) unseen in training" in outcome.err
    assert "Missing inputs" in outcome.out
    out = pd.read_csv(tmp_path / "out.csv")
    assert out["mean"].notna().all()
    complete = new["distance"].notna().to_numpy() & (np.arange(60) > 1)
    assert (out["std"][~complete] > 1.1 * out["std"][complete].median()).all()
    assert run("certify", model, table, "--holdout", 0.2, "--only", "evidence").code == 0


@pytest.mark.usefixtures("short_race")
def test_why_columns_are_ignored(run: Run, tmp_path: Path) -> None:
    frame = rides(120, 3).dropna()[["distance", "fare"]].reset_index(drop=True)
    names = [f"ride {row}" for row in range(len(frame))]
    frame = frame.assign(name=names, country="FR", gone=pd.Series([None] * len(names), dtype=object), height=2.5)
    frame.to_csv(tmp_path / "d.csv", index=False)
    summary = json.loads(run("fit", tmp_path / "d.csv", *FIT, "-o", tmp_path / "m.prism", "--json").out)
    assert summary["constant"] == ["name", "country", "gone", "height"]
    reasons = ["every value occurs once", "constant", "all missing", "constant, or next to it"]
    assert list(summary["ignored"].values()) == reasons
    out = run("fit", tmp_path / "d.csv", *FIT, "-o", tmp_path / "m.prism").out
    assert "Ignored       name (every value occurs once)" in out
    assert "Ignored       country (constant)" in out
    text = run("info", tmp_path / "m.prism").out
    for name, reason in zip(["name effect", "country=FR", "gone is missing", "height"], reasons, strict=True):
        assert re.search(f"  {name} +-  ignored: {reason}\n", text)


def test_the_summary_says_what_was_left_out(run: Run, table: Path, tmp_path: Path) -> None:
    out = run("fit", table, *FIT, "-o", tmp_path / "m.prism").out
    assert "left out, without a target" in out
    assert "dropped for missing values" not in out
    assert "city (constant)" in out
    assert "zone as 2" in out
    dropped = run("fit", table, *FIT, "-o", tmp_path / "m.prism", "--missing", "drop").out
    assert "left out, without a target" in dropped
    assert "dropped for missing values" in dropped


def test_held_out_rows_do_not_teach_the_encoding(run: Run, table: Path, tmp_path: Path) -> None:
    """Neither their targets nor their cells: the encoder is that of the other rows."""
    argv = ("fit", table, *FIT, "-o", tmp_path / "a.prism", "--holdout", 0.25, "-q")
    assert run(*argv).code == 0
    source = from_csv(table, "fare")
    held_out = np.random.default_rng(0).permutation(source.n_rows)[: round(0.25 * source.n_rows)]
    rest = source.select(np.setdiff1d(np.arange(source.n_rows), held_out))
    assert prismgp.load(tmp_path / "a.prism").table_encoder_.encodings == source.encoder.learn(rest).encodings


def test_categories_that_were_numbers_are_many_levels(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"code": rng.integers(1000, 1050, 300), "y": rng.normal(size=300)})
    frame.to_csv(tmp_path / "d.csv", index=False)
    options = ("--model", "ssgp", "-t", "y", "-p", 2, "-o", tmp_path / "m", "--json", "--categorical", "code")
    assert json.loads(run("fit", tmp_path / "d.csv", *options).out)["features"] == ["code effect", "code log frequency"]
    wide = json.loads(run("fit", tmp_path / "d.csv", *options, "--max-categories", 60).out)["features"]
    assert len(wide) == frame["code"].nunique()
