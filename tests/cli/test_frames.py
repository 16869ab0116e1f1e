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

from .conftest import make_frame


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
