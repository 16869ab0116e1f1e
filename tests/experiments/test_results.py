"""Studies on disk, and what results say about their origin."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import norm

from experiments.machine import provenance
from experiments.results import Study
from experiments.scores import LEVELS, score
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


def test_scalars_are_stored_in_full_and_arrays_to_six_digits(tmp_path):
    value = 1 / 3
    study = Study(tmp_path, "s")
    study.put("a", {"rmse": value, "curve": [{"rmse": value, "stage": "l-bfgs"}], "tiny": [1e-12 * value, 7, None]})
    found = Study(tmp_path, "s").get("a")
    assert found["rmse"] == value
    assert found == study.get("a")
    assert found["curve"] == [{"rmse": 0.333333, "stage": "l-bfgs"}]
    assert found["tiny"] == [3.33333e-13, 7, None]


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


def test_provenance_names_versions_and_source():
    about = provenance(("pytest", "no-such-package"))
    assert about["versions"]["pytest"] == pytest.__version__
    assert "no-such-package" not in about["versions"]
    assert len(about["source"]) == 12
    json.dumps(about, allow_nan=False)
