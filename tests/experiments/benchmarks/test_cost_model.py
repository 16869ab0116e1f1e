"""The cost model of a cluster: constants from times, times from constants."""

from __future__ import annotations

import pytest

from experiments.benchmarks import cost_model
from experiments.benchmarks.cost_model import PASSES, TINY_SHARDS, Model, check, count_tasks, tables

FIXED, ROW = ({name: base * (k + 1) for k, name in enumerate(PASSES)} for base in (0.02, 1e-6))
TRUE = Model(0.004, 1.8, FIXED, ROW, 2e-6, 3e-9, 1e-8, 0.15)


def make_run(workers, rows, shards):
    """Times that follow the model."""
    run = {"workers": workers, "rows": rows, "shards": shards, "collected_bytes": 300 * rows, "coordinates": 59}
    empty = TRUE.task * count_tasks(TINY_SHARDS, merged=False)
    seconds = TRUE.predict(run) | {"count_tasks": empty, "step_in_memory": 0.14}
    return run | {"seconds": seconds, "worker_peak_bytes": 7e8, "evaluations": 5, "parameters": 40_000}


@pytest.fixture
def result():
    runs = [*(make_run(workers, 100_000, 8) for workers in (1, 2, 4)), make_run(1, 25_000, 8)]
    return {"runs": runs, "check": make_run(3, 250_000, 12)}


def test_tasks_of_a_pass():
    assert count_tasks(1, merged=False) == count_tasks(1, merged=True) == 2
    assert count_tasks(64, merged=True) == 1 + 64 + 8 + 1
    assert count_tasks(65, merged=True) == 1 + 65 + 9 + 2 + 1


def test_constants_are_found_again(result):
    found = Model.fit(result["runs"])
    # Speed-ups are those of whole phases, in which what is fixed hides a little.
    assert found.cores == pytest.approx(TRUE.cores, rel=0.2)
    for name in ("fixed", "row"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.2)
    for name in ("task", "byte", "step"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name))
    for name in ("search_row", "pair"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.2)
    for _, predicted, measured in check(result):
        assert predicted == pytest.approx(measured, rel=0.05)


def test_a_slower_check_is_reported(result):
    result["check"]["seconds"]["collect"] *= 2
    found = {name: (predicted, measured) for name, predicted, measured in check(result)}
    predicted, measured = found["collect"]
    assert measured == pytest.approx(2 * predicted)
    assert found["all"][1] == pytest.approx(found["all"][0] + predicted, rel=0.05)
    assert "| -50% |" in tables(result)


def test_a_billion_rows(result):
    """Work is divided by the workers; what the scheduler, the driver and its network do is not."""
    fit, prediction = cost_model.list_phases(TRUE, result)
    moments = fit[0]
    passes = TRUE.row["moments"] * 1e9 + 204e9 / cost_model.STORAGE
    serial = TRUE.task * count_tasks(954, merged=False) + moments.driver_bytes / cost_model.NETWORK
    for workers in (10, 1_000):
        assert moments.seconds(workers) == pytest.approx(passes / workers + serial)
    networks = next(phase for phase in fit if phase.name.startswith("networks"))
    assert networks.seconds(10) == networks.seconds(1_000) == pytest.approx(3_000 * TRUE.step)  # batches come meanwhile
    assert prediction[1].core_seconds == pytest.approx(TRUE.pair * 1e9 * cost_model.LOCAL_ROWS)
    text = tables(result)
    assert "**the fit**" in text
    assert "SSGP: 5 evaluations on all rows" in text
