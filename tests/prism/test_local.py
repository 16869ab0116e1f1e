"""Neighbours beside the mixture: against dense computations, in fits, in files and when fits are interrupted."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import prismgp
from prismgp.core.kernels import KERNELS, Parameters
from prismgp.data import from_parquet
from prismgp.exceptions import PrismGPWarning
from prismgp.prism import Expert, Mixture, PlainMap, local_fit
from prismgp.prism import fit as recipes
from prismgp.prism.local import LocalMixture, NeighborExpert, View, evaluate, make_local, start_lengthscales
from prismgp.prism.local_fit import _EXACT, _INPUTS, _TARGET, LocalStage
from prismgp.prism.maps import MapStatistics
from prismgp.prism.stacking import selection_factor
from prismgp.prism.train import MemberTraining
from tests import reference, short
from tests.prism.small import assert_same_predictions, data, make_map, model, nightly_seeds, rows
from tests.tolerances import PREDICTION

VIEWS = [View(residual=residual, latent=latent) for residual in (True, False) for latent in (True, False)]
RESIDUALS = [view for view in VIEWS if view.residual]
WEIGHTS = (0.3, 0.25, 0.2, 0.15, 0.1)
NOISE = np.array([0.3, 0.1, 0.2, 0.05])  # of the neighbour GPs made by hand
FEW = local_fit.FEW
TEMPERATURE = np.array([1.3, 0.8])


@pytest.fixture(scope="module", autouse=True)
def short_training():
    """A tenth of the steps: the tests are about what is learned, not about how well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_fit, "FEW", replace(local_fit.FEW, **short.LOCAL))
        yield


def local_model(**changes):
    return model(**{"local": "always", "n_neighbors": 16, **changes})


# -- leave one out ---------------------------------------------------------------------------------


def plain_expert(rng, d, q):
    params = Parameters(rng.normal(size=d) * 0.3, rng.normal(size=q) * 0.3, rng.normal(size=q) - 1, rng.normal(size=q))
    return PlainMap.of(rng.normal(size=(5, d)), params, dtype=torch.float64), params


def revised_expert(rng, d, q):
    network = make_map(rng, d=d, q=q, noise="input").eval()
    return network, network.parameters_now()


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "revised", "informed"])
def test_leave_one_out_is_the_posterior_without_the_row(rng, kind, q):
    """(L3), also where the noise of predictions is not that of the posterior."""
    x, y = rows(rng, n=30, q=q)
    found = (revised_expert if kind == "revised" else plain_expert)(rng, x.shape[1], q)
    with torch.no_grad():
        expert = Expert.of(kind, *found, MapStatistics(found[0]).over([(x, y)], rows=len(x), q=q))
        if kind == "informed":
            expert = expert.with_noise_of(make_map(rng, q=q).eval(), x)
    expert = replace(expert, noise_scale=np.full(q, 1.7))
    with torch.no_grad():
        got = expert.leave_one_out(x, y)
        for i in range(len(x)):
            row = expert.accumulate([(x[i : i + 1], y[i : i + 1])], q)
            without = expert.with_statistics(expert.statistics.without(row))
            for mine, expected in zip(got, without.predict(x[i : i + 1], variance=True), strict=True):
                np.testing.assert_allclose(mine[i : i + 1], expected, rtol=PREDICTION, atol=PREDICTION)


# -- by hand, against dense computations -----------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2])
def mixture(request):
    """A fit without neighbours, its rows, and q."""
    x, y = data(q=None if request.param == 1 else request.param)
    fit = model(local="never").fit(x, y)
    assert isinstance(fit.model_.predictor, Mixture)
    assert len(fit.model_.predictor.experts) > 1
    return fit.model_, x, y.reshape(len(x), -1)


