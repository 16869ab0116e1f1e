"""``prismgp fit``: what it learns, says and saves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.metrics import coverage, rmse
from prismgp.neighbors import fit_model
from prismgp.neighbors.fit import LocalTraining
from prismgp.prism.fit import DEFAULTS

from .conftest import Run, make_frame


def fit(run: Run, data: Path, output: Path, *options: object) -> dict:
    outcome = run("fit", data, "--model", "ssgp", "-t", "price", "-o", output, "--json", *options)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)


def row_major(frame: pd.DataFrame) -> pd.DataFrame:
    """The memory layout decides the order of summation, and thereby the last bits of a fit."""
    return pd.DataFrame(np.ascontiguousarray(frame.to_numpy(dtype=float)), columns=frame.columns, copy=False)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "parquet"])
def test_fit_equals_the_python_api(run: Run, frame: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    data = tmp_path / f"data.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(data)
    else:
        frame.to_csv(data, index=False, sep="\t" if suffix == "tsv" else ",")
    fit(run, data, tmp_path / "m.prism", "-p", 8, "--exclude", "id", "--seed", 3)
    encoded = pd.DataFrame(
        {
            "size": frame["size"],
            "grade=high": frame["grade"] == "high",
            "grade=low": frame["grade"] == "low",
            "grade=mid": frame["grade"] == "mid",
            "count": frame["count"],
            "flag": frame["flag"],
        }
    ).astype(float)
    direct = SSGPRegressor(8, random_state=3).fit(row_major(encoded), frame["price"])
    loaded = prismgp.load(tmp_path / "m.prism")
    assert list(loaded.feature_names_in_) == ["size", "grade", "count", "flag"]
    assert loaded.table_encoder_.feature_names == list(encoded.columns)
    assert loaded.table_encoder_.targets == ("price",)
    assert loaded.verbose == 0
    np.testing.assert_array_equal(loaded.lengthscale_, direct.lengthscale_)
    np.testing.assert_array_equal(loaded.predict(frame), direct.predict(row_major(encoded)))


def test_exact_model(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    summary = fit(run, tmp_path / "d.csv", tmp_path / "m.prism", "--model", "exact", "--inputs", "count,size")
    assert summary["estimator"] == "ExactGPRegressor"
    assert summary["features"] == ["count", "size"]  # in the order asked for
    direct = ExactGPRegressor(random_state=0).fit(row_major(frame[["count", "size"]]), frame["price"])
    assert summary["log_evidence"] == direct.log_evidence_


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_neighbor_model(
    run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str | None
) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    saved: list[NeighborGPRegressor] = []

    def save(self: NeighborGPRegressor, path: Path) -> None:  # files are tested elsewhere
        saved.append(self)
        Path(path).touch()

    monkeypatch.setattr(NeighborGPRegressor, "save", save)
    monkeypatch.setattr(fit_model, "LocalTraining", lambda **_: LocalTraining(steps=3, searches=1))
    options = [] if kernel is None else ["--kernel", kernel]
    options += ["--checkpoint", str(tmp_path / "checkpoint")]
    summary = fit(
        run, tmp_path / "d.csv", tmp_path / "m", "--model", "neighbors", "--inputs", "count,size", "--seed", 3, *options
    )
    assert summary["estimator"] == "NeighborGPRegressor"
    assert summary["frequencies"] is None
    expected = NeighborGPRegressor(kernel=kernel or "matern32", random_state=3)
    direct = expected.fit(row_major(frame[["count", "size"]]), frame["price"])
    assert summary["log_evidence"] == direct.log_evidence_ == saved[0].log_evidence_


def test_summary_in_the_targets_units(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.assign(price=1000 * frame["price"]).to_parquet(tmp_path / "d.parquet")
    summary = fit(run, tmp_path / "d.parquet", tmp_path / "m.prism", "-p", 8, "--exclude", "id")
    assert 50 < summary["noise_std"] < 300  # the noise was drawn with 100
    assert summary["target_std"] == pytest.approx(1000 * frame["price"].std(ddof=0))
    assert summary["encoded"] == {"grade": 3}
    loaded = prismgp.load(tmp_path / "m.prism")
    relative = summary["relative_lengthscales"]
    assert relative["size"] == pytest.approx(loaded.lengthscale_[0] / frame["size"].std(ddof=0))
    assert list(relative.values()) == sorted(relative.values())
    assert next(iter(relative)) == "size"


def test_human_summary(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    broken = frame.copy()
    broken.loc[[3, 7], "size"] = np.nan
    broken.to_csv(tmp_path / "d.csv")  # with the index, as it happens
    options = ["-p", 4, "--exclude", "id", "--drop-missing", "--holdout", 0.25]
    outcome = run("fit", tmp_path / "d.csv", "--model", "ssgp", "-t", "price", "-o", tmp_path / "m.prism", *options)
    assert outcome.code == 0
    assert outcome.err == ""
    for expected in (
        "SSGPRegressor (rbf, 4 frequencies)",
        "111 (of 150",
        "2 dropped for missing values",
        "37 held out",
        "grade as 3",
        "'' (a saved row index)",
        "95% intervals",
        "fitted without the held-out rows",
    ):
        assert expected in outcome.out
    assert all(len(line) < 100 for line in outcome.out.replace(str(tmp_path), "").splitlines())


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_constant_inputs_are_not_relevant(run: Run, frame: pd.DataFrame, tmp_path: Path, value: float) -> None:
    frame.assign(same=value).to_parquet(tmp_path / "d.parquet")
    summary = fit(run, tmp_path / "d.parquet", tmp_path / "m.prism", "-p", 4, "--inputs", "same,size")
    assert list(summary["relative_lengthscales"]) == ["size", "same"]
    assert summary["relative_lengthscales"]["same"] is None
    assert re.search("same .*ignored: constant, or next to it", run("info", tmp_path / "m.prism").out)


def test_quiet_says_nothing(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    outcome = run(
        "fit",
        tmp_path / "d.csv",
        "--model",
        "ssgp",
        "-t",
        "price",
        "--inputs",
        "size",
        "-p",
        2,
        "-q",
        "-o",
        tmp_path / "m",
    )
    assert outcome == (0, "", "")


def test_large_files_are_announced(
    run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    monkeypatch.setattr("prismgp.cli.fit.LARGE_FILE", 1_000)
    command = (
        "fit",
        tmp_path / "d.csv",
        "--model",
        "ssgp",
        "-t",
        "price",
        "--inputs",
        "size",
        "-p",
        2,
        "-o",
        tmp_path / "m",
    )
    outcome = run(*command)
    assert outcome.err.startswith(f"Writing {tmp_path / 'm'}, about ")
    assert f"Saved {tmp_path / 'm'} (" in outcome.out
    assert run(*command, "-q") == (0, "", "")


def test_drop_missing_drops_exactly_these_rows(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    broken = frame.copy()
    broken.loc[0, "size"] = np.nan
    broken.loc[1, "grade"] = None
    broken.loc[2, "price"] = np.nan
    broken.loc[3, "size"] = np.inf
    broken.loc[4, "id"] = None  # no input, so it does not matter
    broken.to_parquet(tmp_path / "broken.parquet")
    broken.drop(index=[0, 1, 2, 3]).to_parquet(tmp_path / "clean.parquet", index=False)
    options = ["-p", 4, "--exclude", "id"]
    dropped = fit(run, tmp_path / "broken.parquet", tmp_path / "a.prism", "--drop-missing", *options)
    clean = fit(run, tmp_path / "clean.parquet", tmp_path / "b.prism", *options)
    assert (dropped["rows_dropped"], dropped["rows_without_target"]) == (4, 1)
    assert dropped["log_evidence"] == clean["log_evidence"]


@pytest.mark.usefixtures("short_race")
def test_scores_count_the_weights(run: Run, tmp_path: Path) -> None:
    """Against the held-out rows repeated."""
    frame = make_frame(200, seed=4).drop(columns="id").assign(w=np.random.default_rng(0).integers(1, 6, 200))
    frame.to_csv(tmp_path / "d.csv", index=False)
    summary = fit(run, tmp_path / "d.csv", tmp_path / "m.prism", "-p", 4, "--weight-column", "w", "--holdout", 0.3)
    assert summary["inputs"] == ["size", "grade", "count", "flag"]
    order = np.random.default_rng(0).permutation(200)
    test, train = frame.iloc[np.sort(order[:60])], frame.iloc[order[60:]]
    many = test.loc[np.repeat(test.index, test["w"])]
    model = prismgp.load(tmp_path / "m.prism")
    scores = summary["holdout"]
    y, x = many["price"].to_numpy(), many.drop(columns=["price", "w"])
    assert scores["rows"] == 60
    assert scores["rmse"] == pytest.approx(rmse(y, model.predict(x)))
    assert scores["nlpd"] == pytest.approx(-model.log_density(x, y).mean())
    assert scores["coverage"] == pytest.approx(coverage(y, *model.predict_interval(x).T))
    average = np.average(train["price"], weights=train["w"])
    assert scores["rmse_of_mean"] == pytest.approx(rmse(y, np.full(len(y), average)))
    assert scores["rmse"] != pytest.approx(rmse(test["price"], model.predict(test.drop(columns=["price", "w"]))))


def test_holdout_is_not_seen_by_the_fit(run: Run, tmp_path: Path) -> None:
    frame = make_frame(200, seed=2)
    options = ["-p", 8, "--exclude", "id", "--holdout", 0.3]
    frame.to_parquet(tmp_path / "a.parquet")
    scores = fit(run, tmp_path / "a.parquet", tmp_path / "a.prism", *options)["holdout"]
    # The same split, by the same seed: spoil the held-out targets and the model must not change.
    held = np.random.default_rng(0).permutation(200)[:60]
    frame.loc[held, "price"] += 100.0
    frame.to_parquet(tmp_path / "b.parquet")
    spoilt = fit(run, tmp_path / "b.parquet", tmp_path / "b.prism", *options)["holdout"]
    a, b = prismgp.load(tmp_path / "a.prism"), prismgp.load(tmp_path / "b.prism")
    assert a.log_evidence_ == b.log_evidence_
    assert scores["rows"] == spoilt["rows"] == 60
    assert spoilt["rmse"] > 50
    assert spoilt["coverage"] == 0
    frame.loc[held, "price"] -= 100.0
    mean, std = a.predict(frame.loc[np.sort(held)], return_std=True)
    error = frame.loc[np.sort(held), "price"] - mean
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert scores["coverage"] == pytest.approx(np.mean(np.abs(error) < 1.959963984540054 * std))
    log_density = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * (error / std) ** 2
    assert scores["nlpd"] == pytest.approx(-log_density.mean())


def test_codes_as_categories(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    options = ["-p", 4, "--inputs", "size,count", "--categorical", "count"]
    summary = fit(run, tmp_path / "d.csv", tmp_path / "m.prism", *options)
    assert summary["encoded"] == {"count": 9}
    assert summary["features"] == ["size", *(f"count={code}" for code in range(9))]


def test_delimiter_and_names_with_commas(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    renamed = frame.rename(columns={"size": "size, m"})
    renamed.to_csv(tmp_path / "d.csv", index=False, sep=";")
    options = ["-p", 2, "--inputs", '"size, m",count', "--delimiter", ";"]
    assert fit(run, tmp_path / "d.csv", tmp_path / "m.prism", *options)["inputs"] == ["size, m", "count"]


def test_failed_fit_leaves_the_old_model(
    run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "m.prism").write_bytes(b"old")

    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prismgp._system.os.fsync", full_disk)  # where a full disk is noticed at the latest
    outcome = run(
        "fit",
        tmp_path / "d.csv",
        "--model",
        "ssgp",
        "-t",
        "price",
        "--inputs",
        "size",
        "-p",
        2,
        "-o",
        tmp_path / "m.prism",
    )
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"prismgp: error: {tmp_path / 'm.prism'}: No space left on device: at least ")
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "m.prism").read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d.csv", "m.prism"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_neighbours_are_part_of_the_summary(
    run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The percentages are those of the whole model."""
    monkeypatch.setattr(
        "prismgp.cli.fit.PrismGPRegressor", partial(PrismGPRegressor, local="always", validation_fraction=0.3)
    )
    data, model = tmp_path / "d.csv", tmp_path / "m.prism"
    frame.to_csv(data, index=False)
    command = ("fit", data, "-t", "price", "-p", 4, "--exclude", "id", "-o", model)
    summary = json.loads(run(*command, "--json").out)
    assert sum(summary["neighbors"].values()) == pytest.approx(1.0)
    assert len(summary["neighbors"]) > 1
    for text in (run(*command).out, run("info", model).out):
        shown = re.findall(r"^ +(?:Mixture|Neighbours) +(.*)$", text, re.MULTILINE)
        assert len(shown) > 1
        assert sum(int(each) for each in re.findall(r"(\d+)%", " ".join(shown))) == pytest.approx(100, abs=3)
    assert "differs between rows" in run(*command).out


