"""``bench`` as people use it: what is written, what is refused, and a run that is interrupted."""

from __future__ import annotations

import pytest

from experiments.__main__ import main
from experiments.results import Study
from prismgp.exceptions import DataError
from tests import short
from tests.experiments.conftest import perform_here

RUN = ["bench", "--quick", "--datasets", "simulated", "--peers", "linear", "--threads", "1"]
KEYS = ["agreement", "simulated-s0-prism-32", "simulated-s0-linear"]


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """A study that was interrupted after its first result, and then continued; its text before."""
    folder = tmp_path_factory.mktemp("bench")

    def first_alone(job, *rest):
        if job.key != KEYS[0]:
            raise KeyboardInterrupt
        return perform_here(job, *rest)

    with pytest.MonkeyPatch.context() as patch:
        short.race(patch)
        short.local(patch)
        patch.setattr("experiments.jobs.start", first_alone)
        assert main([*RUN, "-q", "--results", str(folder)]) == 130
        before = Study(folder, "bench-quick")
        text = before.path.read_text()
        patch.setattr("experiments.jobs.start", perform_here)
        code = main([*RUN, "-q", "--results", str(folder)])
    return folder, set(before.records), text, code


@pytest.mark.slow
def test_an_interrupted_run_can_be_continued(continued):
    folder, before, text, code = continued
    assert before == {KEYS[0]}
    assert code == 0
    study = Study(folder, "bench-quick")
    assert set(study.records) == set(KEYS)
    assert study.path.read_text().startswith(text)
    assert not [key for key in KEYS if "failed" in study.get(key)]


@pytest.mark.slow
def test_a_finished_run_has_its_tables(continued):
    folder = continued[0]
    assert "compares nothing" in (folder / "bench-quick.md").read_text()
    study = Study(folder, "bench-quick")
    assert study.about["options"] == {"quick": True, "threads": 1, "job_seconds": 420.0, "memory_gib": 12.0}
    assert study.about["planned"] == KEYS
    assert "PrismGP and other libraries" in (folder / "bench-quick.html").read_text()


@pytest.mark.slow
def test_the_list_shows_plan_and_outcomes(continued, capsys):
    assert main([*RUN, "--results", str(continued[0]), "--list"]) == 0
    printed = capsys.readouterr().out
    assert "simulated-s0-linear    rmse " in printed
    assert "3 jobs, 0 to do, 0 left out" in printed


@pytest.mark.slow
def test_other_settings_for_the_same_file_are_refused(continued, capsys):
    assert main([*RUN, "-q", "--job-seconds", "7", "--results", str(continued[0])]) == 2
    assert "holds results with other settings" in capsys.readouterr().err


def test_listing_needs_no_data(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path))
    found = run("bench", "--list", "--datasets", "flights")
    assert found.code == 0
    assert "flights-s0-prism-32" in found.out
    assert "left out: takes at most 10,000 rows" in found.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--datasets", "energy,bike"], "--datasets: bike unknown; choose from energy, concrete"),
        (["--datasets", ","], "--datasets: nothing given"),
        (["--peers", "gpflow"], "--peers: gpflow unknown; choose from prism-32"),
        (["--splits", "x"], "'x': give a number of splits"),
        (["--splits", "3-1"], "'3-1': give a number of splits"),
        (["--job-seconds", "0"], "'0' is not a number above 0"),
        (["--memory", "nan"], "'nan' is not a number above 0"),
        (["--threads", "many"], "'many' is not a whole number of at least 1"),
    ],
)
def test_bad_usage_ends_with_one_line(options, message, tmp_path, refused):
    assert message in refused("bench", "--results", tmp_path / "run", *options)
    assert not (tmp_path / "run").exists()


def test_without_data_the_remedy_is_named(tmp_path, monkeypatch, refused):
    def absent(name, split):
        raise DataError(f"{name}: not found, and the download failed")

    monkeypatch.setattr("experiments.comparison.plan.load", absent)
    line = refused("bench", "--datasets", "energy,pol", "--peers", "linear", "-q", "--results", tmp_path / "run")
    assert "no data set is available (energy: energy: not found" in line
    assert "PRISMGP_DATA" in line
    assert "--datasets simulated" in line
    assert not (tmp_path / "run").exists()