def beside(mixture, *, k, views=VIEWS, weights=WEIGHTS):
    """The mixture with neighbour GPs on its rows, k neighbours each, with parameters of no fit."""
    whole, x, y = mixture
    base, y = whole.predictor, whole.target_to_model(y)
    seen = evaluate(base, whole.to_model(x), y)
    near = []
    for view, noise in zip(views, NOISE, strict=False):
        gp = make_local(view, seen, y, KERNELS["matern32"], start_lengthscales(base, np.full(2, 0.7), view), k)
        q = y.shape[1]
        params = replace(gp.params, log_noise=np.log(np.full(q, noise)), log_signal=np.linspace(-0.3, 0.2, q))
        near.append(NeighborExpert(view, gp.with_parameters(params)))
    return LocalMixture(base, tuple(near), np.array(weights), TEMPERATURE[: y.shape[1]])


def new_rows(whole, n=40, seed=1):
    return whole.to_model(data(n, seed=seed)[0])


def coordinates_of(base, view, x, means):
    """Inputs, latent columns and means of the experts, in the precision in which they are kept."""
    parts = [x]
    if view.latent:
        parts += [expert.map.latent(x) for expert in base.experts if hasattr(expert.map, "latent")]
        parts += means
    return torch.cat([part.double() for part in parts], 1).numpy().astype(np.float32).astype(np.float64)


def left_out(base, x, y):
    """The experts' and the mixture's moments at their own rows, each predicted without itself."""
    experts, found = [], []
    for i in range(len(x)):
        here, parts = x[i : i + 1], []
        for expert in base.experts:
            row = expert.accumulate([(here, y[i : i + 1])], y.shape[1])
            parts.append(expert.with_statistics(expert.statistics.without(row)))
        experts.append([each.predict(here, variance=False)[0] for each in parts])
        found.append(replace(base, experts=tuple(parts)).predict(here, variance=True))
    return [torch.cat(each) for each in zip(*experts, strict=True)], [
        torch.cat(each).numpy() for each in zip(*found, strict=True)
    ]


@pytest.mark.slow
def test_predictions_are_those_of_the_definition(mixture):
    """(L1) and (L2) with k = n, weights and temperature included."""
    whole, x, y = mixture
    local, base = beside(mixture, k=len(x)), whole.predictor
    known, target, x_new = whole.to_model(x), whole.target_to_model(y).numpy(), new_rows(whole)
    m, v, noise = (each.numpy() for each in base.predict(x_new, variance=True))
    own, (m_own, v_own, noise_own) = left_out(base, known, torch.as_tensor(target))
    new = [expert.predict(x_new, variance=False)[0] for expert in base.experts]
    means, variances, noises = [m], [v], [noise]
    for near in local.near:
        params = near.gp.params
        a, b = coordinates_of(base, near.view, known, own), coordinates_of(base, near.view, x_new, new)
        inner, cross = (reference.kernel("matern32", a, c, params.lengthscale) for c in (a, b))
        t = (target - m_own) / np.sqrt(v_own + noise_own) if near.view.residual else target
        found = []
        for k in range(t.shape[1]):
            matrix = params.signal[k] * inner + params.noise[k] * np.eye(len(a))
            solved = np.linalg.solve(matrix, np.column_stack([t[:, k], params.signal[k] * cross]))
            mu = params.signal[k] * cross.T @ solved[:, 0]
            spread = params.signal[k] - params.signal[k] * np.sum(cross * solved[:, 1:], 0)
            nu = np.full(len(b), params.noise[k])
            if near.view.residual:
                s = np.sqrt(v[:, k] + noise[:, k])
                mu, spread, nu = m[:, k] + s * mu, s**2 * spread + nu * v[:, k], nu * noise[:, k]
            found.append((mu, spread, nu))
        for into, values in zip((means, variances, noises), zip(*found, strict=True), strict=True):
            into.append(np.column_stack(values))
    mean, variance = reference.mixture_moments(np.array(WEIGHTS), np.stack(means), np.stack(variances))
    expected = mean, variance * local.temperature, np.tensordot(WEIGHTS, np.stack(noises), 1) * local.temperature
    for got, value in zip(local.predict(x_new, variance=True), expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=PREDICTION, atol=PREDICTION)
    total = local.marginals(x_new).variance
    np.testing.assert_allclose(total, expected[1] + expected[2], rtol=PREDICTION)


