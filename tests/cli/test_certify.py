"""``prismgp certify``: what it says, writes and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.data import from_csv
from prismgp.plots import draw_certificate
from prismgp.prism.fit import DEFAULTS

from .conftest import Run, make_frame

Refused = Callable[..., str]
SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture
def train(model: Path) -> Path:
    """The table that the model of the fixture was fitted on."""
    return model.parent / "train.csv"


def certify(run: Run, *argv: object) -> dict:
    outcome = run("certify", *argv, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    return json.loads(outcome.out)


def test_equals_the_python_api(run: Run, model: Path, train: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    test = make_frame(40, seed=1)
    test.drop(columns="price").to_parquet(tmp_path / "new.parquet")
    found = certify(run, model, train, "--test", tmp_path / "new.parquet", "--delta", 0.02, "--random-state", 3)
    again = prismgp.load(model)
    direct = again.certify(frame, frame["price"], test, delta=0.02, random_state=3).to_dict()
    for each in (found, direct):
        each.pop("spent")  # it has the time in it
    assert found.pop("test_rows") == list(range(1, 41))
    assert {found.pop(name) for name in ("model", "data", "test")} == {
        str(model),
        str(train),
        f"{tmp_path}/new.parquet",
    }
    assert found == json.loads(json.dumps(direct))
    np.testing.assert_allclose(found["mean"]["ours"], again.predict(test), rtol=1e-9)


def test_summary_for_people(run: Run, model: Path, train: Path, tmp_path: Path) -> None:
    make_frame(40, seed=1).to_csv(tmp_path / "new.csv", index=False)
    outcome = run("certify", model, train, "--test", tmp_path / "new.csv")
    assert (outcome.code, outcome.err) == (0, "")
    text = " ".join(outcome.out.split())
    for expected in (
        f"Certified {model} (SSGPRegressor, 150 training rows)",
        "Compared with the exact GP on the same inputs",
        f"Test points 40 rows of {tmp_path}/new.csv",
        "of the noise std, at every one of 40 test points",
        "of the noise std at 50% and ",
        "at 95% of the test points",
        "Predicted std",
        "Log evidence",
        "Kernel matrix |K - K'| is ",
        "Effort rank",
        "probability 0.99",
    ):
        assert expected in text
    # Where both ends of an interval print the same, it is one number.
    assert not [ends for ends in re.findall(r"in \[(\S+), (\S+)\]", text) if ends[0] == ends[1]]
    assert max(len(line) for line in outcome.out.splitlines() if "/" not in line) <= 130
    assert run("certify", model, train, "-q") == (0, "", "")


def test_a_part_alone(run: Run, refused: Refused, model: Path, train: Path, tmp_path: Path) -> None:
    found = certify(run, model, train, "--only", "predictions")
    assert found["log_evidence"] is None
    assert found["mean"]["method"].startswith("conjugate gradients")
    text = run("certify", model, train, "--only", "evidence").out
    assert "Log evidence" in text
    assert "Predicted" not in text
    assert "Test points" not in text
    for option in ("--figure", "--test"):
        message = refused("certify", model, train, "--only", "kernel", option, tmp_path / "new.png")
        assert option in message
        assert "--only kernel" in message


def test_training_rows_are_the_default(
    run: Run, model: Path, train: Path, frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = certify(run, model, train)
    assert found["test_rows"] == list(range(1, 151))
    assert len(found["mean"]["lower"]) == 150
    assert "all 150 training rows; new rows can be further off" in run("certify", model, train).out
    monkeypatch.setattr("prismgp.cli.certify.TEST_POINTS", 20)
    rows = certify(run, model, train, "--random-state", 1)["test_rows"]
    assert len(set(rows)) == 20
    assert rows == sorted(rows)
    assert rows != certify(run, model, train, "--random-state", 2)["test_rows"]
    mean = certify(run, model, train, "--random-state", 1)["mean"]["ours"]
    np.testing.assert_allclose(mean, prismgp.load(model).predict(frame.iloc[np.array(rows) - 1]), rtol=1e-9)


@pytest.mark.parametrize("suffix", ["csv.gz", "tsv", "parquet"])
def test_formats_and_order_of_columns(run: Run, model: Path, frame: pd.DataFrame, tmp_path: Path, suffix: str) -> None:
    data = tmp_path / f"train.{suffix}"
    turned = frame[frame.columns[::-1]].sample(frac=1.0, random_state=0)  # nor does the order of the rows matter
    if suffix == "parquet":
        turned.to_parquet(data)
    else:
        turned.to_csv(data, index=False, sep="\t" if suffix == "tsv" else ",")
    found = certify(run, model, data)
    assert found["holds"]
    assert found["rows"] == 150


@pytest.mark.usefixtures("small_defaults")
def test_holdout_and_missing_values(run: Run, frame: pd.DataFrame, tmp_path: Path, refused: Refused) -> None:
    data, model = tmp_path / "d.csv", tmp_path / "m.prism"
    frame = frame.drop(columns="id")
    frame.loc[7, "size"] = np.nan
    frame.loc[9, "price"] = np.nan
    frame.to_csv(data, index=False)
    same = ["--drop-missing", "--holdout", 0.2, "--seed", 5]
    assert run("fit", data, "-t", "price", "-p", 4, "-q", "-o", model, *same).code == 0
    found = certify(run, model, data, *same)
    assert (found["rows"], len(found["test_rows"])) == (118, 30)
    assert not {8, 10} & set(found["test_rows"])
    held_out = frame.iloc[np.array(found["test_rows"]) - 1]
    np.testing.assert_allclose(found["mean"]["ours"], prismgp.load(model).predict(held_out), rtol=1e-9)
    assert "the 30 rows held out of the fit" in run("certify", model, data, *same).out
    line = refused("certify", model, data, "--drop-missing")
    assert f"{data}: did you forget --holdout? X has 148 rows, but the model has seen 118" in line
    assert "--holdout, --conformal, --seed or columns of weights or noise" in line
    assert "not the rows the model was fitted on" in refused("certify", model, data, *same[:-1], 6)
    assert "'size' (1), 'price' (1)" in refused("certify", model, data, *same[1:], "--missing", "error")
    assert certify(run, model, data, *same[1:])["mean"] == found["mean"]  # rows as the fit had them


def test_json_file(run: Run, model: Path, train: Path, tmp_path: Path) -> None:
    place = tmp_path / "c.json"
    outcome = run("certify", model, train, "--json", place)
    assert outcome.code == 0
    assert outcome.out.endswith(f"Wrote {place}\n")
    found = json.loads(place.read_text())
    assert found["holds"] is True
    assert found["mean"]["probability"] == 1.0
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figure(run: Run, model: Path, train: Path, tmp_path: Path, kind: str) -> None:
    place = tmp_path / f"c.{kind}"
    outcome = run("certify", model, train, "--figure", place)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.endswith(f"Wrote {place}\n")
    assert place.read_bytes().startswith(SIGNATURES[kind])
    first = place.read_bytes()
    assert run("certify", model, train, "--figure", place, "-q") == (0, "", "")
    assert place.read_bytes() == first  # nothing in it but the certificate


@pytest.mark.slow
def test_figure_of_a_curve(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"time": rng.uniform(0, 6, 60)})
    frame["signal"] = np.sin(frame["time"]) + 0.1 * rng.standard_normal(60)
    frame.to_csv(tmp_path / "d.csv", index=False)
    pd.DataFrame({"time": [2.5]}).to_csv(tmp_path / "one.csv", index=False)
    run("fit", tmp_path / "d.csv", "--model", "ssgp", "-t", "signal", "-p", 4, "-q", "-o", tmp_path / "m.prism")
    for options in ([], ["--test", tmp_path / "one.csv"]):
        outcome = run("certify", tmp_path / "m.prism", tmp_path / "d.csv", "--figure", tmp_path / "c.svg", *options)
        assert (outcome.code, outcome.err) == (0, "")
        text = (tmp_path / "c.svg").read_text()
        for expected in ("signal", "time", "training rows", "Difference of the means"):
            assert f"<!-- {expected} -->" in text


def test_without_matplotlib(
    refused: Refused, model: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prismgp.plots.style.find_spec", lambda _: None)
    assert 'pip install "prismgp[report]"' in refused("certify", model, train, "--figure", tmp_path / "c.png")


@pytest.mark.slow
def test_ensemble(run: Run, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEFAULTS["joint"], "max_steps", 40)
    data, model = tmp_path / "d.parquet", tmp_path / "m.prism"
    frame.to_parquet(data)
    assert run("fit", data, "-t", "price", "--model", "prism", "-p", 4, "--exclude", "id", "-q", "-o", model).code == 0
    outcome = run("certify", model, data, "--figure", tmp_path / "c.png")
    assert (outcome.code, outcome.err) == (0, "")
    assert "the same mixture with every member replaced" in " ".join(outcome.out.split())
    assert "log evidence within" in outcome.out
    assert outcome.out.count("%  ") >= 1
    found = certify(run, model, data)
    assert found["kernel_error"] is None
    assert found["members"]
    assert (tmp_path / "c.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_mixture_with_neighbours(run: Run, frame: pd.DataFrame, tmp_path: Path) -> None:
    """The members are those of the mixture that is left without the neighbours."""
    data, model = tmp_path / "d.csv", tmp_path / "m.prism"
    frame.drop(columns="id").to_csv(data, index=False)
    rows = from_csv(data, target="price")
    fit = PrismGPRegressor(4, local="always", validation_fraction=0.3, random_state=0).fit(rows)
    fit.save(model)
    mixture = fit.model_.predictor.base
    outcome = run("certify", model, data, "--figure", tmp_path / "c.svg")
    assert (outcome.code, outcome.err) == (0, "")
    heading, table = outcome.out.split("  Members, ")[1].split("\n\nWrote")[0].split("\n", 1)
    assert "neighbours" in heading
    printed = [line.split() for line in table.splitlines()[1:]]
    assert [" ".join(cells[:-5]) for cells in printed] == [each.name for each in mixture.experts]
    assert [cells[-5] for cells in printed] == [f"{weight:.0%}" for weight in mixture.weights]
    found = certify(run, model, data)
    assert [each["name"].split(", ")[-1] for each in found["members"]] == [each.name for each in mixture.experts]
    assert "the neighbours that the model adds to this mixture are left out" in found["statement"]
    assert run("report", model, data, "-o", tmp_path / "r.html", "-q") == (0, "", "")
    assert "Members of the ensemble" in (tmp_path / "r.html").read_text()


@pytest.mark.slow
def test_several_targets_of_a_model_from_python(
    run: Run, frame: pd.DataFrame, tmp_path: Path, refused: Refused
) -> None:
    data, model = tmp_path / "d.csv", tmp_path / "m.prism"
    table = frame[["size", "count", "price"]].assign(other=frame["size"] + frame["price"])
    table.to_csv(data, index=False)
    x, y = table[["size", "count"]].to_numpy(), table[["price", "other"]].to_numpy()
    SSGPRegressor(4, random_state=0, max_iter=5).fit(x, y).save(model)
    found = certify(run, model, data, "--target", "price,other")
    assert np.shape(found["mean"]["lower"]) == (150, 2)
    outcome = run("certify", model, data, "-t", "price,other", "--test", data, "--figure", tmp_path / "c.svg")
    assert (outcome.code, outcome.err) == (0, "")
    assert "<!-- other, less our predicted mean -->" in (tmp_path / "c.svg").read_text()
    assert "without the name of its target; give it with --target" in refused("certify", model, data)
    assert "has 2 inputs without names" in refused("certify", model, data, "-t", "price")


@pytest.mark.parametrize("json_output", [False, True])
def test_does_not_hold(run: Run, tmp_path: Path, json_output: bool) -> None:
    x = np.linspace(0, 3, 60)
    table = pd.DataFrame({"a": x, "y": np.sin(x)})
    table.to_csv(tmp_path / "d.csv", index=False)
    model = SSGPRegressor(8, random_state=0, noise_variance=1e-14, optimize=False).fit(table[["a"]], table["y"])
    model.save(tmp_path / "m.prism")
    options = ["--json"] if json_output else ["--figure", tmp_path / "c.png"]
    outcome = run("certify", tmp_path / "m.prism", tmp_path / "d.csv", "-t", "y", *options)
    assert outcome.code == 1
    assert outcome.err.startswith("prismgp: the certificate does not hold: rounding")
    if json_output:
        assert json.loads(outcome.out)["holds"] is False
    else:
        assert outcome.out.startswith("NOT CERTIFIED: ")
        assert "Does not hold" in outcome.out
        assert (tmp_path / "c.png").exists()


def test_unseen_categories_are_counted(run: Run, model: Path, train: Path, tmp_path: Path) -> None:
    make_frame(10, seed=1).assign(grade="new").to_csv(tmp_path / "new.csv", index=False)
    outcome = run("certify", model, train, "--test", tmp_path / "new.csv", "-q")
    assert outcome.code == 0
    assert "warning: column 'grade': 10 value(s) unseen" in outcome.err


def test_wrong_tables(refused: Refused, model: Path, frame: pd.DataFrame, train: Path, tmp_path: Path) -> None:
    def table(changed: pd.DataFrame) -> Path:
        changed.to_csv(tmp_path / "d.csv", index=False)
        return tmp_path / "d.csv"

    assert "target column 'price' missing" in refused("certify", model, table(frame.drop(columns="price")))
    assert "input column 'size' missing" in refused("certify", model, table(frame.drop(columns="size")))
    assert "no column" not in refused("certify", model, table(pd.DataFrame({"a": [1.0], "b": [2.0]})))
    other = refused("certify", model, table(make_frame(150, seed=1)))
    assert f"{tmp_path}/d.csv: X and y are not the rows the model was fitted on" in other
    fewer = refused("certify", model, table(frame.iloc[:149]))
    assert "X has 149 rows, but the model has seen 150" in fewer
    assert "'price' holds 'much' in row 2" in refused("certify", model, table(_with_text(frame)))
    missing = refused("certify", model, train, "--test", table(frame.drop(columns="flag")))
    assert "input column 'flag' missing" in missing
    assert "No such file" in refused("certify", model, tmp_path / "absent.csv")
    assert "No such file" in refused("certify", model, train, "--test", tmp_path / "absent.csv")
    assert "No such file" in refused("certify", tmp_path / "absent.prism", train)


def _with_text(frame: pd.DataFrame) -> pd.DataFrame:
    price = frame["price"].astype(str)
    price.iloc[1] = "much"
    return frame.assign(price=price)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--rank", "0"], "'0' is not a whole number of at least 1"),
        (["--products", "-1"], "'-1' is not a whole number of at least 0"),
        (["--seconds", "soon"], "'soon' is not a number of at least 0"),
        (["--delta", "1"], "'1' is not a number of at least 0 and below 1"),
        (["--tolerance", "inf"], "'inf' is not a number of at least 0"),
        (["--reference", "best"], "invalid choice: 'best'"),
        (["--random-state", "-1"], "--random-state: '-1' is not a whole number between 0 and 2^32 - 1"),
        (["--figure", "c.bmp"], "unsupported figure type"),
        (["--figure", "none/c.png"], "the folder 'none' does not exist"),
        (["--json", "none/c.json"], "the folder 'none' does not exist"),
    ],
)
def test_wrong_options(refused: Refused, model: Path, train: Path, options: list[str], expected: str) -> None:
    assert expected in refused("certify", model, train, *options)


def test_outputs_do_not_replace_inputs(refused: Refused, model: Path, train: Path) -> None:
    before = model.read_bytes()
    assert "would replace an input" in refused("certify", model, train, "--json", model)
    assert model.read_bytes() == before


def test_exact_model(run: Run, refused: Refused, frame: pd.DataFrame, tmp_path: Path) -> None:
    frame[["size", "price"]].to_csv(tmp_path / "d.csv", index=False)
    run("fit", tmp_path / "d.csv", "-t", "price", "--model", "exact", "-q", "-o", tmp_path / "m.prism")
    line = refused("certify", tmp_path / "m.prism", tmp_path / "d.csv")
    assert "an ExactGPRegressor is the exact GP: there is nothing to certify" in line


def test_drawing_needs_test_points(frame: pd.DataFrame, tmp_path: Path) -> None:
    x, y = frame[["size"]], frame["price"]
    certificate = SSGPRegressor(4, random_state=0, max_iter=5).fit(x, y).certify(x, y, random_state=0)
    with pytest.raises(prismgp.exceptions.DataError, match="no test points"):
        draw_certificate(certificate, tmp_path / "c.png")


def test_typical_points(run: Run, model: Path, train: Path) -> None:
    found = certify(run, model, train)
    mean = {name: np.array(found["mean"][name]) for name in ("lower", "upper", "ours")}
    most = np.maximum(mean["upper"] - mean["ours"], mean["ours"] - mean["lower"]) / np.sqrt(found["noise_variance"])
    text = " ".join(run("certify", model, train).out.split())
    half, nearly = re.search(r"Typical mean within (\S+)% of the noise std at 50% and (\S+)% .* at 95%", text).groups()
    assert np.mean(100 * most <= float(half) * 1.01) >= 0.5
    assert np.mean(100 * most <= float(nearly) * 1.01) >= 0.95
    assert float(half) < float(nearly) <= 100 * most.max()


@pytest.mark.usefixtures("short_race")
def test_weights_of_the_fit(run: Run, refused: Refused, tmp_path: Path) -> None:
    frame = make_frame(150, seed=5).drop(columns="id").assign(w=np.arange(150) % 3, v=0.01)
    frame.to_csv(tmp_path / "d.csv", index=False)
    command = (tmp_path / "m.prism", tmp_path / "d.csv", "--holdout", 0.2)
    columns = ("--weight-column", "w", "--noise-column", "v")
    assert (
        run(
            "fit", command[1], "-t", "price", "--model", "ssgp", "-p", 4, "-o", *command[:1], *command[2:], *columns
        ).code
        == 0
    )
    found = certify(run, *command, *columns)
    assert found["rows"] == prismgp.load(command[0]).model_.n_rows == 80
    message = refused("certify", *command)
    assert "fitted with sample_weight or noise_variance" in message
    assert "columns of weights or noise, repeat them here" in message
    assert "there is no column 'x'" in refused("certify", *command, "--weight-column", "x")
    # A model that was saved from Python without an encoder.
    inputs = frame[["size", "count"]].astype(float)
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(inputs, frame["price"], frame["w"], frame["v"])
    model.save(tmp_path / "p.prism")
    found = certify(run, tmp_path / "p.prism", tmp_path / "d.csv", "-t", "price", *columns)
    kept = frame["w"] > 0
    noise = {"sample_weight": frame["w"][kept], "noise_variance": frame["v"][kept]}
    expected = model.certify(inputs[kept], frame["price"][kept], inputs[kept], random_state=0, **noise)
    np.testing.assert_allclose(found["log_evidence"]["lower"], expected.log_evidence.lower)
    page = tmp_path / "r.html"
    assert run("report", tmp_path / "p.prism", tmp_path / "d.csv", "-t", "price", *columns, "-o", page).code == 0
    assert "fitted with sample_weight" not in page.read_text(encoding="utf-8")
