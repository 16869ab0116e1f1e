"""The demo, as small as it can be."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prismgp
from experiments import demo
from prismgp import SSGPRegressor
from prismgp.exceptions import DataError


def test_the_table_is_the_one_that_is_described() -> None:
    frame = pd.read_csv(demo.DATA)
    assert frame.shape == (20_640, 10)
    assert frame["total_bedrooms"].isna().sum() == 207
    assert frame["ocean_proximity"].nunique() == 5
    rows = demo.read_rows()
    # Held-out rows are rows of the table, and the numbers say which.
    np.testing.assert_array_equal(frame[demo.TARGET].to_numpy()[rows.numbers - 1], rows.y_test)
    assert not set(rows.X.index) & set(rows.X_test.index)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On 400 rows, with a small SSGP in place of PrismGP."""
    small = tmp_path / "housing.csv.gz"
    pd.read_csv(demo.DATA).sample(400, random_state=0).to_csv(small, index=False)
    monkeypatch.setattr(demo, "DATA", small)
    monkeypatch.setattr(demo.read_rows, "__defaults__", (small, 0.25))
    monkeypatch.setattr(demo, "PRISM", {})
    monkeypatch.setattr(demo, "PrismGPRegressor", lambda **_: SSGPRegressor(16, random_state=0, max_iter=20))
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "report.html").write_text("of an older run")
    assert demo.run(argparse.Namespace(out=folder, command="make demo")) == 0
    assert {path.name for path in folder.iterdir()} == set(demo.OUTPUTS)
    out = capsys.readouterr().out
    for text in ("Fitting PrismGP", "Fitting trees", "bounding the distance", "Done in"):
        assert text in out
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.index(">Comparison</h2>") < html.index(">Accuracy</h2>")
    predictions = pd.read_csv(folder / "predictions.csv")
    again: Any = prismgp.load(folder / "housing.prism").predict(predictions)
    np.testing.assert_allclose(again, predictions["mean"], rtol=1e-9)
    assert (predictions["lower"] < predictions["upper"]).all()


def test_demo_leaves_other_folders_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="holds other files"):
        demo.run(argparse.Namespace(out=tmp_path, command="make demo"))
    assert (tmp_path / "letter.txt").read_text() == "dear"
