"""Rows kept in a temporary file: the same rows, in any blocks, from any thread; and a disk that is full."""

from __future__ import annotations

import errno
import gc
import io
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prismgp import PrismGPRegressor
from prismgp.data import ArraySource, MappedSource, SpilledSource
from prismgp.exceptions import PrismGPWarning

ROWS = 1_000


def rows(q: int = 2) -> ArraySource:
    rng = np.random.default_rng(0)
    return ArraySource(rng.standard_normal((ROWS, 3)).astype(np.float32), rng.standard_normal((ROWS, q)))


@pytest.mark.parametrize("size", [1, 7, 500, ROWS, 5 * ROWS])
def test_the_same_rows_in_any_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismgp.data._spilled.MOMENT_ROWS", 64)
    expected = rows()
    found = list(SpilledSource(expected).blocks(size))
    assert {len(x) for x, _ in found[:-1]} <= {size}
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), expected.x)
    np.testing.assert_array_equal(np.concatenate([y for _, y in found]), expected.y)


def test_every_row_is_made_once() -> None:
    made = []

    def double(x: Any) -> Any:
        made.append(len(x))
        return 2.0 * x

    source = SpilledSource(MappedSource(rows(), double, 3))
    for _ in range(3):
        np.testing.assert_array_equal(source.take(np.arange(10, 20)).x, 2.0 * rows().x[10:20])
    assert sum(made) == ROWS
    assert (source.n_rows, source.n_inputs, source.n_outputs, source.in_memory) == (ROWS, 3, 2, False)
    assert source.moments[0].count == ROWS


def test_passes_at_the_same_time() -> None:
    source, expected, wrong = SpilledSource(rows()), rows(), []

    def read() -> None:
        for _ in range(20):
            found = np.concatenate([x for x, _ in source.blocks(17)])
            if not np.array_equal(found, expected.x):
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = SpilledSource(rows())
    file = source._kept.file
    del source
    gc.collect()
    assert file.closed
    assert not list(tmp_path.iterdir())


def test_a_copy_keeps_the_file() -> None:
    copied = SpilledSource(rows()).labelled(np.zeros(ROWS, dtype=np.int64))
    gc.collect()
    np.testing.assert_array_equal(np.concatenate([x for x, _ in copied.blocks(100)]), rows().x)


def test_rows_that_cannot_be_read_are_not_blamed_on_the_disk() -> None:
    def broken(_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        SpilledSource(MappedSource(rows(), broken, 3))


def test_a_full_disk_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows(1)
    x, y = source.x, source.y[:, 0]
    options = {"recipe": "paper", "n_components": 2, "max_steps": 10, "max_iter": 4, "random_state": 0}
    for name in ("_recipes", "_reconfigurer"):
        monkeypatch.setattr(f"prismgp.estimators.{name}.TRAINING_ROWS", 100)
    monkeypatch.setattr("prismgp.data._source._KEPT_BYTES", 0)
    kept = PrismGPRegressor(4, **options).fit(x, y)

    class Full(io.RawIOBase):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.warns(PrismGPWarning, match="No space left on device.*TMPDIR"):
        made_anew = PrismGPRegressor(4, **options).fit(x, y)
    assert made_anew.log_evidence_ == pytest.approx(kept.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(made_anew.predict(x), kept.predict(x), rtol=1e-6, atol=1e-8)
