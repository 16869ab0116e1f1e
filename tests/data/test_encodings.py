"""Times, many categories, and what a fit learns of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from prismgp.data import ArraySource, TableEncoder, frame_encoder
from prismgp.data.encodings import LEVELS, TIME, EffectEncoding, mark_folds
from prismgp.data.moments import shrink_effects

DAY = 86_400


def fitted(table: pa.Table, y: Any = None) -> TableEncoder:
    encoder = frame_encoder(table)
    y = np.zeros(table.num_rows) if y is None else np.asarray(y)
    return encoder.learn(ArraySource(encoder.read(table).values, y.reshape(table.num_rows, -1)))


def encoded(encoder: TableEncoder, table: pa.Table) -> Any:
    return encoder.encode(encoder.read(table).values)


# -- times -------------------------------------------------------------------------------------------


def test_times_are_seconds_and_the_phases_that_the_span_covers_twice() -> None:
    start = dt.datetime(2021, 3, 1)
    hours = [start + dt.timedelta(hours=each) for each in range(0, 15 * 24, 5)]
    encoder = fitted(pa.table({"t": hours}))
    assert encoder.feature_names[1:] == [f"t {part} of the {p}" for p in ("week", "day") for part in ("sine", "cosine")]
    table = pa.table({"t": [start, dt.datetime(2021, 3, 8, 6), dt.datetime(2022, 3, 1, 18)]})
    values = encoded(encoder, table)
    np.testing.assert_array_equal(values[:, 0], [0, 7.25 * DAY, 365.75 * DAY])
    np.testing.assert_allclose(values[:, 3], [0, 1, -1], atol=1e-9)  # midnight, six, eighteen o'clock
    assert values[0, 1:3] == pytest.approx(
        [np.sin(2 * np.pi * 4 / 7), np.cos(2 * np.pi * 4 / 7)]
    )  # 1970 began on Thursday
    assert fitted(pa.table({"t": hours[:9]})).feature_names == ["t"]
    years = pa.table({"t": pa.array([0, 731], pa.date32())})
    assert [name for name in fitted(years).feature_names if "year" in name] == [
        "t sine of the year",
        "t cosine of the year",
    ]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([0, 86_400_000], pa.date64()),
        pa.array([0, 1], pa.date32()),
        pa.array([0, DAY], pa.timestamp("s")),
        pa.array([0, DAY * 10**9], pa.timestamp("ns")),
        pa.array([-3600, DAY - 3600], pa.timestamp("s", "Europe/Paris")),  # the local clock counts
        pa.array([0, DAY], pa.timestamp("s", "UTC")).dictionary_encode(),
        pa.array(["1970-01-01", " 1970-01-02"]),
        pa.array(["1970-01-01T00:00", "1970-01-02T00:00"]),
        pa.array(["1970-01-01 00:00:00.000000001", "1970-01-02 00:00:00"]),
        pa.array(["1970-01-01T00:00:00+01:00", "1970-01-02T00:00:00Z"]),
        pa.array(["1970-01-01T00:00:00.000000001-0330", "1970-01-02 00:00+05"]),
        pa.array(["1970-01-01", "1970-01-02T00:00Z"]),
    ],
    ids=str,
)
def test_all_kinds_of_times(cells: Any) -> None:
    table = pa.table({"t": cells})
    encoder = frame_encoder(table)
    assert [column.kind for column in encoder.columns] == [TIME]
    np.testing.assert_array_equal(encoder.read(table).values[:, 0], [0, DAY])


def test_units_do_not_matter_and_other_text_is_not_time() -> None:
    first = pa.table({"t": pa.array([0, 5, None, 9], pa.timestamp("s"))})
    second = pa.table({"t": first["t"].cast(pa.timestamp("us"))})
    np.testing.assert_array_equal(encoded(fitted(first), first), encoded(fitted(second), second))
    for texts in (["2020-01-01", "soon"], ["01/02/2020", "02/02/2020"], ["2020-01-01", "2020-01-01T00:00+25:00"]):
        assert frame_encoder(pa.table({"t": texts})).columns[0].kind == "category"
    lapse = pa.table({"t": pa.array([1500, None], pa.duration("ms")), "clock": pa.array([3600, 7200], pa.time32("s"))})
    np.testing.assert_array_equal(frame_encoder(lapse).read(lapse).values, [[1.5, 3600], [np.nan, 7200]])


# -- many categories ---------------------------------------------------------------------------------


def simulated(rng: np.random.Generator, levels: int = 60, n: int = 1500) -> tuple[pa.Table, Any, Any, Any]:
    """Levels of very different frequencies with normal effects, and noise."""
    effects = rng.standard_normal(levels)
    codes = rng.choice(levels, n, p=rng.dirichlet(np.full(levels, 0.5)))
    y = 5.0 + effects[codes] + 2.0 * rng.standard_normal(n)
    return pa.table({"k": [f"level {code}" for code in codes]}), y, codes, effects


def test_a_training_row_never_sees_its_own_target() -> None:
    table, y, _, _ = simulated(np.random.default_rng(0), n=300)
    encoder = frame_encoder(table)
    assert encoder.columns[0].kind == LEVELS
    values = encoder.read(table).values
    before = encoder.learn(ArraySource(values, y[:, None])).encode_training(values)
    for row in range(0, 300, 37):
        other = y.copy()
        other[row] += 1e3
        changed = encoder.learn(ArraySource(values, other[:, None])).encode_training(values)
        np.testing.assert_allclose(changed[row], before[row], atol=1e-9)  # of a change by a thousand
        assert np.abs(changed - before).max() > 1.0


def test_effects_are_out_of_fold() -> None:
    """Against effects computed for every fold from the rows outside of it."""
    table, y, codes, _ = simulated(np.random.default_rng(1))
    encoder = frame_encoder(table)
    values = encoder.read(table).values
    learned = encoder.learn(ArraySource(values, y[:, None]))
    fold = np.rint((values[:, 0] - np.floor(values[:, 0])) * 8)
    assert set(fold) == {1, 2, 3, 4, 5}
    for each in np.unique(fold):
        rest = fold != each
        counts = np.bincount(codes[rest], minlength=60).astype(float)
        sums = np.bincount(codes[rest], y[rest], 60)[:, None]
        expected = shrink_effects(counts, sums, np.array([y[rest] @ y[rest]]))[codes[~rest], 0]
        np.testing.assert_allclose(learned.encode_training(values)[~rest, 0], expected, atol=1e-9)
    share = np.bincount(codes)[codes] / len(codes)
    np.testing.assert_allclose(learned.encode_training(values)[:, 1], np.log(share))
    np.testing.assert_array_equal(learned.encode_training(values)[:, 1], learned.encode(values)[:, 1])


def test_shrunken_effects_beat_means_and_have_no_bias() -> None:
    """The error is nearly that of the Bayes rule with the true variances, and far less than that of the means."""
    shrunken = means = bayes = 0.0
    for seed in range(40):
        _, y, codes, effects = simulated(np.random.default_rng(seed))
        counts, sums = np.bincount(codes, minlength=60).astype(float), np.bincount(codes, y, 60)
        found = shrink_effects(counts, sums[:, None], np.array([y @ y]))[:, 0]
        there = counts > 0
        truth = effects - (counts @ effects) / counts.sum()
        plain = sums[there] / counts[there] - y.mean()
        shrunken += float(np.mean((found - truth)[there] ** 2))
        means += float(np.mean((plain - truth[there]) ** 2))
        bayes += float(np.mean((plain * counts[there] / (counts[there] + 4.0) - truth[there]) ** 2))
    assert shrunken < 0.6 * means
    assert shrunken < 1.08 * bayes


def weighted_sums(codes: Any, y: Any, w: Any) -> tuple[Any, Any, Any]:
    return np.bincount(codes, w, 60), np.bincount(codes, w * y, 60)[:, None], np.array([w @ y**2])


def test_weights_are_repeated_rows() -> None:
    """Sums of weighted rows are those of repeated rows; degrees of freedom are not, as copies say nothing new."""
    rng = np.random.default_rng(4)
    table, y, codes, _ = simulated(rng)
    w = rng.integers(1, 5, len(y)).astype(float)
    many = np.repeat(np.arange(len(y)), w.astype(int))
    repeated = weighted_sums(codes[many], y[many], np.ones(len(many)))
    np.testing.assert_allclose(shrink_effects(*weighted_sums(codes, y, w)), shrink_effects(*repeated), rtol=1e-9)
    expected = shrink_effects(*repeated, rows=len(y))
    encoder = frame_encoder(table)
    values = encoder.read(table).values
    for scale in (1.0, 1e-6, 1e6):  # what all weights have in common does not matter
        learned = encoder.learn(ArraySource(values, np.column_stack([y, scale * w]), n_noise=1))
        np.testing.assert_allclose(learned.encode(values)[:, 0], expected[codes, 0], rtol=1e-7)
        np.testing.assert_allclose(learned.encode(values)[:, 1], np.log(repeated[0][codes] / len(many)), rtol=1e-9)
        assert np.isfinite(learned.encode_training(values)).all()
        alone = np.bincount(codes)[codes] == 1  # the other folds have no row of the level
        assert (learned.encode_training(values)[alone, 0] == 0).all()
    assert np.abs(encoded(fitted(table, y), table)[:, 0] - expected[codes, 0]).max() > 0.1


def test_weighted_effects_are_those_of_rows_with_less_noise() -> None:
    """With noise of variance s² / w, the error is nearly that of the Bayes rule, and less than without the weights."""
    weighted = plain = bayes = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        _, y, codes, effects = simulated(rng)
        w = rng.choice([0.2, 5.0], len(y))
        y = 5.0 + effects[codes] + (y - 5.0 - effects[codes]) / np.sqrt(w)
        counts, sums, squares = weighted_sums(codes, y, w)
        there = counts > 0
        truth = (effects - counts @ effects / counts.sum())[there]
        mean = (sums[there, 0] / counts[there]) - sums.sum() / counts.sum()
        found = shrink_effects(counts, sums, squares, len(y))[there, 0]
        ignored = shrink_effects(*weighted_sums(codes, y, np.ones(len(y))))[there, 0]
        weighted += float(np.mean((found - truth) ** 2))
        plain += float(np.mean((ignored - truth) ** 2))
        bayes += float(np.mean((mean * counts[there] / (counts[there] + 4.0) - truth) ** 2))
    assert weighted < 0.8 * plain
    assert weighted < 1.08 * bayes


def test_imputed_medians_count_weights() -> None:
    rng = np.random.default_rng(6)
    for n in (1, 2, 9, 10):
        cells, w = rng.normal(size=n), rng.integers(1, 4, n)
        encoder = frame_encoder(pa.table({"a": [*cells, None]}))
        values = encoder.read(pa.table({"a": [*cells, None]})).values
        for weight, expected in ((np.ones(n), np.median(cells)), (w, np.median(np.repeat(cells, w)))):
            y = np.column_stack([np.zeros(n + 1), [*weight, 7.0]])
            learned = encoder.learn(ArraySource(values, y, n_noise=1))
            assert learned.encode_training(values)[-1, 0] == pytest.approx(expected)


def test_effects_without_information_are_zero() -> None:
    ids = pa.table({"k": [f"id {each}" for each in range(50)]})
    encoder = fitted(ids, np.random.default_rng(0).standard_normal(50))
    assert (encoded(encoder, ids)[:, 0] == 0).all()
    assert (encoder.encode_training(encoder.read(ids).values)[:, 0] == 0).all()
    noise = [fitted_noise(seed) for seed in range(20)]
    assert np.median(noise) < 0.1  # of the noise


def fitted_noise(seed: int) -> float:
    """Spread of the effects of 40 levels that have none."""
    rng = np.random.default_rng(seed)
    table = pa.table({"k": [f"level {each}" for each in rng.integers(40, size=800)]})
    return float(encoded(fitted(table, rng.standard_normal(800)), table)[:, 0].std())


def test_far_targets_keep_their_digits() -> None:
    table, y, _, _ = simulated(np.random.default_rng(3))
    near, far = fitted(table, y), fitted(table, y + 1e9)
    np.testing.assert_allclose(encoded(far, table), encoded(near, table), atol=1e-5)


def test_missing_cells_are_a_level_and_several_targets_have_effects_each() -> None:
    rng = np.random.default_rng(2)
    table, y, _, _ = simulated(rng)
    cells = [None if rng.random() < 0.2 else cell for cell in table["k"].to_pylist()]
    both = np.column_stack([y + 7 * np.array([cell is None for cell in cells]), -y])
    encoder = fitted(pa.table({"k": cells}), both)
    assert encoder.feature_names == ["k effect 0", "k effect 1", "k log frequency"]
    values = encoded(encoder, pa.table({"k": [None, "unheard of"]}))
    assert values[0, 0] == pytest.approx(both[[cell is None for cell in cells], 0].mean() - both[:, 0].mean(), rel=0.1)
    assert np.isinf(values[1]).all()
    alone = fitted(pa.table({"k": cells}), both[:, :1])
    np.testing.assert_allclose(
        encoded(encoder, pa.table({"k": cells}))[:, [0, 2]], encoded(alone, pa.table({"k": cells}))
    )


@pytest.mark.parametrize("period", [2, 5, 8, 35, 60])
def test_no_period_of_the_rows_is_a_fold(period: int) -> None:
    folds = mark_folds(np.zeros(period * 100), 0).reshape(100, period)
    counts = np.stack([(folds == each).sum(0) for each in np.unique(folds)])
    assert counts.shape[0] == 5
    assert counts.min() >= 5
    np.testing.assert_array_equal(mark_folds(np.zeros(7), 13), folds.ravel()[13:20])


def test_rows_that_are_read_again_are_encoded_alike_in_blocks() -> None:
    table, y, _, _ = simulated(np.random.default_rng(5), n=400)
    encoder = frame_encoder(table)
    whole = encoder.read(table).values
    parts = [encoder.read(table.slice(at, 90), first_row=at).values for at in range(0, 400, 90)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    learned = encoder.learn(ArraySource(whole, y[:, None]))
    assert isinstance(learned.encodings[0], EffectEncoding)  # type: ignore[index]
    again = TableEncoder.from_dict(learned.to_dict())
    assert again == learned
    with pytest.raises(RuntimeError, match="not saved"):
        again.encode_training(whole)
