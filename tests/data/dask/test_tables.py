"""Dask collections with text, times and missing cells are encoded as other frames are."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import NeighborGPRegressor, Reconfigurer, SSGPRegressor
from prismgp.data.frames import to_arrow
from prismgp.data.scan import TableScan
from prismgp.exceptions import DataError, PrismGPWarning

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
FIXED = {"optimize": False, "lengthscale": 1.0, "signal_variance": 1.0, "noise_variance": 0.1}


def mixed(n: int = 240, seed: int = 0) -> pd.DataFrame:
    """A column of every kind; all missing cells of the colour are in one part of the rows."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "colour": rng.choice(["red", " blue", "green"], n),
            "grade": pd.Categorical(rng.choice(["low", "high"], n)),
            "when": pd.date_range("2024-01-01", periods=n, freq="7h"),
            "spelled": [f"2024-03-{1 + k % 28:02d}" for k in range(n)],
            "new": rng.random(n) < 0.5,
            "count": pd.array(rng.integers(5, size=n), dtype="Int64"),
        }
    )
    frame.loc[:20, "colour"] = None
    frame.loc[3:6, "count"] = pd.NA
    y = frame["size"].fillna(0) + (frame["colour"] == "red") + 0.1 * rng.normal(size=n)
    return frame.assign(y=y)


def partitioned(frame: pd.DataFrame, n: int = 4) -> tuple[object, object]:
    table = dd.from_pandas(frame, npartitions=n)
    return table[[name for name in frame.columns if name != "y"]], table["y"]


@pytest.mark.parametrize("missing", ["impute", "drop"])
def test_the_same_model_as_of_a_frame(missing: str, tmp_path) -> None:
    frame = mixed()
    x, y = frame.drop(columns="y"), frame["y"]
    model = SSGPRegressor(6, random_state=0, missing=missing, **FIXED)
    expected = model.fit(x, y)
    evidence, predictions = expected.log_evidence_, expected.predict(x, return_std=True)
    density, names = expected.log_density(x, y), expected.table_encoder_.feature_names
    assert "when sine of the week" in names
    far = SSGPRegressor(6, random_state=0, missing=missing, **FIXED).fit(*partitioned(frame))
    assert far.table_encoder_ == expected.table_encoder_
    assert list(far.feature_names_in_) == list(x.columns)
    assert far.log_evidence_ == pytest.approx(evidence, rel=1e-9)
    np.testing.assert_allclose(far.predict(partitioned(frame)[0], return_std=True), predictions, atol=1e-8)
    np.testing.assert_allclose(far.log_density(*partitioned(frame)), density, rtol=1e-7)
    np.testing.assert_allclose(far.predict(x[::-1])[::-1], predictions[0], atol=1e-8)
    assert far.score(*partitioned(frame)) == pytest.approx(expected.score(x, y))
    far.conformalize(*partitioned(frame)).save(tmp_path / "m.prism")
    again = prismgp.load(tmp_path / "m.prism")
    np.testing.assert_allclose(again.predict_interval(partitioned(frame)[0]), far.predict_interval(x), rtol=1e-12)


def test_many_levels() -> None:
    """The effects are those of all rows; in the training rows they are out of fold, by the number in the partition."""
    rng = np.random.default_rng(0)
    codes = rng.integers(40, size=600)
    effect = rng.normal(size=40)
    frame = pd.DataFrame({"a": rng.normal(size=600), "zone": [f"zone {each}" for each in codes]})
    frame["y"] = effect[codes] + 0.1 * rng.normal(size=600)
    here = SSGPRegressor(6, random_state=0, **FIXED).fit(frame[["a", "zone"]], frame["y"])
    one = SSGPRegressor(6, random_state=0, **FIXED).fit(*partitioned(frame, 1))
    assert one.log_evidence_ == pytest.approx(here.log_evidence_, rel=1e-9)
    far = SSGPRegressor(6, random_state=0, **FIXED).fit(*partitioned(frame))
    learned, known = far.table_encoder_.encodings[1], here.table_encoder_.encodings[1]
    np.testing.assert_allclose(learned.effects, known.effects, rtol=1e-9)
    np.testing.assert_array_equal(learned.counts, known.counts)
    certificate = far.certify(*partitioned(frame), frame[["a", "zone"]][:2], random_state=0)
    assert certificate.holds
    unseen = partitioned(frame.assign(zone="another"))[0]
    with pytest.warns(PrismGPWarning, match="column 'zone': 600 value"):
        wider = far.predict(unseen, return_std=True)[1]
    assert wider.min() > far.predict(frame[["a", "zone"]], return_std=True)[1].max()


