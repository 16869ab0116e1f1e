"""The report about a model: its numbers, against computations of their own, and what stands on the page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import prismgp
from prismgp.cli import main, report
from prismgp.exceptions import DataError
from prismgp.plots import InputTable
from prismgp.report import Examination, examine, model_page
from prismgp.report.examine import find_groups, format_cell, measure

from .conftest import EVIL_NAME, EVIL_VALUE, LONG_NAME, make_frame


class Text(HTMLParser):
    """What a reader sees, and the names of all elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words, self.tags = "", set[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def found(fitted_files: Path) -> Examination:
    frame = make_frame(150, 1)
    return examine(
        prismgp.load(fitted_files / "model.prism"), frame.drop(columns="price"), frame["price"], target="price"
    )


# -- numbers ---------------------------------------------------------------------------------------


def test_measures_against_their_definitions() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal(4_000) * 3.0 + 7.0
    mean, std = y + rng.standard_normal(4_000), np.full(4_000, 1.0)
    lower, upper = mean - 1.96 * std, mean + 1.96 * std
    got = {each.name: each for each in measure(y, mean, norm.logpdf(y, mean, std), lower, upper)}
    assert got["RMSE"].value == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert got["RMSE"].constant == pytest.approx(y.std())
    assert got["NLPD"].value == pytest.approx(-norm.logpdf(y, mean, std).mean())
    assert got["NLPD"].constant == pytest.approx(-norm.logpdf(y, y.mean(), y.std()).mean())
    assert got["95% intervals cover"].value == pytest.approx(0.95, abs=0.015)
    assert got["95% intervals, mean width"].value == pytest.approx(3.92)
    # The standard error of a root mean square, by resampling.
    squares = (y - mean) ** 2
    again = [np.sqrt(rng.choice(squares, len(squares)).mean()) for _ in range(300)]
    assert got["RMSE"].error == pytest.approx(np.std(again), rel=0.2)


def test_groups_find_where_errors_were_planted(fitted_files: Path) -> None:
    frame = make_frame(400, 2).drop(columns="price")
    residual = np.where(frame["kind"] == EVIL_VALUE, 5.0, 0.1) * np.where(frame["flag"], 1.0, -1.0)
    mean, margin = np.full(400, 3.0), np.ones(400)
    table = InputTable(prismgp.load(fitted_files / "model.prism"), frame)
    groups = find_groups(table, mean + residual, mean, mean - margin, mean + margin)
    worst = groups[0]
    assert (worst.column, worst.cells, worst.coverage) == ("kind", EVIL_VALUE, 0.0)
    assert worst.rows == (frame["kind"] == EVIL_VALUE).sum()
    assert worst.rmse == pytest.approx(5.0)
    flagged = next(group for group in groups if group.column == "flag" and group.cells == "True")
    assert flagged.bias == pytest.approx(residual[frame["flag"]].mean())
    fifths = [group for group in groups if group.column == EVIL_NAME]
    assert sum(group.rows for group in fifths) == 400


def test_kinds_of_columns(found: Examination) -> None:
    """A file's text that spells times is a scale; missing cells are no group of numbers, but one of their own."""
    curves = {curve.name: curve for curve in found.dependence.curves}
    assert curves["when"].ordered
    assert curves["when"].values.dtype.kind == "M"
    assert not curves["kind"].ordered
    table = InputTable(found.estimator, make_frame(300, 5).drop(columns="price").astype({"when": str}))
    when = table.scale(table.index("when"))
    assert when is not None
    assert when.min() >= np.datetime64("2024-01-01T08:30")
    groups = find_groups(table, *np.outer([1.0, 0.0, -1.0, 1.0], np.ones(300)))
    assert [group for group in groups if group.column == LONG_NAME and group.cells == "missing"]


def test_lists_of_rows(found: Examination) -> None:
    error = np.abs(found.y - found.mean) / found.std
    assert error[found.surprising[0]] == error.max()
    assert found.std[found.uncertain[0]] == found.std.max()
    assert [share for share, _ in found.by_certainty][-1] == 1.0
    assert found.by_certainty[-1][1] == pytest.approx(found.measures[0].value)


def test_the_columns_that_matter_are_found(found: Examination) -> None:
    names = [found.table.names[k] for k in found.relevant]
    assert set(names[:2]) == {EVIL_NAME, "kind"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(2019, "2019"), (-119.8234, "-119.823"), ("a\n b", "a b"), (None, "missing"), (float("nan"), "missing"),
     (True, "True"), (np.datetime64("2020-02-03"), "2020-02-03"), ("x" * 50, "x" * 39 + "…")],
)  # fmt: skip
def test_cells_as_text(value: object, text: str) -> None:
    assert format_cell(value) == text