@pytest.mark.parametrize("k", [5, 200])
def test_far_from_all_rows_the_residuals_are_unknown(mixture, k):
    whole, _, _ = mixture
    local = beside(mixture, k=k, views=RESIDUALS, weights=(0.2, 0.5, 0.3))
    x = new_rows(whole, 5)
    x[:, 0] += 1e4
    m, v, noise = whole.predictor.predict(x, variance=True)
    mean, variance, rest = local.predict(x, variance=True)
    np.testing.assert_allclose(mean, m, rtol=PREDICTION, atol=PREDICTION)
    signal, nu = (np.stack([getattr(each.gp.params, name) for each in local.near]) for name in ("signal", "noise"))
    spread = np.tensordot([0.5, 0.3], signal[:, None] * (v + noise).numpy() + nu[:, None] * v.numpy(), 1)
    np.testing.assert_allclose(variance, local.temperature * (0.2 * v.numpy() + spread), rtol=PREDICTION)
    share = 0.2 + np.tensordot([0.5, 0.3], nu, 1)
    np.testing.assert_allclose(rest, local.temperature * share * noise.numpy(), rtol=PREDICTION)


@pytest.mark.parametrize("weights", [WEIGHTS, (0.0, 0.0, 0.0, 0.0, 1.0), (0.0, 0.4, 0.0, 0.6, 0.0)], ids=str)
@pytest.mark.parametrize("k", [9, 150])
def test_covariances(mixture, k, weights):
    local, x = beside(mixture, k=k, weights=weights), new_rows(mixture[0])
    found = local.covariance(x).numpy()
    _, variance, _ = local.predict(x, variance=True)
    for output in range(found.shape[2]):
        matrix = found[:, :, output]
        np.testing.assert_allclose(matrix, matrix.T, atol=PREDICTION)
        assert np.linalg.eigvalsh(matrix).min() > -1e-9 * matrix.trace()
    diagonal = np.einsum("iiq->iq", found)
    if k == 150:
        np.testing.assert_allclose(diagonal, variance, rtol=1e-7, atol=PREDICTION)
    else:  # given the neighbours of all points, which are more
        assert (diagonal <= variance.numpy() * (1 + 1e-7)).all()


@pytest.mark.parametrize("k", [9, 150])
def test_samples_are_functions(mixture, k):
    local, x = beside(mixture, k=k), new_rows(mixture[0])

    def draw(chunks, count):
        return local.sample(chunks, count, np.random.default_rng(5))

    expected = draw([x], 6)
    assert expected.shape == (len(x), mixture[2].shape[1], 6)
    np.testing.assert_allclose(draw([x[:7], x[7:]], 6), expected, rtol=PREDICTION, atol=PREDICTION)
    np.testing.assert_allclose(draw([x.flip(0)], 6)[::-1], expected, rtol=PREDICTION, atol=PREDICTION)
    np.testing.assert_allclose(draw([x[3:9]], 6), expected[3:9], rtol=PREDICTION, atol=PREDICTION)
    np.testing.assert_allclose(draw([x], 3), expected[:, :, :3], rtol=PREDICTION, atol=PREDICTION)
    assert not np.allclose(expected[:, :, 0], expected[:, :, 1])


@pytest.mark.slow
def test_moments_of_samples(mixture):
    """In standard errors, of 32 numbers at most; a function drawn by finitely many frequencies is nearly normal."""
    local, x, count = beside(mixture, k=150), new_rows(mixture[0], 8), 1_500
    drawn = local.sample([x], count, np.random.default_rng(7))
    mean, variance, _ = (each.numpy() for each in local.predict(x, variance=True))
    assert (np.abs(drawn.mean(2) - mean) < 4.5 * np.sqrt(variance / count)).all()
    squares = (drawn - mean[:, :, None]) ** 2
    error = 4.5 * squares.std(2) / np.sqrt(count) + 0.05 * variance  # the prior has 1,024 frequencies, the same for all
    assert (np.abs(squares.mean(2) - variance) < error).all()


