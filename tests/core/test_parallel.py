"""Computations side by side."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import numpy as np
import pytest
import torch

from prismgp.core.exact import ExactEvidence
from prismgp.core.kernels import bounds, default_start, get_kernel
from prismgp.core.optimise import Monitor, race, screen
from prismgp.core.parallel import Workers, use_one_thread
from prismgp.core.rows import Callback


@pytest.fixture
def threads():
    """Three of torch's, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_results_come_in_order(threads):
    with Workers() as workers:
        assert workers.map(lambda k: k * k, range(20)) == [k * k for k in range(20)]
        assert workers.map(lambda k: k, []) == []


def test_each_computes_on_one_thread(threads):
    barrier = threading.Barrier(threads)

    def look(_):
        barrier.wait(timeout=20)  # as many at a time as there are threads
        return threading.get_ident(), torch.get_num_threads()

    def ask():
        other.append(torch.get_num_threads())

    other = []
    with Workers() as workers:
        found = workers.map(look, range(threads))
        assert torch.get_num_threads() == 1
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        torch.set_num_threads(torch.get_num_threads())  # as a fit in another thread may do
        found += workers.map(look, range(threads))
    assert len({thread for thread, _ in found}) == threads
    assert {count for _, count in found} == {1}
    assert threading.get_ident() not in {thread for thread, _ in found}
    assert torch.get_num_threads() == threads
    assert other == [threads]


def test_a_pool_that_cannot_be_opened_leaves_nothing(threads, monkeypatch):
    """Neither threads that wait for others, which would never end, nor another number of them."""
    submit, calls = ThreadPoolExecutor.submit, []

    def fail(self, *args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return submit(self, *args)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", fail)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        Workers().__enter__()
    assert threading.active_count() == before
    assert torch.get_num_threads() == threads


def test_threads_have_the_switches_of_the_caller(threads):
    def look(_):
        return torch.is_grad_enabled(), np.geterr()["divide"]

    with Workers() as workers:
        with torch.no_grad(), np.errstate(divide="ignore"):
            assert set(workers.map(look, range(4))) == {(False, "ignore")}
        with np.errstate(divide="raise"):
            assert set(workers.map(look, range(4))) == {(True, "raise")}
        client = ContextVar("client", default="none")
        client.set("of the caller")
        assert set(workers.map(lambda _: client.get(), range(4))) == {"of the caller"}


def test_an_error_ends_all_before_it_is_raised(threads):
    running, ended = threading.Event(), []

    def work(k):
        if k == 0:
            running.wait(timeout=20)
            raise ValueError("first")
        running.set()
        threading.Event().wait(0.05)
        ended.append(k)

    with Workers() as workers:
        with pytest.raises(ValueError, match="first"):
            workers.map(work, range(2))
        assert ended == [1]
        assert workers.map(lambda k: k, range(3)) == [0, 1, 2]  # and they can go on
    assert torch.get_num_threads() == threads


def test_the_caller_does_the_work_of_workers_that_were_not_opened(threads):
    here = threading.get_ident()
    assert Workers().map(lambda _: threading.get_ident(), range(3)) == [here] * 3
    torch.set_num_threads(1)
    with Workers() as workers:
        assert workers.map(lambda _: threading.get_ident(), range(3)) == [here] * 3


def test_the_caller_computes_a_single_item(threads):
    with Workers() as workers:
        assert workers.map(lambda _: threading.get_ident(), range(1)) == [threading.get_ident()]


def test_one_thread_for_the_caller_alone(threads):
    def ask():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.get_num_threads).result()

    with use_one_thread():
        assert torch.get_num_threads() == 1
        assert ask() == threads
        with use_one_thread():
            assert torch.get_num_threads() == 1
            assert ask() == threads
        assert ask() == threads
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("small", [True, False])
def test_threads_of_an_optimisation(threads, small):
    """An objective that is small is evaluated on one thread; afterwards there are as many as before."""
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(30, 2)))
    objective, seen = ExactEvidence(x, x[:, :1].clone(), get_kernel("rbf")), []

    class Watched:
        n_rows, work = objective.n_rows, objective.work

        def value(self, params):
            seen.append(torch.get_num_threads())
            return objective.value(params)

        def value_and_gradient(self, params):
            seen.append(torch.get_num_threads())
            return objective.value_and_gradient(params)

    Watched.small = small
    start = default_start(2, 1)
    monitor = Monitor(Callback(), lambda _, params: params)
    screen([(Watched(), start)], monitor=monitor)
    race([(Watched(), start)], bounds(start, dtype="float64"), rounds=(3,), monitor=monitor)
    assert len(seen) > 3
    assert set(seen) == {1 if small else threads}
    assert torch.get_num_threads() == threads


def test_what_is_small():
    x = torch.zeros(800, 2, dtype=torch.float64)
    assert ExactEvidence(x[:700], x[:700, :1], get_kernel("rbf")).small
    assert not ExactEvidence(x, x[:, :1], get_kernel("rbf")).small
