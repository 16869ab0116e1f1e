"""The plain SSGP at rows that its parameters have not seen, where rows are few."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import prismgp
from prismgp.context import FitContext
from prismgp.data import ArraySource, StandardisedRows, fit_standardiser
from prismgp.prism.experts import Expert
from prismgp.prism.judging import cross_fit
from prismgp.prism.training_rows import hash_inputs
from tests.prism.small import model


def wide(n, seed, d=25):
    """Rows of many inputs, of which one matters: length-scales of highest evidence follow the noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, np.sin(x[:, 0]) + 0.5 * rng.normal(size=n)


def as_expert(rows, **changes):
    """A plain SSGP of rows in the model's units."""
    x, y = rows.tensors()
    settings = {"n_frequencies": 6, "max_iter": 5, "random_state": 0, "normalize": False} | changes
    fit = prismgp.SSGPRegressor(**settings).fit(x.numpy(), y.numpy())
    return Expert.plain(fit.model_.predictor, dtype=torch.float64, device=torch.device("cpu"))


def make_rows(x, y, weights=None):
    source = ArraySource(x, y.reshape(len(y), -1))
    source = source if weights is None else source.with_noise(weights[:, None])
    return StandardisedRows(source, fit_standardiser(source, normalize=True))


def run(rows, held_out, refit, seed=0):
    plain = as_expert(rows)
    hashes = hash_inputs(rows.source)
    rng = np.random.default_rng(seed)
    return plain, cross_fit(plain, rows, rows.source, held_out, hashes, refit, rng, FitContext())


def test_every_row_is_predicted_by_parameters_that_have_not_seen_it():
    """Copies stay together. The factor is that of the residuals, of which some pseudo-rows expect nothing."""
    x, y = wide(60, 0, d=2)
    x[50:] = x[10:20]
    rows, seen = make_rows(x, y), []

    def refit(part, _):
        expert, given = as_expert(part), {tuple(each) for each in part.tensors()[0].tolist()}
        seen.append((expert, given))  # of several threads
        return expert

    held_out = np.array([0, 3, 7, 10, 50])
    plain, found = run(rows, held_out, refit)
    inputs, targets = rows.tensors()
    left_out = [[i for i in range(60) if tuple(inputs[i].tolist()) not in given] for _, given in seen]
    assert sorted(index for part in left_out for index in part) == list(range(60))
    assert len(seen) == 5
    (without,) = (expert for (expert, _), part in zip(seen, left_out, strict=True) if part == list(held_out))

    residuals = []
    for part, (expert, _) in zip(left_out, seen, strict=True):
        mean, variance, noise = expert.predict(inputs[part], variance=True)
        residuals.append(((targets[part] - mean) / (variance + noise).sqrt()).numpy())
    expected = np.concatenate(residuals)
    factor = ((expected**2).sum() + 50.0) / 110.0
    np.testing.assert_allclose(np.sort(found.residuals.values, 0), np.sort(expected / np.sqrt(factor), 0), rtol=1e-9)
    for corrected, expert in ((found.plain, plain), (found.without, without)):
        before, after = (each.predict(inputs, variance=True) for each in (expert, corrected))
        np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(after[1] + after[2], factor * (before[1] + before[2]), rtol=1e-9)


def test_weights_of_rows_count_in_the_factor():
    x, y = wide(60, 1, d=2)
    weights = np.where(np.arange(60) < 30, 1.0, 4.0)
    rows = make_rows(x, y, weights)
    plain, found = run(rows, np.arange(0, 60, 9), lambda part, _: as_expert(part))
    assert sorted(found.residuals.row_weights) == sorted(weights)
    factor = np.exp(found.plain.params.log_noise - plain.params.log_noise)
    squares = factor * found.residuals.values[:, 0] ** 2  # before the correction
    expected = (found.residuals.row_weights @ squares + 50.0) / (weights.sum() + 50.0)
    np.testing.assert_allclose(factor, expected, rtol=1e-9)


def test_with_more_rows_only_held_out_ones_are_predicted(monkeypatch):
    monkeypatch.setattr("prismgp.prism.judging._FOLDED_ROWS", 40)
    x, y = wide(60, 2, d=2)
    calls = []

    def refit(part, _):
        calls.append(part.n_rows)
        return as_expert(part)

    _, found = run(make_rows(x, y), np.arange(10), refit)
    assert calls == [50]
    assert len(found.residuals.values) == 10