# -- more rows -------------------------------------------------------------------------------------


def first_error(fit, x, y):
    """Of the first output: the others are mostly noise."""
    return np.abs((fit.predict(x) - y).reshape(len(x), -1)[:, 0]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("q", [1, 2])
def test_more_rows(q):
    """The experts know all rows, exactly; the neighbours get the new ones; predictions improve there."""
    x, y = data(400, q=None if q == 1 else q)
    old = x[:, 0] < 4.0
    fit = local_model().fit(x[old], y[old])
    before, error = fit.model_.predictor, first_error(fit, x[~old], y[~old])
    fit.partial_fit(x[~old], y[~old])
    whole, after = fit.model_, fit.model_.predictor
    assert fit.fit_status_["rows"] == len(x)
    order = np.concatenate([np.flatnonzero(old), np.flatnonzero(~old)])
    inputs, targets = whole.to_model(x[order]), whole.target_to_model(y.reshape(len(x), -1)[order])
    for expert in after.base.experts:
        expected = expert.with_statistics(expert.accumulate([(inputs, targets)], q))
        for got, value in zip(
            expert.predict(inputs, variance=True), expected.predict(inputs, variance=True), strict=True
        ):
            np.testing.assert_allclose(got, value, rtol=PREDICTION, atol=PREDICTION)
    new = evaluate(after.base, inputs[old.sum() :], targets[old.sum() :])
    for near, kept in zip(after.near, before.near, strict=True):
        gp, n = near.gp, kept.gp.n_rows
        assert (n, gp.n_rows) == (old.sum(), len(x))
        assert torch.equal(gp.coordinates[:n], kept.gp.coordinates)
        assert torch.equal(gp.targets[:n], kept.gp.targets)
        np.testing.assert_allclose(gp.coordinates[n:], new.coordinates[:, : gp.coordinates.shape[1]], atol=1e-5)
        expected = (targets[n:] - new.mean) / new.scale if near.view.residual else targets[n:]
        np.testing.assert_allclose(gp.targets[n:], expected, atol=PREDICTION)
    mean, std = fit.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert first_error(fit, x[~old], y[~old]) < 0.6 * error


# -- fits ------------------------------------------------------------------------------------------


def rough(n, seed):
    """A smooth trend, and in half of the square a chessboard that four frequencies cannot see."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 2))
    board = np.sign(np.sin(6 * np.pi * x[:, 0]) * np.sin(6 * np.pi * x[:, 1]))
    return x, 2 * x[:, 0] + np.where(x[:, 0] > 0.5, board, 0.0) + 0.1 * rng.normal(size=n)


def smooth(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.5 * rng.normal(size=n)


# As a fit would find them for smooth rows.
SMOOTH = {"n_frequencies": 30, "n_members": 1, "noise_variance": 0.25, "signal_variance": 2.0, "lengthscale": 1.5}


def rmse(fit, x, y):
    return float(np.sqrt(np.mean((fit.predict(x) - y) ** 2)))


@pytest.mark.slow
@pytest.mark.usefixtures("short_local")
@pytest.mark.parametrize("seed", nightly_seeds(3))
def test_neighbours_see_what_few_frequencies_cannot(seed):
    x, y = rough(900, seed)
    new = rough(1_000, seed + 100)
    without, fit = (local_model(local=local, random_state=seed).fit(x, y) for local in ("never", "auto"))
    status = fit.fit_status_["local"]
    assert isinstance(fit.model_.predictor, LocalMixture)
    assert status["weights"]["mixture"] < 0.5
    assert status["gain"] > 0.1
    assert rmse(fit, *new) < 0.7 * rmse(without, *new)
    assert fit.log_density(*new).mean() > without.log_density(*new).mean() + 0.1
    assert fit.fit_status_["held_out_nlpd"] < without.fit_status_["held_out_nlpd"] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_seeds(6))
def test_smooth_functions_need_no_neighbours(seed):
    x, y = smooth(400, seed)
    without, fit = (local_model(**SMOOTH, local=local, random_state=seed).fit(x, y) for local in ("never", "auto"))
    status = fit.fit_status_["local"]
    assert isinstance(fit.model_.predictor, Mixture)
    assert status["weights"]["mixture"] == 1.0
    assert sum(status["weights"].values()) == 1.0
    assert status["gain"] == 0.0
    assert_same_predictions(fit, without, x)


@pytest.mark.parametrize("q", [1, 2])
def test_the_exact_gp_is_one_of_the_views(monkeypatch, q):
    """With few rows, and a function that the spectrum of two frequencies misses; it is the GP on all rows."""
    monkeypatch.setattr(LocalStage, "near_views", lambda *_: [])
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 3))
    y = np.stack([np.sin(4 * x[:, 0]) * np.cos(3 * x[:, k]) + 0.05 * rng.normal(size=300) for k in range(q)], 1)
    y = y[:, 0] if q == 1 else y
    fit = local_model(n_frequencies=2, local="auto").fit(x, y)
    (near,) = fit.model_.predictor.near
    assert near.view == _EXACT
    assert fit.fit_status_["local"]["weights"]["exact GP"] > 0.9
    params, whole = near.gp.params, fit.model_
    exact = prismgp.ExactGPRegressor(
        lengthscale=params.lengthscale * whole.standardiser.x_scale,
        signal_variance=params.signal * whole.standardiser.y_scale**2,
        noise_variance=params.noise * whole.standardiser.y_scale**2,
        mean=params.mean * whole.standardiser.y_scale + whole.standardiser.y_shift,
        optimize=False,
    ).fit(x, y)
    new = whole.to_model(rng.uniform(-1, 1, (20, 3)))
    points = new.numpy() * whole.standardiser.x_scale + whole.standardiser.x_shift
    mean, variance, *_ = (each.numpy() for each in near.gp.predict(new.float())[:3])
    scale = whole.standardiser.y_scale
    expected = [each.reshape(20, -1) for each in exact.predict(points, return_std=True, include_noise=False)]
    np.testing.assert_allclose(mean * scale + whole.standardiser.y_shift, expected[0], atol=1e-4)  # float32 rows
    np.testing.assert_allclose(np.sqrt(variance) * scale, expected[1], atol=1e-4)


def test_the_exact_gp_learns_only_where_it_may_join(monkeypatch):
    """With many rows it keeps the parameters of the start unless it joins with them, or nearly does."""
    runs = []
    race = local_fit.race
    monkeypatch.setattr(local_fit, "race", lambda *args, **kwargs: runs.append(args) or race(*args, **kwargs))
    monkeypatch.setattr(LocalStage, "near_views", lambda *_: [])
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 3))
    noise = 0.05 * rng.normal(size=300)
    targets = {"waves": np.sin(4 * x[:, 0]) * np.cos(3 * x[:, 1]) + noise, "noise": noise}

    def learns(target, cheap_rows, hopeless):
        runs.clear()
        monkeypatch.setattr(local_fit, "CHEAP_ROWS", cheap_rows)
        monkeypatch.setattr(local_fit, "HOPELESS", hopeless)
        fit = local_model(n_frequencies=2, local="auto", noise_shape="normal").fit(x, targets[target])
        return bool(runs), fit.fit_status_["local"]["weights"]["exact GP"], fit.predict(x[:5])

    few, near, far = (learns("noise", *each) for each in ((1_000, -100.0), (10, 100.0), (10, -100.0)))
    assert [each[0] for each in (few, near, far)] == [True, True, False]
    assert {each[1] for each in (few, near, far)} == {0.0}  # nothing else changes
    np.testing.assert_array_equal(few[2], far[2])
    joins = learns("waves", 10, -100.0)
    assert joins[0]
    assert joins[1] > 0.9


def bumps(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 2))
    return x, 2 * x[:, 0] + np.sin(12 * x[:, 0]) * np.sin(12 * x[:, 1]) + 0.4 * rng.normal(size=n)


def coverage(make, seed, **changes):
    x_new, y_new = make(2_000, seed + 100)
    low, high = local_model(local="auto", random_state=seed, **changes).fit(*make(400, seed)).predict_interval(x_new).T
    return np.mean((low <= y_new) & (y_new <= high))


@pytest.mark.slow
def test_coverage_of_neighbours(monkeypatch):
    """The temperature is that of some 40 held-out rows, so that the coverage of one fit varies by 0.02 or 0.03."""
    monkeypatch.setattr(local_fit, "FEW", replace(FEW, steps=100))
    assert 0.90 <= np.mean([coverage(bumps, seed) for seed in range(3)]) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_seeds(3))
def test_coverage_without_neighbours(seed):
    assert 0.90 <= coverage(smooth, seed, **SMOOTH) <= 0.99


def patches(n, seed):
    """Noise that is ten times as large in two of four squares."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 2, (n, 2))
    scale = np.where(np.floor(x).sum(1) % 2, 1.0, 0.1)
    return x, np.sin(3 * x[:, 0]) + scale * rng.normal(size=n), scale


@pytest.mark.slow
def test_neighbours_show_where_the_noise_is_large():
    """(N6): the spread of the prediction follows that of the neighbours."""
    x, y, _ = patches(800, 0)
    new, y_new, scale = patches(1_000, 1)
    fit = local_model(local="auto", noise_shape="normal").fit(x, y)
    assert min(fit.fit_status_["local"]["degrees"].values()) < 40
    std = fit.predict(new, return_std=True)[1]
    assert np.median(std[scale == 1]) > 2 * np.median(std[scale < 1])
    near = tuple(replace(each, gp=replace(each.gp, degrees=np.inf)) for each in fit.model_.predictor.near)
    constant = copy.copy(fit)
    constant.model_ = replace(fit.model_, predictor=replace(fit.model_.predictor, near=near))
    assert fit.log_density(new, y_new).mean() > constant.log_density(new, y_new).mean() + 0.2


def test_status(fitted_near):
    fit, x, _ = fitted_near
    status, predictor = fit.fit_status_["local"], fit.model_.predictor
    assert set(status) == {"weights", "gain", "rows", "degrees"}
    degrees = [status["degrees"].get(near.view.name, math.inf) for near in predictor.near]
    assert degrees == [near.gp.degrees for near in predictor.near]
    assert status["rows"] == len(x)
    assert set(status["weights"]) == {_TARGET.name, _INPUTS.name, _EXACT.name, "mixture"}
    assert sum(status["weights"].values()) == pytest.approx(1.0)
    weights = [status["weights"]["mixture"], *(status["weights"][near.view.name] for near in predictor.near)]
    np.testing.assert_array_equal(predictor.weights, weights)
    json.dumps(fit.fit_status_, allow_nan=False)
    expected = fit.log_density(x, fitted_near[2])
    assert np.isfinite(expected).all()


def test_never_is_the_model_without_neighbours(monkeypatch, fitted_near):
    """The stage comes after all others, and has a random stream of its own."""
    fit, x, y = fitted_near

    def unwanted(*_):
        raise AssertionError

    monkeypatch.setattr(LocalStage, "fit", unwanted)
    without = local_model(local="never").fit(x, y)
    base = fit.model_.predictor.base
    assert without.fit_status_["local"] == {}
    assert without.fit_status_["weights"] == fit.fit_status_["weights"]
    assert without.log_evidence_ == fit.log_evidence_
    expected = base.temperature * selection_factor(None, fit.fit_status_["held_out_rows"])
    np.testing.assert_allclose(without.model_.predictor.temperature, expected)
    assert_same_predictions(without, _with(fit, replace(base, temperature=expected)), x)


def test_always_uses_neighbours():
    x, y = smooth(300, 0)
    fit = local_model(**SMOOTH).fit(x, y)
    assert isinstance(fit.model_.predictor, LocalMixture)
    assert fit.fit_status_["local"]["weights"]["mixture"] < 1.0
    assert_same_predictions(fit, local_model(**SMOOTH).fit(x, y), x)


@pytest.fixture(scope="module")
def fitted_near():
    """A fit with neighbours, not to be changed."""
    x, y = data(260)
    fit = local_model().fit(x, y)
    assert isinstance(fit.model_.predictor, LocalMixture)
    return fit, x, y


def _with(fit, predictor):
    """A copy of a fit with another predictor."""
    other = pickle.loads(pickle.dumps(fit))
    other._adopt(replace(fit.model_, predictor=predictor))
    return other


def assert_same(a, b, x, y):
    assert_same_predictions(a, b, x)
    np.testing.assert_array_equal(a.predict_interval(x), b.predict_interval(x))
    np.testing.assert_array_equal(a.log_density(x, y), b.log_density(x, y))
    np.testing.assert_array_equal(a.sample_y(x[:9], 2, random_state=1), b.sample_y(x[:9], 2, random_state=1))


def test_files_and_pickles(tmp_path, fitted_near):
    fit, x, y = fitted_near
    fit.save(tmp_path / "m")
    for other in (prismgp.load(tmp_path / "m"), pickle.loads(pickle.dumps(fit))):
        assert isinstance(other.model_.predictor, LocalMixture)
        assert_same(other, fit, x, y)


@pytest.mark.slow
@pytest.mark.parametrize("local_rows", [40, 100])
@pytest.mark.parametrize("validation_fraction", [0.1, 0.5])
def test_local_rows(monkeypatch, local_rows, validation_fraction):
    """With many held-out rows, too: only half of the rows kept may be examples."""
    views = [View(residual=True, latent=True), _INPUTS]
    monkeypatch.setattr(LocalStage, "choose_views", lambda *_: views)
    x, y = data(400)
    fit = local_model(local_rows=local_rows, validation_fraction=validation_fraction).fit(x, y)
    assert fit.fit_status_["local"]["rows"] == local_rows
    assert {near.gp.n_rows for near in fit.model_.predictor.near} == {local_rows}
    assert fit.model_.predictor.n_rows == len(x)
    assert np.isfinite(fit.predict(x)).all()


def test_rows_kept_are_examples_or_known_to_the_posterior(monkeypatch):
    """Of a row that is held out but no example there is no prediction without itself (L3)."""
    stages, run = [], LocalStage.fit
    monkeypatch.setattr(LocalStage, "fit", lambda self, *rest: (stages.append(self), run(self, *rest))[1])
    local_model(local_rows=100, validation_fraction=0.5).fit(*data(300))
    (stage,) = stages
    pool, own = stage._pool(np.random.default_rng(0))
    held_out = {tuple(row) for row in stage.sample.x[stage.held_out]}
    among = [k for k, row in enumerate(pool.source.load().x) if tuple(row) in held_out]
    np.testing.assert_array_equal(among, own)
    assert (len(own), pool.source.n_rows) == (50, 100)


@pytest.mark.parametrize("local_rows", [None, 40])
def test_more_rows_than_the_networks_see(monkeypatch, local_rows):
    monkeypatch.setattr(recipes, "TRAINING_ROWS", 250)
    x, y = data(500)
    fit = local_model(local_rows=local_rows).fit(x, y)
    assert fit.fit_status_["local"]["rows"] == (local_rows or len(x))
    assert {near.gp.n_rows for near in fit.model_.predictor.near} == {local_rows or len(x)}
    assert np.abs(fit.predict(x) - y).mean() < 0.3 * y.std()


def test_too_few_local_rows_are_none():
    x, y = data(250)
    fit = local_model(local_rows=39).fit(x, y)
    assert isinstance(fit.model_.predictor, Mixture)
    assert fit.fit_status_["local"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("q", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_float32(q):
    x, y = data(260, q=None if q == 1 else q)
    double, single = (local_model(dtype=dtype).fit(x, y) for dtype in ("float64", "float32"))
    assert isinstance(single.model_.predictor, LocalMixture)
    new = data(100, seed=3)[0]
    # Roundings change the course of the training.
    assert np.abs(single.predict(new) - double.predict(new)).max() < 0.2 * y.std()


def test_two_outputs():
    x, y = data(260, q=2)
    fit = local_model().fit(x, y)
    mean, std = fit.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert fit.sample_y(x[:5], 3, random_state=0).shape == (5, 2, 3)
    assert fit.predict(x[:5], return_cov=True)[1].shape == (5, 5, 2)
    assert (np.abs(mean - y).mean(0) < 0.5 * y.std(0)).all()


@pytest.mark.slow
def test_sources_equal_arrays(tmp_path):
    x, y = data(300)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    frame.to_parquet(tmp_path / "rows.parquet")
    expected = local_model(chunk_size=70).fit(frame[["a", "b"]], frame["y"])
    fit = local_model(chunk_size=70).fit(from_parquet(tmp_path / "rows.parquet", target="y"))
    assert isinstance(fit.model_.predictor, LocalMixture)
    assert_same_predictions(fit, expected, frame[["a", "b"]])


def more_neighbors_than_rows():
    return (*data(80), {"n_neighbors": 1_000, "validation_fraction": 0.3})


def constant_columns():
    x, y = data(250)
    return np.column_stack([x, np.full(len(x), 7.0)]), y, {}


def repeated():
    x, y = data(30)
    return np.tile(x, (10, 1)), np.tile(y, 10) + 0.1 * np.random.default_rng(0).normal(size=300), {}


def equal_targets():
    x, y = data(250)
    return x, np.full_like(y, 3.0), {}


@pytest.mark.slow
@pytest.mark.parametrize("make", [more_neighbors_than_rows, constant_columns, repeated, equal_targets])
def test_unusual_rows(make):
    x, y, changes = make()
    fit = local_model(**changes).fit(x, y)
    mean, std = fit.predict(np.vstack([x, x[:3] + 50.0]), return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std > 0).all()
    assert np.abs(mean[: len(x)] - y).mean() < 0.5 * y.std() + 1e-6


def test_certificates_leave_the_neighbours_out(fitted_near):
    fit, x, y = fitted_near
    options = {"rank": 20, "products": 5, "parts": "predictions", "random_state": 0}
    certificate = fit.certify(x, y, x[:3], **options)
    assert "neighbours that the model adds to this mixture are left out" in certificate.statement
    alone = _with(fit, fit.model_.predictor.base).certify(x, y, x[:3], **options)
    assert "neighbours" not in alone.statement


# -- interrupts ------------------------------------------------------------------------------------


class KilledError(Exception):
    pass


def test_a_fit_killed_in_the_local_stage_goes_on_to_the_same_model(tmp_path, monkeypatch, fitted_near):
    fit, x, y = fitted_near
    resumed = local_model(checkpoint=tmp_path / "fit")

    def stop(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(local_fit, "fit_local", stop)
        with pytest.raises(KilledError):
            resumed.fit(x, y)
    monkeypatch.setattr(MemberTraining, "step", stop)  # the networks come from the checkpoint
    resumed.fit(x, y)
    assert resumed.fit_status_ == fit.fit_status_
    assert_same(resumed, fit, x, y)


def test_an_interrupt_in_the_local_stage_leaves_the_mixture(tmp_path, monkeypatch, fitted_near):
    whole, x, y = fitted_near

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    fit = local_model(checkpoint=tmp_path / "fit", on_interrupt="keep")
    with monkeypatch.context() as patch:
        patch.setattr(local_fit, "fit_local", interrupt)
        with pytest.warns(PrismGPWarning, match="interrupted"):
            fit.fit(x, y)
    status = fit.fit_status_
    assert status["interrupted"]
    assert "interrupted" in status["message"]
    assert status["local"] == {}
    assert isinstance(fit.model_.predictor, Mixture)
    assert_same_predictions(fit, local_model(local="never").fit(x, y), x)
    json.dumps(status, allow_nan=False)
    fit.fit(x, y)  # again, from the checkpoint
    assert_same(fit, whole, x, y)
