"""The example on neighbours runs, and shows what it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "examples" / "near_and_far.py"


@pytest.mark.slow
@pytest.mark.usefixtures("short_local")
def test_near_and_far(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("near_and_far", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["near_and_far.py", "--out", str(tmp_path), "--rows", "800", "--steps", "20"])
    module.main()
    lines = capsys.readouterr().out.splitlines()
    errors = {
        title: float(line.removeprefix(title).split()[0])
        for line in lines
        for title in ("The spectrum alone", "With neighbours")
        if line.startswith(title)
    }
    assert errors["With neighbours"] < 0.6 * errors["The spectrum alone"]
    assert (tmp_path / "near_and_far.png").stat().st_size > 50_000
