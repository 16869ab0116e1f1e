"""``prismgp report``: what it writes and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from experiments.report import Page, Section, build, read_results, read_run
from experiments.report._runs import KINDS
from tests.cli.conftest import Run

Refused = Callable[..., str]
RUN = {"format": 1, "kind": "bench", "name": "small", "command": "prismgp bench --out small", "options": {}}


def page(folder: Path) -> Page:
    """The page of a kind of runs that only these tests know."""
    results = read_results(folder)
    return Page(
        f"Run {read_run(folder)['name']}", "A test.", [Section(key, str(value)) for key, value in results.items()]
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two results."""
    module = ModuleType("pages_of_the_test")
    module.page = page  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pages_of_the_test", module)
    monkeypatch.setitem(KINDS, "bench", "pages_of_the_test:page")
    place = tmp_path / "run"
    (place / "results").mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(RUN))
    for key in ("b", "a"):
        (place / "results" / f"{key}.json").write_text(json.dumps({"rmse": 0.5}))
    return place


def test_writes_into_the_run(run: Run, folder: Path) -> None:
    outcome = run("report", folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Wrote {folder}/report.html (")
    assert outcome.out.endswith("): Run small\n")
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.index('id="s-a"') < html.index('id="s-b"')


def test_writes_elsewhere_and_quietly(run: Run, folder: Path, tmp_path: Path) -> None:
    assert run("report", folder, "-o", tmp_path / "r.html", "-q") == (0, "", "")
    assert "<h1>Run small</h1>" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert not (folder / "report.html").exists()


def test_a_failure_leaves_the_old_page(refused: Refused, folder: Path, run: Run) -> None:
    assert run("report", folder, "-q").code == 0
    before = (folder / "report.html").read_bytes()
    (folder / "results" / "c.json").write_text("{")
    line = refused("report", folder)
    assert "c.json: not JSON" in line
    assert "delete this file and run the command again" in line
    assert (folder / "report.html").read_bytes() == before
    assert {path.name for path in folder.iterdir()} == {"run.json", "results", "report.html"}


def test_what_is_no_run(refused: Refused, folder: Path, tmp_path: Path) -> None:
    assert "no such folder; name the one that a run was written to" in refused("report", tmp_path / "absent")
    assert "is a file; name the folder" in refused("report", folder / "run.json")
    assert "holds no run.json, so it is no run; name a folder that" in refused("report", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "holds no JSON object"),
        ("\udcff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({**RUN, "format": 2}), "format 2, but this version reads 1; upgrade PrismGP"),
        (json.dumps({**RUN, "format": 0}), "format 0, but this version reads 1; run the command again"),
        (json.dumps({**RUN, "format": True}), "format True, but this version reads 1; run the command again"),
        (json.dumps({**RUN, "format": None}), "format None, but"),
        (
            json.dumps({**RUN, "kind": "other"}),
            "unknown kind of run 'other'; this version knows reproduce, bench, demo",
        ),
        (json.dumps({**RUN, "kind": ["bench"]}), "unknown kind of run ['bench']"),
    ],
)
def test_damaged_and_unknown_runs(refused: Refused, folder: Path, text: str, message: str) -> None:
    (folder / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert message in refused("report", folder)


def test_nothing_finished_yet(refused: Refused, folder: Path) -> None:
    for path in (folder / "results").iterdir():
        path.unlink()
    message = "no finished results yet; let it go on with 'prismgp bench --out small', then try again"
    assert message in refused("report", folder)
    (folder / "results").rmdir()
    assert message in refused("report", folder)


def test_pages_that_are_not_installed(refused: Refused, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "bench", "prismgp.no_such_module:page")
    assert "no pages for runs of kind 'bench'; upgrade PrismGP" in refused("report", folder)
    monkeypatch.setitem(KINDS, "bench", "no_such_library:page")
    assert 'needs no_such_library, which is not installed: pip install "prismgp[all]"' in refused("report", folder)


def test_outputs_that_cannot_be(refused: Refused, folder: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused("report", folder, "-o", tmp_path / "absent" / "r.html")
    assert "is a folder" in refused("report", folder, "-o", tmp_path)
    assert "would replace an input" in refused("report", folder, "-o", folder / "run.json")
    assert "would replace an input" in refused("report", folder, "-o", folder / "results" / "a.json")


def test_a_missing_library_names_the_extra(refused: Refused, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.report._render.find_spec", lambda name: None if name == "matplotlib" else name)
    line = refused("report", folder)
    assert 'reports need matplotlib, which is not installed: pip install "prismgp[report]"' in line


def test_from_python(folder: Path) -> None:
    assert build(folder).title == "Run small"
    assert list(read_results(folder)) == ["a", "b"]


def test_every_registered_kind_names_a_module_and_a_function() -> None:
    assert set(KINDS) == {"reproduce", "bench", "demo"}
    assert all(place.count(":") == 1 for place in KINDS.values())
