"""When fits end early: the clock, interrupts, and what the optimiser makes of them."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from prismgp.core import rows as module
from prismgp.core.exact import ExactEvidence
from prismgp.core.kernels import KERNELS, bounds, default_start
from prismgp.core.optimise import Monitor, maximise, race
from prismgp.core.rows import Callback, Ending, FitEndedError


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def test_a_limit_ends_what_would_take_too_long(clock):
    ending = Ending(10.0)
    assert ending.limited
    ending.check(9.0)
    clock.seconds += 5.0
    assert ending.left == 5.0
    assert ending.share == 0.5
    ending.check(4.0)
    with pytest.raises(FitEndedError):
        ending.check(6.0)
    assert ending.over
    assert ending.timed_out
    assert ending.early
    with pytest.raises(FitEndedError):  # from then on everything ends
        ending.check()


def test_without_a_limit_nothing_ends(clock):
    ending = Ending()
    clock.seconds += 1e9
    ending.check(1e9)
    ending.reserve(1e9)
    ending.shorten(0.1)
    assert not ending.limited
    assert not ending.part(0.1).limited
    assert ending.share == 0.0
    assert not ending.early


def test_parts_have_a_share_of_the_time_left(clock):
    whole = Ending(10.0)
    clock.seconds += 2.0
    part = whole.part(0.25)
    assert part.left == 2.0
    clock.seconds += 2.5
    with part.catch_end():
        part.check()
        pytest.fail("the time of the part is over")
    assert part.over
    assert not whole.over
    assert whole.timed_out  # the fit is not what it would have been
    whole.check()
    whole.reserve(5.0)
    assert whole.left == 0.5
    last = whole.part()
    last.shorten(0.5)
    assert last.left == 0.25


def test_interrupts_are_raised_or_end_everything():
    with pytest.raises(KeyboardInterrupt), Ending().catch_end():
        raise KeyboardInterrupt
    whole = Ending(keep=True)
    part = whole.part(0.5)
    with part.catch_end():
        raise KeyboardInterrupt
    assert whole.over
    assert whole.interrupted
    assert not whole.timed_out
    assert whole.reason == "interrupted"
    with pytest.raises(FitEndedError):
        whole.check()
    with pytest.raises(KeyboardInterrupt), whole.catch_end():  # the second one is meant
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="another"), whole.catch_end():
        raise ValueError("another error")


def test_what_is_needed_is_repeated_after_an_interrupt_that_is_kept():
    calls = []

    def compute():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return 7

    with pytest.raises(KeyboardInterrupt):
        Ending().compute_anyway(compute)
    calls.clear()
    ending = Ending(keep=True)
    assert ending.compute_anyway(compute) == 7
    assert ending.interrupted


class EndsAfter(Callback):
    """The time is over after so many evaluations."""

    def __init__(self, evaluations):
        super().__init__(Ending(1e9))
        self.left, self.values = evaluations, []

    def evaluate(self, rows, vector, compute):
        value, gradient = compute()
        self.values.append((value, vector.copy()))
        self.left -= 1
        if not self.left:
            self.ending.reserve(2e9)
        return value, gradient


def problem():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(30, 2)))
    y = torch.as_tensor(np.sin(2 * x[:, :1].numpy()) + 0.1 * rng.normal(size=(30, 1)))
    parts = [ExactEvidence(x[:n], y[:n], KERNELS["rbf"]) for n in (20, 30)]
    start = default_start(2, 1)
    return parts, start, bounds(start, dtype="float64")


@pytest.mark.parametrize("count", [1, 4, 11])
def test_the_optimiser_returns_the_best_evaluation(count):
    parts, start, boxes = problem()
    callback = EndsAfter(count)
    found, report = maximise(parts, start, boxes, max_iter=50, finish=False, monitor=Monitor(callback, print))
    assert len(callback.values) == count
    value, vector = max(callback.values, key=lambda each: each[0])
    np.testing.assert_array_equal(found.pack(), vector)
    assert report[-1]["log_evidence"] == pytest.approx(value)
    assert report[-1]["message"] == "stopped by the time limit"
    assert not report[-1]["converged"]
    assert len(report) == 1


def test_the_finish_ends_too():
    parts, start, boxes = problem()
    whole = EndsAfter(10**6)
    _, report = maximise(parts, start, boxes, max_iter=50, finish=True, monitor=Monitor(whole, print))
    first = report[0]["evaluations"]
    callback = EndsAfter(first + 1)
    _, report = maximise(parts, start, boxes, max_iter=50, finish=True, monitor=Monitor(callback, print))
    assert [each["method"] for each in report] == ["l-bfgs", "quasi-newton"]
    assert report[1]["message"] == "stopped by the time limit"
    assert report[1]["log_evidence"] == pytest.approx(callback.values[-1][0])


def test_a_race_is_won_by_the_best_so_far():
    parts, start, boxes = problem()
    runners = [(parts[1], start), (parts[1], start.unpack(start.pack() - 0.5)), (parts[1], start)]
    callback = EndsAfter(5)
    winner, found, report = race(runners, boxes, rounds=[4, 4], monitor=Monitor(callback, print))
    assert winner == 0
    assert len(report) == 1
    value, vector = max(callback.values, key=lambda each: each[0])
    np.testing.assert_array_equal(found.pack(), vector)
    assert report[0]["log_evidence"] == pytest.approx(value)


def test_a_race_without_time_keeps_the_start():
    parts, start, boxes = problem()
    callback = Callback(Ending(1e9))
    callback.ending.reserve(2e9)
    winner, found, report = race([(parts[1], start)], boxes, rounds=[4], monitor=Monitor(callback, print))
    assert winner == 0
    np.testing.assert_array_equal(found.pack(), start.pack())
    assert report[0]["log_evidence"] is None


def test_time_is_kept_for_the_last_pass(clock):
    """An evaluation takes three seconds; with six more for the last pass, one of the two does not fit into ten."""
    parts, start, boxes = problem()

    class Slow(Callback):
        def evaluate(self, rows, vector, compute):
            clock.seconds += 3.0
            return compute()

    for last, evaluations in ((0.0, 3), (2.0, 1)):
        slow = Slow(Ending(10.0))
        monitor = Monitor(slow, print, last * parts[1].work)
        monitor.record_time(parts[1], 3.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("prismgp.core.optimise.time", types.SimpleNamespace(perf_counter=lambda: clock.seconds))
            _, report = maximise(parts[1:], start, boxes, max_iter=50, finish=False, monitor=monitor)
        assert report[0]["evaluations"] == evaluations
