"""The regressors inside MAPIE: the example runs, and scaled scores give the intervals of a computation by hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from prismgp import SSGPRegressor
from tests.tolerances import PREDICTION

pytest.importorskip("mapie", reason="MAPIE is not installed")

PATH = Path(__file__).resolve().parents[2] / "examples" / "conformal_mapie.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformal_mapie", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scaled_scores(example: ModuleType) -> None:
    rng = np.random.default_rng(0)
    model = SSGPRegressor(8, max_iter=10, random_state=0).fit(*example.simulate(200, rng))
    x, y = example.simulate(99, rng)
    new, _ = example.simulate(50, rng)
    score = example.ResidualNormalisedScore(example.StandardDeviation(model), prefit=True)
    wrapped = example.SplitConformalRegressor(model, confidence_level=0.9, conformity_score=score, prefit=True)
    points, ends = wrapped.conformalize(x, y).predict_interval(new)
    mean, std = model.predict(x, return_std=True)
    factor = np.sort(np.abs(y - mean) / std)[math.ceil(round(100 * 0.9, 9)) - 1]
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(points, mean, rtol=PREDICTION)
    expected = np.stack([mean - factor * std, mean + factor * std], axis=1)
    np.testing.assert_allclose(ends[:, :, 0], expected, rtol=PREDICTION, atol=PREDICTION)


@pytest.mark.slow
def test_example(example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["conformal_mapie.py", "--rows", "300", "--steps", "30"])
    example.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    found = {line[:14].strip(): float(line[14:].split()[0]) for line in lines}
    assert list(found) == ["of the model", "MAPIE", "MAPIE, scaled", "conformalize"]
    for name in list(found)[1:]:
        assert found[name] == pytest.approx(0.9, abs=0.04)
