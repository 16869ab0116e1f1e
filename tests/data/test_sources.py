"""Subsamples: uniform, nested, and the same rows whatever the rows are in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from prismgp.data import ArraySource, MappedSource
from prismgp.data.sources import Selection

from .conftest import FORMS, as_source, table


def numbered(n: int) -> ArraySource:
    return ArraySource(np.arange(n, dtype=float)[:, None], np.zeros((n, 1)))


@pytest.mark.parametrize(("n", "sizes"), [(40, [3, 12]), (40, [40]), (300, [5, 20])])
def test_uniform(n: int, sizes: list[int]) -> None:
    """Every row is as likely, in the large sample and in the small one within it; without and with repetitions."""
    counts = np.zeros((len(sizes), n))
    for seed in range(2_000):
        samples = numbered(n).subsamples(sizes, np.random.default_rng(seed))
        inner: set[float] = set()
        for index, sample in enumerate(samples):
            rows = sample.x[:, 0]
            assert (np.diff(rows) > 0).all()  # in order, none twice
            assert inner <= set(rows)
            inner = set(rows)
            counts[index, rows.astype(int)] += 1
    for observed in counts:
        if observed.min() < 2_000:
            # Rows of a sample exclude each other, so this is less spread than the law of the test: it cannot fail more
            # often than it says.
            assert stats.chisquare(observed).pvalue > 1e-3
    assert counts[-1].sum() >= 0.9 * 2_000 * sizes[-1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [[10, 30], [20, 250]])
def test_the_same_rows(form: str, sizes: list[int], tmp_path: Path) -> None:
    frame = table()
    array = ArraySource(frame[["a", "b", "c"]].to_numpy(), frame[["y"]].to_numpy())
    source = as_source(form, frame, tmp_path)
    for expected, found in zip(
        array.subsamples(sizes, np.random.default_rng(1)),
        source.subsamples(sizes, np.random.default_rng(1)),
        strict=True,
    ):
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)


def test_selections(tmp_path: Path) -> None:
    frame = table()
    labels = np.random.default_rng(0).integers(0, 3, len(frame))
    whole = frame.to_numpy()
    source = as_source("parquet parts", frame, tmp_path)
    kept = source.load()
    for each in (source, kept):
        for cluster, part in enumerate(each.with_labels(labels).split(labels, 4)):
            rows = whole[labels == cluster]
            assert part.n_rows == len(rows)
            assert part.n_whole == len(frame)
            for size in (7, 64, 1000):
                blocks = list(part.blocks(size))
                assert all(len(x) == size for x, _ in blocks[:-1])
                found = np.concatenate([np.hstack(block) for block in blocks]) if len(rows) else np.empty((0, 4))
                np.testing.assert_array_equal(found, rows)
        inner = Selection(Selection(each, np.arange(0, 300, 2)), np.arange(0, 150, 3))
        np.testing.assert_array_equal(inner.load().y[:, 0], frame["y"][::6])
        np.testing.assert_array_equal(np.concatenate([y for _, y in inner.blocks(9)])[:, 0], frame["y"][::6])
        assert inner.moments[1].mean == pytest.approx(frame["y"][::6].mean())


def test_labels_stay_with_their_rows() -> None:
    source = numbered(50).with_labels(np.arange(50))
    for sample in source.subsamples([5, 20], np.random.default_rng(0)):
        np.testing.assert_array_equal(sample.labels, sample.x[:, 0])
    assert source.take(np.array([], dtype=int)).n_rows == 0


def test_mapped() -> None:
    mapped = MappedSource(numbered(10), lambda x: np.hstack([x, 2 * x]), 2)
    assert mapped.load().x[-1].tolist() == [9, 18]
    assert [x.shape for x, _ in mapped.blocks(4)] == [(4, 2), (4, 2), (2, 2)]


def test_nothing_is_read_beyond_the_last_row(tmp_path: Path) -> None:
    frame = table()
    source = as_source("csv parts", frame, tmp_path)
    (tmp_path / "table-csv/part-5.csv").unlink()  # the last of them
    blocks = source.blocks(10)
    assert len(next(blocks)[0]) == 10
    selection = Selection(source, np.arange(15))
    assert sum(len(x) for x, _ in selection.blocks(10)) == 15
