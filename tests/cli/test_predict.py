"""``prismgp predict``: what goes in comes out again, with the predictions of the Python API."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import prismgp
from prismgp import SSGPRegressor, metrics
from prismgp.core.shape import SkewedShape, StudentShape
from prismgp.exceptions import DataError
from prismgp.model import FittedModel, load_model, save_model

from .conftest import Run, make_frame

ADDED = ["mean", "std", "lower", "upper"]
Z95 = NormalDist().inv_cdf(0.975)


def predict(run: Run, model: Path, data: Path, output: Path, *options: object) -> dict:
    outcome = run("predict", model, data, "-o", output, "--json", *options)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    # Not by pandas: older versions do not read floats exactly by default.
    options = pa.csv.ParseOptions(delimiter="\t" if ".tsv" in path.name else ",")
    return pa.csv.read_csv(path, parse_options=options).to_pandas()


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("d.csv", "o.csv"),
        ("d.csv", "o.parquet"),
        ("d.parquet", "o.csv"),
        ("d.parquet", "o.parquet"),
        ("d.tsv", "o.csv.gz"),
        ("d.csv.gz", "o.tsv"),
    ],
)
def test_round_trip_equals_the_python_api(
    run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path, source: str, result: str
) -> None:
    write(fresh, tmp_path / source)
    summary = predict(run, model, tmp_path / source, tmp_path / result)
    output = read(tmp_path / result)
    assert list(output.columns) == [*fresh.columns, *ADDED]
    if not (source.startswith("d.csv") and result == "o.parquet"):
        pd.testing.assert_frame_equal(output[fresh.columns], fresh, check_exact=True)
    else:  # here a boolean input is what the model made of it
        expected = fresh.astype({"flag": float, "count": float})
        pd.testing.assert_frame_equal(output[fresh.columns], expected, check_exact=True)
    mean, std = prismgp.load(model).predict(fresh, return_std=True)
    np.testing.assert_array_equal(output["mean"], mean)
    np.testing.assert_array_equal(output["std"], std)
    np.testing.assert_array_equal(output["lower"], mean - Z95 * std)
    np.testing.assert_array_equal(output["upper"], mean + Z95 * std)
    np.testing.assert_array_equal(output[["lower", "upper"]], prismgp.load(model).predict_interval(fresh))
    assert summary["rows"] == len(fresh)


def test_unused_cells_of_text_files_come_out_as_they_went_in(run: Run, model: Path, tmp_path: Path) -> None:
    lines = [
        "note,size,grade,count,flag,code",
        '"a ""quoted"", note",1.50,low,2,true,007',
        '"two\nlines",2e0, high,3,False,NA',
        ",+.5,mid,4.0,1,1e400",
    ]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n", newline="")
    outcome = run("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv")
    assert outcome.code == 0
    text = (tmp_path / "o.csv").read_text()
    header, *body = lines
    assert text.startswith(f"{header},mean,std,lower,upper\n{body[0]},")
    assert f"\n{body[1]}," in text
    assert f"\n{body[2]}," in text
    assert outcome.err == ""  # ' high' is 'high'


def test_order_across_many_batches(run: Run, model: Path, tmp_path: Path) -> None:
    frame = make_frame(40_000, seed=5).drop(columns="price")
    frame.to_parquet(tmp_path / "d.parquet", index=False, row_group_size=7_001)
    predict(run, model, tmp_path / "d.parquet", tmp_path / "o.csv")
    output = read(tmp_path / "o.csv")
    assert output["id"].tolist() == frame["id"].tolist()
    mean, std = prismgp.load(model).predict(frame, return_std=True)
    np.testing.assert_array_equal(output["mean"], mean)
    np.testing.assert_array_equal(output["std"], std)


def test_unseen_categories_are_counted_and_harmless(run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    strange = fresh.assign(grade=["new"] * 3 + ["newer"] + fresh["grade"].tolist()[4:])
    write(strange, tmp_path / "d.csv")
    outcome = run("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv", "--json")
    assert outcome.code == 0
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("prismgp: warning: column 'grade': 4 value(s) unseen")
    assert json.loads(outcome.out)["unseen_categories"] == {"grade": 4}
    with pytest.warns(prismgp.exceptions.PrismGPWarning, match=r"column 'grade': 4 value\(s\) unseen"):
        direct = prismgp.load(model).predict(strange)
    np.testing.assert_array_equal(read(tmp_path / "o.csv")["mean"], direct)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_missing_inputs_are_counted_over_the_whole_file(
    run: Run, model: Path, tmp_path: Path, refused: Callable[..., str], suffix: str
) -> None:
    frame = make_frame(40_000, seed=6).drop(columns="price")
    frame.loc[[5, 20_000, 39_999], "size"] = np.nan  # in three different batches
    frame.loc[[5, 30_000], "grade"] = None
    data, output = tmp_path / f"d.{suffix}", tmp_path / f"o.{suffix}"
    write(frame, data)
    output.write_bytes(b"old")
    line = refused("predict", model, data, "-o", output, "--missing", "error")
    assert "'size' (3), 'grade' (2)" in line
    assert "--missing drop" in line
    assert output.read_bytes() == b"old"
    summary = predict(run, model, data, output, "--drop-missing")
    assert summary["rows_not_predicted"] == 4
    assert summary["missing"] == {"size": 3, "grade": 2}
    result = read(output)
    empty = [5, 20_000, 30_000, 39_999]
    assert len(result) == 40_000
    for name in ADDED:
        assert np.flatnonzero(result[name].isna()).tolist() == empty
    complete = frame.drop(index=empty)
    np.testing.assert_allclose(result["mean"].drop(index=empty), prismgp.load(model).predict(complete), rtol=1e-12)
    summary = predict(run, model, data, output)  # all of them, by default
    assert (summary["rows_not_predicted"], summary["missing"]) == (0, {"size": 3, "grade": 2})
    result = read(output)
    np.testing.assert_allclose(
        result[["mean", "std"]].T, prismgp.load(model).predict(frame, return_std=True), rtol=1e-12
    )
    assert (result["std"][empty] > 1.5 * result["std"].drop(index=empty).max()).all()


def test_level_and_noise(run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    write(fresh, tmp_path / "d.parquet")
    predict(run, model, tmp_path / "d.parquet", tmp_path / "o.parquet", "--level", 0.5, "--no-noise")
    output = read(tmp_path / "o.parquet")
    mean, std = prismgp.load(model).predict(fresh, return_std=True, include_noise=False)
    np.testing.assert_array_equal(output["std"], std)
    np.testing.assert_allclose(output["upper"], mean + 0.6744897501960817 * std, rtol=1e-14)


@pytest.fixture
def skewed(model: Path, tmp_path: Path) -> Path:
    """The model with a shape of the noise that is far from normal."""
    path = tmp_path / "skewed.prism"
    save_model(replace(load_model(model), shapes=(SkewedShape(3.0, 2.5),)), path)
    return path


def test_intervals_are_of_the_predictive_distribution(run: Run, skewed: Path, tmp_path: Path) -> None:
    frame = make_frame(300, seed=7)
    write(frame, tmp_path / "d.parquet")
    scores = predict(run, skewed, tmp_path / "d.parquet", tmp_path / "o.parquet", "--level", 0.8)["scores"]
    output, loaded = read(tmp_path / "o.parquet"), prismgp.load(skewed)
    mean, std = loaded.predict(frame, return_std=True)
    lower, upper = loaded.predict_interval(frame, 0.8).T
    np.testing.assert_array_equal(output[ADDED], np.column_stack([mean, std, lower, upper]))
    assert (upper - mean > 1.2 * (mean - lower)).all()
    assert scores["coverage"] == metrics.coverage(frame["price"], lower, upper)
    assert scores["nlpd"] == pytest.approx(-loaded.log_density(frame, frame["price"]).mean(), rel=1e-12)
    normal = metrics.coverage(frame["price"], mean - 1.2816 * std, mean + 1.2816 * std)
    assert scores["coverage"] != normal


def test_intervals_of_the_function_are_without_the_shape(run: Run, model: Path, skewed: Path, tmp_path: Path) -> None:
    write(make_frame(30, seed=7), tmp_path / "d.parquet")
    for name, path in (("a", model), ("b", skewed)):
        predict(run, path, tmp_path / "d.parquet", tmp_path / f"{name}.parquet", "--no-noise")
    pd.testing.assert_frame_equal(read(tmp_path / "a.parquet"), read(tmp_path / "b.parquet"), check_exact=True)


def test_intervals_of_several_outputs(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    inputs, targets = frame[["size", "count"]], frame[["price", "size"]].to_numpy()
    fit = SSGPRegressor(4, random_state=0, max_iter=2).fit(inputs, targets)
    fit.model_ = replace(fit.model_, shapes=(StudentShape(3.0), SkewedShape(4.0, 0.5)))
    fit.save(tmp_path / "m.prism")
    write(inputs, tmp_path / "d.parquet")
    predict(run, tmp_path / "m.prism", tmp_path / "d.parquet", tmp_path / "o.parquet")
    output, expected = read(tmp_path / "o.parquet"), fit.predict_interval(inputs)
    for k in range(2):
        np.testing.assert_array_equal(output[[f"lower_{k}", f"upper_{k}"]], expected[:, k])


def test_names_already_taken(run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    write(fresh.assign(mean=1.0, mean_=2.0, upper=3.0), tmp_path / "d.csv")
    summary = predict(run, model, tmp_path / "d.csv", tmp_path / "o.csv")
    assert summary["columns"] == ["mean__", "std", "lower", "upper_"]
    output = read(tmp_path / "o.csv")
    assert (output["mean"] == 1).all()
    assert (output["mean_"] == 2).all()
    np.testing.assert_array_equal(output["mean__"], prismgp.load(model).predict(fresh))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_known_targets_are_compared(run: Run, model: Path, tmp_path: Path, suffix: str) -> None:
    frame = make_frame(300, seed=7)
    frame.loc[4, "price"] = np.nan  # an unknown target is no obstacle
    write(frame, tmp_path / f"d.{suffix}")
    scores = predict(run, model, tmp_path / f"d.{suffix}", tmp_path / "o.parquet")["scores"]
    mean, std = prismgp.load(model).predict(frame, return_std=True)
    error = (frame["price"] - mean).drop(index=4)
    assert scores["rows"] == 299
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-12)
    assert scores["coverage"] == pytest.approx(np.mean(np.abs(error) <= Z95 * np.delete(std, 4)))
    pd.testing.assert_series_equal(read(tmp_path / "o.parquet")["price"], frame["price"])


def test_text_in_the_target_column_is_passed_through(
    run: Run, model: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    frame = make_frame(20, seed=8)
    frame["price"] = ["?", *frame["price"].astype(str).tolist()[1:]]
    write(frame, tmp_path / "d.csv")
    assert predict(run, model, tmp_path / "d.csv", tmp_path / "o.csv")["scores"]["rows"] == 19
    assert read(tmp_path / "o.csv")["price"][0] == "?"
    message = refused("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.parquet")
    assert "'price' holds '?' in the first row" in message


def test_standard_output(run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    write(fresh, tmp_path / "d.csv")
    outcome = run("predict", model, tmp_path / "d.csv", "-o", "-")
    predict(run, model, tmp_path / "d.csv", tmp_path / "o.csv")
    assert outcome.out == (tmp_path / "o.csv").read_text()
    assert "Predicted 40 rows" in outcome.err  # the summary makes way
    fresh.loc[39, "size"] = np.nan
    write(fresh, tmp_path / "d.csv")
    assert run("predict", model, tmp_path / "d.csv", "-o", "-", "--missing", "error")[:2] == (2, "")


def test_human_summary(run: Run, model: Path, tmp_path: Path) -> None:
    frame = make_frame(50, seed=9)
    frame.loc[0, "size"] = np.nan
    write(frame, tmp_path / "d.csv")
    outcome = run("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv", "--drop-missing")
    assert outcome.err == ""
    for expected in ("Predicted 49 rows", "1 row with missing inputs (size 1)", "Against price", "95% for a new"):
        assert expected in outcome.out
    frame.loc[1, "size"] = np.nan
    write(frame[:3], tmp_path / "d.csv")
    outcome = run("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv", "--drop-missing")
    for expected in ("Predicted 1 row in", "2 rows with missing inputs (size 2)", "(1 row)"):
        assert expected in outcome.out


def test_model_saved_from_python_with_names(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    model = SSGPRegressor(4, random_state=0).fit(frame[["size", "count"]], frame["price"])
    model.save(tmp_path / "m.prism")
    write(frame, tmp_path / "d.csv")
    predict(run, tmp_path / "m.prism", tmp_path / "d.csv", tmp_path / "o.csv")
    np.testing.assert_array_equal(read(tmp_path / "o.csv")["mean"], model.predict(frame[["size", "count"]]))


def test_model_saved_from_python_without_names(
    run: Run, frame: pd.DataFrame, tmp_path: Path, refused: Callable[..., str]
) -> None:
    x, y = frame[["size", "count"]].to_numpy(), frame[["price", "size"]].to_numpy()
    model = SSGPRegressor(4, random_state=0, max_iter=5).fit(x, y)
    model.save(tmp_path / "m.prism")
    write(frame[["size", "count"]], tmp_path / "d.csv")
    summary = predict(run, tmp_path / "m.prism", tmp_path / "d.csv", tmp_path / "o.csv")
    assert summary["columns"] == [f"{name}_{output}" for output in (0, 1) for name in ADDED]
    mean, std = model.predict(x, return_std=True)
    output = read(tmp_path / "o.csv")
    np.testing.assert_array_equal(output[["mean_0", "mean_1"]], mean)
    np.testing.assert_array_equal(output[["std_0", "std_1"]], std)
    write(frame, tmp_path / "d.csv")
    assert "has 2 inputs without names" in refused(
        "predict", tmp_path / "m.prism", tmp_path / "d.csv", "-o", tmp_path / "o.csv"
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_failure_midway_leaves_the_old_output(
    run: Run, model: Path, tmp_path: Path, refused: Callable[..., str], suffix: str
) -> None:
    lines = make_frame(60_000, seed=3).drop(columns="price").to_csv(index=False).splitlines()
    lines[-1] = "ragged"
    (tmp_path / "d.csv").write_text("\n".join(lines))
    output = tmp_path / f"o.{suffix}"
    output.write_bytes(b"old")
    line = refused("predict", model, tmp_path / "d.csv", "-o", output)
    assert "Row #60001: Expected 5 columns, got 1" in line
    assert output.read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d.csv", output.name]


def test_bad_cells_are_found_by_their_row_in_the_file(model: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    rows = [f"{i % 4},low,{i % 9},true" for i in range(40_000)]
    rows[33_332] = "1,low,two,true"
    (tmp_path / "d.csv").write_text("\n".join(["size,grade,count,flag", *rows]))
    assert "'count' holds 'two' in row 33,333" in refused(
        "predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv"
    )


def test_cells_with_line_breaks_across_blocks(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prismgp.data.text.BLOCK_BYTES", 1000)
    notes = ["line\n" * (index % 40) for index in range(300)]
    frame = pd.DataFrame({"note": notes, "size": 1.5, "grade": "low", "count": 3, "flag": True})
    frame.to_csv(tmp_path / "d.csv", index=False)
    assert predict(run, model, tmp_path / "d.csv", tmp_path / "o.parquet")["rows"] == 300
    assert read(tmp_path / "o.parquet")["note"].tolist() == notes


def test_interrupt_leaves_the_old_output(
    run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert len(list(tmp_path.iterdir())) == 3  # the temporary file is there by now
        raise KeyboardInterrupt

    write(fresh, tmp_path / "d.csv")
    (tmp_path / "o.csv").write_bytes(b"old")
    monkeypatch.setattr(FittedModel, "predict_quantiles", interrupt)
    assert run("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv") == (130, "", "prismgp: interrupted\n")
    assert (tmp_path / "o.csv").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_rows(
    run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    # The reader is some 32 blocks ahead and the writer collects a row group; both are made smaller, so
    # that small files suffice to fill them.
    monkeypatch.setattr("prismgp.data.text.BLOCK_BYTES", 2**15)
    monkeypatch.setattr("prismgp.cli.common.GROUP_BYTES", 2**20)
    original = FittedModel.predict_quantiles
    samples: list[int] = []

    def sampled(*args: object, **kwargs: object) -> object:
        samples.append(pa.total_allocated_bytes())
        return original(*args, **kwargs)

    model = SSGPRegressor(8, random_state=0, max_iter=2).fit(frame[["size", "count"]], frame["price"])
    model.save(tmp_path / "m.prism")
    monkeypatch.setattr(FittedModel, "predict_quantiles", sampled)
    rng = np.random.default_rng(0)
    output = tmp_path / f"o.{suffix}"

    def peaks(rows: int) -> tuple[int, int]:
        """Of Arrow's memory, seen at every batch, and of Python's and NumPy's."""
        data = tmp_path / f"{rows}.{suffix}"
        table = pa.table({"size": rng.random(rows), "count": rng.integers(9, size=rows), "other": rng.random(rows)})
        if suffix == "csv":
            pa.csv.write_csv(table, data)
        else:
            # One group, the hardest case; small pages, for the same reason as small blocks.
            pq.write_table(table, data, row_group_size=rows, use_dictionary=False, data_page_size=2**15)
        del table
        samples.clear()
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            assert run("predict", tmp_path / "m.prism", data, "-o", output, "-q") == (0, "", "")
            return max(samples) - before, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    (arrow, python), (more_arrow, more_python) = peaks(40_000), peaks(300_000)
    assert len(samples) == 147  # batches: the probe was there
    # Held as a whole, the larger file would take more than seven times as much.
    assert more_arrow < 1.6 * arrow
    assert more_python < 1.6 * python
    assert len(read(output)) == 300_000


