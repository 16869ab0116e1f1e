"""The training loop: steps, checks, patience, interrupts and checkpoints; and the rows it draws."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from prismgp.core.rows import Ending
from prismgp.exceptions import NumericalError
from prismgp.vae import TrainingState, TrainingTask, draw_rows, run_training
from tests.vae.small import MemoryStore


class Counter(TrainingTask):
    """Adds random numbers, and returns values from a list at its checks."""

    criterion = "value"
    held_out = np.arange(3)

    def __init__(self, values=(), *, check_every=2, check_start=False, stop=None):
        self.values, self.stop = list(values), stop
        self.check_every, self.check_start = check_every, check_start
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.draws, self.generator = np.random.default_rng(0), torch.Generator().manual_seed(0)

    def step(self, number):
        if number == self.stop:
            raise KeyboardInterrupt
        draw = float(self.draws.normal()) + float(torch.randn((), generator=self.generator))
        self.optimiser.zero_grad()
        (draw * self.model.weight).sum().backward()
        self.optimiser.step()

    def check(self):
        place = math.ceil(self.steps / self.check_every) - (not self.check_start)
        value = self.values[place] if place < len(self.values) else self.model.weight.item()
        return value, {"weight": self.model.weight.item(), "sizes": [1, 2]}

    def state(self):
        return TrainingState(
            {"model": self.model}, self.optimiser, {"draws": self.draws}, {"generator": self.generator}
        )


def run(task, *, max_steps=7, patience=None, **callbacks):
    task.max_steps, task.patience = max_steps, patience
    (result,) = run_training(task, **callbacks)
    return result


def test_checks_and_history():
    """Every few steps and after the last; the history has a list for each column."""
    found = run(Counter([-3.0, -1.0, -2.0, -4.0]))
    assert found.message == "all 7 steps taken"
    assert found.history["step"] == [2, 4, 6, 7]
    assert found.history["sizes"] == [[1, 2]] * 4
    assert (found.score, found.best_step, found.steps) == (-1.0, 4, 7)
    assert found.held_out_rows == 3
    assert found.best.weight.item() == found.history["weight"][1]
    assert found.history["seconds"] == sorted(found.history["seconds"])
    json.dumps(found.summary(), allow_nan=False)


def test_the_start_counts():
    found = run(Counter([3.0, 1.0, 2.0, 4.0, 0.0], check_start=True))
    assert found.history["step"] == [0, 2, 4, 6, 7]
    assert (found.score, found.best_step) == (4.0, 6)
    found = run(Counter([5.0, 1.0, 2.0, 4.0, 0.0], check_start=True))
    assert (found.score, found.best_step, found.best.weight.item()) == (5.0, 0, 0.0)


def test_patience():
    found = run(Counter([-1.0, -0.5, -0.5, -0.7]), patience=3, max_steps=50)
    assert (found.steps, found.best_step) == (7, 4)  # a check of equal value is no improvement
    assert found.message == "no better value for 3 steps"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_ends_the_training(value):
    found = run(Counter([1.0, value]))
    assert (found.steps, found.best_step, found.score) == (4, 2, 1.0)
    assert found.message == "the objective left the range of floating-point numbers at step 4"
    assert found.history["step"] == [2]


def test_a_factorisation_that_fails_ends_the_training():
    class Failing(Counter):
        def step(self, number):
            if number == 4:
                raise NumericalError("no factor")
            super().step(number)

    found = run(Failing([1.0]))
    assert (found.steps, found.best_step) == (3, 2)
    assert found.message == "the objective left the range of floating-point numbers after step 3"


def test_records_hold_finite_numbers_only():
    class Odd(Counter):
        def check(self):
            value, entries = super().check()
            return value, {**entries, "odd": math.nan if value == -1.0 else 0.0}

    found = run(Odd([-3.0, -1.0, -2.0, -4.0]))
    assert found.history["step"] == [2, 6, 7]
    assert found.best_step == 4


def test_callbacks():
    values, seen = [], []
    run(
        Counter([-3.0, -1.0, -2.0, -4.0]),
        monitor=values.append,
        observe=lambda results: seen.extend((each.steps, each.best_step, each.score) for each in results),
    )
    assert values == [[], [-3.0], [], [-1.0], [], [-2.0], [-4.0]]
    assert seen == [(2, 2, -3.0), (4, 4, -1.0), (6, 4, -1.0), (7, 4, -1.0)]


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_interrupts_keep_the_best_network(stop):
    with pytest.raises(KeyboardInterrupt):
        run(Counter([-3.0, -1.0, -2.0, -4.0], stop=stop))
    ending = Ending(keep=True)
    found = run(Counter([-3.0, -1.0, -2.0, -4.0], stop=stop), ending=ending)
    assert found.early
    assert ending.interrupted
    assert found.message == (
        "interrupted before the first step" if stop == 1 else f"interrupted after {stop - 1} steps"
    )
    assert found.steps == stop - 1
    assert (found.best is None) == (stop < 3)
    assert len(found.records) == (stop - 1) // 2
    assert found.best_step == (4 if stop == 5 else 0)


@pytest.mark.parametrize("stop", [0, 1, 2, 5])
def test_a_time_limit_checks_once_more(stop):
    """The limit is reached after so many steps; a step that no check has seen is checked."""
    ending, steps = Ending(1e9), []

    def expire(_):
        steps.append(1)
        if len(steps) == stop:
            ending.reserve(2e9)

    if not stop:
        ending.reserve(2e9)
    found = run(Counter([-3.0, -2.0, -1.0]), monitor=expire, ending=ending)
    assert found.early
    assert ending.timed_out
    assert not ending.interrupted
    assert found.message == "stopped by the time limit " + (f"after {stop} steps" if stop else "before the first step")
    assert [record["step"] for record in found.records] == {0: [], 1: [1], 2: [2], 5: [2, 4, 5]}[stop]
    assert found.best_step == stop


@pytest.mark.parametrize("place", ["monitor", "observe"])
def test_interrupts_in_callbacks_count(place):
    def interrupt(seen):
        if seen:
            raise KeyboardInterrupt

    found = run(Counter([3.0]), **{place: interrupt}, ending=Ending(keep=True))
    assert found.early
    assert (found.steps, found.best_step) == (2, 2)


@pytest.mark.parametrize("stop", [3, 4, 5, 6, 7])
def test_checkpoints_continue_bit_for_bit(stop):
    """Weights, moments of the optimiser and random numbers are all restored."""
    store = MemoryStore()
    whole = run(Counter([-3.0, -1.0]))
    with pytest.raises(KeyboardInterrupt):
        run(Counter([-3.0, -1.0], stop=stop), checkpoint=store)
    task = Counter([-3.0, -1.0])
    found = run(task, checkpoint=store)
    assert [{**record, "seconds": 0} for record in found.records] == [
        {**record, "seconds": 0} for record in whole.records
    ]
    assert (found.message, found.score, found.best_step) == (whole.message, whole.score, whole.best_step)
    assert torch.equal(found.best.weight, whole.best.weight)
    assert found.history["seconds"] == sorted(found.history["seconds"])
    assert store.urgent[-1]  # the last state is stored at once
    assert not any(store.urgent[:-1])


def test_a_finished_training_is_restored():
    store = MemoryStore()
    first = run(Counter(), checkpoint=store)
    second = run(Counter(stop=1), checkpoint=store)
    assert not second.early
    assert second.message == "all 7 steps taken"
    assert second.records == first.records
    assert torch.equal(second.best.weight, first.best.weight)


def test_rows_are_drawn_beside_those_held_out():
    held_out = np.array([0, 3, 4, 9])
    rng = np.random.default_rng(0)
    drawn = np.array([draw_rows(10, held_out, 3, rng) for _ in range(2_000)])
    assert set(drawn.ravel()) == {1, 2, 5, 6, 7, 8}
    assert all(len(set(rows)) == 3 for rows in drawn)
    counts = np.bincount(drawn.ravel(), minlength=10)[[1, 2, 5, 6, 7, 8]]
    assert np.abs(counts - 1_000).max() < 5 * np.sqrt(1_000 * 0.5)
    assert sorted(draw_rows(10, held_out, 100, rng)) == [1, 2, 5, 6, 7, 8]


def test_an_error_of_a_callback_is_its_own():
    def fail(_):
        raise NumericalError("of the callback")

    with pytest.raises(NumericalError, match="of the callback"):
        run(Counter([1.0]), observe=fail)
