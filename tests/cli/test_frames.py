"""Raw frames given to a model that was fitted by the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import prismgp
from prismgp.data import from_csv
from prismgp.exceptions import DataError, PrismGPWarning

from .conftest import Run, make_frame


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_loaded_model_takes_raw_frames(model: Path, library: str, tmp_path: Path) -> None:
    raw = make_frame(30, seed=4)
    frame = {"pandas": raw, "polars": pl.from_pandas(raw), "arrow": pa.Table.from_pandas(raw)}[library]
    loaded = prismgp.load(model)
    raw.to_csv(tmp_path / "d.csv", index=False)
    np.testing.assert_array_equal(loaded.predict(frame), loaded.predict(from_csv(tmp_path / "d.csv")))


def test_frames_with_trouble(model: Path) -> None:
    loaded = prismgp.load(model)
    raw = make_frame(5, seed=0)
    with pytest.raises(DataError, match=r"column 'size' \(1\)"):
        loaded.set_params(missing="error").predict(raw.assign(size=[1.0, None, 2.0, 3.0, 4.0]))
    with pytest.raises(
        DataError, match=r"'size' holds 'x' in row 2 .*; the model learned it as numbers: correct or empty"
    ):
        loaded.predict(raw.assign(size=pd.Series([1.0, "x", b"y", 2.0, 3.0], dtype=object)))
    with pytest.raises(DataError, match="duplicate column 'size'"):
        loaded.predict(pd.concat([raw, raw[["size"]]], axis=1))
    with pytest.raises(
        DataError, match=r"missing: 'grade', 'flag'; the table has 'id', 'size', .*: add or rename them"
    ):
        loaded.predict(raw.drop(columns=["grade", "flag"]))
    with pytest.raises(DataError, match="pass a frame"):
        loaded.predict(np.zeros((2, 4)))
    with pytest.warns(PrismGPWarning, match="column 'grade': 5 value"):
        loaded.predict(raw.assign(grade="unheard of"))


@pytest.mark.parametrize("kind", ["frame", "array", "gaps"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_models_of_complete_frames_read_true_and_false(kind: str, suffix: str, run: Run, tmp_path: Path) -> None:
    """They have no encoder: nothing says which of their numbers were booleans."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"flag": rng.random(40) < 0.5, "size": 1234 + 1000 * rng.random(40).round(3)})
    if kind == "gaps":  # with an encoder
        table.loc[3, "size"] = np.nan
    x = table.to_numpy(dtype=float) if kind == "array" else table
    fitted = prismgp.SSGPRegressor(4, optimize=False, random_state=0).fit(x, table["flag"] + rng.random(40))
    assert (fitted.model_.encoder is None) == (kind != "gaps")
    fitted.save(tmp_path / "m.prism")
    spelled = table.assign(size=[f"{value:,.3f}" if np.isfinite(value) else "" for value in table["size"]])
    spelled.to_csv(tmp_path / "t.csv", index=False)
    done = run("predict", tmp_path / "m.prism", tmp_path / "t.csv", "-o", tmp_path / f"o.{suffix}")
    assert done.code == 0, done.err
    out = pd.read_csv(tmp_path / "o.csv") if suffix == "csv" else pd.read_parquet(tmp_path / "o.parquet")
    np.testing.assert_allclose(out["mean"], fitted.predict(x), rtol=1e-10)
    np.testing.assert_array_equal(out["flag"].astype(bool), table["flag"])
    if kind != "array":
        np.testing.assert_allclose(fitted.predict(from_csv(tmp_path / "t.csv")), fitted.predict(x), rtol=1e-10)
        reordered = table[["size", "flag"]].assign(more=1)
        reordered.to_csv(tmp_path / "r.csv", index=False)
        done = run("predict", tmp_path / "m.prism", tmp_path / "r.csv", "-o", tmp_path / f"o.{suffix}")
        assert done.code == 0, done.err
