"""The command line that all studies share: tables, pages, plans, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.__main__ import EXPERIMENTS, PUBLISHED_FIGURES, PUBLISHED_TABLES, TABLES, published_tables
from experiments.plan import parse_numbers, parse_splits
from experiments.results import RESULTS, Study
from tests.commands import Run

Refused = Callable[..., str]
published = pytest.mark.skipif(not RESULTS.is_dir(), reason="results are in the repository, not in archives")
STUDIES = sorted(path.stem for path in RESULTS.glob("*.jsonl"))


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_plan_can_be_listed_without_data(run: Run, kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path))
    name = ["abalone"] if kind == "reproduce" else []
    found = run(kind, *name, "--list")
    assert found.code == 0, found.err
    assert found.out.splitlines()[-1].endswith(".jsonl")
    assert "to do" in found.out
    assert list(tmp_path.iterdir()) == []


@published
class TestPublished:
    """What is in git, and what README and documentation show."""

    def test_size(self) -> None:
        files = [*RESULTS.glob("*.jsonl"), *RESULTS.glob("*.png"), RESULTS / TABLES]
        assert len(files) <= 40
        assert sum(path.stat().st_size for path in files) <= 3_000_000

    def test_tables_are_those_of_the_stored_results(self) -> None:
        page = (RESULTS / TABLES).read_text(encoding="utf-8")
        assert page == published_tables(RESULTS)
        assert [name for name in PUBLISHED_TABLES if f"<!-- end of {name} -->" not in page] == []

    @pytest.mark.parametrize("name", sorted({*STUDIES} - {*PUBLISHED_TABLES}))
    def test_the_other_tables_can_be_made(self, name: str) -> None:
        study = Study.read(RESULTS, name)
        assert EXPERIMENTS[study.about["kind"]].markdown(study).startswith("# ")

    def test_figures_that_are_shown_exist(self) -> None:
        assert all((RESULTS / name).is_file() for name in PUBLISHED_FIGURES)

    def test_every_record_says_what_it_was_made_with(self) -> None:
        for name in STUDIES:
            for key, record in Study.read(RESULTS, name).records.items():
                if "failed" not in record:
                    assert {"commit", "machine", "versions"} <= set(record), (name, key)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the two smallest studies, one of them with a figure."""
    place = tmp_path / "runs"
    place.mkdir()
    for name in ("tightness", "variants", "gas4m-simulated"):
        shutil.copy(RESULTS / f"{name}.jsonl", place)
    return place


def test_compacting_leaves_out_what_was_replaced(run: Run, tmp_path: Path) -> None:
    study = Study(tmp_path, "mine")
    for value in range(5):
        study.put("a", {"value": value, "text": "x" * 400})
    found = run("compact", "--results", tmp_path)
    assert (found.code, found.err) == (0, "")
    assert found.out == f"{study.path}: 1.7 KiB saved\n"
    assert Study(tmp_path, "mine").records == study.records


@pytest.mark.slow
@published
def test_tables_and_figures(run: Run, folder: Path) -> None:
    found = run("tables", "tightness", "variants", "--results", folder)
    assert found.code == 0, found.err
    assert found.out.count("wrote ") == 3
    made = {path.name for path in folder.iterdir() if path.suffix != ".jsonl"}
    assert made == {"tightness.md", "tightness.png", "variants.md"}


@published
def test_the_page_of_tables_has_the_published_ones_one_level_down(run: Run, tmp_path: Path) -> None:
    for name in ("variants", "dask"):
        shutil.copy(RESULTS / f"{name}.jsonl", tmp_path)
    found = run("tables", "--results", tmp_path)
    assert (found.code, found.out) == (0, f"wrote {tmp_path / TABLES}\n"), found.err
    page = (tmp_path / TABLES).read_text(encoding="utf-8")
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        "# Tables",
        "## Variants of the joint recipe",
        "### Missing runs",
        "### Made with",
        "## Results made by older code",
    ]
    assert "| dask/prism |" in page.split(headings[-1])[1]


@published
@pytest.mark.slow
def test_page_of_a_study(run: Run, folder: Path) -> None:
    found = run("report", "gas4m-simulated", "--results", folder)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"wrote {folder / 'gas4m-simulated.html'}: The paper's experiment")
    assert "(simulated data)" in (folder / "gas4m-simulated.html").read_text(encoding="utf-8")


@published
def test_what_cannot_be_shown(refused: Refused, folder: Path, tmp_path: Path) -> None:
    assert "no such study; the folder has: gas4m-simulated, tightness" in refused("report", "x", "--results", folder)
    assert "this command knows reproduce, bench, not" in refused("report", "variants", "--results", folder)
    where = ["report", "gas4m-simulated", "--results", folder, "-o"]
    assert "does not exist" in refused(*where, tmp_path / "absent" / "r.html")
    assert "would replace the results" in refused(*where, folder / "gas4m-simulated.jsonl")
    (folder / "variants.jsonl").write_text("{\n")
    assert "line 1: is not a JSON object" in refused("tables", "variants", "--results", folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "invalid choice"),
        (["accuracy", "--datasets", "bike"], "--datasets: bike unknown; choose from abalone"),
        (["accuracy", "--models", "forest"], "--models: forest unknown"),
        (["accuracy", "--p", "x"], "'x': give whole numbers"),
        (["speed", "--parts", "warp"], "--parts: warp unknown; choose from ratio"),
        (["scale", "--models", "exact"], "--models: exact unknown"),
        (["tightness", "--jobs", "0"], "'0' is not a whole number of at least 1"),
        (["tightness", "--job-seconds", "nan"], "'nan' is not a number above 0"),
    ],
)
def test_bad_usage_ends_with_one_line(refused: Refused, words: list[str], message: str) -> None:
    assert message in refused(*words)


@pytest.mark.parametrize("kind", ["accuracy", "efficiency", "tightness", "flights", "active"])
def test_absent_data_are_named_with_the_remedy(refused: Refused, kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path / "absent"))
    assert "set PRISMGP_DATA" in refused(kind, "-q")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "expected"), [("2", [0, 1]), ("1-3", [1, 2, 3]), ("4,1", [1, 4])])
def test_splits(text: str, expected: list[int]) -> None:
    assert parse_splits(text) == expected


def test_numbers() -> None:
    assert parse_numbers("16,32") == [16, 32]
