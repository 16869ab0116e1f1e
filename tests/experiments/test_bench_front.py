"""Fronts, tables and pages from made-up results."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from experiments.lab import LEVELS, RunFolder
from experiments.lab.bench import DEFAULT, ENTRIES, LABELS, make_plan, remember, write_outputs
from experiments.lab.bench._front import (
    beaten_by,
    collect,
    dominators,
    front,
    points_of,
    summarise,
    where_others_win,
)
from experiments.lab.bench._page import _agreement
from experiments.lab.bench._plan import Options
from experiments.lab.bench._table import best_of, losses, markdown, ranked


def result(entry, dataset="energy", split=0, **changed):
    order = {"dataset": dataset, "split": split, "entry": entry, "quick": False, "limit_seconds": 60.0}
    scores = {"rmse": 0.5, "mae": 0.4, "nlpd": 0.7, "coverage": 0.95, "calibration": [float(level) for level in LEVELS]}
    cost = {"fit_seconds": 1.0, "predict_seconds": 0.1, "predict_seconds_per_1000": 0.2, "peak_bytes": 3e8}
    cost |= {"fit_peak_bytes": 1e8, "rows": 700, "rows_used": 700, "test_rows": 77, "inputs": 8}
    library = ENTRIES[entry].library
    about = {"label": LABELS[entry], "library": library.name, "library_version": "1.0", "settings": {}, "facts": {}}
    about |= {
        "machine": {"processor": "abacus", "cores": 2, "threads": 1},
        "prismgp": "0",
        "commit": None,
        "source": "x",
    }
    return {**order, **scores, **cost, **about, **changed}


def keyed(*results):
    return {f"{each['dataset']}-s{each['split']}-{each['entry']}": each for each in results}


# -- dominance -----------------------------------------------------------------------------------


def test_dominance_by_hand():
    points = {"fast": (1.0, 0.9), "good": (9.0, 0.1), "middle": (3.0, 0.5), "slow": (9.5, 0.5), "bad": (1.0, 1.0)}
    assert front(points) == ["fast", "middle", "good"]
    assert dominators(points, "slow") == ["middle", "good"]
    assert dominators(points, "bad") == ["fast"]  # as fast, and better
    assert dominators(points, "good") == []


def test_equal_points_do_not_dominate_each_other():
    points = {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 2.0)}
    assert front(points) == ["a", "b"]
    assert dominators(points, "c") == ["a", "b"]


def test_fronts_of_random_points_against_the_definition(rng):
    # Few different values, so that ties happen.
    points = {str(k): tuple(rng.integers(0, 6, 2).astype(float)) for k in range(25)}
    on_front = set(front(points))
    for a, b in itertools.permutations(points, 2):
        strictly = (points[a][0] <= points[b][0] and points[a][1] < points[b][1]) or (
            points[a][0] < points[b][0] and points[a][1] <= points[b][1]
        )
        assert strictly == (a in dominators(points, b))
    assert on_front == {name for name in points if not dominators(points, name)}
    for name in set(points) - on_front:  # whatever is off the front is beaten by something on it
        assert on_front & set(dominators(points, name))
    errors = [points[name][1] for name in front(points)]
    assert errors == sorted(errors, reverse=True)


# -- collecting ----------------------------------------------------------------------------------


def test_means_over_splits_and_who_competes():
    rows, lost = collect(
        keyed(
            result(DEFAULT, rmse=0.2),
            result(DEFAULT, split=1, rmse=0.4, fit_seconds=3.0),
            result("linear", rmse=0.1),
            result("trees", split=0),
            result("trees", split=1, failed="timed out after 60 s", timed_out=True),
            result("ssgp-64", dataset="concrete", failed="ValueError: no"),
        )
    )
    default, trees, linear = rows["energy"]
    assert default.values["rmse"] == pytest.approx(0.3)
    assert default.values["fit_seconds"] == pytest.approx(2.0)
    assert (default.splits, default.complete) == ((0, 1), True)
    assert not linear.complete  # one split alone cannot be compared with the mean of two
    assert not trees.complete
    assert list(points_of(rows["energy"], "rmse")) == [DEFAULT]
    assert lost["energy"] == {"Gradient-boosted trees, split 1": "timed out after 60 s"}
    assert lost["concrete"] == {"SSGP, p = 64, split 0": "failed: ValueError: no"}
    assert list(rows) == ["energy"]
    assert ranked(rows["energy"])[0].name == DEFAULT


def test_two_readings_of_one_fit_are_two_rows():
    also = {"corrected": {"nlpd": 0.1, "coverage": 0.94, "label": LABELS["xgpr-2048-corrected"]}}
    rows, _ = collect(keyed(result(DEFAULT), result("xgpr-2048", nlpd=25.0, coverage=0.3, fit_seconds=7.0, also=also)))
    returned, corrected = rows["energy"][1:]
    assert (returned.name, corrected.name) == ("xgpr-2048", "xgpr-2048-corrected")
    assert (returned.values["nlpd"], corrected.values["nlpd"]) == (25.0, 0.1)
    assert returned.values["rmse"] == corrected.values["rmse"]
    assert returned.values["fit_seconds"] == corrected.values["fit_seconds"] == 7.0


def test_summary_says_who_dominates_our_default():
    rows, _ = collect(
        keyed(
            result(DEFAULT, rmse=0.3, nlpd=0.1, fit_seconds=50.0),
            result("exact", rmse=0.2, nlpd=0.2, fit_seconds=5.0),
            result("linear", rmse=0.9, nlpd=0.9, fit_seconds=0.1),
            result("trees", rmse=0.25, nlpd=0.5, fit_seconds=60.0),
        )
    )
    found = summarise(rows)["energy"]
    assert found["rmse"]["front"] == ["linear", "exact"]
    assert found["rmse"]["default_on_front"] is False
    assert found["rmse"]["default_dominated_by"] == ["exact"]
    assert (found["rmse"]["best"], found["rmse"]["default_rank"]) == ("exact", 3)
    assert found["nlpd"]["front"] == ["linear", "exact", DEFAULT]
    assert found["nlpd"]["default_on_front"] is True
    assert found["nlpd"]["best"] == DEFAULT
    # Others are other libraries: our own exact GP is none.
    assert [row.name for row in beaten_by(rows["energy"], "rmse")] == ["trees"]
    assert beaten_by(rows["energy"], "nlpd") == []


def test_without_our_default_nothing_is_claimed():
    rows, _ = collect(keyed(result("linear")))
    found = summarise(rows)["energy"]["rmse"]
    assert (found["default_on_front"], found["default_rank"], found["default_dominated_by"]) == (None, None, [])
    assert where_others_win(rows) == []


def test_coverage_is_better_nearer_to_what_is_claimed():
    rows, _ = collect(
        keyed(result(DEFAULT, coverage=0.93), result("linear", coverage=0.98), result("trees", coverage=0.96))
    )
    assert [row.name for row in beaten_by(rows["energy"], "coverage")] == ["trees"]
    assert losses(rows) == [["energy", "95% coverage", "93.0%", "Gradient-boosted trees 96.0%"]]


def test_best_values_and_ties():
    rows, _ = collect(keyed(result(DEFAULT, rmse=0.2001), result("linear", rmse=0.2002), result("trees", rmse=0.3)))
    table = ranked(rows["energy"])
    best = {(table[row].name, column) for row, column in best_of(table)}
    assert {(DEFAULT, 1), ("linear", 1)} <= best  # the same to the digits shown
    assert ("trees", 1) not in best


# -- what is written -----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run whose results are made up."""
    run = RunFolder.open(tmp_path / "run", kind="bench", name="bench", command="prismgp bench", options={"threads": 1})
    rng = np.random.default_rng(0)
    entries = [ENTRIES[name] for name in (DEFAULT, "exact", "ssgp-64", "linear", "trees", "xgpr-2048", "sklearn-gpr")]
    plan = make_plan(["energy"], entries, Options(), splits=[0], absent=[(ENTRIES["gpytorch-exact"], "absent")])
    remember(run, plan, at_a_time=1)
    for job in plan.jobs[1:-1]:  # all but the check and the last one
        rmse = float(rng.uniform(0.1, 0.9))
        more = (
            {"also": {"corrected": {"nlpd": 0.3, "label": "corrected"}}}
            if job.order["entry"].startswith("xgpr")
            else {}
        )
        made = result(
            job.order["entry"], job.order["dataset"], rmse=rmse, nlpd=rmse, fit_seconds=float(10 ** rng.uniform(-2, 2))
        )
        run.results.put(job.key, {**made, **more})
    run.results.put(
        "energy-s0-trees",
        {**plan.jobs[5].order, "failed": "timed out after 60 s", "timed_out": True, "limit_seconds": 60},
    )
    return run


