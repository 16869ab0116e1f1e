"""Rows with the inputs of known rows: found again, predicted without themselves, and with shapes of their own."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from scipy.integrate import simpson

import prismgp
from prismgp.cli import main
from prismgp.core.shape import NormalShape, SkewedShape, StudentShape
from prismgp.data import ArraySource, StandardisedRows
from prismgp.exceptions import ModelFileError, PrismGPWarning
from prismgp.metrics import coverage
from prismgp.model.row_shapes import tailed_log_density
from prismgp.prism import shapes as shapes_module
from prismgp.prism.local import evaluate
from prismgp.prism.local_fit import _EXACT
from prismgp.prism.shapes import Copies, find_copies, find_shapes, group_duplicates, mark_copies
from prismgp.prism.stacking import Residuals
from tests import reference
from tests.model.test_io import rewritten
from tests.prism.small import data, model
from tests.prism.test_local import WEIGHTS, beside
from tests.tolerances import PREDICTION

USUAL, OF_COPIES = StudentShape(4.0), SkewedShape(3.0, 2.0)
COPIED = 60  # rows that come twice, the first and the last
LEVELS = [0.01, 0.3, 0.5, 0.95]


def repeated(q=None):
    """Rows, some of which come twice, with targets that differ."""
    x, y = data(150, q=q)
    return np.concatenate([x, x[:COPIED]]), np.concatenate([y, y[:COPIED] + 0.1])


@pytest.fixture(scope="module", params=[None, 2], ids=["one output", "two"])
def local(request):
    """A fit with neighbour GPs of all kinds beside it, and its rows."""
    x, y = repeated(request.param)
    fit = model(local="never", max_steps=2).fit(x, y)
    targets = y.reshape(len(y), -1)
    fit.model_ = replace(fit.model_, predictor=beside((fit.model_, x, targets), k=8))
    return fit, x, targets


@pytest.fixture
def shaped(local):
    """The same with a shape for copies and another for other rows; of two outputs one has none."""
    fit, x, y = local
    usual, own = ((USUAL,), (OF_COPIES,)) if y.shape[1] == 1 else ((NormalShape(), USUAL), (OF_COPIES, NormalShape()))
    fit = copy(fit)
    fit.model_ = replace(fit.model_, shapes=usual, copy_shapes=own, tail_share=0.01)
    return fit, x, y


def mixed_rows(x):
    """Known rows and new ones, in turn, and which are known."""
    known = np.arange(40) % 3 == 0
    return np.where(known[:, None], x[:40], x[:40] + 0.01), known


# -- finding copies --------------------------------------------------------------------------------


def test_copies_are_found_again(local):
    fit, x, _ = local
    rows, known = mixed_rows(x)
    hashes = fit.model_.predictor.near[0].gp.sorted_hashes(x.shape[1])
    np.testing.assert_array_equal(mark_copies(hashes, fit.model_.to_model(rows)), known)


def test_zero_has_no_sign():
    known = np.unique(shapes_module._hash(torch.tensor([[0.0, 1.0], [2.0, 3.0]])))
    np.testing.assert_array_equal(mark_copies(known, torch.tensor([[-0.0, 1.0], [1.0, 0.0]])), [True, False])


def test_rows_of_an_update_are_known(shaped):
    fit, x, y = shaped
    new = x[:5] + 0.01
    before, after = fit.model_, fit.partial_fit(new, y[:5] if y.shape[1] > 1 else y[:5, 0]).model_
    assert not before._row_shapes.mark_copies(before.to_model(new)).any()
    assert after._row_shapes.mark_copies(after.to_model(new)).all()


# -- leaving rows out ------------------------------------------------------------------------------


def test_rows_are_predicted_without_themselves(local):
    """Against dense GPs on the nearest of the other rows."""
    fit, x, y = local
    whole, predictor = fit.model_, fit.model_.predictor
    inputs, targets, index = whole.to_model(x), whole.target_to_model(y), np.arange(0, len(x), 7)
    seen = evaluate(predictor.base, inputs[index], targets[index])
    there = evaluate(predictor.base, inputs[index]).coordinates.double().numpy()
    m, v, noise = (each.numpy() for each in (seen.mean, seen.variance, seen.noise))
    means, variances, noises = [m], [v], [noise]
    for near in predictor.near:
        params, rows = near.gp.params, near.gp.coordinates.double().numpy()
        mu, spread = np.empty_like(m), np.empty_like(v)
        for i, row in enumerate(index):
            point = there[i : i + 1, : rows.shape[1]]
            distance = reference.distances(rows, point, params.lengthscale)[:, 0]
            distance[row] = np.inf
            nearest = np.argsort(distance, kind="stable")[:8]
            inner, cross = (
                reference.kernel("matern32", rows[nearest], each, params.lengthscale) for each in (rows[nearest], point)
            )
            for k, (signal, nu) in enumerate(zip(params.signal, params.noise, strict=True)):
                values = near.gp.targets[nearest, k].numpy()
                one = np.full((1, 1), signal)
                found = reference.predict(signal * inner, signal * cross, one, nu, values, 0.0)
                mu[i, k], spread[i, k] = (each.item() for each in found)
        nu = params.noise * np.ones_like(m)
        if near.view.residual:
            s = np.sqrt(v + noise)
            mu, spread, nu = m + s * mu, s**2 * spread + nu * v, nu * noise
        means, variances, noises = [*means, mu], [*variances, spread], [*noises, nu]
    mean, variance = reference.mixture_moments(np.array(WEIGHTS), np.stack(means), np.stack(variances))
    t = predictor.temperature
    found = predictor.leave_one_out(inputs[index], targets[index], torch.as_tensor(index))
    for got, value in zip(found, (mean, variance * t, np.tensordot(WEIGHTS, np.stack(noises), 1) * t), strict=True):
        np.testing.assert_allclose(got, value, rtol=PREDICTION, atol=PREDICTION)


def find(fit, x, y, *, held_out, n_noise=0):
    pool = StandardisedRows(ArraySource(x, y, n_noise=n_noise), fit.model_.standardiser, fit.model_.dtype)
    return find_copies(fit.model_.predictor, pool, held_out, np.random.default_rng(0))


def test_residuals_are_those_of_rows_with_copies(local, monkeypatch):
    monkeypatch.setattr(shapes_module, "LEAST_COPIES", 2 * COPIED)
    fit, x, y = local
    whole, held_out = fit.model_, np.array([0, COPIED, len(x) - 1])
    found = find(fit, x, y, held_out=held_out)
    np.testing.assert_array_equal(found.alone, [False, True, False])
    assert found.weights is None
    index = np.concatenate([np.arange(COPIED), np.arange(len(x) - COPIED, len(x))])
    targets = whole.target_to_model(y)[index]
    mean, variance, noise = whole.predictor.leave_one_out(whole.to_model(x)[index], targets, torch.as_tensor(index))
    np.testing.assert_allclose(found.residuals, (targets - mean) / (variance + noise).sqrt(), rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(shapes_module, "LEAST_COPIES", 2 * COPIED + 1)
    assert find(fit, x, y, held_out=held_out) is None


def test_rows_are_drawn_if_they_are_many(local, monkeypatch):
    monkeypatch.setattr(shapes_module, "LEAST_COPIES", 2)
    monkeypatch.setattr(shapes_module, "MOST_COPIES", 30)
    fit, x, y = local
    assert len(find(fit, x, y, held_out=np.arange(5)).residuals) == 30


def test_an_exact_gp_has_no_copies(local, monkeypatch):
    monkeypatch.setattr(shapes_module, "LEAST_COPIES", 2)
    fit, x, y = local
    near = replace(fit.model_.predictor.near[-1], view=_EXACT)
    other = copy(fit)
    exact = replace(fit.model_.predictor, near=(near,), weights=np.array([0.5, 0.5]))
    other.model_ = replace(fit.model_, predictor=exact)
    assert find(other, x, y, held_out=np.arange(5)) is None


# -- shapes of their own ---------------------------------------------------------------------------


def draws(shape, n, seed):
    return shape.sample(np.random.default_rng(seed), (n, 1))


def find_of(values, q, copies=None, weights=None):
    return find_shapes(Residuals(values, torch.zeros(len(values), 1), weights), q, copies)


def test_copies_have_a_shape_of_their_own():
    """Held-out rows without a copy show the shape of other rows."""
    usual, own = draws(USUAL, 2_000, 0), draws(OF_COPIES, 2_000, 1)
    residuals, alone = np.concatenate([usual, own[:500]]), np.arange(2_500) < 2_000
    found = find_of(residuals, 1, Copies(own, None, alone))
    assert found.shapes == find_of(usual, 1).shapes
    assert found.copy_shapes == find_of(own, 1).shapes
    (status,) = found.status
    assert status["kind"] == found.shapes[0].kind
    assert status["copies"]["kind"] == found.copy_shapes[0].kind
    weighted = find_of(residuals, 1, Copies(own, np.ones(2_000), alone), np.ones(2_500))
    assert weighted.status[0]["copies"]["gain"] == pytest.approx(status["copies"]["gain"])


@pytest.mark.parametrize("shape", [NormalShape(), USUAL], ids=lambda shape: shape.kind)
def test_copies_like_other_rows_have_the_same_shape(shape):
    residuals = draws(shape, 2_000, 0)
    found = find_of(residuals, 1, Copies(draws(shape, 2_000, 1), None, np.ones(2_000, dtype=bool)))
    assert found == find_of(residuals, 1)
    assert found.copy_shapes is None


def test_one_output_of_two_may_have_the_same_shape():
    residuals = np.column_stack([draws(USUAL, 2_000, 0), draws(USUAL, 2_000, 1)])
    own = np.column_stack([draws(OF_COPIES, 2_000, 2), draws(USUAL, 2_000, 3)])
    found = find_of(residuals, 2, Copies(own, None, np.ones(2_000, dtype=bool)))
    assert found.copy_shapes[0] != found.shapes[0]
    assert found.copy_shapes[1] == found.shapes[1]


def test_few_rows_without_copies_show_no_shape():
    residuals = draws(USUAL, 2_000, 0)
    found = find_of(residuals, 1, Copies(draws(OF_COPIES, 2_000, 1), None, np.arange(2_000) < 10))
    assert found.shapes == find_of(residuals, 1).shapes
    assert found.copy_shapes is not None


# -- the distribution of a model -------------------------------------------------------------------


def test_density_and_quantiles_are_those_of_the_rows_shape(shaped):
    fit, x, y = shaped
    rows, known = mixed_rows(x)
    whole, y = fit.model_, y[:40]
    mean, std = whole.predict(rows)
    found = whole.marginal_log_density(rows, y)
    for k in range(y.shape[1]):
        for mask, shape in ((known, whole.copy_shapes[k]), (~known, whole.shapes[k])):
            z = (y[mask, k] - mean[mask, k]) / std[mask, k]
            expected = tailed_log_density(shape, 0.01, z) - np.log(std[mask, k])
            np.testing.assert_allclose(found[mask, k], expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(whole.log_density([(rows, y)]), found.sum(1), rtol=1e-8)


@pytest.mark.parametrize("row", [0, 1])
def test_quantiles_are_those_of_the_density(shaped, row):
    """By numerical integration, of a copy and of a new row."""
    fit, x, _ = shaped
    rows, _ = mixed_rows(x)
    here, whole = rows[row : row + 1], fit.model_
    mean, std, quantiles = whole.predict_quantiles(here, LEVELS)
    for k, level in product(range(mean.shape[1]), range(len(LEVELS))):
        # The density falls like a power of the distance, so that the steps grow with it.
        last = np.arcsinh((quantiles[0, k, level] - mean[0, k]) / std[0, k])
        t = np.linspace(np.arcsinh(-4e3), last, 2_001)
        y = np.full((len(t), mean.shape[1]), np.nan)
        y[:, k] = mean[0, k] + std[0, k] * np.sinh(t)
        density = np.exp(whole.marginal_log_density(np.repeat(here, len(t), 0), y)[:, k])
        assert simpson(density * std[0, k] * np.cosh(t), x=t) == pytest.approx(LEVELS[level], abs=2e-5)


def test_mean_std_and_the_function_stay(local, shaped):
    fit, x, _ = local
    rows, _ = mixed_rows(x)
    for got, expected in zip(shaped[0].model_.predict(rows), fit.model_.predict(rows), strict=True):
        np.testing.assert_array_equal(got, expected)
    pairs = (each.model_.predict_quantiles(rows, LEVELS, include_noise=False)[2] for each in (shaped[0], fit))
    np.testing.assert_array_equal(*pairs)


def test_chunks_do_not_matter(shaped):
    fit, x, y = shaped
    rows, _ = mixed_rows(x)
    whole = fit.model_
    small = replace(whole, chunk_rows=7)
    np.testing.assert_allclose(
        small.predict_quantiles(rows, LEVELS)[2], whole.predict_quantiles(rows, LEVELS)[2], rtol=1e-9
    )
    np.testing.assert_allclose(
        small.marginal_log_density(rows, y[:40]), whole.marginal_log_density(rows, y[:40]), rtol=1e-8, atol=1e-8
    )


def test_unknown_cells_are_no_copies(shaped):
    fit, x, _ = shaped
    rows = x[:3].copy()
    rows[1, 0] = np.nan
    whole = replace(fit.model_, background=x)
    usual = replace(whole, copy_shapes=None)
    found, expected = (each.predict_quantiles(rows, LEVELS)[2] for each in (whole, usual))
    np.testing.assert_array_equal(found[1], expected[1])
    assert (found[0] != expected[0]).any()


def test_without_neighbours_no_row_is_a_copy(shaped):
    fit, x, _ = shaped
    alone = replace(fit.model_, predictor=fit.model_.predictor.base)
    found, expected = (each.predict_quantiles(x[:5], LEVELS)[2] for each in (alone, replace(alone, copy_shapes=None)))
    np.testing.assert_array_equal(found, expected)


# -- files and fits --------------------------------------------------------------------------------


def test_file_keeps_the_shapes(shaped, tmp_path):
    fit, x, y = shaped
    fit.save(tmp_path / "m")
    other = prismgp.load(tmp_path / "m")
    assert other.model_.copy_shapes == fit.model_.copy_shapes
    rows, _ = mixed_rows(x)
    np.testing.assert_array_equal(other.predict_quantiles(rows, LEVELS), fit.predict_quantiles(rows, LEVELS))
    targets = y[:40] if y.shape[1] > 1 else y[:40, 0]
    np.testing.assert_array_equal(other.log_density(rows, targets), fit.log_density(rows, targets))


@pytest.mark.parametrize("shapes", [[], {"kind": "normal"}, [{"kind": "student", "degrees": 1.0}]], ids=str)
def test_hostile_shapes_are_refused(shaped, tmp_path, shapes):
    shaped[0].save(tmp_path / "m")
    changed = rewritten((tmp_path / "m").read_bytes(), lambda config: config.update(copy_shape=shapes))
    (tmp_path / "hostile").write_bytes(changed)
    with pytest.raises(ModelFileError, match="nois"):
        prismgp.load(tmp_path / "hostile")


@pytest.fixture(scope="module")
def designed():
    """Few places, each with a level of its own, and either almost no noise or much: what copies show."""
    rng = np.random.default_rng(0)
    place = rng.integers(40, size=700)
    places, levels = rng.uniform(-2, 2, (40, 2)), rng.normal(size=40)
    y = levels[place] + rng.normal(size=700) * np.where(rng.random(700) < 0.3, 0.5, 0.02)
    return places[place], y


@pytest.mark.slow
@pytest.mark.usefixtures("short_fits")
def test_fit_finds_the_shape_of_copies(designed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("prismgp.prism.local_fit.MOST_WHOLE_ROWS", 0)  # no exact GP
    x, y = designed
    fit = model(local="always", validation_fraction=0.3).fit(x, y)
    assert fit.model_.copy_shapes is not None
    (status,) = fit.fit_status_["noise_shape"]
    assert status["copies"]["kind"] == fit.model_.copy_shapes[0].kind
    assert status["copies"]["gain"] > 0
    fit.save(tmp_path / "m")
    assert main(["info", "--json", str(tmp_path / "m")]) == 0
    assert json.loads(capsys.readouterr().out)["fit_status"]["noise_shape"] == [status]


@pytest.mark.slow
@pytest.mark.usefixtures("short_fits")
def test_an_interrupt_while_copies_are_predicted(designed, monkeypatch):
    """What was fitted until then can be kept."""

    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("prismgp.prism.local_fit.find_copies", interrupt)
    x, y = designed
    with pytest.raises(KeyboardInterrupt):
        model(local="always", validation_fraction=0.3).fit(x[:150], y[:150])
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(local="always", validation_fraction=0.3, on_interrupt="keep").fit(x[:150], y[:150])
    assert fit.fit_status_["interrupted"]
    assert fit.model_.copy_shapes is None


def test_known_rows_are_hashed_once(shaped, monkeypatch):
    """Also if a model is used on another device or by other chunks in between."""
    fit, x, _ = shaped
    before = fit.predict_interval(x)

    def unexpected(*_args):
        raise AssertionError("computed again")

    monkeypatch.setattr("prismgp.neighbors.local.hash_rows", unexpected)
    np.testing.assert_array_equal(fit.predict_interval(x), before)


@pytest.mark.usefixtures("short_fits")
def test_normal_noise_needs_no_copies(designed, monkeypatch):
    def unexpected(*_args):
        raise AssertionError("copies were looked for")

    monkeypatch.setattr("prismgp.prism.local_fit.find_copies", unexpected)
    x, y = designed
    fit = model(local="always", noise_shape="normal").fit(x[:150], y[:150])
    assert fit.model_.copy_shapes is None


# -- rows that were written down twice -------------------------------------------------------------


def grouped(x, y):
    return group_duplicates(torch.as_tensor(x), torch.as_tensor(y.reshape(len(y), -1)), 32).numpy()


@pytest.mark.parametrize("q", [None, 2])
def test_duplicates_are_one_group(q):
    x, y = data(150, q=q)
    order = np.random.default_rng(0).permutation(250) % 150
    _, first = np.unique(order, return_index=True)
    np.testing.assert_array_equal(grouped(x[order], y[order]), first[order])
    np.testing.assert_array_equal(grouped(x, y), np.arange(150))


def test_copies_with_targets_of_their_own_are_no_duplicates():
    x, y = repeated()
    np.testing.assert_array_equal(grouped(x, y), np.arange(len(x)))
    y[-COPIED:] = y[:COPIED]
    assert len(np.unique(grouped(x, y))) == len(x) - COPIED
    y[:5] += 1.0  # now five pairs differ
    np.testing.assert_array_equal(grouped(x, y), np.arange(len(x)))


def test_equal_targets_by_chance_make_no_duplicates():
    """Of few values that the target has, copies often have the same."""
    x, y = data(150)
    x, y = np.tile(x, (2, 1)), np.tile(np.round(y / 3.0), 2)
    np.testing.assert_array_equal(grouped(x, y), np.arange(300))


def test_every_row_has_neighbours_beside_its_duplicates(monkeypatch):
    """And not so many duplicates that a search must pass over."""
    x, y = data(150)
    order = np.append(np.zeros(100, dtype=int), np.arange(1, 33))
    assert len(np.unique(grouped(x[order], y[order]))) == 33
    np.testing.assert_array_equal(grouped(x[order[:-1]], y[order[:-1]]), np.arange(131))
    monkeypatch.setattr(shapes_module, "MOST_DUPLICATES", 99)
    np.testing.assert_array_equal(grouped(x[order], y[order]), np.arange(132))


def test_all_rows_may_be_the_same():
    x, y = data(150)
    fit = model(local="always").fit(np.tile(x[:1], (150, 1)), np.tile(y[:1], 150))
    np.testing.assert_allclose(fit.predict(x[:1]), y[:1], atol=1e-6)


@pytest.mark.slow
def test_duplicates_teach_nothing_about_new_rows():
    """Every row twice: neighbours of held-out rows would be their duplicates, and know their targets."""
    x, y = data(200)
    fit = model(local="auto").fit(np.tile(x, (2, 1)), np.tile(y, 2))
    assert fit.fit_status_["local"]["duplicates"] == 200
    new, target = data(1_000, seed=1)
    lower, upper = fit.predict_interval(new, 0.9).T
    assert np.mean((lower <= target) & (target <= upper)) > 0.8
    assert "duplicates" not in model(local="auto").fit(x, y).fit_status_["local"]


@pytest.mark.slow
def test_intervals_where_the_inputs_take_few_values():
    """Six places, each with a noise of its own: one of them must not decide about all."""
    noise = np.array([0.2, 0.5, 1.0, 1.5, 2.0, 3.0])

    def measure(rng, n):
        place = rng.integers(0, 6, n)
        return place[:, None].astype(float), place + noise[place] * rng.normal(size=n)

    found = []
    for seed in (2, 4, 6):
        rng = np.random.default_rng(seed)
        fit = prismgp.PrismGPRegressor(n_members=1, max_steps=60, random_state=seed).fit(*measure(rng, 300))
        new, y = measure(rng, 4_000)
        found.append(coverage(y, *fit.predict_interval(new, coverage=0.95).T))
    assert min(found) > 0.92
    assert max(found) < 0.99