@pytest.mark.slow
def test_prism_from_fit_to_prediction(run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch) -> None:
    # The defaults are meant for minutes; a few steps show as well that everything is passed on and stored.
    monkeypatch.setitem(DEFAULTS["joint"], "max_steps", 25)
    data, model = tmp_path / "data.csv", tmp_path / "m.prism"
    frame.to_csv(data, index=False)
    summary = fit(run, data, model, "--model", "prism", "-p", 4, "--exclude", "id", "--holdout", 0.2)
    assert summary["estimator"] == "PrismGPRegressor"
    assert summary["frequencies"] == 4
    assert sum(summary["weights"].values()) == pytest.approx(1.0)
    assert summary["holdout"]["rmse"] < summary["holdout"]["rmse_of_mean"]
    assert len(summary["relative_lengthscales"]) == 6
    text = run("fit", data, "-t", "price", "-o", model, "--model", "prism", "-p", 4, "--exclude", "id").out
    assert re.search(r"Mixture +(member \d|ssgp) \d+%", text)
    # One number would not be the noise of any row, if a network has learned it.
    assert ("differs between rows" in text) == ("ssgp 100%" not in text)
    info = run("info", model)
    assert info.code == 0
    assert "PrismGPRegressor (rbf, 4 frequencies)" in info.out
    assert run("predict", model, data, "-o", tmp_path / "p.csv").code == 0
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert (predicted["std"] > 0).all()
    mean = prismgp.load(model).predict(frame)
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-9)


