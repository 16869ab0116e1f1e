"""Fits of PrismGPRegressor: repeatable, described by attributes, with parameters checked."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from prismgp import PrismGPRegressor, SSGPRegressor, load
from prismgp.core.kernels import Parameters, draw_frequencies
from prismgp.exceptions import DataError
from prismgp.prism import Expert, RevisedMap, joint
from prismgp.prism import fit as recipes
from prismgp.prism.joint import usable_start
from prismgp.prism.training_rows import TrainingRows
from tests.prism.small import assert_same_predictions, data, has_members, model


def test_a_time_limit_may_be_looked_at_when_all_members_are_done():
    x, y = data()
    status = model(max_steps=20, max_seconds=1e6).fit(x, y).fit_status_
    assert [member["steps"] for member in status["members"]] == [20, 20]


# -- repeatable ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"optimize": True}, {"recipe": "paper"}, {"dropout": 0.2}],
    ids=["joint", "learned parameters", "paper", "dropout"],
)
def test_a_seed_repeats_bit_for_bit(changes):
    x, y = data()
    first, second, other = (model(**{**changes, "random_state": seed}).fit(x, y) for seed in (3, 3, 4))
    assert_same_predictions(first, second, x)
    assert first.log_evidence_ == second.log_evidence_
    assert {**first.history_, "seconds": None} == {**second.history_, "seconds": None}
    assert not np.array_equal(first.predict(x), other.predict(x))
    if not changes:
        assert has_members(first)


def test_members_differ(fitted):
    networks = [expert.map for expert in fitted[0].model_.predictor.experts if isinstance(expert.map, RevisedMap)]
    assert len(networks) == 2
    assert not torch.equal(networks[0].frequencies, networks[1].frequencies)
    assert not torch.equal(networks[0].latent_head.weight, networks[1].latent_head.weight)


def test_global_random_state_is_untouched():
    x, y = data()
    np.random.seed(3)  # noqa: NPY002 - the global state is what this test is about
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    model(dropout=0.1).fit(x, y).sample_y(x, random_state=1)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_rows_are_left_alone_and_may_be_frames():
    x, y = data()
    kept = x.copy(), y.copy()
    fit = model().fit(x, y)
    frame = pd.DataFrame(np.ascontiguousarray(x), columns=["a", "b"])
    named = model().fit(frame, pd.Series(y))
    assert list(named.feature_names_in_) == ["a", "b"]
    np.testing.assert_allclose(named.predict(frame), fit.predict(x), rtol=1e-5)
    np.testing.assert_array_equal(x, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    x.flags.writeable = False
    model().fit(x, y).predict(x[::-1])


def test_memory_order_does_not_matter():
    x, y = data()
    assert_same_predictions(model().fit(np.asfortranarray(x), y), model().fit(x, y), x)


def test_chunks_do_not_matter():
    x, y = data()
    fit, other = (model(chunk_size=size).fit(x, y) for size in ("auto", 17))
    for got, expected in zip(other.predict(x, return_std=True), fit.predict(x, return_std=True), strict=True):
        # Rounding of the statistics, and the search for the weights, which sees it.
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_defaults_of_torch_do_not_matter():
    x, y = data(80)
    expected = model().fit(x, y).predict(x)
    torch.set_default_dtype(torch.float64)
    try:
        other = model().fit(x, y).predict(x)
        paper = model(recipe="paper", hidden=8).fit(x, y).predict(x)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(other, expected)
    assert np.isfinite(paper).all()
    with torch.no_grad():
        np.testing.assert_array_equal(model().fit(x, y).predict(x), expected)
    with torch.inference_mode():
        np.testing.assert_array_equal(model().fit(x, y).predict(x), expected)


def test_clone_and_pickle(fitted):
    fit, x, _ = fitted
    assert_same_predictions(pickle.loads(pickle.dumps(fit)), fit, x)
    copied = clone(fit)
    assert copied.get_params() == fit.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(x)


# -- what a fit leaves behind ----------------------------------------------------------------------


HISTORY = {
    "member",
    "step",
    "seconds",
    "evidence",
    "objective",
    "reconstruction",
    "conditional_kl",
    "marginal_kl",
    "separation",
    "validation_nlpd",
    "validation_rmse",
    "radius",
    "smallest_separation",
    "cluster_sizes",
}


def test_attributes(fitted):
    fit, x, _ = fitted
    status = fit.fit_status_
    json.dumps([status, fit.history_], allow_nan=False)
    assert set(fit.history_) == HISTORY
    assert {len(values) for values in fit.history_.values()} == {2}  # a check of each member, at its last step
    assert fit.history_["member"] == [0, 1]
    assert fit.history_["step"] == [6, 6]
    assert [sum(sizes) for sizes in fit.history_["cluster_sizes"]] == [status["held_out_rows"]] * 2
    assert status["rows"] == len(x)
    assert status["held_out_rows"] == 15
    assert set(status["weights"]) == {"member 0", "member 1", "ssgp with learned noise", "ssgp"}
    assert sum(status["weights"].values()) == pytest.approx(1.0)
    assert [member["noise"] for member in status["members"]] == ["input", "constant"]
    assert all(member["steps"] == 6 for member in status["members"])
    assert not status["interrupted"]
    assert status["message"] == "2 of 2 members trained"
    assert status["stages"] == []  # nothing was optimised
    assert len(status["temperature"]) == 1
    assert fit.n_iter_ == 12
    assert fit.frequencies_.shape[0] == 4
    assert len(fit.lengthscale_) == fit.frequencies_.shape[1]


@pytest.mark.parametrize("noise_model", ["auto", "constant", "input"])
def test_kinds_of_members(noise_model):
    x, y = data(80)
    fit = model(n_members=5, max_steps=1, optimize=False, noise_model=noise_model, dropout=None).fit(x, y)
    members = fit.fit_status_["members"]
    expected = ["input", "constant", "input", "input", "input"] if noise_model == "auto" else [noise_model] * 5
    assert [member["noise"] for member in members] == expected
    assert [member["dropout"] for member in members] == [0.0, 0.0, 0.05, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        (5_000, None, (1_000, 1_000)),
        (5_001, None, (1_000, 2_000)),
        (100_001, None, (1_500, 3_000)),
        (5_001, 300, (300, 300)),
        (900, 7_000, (1_000, 7_000)),
    ],
)
def test_steps_of_a_member_depend_on_the_rows(rows, given, expected):
    names = dict.fromkeys(recipes.PrismSettings.names())
    settings = recipes.PrismSettings(**{**names, "recipe": "joint", "max_steps": given})
    assert settings.member_steps(rows) == expected


def test_many_rows_have_one_member_and_large_batches(monkeypatch):
    """What the user has set stays; what is left to the recipe depends on the rows."""
    monkeypatch.setattr(recipes, "MANY_ROWS", 99)
    x = np.random.default_rng(0).normal(size=(100, 2))
    y = np.sin(x[:, 0])
    quick = {"n_frequencies": 4, "lengthscale": 1.0, "optimize": False, "max_steps": 1, "random_state": 0}
    draw, drawn = TrainingRows.draw, []

    def members_and_batch(**options):
        drawn.clear()
        with monkeypatch.context() as patch:
            patch.setattr(TrainingRows, "draw", lambda self, n, rng: drawn.append(n) or draw(self, n, rng))
            fit = PrismGPRegressor(**{**quick, "hidden": 8, **options}).fit(x, y)
        return len(fit.fit_status_["members"]), drawn[0]

    assert members_and_batch() == (1, 4096)
    assert members_and_batch(n_members=2, batch_size=32) == (2, 32)
    assert PrismGPRegressor(4, recipe="paper", max_steps=2, optimize=False).fit(x, y).n_iter_ == 2
    monkeypatch.setattr(recipes, "MANY_ROWS", 100)
    assert members_and_batch() == (4, 504)


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize("gating", ["soft", "none"])
def test_many_rows_train_some_of_many_frequencies(gating, noise, monkeypatch, tmp_path):
    """Networks are trained with the first of their frequencies; the posterior, and the file, have them all."""
    monkeypatch.setattr(recipes, "MANY_ROWS", 100)
    monkeypatch.setattr(recipes, "TRAINED_WIDTH", 24 if gating == "soft" else 8)
    x, y = data()
    wide, narrow = (model(n_frequencies=p, gating=gating, noise_model=noise) for p in (12, 4))
    wide.set_params(checkpoint=tmp_path / "fit").fit(x, y)
    assert len(wide.frequencies_) == 12
    networks = [expert.map for expert in wide.model_.predictor.experts if isinstance(expert.map, RevisedMap)]
    assert networks
    assert all(network.sizes.frequencies == len(network.frequencies) == 12 for network in networks)
    # Trained on the same batches with the same frequencies, a network is the same as one that has no others.
    monkeypatch.setattr(joint, "draw_frequencies", lambda *args: draw_frequencies(args[0], 12, *args[2:])[: args[1]])
    narrow.fit(x, y)
    assert narrow.history_["evidence"] == wide.history_["evidence"]
    # Its posterior is that of all features.
    expert = next(expert for expert in wide.model_.predictor.experts if isinstance(expert.map, RevisedMap))
    features, _ = expert.map.features(wide.model_.to_model(x))
    assert expert.statistics.width == features.shape[1] == (72 if gating == "soft" else 24)
    wide.save(tmp_path / "model.prism")
    assert_same_predictions(load(tmp_path / "model.prism"), wide, x)
    with monkeypatch.context() as patch:  # the networks come from the checkpoint
        patch.delattr(joint, "run_training")
        assert_same_predictions(clone(wide).fit(x, y), wide, x)
    more = clone(wide).set_params(checkpoint=None).fit(x[:120], y[:120]).partial_fit(x[120:], y[120:])
    assert [each.statistics.n for each in more.model_.predictor.experts] == [150] * len(more.model_.predictor.experts)


def test_models_of_a_training_have_all_frequencies(monkeypatch):
    """What a callback is shown is the mixture of that moment; the training goes on as if nobody looked."""
    monkeypatch.setattr(recipes, "MANY_ROWS", 100)
    monkeypatch.setattr(recipes, "TRAINED_WIDTH", 24)
    x, y = data()
    unseen, watched = model(n_frequencies=12, max_seconds=1e6), model(n_frequencies=12)
    seen = []

    def look(event):
        if event.stage == "members":
            seen.append(event.model())

    watched._callback = look
    watched.fit(x, y)
    assert seen
    found = [each for fit in seen for each in fit.predictor.experts if isinstance(each.map, RevisedMap)]
    assert {each.map.sizes.frequencies for each in found} == {12}
    assert [each["frequencies"] for each in watched.fit_status_["members"]] == [4, 4]
    assert_same_predictions(unseen.fit(x, y), watched, x)


def test_held_out_rows_join_the_posterior(fitted):
    fit, x, y = fitted
    for expert in fit.model_.predictor.experts:
        assert expert.statistics.n == len(x)
        z = torch.as_tensor((x - fit.model_.standardiser.x_shift) / fit.model_.standardiser.x_scale)
        target = torch.as_tensor((y - fit.model_.standardiser.y_shift) / fit.model_.standardiser.y_scale)[:, None]
        whole = Expert.of(expert.name, expert.map, expert.params, expert.accumulate([(z, target)], 1))
        np.testing.assert_allclose(expert.predict(z, variance=False)[0], whole.predict(z, variance=False)[0], atol=1e-8)


def test_optimize_false_keeps_the_kernel_parameters():
    x, y = data()
    fixed = {"noise_variance": 2e-3, "signal_variance": 10.0, "mean": 4.0}
    kept = model(**fixed).fit(x, y)
    s = kept.model_.standardiser
    members = [expert for expert in kept.model_.predictor.experts if isinstance(expert.map, RevisedMap)]
    assert members
    for expert in members:
        np.testing.assert_allclose(expert.params.signal, 10.0 / s.y_scale**2, rtol=1e-6)
        np.testing.assert_allclose(expert.params.noise, 2e-3 / s.y_scale**2, rtol=1e-6)
        np.testing.assert_allclose(expert.params.mean, (4.0 - s.y_shift) / s.y_scale, rtol=1e-5)
        np.testing.assert_allclose(expert.params.lengthscale[2:], 1.0 / s.x_scale, rtol=1e-5)
        np.testing.assert_allclose(expert.params.lengthscale[:2], np.sqrt(2.0), rtol=1e-5)


def test_learned_noise_leaves_the_mean_alone(fitted):
    """The plain SSGP with learned noise has the very mean and spread of the plain one, and another noise."""
    fit, x, _ = fitted
    *_, informed, plain = fit.model_.predictor.experts
    rows = fit.model_.to_model(x)
    (mean, spread, noise), (plain_mean, plain_spread, plain_noise) = (
        expert.predict(rows, variance=True) for expert in (informed, plain)
    )
    torch.testing.assert_close(mean, plain_mean, rtol=0, atol=0)
    torch.testing.assert_close(spread, plain_spread, rtol=0, atol=0)
    assert float((noise / plain_noise).std()) > 0.0
    assert 0.2 < float(noise.mean() / plain_noise.mean()) / float(informed.noise_scale[0]) < 5.0
    assert informed.log_evidence == plain.log_evidence


def test_progress_bar_only_when_asked(capsys):
    x, y = data()
    model().fit(x, y)
    silent = capsys.readouterr()
    assert silent.out + silent.err == ""
    model(verbose=1).fit(x, y)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "PrismGPRegressor" in shown.err
    assert "held-out NLPD of the best member" in shown.err
    assert "12/12" in shown.err


@pytest.mark.parametrize("changes", [{"gating": "hard"}, {"gating": "none"}, {"kernel": "matern32"}, {"q": 2}])
def test_settings(changes):
    x, y = data(q=changes.pop("q", None))
    fit = model(**changes).fit(x, y)
    mean, std = fit.predict(x, return_std=True)
    assert mean.shape == y.shape
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    widths = {expert.statistics.width for expert in fit.model_.predictor.experts if isinstance(expert.map, RevisedMap)}
    assert widths == {8 if changes.get("gating") == "none" else 24}


def test_constant_columns_stay_constant_in_the_paper_recipe():
    x, y = data(80)
    x = np.column_stack([x, np.full(80, 3.0)])
    fit = model(recipe="paper", hidden=8).fit(x, y)
    (expert,) = fit.model_.predictor.experts
    rows = torch.as_tensor((x - fit.model_.standardiser.x_shift) / fit.model_.standardiser.x_scale)
    assert (expert.map.reconfigure(rows)[:, 2] == 0).all()


def test_inputs_that_say_nothing_leave_the_others_their_relevance():
    """The scales of a network's inputs are relative to the average relevance, which silent columns must not shift."""
    lengthscale = np.array([0.5, 3.0, 80.0, 7.0])
    start = Parameters(np.log(lengthscale), *(np.zeros(1) for _ in range(3)))
    silent = np.array([False, True, False, True])
    found = usable_start(start, silent, learn_kernel=False).lengthscale
    np.testing.assert_allclose(found[~silent], lengthscale[~silent])
    np.testing.assert_allclose(np.mean(found**-2.0), np.mean(lengthscale[~silent] ** -2.0))
    none = usable_start(start, np.ones(4, dtype=bool), learn_kernel=False)
    np.testing.assert_allclose(none.lengthscale, 1.0)


