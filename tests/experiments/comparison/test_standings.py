"""Fronts, tables and pages from made-up results."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.comparison import BENCH
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS, MAIN
from experiments.comparison.main_table import main_table
from experiments.comparison.page import agreement_section
from experiments.comparison.plan import AGREEMENT, plan_jobs
from experiments.comparison.standings import beaten_by, collect, points_of, summarise, where_others_win
from experiments.comparison.tables import COLUMNS, best_of, losses, markdown, rank, skipped_lines
from experiments.plan import write_outputs
from experiments.results import Study
from experiments.scores import LEVELS

OPTIONS = {"quick": False, "threads": 1, "job_seconds": 60.0, "memory_gib": 8.0}


def result(entry, dataset="energy", split=0, **changed):
    order = {"dataset": dataset, "split": split, "entry": entry, "quick": False, "limit_seconds": 60.0}
    scores = {"rmse": 0.5, "mae": 0.4, "nlpd": 0.7, "coverage": 0.95, "calibration": [float(level) for level in LEVELS]}
    cost = {"fit_seconds": 1.0, "predict_seconds": 0.1, "peak_bytes": 3e8}
    cost |= {"fit_peak_bytes": 1e8, "rows": 700, "rows_used": 700, "test_rows": 77, "inputs": 8}
    library = ENTRIES[entry].library
    about = {"label": LABELS[entry], "library": library.name, "library_version": "1.0", "settings": {}, "facts": {}}
    about |= {
        "machine": {"processor": "abacus", "cores": 2, "threads": 1},
        "prismgp": "0",
        "commit": None,
        "source": "x",
        "parts": "y",
    }
    return {**order, **scores, **cost, **about, **changed}


def keyed(*results):
    return {f"{each['dataset']}-s{each['split']}-{each['entry']}": each for each in results}


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
    assert lost["energy"] == {"HistGradientBoosting, split 1": "timed out after 60 s"}
    assert lost["concrete"] == {"SSGP, p = 64, split 0": "failed: ValueError: no"}
    assert list(rows) == ["energy"]
    assert rank(rows["energy"])[0].name == DEFAULT


def test_splits_that_our_default_lacks_do_not_count():
    rows, _ = collect(keyed(result(DEFAULT), result("trees", rmse=0.2), result("trees", split=1, rmse=0.8)))
    trees = rows["energy"][1]
    assert (trees.splits, trees.values["rmse"], trees.complete) == ((0,), 0.2, True)


def test_a_score_that_was_not_measured_does_not_compete():
    rows, _ = collect(keyed(result(DEFAULT, nlpd_shaped=0.3), result("trees", nlpd_shaped=0.2), result("linear")))
    assert [row.name for row in beaten_by(rows["energy"], "nlpd_shaped")] == ["trees"]
    table = rank(rows["energy"])
    column = [header for header, _, _ in COLUMNS].index("NLPD, shape") + 1
    assert {table[row].name for row, place in best_of(table) if place == column} == {"trees"}
    assert (
        beaten_by(collect(keyed(result(DEFAULT), result("trees", nlpd_shaped=0.2)))[0]["energy"], "nlpd_shaped") == []
    )


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
    assert losses(rows) == [["energy", "95% coverage", "93.0%", "HistGradientBoosting 96.0%"]]


def test_best_values_and_ties():
    rows, _ = collect(keyed(result(DEFAULT, rmse=0.2001), result("linear", rmse=0.2002), result("trees", rmse=0.3)))
    table = rank(rows["energy"])
    best = {(table[row].name, column) for row, column in best_of(table)}
    assert {(DEFAULT, 1), ("linear", 1)} <= best  # the same to the digits shown
    assert ("trees", 1) not in best


# -- what is written -----------------------------------------------------------------------------


def begin(folder, plan, **options):
    study = Study(folder, "bench")
    planned = [job.key for job in plan.jobs]
    study.begin(kind="bench", options={**OPTIONS, **options}, command="c", planned=planned, skipped=plan.skipped)
    return study


@pytest.fixture
def study(tmp_path):
    """A study whose results are made up."""
    rng = np.random.default_rng(0)
    entries = [ENTRIES[name] for name in (DEFAULT, "exact", "ssgp-64", "linear", "trees", "xgpr-2048", "sklearn-gpr")]
    plan = plan_jobs(["energy"], entries, OPTIONS, splits=[0], absent=[(ENTRIES["gpytorch-exact"], "absent")])
    study = begin(tmp_path, plan)
    for job in plan.jobs[1:-1]:  # all but the check and the last one
        rmse = float(rng.uniform(0.1, 0.9))
        xgpr = job.order["entry"].startswith("xgpr")
        more = {"also": {"corrected": {"nlpd": 0.3, "label": "corrected"}}} if xgpr else {}
        seconds = float(10 ** rng.uniform(-2, 2))
        made = result(job.order["entry"], job.order["dataset"], rmse=rmse, nlpd=rmse, fit_seconds=seconds)
        study.put(job.key, {**made, **more})
    late = {"failed": "timed out after 60 s", "timed_out": True, "limit_seconds": 60}
    study.put("energy-s0-trees", {**plan.jobs[5].order, **late})
    return study


@pytest.mark.slow
def test_files_of_a_study(study):
    written = {path.name for path in write_outputs(BENCH, study)}
    assert written == {"bench.md", "bench.html", "bench-pareto-energy.png"}
    text = (study.folder / "bench.md").read_text()
    assert "HistGradientBoosting, split 0: timed out after 60 s" in text
    assert "6 of 8 planned jobs are done" in text  # not the check, and not the last one
    assert "## Where others win" in text
    assert "GPyTorch exact GP: absent (energy)" in text
    assert "| → PrismGP, p = 32 |" in text
    html = (study.folder / "bench.html").read_text()
    assert "Where others win" in html
    assert "The same command continues" in html
    assert (study.folder / "bench-pareto-energy.png").read_bytes().startswith(b"\x89PNG")


def test_a_wrong_agreement_is_shown_loudly(tmp_path):
    wrong = {"log_evidence_per_row": 1e-3, "mean": 0.1, "std": 1e-9, "agrees": False, "version": "1"}
    limits = {"SSGP, frequencies": {"sizes": [], "converges": False}}
    found = {"tolerance": 1e-6, "exact": {"scikit-learn GPR": wrong}, "limits": limits, "skipped": {}}
    shown = agreement_section(found)
    assert shown.notice.tone == "bad"
    assert "scikit-learn GPR differs from the exact GP" in shown.notice.text
    assert "SSGP, frequencies: does not approach" in shown.notice.text
    assert shown.tables[0].rows[0][-1] == "NO"
    study = begin(tmp_path, plan_jobs(["energy"], [], OPTIONS))
    assert BENCH.complain(study) == []
    study.put(AGREEMENT, found)
    assert "**scikit-learn GPR differs" in markdown(study)
    assert BENCH.complain(study)[0].startswith("DISAGREEMENT: scikit-learn GPR differs")


def test_a_quick_run_says_that_it_compares_nothing(tmp_path):
    plan = plan_jobs(["energy"], [ENTRIES["linear"]], OPTIONS)
    for name, quick in (("a", True), ("b", False)):
        study = begin(tmp_path / name, plan, quick=quick)
        study.put("energy-s0-linear", result("linear", quick=quick))
        assert ("compares nothing" in markdown(study)) is quick


# -- the main table --------------------------------------------------------------------------------


def table_of(parts, title):
    """Label to data set to cell."""
    lines = parts[parts.index(f"**{title}**") + 1].splitlines()
    header, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]])
    return {row[0]: dict(zip((name.split(",")[0] for name in header[1:]), row[1:], strict=True)) for row in rows}


def test_the_main_table_shows_means_time_outs_and_what_is_missing():
    late = {"failed": "timed out after 60 s", "timed_out": True}
    also = {"corrected": {"nlpd": 0.1, "nlpd_shaped": 0.05, "label": "corrected"}}
    found = [result(DEFAULT, split=k, rmse=0.1 * k, nlpd=0.7, nlpd_shaped=0.0) for k in range(3)]
    found += [result("trees", split=k, rmse=0.3, nlpd_shaped=0.2) for k in range(3)]
    found += [result("forest", rmse=0.01, parts=None), result("gpboost-matern", **late)]
    found += [result("xgpr-2048", dataset="flights", nlpd=30.0, also=also)]
    # One data set has all that it needs; a time-out is among it.
    found += [result(name, dataset="beijing", rmse=0.1 + 0.1 * k) for k, name in enumerate(MAIN) if name != "exact"]
    found += [result("exact", dataset="beijing", **late)]
    parts = main_table(keyed(*found))
    # 12 entries; 9 sets with three splits and 2 with one.
    assert parts[0].startswith("19 of 348 fits are there and 2 ran out of time.")
    rmse, shaped = table_of(parts, "RMSE"), table_of(parts, "NLPD with a learned shape of the noise")
    assert list(rmse) == ["→ PrismGP, p = 32", *(LABELS[name] for name in MAIN[1:5]), "xGPR 2,048, std corrected"] + [
        LABELS[name] for name in MAIN[6:]
    ]
    assert len(rmse["Random forest"]) == 11
    assert rmse["→ PrismGP, p = 32"]["energy"] == "0.100"  # not bold: fits are missing
    assert rmse["→ PrismGP, p = 32"]["beijing"] == "**0.100**"
    assert (rmse["SSGP, p = 256"]["beijing"], rmse["Exact GP (ours)"]["beijing"]) == ("0.200", "> 60 s")
    assert rmse["Random forest"]["energy"] == "0.010 (1/3)†"
    assert rmse["GPBoost Vecchia, Matern 3/2"]["energy"] == "> 60 s"
    assert rmse["SSGP, p = 256"]["energy"] == "-"
    assert shaped["→ PrismGP, p = 32"]["energy"] == "0.000"
    assert shaped["xGPR 2,048, std corrected"]["flights"] == "0.050"
    assert table_of(parts, "NLPD of the normal distribution")["xGPR 2,048, std corrected"]["flights"] == "0.100"


def test_the_main_table_says_what_the_fits_had():
    def boosted(entry, split, **facts):
        return result(entry, split=split, threads=1 + split, jobs=2 + split, facts=facts)

    found = [boosted("ngboost", split, trees=400, ended_by_time=split > 0) for split in range(3)]
    found += [boosted("lightgbm", 0, trees=2_990, ended_by_time=False), boosted("trees", 0, trees=2_990)]
    found += [result("nystroem-2048-validated", dataset="beijing", rows=9, rows_used=4, threads=2)]
    found += [result("exact", dataset="beijing", rows=9, rows_used=4, threads=2)]  # by its own limit
    remarks = main_table(keyed(*found))[1].splitlines()
    assert remarks == [
        (
            "- Threads: 3 of 7 fits had one, the others two. One: HistGradientBoosting 1 of 1; LightGBM 1 of 1; "
            "NGBoost 1 of 3."
        ),
        "- At a time: up to 4 fits on one machine; of 2 fits that is not recorded.",
        "- Ended at three quarters of the time limit: NGBoost on energy (2 of 3).",
        "- Boosting that went on to the last of 3,000 rounds: LightGBM on energy (1 of 3).",
        "- Memory allowed fewer rows: Nystroem 2,048 + BayesianRidge 4 rows of beijing.",
    ]
    assert main_table({})[1] == "- No fit is there yet."


def test_what_was_measured_after_all_is_not_left_out(tmp_path):
    left_out = {"dataset": "pol", "split": 0, "entry": "exact", "skipped": "takes at most 10,000 rows"}
    plan = plan_jobs(["energy"], [ENTRIES["linear"]], OPTIONS)
    study = begin(tmp_path, plan)
    study.about["skipped"] = {"pol-s0-exact": left_out}
    assert skipped_lines(study) == [(LABELS["exact"], "takes at most 10,000 rows (pol)")]
    study.put("pol-s0-exact", result("exact", dataset="pol"))
    assert skipped_lines(study) == []