def test_files_of_a_run(run):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    written = {path.name for path in write_outputs(run)}
    assert written == {"table.md", "summary.json", "report.html", "pareto-energy.svg", "pareto-energy.png"}
    text = (run.folder / "table.md").read_text()
    assert "Gradient-boosted trees, split 0: timed out after 60 s" in text
    assert "6 of 8 planned jobs are done" in text  # not the check, and not the last one
    assert "## Where others win" in text
    assert "GPyTorch exact GP: absent (energy)" in text
    assert "| → PrismGP, p = 32 |" in text
    summary = json.loads((run.folder / "summary.json").read_text())
    assert set(summary["datasets"]) == {"energy"}
    assert summary["agreement"] is None
    html = (run.folder / "report.html").read_text()
    assert "Where others win" in html
    assert "The same command continues" in html
    assert (run.folder / "pareto-energy.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_agreement_is_shown_loudly():
    wrong = {"log_evidence_per_row": 1e-3, "mean": 0.1, "std": 1e-9, "agrees": False, "version": "1"}
    limits = {"SSGP, frequencies": {"sizes": [], "converges": False}}
    found = {"tolerance": 1e-6, "exact": {"scikit-learn GPR": wrong}, "limits": limits, "skipped": {}}
    shown = _agreement(found)
    assert shown.notice.tone == "bad"
    assert "scikit-learn GPR differs from the exact GP" in shown.notice.text
    assert "SSGP, frequencies: does not approach" in shown.notice.text
    assert shown.tables[0].rows[0][-1] == "NO"
    assert "**scikit-learn GPR differs" in markdown({}, {}, {}, {"agreement": found}, {})


def test_a_quick_run_says_that_it_compares_nothing():
    results = keyed(result("linear", quick=True))
    assert "compares nothing" in markdown({}, {}, {}, results, {})
    assert "compares nothing" not in markdown({}, {}, {}, keyed(result("linear")), {})
