"""Bad input gets an error that names the column, the row and the remedy."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import RegressorMixin

from prismgp import ExactGPRegressor, NeighborGPRegressor, SpectralFeatures, SSGPRegressor
from prismgp.exceptions import DataError, PrismGPError

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6.0)
MODELS = [
    SSGPRegressor(2, optimize=False, missing="error"),
    ExactGPRegressor(optimize=False, missing="error"),
    NeighborGPRegressor(2, optimize=False, missing="error"),
    SpectralFeatures(2),
]


def put(value, row=3, column=1, dtype=None):
    x = X.astype(dtype) if dtype else X.copy()
    x[row, column] = value
    return x


FRAME = pd.DataFrame({"length": X[:, 0], "width": X[:, 1]})

CASES = {
    "nan": (put(np.nan), "NaN.*column 1 holds nan at row 3.*impute"),
    "inf": (put(np.inf), "inf.*column 1 holds inf at row 3.*clip"),
    "minus inf": (put(-np.inf), "column 1 holds -inf at row 3"),
    "huge": (put(1e200), r"column 1 holds 1e\+200 at row 3.*rescale"),
    "complex": (put(1 + 2j, dtype=complex), "Complex data not supported: column 0 holds"),
    "text": (put("red", dtype=object), "could not convert string to float: 'red': column 1.*row 3.*pass a frame"),
    "none": (put(None, dtype=object), "NaN.*column 1 holds None at row 3"),
    "object": (put({"a": 1}, dtype=object), "argument must be a string or a real number: column 1"),
    "frame nan": (FRAME.assign(width=[0, 1, np.nan, 3, 4, 5]), "column 'width' holds nan at row 2"),
    "frame text": (FRAME.assign(width=list("abcdef")), "column 'width' holds 'a' at row 0"),
    "frame category": (FRAME.assign(width=pd.Categorical(list("abcdef"))), "column 'width' holds 'a'"),
    "frame dates": (FRAME.assign(width=pd.date_range("2020", periods=6)), "column 'width'"),
    "polars text": (pl.DataFrame({"length": X[:, 0], "width": list("abcdef")}), "column 'width' holds 'a'"),
    "polars null": (pl.DataFrame({"length": X[:, 0], "width": [0.0, None, 2, 3, 4, 5]}), "column 'width'.*row 1"),
    "dates": (np.full((6, 2), "2020-01-01", "M8[D]"), "dates and times are not numbers: column 0 .* pass a frame"),
    "durations": (np.full((6, 2), 3, "m8[h]"), "dates and times are not numbers: column 0 .* pass a frame"),
    "list of dates": ([[np.datetime64("2020-01-01")] * 2] * 6, "dates and times are not numbers: column 0"),
    "tensor nan": (torch.tensor(put(np.nan)), "column 1 holds nan at row 3"),
    "lazy frame": (pl.LazyFrame({"length": X[:, 0], "width": X[:, 1]}), r"LazyFrame has no rows yet.*\.collect\(\)"),
    "sparse frame": (
        FRAME.assign(width=pd.arrays.SparseArray(X[:, 1])),
        r"column 'width' is sparse; make it dense, e\.g\. X\['width'\]\.sparse\.to_dense\(\)",
    ),
    "frame without columns": (pd.DataFrame(index=range(6)), "the frame has no columns"),
    "polars without columns": (pl.DataFrame(), "the frame has no columns"),
    "masked": (np.ma.masked_array(X, X == 3.0), "NaN.*column 1 holds nan at row 1"),
    "one dimension": (X[:, 0], "Reshape your data"),
    "three dimensions": (X[:, :, None], "dim 3"),
    "scalar": (3.0, "scalar"),
    "no rows": (X[:0], "0 sample"),
    "no columns": (X[:, :0], "0 feature"),
}


ENCODED = ("frame text", "frame category", "frame dates", "polars text")  # by the regressors
MISSING = ("frame nan", "polars null")


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_bad_inputs(model, case):
    x, message = CASES[case]
    if case in ENCODED and isinstance(model, RegressorMixin):
        assert model.fit(x, Y).table_encoder_.input_names == ["length", "width"]
        return
    if case in MISSING and isinstance(model, RegressorMixin):
        message = rf"{message}|column 'width' \(1\)"
    with pytest.raises(DataError, match=message):
        model.fit(x, Y)
    assert issubclass(DataError, ValueError)
    assert issubclass(DataError, PrismGPError)


@pytest.mark.parametrize("case", list(CASES))
def test_bad_inputs_at_prediction(case):
    x, message = CASES[case]
    if case in ENCODED:
        message = "column 'width': text or times; the model was fitted with numbers"
    model = SSGPRegressor(2, optimize=False, missing="error").fit(
        FRAME if "frame" in case or "polars" in case else X, Y
    )
    with pytest.raises(DataError, match=message):
        model.predict(x)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, np.nan, 3, 4, 5], "NaN.*target column 0 holds nan at row 2"),
        ([0, 1, np.inf, 3, 4, 5], "target column 0 holds inf at row 2"),
        (pd.Series([0, 1, None, 3, 4, 5], name="rings"), "target 'rings' holds nan at row 2"),
        (list("abcdef"), "'a'.*row 0"),
        (np.ma.masked_array(Y, Y == 4), "NaN.*target column 0 holds nan at row 4"),
        ([1.0, 2.0], "inconsistent numbers of samples"),
        (None, "requires y to be passed"),
        (np.zeros((6, 2, 2)), "dim 3|dimension"),
        (np.full(6, 1e200), "rescale"),
        (pd.Series(pd.date_range("2020", periods=6), name="when"), "dates .* not numbers: target 'when' .* numeric$"),
        (pd.Series([pd.NaT] * 6, name="when"), "dates and times are not numbers: target 'when'"),
        (pd.Series(pd.to_timedelta(range(6), unit="h")), "dates and times are not numbers: target column 0"),
        (np.arange("2020-01-01", "2020-01-07", dtype="M8[D]"), "dates and times are not numbers: target column 0"),
        (np.full((6, 2), 3, "m8[s]"), "dates and times are not numbers: target column 0"),
        (pl.Series("when", [dt.datetime(2020, 1, 1)] * 6), "dates and times are not numbers: target 'when'"),
    ],
)
def test_bad_targets(y, message):
    with pytest.raises(DataError, match=message):
        SSGPRegressor(2).fit(X, y)


def test_mismatched_columns_at_prediction():
    model = SSGPRegressor(2, optimize=False).fit(FRAME, Y)
    with pytest.raises(DataError, match=r"(?s)feature names should match.*breadth.*width"):
        model.predict(FRAME.rename(columns={"width": "breadth"}))
    with pytest.raises(DataError, match="in the same order"):
        model.predict(FRAME[["width", "length"]])
    model = SSGPRegressor(2, optimize=False).fit(X, Y)
    with pytest.raises(DataError, match="X has 3 features, but SSGPRegressor is expecting 2"):
        model.predict(np.zeros((2, 3)))


def test_partial_fit_refuses_other_shapes():
    model = SSGPRegressor(2, optimize=False).fit(X, Y)
    with pytest.raises(DataError, match="X has 1 features"):
        model.partial_fit(X[:, :1], Y)
    with pytest.raises(DataError, match="2 dimension"):
        model.partial_fit(X, Y[:, None])
    model = SSGPRegressor(2, optimize=False).fit(X, np.column_stack([Y, Y]))
    with pytest.raises(DataError, match="3 columns, but the model was fitted with 2"):
        model.partial_fit(X, np.column_stack([Y, Y, Y]))


def test_both_spreads_at_once():
    with pytest.raises(DataError, match="not both"):
        SSGPRegressor(2, optimize=False).fit(X, Y).predict(X, return_std=True, return_cov=True)


def test_masked_cells_are_missing():
    """Never the values under the mask."""
    gap = put(np.nan)
    hidden = np.ma.masked_array(put(1e30), np.isnan(gap))
    model = SSGPRegressor(2, optimize=False, random_state=0).fit(hidden, Y)
    other = SSGPRegressor(2, optimize=False, random_state=0).fit(gap, Y)
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    np.testing.assert_array_equal(model.predict(hidden), model.predict(gap))
    whole = np.ma.masked_array(np.arange(12).reshape(6, 2), False)
    np.testing.assert_array_equal(model.predict(whole), model.predict(X))
    words = np.ma.masked_array(np.array([["u", "v"]] * 6, dtype=object), [[False, True]] * 6)
    with pytest.raises(DataError, match="could not convert string to float: 'u'"):
        model.predict(words)


def test_frames_that_the_encoder_reads():
    table = pl.DataFrame({"a": X[:, 0], "k": list("ababab")})
    model = SSGPRegressor(2, optimize=False).fit(table, Y)
    with pytest.raises(DataError, match=r"\.collect\(\)"):
        model.predict(table.lazy())
    with pytest.raises(DataError, match="column 'a' is sparse"):
        model.predict(table.to_pandas().assign(a=pd.arrays.SparseArray([0.0] * 6)))
    large = table.cast({"a": pl.Int128})
    for use in (model.predict, lambda frame: SSGPRegressor(2).fit(frame, Y)):
        with pytest.raises(DataError, match="column 'a' holds Int128, which Arrow does not know; cast it"):
            use(large)
