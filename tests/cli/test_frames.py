"""Raw frames given to a model that was fitted by the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import prismgp
from prismgp.exceptions import DataError, PrismGPWarning

from .conftest import make_frame


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_loaded_model_takes_raw_frames(model: Path, library: str) -> None:
    raw = make_frame(30, seed=4)
    frame = {"pandas": raw, "polars": pl.from_pandas(raw), "arrow": pa.Table.from_pandas(raw)}[library]
    loaded = prismgp.load(model)
    values = loaded.table_encoder_.encode(pa.Table.from_pandas(raw)).values
    encoded = pd.DataFrame(values, columns=loaded.table_encoder_.feature_names)
    assert loaded.table_encoder_.accepts(frame)
    np.testing.assert_array_equal(loaded.predict(frame), loaded.predict(encoded))


def test_accepts_only_what_it_can_encode(model: Path) -> None:
    encoder = prismgp.load(model).table_encoder_
    raw = make_frame(3, seed=0)
    assert encoder.accepts(raw[["flag", "size", "count", "grade"]])
    assert not encoder.accepts(raw.drop(columns="grade"))
    assert not encoder.accepts(raw.to_numpy())
    assert not encoder.accepts({"size": [1]})
    assert not encoder.accepts(encoder.encode_frame(raw))  # encoded already: to be taken as it is


def test_frames_with_trouble(model: Path) -> None:
    loaded = prismgp.load(model)
    raw = make_frame(5, seed=0)
    with pytest.raises(DataError, match=r"column 'size' \(1\)"):
        loaded.predict(raw.assign(size=[1.0, None, 2.0, 3.0, 4.0]))
    with pytest.raises(DataError, match="cannot be read as numbers or text"):
        loaded.predict(raw.assign(size=pd.Series([1.0, "x", b"y", 2.0, 3.0], dtype=object)))
    with pytest.raises(DataError, match="duplicate column 'size'"):
        loaded.predict(pd.concat([raw, raw[["size"]]], axis=1))
    with pytest.warns(PrismGPWarning, match="column 'grade': 5 value"):
        loaded.predict(raw.assign(grade="unheard of"))
