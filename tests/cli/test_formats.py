"""The same table in other spellings gives the same model, and several targets at once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import prismgp
from prismgp import metrics
from prismgp.data import from_csv

from .conftest import Run

FIT = ("--model", "ssgp", "-p", 4)


def frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    size, share = rng.uniform(0, 5000, n).round(2), rng.uniform(0, 1, n).round(4)
    kind = rng.choice(["rot", "grün"], n)
    y = np.sin(size / 900) + share + (kind == "rot") + 0.05 * rng.standard_normal(n)
    return pd.DataFrame({"size": size, "share": share, "kind": kind, "y": y.round(5), "z": (share - y).round(5)})


def spell(table: pd.DataFrame, *, decimal: str, delimiter: str) -> str:
    """Sizes with thousands, shares in per cent, all with this decimal mark."""
    other = "." if decimal == "," else ","

    def number(value: float, digits: int, *, grouped: bool = False) -> str:
        text = f"{value:,.{digits}f}" if grouped else f"{value:.{digits}f}"
        return text.translate(str.maketrans({",": other, ".": decimal}))

    lines = [delimiter.join(table.columns)]
    for row in table.itertuples():
        cells = [number(row.size, 2, grouped=True), f"{number(100 * row.share, 2)} %", row.kind]
        cells += [number(row.y, 5), number(row.z, 5)]
        lines.append(delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in cells))
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("decimal", "delimiter", "encoding", "options"),
    [
        (",", ";", "cp1252", ["--decimal", ",", "--encoding", "latin-1"]),
        (",", "\t", "utf-16", ["--decimal", ","]),
        (",", ",", "utf-8", ["--decimal", ","]),
        (".", ",", "utf-8-sig", []),
        (".", ";", "utf-16", ["--decimal", "."]),
    ],
)
def test_spellings(decimal: str, delimiter: str, encoding: str, options: list[str], run: Run, tmp_path: Path) -> None:
    table = frame().drop(columns="z")
    table.to_csv(tmp_path / "plain.csv", index=False)
    spelled = tmp_path / "spelled.csv"
    spelled.write_bytes(spell(frame(), decimal=decimal, delimiter=delimiter).encode(encoding))
    found = []
    for data, own in ((tmp_path / "plain.csv", []), (spelled, [*options, "--exclude", "z"])):
        done = run("fit", data, "-t", "y", *FIT, "-o", tmp_path / f"{data.stem}.prism", "--json", *own)
        assert done.code == 0, done.err
        found.append(json.loads(done.out)["log_evidence"])
    assert found[0] == found[1]
    out = tmp_path / "out.csv"
    assert run("predict", tmp_path / "spelled.prism", spelled, "-o", out, "-q", *options).code == 0
    read = pd.read_csv(out, sep=delimiter, decimal=decimal)
    expected = prismgp.load(tmp_path / "spelled.prism").predict(table[["size", "share", "kind"]])
    np.testing.assert_allclose(read["mean"], expected, rtol=1e-12)
    assert run("predict", tmp_path / "spelled.prism", spelled, "-o", tmp_path / "o.parquet", "-q", *options).code == 0
    typed = pq.read_table(tmp_path / "o.parquet").to_pandas()
    pd.testing.assert_frame_equal(typed[["size", "share", "kind", "y"]], table)


def test_sources(tmp_path: Path) -> None:
    """Passes over a file with thousands and per cent signs give the numbers."""
    table = frame()
    (tmp_path / "t.csv").write_text(spell(table, decimal=",", delimiter=";"))
    source = from_csv(tmp_path / "t.csv", target=["y", "z"], decimal=",", exclude=["kind"])
    for _ in range(2):
        x, y = next(source.blocks(1000))
        np.testing.assert_array_equal(x, table[["size", "share"]])
        np.testing.assert_array_equal(y, table[["y", "z"]])


def test_several_targets(run: Run, tmp_path: Path) -> None:
    table = frame().rename(columns={"z": "z, in m"})
    data, model = tmp_path / "t.csv", tmp_path / "m.prism"
    table.to_csv(data, index=False)
    targets = ["y", "z, in m"]
    fit = ["fit", data, "-t", 'y,"z, in m"', *FIT, "-o", model, "--holdout", "0.25"]
    summary = json.loads(run(*fit, "--json").out)
    assert summary["target"] == targets
    for key in ("holdout", "noise_std", "signal_std", "target_std"):
        assert list(summary[key]) == targets
    done = run("predict", model, data, "-o", tmp_path / "o.csv", "--json")
    report = json.loads(done.out)
    assert report["columns"] == [f"{what}_{name}" for name in targets for what in ("mean", "std", "lower", "upper")]
    assert report["target"] == targets
    out = pd.read_csv(tmp_path / "o.csv")
    mean, std = prismgp.load(model).predict(table[["size", "share", "kind"]], return_std=True)
    for k, name in enumerate(targets):
        np.testing.assert_allclose(out[f"mean_{name}"], mean[:, k], rtol=1e-12)
        scores, truth = report["scores"][k], table[name].to_numpy(copy=True)
        assert scores["rmse"] == pytest.approx(metrics.rmse(truth, mean[:, k]))
        # Outputs of an SSGP are normal.
        assert scores["nlpd"] == pytest.approx(metrics.nlpd(truth, mean[:, k], std[:, k]))
    assert json.loads(run("info", model, "--json").out)["target"] == targets
    assert run("certify", model, data, "--holdout", "0.25", "-q").code == 0
    # Only the targets that the table has are scored.
    table.drop(columns="y").to_csv(data, index=False)
    report = json.loads(run("predict", model, data, "-o", tmp_path / "o.csv", "--json").out)
    assert report["target"] == ["z, in m"]
    assert report["scores"] == [pytest.approx(scores)]


def test_summaries_of_several_targets(run: Run, tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "t.csv", index=False)
    model = tmp_path / "m.prism"
    text = run("fit", tmp_path / "t.csv", "-t", "y,z", *FIT, "-o", model, "--holdout", "0.25").out
    for expected in (
        "Target        y, ",
        "Target        z, ",
        "Accuracy of y on the 15 held-out rows",
        "Accuracy of z",
    ):
        assert expected in text
    text = run("predict", model, tmp_path / "t.csv", "-o", tmp_path / "o.csv").out
    for expected in ("mean_y, std_y, lower_y, upper_y, mean_z", "Against y", "Against z"):
        assert expected in text
    assert "Target        y, z\n" in run("info", model).out


@pytest.mark.slow
def test_a_pipe(run: Run, tmp_path: Path) -> None:
    """Through a real process, from standard input to standard output."""
    table = frame().drop(columns="z")
    table.to_csv(tmp_path / "t.csv", index=False)
    spool = tmp_path / "spool"
    spool.mkdir()
    environment = {**os.environ, "TMPDIR": str(spool)}

    assert run("fit", tmp_path / "t.csv", "-t", "y", *FIT, "-q", "-o", tmp_path / "m.prism").code == 0
    command = [sys.executable, "-m", "prismgp", "predict", str(tmp_path / "m.prism"), "-", "-q", "-o", "-"]
    raw = (tmp_path / "t.csv").read_bytes()
    piped = subprocess.run(command, input=raw, env=environment, capture_output=True, check=True).stdout
    assert run("predict", tmp_path / "m.prism", tmp_path / "t.csv", "-o", tmp_path / "o.csv", "-q").code == 0
    assert piped == (tmp_path / "o.csv").read_bytes()
    assert len(pd.read_csv(io.BytesIO(piped))) == len(table)
    assert list(spool.iterdir()) == []
