"""Folders of files as DATA."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prismgp

from .conftest import Run

Refused = Callable[..., str]


def frame(n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, n)
    return pd.DataFrame({"x": x, "kind": rng.choice(["u", "v"], n), "y": np.sin(2 * x) + 0.1 * rng.standard_normal(n)})


def folder(path: Path, table: pd.DataFrame, kind: str) -> Path:
    path.mkdir()
    for index, (begin, end) in enumerate(((0, 50), (50, 51), (51, len(table)))):
        part, name = table.iloc[begin:end], path / f"part-{index}.{kind}"
        part.to_csv(name, index=False) if kind == "csv" else part.to_parquet(name, index=False)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_fit_predict_certify(kind: str, tmp_path: Path, run: Run) -> None:
    """The same as with one file."""
    table = frame()
    table.loc[[7, 60], "x"] = np.nan
    parts = folder(tmp_path / "parts", table, kind)
    whole = tmp_path / f"whole.{kind}"
    table.to_csv(whole, index=False) if kind == "csv" else table.to_parquet(whole, index=False)
    found = {}
    for data in (parts, whole):
        model = tmp_path / f"{data.stem}.prism"
        options = ["--holdout", "0.2", "--drop-missing"]
        fitted = run("fit", data, "-t", "y", "-o", model, "-p", 8, "--json", *options)
        assert fitted.code == 0, fitted.err
        summary = json.loads(fitted.out)
        assert (summary["rows_read"], summary["rows_dropped"], summary["rows"]) == (240, 2, 190)
        assert summary["holdout"]["rows"] == 48
        out = tmp_path / f"{data.stem}-out.csv"
        assert run("predict", model, data, "-o", out, "-q", "--drop-missing").code == 0
        certified = run("certify", model, data, *options, "--json")
        assert certified.code == 0, certified.err
        numbers = json.loads(certified.out)
        found[data.stem] = (
            {key: summary[key] for key in ("log_evidence", "holdout", "features")},
            out.read_text(),
            numbers["mean"],
            numbers["test_rows"],
        )
    assert found["parts"] == found["whole"]
    predictions = pd.read_csv(tmp_path / "parts-out.csv")
    assert len(predictions) == 240
    assert predictions["mean"].isna().sum() == 2
    np.testing.assert_allclose(predictions["y"], table["y"])


def test_rows_read_with_a_holdout(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that end before the last row do not lose count."""
    monkeypatch.setattr("prismgp.data.sources.MOMENT_ROWS", 16)
    monkeypatch.setattr("prismgp.data.sources.KEPT_BYTES", 0)
    parts = folder(tmp_path / "parts", frame(), "parquet")
    done = run(
        "fit", parts, "--model", "ssgp", "-t", "y", "-o", tmp_path / "m.prism", "-p", 4, "--holdout", "0.3", "--json"
    )
    summary = json.loads(done.out)
    assert (summary["rows_read"], summary["rows_dropped"], summary["rows"]) == (240, 0, 168)


def test_outputs_do_not_replace_inputs(tmp_path: Path, run: Run, refused: Refused) -> None:
    parts = folder(tmp_path / "parts", frame(), "csv")
    model = tmp_path / "m.prism"
    assert run("fit", parts, "--model", "ssgp", "-t", "y", "-o", model, "-p", 4, "-q").code == 0
    before = {path.name: path.read_bytes() for path in parts.iterdir()}
    assert "would replace an input" in refused("predict", model, parts, "-o", parts / "part-1.csv")
    assert "is in the folder that is read" in refused("predict", model, parts, "-o", parts / "predictions.csv")
    assert "would replace an input" in refused("certify", model, parts, "--json", parts / "part-1.csv")
    assert "would replace an input" in refused("fit", parts, "-t", "y", "-o", parts / "part-2.csv")
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == before


def test_refused_folders(tmp_path: Path, refused: Refused) -> None:
    fit = ("-t", "y", "-o", tmp_path / "m.prism")
    (tmp_path / "empty").mkdir()
    assert "there is no table file in it" in refused("fit", tmp_path / "empty", *fit)
    parts = folder(tmp_path / "parts", frame(), "csv")
    table = frame()
    table.loc[200, "y"] = np.nan
    pq.write_table(pa.Table.from_pandas(table), parts / "other.parquet")
    assert "text and Parquet files are mixed" in refused("fit", parts, *fit)
    (parts / "other.parquet").unlink()
    (parts / "part-9.csv").write_text("x,y\n1,2\n")
    assert "part-9.csv: columns differ" in refused("fit", parts, *fit)
    (parts / "part-9.csv").write_text("x,kind,y\n,u,3\n1,,3\n")
    assert "missing values in columns 'x' (1), 'kind' (1)" in refused("fit", parts, *fit, "--missing", "error")
    (parts / "part-9.csv").write_text("x,kind,y\n1,u,oops\n")
    assert "'oops' in row 241" in refused("fit", parts, *fit)
    assert not (tmp_path / "m.prism").exists()


def test_a_true_or_false_target(tmp_path: Path, run: Run) -> None:
    table = frame()
    table["y"] = np.where(table["x"] > 0, "True", "False")
    table.to_csv(tmp_path / "t.csv", index=False)
    assert (
        run("fit", tmp_path / "t.csv", "--model", "ssgp", "-t", "y", "-o", tmp_path / "m.prism", "-p", 4, "-q").code
        == 0
    )
    assert prismgp.load(tmp_path / "m.prism").predict(table).max() > 0.7