def make_targets(n: int, seed: int) -> pd.DataFrame:
    """One target that depends on the first input, and one, of another scale, that depends on the second."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    noise = 0.1 * rng.standard_normal((n, 2))
    return pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "a": x[:, 0] + noise[:, 0], "b": 50 * (x[:, 1] + noise[:, 1])})


def test_one_of_several_targets() -> None:
    """All that is computed is about the chosen column, with the numbers that the definitions give."""
    frame = make_targets(120, 0)
    X, Y = frame[["u", "v"]].to_numpy(), frame[["a", "b"]].to_numpy()
    model = prismgp.SSGPRegressor(8, random_state=0, max_iter=10).fit(X[:80], Y[:80])
    found = examine(model, X[80:], Y[80:], target="b", output=1, training=(X[:80], Y[:80]), seconds=1.0)
    mean, std = (each[:, 1] for each in model.predict(X[80:], return_std=True))
    lower, upper = model.predict_interval(X[80:])[:, 1].T
    expected = measure(Y[80:, 1], mean, norm.logpdf(Y[80:, 1], mean, std), lower, upper)
    for got, want in zip(found.measures, expected, strict=True):
        assert got[1:4] == pytest.approx(want[1:4])
    assert found.calibration.n_observations == 40
    assert found.relevant[0] == 1
    assert examine(model, X[80:], Y[80:]).relevant[0] == 0
    certificate = found.certificate
    assert certificate is not None
    assert certificate.mean is not None
    np.testing.assert_allclose(np.sort(certificate.mean.ours), np.sort(mean))
    with pytest.raises(DataError, match="the model has 2 targets: give all of them"):
        examine(model, X, Y[:, 0])
    with pytest.raises(DataError, match="output=2, but y has 2 column"):
        examine(model, X, Y, output=2)


# -- page ------------------------------------------------------------------------------------------


def test_the_page_escapes_names_and_values(model_html: str) -> None:
    text = Text(model_html)
    assert not {"script", "b"} & text.tags
    assert EVIL_NAME in text.words
    assert EVIL_VALUE in text.words
    for section in ("Accuracy", "Calibration", "Where it is worst", "Inputs that matter", "Most uncertain rows"):
        assert f">{section}</h2>" in model_html


def test_the_certificate_is_a_measure(model_html: str) -> None:
    words = " ".join(Text(model_html).words.split())
    assert "The exact GP's mean is within" in words
    assert "certificate holds" not in words
    assert 'class="notice good"' not in model_html


def test_rows_of_the_fit_are_announced(fitted_files: Path) -> None:
    frame = pd.read_csv(fitted_files / "train.csv")
    model = prismgp.SSGPRegressor(4, random_state=0, max_iter=5)
    numbers = frame[[EVIL_NAME]]
    model.fit(numbers, frame["price"])
    page = model_page(examine(model, numbers, frame["price"]), model_name="m", data_name="d", seen_in_fit=True)
    assert page.notice is not None
    assert page.notice.tone == "bad"


@pytest.mark.slow
def test_the_command_on_three_choices_of_rows(fitted_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fitted_files
    out = folder / "page.html"

    def words(*options: object) -> str:
        argv = ["report", folder / "model.prism", *options, "-o", out]
        assert main([str(each) for each in argv]) == 0
        return " ".join(Text(out.read_text(encoding="utf-8")).words.split())

    new = words(folder / "test.csv")
    assert "here on 150 rows of test.csv" in new
    assert "The model was fitted on these rows" not in new
    assert "give them with --train" in new
    # The rows of the fit, in a table of their own, are recognised.
    chosen = np.zeros(240, dtype=bool)
    chosen[np.random.default_rng(3).permutation(240)[:60]] = True
    pd.read_csv(folder / "train.csv")[~chosen].to_csv(folder / "fit.csv", index=False)
    assert "The model was fitted on these rows." in words(folder / "fit.csv", "--no-certificate")
    both = words(folder / "test.csv", "--train", folder / "fit.csv", "--rows", 100)
    assert "here on 100 rows of test.csv. A random choice of 150." in both
    assert "180" in both
    assert "permuting 5 columns" in capsys.readouterr().err


def test_bad_usage(fitted_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*options: object) -> str:
        assert main([str(each) for each in ("report", fitted_files / "model.prism", *options)]) == 2
        return capsys.readouterr().err

    data = fitted_files / "test.csv"
    assert "end its name in .html" in refused(data, "-o", fitted_files / "page.pdf")
    assert "give one of them" in refused(data, "--train", data, "--holdout", 0.2, "-o", fitted_files / "p.html")
    other = fitted_files / "other.csv"
    pd.read_csv(data).drop(columns="price").to_csv(other, index=False)
    assert "target column 'price' missing" in refused(other, "-o", fitted_files / "p.html")
    # Other rows than those of the fit cannot be certified, and the message says what to repeat; too few are refused
    # before any work.
    message = refused(fitted_files / "train.csv", "--holdout", 0.25, "--seed", 4, "-o", fitted_files / "p.html")
    assert "repeat them here" in message
    message = refused(fitted_files / "train.csv", "--holdout", 0.5, "--seed", 3, "-o", fitted_files / "p.html")
    assert "120 rows are left" in message
    assert "repeat them here" in message
    assert "predicting" not in message
    assert not (fitted_files / "p.html").exists()


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_another_split_than_that_of_the_fit_is_refused(
    missing: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most of its held-out rows were in the fit; rows with unknown cells cannot be told, and do not count."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    frame["y"] = frame["a"] + 0.1 * rng.normal(size=400)
    frame.loc[rng.random(400) < missing, "b"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    data, model, page = (str(tmp_path / name) for name in ("t.csv", "m.prism", "page.html"))
    assert main(["fit", data, "-t", "y", "--model", "ssgp", "--holdout", "0.3", "-p", "4", "-q", "-o", model]) == 0
    report = ["report", model, data, "--holdout", "0.3", "--no-certificate", "-q", "-o", page]
    assert main([*report, "--seed", "5"]) == 2
    assert "this split is not that of the fit" in capsys.readouterr().err
    assert main(report) == 0


@pytest.mark.parametrize(("copies", "idle", "share"), [(2, 0.0, 0.5), (2, 0.0, 0.1), (1, 0.05, 0.1)])
def test_rows_with_the_inputs_of_others_are_not_taken_for_those_of_the_fit(
    copies: int, idle: float, share: float, tmp_path: Path
) -> None:
    """Rows measured twice: of most that were held out, the other measurement was in the fit. Or some are all zero."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(np.repeat(rng.normal(size=(1_000 // copies, 2)), copies, axis=0), columns=["a", "b"])
    frame.loc[rng.random(1_000) < idle] = 0.0
    frame["y"] = frame["a"] + 0.1 * rng.normal(size=1_000)
    frame.to_csv(tmp_path / "some.csv", index=False)
    new = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    new.loc[:1] = 0.0
    new.assign(y=new["a"]).to_csv(tmp_path / "new.csv", index=False)
    data, other, model, page = (str(tmp_path / name) for name in ("some.csv", "new.csv", "m.prism", "page.html"))
    fit = ["fit", data, "-t", "y", "--model", "ssgp", "--holdout", str(share), "-p", "4", "-q"]
    assert main([*fit, "-o", model]) == 0
    for words in ([data, "--holdout", str(share)], [other]):
        assert main(["report", model, *words, "--no-certificate", "-q", "-o", page]) == 0
        assert "The model was fitted on" not in Text(Path(page).read_text(encoding="utf-8")).words