def test_conformal_intervals(run: Run, tmp_path: Path, refused: Callable[..., str]) -> None:
    """Rows that are neither in the fit nor held out make the intervals conformal, and everything says so."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 600)
    frame = pd.DataFrame({"x": x, "y": np.sin(2 * x) + 0.3 * (rng.standard_exponential(600) - 1)})
    data, model, out = tmp_path / "d.csv", tmp_path / "m.prism", tmp_path / "o.csv"
    frame.to_csv(data, index=False)
    same = ["--holdout", 0.2, "--conformal", 0.2]
    command = ("fit", data, "-t", "y", "--model", "ssgp", "-p", 4, "-o", model)
    done = run(*command, *same)
    assert done.code == 0
    assert "360 (of 600 in " in done.out
    assert "120 held out; 120 for conformal intervals" in done.out
    assert "conformal, cover " in done.out
    loaded = prismgp.load(model)
    assert loaded.model_.conformal.rows == 120
    # The rows that were held out before are the same with and without --conformal.
    assert json.loads(run("certify", model, data, *same, "--json").out)["rows"] == 360
    assert "--conformal" in refused("certify", model, data, "--holdout", 0.2)
    assert "conformal, by 120 held-out rows" in run("info", model).out
    predict = run("predict", model, data, "-o", out, "--level", 0.8)
    assert "80% for a new observation, conformal, by 120 held-out rows" in predict.out
    found = pd.read_csv(out)
    np.testing.assert_allclose(found[["lower", "upper"]], loaded.predict_interval(frame[["x"]], 0.8), rtol=1e-12)
    own = run("predict", model, data, "-o", out, "--no-noise")
    assert "95% for the underlying function, of the model's predictive distribution" in own.out
    assert "need at least 1,999 held-out rows" in refused("predict", model, data, "-o", out, "--level", 0.999)
    assert "keeps 30 of 600 rows; conformal intervals of 95% need at least 39" in refused(*command, "--conformal", 0.05)
    assert "--holdout 0.5 and --conformal 0.5 leave 0 of 600" in refused(*command, "--holdout", 0.5, "--conformal", 0.5)