def test_gzip_output_is_gzip(run: Run, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    write(fresh, tmp_path / "d.csv")
    predict(run, model, tmp_path / "d.csv", tmp_path / "o.csv")
    predict(run, model, tmp_path / "d.csv", tmp_path / "o.csv.gz")
    assert gzip.decompress((tmp_path / "o.csv.gz").read_bytes()) == (tmp_path / "o.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_columns_that_the_fit_ignored(run: Run, tmp_path: Path) -> None:
    """No prediction depends on them: they may be absent or empty, in files and frames, and nobody is told of it."""
    frame = make_frame(120, seed=3).drop(columns="id").assign(same=2.5, country="FR")
    frame.to_csv(tmp_path / "d.csv", index=False)
    model, new = tmp_path / "m.prism", make_frame(30, seed=4).drop(columns="id")
    assert run("fit", tmp_path / "d.csv", "--model", "ssgp", "-t", "price", "-p", 4, "-q", "-o", model).code == 0
    tables = {
        "there": new.assign(same=2.5, country="FR"),
        "empty": new.assign(same=np.nan, country=None),
        "other": new.assign(same=7, country="DE"),
        "absent": new,
    }
    loaded = prismgp.load(model)
    expected = loaded.predict(tables["there"].drop(columns="price"), return_std=True)
    for name, table in tables.items():
        for missing in ("impute", "error"):
            data, out = tmp_path / f"{name}.csv", tmp_path / "out.parquet"
            table.to_csv(data, index=False)
            found = run("predict", model, data, "-o", out, "--missing", missing)
            assert (found.code, found.err) == (0, ""), (name, found.err)
            assert "Missing inputs" not in found.out
            np.testing.assert_allclose(pd.read_parquet(out)[["mean", "std"]].to_numpy().T, expected, rtol=1e-9)
            loaded.set_params(missing=missing)
            frame = table.drop(columns="price")
            np.testing.assert_allclose(loaded.predict(frame, return_std=True), expected, rtol=1e-9)
        assert run("suggest", model, data, "-k", 2, "-q", "-o", tmp_path / "s.csv").code == 0
        assert run("certify", model, tmp_path / "d.csv", "--test", data, "-q") == (0, "", "")
        assert run("report", model, data, "-q", "-o", tmp_path / "r.html") == (0, "", "")
    new.drop(columns="size").to_csv(tmp_path / "short.csv", index=False)
    assert "input column 'size' missing" in run("predict", model, tmp_path / "short.csv", "-o", tmp_path / "o.csv").err


def test_frames_of_numbers_without_an_ignored_column(run: Run, tmp_path: Path) -> None:
    x = pd.DataFrame({"a": np.linspace(0, 3, 40), "same": 2.5, "b": np.tile([0.0, 1.0], 20)})
    fitted = SSGPRegressor(4, random_state=0, max_iter=5).fit(x, np.sin(x["a"]) + x["b"])
    assert not hasattr(fitted, "table_encoder_")
    expected = fitted.predict(x)
    for rows in (x, x.drop(columns="same"), pa.Table.from_pandas(x.drop(columns="same"))):
        np.testing.assert_allclose(fitted.predict(rows), expected)
    frames = pytest.importorskip("dask.dataframe")
    rows = frames.from_pandas(x.drop(columns="same"), npartitions=2)
    np.testing.assert_allclose(fitted.predict(rows), expected)
    with pytest.raises(DataError, match="a"):
        fitted.predict(x.drop(columns="a"))
    # Files are read without it too, by the commands and as a source.
    fitted.save(model := tmp_path / "m.prism")
    data, out = tmp_path / "new.csv", tmp_path / "out.parquet"
    x.drop(columns="same").assign(y=np.sin(x["a"])).to_csv(data, index=False)
    assert run("predict", model, data, "-q", "-o", out) == (0, "", "")
    np.testing.assert_allclose(pd.read_parquet(out)["mean"], expected)
    assert run("suggest", model, data, "-k", 2, "-q", "-o", tmp_path / "s.csv").code == 0
    assert run("report", model, data, "-t", "y", "-q", "-o", tmp_path / "r.html") == (0, "", "")
    np.testing.assert_allclose(fitted.predict(prismgp.data.from_csv(data, "y")), expected)
    x[["b"]].to_csv(data, index=False)
    assert "input column 'a' missing" in run("predict", model, data, "-q", "-o", out).err


def test_many_ignored_columns_may_be_absent() -> None:
    x = pd.DataFrame({f"same{k}": np.full(40, float(k)) for k in range(120)})
    x.insert(70, "a", np.linspace(0, 3, 40))
    fitted = SSGPRegressor(4, random_state=0, max_iter=5).fit(x, np.sin(x["a"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(fitted.predict(x[["a"]]), fitted.predict(x))


def test_an_ignored_column_as_target_or_weight(run: Run, tmp_path: Path) -> None:
    """It is no longer an input; where the fit had others, the message says so."""
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"a": rng.normal(size=60), "t": np.tile(["x", "y"], 30), "same": 1.0})
    data, model, out = tmp_path / "t.csv", tmp_path / "m.prism", tmp_path / "r.html"
    x.assign(y=np.sin(x["a"])).to_csv(data, index=False)
    assert run("fit", data, "-t", "y", "--model", "ssgp", "-p", 4, "-q", "-o", model).code == 0
    assert run("report", model, data, "-t", "same", "--no-certificate", "-q", "-o", out).code == 0
    assert "not the rows the model was fitted on" in run("certify", model, data, "-t", "same").err
    assert run("certify", model, data, "--weight-column", "same", "-q").code == 0


def test_rows_that_a_fit_of_numbers_dropped(run: Run, tmp_path: Path) -> None:
    """The fit left rows out for a missing cell of any column, also of one that it ignores."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"]).assign(same=1.0)
    table["y"] = np.sin(table["a"]) * table["b"]
    table.loc[:5, "same"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    known = table.dropna()
    fitted = SSGPRegressor(4, max_iter=3, random_state=0, missing="drop").fit(known[["a", "b", "same"]], known["y"])

    def source() -> prismgp.data.Source:
        return prismgp.data.from_csv(tmp_path / "t.csv", target="y", missing="drop")

    assert fitted.predict(source()).shape == (74,)
    assert fitted.certify(source()).rows == 74
    fitted.save(tmp_path / "m.prism")
    words = "certify", tmp_path / "m.prism", tmp_path / "t.csv", "-t", "y", "--missing"
    assert run(*words, "drop", "-q").code == 0
    assert run(*words, "impute", "-q").code == 2
    # Predictions need no more than what the model uses.
    assert "Left empty" not in run("predict", tmp_path / "m.prism", tmp_path / "t.csv", "-o", tmp_path / "o.csv").out


def test_missing_cells_of_an_ignored_column_without_a_name(run: Run, tmp_path: Path) -> None:
    x = np.column_stack([np.random.default_rng(0).normal(size=(40, 2)), np.ones(40)])
    SSGPRegressor(4, max_iter=3, missing="impute").fit(x, x[:, 0]).save(tmp_path / "m.prism")
    new = pd.DataFrame(x, columns=["a", "b", "c"])
    new.loc[:5, "c"] = np.nan
    new.to_csv(tmp_path / "new.csv", index=False)
    for missing in ("impute", "drop"):
        words = "predict", tmp_path / "m.prism", tmp_path / "new.csv", "--missing", missing, "-o", tmp_path / "o.csv"
        found = run(*words)
        assert found.code == 0
        assert "Missing" not in found.out
        assert "missing" not in found.out.replace(str(tmp_path), "")
        assert pd.read_csv(tmp_path / "o.csv")["mean"].notna().all()


def test_a_model_that_ignores_all_inputs(run: Run, tmp_path: Path) -> None:
    """Only the number of rows counts, in frames and in files."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": "one", "same": 1.0, "y": rng.normal(size=60)})
    fitted = SSGPRegressor(4, random_state=0, max_iter=5).fit(frame[["kind", "same"]], frame["y"])
    expected = fitted.predict(frame[["kind", "same"]])[:7]
    new = pd.DataFrame({"other": np.arange(7)})
    np.testing.assert_array_equal(fitted.predict(new), expected)
    fitted.save(tmp_path / "m.prism")
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run("predict", tmp_path / "m.prism", tmp_path / "new.csv", "-q", "-o", tmp_path / "o.parquet").code == 0
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "o.parquet")["mean"], expected)


def test_text_is_refused_by_a_model_of_numbers_without_a_warning() -> None:
    """The error names the column; advice on how to read it is for fits."""
    x = pd.DataFrame({"a": np.linspace(0, 3, 40), "b": np.tile([0.0, 1.0], 20)})
    fitted = SSGPRegressor(4, random_state=0, max_iter=5).fit(x, np.sin(x["a"]))
    with pytest.raises(DataError, match="'b': text or times"):
        fitted.predict(x.assign(b=[*(f"{k}.5" for k in range(39)), "many"]))
