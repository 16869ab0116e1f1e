"""The demo, as small as it can be and in this process."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from experiments.lab import Job, RunFolder, Store, demo, provenance
from experiments.report import build
from prismgp.exceptions import DataError


def carried_out_here(store: Store, jobs: list[Job], *_: Any, **__: Any) -> list[Job]:
    for job in jobs:
        module, _, name = job.function.partition(":")
        result = getattr(import_module(module), name)(json.loads(json.dumps(job.order)))
        store.put(job.key, {**provenance(), **job.order, "job_seconds": 0.1, **result})
    return []


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(demo, "carry_out", carried_out_here)
    monkeypatch.setattr(demo, "abalone_at_hand", lambda: False)
    return {"frequencies": (4,), "gas_rows": 120, "steps": 25, "show": False}


def test_demo(tmp_path: Path, tiny: dict[str, Any]) -> None:
    folder = tmp_path / "demo"
    done = demo.run(folder, **tiny)
    assert done.about["kind"] == "demo"
    results = done.results.all()
    assert set(results) == {
        f"{model}-{data}" for model in ("exact", "ssgp", "prism1") for data in ("diabetes", "gas")
    } | {
        "certificate",
        "picture",
    }
    text = demo.text_table(results)
    assert len(text.splitlines()) == 1 + 2 * 3
    assert "gas array (simulated)" in text
    assert (folder / "overview.png").read_bytes().startswith(b"\x89PNG")
    found = build(folder)
    assert found.title == "PrismGP demo"
    assert [section.title for section in found.sections][-1].startswith("Certificate")
    assert "a single model" in found.summary
    assert (folder / "report.html").stat().st_size > 10_000
    # Always anew: an older result is not kept.
    (folder / "results" / "old.json").write_text("{}")
    demo._clear(folder)
    assert not (folder / "run.json").exists()
    assert not (folder / "results").exists()


def test_demo_leaves_other_folders_alone(tmp_path: Path, tiny: dict[str, Any]) -> None:
    options: dict[str, Any] = {}
    RunFolder.open(tmp_path / "run", kind="bench", name="n", command="c", options=options)
    with pytest.raises(DataError, match="another kind"):
        demo.run(tmp_path / "run", **tiny)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(DataError, match="not empty"):
        demo.run(tmp_path / "mine", **tiny)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_abalone_only_where_it_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISMGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path / "data"))
    assert not demo.abalone_at_hand()
    (tmp_path / "data" / "abalone").mkdir(parents=True)
    (tmp_path / "data" / "abalone" / "abalone.data").write_text("")
    assert demo.abalone_at_hand()
