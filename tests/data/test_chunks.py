"""Chunks of rows: reading ahead (order, errors, ends, memory), and a GPU whose memory runs out."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from prismgp import SSGPRegressor
from prismgp.core.statistics import SpectralStatistics, Statistics
from prismgp.data import ArraySource, Chunks, fit_standardiser, prefetch
from prismgp.exceptions import PrismGPWarning, TooLargeError


def readers() -> int:
    return sum(thread.name.startswith("prismgp-read-ahead") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = readers()
    yield
    assert readers() == before


@pytest.mark.parametrize("ahead", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_order(ahead: int, count: int) -> None:
    assert list(prefetch(iter(range(count)), ahead)) == list(range(count))


def test_it_reads_while_the_block_before_is_used() -> None:
    made: list[int] = []
    items = prefetch((made.append(index) or index for index in range(10)), 2)
    assert made == []  # nothing happens before it is asked for
    next(items)
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    assert made == [0, 1, 2, 3]  # in use, two that wait, one that cannot be put
    items.close()  # type: ignore[attr-defined]


def failing(after: int, error: BaseException) -> Iterator[int]:
    yield from range(after)
    raise error


@pytest.mark.parametrize("after", [0, 1, 5])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_errors_are_raised_where_the_items_are_used(after: int, error: BaseException) -> None:
    seen: list[int] = []
    with pytest.raises(type(error)) as caught:
        seen.extend(prefetch(failing(after, error)))
    assert caught.value is error
    assert seen == list(range(after))


class Closing:
    """An iterator that has to be closed, and may fail to."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.closed, self.trouble = 0, trouble
        self.items = iter(range(5))

    def __iter__(self) -> Closing:
        return self

    def __next__(self) -> int:
        return next(self.items)

    def close(self) -> None:
        self.closed += 1
        if self.trouble is not None:
            raise self.trouble


def test_the_iterator_is_closed() -> None:
    whole, part = Closing(), Closing()
    assert list(prefetch(whole)) == [0, 1, 2, 3, 4]
    for _ in prefetch(part, 1):
        break
    assert (whole.closed, part.closed) == (1, 1)


def test_an_iterator_that_cannot_be_closed_does_not_hang() -> None:
    seen: list[int] = []
    with pytest.raises(OSError, match="no close"):
        seen.extend(prefetch(Closing(OSError("no close"))))
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_consumer_stops(error: type[BaseException]) -> None:
    ended = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    def consume() -> None:
        for _ in prefetch(endless()):
            raise error

    with pytest.raises(error) as caught:
        consume()
    # The thread is gone although the traceback, with its frames, is still held.
    assert caught.tb is not None
    assert ended.is_set()
    assert readers() == 0


def test_memory() -> None:
    """At most two blocks more than those that wait are alive at any time."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Block:
        pass

    def blocks() -> Iterator[Block]:
        nonlocal most
        for _ in range(60):
            block = Block()
            alive.add(block)
            most = max(most, len(alive))
            yield block
            del block

    for index, _ in enumerate(prefetch(blocks(), 2)):
        most = max(most, len(alive))
        if index % 7 == 0:
            time.sleep(0.005)
    assert 2 <= most <= 4
    gc.collect()


def test_chunks_end_their_thread() -> None:
    class Far(ArraySource):
        in_memory = False

    rng = np.random.default_rng(0)
    source = Far(rng.standard_normal((100, 2)), rng.standard_normal((100, 1)))
    chunks = Chunks(
        source,
        fit_standardiser(source, normalize=True),
        rows=7,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    assert sum(len(x) for x, _ in chunks) == 100
    for _ in chunks:
        assert readers() == 1
        break
    assert readers() == 0


# -- a GPU whose memory runs out: chunks are halved, the pass begins again, the answer stays -------


class Greedy(SpectralStatistics):
    """Statistics that take more than there is for chunks of many rows."""

    room = 600

    def over(self, chunks: Iterable[tuple[torch.Tensor, torch.Tensor]], *, rows: int, q: int) -> Statistics:
        def watched() -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
            for number, (x, y) in enumerate(chunks):
                if number and len(x) > self.room:  # in the middle of a pass
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                yield x, y

        return super().over(watched(), rows=rows, q=q)


def chunks_of(rows: int) -> Chunks:
    rng = np.random.default_rng(0)
    source = ArraySource(rng.standard_normal((5_000, 3)), rng.standard_normal((5_000, 1)))
    standardiser = fit_standardiser(source, normalize=True)
    return Chunks(source, standardiser, rows=rows, dtype=torch.float64, device=torch.device("cpu"))


def test_chunks_are_halved_until_they_fit() -> None:
    w = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chunks = chunks_of(2_048)
    with pytest.warns(PrismGPWarning, match="out of memory") as said:
        found = chunks.reduce(Greedy(w))
    assert [str(each.message).split()[-2] for each in said] == ["1,024", "512"]
    assert chunks.rows == 512
    expected = chunks_of(2_048).reduce(SpectralStatistics(w))
    assert found.n == expected.n == 5_000
    torch.testing.assert_close(found.moments, expected.moments, rtol=1e-12, atol=1e-10)


def test_where_nothing_helps_the_error_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Greedy, "room", 10)
    with pytest.warns(PrismGPWarning, match="out of memory"), pytest.raises(TooLargeError, match="fewer frequencies"):
        chunks_of(1_024).reduce(Greedy(torch.ones(3, 4, dtype=torch.float64)))


def test_a_whole_fit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2_000, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(2_000)
    plain = SSGPRegressor(4, random_state=0, max_iter=5, chunk_size=1_000).fit(x, y)
    monkeypatch.setattr("prismgp.core.evidence.SpectralStatistics", Greedy)
    with pytest.warns(PrismGPWarning, match="out of memory"):
        short = SSGPRegressor(4, random_state=0, max_iter=5, chunk_size=1_000).fit(x, y)
    np.testing.assert_allclose(short.predict(x), plain.predict(x), rtol=1e-5, atol=1e-6)
