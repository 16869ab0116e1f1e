"""The demo, as small as it can be and in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import demo
from experiments.jobs import Job, perform
from experiments.plan import Plan
from experiments.results import Study
from prismgp.exceptions import DataError


def carry_out_here(study: Study, jobs: list[Job], *_: Any, **__: Any) -> list[Job]:
    for job in jobs:
        study.put(job.key, perform(job.function, job.order))
    return []


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(demo, "carry_out", carry_out_here)
    monkeypatch.setattr(demo, "has_abalone", lambda: False)
    return demo.make_plan(frequencies=(4,), gas_rows=120, steps=25)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race", "short_local")
def test_demo(tmp_path: Path, tiny: Plan) -> None:
    folder = tmp_path / "demo"
    study = demo.begin(folder, "make demo", tiny, show=False)
    demo.write_outputs(study)
    assert study.about["kind"] == "demo"
    results = study.records
    assert set(results) == {
        f"{model}-{data}" for model in ("exact", "ssgp", "prism1") for data in ("diabetes", "gas")
    } | {"certificate", "picture"}
    text = demo.text_table(results)
    assert len(text.splitlines()) == 1 + 2 * 3
    assert "gas array (simulated)" in text
    assert (folder / "overview.png").read_bytes().startswith(b"\x89PNG")
    found = demo.page(study)
    assert found.title == "PrismGP demo"
    assert [section.title for section in found.sections][-1].startswith("Certificate")
    assert "a single model" in found.summary
    assert (folder / "report.html").stat().st_size > 10_000
    # Always anew: an older result is not kept.
    study.put("old", {})
    again = demo.begin(folder, "make demo", Plan("demo", [], {}), show=False)
    assert again.records == {}
    assert not (folder / "report.html").exists()


def test_demo_leaves_other_folders_alone(tmp_path: Path, tiny: Plan) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="holds other files"):
        demo.begin(tmp_path, "make demo", tiny, show=False)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_abalone_only_where_its_file_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISMGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path / "data"))
    assert not demo.has_abalone()
    (tmp_path / "data" / "abalone").mkdir(parents=True)
    (tmp_path / "data" / "abalone" / "abalone.data").write_text("")
    assert demo.has_abalone()