@pytest.mark.slow
def test_the_whole_table_of_a_fit_with_held_out_rows_is_recognised(fitted_files: Path) -> None:
    """Most of its rows were in the fit; half of the table alone, in another order, too; new rows were not."""
    page = fitted_files / "whole.html"
    train = pd.read_csv(fitted_files / "train.csv")
    chosen = np.ones(240, dtype=bool)
    chosen[np.random.default_rng(3).permutation(240)[:60]] = False
    train[chosen].iloc[:120].sample(frac=1.0, random_state=0).to_csv(fitted_files / "half.csv", index=False)
    for name, notice in (
        ("train.csv", "The model was fitted on many of these rows."),
        ("half.csv", "The model was fitted on many of these rows."),
        ("test.csv", None),
    ):
        words = ["report", fitted_files / "model.prism", fitted_files / name, "--no-certificate", "-q", "-o", page]
        assert main([str(each) for each in words]) == 0
        text = Text(page.read_text(encoding="utf-8")).words
        assert ("The model was fitted on" in text) == (notice is not None)
        assert notice is None or notice in text


@pytest.mark.slow
def test_a_model_of_several_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them is chosen by its name; without one, the message names them."""
    table, model, page = (str(tmp_path / name) for name in ("t.csv", "m.prism", "r.html"))
    make_targets(150, 1).rename(columns={"b": "b, in kg"}).to_csv(table, index=False)
    fit = ["fit", table, "-t", 'a,"b, in kg"', "--model", "ssgp", "-p", "8", "--holdout", "0.2", "-o", model, "-q"]
    assert main(fit) == 0
    report = ["report", model, table, "--holdout", "0.2", "--seconds", "1", "-o", page]
    for choice in ([], ["-t", "u"], ["-t", 'a,"b, in kg"']):
        assert main([*report, *choice]) == 2
        assert "choose one of 'a', 'b, in kg' with --target, as in -t a" in capsys.readouterr().err
    assert main([*report, "-t", '"b, in kg"']) == 0
    words = " ".join(Text(Path(page).read_text(encoding="utf-8")).words.split())
    assert "SSGPRegressor predicts b, in kg from 2 columns; here on 30 rows of t.csv." in words
    assert "The exact GP's mean is within" in words
    assert """--target '"b, in kg"' --holdout 0.2""" in words
    assert main(["report", model, table, "-t", "a", "--no-certificate", "-o", page]) == 0


def test_targets_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = make_targets(30, 2)
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = prismgp.SSGPRegressor(4, random_state=0, max_iter=3)
    model.fit(frame[["u", "v"]].to_numpy(), frame[["a", "b"]].to_numpy()).save(tmp_path / "m.prism")
    words = ["report", tmp_path / "m.prism", tmp_path / "t.csv", "-t", "a,b", "-o", tmp_path / "r.html"]
    assert main([str(each) for each in words]) == 2
    assert "saved from Python without their names" in capsys.readouterr().err


def test_a_level_that_is_spelled_as_a_missing_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page reads the table as predictions do."""
    rng = np.random.default_rng(0)
    wall = rng.choice(["None", "brick", "stone"], 240)
    frame = pd.DataFrame({"wall": wall, "a": rng.normal(size=240)})
    y = 5.0 * (wall == "None") + 0.1 * rng.normal(size=240)
    model = prismgp.SSGPRegressor(8, random_state=0).fit(frame, y)
    model.save(tmp_path / "m.prism")
    frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    seen = {}
    original = report.examine

    def note(*args, **options):
        seen["found"] = original(*args, **options)
        return seen["found"]

    monkeypatch.setattr(report, "examine", note)
    table, page = str(tmp_path / "t.csv"), str(tmp_path / "r.html")
    assert main(["report", str(tmp_path / "m.prism"), table, "-t", "y", "-o", page, "-q"]) == 0
    np.testing.assert_allclose(seen["found"].mean, model.predict(frame))
    assert np.sqrt(np.mean((seen["found"].mean - y) ** 2)) < 0.2