def test_missing_numbers_of_arrays() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    x[::9, 1] = np.nan
    far = da.from_array(x, chunks=(60, 3)), da.from_array(y, chunks=60)
    for missing in ("impute", "drop"):
        expected = NeighborGPRegressor(8, missing=missing, **FIXED).fit(x, y)
        model = NeighborGPRegressor(8, missing=missing, **FIXED).fit(*far)
        np.testing.assert_allclose(model.predict(far[0], return_std=True), expected.predict(x, return_std=True))
        assert not hasattr(model, "feature_names_in_")
    # A model that has seen no missing cells averages over what they may be.
    complete = SSGPRegressor(6, random_state=0, **FIXED).fit(np.nan_to_num(x), y)
    np.testing.assert_allclose(complete.predict(far[0]), complete.predict(x), rtol=1e-9)
    with pytest.raises(DataError, match=r"partition 0 .*contains NaN"):
        SSGPRegressor(4, missing="error").fit(*far)
    with pytest.raises(DataError, match=r"partition 0 .*contains inf"):
        SSGPRegressor(4).fit(da.from_array(np.where(np.isnan(x), np.inf, x), chunks=(60, 3)), far[1])
    with pytest.raises(DataError, match="every row of X has a missing value"):
        SSGPRegressor(4, missing="drop").fit(far[0] * np.nan, far[1])


def test_what_is_refused() -> None:
    frame = mixed()
    x, y = partitioned(frame)
    with pytest.raises(DataError, match=r"missing values in columns? 'size'"):
        SSGPRegressor(4, missing="error").fit(x, y)
    numbers = SSGPRegressor(4, random_state=0, **FIXED).fit(x[["new"]], y)
    with pytest.raises(DataError, match="'colour': text or times; the model was fitted with numbers"):
        numbers.predict(x[["colour"]].rename(columns={"colour": "new"}).assign(colour="a")[["colour"]])
    model = SSGPRegressor(4, random_state=0, **FIXED).fit(x[["size", "colour"]], y)
    with pytest.raises(DataError, match="input column missing: 'colour'"):
        model.predict(x[["size"]])
    with pytest.raises(DataError, match="fitted with text or times: pass frames or files"):
        model.predict(da.ones((4, 2)))
    with pytest.raises(DataError, match=r"column 'colour' of X holds .* which is not a number"):
        Reconfigurer(max_steps=1).fit(x[["colour"]])


def test_parts_of_a_table_are_scanned_as_the_whole() -> None:
    frame = mixed().drop(columns="y").astype({"spelled": object, "colour": object})
    # The first part has no colour at all, and one more column holds times in some parts only.
    frame["mostly"] = np.where(np.arange(240) < 230, frame["spelled"], "then")
    with pytest.warns(PrismGPWarning, match="'mostly' holds dates and other text, such as 'then', and is taken as"):
        whole = TableScan(to_arrow(frame)).encoder()
    first, *others = (TableScan(to_arrow(frame[start : start + 21])) for start in range(0, 240, 21))
    for other in others:
        first.merge(other)
    assert first.encoder(warn=False) == whole
    assert {column.name: column.kind for column in whole.columns}["mostly"] == "category"
    one, two = (
        TableScan(to_arrow(frame[["size"]])),
        TableScan(to_arrow(frame[["colour"]].rename(columns=lambda _: "size"))),
    )
    with pytest.raises(DataError, match="'size' holds category in some parts and number in others"):
        one.merge(two).encoder()


def test_warnings_come_once() -> None:
    frame = mixed()
    model = SSGPRegressor(4, random_state=0, **FIXED).fit(*partitioned(frame[["size", "colour", "y"]]))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.predict(partitioned(frame.assign(colour="violet"))[0])
    assert len([each for each in found if "unseen" in str(each.message)]) == 1


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_rows_with_infinity_are_dropped(kind: str) -> None:
    frame = pd.DataFrame({"a": np.arange(40.0), "k": ["u", "v"] * 20})[["a", "k"][: 1 + (kind == "text")]]
    frame.loc[[3, 25], "a"] = np.inf
    y = pd.Series(np.arange(40.0))
    own = SSGPRegressor(2, optimize=False, random_state=0, missing="drop")
    model = own.fit(dd.from_pandas(frame, npartitions=2), dd.from_pandas(y, npartitions=2))
    assert model.fit_status_["rows"] == 38
