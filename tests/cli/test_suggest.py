"""``prismgp suggest``: the rows that the Python API selects, with all their columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import SSGPRegressor
from prismgp.active import CRITERIA, select

from .conftest import Run, make_frame


@pytest.fixture
def pool(tmp_path: Path) -> tuple[pd.DataFrame, Path]:
    """Rows to choose from; a column has the name of one that is added."""
    frame = make_frame(120, seed=3).drop(columns="price").rename(columns={"id": "row"})
    path = tmp_path / "pool.parquet"
    frame.to_parquet(path, index=False)
    return frame, path


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_equals_the_python_api(
    run: Run, model: Path, pool: tuple[pd.DataFrame, Path], tmp_path: Path, criterion: str, suffix: str
) -> None:
    frame, path = pool
    output = tmp_path / f"suggested{suffix}"
    outcome = run("suggest", model, path, "-k", 7, "-o", output, "--criterion", criterion, "--json")
    assert outcome.code == 0, outcome.err
    summary = json.loads(outcome.out)
    written = pd.read_parquet(output) if suffix == ".parquet" else pd.read_csv(output)
    fitted = prismgp.load(model)
    rows, scores = select(fitted, frame, 7, criterion, return_scores=True)
    assert summary["rows"] == rows.tolist() == written["row_"].tolist()
    assert summary["rows_in_pool"] == 120
    assert list(written.columns) == ["row_", "score", "std", *frame.columns]
    np.testing.assert_allclose(written["score"], scores, rtol=1e-9)
    np.testing.assert_allclose(written["std"], fitted.predict(frame, return_std=True)[1][rows], rtol=1e-12)
    pd.testing.assert_frame_equal(written[frame.columns], frame.iloc[rows].reset_index(drop=True), check_exact=False)


def test_rows_on_standard_output(run: Run, model: Path, pool: tuple[pd.DataFrame, Path]) -> None:
    frame, path = pool
    outcome = run("suggest", model, path, "-k", 3, "-o", "-")
    assert outcome.code == 0
    written = pd.read_csv(io.StringIO(outcome.out))
    assert written["row_"].tolist() == select(prismgp.load(model), frame, 3).tolist()
    assert "Selected 3 of 120 rows by entropy" in outcome.err


def test_prints_a_list(run: Run, model: Path, pool: tuple[pd.DataFrame, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    frame, path = pool
    monkeypatch.setenv("COLUMNS", "100")
    outcome = run("suggest", model, path)
    assert outcome.code == 0
    lines = [line for line in outcome.out.splitlines() if line.startswith(" ")]
    assert lines[0].split()[:3] == ["row_", "score", "std"]
    rows = [int(line.split()[0]) for line in lines[1:]]
    assert rows == select(prismgp.load(model), frame, 10).tolist()
    assert "3 more columns" in outcome.out


def test_rows_are_numbered_as_in_the_file(run: Run, model: Path, tmp_path: Path) -> None:
    """Also if some rows are left out, and across the files of a folder."""
    frame = make_frame(90, seed=3).drop(columns="price")
    frame.loc[[0, 17, 18, 60], "size"] = np.nan
    folder = tmp_path / "pool"
    folder.mkdir()
    frame[:50].to_csv(folder / "1.csv", index=False)
    frame[50:].to_csv(folder / "2.csv", index=False)
    outcome = run("suggest", model, folder, "-k", 20, "--drop-missing", "--json", "-o", tmp_path / "out.csv")
    assert outcome.code == 0, outcome.err
    complete = frame.dropna()
    expected = complete.index[select(prismgp.load(model), complete, 20)]
    assert json.loads(outcome.out)["rows"] == expected.tolist()
    written = pd.read_csv(tmp_path / "out.csv")
    assert written["id"].tolist() == frame.loc[expected, "id"].tolist()


def test_reference(run: Run, model: Path, pool: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    frame, path = pool
    near = frame[frame["size"] > 3.5]
    near.to_csv(tmp_path / "near.csv", index=False)
    outcome = run("suggest", model, path, "-k", 4, "--criterion", "alc", "--reference", tmp_path / "near.csv", "--json")
    rows = select(prismgp.load(model), frame, 4, "alc", reference=near)
    assert json.loads(outcome.out)["rows"] == rows.tolist()


def test_several_outputs(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=50), "b": rng.normal(size=50)})
    y = np.column_stack([np.sin(x.a), x.b])
    fitted = SSGPRegressor(8, random_state=0, max_iter=5).fit(x, y)
    fitted.save(tmp_path / "two.prism")
    x.to_csv(tmp_path / "pool.csv", index=False)
    outcome = run("suggest", tmp_path / "two.prism", tmp_path / "pool.csv", "-k", 2, "-o", "-", "-q")
    written = pd.read_csv(io.StringIO(outcome.out))
    assert list(written.columns) == ["row", "score", "std_0", "std_1", "a", "b"]
    assert outcome.err == ""


def test_bad_input(refused: Callable[..., str], model: Path, pool: tuple[pd.DataFrame, Path], tmp_path: Path) -> None:
    frame, path = pool
    assert "-k 121 asks for more rows than the 120 there are" in refused("suggest", model, path, "-k", 121)
    assert "would replace an input" in refused("suggest", model, path, "-o", path)
    assert "-o -" in refused("suggest", model, path, "-o", "-", "--json")
    assert "takes no reference" in refused("suggest", model, path, "--reference", path)
    frame.drop(columns="size").to_csv(tmp_path / "narrow.csv", index=False)
    assert "input column 'size' missing" in refused("suggest", model, tmp_path / "narrow.csv")
    frame.assign(size=np.nan).to_csv(tmp_path / "empty.csv", index=False)
    output = tmp_path / "out.csv"
    output.write_text("old")
    options = ("-o", output, "--missing", "error")
    assert "--missing drop" in refused("suggest", model, tmp_path / "empty.csv", *options)
    assert output.read_text() == "old"
