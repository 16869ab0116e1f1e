"""Plans, summaries and verdicts of the paper's experiments, on made-up results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from experiments.internals import CAMPAIGN_SECONDS, simulate
from experiments.paper import EXPERIMENTS, REPRODUCE
from experiments.paper.claims import Paired, claims, space_claims
from experiments.paper.data import load, prepare
from experiments.paper.page import page
from experiments.paper.plan import make_plan
from experiments.paper.summary import (
    HEADER,
    best_scores,
    groups,
    over_iterations,
    over_time,
    table_rows,
)
from experiments.paper.tables import all_claims
from experiments.plan import Parser, Plan, write_outputs
from experiments.results import Study
from experiments.scores import LEVELS
from prismgp.exceptions import DataError


def plan_of(*words: str) -> Plan:
    parser = Parser()
    REPRODUCE.add_options(parser)
    return make_plan(parser.parse_args([*words, "--list"]))


def made_up(model: str, p: int | None, run: int, rmse: float, nlpd: float = 1.0) -> dict[str, Any]:
    """A result as a job stores it."""
    stages = [("l-bfgs", 4, 0.4)] if model != "prism1" else [("l-bfgs", 4, 0.4), ("member 0", 30, 2.0)]
    stages = [("start", 0, 0.1), *stages, ("final", 40, 3.0 + 0.1 * run)]
    curve = [
        {"stage": stage, "iteration": k, "seconds": seconds, "rows": 80, "rmse": rmse + 1.0 / (1 + k), "nlpd": nlpd}
        for stage, k, seconds in stages
    ]
    curve[-1] |= {"rmse": rmse}
    about = {"kind": "fit", "model": model, "p": p, "run": run, "rows": 80, "test_rows": 20}
    times = {"fit_seconds": 3.0, "predict_seconds": 0.1, "peak_bytes": 2**29, "parameters_learned_on": 80}
    calibration = {"coverage": 0.95, "calibration": list(LEVELS)}
    return {**about, **times, **calibration, "rmse": rmse, "nlpd": nlpd, "curve": curve}


def a_run(paper: float, ours: float, *, runs: int = 4, exact: float = 0.6) -> dict[str, dict[str, Any]]:
    """Results of all models; differences vary a little from run to run."""
    out = {}
    for run in range(runs):
        base = 0.7 + 0.1 * run  # splits differ much more than models: only pairs tell
        found = [made_up("exact", None, run, base * exact / 0.7)]
        for p in (16, 32):
            found.append(made_up("ssgp", p, run, base))
            found.append(made_up("paper", p, run, base + paper + 0.001 * run, 1.0 + paper))
            found.append(made_up("prism1", p, run, base + ours - 0.001 * run, 1.0 + ours))
        for result in found:
            out[f"{result['model']}-{result['p']}-{result['run']}"] = result
    return out


def verdicts(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {claim.statement: claim.verdict for claim in claims(groups(results))}


class TestPlans:
    def test_abalone(self) -> None:
        plan = plan_of("abalone")
        keys = [job.key for job in plan.jobs]
        assert plan.study == "abalone"
        assert len(keys) == len(set(keys)) == 5 * (1 + 5 * 3 + 1) + 2
        assert {"exact-run0", "ssgp-p16-run4", "paper-p64-run1", "prism1-p32-run2", "prism-p32-run3"} <= set(keys)
        assert keys.index("embedding") < keys.index("exact-run1")

    def test_quick(self) -> None:
        plan = plan_of("gas10k", "--simulated", "--quick")
        assert plan.study == "gas10k-simulated-quick"
        assert {job.order["p"] for job in plan.jobs} == {None, 16, 32}
        assert {job.order["run"] for job in plan.jobs} == {0}
        assert (plan.options["rows"], plan.options["quick"]) == (2_500, True)

    def test_five_runs_of_everything(self) -> None:
        for name, about in EXPERIMENTS.items():
            jobs = plan_of(name, *(["--simulated"] if about.gas else [])).jobs
            assert {job.order["run"] for job in jobs} == set(range(5))
            assert {16, 32, 64} <= {job.order["p"] for job in jobs}

    def test_no_full_gp_on_large_sets(self) -> None:
        for name in ("gas500k", "gas4m"):
            assert not any(job.key.startswith("exact") for job in plan_of(name, "--simulated").jobs)
            with pytest.raises(DataError, match="exact"):
                plan_of(name, "--simulated", "--models", "exact")

    def test_choices(self) -> None:
        plan = plan_of("gas500k", "--simulated", "--models", "ssgp", "--frequencies", "64,8", "--runs", "2")
        assert [job.key for job in plan.jobs] == [f"ssgp-p{p}-run{run}" for run in (0, 1) for p in (8, 64)]

    def test_split_and_coding_are_part_of_the_name(self) -> None:
        plan = plan_of("abalone", "--split", "blocks", "--sex", "code")
        assert plan.study == "abalone-blocks-coded"
        assert (plan.options["split"], plan.options["sex"]) == ("blocks", "code")
        assert "split" not in plan_of("abalone").options  # stored studies have no such key
        with pytest.raises(DataError, match="--sex is for abalone"):
            plan_of("gas10k", "--simulated", "--sex", "code")

    def test_the_entire_data_set_has_no_limit(self) -> None:
        assert plan_of("gas4m", "--simulated").options["rows"] == 4_000_000
        assert plan_of("gas4m").options["rows"] is None

    def test_abalone_is_never_simulated(self) -> None:
        with pytest.raises(DataError, match="--simulated"):
            plan_of("abalone", "--simulated")

    def test_larger_jobs_say_so(self) -> None:
        memory = {job.key: job.memory for job in plan_of("gas10k", "--simulated").jobs}
        assert memory["exact-run0"] > 4 * 2**30 > memory["ssgp-p16-run0"]

    def test_streamed_rows_are_written_first(self) -> None:
        (first,) = plan_of("gas4m", "--simulated").first
        assert (first.key, first.order["runs"]) == ("data-5", 5)
        assert plan_of("gas500k", "--simulated").first == []


class TestData:
    def order(self, run: int) -> dict[str, Any]:
        return {"experiment": "gas10k", "simulated": True, "rows": 500, "run": run, "data": None}

    def test_every_run_has_its_own_split_of_one_sample(self) -> None:
        first, second, again = load(self.order(0)), load(self.order(1)), load(self.order(0))
        assert first.rows == second.rows == 400
        assert len(first.y_test) == 100
        assert np.array_equal(first.x_test, again.x_test)
        whole = [np.sort(np.concatenate([data.fit[1], data.y_test])) for data in (first, second)]
        assert np.array_equal(*whole)
        assert not np.array_equal(first.y_test, second.y_test)

    def test_blocks_hold_out_the_end(self) -> None:
        """The same rows in every run, and they are the last moments of the campaign."""
        first, second = (load({**self.order(run), "split": "blocks"}) for run in (0, 1))
        assert np.array_equal(first.x_test, second.x_test)
        assert (first.rows, len(first.y_test)) == (400, 100)
        rng = np.random.default_rng([0, 5])
        table = simulate(0, np.sort(rng.uniform(0, CAMPAIGN_SECONDS, 500)), rng)
        assert np.array_equal(table[:400, 1:], first.fit[0])
        assert np.array_equal(table[400:, 0], first.y_test)

    def test_sex_as_one_number(self, data_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
        order = {**self.order(0), "experiment": "abalone", "simulated": False, "rows": None}
        coded, indicators = load({**order, "sex": "code"}), load(order)
        assert coded.x_test.shape[1] == 8
        expected = indicators.x_test[:, :3] @ [2.0, 3.0, 1.0]  # female, infant, male
        assert np.array_equal(coded.x_test[:, 0], expected)
        assert np.array_equal(coded.x_test[:, 1:], indicators.x_test[:, 3:])

    def test_sample_of_abalone(self, data_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
        for run in (0, 1):
            found = load({**self.order(run), "experiment": "abalone", "simulated": False, "rows": 1_000})
            assert found.rows + len(found.y_test) == 1_000
            assert 150 < len(found.y_test) < 250

    def test_streamed_rows(self, tmp_path: Any) -> None:
        folder = tmp_path / "data"
        order = {"simulated": True, "rows": 1_000, "runs": 2, "data": str(folder)}
        prepare(order)
        prepare(order)  # as after an interruption
        found = [load({**self.order(run), "data": str(folder)}) for run in (0, 1)]
        assert [data.rows for data in found] == [800, 800]
        assert [len(data.y_test) for data in found] == [200, 200]
        seen = [set(map(bytes, data.x_test.to_numpy())) for data in found]
        assert not seen[0] & seen[1]


class TestSummaries:
    def test_table(self) -> None:
        rows = table_rows(groups(a_run(0.2, -0.1)))
        assert [row[:3] for row in rows[:3]] == [["full GP", "", "4"], ["SSGP", "16", "4"], ["SSGP", "32", "4"]]
        assert rows[1][3].startswith("0.8500 ± 0.06")
        assert rows[1][8] == "512.0 MiB"

    def test_best_scores(self) -> None:
        found = groups(a_run(0.2, -0.1, exact=0.7))
        best = {(found_row, HEADER[column]) for found_row, column in best_scores(found)}
        ours = [row for row, group in enumerate(found.values()) if group.model == "prism1"]
        assert best == {(row, score) for row in ours for score in ("RMSE", "NLPD")}  # two p with equal scores

    def test_failed_jobs_are_left_out(self) -> None:
        results = {"a": made_up("ssgp", 16, 0, 0.5), "b": {"kind": "fit", "model": "ssgp", "p": 16, "failed": "late"}}
        assert len(groups(results)["ssgp", 16].results) == 1

    def test_curve_over_iterations(self) -> None:
        group = groups(a_run(0.0, 0.0, runs=2))["ssgp", 16]
        x, mean, low, high = over_iterations(group, "rmse")
        assert x.tolist() == [1, 5, 41]
        assert mean == pytest.approx([1.75, 0.95, 0.75])
        assert high - low == pytest.approx(np.full(3, 0.1))

    def test_curve_over_time_ends_with_the_final_scores(self) -> None:
        group = groups(a_run(0.0, 0.0, runs=2))["ssgp", 16]
        x, mean, _, _ = over_time(group, "rmse")
        assert x[0] == pytest.approx(0.1)
        assert x[-1] == pytest.approx(3.1)
        assert mean[-1] == pytest.approx(0.75)
        assert mean[0] == pytest.approx(1.75)

    def test_curve_of_a_network_begins_where_it_does(self) -> None:
        x, _, _, _ = over_iterations(groups(a_run(0.0, 0.0))["prism1", 16], "rmse")
        assert x.tolist() == [5, 31, 41]


class TestClaims:
    def test_confirmed_and_refuted(self) -> None:
        found = verdicts(a_run(0.2, -0.15))
        assert found["Revised, the two stages as printed: lower RMSE than the SSGP at each p"] == "refuted"
        assert found["Revised, the two stages as printed: lower NLPD than the SSGP at each p"] == "refuted"
        assert found["Revised, ours, one model: lower RMSE than the SSGP at each p"] == "confirmed"
        assert found["Revised, ours, one model: lower NLPD than the SSGP at each p"] == "confirmed"
        close = "RMSE close to that of the full GP, at most 5% above it"
        assert found[f"Revised, the two stages as printed: {close}"] == "refuted"
        assert found[f"Revised, ours, one model: {close}"] == "confirmed"

    def test_the_other_way_round(self) -> None:
        found = verdicts(a_run(-0.1, 0.2))
        assert found["Revised, the two stages as printed: lower RMSE than the SSGP at each p"] == "confirmed"
        assert found["Revised, ours, one model: lower RMSE than the SSGP at each p"] == "refuted"

    def test_undecided(self) -> None:
        found = verdicts(a_run(-0.0015, 0.0))  # plus 0, .001, .002, .003: zero on average
        assert found["Revised, the two stages as printed: lower RMSE than the SSGP at each p"] == "undecided"

    def test_one_run_shows_but_does_not_decide(self) -> None:
        found = verdicts(a_run(0.2, -0.1, runs=1))
        assert found["Revised, the two stages as printed: lower RMSE than the SSGP at each p"] == "not seen in this run"
        assert found["Revised, ours, one model: lower RMSE than the SSGP at each p"] == "seen in this run"

    def test_paired_over_runs(self) -> None:
        claim = next(each for each in claims(groups(a_run(0.2, -0.1))) if "as printed" in each.statement)
        # Mean of .2, .201, .202, .203, and the standard error of that.
        assert claim.evidence == "p = 16: +0.2015 (± 0.0006); p = 32: +0.2015 (± 0.0006)"

    def test_few_against_many_and_the_gap(self) -> None:
        """Figure 2a and appendix D on made-up errors: the gap is .2 at p = 16 and .1 at p = 64."""
        results = {}
        for run in range(4):
            found = [
                made_up("released_ssgp", 16, run, 0.9 + 0.01 * run),
                made_up("released_ssgp", 64, run, 0.8),
                made_up("released", 16, run, 0.7),
                made_up("released", 64, run, 0.7 - 0.001 * run),
            ]
            results |= {f"{each['model']}-{each['p']}-{run}": each for each in found}
        seen = {claim.statement: claim for claim in claims(groups(results))}
        name = "Revised, as released"
        few = seen[f"{name}, p = 16: lower RMSE than the SSGP, as released with p = 64"]
        assert (few.verdict, few.evidence) == ("confirmed", "p = 16: -0.1000 (± 0.0000)")
        gap = seen[f"{name}: the gap to the SSGP, as released shrinks from p = 16 to 64"]
        assert gap.verdict == "confirmed"
        assert gap.evidence.startswith("gap +0.2150, then +0.1015; change -0.1135 (±")
        cost = seen[f"{name}: the embedding adds at most 10% to the time of the fit"]
        assert cost.verdict == "confirmed"  # the made-up times are equal

    def test_more_frequencies(self) -> None:
        """An SSGP that gains a quarter and passes the full GP, and one that gains nothing."""
        results = {}
        for run in range(5):
            errors = {("ssgp", 16): 0.8, ("ssgp", 64): 0.6, ("ssgp", 128): 9.0, ("exact", None): 0.62}
            errors |= {("released_ssgp", 16): 0.9 + 0.001 * run, ("released_ssgp", 64): 0.901}
            errors |= {("paper", 16): 0.7, ("paper", 64): 0.5, ("paper", 128): 99.0}
            results |= {f"{m}-{p}-{run}": made_up(m, p, run, rmse + 1e-5 * run) for (m, p), rmse in errors.items()}
        found = {claim.statement: claim for claim in claims(groups(results))}
        marginal = "from p = 16 to 64 the RMSE falls by less than 5%"
        assert (found[f"SSGP: {marginal}"].verdict, found[f"SSGP: {marginal}"].evidence[:6]) == ("refuted", "-25.0%")
        assert found[f"SSGP, as released: {marginal}"].verdict == "confirmed"
        near = "from p = 16 to 64 the RMSE falls towards that of the full GP"
        assert found[f"SSGP: {near}"].verdict == "confirmed"
        assert found[f"SSGP: {near}"].evidence.startswith("+29.0%, then -3.2%; change of the RMSE -25.0%")
        assert found[f"SSGP, as released: {near}"].verdict == "undecided"
        # More frequencies than the paper plots are not judged.
        assert found["Revised, the two stages as printed: lower RMSE than the SSGP at each p"].verdict == "confirmed"

    def test_times_of_different_devices_are_not_compared(self) -> None:
        results = a_run(0.2, -0.1)
        cost = "the embedding adds at most 10% to the time of the fit"
        assert sum(cost in each for each in verdicts(results)) == 2
        moved = {
            key: {**each, "device": "cuda" if each["model"] == "prism1" else "cpu"} for key, each in results.items()
        }
        assert [each for each in verdicts(moved) if cost in each] == [f"Revised, the two stages as printed: {cost}"]

    def test_a_difference_must_exceed_what_chance_does(self) -> None:
        pair = Paired(16, 2.5, 1.0, 5)  # 2.78 standard errors of five runs
        assert (pair.verdict, Paired(16, 2.8, 1.0, 5).verdict) == ("level", "higher")
        assert Paired(16, -4.0, 1.0, 3).verdict == "level"

    def test_spaces(self) -> None:
        checks = [{"form": "sufficient", "name": "in-cluster V", "margin": 0.01, "holds": False}]
        conditions = {"holds": False, "holds_printed": False, "checks": checks}
        spaces = [
            {"name": name, "silhouette": silhouette, "conditions": conditions}
            for name, silhouette in (("inputs", 0.3), ("two_stage", 0.5), ("joint", 0.2))
        ]
        found = space_claims({"spaces": spaces})
        assert [claim.verdict for claim in found] == ["seen in this run", *["not seen in this run"] * 3]
        assert found[0].evidence == "silhouette 0.300 before, 0.500 after"
        assert found[1].evidence == "printed: no, corrected: no; in-cluster V is 1e+02 times its limit"
        assert space_claims(None) == space_claims({"failed": "x"}) == []

    def test_no_gap_cannot_shrink(self) -> None:
        results = {}
        for run, p in itertools.product(range(3), (16, 64)):
            for model, rmse in (("ssgp", 0.6), ("paper", 0.7 + 0.001 * p + 0.001 * run)):
                results[f"{model}-{p}-{run}"] = made_up(model, p, run, rmse)
        assert verdicts(results)[
            "Revised, the two stages as printed: the gap to the SSGP shrinks from p = 16 to 64"
        ] == ("refuted")

    def test_only_runs_that_both_have(self) -> None:
        results = a_run(0.2, -0.1)
        del results["ssgp-16-0"], results["ssgp-16-1"], results["ssgp-16-2"], results["ssgp-16-3"]
        claim = next(each for each in claims(groups(results)) if "as printed" in each.statement)
        assert claim.evidence.startswith("p = 32")


@pytest.mark.slow
@pytest.mark.parametrize("simulated", [True, False])
def test_page_of_made_up_results(tmp_path: Any, simulated: bool) -> None:
    options = {"experiment": "gas10k", "simulated": simulated, "quick": False, "rows": 10_000, "device": "cpu"}
    study = Study(tmp_path, "s")
    study.begin(kind="reproduce", options={**options, "steps": None}, command="c", planned=[], skipped={})
    for key, result in a_run(0.2, -0.1, runs=2).items():
        study.put(key, result)
    study.put("ssgp-p64-run0", {"kind": "fit", "model": "ssgp", "p": 64, "run": 0, "failed": "took too long"})
    found, text = page(study), REPRODUCE.markdown(study)
    assert found.notice is not None
    assert "ssgp-p64-run0 failed: took too long" in found.notice.text
    titles = [found.title, *(table.caption for section in found.sections for table in section.tables)]
    titles += [figure.caption for section in found.sections for figure in section.figures]
    if simulated:
        paths = write_outputs(REPRODUCE, study)
        assert all(path.stat().st_size for path in paths)
        names = {path.name for path in paths}
        assert names == {"s.md", "s.html", "s-error_seconds.png", "s-error_iterations.png", "s-calibration.png"}
        assert all("simulated" in title for title in titles)
        assert "not comparable" in (tmp_path / "s.html").read_text()
        assert (tmp_path / "s.md").read_text() == text
        assert "published" not in text
    else:
        assert not any("simulated" in title for title in titles)
        assert "| SSGP, p = 16 | 0.7500 ± 0.0500 | 0.915 |" in text
    assert "refuted" in text
    assert "confirmed" in text


def test_published_values_are_of_models_there_are() -> None:
    for experiment in EXPERIMENTS.values():
        for model, p, rmse in experiment.published:
            assert model in experiment.models
            assert p is None or p in experiment.frequencies
            assert 0.5 < rmse < 1.0


def test_one_table_has_all_claims(tmp_path) -> None:
    assert len(all_claims(tmp_path).splitlines()) == 2  # nothing is there yet
    for name, rows in (("abalone", 80), ("gas10k-simulated", 80), ("gas4m-simulated", 800)):
        study = Study(tmp_path, name)
        for key, each in a_run(0.2, -0.15, runs=3).items():
            longer = 2.0 * rows / 80 if each["model"] == "prism1" else 0.1 if each["model"] == "paper" else 0.0
            study.put(key, {**each, "rows": rows, "fit_seconds": 3.0 + longer})
    silhouettes = {"inputs": 0.2, "latent, 4 columns": 0.6, "latent, 2 columns": 0.5}
    spaces = Study(tmp_path, "spaces")
    for k in range(3):
        moved = {name: value + (0.01 * k if name != "inputs" else 0.0) for name, value in silhouettes.items()}
        spaces.put(f"space-{k}", {"kind": "space", "sample": k, "silhouettes": moved})
        spaces.put(f"output-{k}", {"kind": "output", "rmse": {"latent": 0.7, "reconstruction": 0.71 + 0.001 * k}})
    lines = all_claims(tmp_path).splitlines()
    assert "| **abalone (Figure 1)** |  |  |  |" in lines
    assert "| lower RMSE than the SSGP at each p | refuted, +0.201, +0.201 | - | confirmed, -0.151, -0.151 |" in lines
    linear = "the time that the embedding adds is at most linear in the rows"
    assert f"| {linear} | confirmed, 0, 0 s | - | confirmed, 2, 20 s |" in lines
    figure = "K-means clusters separate better, latent, 4 columns (Figure 3)"
    assert f"| {figure} | confirmed, 0.20-0.20 to 0.60-0.62 | - | - |" in lines
    assert lines[-1].endswith("(appendix C) | refuted, +0.011 | - | - |")
    assert not any("NLPD" in line for line in lines)
