"""Rows that an expert cannot explain count less (W3), by dense refits; held-out rows decide, and stay unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import prismgp
from prismgp.core.statistics import accumulate_features
from prismgp.prism import RevisedMap
from prismgp.prism.experts import ROBUST_DEGREES, Expert
from prismgp.prism.judging import HeldOutRows, Judged, WeightedStatistics, weight_rows
from prismgp.prism.maps import MapStatistics
from prismgp.prism.train import MemberTraining
from tests.prism.small import data, dense, make_map, model, rows


def make_expert(rng, weights=None, n=40, q=2):
    """An expert that knows rows, some of whose targets are far away, and the rows with their targets."""
    network = make_map(rng, q=q)
    x, y = rows(rng, n, q=q)
    y[:3] += 40.0
    columns = y if weights is None else torch.cat([y, torch.as_tensor(weights)[:, None]], 1)
    params = network.parameters_now()
    empty = Expert.of("one", network, params, stats_of(network, params, x, columns, q))
    return replace(empty, noise_scale=np.full(q, 1.7)), x, columns


def stats_of(network, params, x, columns, q):
    return accumulate_features([(*network.features(x), columns)], q, float(params.noise[0]))


def dense_posterior(network, x, y, noise, test):
    """Mean and variance of the function at test rows, (m, q), from kernel matrices; ``noise`` (n, q)."""
    both = torch.cat([x, test])
    k, _, params = dense(network, both)
    n = len(x)
    means, variances = [], []
    for o in range(y.shape[1]):
        s = params.signal[o]
        total = s * k[:n, :n] + np.diag(noise[:, o])
        weights = np.linalg.solve(total, s * k[:n, n:])
        means.append(params.mean[o] + weights.T @ (y[:, o] - params.mean[o]))
        variances.append(np.diag(s * k[n:, n:] - s * k[n:, :n] @ weights))
    return np.stack(means, 1), np.stack(variances, 1)


def dense_weights(expert, x, y, weights):
    """The weights of rows by leaving each out and solving again."""
    network = expert.map
    _, v, params = dense(network, x)
    noise = params.noise * v[:, None] / weights[:, None]
    found = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        mean, variance = dense_posterior(network, x[others], y[others], noise[others], x[i : i + 1])
        square = ((y[i] - mean[0]) ** 2 / (variance[0] + noise[i] * expert.noise_scale)).mean()
        found.append(min(1.0, (ROBUST_DEGREES + 1.0) / (ROBUST_DEGREES + square)))
    return np.array(found)


@pytest.mark.parametrize("weighted", [False, True])
def test_robust_weights_are_those_of_dense_refits(rng, weighted):
    weights = rng.uniform(0.5, 3.0, 40) if weighted else None
    expert, x, columns = make_expert(rng, weights)
    y = columns[:, :2].numpy()
    expected = dense_weights(expert, x, y, np.ones(40) if weights is None else weights)
    found = expert.robust_weights(x, columns).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[:3].max() < 0.1 < np.median(found[3:])


def test_weighted_posterior_and_its_leave_one_out(rng):
    """The posterior is the dense one with noise divided by the weights, also with each row left out (L3)."""
    expert, x, y = make_expert(rng)
    pairs = [(x[:17], y[:17]), (x[17:], y[17:])]
    weighted, found = weight_rows(expert, pairs)
    np.testing.assert_allclose(found, expert.robust_weights(x, y))
    _, v, params = dense(expert.map, x)
    noise = params.noise * (v / found.numpy())[:, None]
    test = rows(rng, 9)[0]
    mean, variance, _ = weighted.predict(test, variance=True)
    dense_mean, dense_variance = dense_posterior(expert.map, x, y.numpy(), noise, test)
    np.testing.assert_allclose(mean, dense_mean, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(variance, dense_variance, rtol=1e-6, atol=1e-8)
    left, left_variance, _ = weighted.leave_one_out(x, y)
    for i in (0, 7, 39):
        others = np.arange(40) != i
        one = dense_posterior(expert.map, x[others], y[others].numpy(), noise[others], x[i : i + 1])
        np.testing.assert_allclose(left[i], one[0][0], rtol=1e-6)
        np.testing.assert_allclose(left_variance[i], one[1][0], rtol=1e-6)


def test_weights_of_others_do_not_know_the_held_out_rows(rng):
    """Whatever the held-out targets are, the posterior by which they are judged is the same."""
    network, (x, y) = make_map(rng), rows(rng)
    y[30:33] += 40.0
    held, params = slice(0, 10), network.parameters_now()
    found = []
    for shift in (0.0, 25.0):
        moved = y.clone()
        moved[held] += shift
        examples = HeldOutRows(x[held], moved[held], 2)
        judged = examples.predict_without(Expert.of("one", network, params, stats_of(network, params, x, moved, 2)))
        judged = replace(judged, without=replace(judged.without, noise_scale=np.ones(2)))  # that they may know
        stats = WeightedStatistics(judged.without).over([(x, moved)], rows=40, q=2)
        again = examples.predict_without(judged.without.with_statistics(stats, weighted_by=judged.without))
        found.append(again.without.predict(x, variance=True)[:2])
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("heavy", "expected"), [(False, False), (True, True)])
def test_far_rows_are_noticed(rng, heavy, expected):
    expert, x, y = make_expert(rng)
    found = HeldOutRows(x, y, 2).predict_by(expert).found
    z = rng.standard_t(2, (400, 2)) if heavy else rng.normal(size=(400, 2))
    mean = np.zeros((400, 2))
    held = replace(
        found, mean=mean, variance=np.full_like(mean, 0.5), noise=np.full_like(mean, 0.5 if not heavy else 5.0)
    )
    examples = HeldOutRows(torch.zeros(400, 3, dtype=torch.float64), torch.as_tensor(z), 2)
    assert examples.have_outliers(Judged(expert, expert, held)) is expected


@pytest.mark.parametrize("better", [True, False])
def test_held_out_rows_decide_for_a_fit(monkeypatch, tmp_path, better):
    """Where rows should count less, the posterior of each member is that of weighted rows; else it is as before."""
    x, y = data()
    y[::20] += 60.0
    monkeypatch.setattr(HeldOutRows, "have_outliers", lambda *_: True)
    monkeypatch.setattr(MemberTraining, "predict_held_out", unweighted)
    monkeypatch.setattr(HeldOutRows, "prefer", lambda *_: better)
    fit = model().fit(x, y)
    members = [expert for expert in fit.model_.predictor.experts if isinstance(expert.map, RevisedMap)]
    assert members
    assert [each["rows_weighted"] for each in fit.fit_status_["members"]] == [better] * 2
    inputs, targets = fit.model_.to_model(x), fit.model_.target_to_model(y[:, None])
    for expert in members:
        assert (expert.weighted_by is not None) is better
        plain = MapStatistics(expert.map, 1.0).over([(inputs, targets)], rows=len(x), q=1)
        if better:
            own = expert.weighted_by.robust_weights(inputs, targets)
            phi, log_noise = expert.map.training_features(inputs)
            log_noise = -own.log() if log_noise is None else log_noise - own.log()
            plain = accumulate_features([(phi, log_noise, targets)], 1)
        torch.testing.assert_close(expert.statistics.moments, plain.moments, rtol=1e-9, atol=1e-9)
    fit.save(tmp_path / "m")
    loaded = prismgp.load(tmp_path / "m")
    for one in (fit, loaded):  # the certificate is about the rows as they count
        assert prismgp.certify(one, x, y, x[:5]).mean is not None
    again = loaded.partial_fit(x[:5], y[:5]).model_.predictor
    assert all(expert.weighted_by is None for expert in again.experts)  # of the new rows it knows nothing


def unweighted(task, given):
    """The check of a member without its choice of weights."""
    network, params = given.network, given.network.parameters_now()
    stats = accumulate_features([(*network.features(given.batch.x), given.batch.targets)], 1, float(params.noise[0]))
    return task.examples.predict_by(Expert.of("check", network, params, stats)).found
