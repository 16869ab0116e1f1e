"""Which results are stale, and that nobody overlooks them."""

from __future__ import annotations

import re
import runpy

import pytest

from experiments import parts
from experiments.__main__ import EXPERIMENTS
from experiments.comparison.entries import ENTRIES
from experiments.jobs import Job, carry_out
from experiments.machine import ROOT
from experiments.parts import (
    Acknowledged,
    Group,
    Part,
    collect_stale,
    complaints,
    digest_of,
    is_stale,
    part_of,
    read_acknowledged,
    stale_table,
)
from experiments.results import Study

CODE = '''"""What it does."""

import math


def area(r: float) -> float:
    """Of a circle.

    Parameters
    ----------
    r : float
    """
    # A comment.
    return math.pi * r**2
'''


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a part that consists of one module with the given text."""
    monkeypatch.setattr(parts, "ROOT", tmp_path)

    def of(text: str, settings: str = "") -> str:
        (tmp_path / "module.py").write_text(text)
        parts._code_of.cache_clear()
        parts._digest.cache_clear()
        return Part("x", ("module.py",), settings).digest

    yield of
    parts._code_of.cache_clear()
    parts._digest.cache_clear()


def test_words_do_not_matter_and_code_does(digest):
    before = digest(CODE)
    assert digest(CODE.replace("Of a circle.", "The area of a circle.\n\n    More.")) == before
    assert digest(CODE.replace("    # A comment.\n", "\n    # Another one,\n    # longer.\n")) == before
    assert digest(CODE.replace("r**2", "r**3")) != before
    assert digest(CODE.replace("return", 'text = """A string."""\n    return')) != before
    assert digest(CODE, settings="p = 64") != before


def test_every_module_of_every_part_is_there():
    records = [("bench", {"entry": name}) for name in ENTRIES] + [("bench", {})]
    models = ("ssgp", "paper", "released", "prism1")
    records += [(kind, {"model": model}) for kind in EXPERIMENTS if kind != "bench" for model in models]
    for kind, record in records:
        part = part_of(kind, record)
        assert part is not None, kind
        for place in part.paths:
            assert (ROOT / place).exists(), place
        assert re.fullmatch("[0-9a-f]{12}", part.digest)


def test_what_a_result_depends_on():
    assert part_of("accuracy", {"model": "exact"}).name == "exact"
    assert "src/prismgp/prism" not in part_of("accuracy", {"model": "ssgp"}).paths
    assert "src/prismgp/prism" in part_of("accuracy", {"model": "prism"}).paths
    stages = part_of("reproduce", {"kind": "fit", "model": "released"})
    assert stages.name == "released"
    assert "src/prismgp/prism/released.py" in stages.paths
    assert not {"src/prismgp/prism", "src/prismgp/prism/joint.py", "src/prismgp/core/shape_fit.py"} & {*stages.paths}
    assert part_of("spaces", {"kind": "trade"}).name == "ssgp"
    assert "src/prismgp/certificates" in part_of("reproduce", {"kind": "certificate"}).paths
    trees, ours = (part_of("bench", {"entry": name}) for name in ("trees", "prism-32"))
    assert (trees.name, ours.name) == ("scikit-learn", "prism")
    assert not any(place.startswith("src/") for place in trees.paths)
    # Two entries with the same code differ in their settings.
    assert part_of("bench", {"entry": "ssgp-64"}).digest != part_of("bench", {"entry": "ssgp-256"}).digest
    assert part_of("bench", {"entry": "an entry of the past"}) is None


def test_a_result_is_stale_when_its_parts_have_changed():
    record = {"model": "ssgp", "parts": digest_of("accuracy", {"model": "ssgp"})}
    assert not is_stale("accuracy", record)
    assert is_stale("accuracy", {**record, "parts": "0" * 12})
    assert is_stale("accuracy", {"model": "ssgp"})  # it does not say
    assert is_stale("bench", {"entry": "an entry of the past", "parts": None})


@pytest.mark.usefixtures("jobs_here")
def test_the_runner_stores_the_digest_and_repeats_what_is_stale(tmp_path, jobs):
    study, todo = Study(tmp_path, "s"), [Job("a", f"{jobs}:double", {"x": 3})]
    carry_out(study, todo, digest=lambda _: "one", show=False)
    assert study.get("a")["parts"] == "one"
    carry_out(study, todo, stale=True, digest=lambda _: "one", show=False)
    carry_out(study, todo, digest=lambda _: "two", show=False)  # not asked to repeat
    assert len(study.path.read_text().splitlines()) == 1
    failing = [Job("a", f"{jobs}:fail", {"x": 3})]
    carry_out(study, failing, force=True, digest=lambda _: "one", show=False)
    assert study.get("a")["twice"] == 6  # a failure does not replace a result of the same code
    carry_out(study, failing, stale=True, digest=lambda _: "two", show=False)
    assert study.get("a")["parts"] == "two"  # but does replace one of other code
    assert "failed" in study.get("a")


# -- acknowledgements --------------------------------------------------------------------------------


def test_stale_groups_are_counted(tmp_path):
    study = Study(tmp_path, "mine")
    study.begin(kind="accuracy", options={}, command="c", planned=[], skipped={})
    fresh = {"model": "ssgp", "parts": digest_of("accuracy", {"model": "ssgp"}), "commit": "abc"}
    study.put("a", fresh)
    study.put("b", {**fresh, "parts": "0" * 12, "commit": "old"})
    study.put("c", {"model": "exact"})
    study.put("d", {"model": "exact", "parts": digest_of("accuracy", {"model": "exact"})})
    assert collect_stale(tmp_path) == [
        Group("mine/exact", 1, 2, ("not recorded",)),
        Group("mine/ssgp", 1, 2, ("old",)),
    ]


def test_only_what_is_not_acknowledged_is_complained_about(tmp_path):
    groups = [Group("bench/prism", 3, 9, ("abc",)), Group("bench/ssgp", 1, 9, ("abc", "def"))]
    path = tmp_path / "stale.toml"
    path.write_text('[[stale]]\ngroups = "bench/p*"\nreason = "to be measured"\n')
    known = read_acknowledged(path)
    assert known == [Acknowledged("bench/p*", "to be measured")]
    (line,) = complaints(groups, known)
    assert line.startswith("bench/ssgp: 1 of 9 results were made by code that has changed since (commits abc, def)")
    assert list(complaints(groups, [Acknowledged("bench/*", "because")])) == []
    (line,) = complaints(groups[:1], [Acknowledged("bench/*", "because"), Acknowledged("speed/*", "why")])
    assert line == "speed/*: acknowledged as stale, but no result of it is; remove the entry"
    table = stale_table(groups, known)
    assert "| bench/prism | 3 of 9 | to be measured |" in table
    assert "| bench/ssgp | 1 of 9 | **not acknowledged** |" in table
    assert stale_table([], []) == "All results were made by the present code.\n"


def test_the_tool_complains_until_results_are_acknowledged_and_shown(tmp_path, capsys):
    study = Study(tmp_path, "mine")
    study.begin(kind="accuracy", options={}, command="c", planned=[], skipped={})
    study.put("a", {"model": "ssgp", "commit": "old"})
    check = runpy.run_path(str(ROOT / "tools" / "check_results.py"))["main"]
    check.__globals__.update(RESULTS=tmp_path, ACKNOWLEDGED=tmp_path / "stale.toml")
    (tmp_path / "stale.toml").write_text("")
    assert check() == 1
    printed = capsys.readouterr().out
    assert "mine/ssgp: 1 of 1 results were made by code that has changed since" in printed
    assert "tables.md does not show which results are stale" in printed
    (tmp_path / "stale.toml").write_text('[[stale]]\ngroups = "mine/ssgp"\nreason = "to be measured"\n')
    assert check() == 1  # the documentation does not show it yet
    table = stale_table(collect_stale(tmp_path), read_acknowledged(tmp_path / "stale.toml"))
    (tmp_path / "tables.md").write_text(f"# Tables\n\n{table}")
    assert check() == 0
    assert "1 are stale, all of them acknowledged" in capsys.readouterr().out
    study.put("a", {"model": "ssgp", "parts": digest_of("accuracy", {"model": "ssgp"})})
    assert check() == 1  # the entry is no longer needed
    assert "remove the entry" in capsys.readouterr().out