def test_a_row_that_no_factor_explains_counts_as_if_it_were_ten_standard_deviations_away():
    x, y = wide(60, 4, d=2)
    rows = make_rows(x, np.where(np.arange(60) == 3, 1e6, y))
    expert = as_expert(make_rows(x, y))
    _, found = run(rows, np.arange(0, 60, 9), lambda *_: expert)
    factor = np.exp(found.without.params.log_noise - expert.params.log_noise)
    squares = factor * found.residuals.values[:, 0] ** 2
    np.testing.assert_allclose(factor, (np.minimum(squares, 100.0).sum() + 50.0) / 110.0, rtol=1e-9)


def test_rows_that_mostly_have_copies_are_not_left_out():
    """New rows will have copies too; what happens at places that a fit has never seen is not what they are like."""
    x, y = wide(60, 6, d=2)
    copies = np.tile(x[:20], (3, 1))
    refits = []
    _, found = run(make_rows(copies, y), np.arange(0, 60, 20), lambda part, _: refits.append(part))
    assert found is None
    assert not refits
    mixed = np.concatenate([x[:40], x[:10], x[:10]])
    _, found = run(make_rows(mixed, y), np.arange(0, 60, 9), lambda part, _: as_expert(part))
    assert found is not None


@pytest.mark.parametrize("levels", [1, 2, 3, 5])
def test_few_distinct_rows(levels):
    rng = np.random.default_rng(levels)
    x = pd.DataFrame({"k": [f"level {each}" for each in np.arange(60) % levels]})
    fit = model(n_frequencies=4, optimize=True, max_iter=5).fit(x, rng.normal(size=60))
    assert np.isfinite(fit.predict(x)).all()


def test_a_plain_ssgp_that_learns_nothing_stays_as_it_is():
    """Its parameters were given, and no rows have chosen anything: its variances do not grow."""
    x, y = wide(100, 7, d=2)
    given = {"lengthscale": 2.0, "noise_variance": 0.3, "signal_variance": 1.0, "optimize": False}
    fit = model(n_frequencies=8, **given, noise_shape="normal", max_steps=1).fit(x, y)
    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    plain = prismgp.SSGPRegressor(8, **given, random_state=fit.random_state).fit(x, y)
    np.testing.assert_allclose(fit.predict(x, return_std=True), plain.predict(x, return_std=True), rtol=1e-9)


def test_a_fit_that_ends_early_has_no_cross_fit():
    x, y = wide(60, 3, d=2)
    rows, context = make_rows(x, y), FitContext()

    def refit(part, _):
        context.ending._record.interrupted = True
        return as_expert(part)

    plain = as_expert(rows)
    hashes, rng = hash_inputs(rows.source), np.random.default_rng(0)
    assert cross_fit(plain, rows, rows.source, np.arange(6), hashes, refit, rng, context) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_intervals_of_few_rows_of_many_inputs_cover_what_they_say(seed):
    """Those of the plain SSGP do not: its length-scales follow the noise."""
    (x, y), (new, target) = wide(200, seed), wide(4_000, seed + 100)
    settings = {"optimize": True, "lengthscale": None, "noise_variance": None, "max_iter": 60, "max_steps": 20}
    fit = model(n_frequencies=16, **settings).fit(x, y)
    plain = prismgp.SSGPRegressor(16, max_iter=60, random_state=0).fit(x, y)

    def coverage(each):
        low, high = each.predict_interval(new, 0.9).T
        return np.mean((low <= target) & (target <= high))

    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    assert coverage(plain) < 0.85
    assert 0.86 < coverage(fit) < 0.95


@pytest.mark.slow
def test_checkpoint_and_time_limit(tmp_path):
    """A fit that is continued gives the same model; under a time limit that is short, rows are not fitted again."""
    x, y = wide(80, 5, d=3)
    settings = {"optimize": True, "lengthscale": None, "noise_variance": None, "max_iter": 5}
    fit = partial(model, n_frequencies=6, **settings)
    whole = fit().fit(x, y)
    for _ in range(2):
        again = fit(checkpoint=tmp_path / "c").fit(x, y)
        np.testing.assert_array_equal(again.predict(x, return_std=True), whole.predict(x, return_std=True))
