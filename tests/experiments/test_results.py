"""Studies on disk, and what results say about their origin."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from experiments.machine import provenance
from experiments.results import Study
from experiments.scores import LEVELS, recalibrated_nlpd, score
from prismgp.core.shape import NormalShape
from prismgp.core.shape_fit import ShapeFit
from prismgp.exceptions import DataError

ASKED = {"kind": "bench", "options": {"threads": 2}, "command": "c", "planned": ["a"], "skipped": {}}


def test_a_study_gives_back_what_it_holds(tmp_path):
    study = Study(tmp_path / "new", "s")
    assert study.get("a") is None
    assert (study.records, study.about) == ({}, {})
    study.put("b-s0-x_1", {"rmse": 0.5})
    study.put("a", {"rows": [1, 2]})
    study.put("a", {"rows": []})  # the last one counts
    for each in (study, Study(tmp_path / "new", "s")):
        assert list(each.records.items()) == [("a", {"rows": []}), ("b-s0-x_1", {"rmse": 0.5})]
    assert len(study.path.read_text().splitlines()) == 3


def test_scalars_are_stored_to_eight_digits_and_arrays_to_four(tmp_path):
    value = 1 / 3
    study = Study(tmp_path, "s")
    study.put("a", {"rmse": value, "curve": [{"rmse": value, "stage": "l-bfgs"}], "tiny": [1e-12 * value, 7, None]})
    found = Study(tmp_path, "s").get("a")
    assert found["rmse"] == 0.33333333
    assert found == study.get("a")
    assert found["curve"] == [{"rmse": 0.3333, "stage": "l-bfgs"}]
    assert found["tiny"] == [3.333e-13, 7, None]


TABLES = {
    "curve": [{"stage": "race", "rmse": 0.5, "more": [1, {"a": 2}]}, {"stage": "end", "rmse": 0.25, "more": []}],
    "nested": {"of": [[{"x": 1}, {"x": None}], [{"x": 1}]]},
    "unequal": [{"x": 1}, {"y": 1}],
    "mixed": [{"x": 1}, 2],
    "empty": [{}, {}],
}


def test_tables_are_stored_by_columns_and_read_as_they_were(tmp_path):
    study = Study(tmp_path, "s")
    study.put("a", TABLES)
    assert study.path.read_text().count("stage") == 1
    assert study.get("a") == Study(tmp_path, "s").get("a") == TABLES


def test_compacting_keeps_what_counts(tmp_path):
    study = Study(tmp_path, "s")
    study.begin(**ASKED)
    for rmse in (0.5, 1 / 3):
        study.put("a", {"rmse": rmse, "curve": [{"rmse": rmse}] * 3})
    study.put("b", TABLES)
    about, records, size = study.about, study.records, study.path.stat().st_size
    assert study.compact() == size - study.path.stat().st_size > 0
    again = Study(tmp_path, "s")
    assert (again.about, again.records) == (about, records)
    assert again.compact() == 0


def test_objects_that_repeat_are_stored_once(tmp_path):
    study = Study(tmp_path, "s")
    here, there = ({"processor": name * 30, "threads": 2} for name in ("abacus", "slide rule"))
    for key, machine in {"a": here, "b": there, "c": here, "d": here}.items():
        study.put(key, {"machine": machine, "small": {}, "rmse": 0.5})
    records = study.records
    study.compact()
    text = study.path.read_text()
    assert text.count(here["processor"]) == text.count(there["processor"]) == 1
    assert Study(tmp_path, "s").records == records
    again = Study(tmp_path, "s")
    again.put("a", {"machine": there, "rmse": 0.25})  # to which others refer
    assert Study(tmp_path, "s").records == {**records, "a": {"machine": there, "rmse": 0.25}}
    assert again.compact() > 0
    assert Study(tmp_path, "s").records == again.records


def test_results_of_no_plan_can_be_removed(tmp_path):
    study = Study(tmp_path, "s")
    study.begin(**{**ASKED, "planned": ["a", "b", "c"]})
    machine = {"processor": "abacus" * 30}
    for key in ("a", "b", "c"):
        study.put(key, {"machine": machine, "key_of": key})
    study.compact()
    study.remove(["a"])  # to which the others refer
    again = Study(tmp_path, "s")
    assert again.records == {key: {"machine": machine, "key_of": key} for key in ("b", "c")}
    assert again.about == {**study.about, "planned": ["b", "c"]}
    with pytest.raises(ValueError, match="no results of a"):
        again.remove(["a", "b"])


def test_a_reference_to_nothing_is_an_error(tmp_path):
    study = Study(tmp_path, "s")
    study.path.write_text('{"key":"b","machine":{"@as":"a"}}\n')
    with pytest.raises(DataError, match="line 1"):
        Study(tmp_path, "s")


@pytest.mark.parametrize("key", ["", "../a", "a/b", ".hidden", "a b", "a\n", "study"])
def test_keys_are_plain_names(tmp_path, key):
    with pytest.raises(ValueError, match="cannot be the key"):
        Study(tmp_path, "s").put(key, {})


def test_a_result_that_is_no_json_leaves_no_line(tmp_path):
    study = Study(tmp_path, "s")
    with pytest.raises(ValueError, match="JSON"):
        study.put("a", {"nlpd": float("nan")})
    assert not study.path.exists()


def test_a_line_that_was_being_written_is_dropped(tmp_path):
    study = Study(tmp_path, "s")
    study.put("a", {"x": 1})
    with study.path.open("a") as file:
        file.write('{"key":"b","x"')
    again = Study(tmp_path, "s")
    assert list(again.records) == ["a"]
    again.put("b", {"x": 2})
    assert Study(tmp_path, "s").records == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": 1}', "[" * 100_000, b"\xff\xfe"])
def test_a_damaged_line_is_named_with_the_remedy(tmp_path, text):
    line = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "s.jsonl").write_bytes(b'{"key":"a"}\n' + line + b"\n")
    with pytest.raises(DataError, match=r"s\.jsonl, line 2: .*remove the line"):
        Study(tmp_path, "s")


def test_a_study_is_begun_once_and_continued(tmp_path):
    first = Study(tmp_path, "s")
    first.begin(**ASKED)
    again = Study(tmp_path, "s")
    again.begin(**{**ASKED, "command": "another way to say it"})
    assert again.about == first.about
    assert len(first.path.read_text().splitlines()) == 1
    # More of the same: what was planned before stays planned.
    again.begin(**{**ASKED, "planned": ["b"], "skipped": {"c": {"skipped": "why"}, "a": {"skipped": "planned"}}})
    found = Study(tmp_path, "s").about
    assert found["planned"] == ["a", "b"]
    assert found["skipped"] == {"c": {"skipped": "why"}}
    assert (found["command"], found["started"]) == ("c", first.about["started"])


def test_other_settings_are_refused_and_named(tmp_path):
    study = Study(tmp_path, "s")
    study.begin(**ASKED)
    with pytest.raises(DataError, match=r"other settings \(options: .*threads.*1"):
        study.begin(**{**ASKED, "options": {"threads": 1}})
    with pytest.raises(DataError, match=r"kind: 'bench'"):
        study.begin(**{**ASKED, "kind": "reproduce"})


def test_reading_needs_a_study_with_results(tmp_path):
    study = Study(tmp_path, "s")
    with pytest.raises(DataError, match="no such study; the folder has: none"):
        Study.read(tmp_path, "s")
    study.begin(**ASKED)
    with pytest.raises(DataError, match="no finished results yet; continue with 'c'"):
        Study.read(tmp_path, "s")
    with pytest.raises(DataError, match="the folder has: s"):
        Study.read(tmp_path, "other")
    study.put("a", {})
    assert Study.read(tmp_path, "s").records == {"a": {}}


@pytest.mark.parametrize("found", [2, 0, True, None])
def test_other_formats_are_refused(tmp_path, found):
    (tmp_path / "s.jsonl").write_text(json.dumps({"key": "study", "format": found}) + "\n")
    with pytest.raises(DataError, match=f"format {found!r}, but this version reads 1"):
        Study(tmp_path, "s")


def test_scores_are_those_of_the_normal_density(rng):
    y, mean, std = rng.standard_normal(500), rng.standard_normal(500), rng.uniform(0.5, 2, 500)
    found, scale = score(y, mean, std, 3.0), 3.0
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)) / scale)
    assert found["mae"] == pytest.approx(np.mean(np.abs(y - mean)) / scale)
    # In units of the scale: the density of y / scale.
    assert found["nlpd"] == pytest.approx(-np.mean(norm.logpdf(y / scale, mean / scale, std / scale)))
    low, high = norm.interval(0.95, mean, std)
    assert found["coverage"] == pytest.approx(np.mean((low < y) & (y < high)))
    for level, share in zip(LEVELS, found["calibration"], strict=True):
        low, high = norm.interval(level, mean, std)
        assert share == pytest.approx(np.mean((low < y) & (y < high)))


@pytest.mark.slow
def test_a_learned_shape_takes_the_place_of_the_normal(rng):
    mean, std = rng.standard_normal(4_000), rng.uniform(0.5, 2, 4_000)
    degrees = 3.0
    y = mean + std * rng.standard_t(degrees, 4_000) * np.sqrt((degrees - 2) / degrees)
    scale = std * np.sqrt((degrees - 2) / degrees)
    true = -np.mean(student.logpdf(y, degrees, mean, scale))
    found, normal = recalibrated_nlpd(y, mean, std), score(y, mean, std, 1.0)["nlpd"]
    assert found == pytest.approx(true, abs=0.03)
    assert normal > true + 0.1
    y = mean + std * rng.standard_normal(4_000)
    assert recalibrated_nlpd(y, mean, std) == pytest.approx(score(y, mean, std, 1.0)["nlpd"], abs=0.005)
    few = slice(20)  # which say nothing about a shape
    assert recalibrated_nlpd(y[few], mean[few], std[few]) == pytest.approx(
        score(y[few], mean[few], std[few], 1.0)["nlpd"]
    )


def test_no_row_is_scored_with_a_shape_that_it_helped_to_learn(rng, monkeypatch):
    seen = []

    def learn(z):
        seen.append(set(z))
        return ShapeFit(NormalShape())

    monkeypatch.setattr("experiments.scores.fit_shape", learn)
    y = rng.standard_normal(103)
    recalibrated_nlpd(y, np.zeros(103), np.ones(103))
    held_out = [set(y) - each for each in seen]
    assert len(seen) == 5
    assert set().union(*held_out) == set(y)
    assert sum(map(len, held_out)) == 103


def test_provenance_names_versions_and_source():
    about = provenance(("pytest", "no-such-package"))
    assert about["versions"]["pytest"] == pytest.__version__
    assert "no-such-package" not in about["versions"]
    assert len(about["source"]) == 12
    json.dumps(about, allow_nan=False)
