"""Measurements of speed, scale and tightness on few rows: they run, and what is compared is the same thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.benchmarks import flights, scale, speed, tightness
from experiments.results import Study
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.cli import main

MADE = {"machine": {"gpu": None, "cores": 2}, "device": "cpu"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((160, 3))
    y = 5.0 + 2.0 * np.sin(x[:, 0]) + 0.3 * rng.standard_normal(len(x))
    return x[:120], y[:120], x[120:], y[120:]


def test_the_dense_exact_gp_is_the_one_that_is_certified(rows):
    x, y, x_test, _ = rows
    model = SSGPRegressor(8, random_state=0, max_iter=20).fit(x, y)
    truth = tightness.Truth(model, x, y, x_test)
    names = ("lengthscale", "signal_variance", "noise_variance", "mean")
    exact = ExactGPRegressor(optimize=False, **{name: getattr(model, f"{name}_") for name in names}).fit(x, y)
    mean, std = exact.predict(x_test, return_std=True)
    np.testing.assert_allclose(truth.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(truth.std, std, rtol=1e-6)
    assert truth.log_evidence == pytest.approx(exact.log_evidence_, rel=1e-8)


def test_factorisation_by_blocks(monkeypatch):
    monkeypatch.setattr(tightness, "BLOCK", 7)
    a = torch.randn(30, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = a @ a.T + torch.eye(30)
    found = tightness.factorise(matrix.clone())
    torch.testing.assert_close(torch.tril(found), torch.linalg.cholesky(matrix))


@pytest.mark.parametrize("make", [speed.evidence, speed.bare])
def test_evaluations_run(make):
    assert speed.time_call(make(300, "float64", torch.device("cpu")), "cpu") > 0


def test_the_commands_that_are_timed_succeed(monkeypatch):
    def in_this_process(arguments: list[str]) -> float:
        assert arguments[:2] in (["-c", "import torch"], ["-m", "prismgp"])
        assert arguments[0] == "-c" or main(arguments[2:]) == 0
        return float(len(arguments))

    monkeypatch.setattr(speed, "processor_seconds", in_this_process)
    monkeypatch.setattr(speed, "REPEATS", 1)
    found = speed.start({"part": "start", "device": "cpu"})
    assert found == {"import torch": 2.0, "info": 4.0, "predict": 8.0}
    assert speed.describe({"part": "start", **found}) == "import torch 2.00 s, info 4.00 s, predict 8.00 s"


def test_processor_time_of_a_process():
    assert speed.processor_seconds(["-c", "pass"]) > 0.0


@pytest.mark.slow
def test_memory_of_a_fit():
    found = speed.memory({"rows": 500, "device": "cpu", "part": "memory"})
    assert found["peak_above_data_mb"] >= 0


@pytest.mark.slow
def test_scale_of_few_rows(tmp_path):
    path = str(tmp_path / "gas")
    order = {"model": "ssgp", "rows": 400, "fit_rows": 400, "steps": None, "device": "cpu", "dtype": "float64"}
    scale.write_rows({"rows": 400, "path": path})
    scale.write_rows({"rows": 400, "path": path})  # nothing to do
    result = {**MADE, **order, **scale.measure({**order, "path": path, "fit_path": path})}
    assert (result["fit"]["rows"], result["predict"]["rows"]) == (400, 400)
    assert result["predict"]["peak_bytes_in_all"] > 2**27
    study = Study(tmp_path, "scale")
    study.put(scale.key_of(order), result)
    assert scale.key_of(order) == "ssgp-400-cpu-float64"
    assert "| 2 cores, float64 | SSGP | 400 | 400 |" in scale.markdown(study)
    assert scale.describe(result).startswith("fit ")


def test_flights_of_few_rows(rows, tmp_path):
    few = tuple(each.astype(np.float32) for each in rows)
    result = {**MADE, "ssgp": [flights.ours(few, "cpu", "float32")], "svgp_epoch": None}
    assert result["ssgp"][0]["full_evaluations"] > 0
    study = Study(tmp_path, "flights")
    study.put("cpu", result)
    assert "| cpu | `SSGPRegressor`, p = 64 | 2 cores |" in flights.markdown(study)
