"""The examples on printed statements and on certificates run, and show what they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_printed_statements(capsys: pytest.CaptureFixture[str]) -> None:
    load("printed_statements").main()
    text = capsys.readouterr().out
    assert text.count(", printed: ") == 27
    # The page quotes what the script says.
    assert text in (FOLDER.parent / "docs" / "what-is-proved.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["certificate.py", "--out", str(tmp_path), "--rows", "150", "--frequencies", "8"])
    load("certificate").main()
    text = capsys.readouterr().out
    assert text.count("$ prismgp certify") == 2
    assert text.count("\nCertified ") == 2
    for name, rows in (("curve", 400), ("sensor", 30)):
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found["holds"]
        assert len(found["mean"]["lower"]) == rows
        assert (tmp_path / f"certificate_{name}.png").stat().st_size > 20_000
