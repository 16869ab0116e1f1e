"""The re-configured space: cells whose conditions hold, and tables of made-up results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.paper import spaces
from experiments.results import Study
from prismgp import check_conditions


def rows(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    x[0] = 40.0  # fits no cell
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=n)


def test_conditions_hold_at_the_scale_that_is_chosen() -> None:
    x, y = rows()
    z, labels, z_test = spaces.cut(x, x[1:20] + 0.01, 3)
    report = check_conditions(z, lengthscale=1.0, bound=1.0, labels=labels)
    assert report.box_factors is not None
    scale = report.box_factors[0] * (1 + 1e-9)
    assert check_conditions(z, lengthscale=scale, bound=1.0, labels=labels).holds
    assert not check_conditions(z, lengthscale=0.9 * scale, bound=1.0, labels=labels).holds
    assert set(z_test[:, -1]) <= set(z[:, -1])  # test rows are in cells of training rows
    model = spaces.fit_by_evidence(z, y, labels, scale, 0)
    assert np.isfinite(model.predict(z_test)).all()
    assert float(np.sqrt(np.mean((model.predict(z) - y) ** 2))) < float(np.std(y))


def test_rows_within_a_cell_keep_their_distances() -> None:
    x, _ = rows()
    x = np.concatenate([x[1:], [[9.0, 9.0]]])  # far from the centre of its cell, but not a cell for K-means
    z, labels, _ = spaces.cut(x, x[:5], 2)
    for label in np.unique(labels):
        inside = labels == label
        np.testing.assert_allclose(np.diff(z[inside][:, :2], axis=0), np.diff(x[inside], axis=0), atol=1e-12)
        assert len(np.unique(z[inside][:, 2])) == 1
    assert (np.bincount(labels) == 1).any()


def made_up(study: Study) -> None:
    row = {"lengthscale": 9.0, "holds": True, "p": 4, "rmse": 0.7, "noise_ratio": 1e-4}
    for cells in spaces.CELLS:
        points = [{**row, "factor": factor, "holds": factor == 1.0} for factor in spaces.FACTORS]
        points[0] |= {"rmse_at_p": 0.72, "kernel_error": 0.8}
        found: dict[str, Any] = {"kind": "trade", "cells": cells, "run": 0, "rows": points, "ssgp_rmse": 0.65}
        study.put(f"trade-{cells}-run0", found)
    study.put("space-0", {"kind": "space", "sample": 0, "silhouettes": {"inputs": 0.2, "latent, 4 columns": 0.5}})
    for run in (0, 1):
        study.put(f"output-run{run}", {"kind": "output", "run": run, "rmse": {"latent": 0.8, "reconstruction": 0.7}})


def test_tables_and_figure_of_made_up_results(tmp_path: Any) -> None:
    study = Study(tmp_path, "spaces")
    study.begin(kind="spaces", options={}, command="c", planned=[], skipped={})
    made_up(study)
    text = spaces.markdown(study)
    assert "| S1 | 0.200 | 0.500 |" in text
    assert "reconstruction minus latent -0.1000 ± 0.0000" in text
    assert "| 8 | 1 | 1 x 9 | yes | 4 | 0.7000 | 0.7200 | 0.8 | 0.6500 | 0.0001 |" in text
    (figure,) = spaces.figures(study).values()
    assert len(figure().axes) == 2


def test_plan(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["spaces", "--list", "--results", str(tmp_path)]) == 0
    assert "23 jobs, 23 to do" in capsys.readouterr().out


def test_space_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "CLUSTERS", 3)
    found = spaces.measure_space({"rows": 120, "sample": 0, "steps": 3})["silhouettes"]
    assert set(found) == {"inputs", "latent, 4 columns", "latent, 2 columns", "reconstruction"}
    assert all(-1.0 <= value <= 1.0 for value in found.values())
