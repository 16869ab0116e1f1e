"""The table of entries and the plan that is made of it."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec

import pytest

from experiments.comparison.agreement import TOLERANCE, check, disagreements
from experiments.comparison.data import DATASETS
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS, LIBRARIES, MAIN, Entry, select, selectable_names
from experiments.comparison.peers import explain_absence, fit_function
from experiments.comparison.plan import AGREEMENT, describe, plan_jobs

GIB = 2**30
OPTIONS = {"quick": False, "threads": 1, "job_seconds": 420.0, "memory_gib": 12.0}


def test_entries_that_can_use_a_gpu_get_it():
    plan = plan_jobs(["energy"], [ENTRIES["ssgp-64"], ENTRIES["trees"]], OPTIONS, splits=[0], device="cuda")
    assert [job.order["device"] for job in plan.jobs[1:]] == ["cuda", "cpu"]


@pytest.mark.filterwarnings("ignore")  # of other libraries, when they are imported
def test_every_entry_can_be_made_and_named():
    assert LABELS[DEFAULT] == "PrismGP, p = 32"
    assert len(set(LABELS.values())) == len(LABELS)
    for name, entry in ENTRIES.items():
        assert name == entry.name
        json.dumps(entry.settings)
        if explain_absence(entry.library) is None:
            assert callable(fit_function(entry.fit))


def test_plan_has_every_pair_once_and_small_sets_first():
    entries = [ENTRIES[name] for name in ("linear", "trees")]
    plan = plan_jobs(["kin40k", "energy"], entries, OPTIONS, splits=[0, 3])
    keys = [job.key for job in plan.jobs]
    assert keys[0] == AGREEMENT
    assert keys[1:5] == ["energy-s0-linear", "energy-s0-trees", "energy-s3-linear", "energy-s3-trees"]
    assert len(keys) == len(set(keys)) == 9
    assert plan.jobs[1].order["limit_seconds"] == 420
    assert plan_jobs(["energy"], entries, OPTIONS).jobs[-1].key == f"energy-s{DATASETS['energy'].splits - 1}-trees"


def test_the_main_table_has_no_holes():
    entries = [ENTRIES[name] for name in MAIN]
    names = [name for name, shape in DATASETS.items() if shape.default]
    plan = plan_jobs(names, entries, OPTIONS)
    assert plan.skipped == {}
    jobs = {(job.order["dataset"], job.order["entry"], job.order["split"]) for job in plan.jobs[1:]}
    assert jobs == {
        (name, entry, split)
        for name in names
        for entry in MAIN
        for split in range(3 if DATASETS[name].rows < 100_000 else 1)
    }
    assert len(names) == 11
    assert {job.order["limit_seconds"] for job in plan.jobs[1:]} == {OPTIONS["job_seconds"]}
    assert selectable_names()["main"] == list(MAIN)


def test_row_limits_by_count_and_by_memory():
    ridge = ENTRIES["nystroem-2048-median"]
    assert ridge.rows(900, 8, 8 * GIB) == 900
    used = ridge.rows(3_000_000, 8, 8 * GIB)
    assert ridge.memory(used, 8) <= 8 * GIB < ridge.memory(used + 1, 8)
    gpr = ENTRIES["sklearn-gpr"]
    assert gpr.rows(36_000, 2, 100 * GIB) == 5_000
    assert gpr.rows(36_000, 32, 8 * GIB) < 5_000  # its gradient has a matrix for every input
    assert gpr.refusal(36_000, 32, 8 * GIB) is None


def test_what_is_left_out_has_a_reason():
    plan = plan_jobs(["pol", "energy"], list(ENTRIES.values()), OPTIONS, splits=[0])
    keys = {job.key for job in plan.jobs}
    assert "energy-s0-gpytorch-exact" in keys
    assert plan.skipped["pol-s0-gpytorch-exact"]["skipped"] == "takes at most 10,000 rows"
    assert "the same as" in plan.skipped["energy-s0-sklearn-gpr-2000"]["skipped"]
    assert not keys & set(plan.skipped)
    tiny = Entry("x", "x", LIBRARIES["scikit-learn"], "m:f", memory=lambda n, d: 1e9 * n * d)
    assert tiny.refusal(1_000, 5, GIB) == "takes at most 0 rows"


def test_a_missing_library_is_left_out_with_the_remedy(monkeypatch):
    there = find_spec
    absent = {"gpytorch", "gpboost", "xGPR", "catboost", "lightgbm", "ngboost"}
    monkeypatch.setattr(
        "experiments.comparison.peers.library.find_spec", lambda name: None if name in absent else there(name)
    )
    entries, left_out = select()
    assert {entry.library.module for entry in entries} == {"prismgp", "sklearn"}
    reasons = {entry.name: why for entry, why in left_out}
    assert reasons["gpytorch-exact"] == 'GPyTorch is not installed; pip install "prismgp[compare]" brings it'
    assert '"prismgp[compare]"' in reasons["gpboost-matern"]
    assert '"prismgp[xgpr]"' in reasons["xgpr-2048"]
    assert '"prismgp[compare]"' in reasons["lightgbm"]
    assert '"prismgp[ngboost]"' in reasons["ngboost"]
    plan = plan_jobs(["energy"], entries, OPTIONS, splits=[0], absent=left_out)
    assert plan.skipped["energy-s0-xgpr-2048"]["skipped"] == reasons["xgpr-2048"]


def test_selection_by_library_and_name_keeps_our_default():
    names = selectable_names()
    assert set(names["ours"]) == set(names["prismgp"])
    chosen = {entry.name for entry in select(["trees", "linear"])[0]}
    assert chosen == {"trees", "linear", DEFAULT}
    assert {entry.name for entry in select(["scikit-learn"])[0]} == {*names["scikit-learn"], DEFAULT}


def test_outcomes_in_words():
    assert (
        describe({"failed": "timed out after 60 s", "timed_out": True, "limit_seconds": 60.0}) == "timed out after 60 s"
    )
    assert describe({"failed": "ValueError: no", "timed_out": False}) == "failed: ValueError: no"
    fit = {"rmse": 0.1, "nlpd": -1.0, "coverage": 0.95, "fit_seconds": 3.0, "fit_peak_bytes": 2**20}
    said = describe({**fit, "rows": 10_000, "rows_used": 5_000})
    assert said == "rmse 0.1000, nlpd -1.0000, covers 95.0%, fit 3.0 s, 1.0 MiB, 5,000 of 10,000 rows"


# -- agreement -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agreement():
    with warnings.catch_warnings():  # of other libraries
        warnings.simplefilter("ignore")
        return check({"seed": 0})


def test_exact_gps_agree_at_the_same_parameters(agreement):
    assert disagreements(agreement) == []
    assert {"Exact GP (ours)", "scikit-learn GPR"} <= set(agreement["exact"])
    for name, each in agreement["exact"].items():
        assert max(each["log_evidence_per_row"], each["mean"], each["std"]) <= TOLERANCE, name
    assert len(agreement["exact"]) + len(agreement["skipped"]) == 4
    json.dumps(agreement, allow_nan=False)


def test_approximations_become_the_exact_gp(agreement):
    for each in agreement["limits"].values():
        assert each["converges"]
    # With every point a component, the mean of the projected process is the exact one.
    assert agreement["limits"]["Nystroem, components"]["sizes"][-1]["mean"] < TOLERANCE


def test_a_disagreement_is_found(monkeypatch):
    monkeypatch.setattr("experiments.comparison.agreement.FREQUENCIES", (8, 8))
    monkeypatch.setattr("experiments.comparison.agreement.COMPONENTS", (30, 300))
    right = check.__globals__["_scikit_learn"]

    def wrong(problem):
        answer = right(problem)
        return answer._replace(std=1.01 * answer.std)

    monkeypatch.setitem(check.__globals__["_EXACT"], "scikit-learn GPR", ("scikit-learn", wrong))
    for name in ("GPyTorch exact GP", "GPBoost, no approximation"):
        monkeypatch.delitem(check.__globals__["_EXACT"], name)
    said = disagreements(check({"seed": 1}))
    assert len(said) == 2
    assert said[0].startswith("scikit-learn GPR differs from the exact GP at the same parameters")
    assert said[1] == "SSGP, frequencies: does not approach the exact GP as it grows"