# -- few rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 10, 49])
def test_few_rows_are_the_plain_ssgp(n):
    x, y = data(n)
    fit = model().fit(x, y)
    assert fit.fit_status_["weights"] == {"ssgp": 1.0}
    assert fit.fit_status_["held_out_nlpd"] is None
    assert "fewer than 50 rows" in fit.fit_status_["message"]
    assert fit.history_ == {}
    plain = SSGPRegressor(
        4,
        frequencies=fit.frequencies_,
        lengthscale=fit.lengthscale_,
        signal_variance=fit.signal_variance_,
        noise_variance=fit.noise_variance_,
        mean=fit.mean_,
        optimize=False,
    ).fit(x, y)
    new = data(20, seed=1)[0]
    for got, expected in zip(fit.predict(new, return_std=True), plain.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7)
    assert fit.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-8)


def test_fifty_rows_train_members():
    x, y = data(50)
    assert len(model().fit(x, y).fit_status_["members"]) == 2


# -- wrong parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": "magic"},
        {"gating": "half"},
        {"noise_model": "loud"},
        {"output": "both"},
        {"kernel": "cosine"},
        {"frequencies": "all"},
        {"n_frequencies": 0},
        {"n_frequencies": 2.5},
        {"n_components": 0},
        {"n_members": 0},
        {"n_members": True},
        {"latent_dim": 0},
        {"hidden": 0},
        {"hidden": (8, -1)},
        {"hidden": "wide"},
        {"hidden": [[8, 8]]},
        {"batch_size": 0},
        {"max_steps": 0},
        {"patience": -1},
        {"alpha": -1.0},
        {"beta": None},
        {"elbo_weight": float("nan")},
        {"validation_fraction": 0.0},
        {"validation_fraction": 1.0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"dtype": "float16"},
        {"device": "tpu"},
        {"max_iter": 0},
        {"n_restarts": -1},
        {"chunk_size": 0},
        {"lengthscale": -1.0},
        {"lengthscale": [1.0, 2.0, 3.0]},
        {"noise_variance": 0.0},
        {"signal_variance": "large"},
    ],
    ids=str,
)
def test_wrong_parameters_are_named(changes):
    x, y = data(60)
    (name,) = changes
    with pytest.raises(DataError, match=name):
        model(**changes).fit(x, y)


def test_the_paper_has_one_layer():
    x, y = data(60)
    with pytest.raises(DataError, match="hidden"):
        model(recipe="paper", hidden=(8, 8)).fit(x, y)


def test_frequencies_cannot_be_given():
    """The plain SSGP takes an array; a network's latent inputs have no use for one."""
    x, y = data(60)
    with pytest.raises(DataError, match="frequencies="):
        model(frequencies=np.ones((4, 2))).fit(x, y)
