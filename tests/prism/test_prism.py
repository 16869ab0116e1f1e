"""PrismGPRegressor: repeatable, updatable, interruptible, saved exactly, and able to learn."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats as distributions
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.core.parameters import Parameters
from prismgp.estimators import _recipes
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning
from prismgp.prism import Expert, JointRecipe, RevisedMap, _train, held_out_rows
from prismgp.prism._experts import MapStatistics
from prismgp.prism._stack import _convincing as CONVINCING  # noqa: N812 - before it is replaced below
from tests.model.test_io import rewritten

pytestmark = pytest.mark.usefixtures("members_stay")


# Fixed kernel parameters save most of the time of a fit; the networks are trained all the same.
SMALL = {
    "n_members": 2,
    "lengthscale": 1.0,
    "optimize": False,
    "max_steps": 6,
    "hidden": 8,
    "batch_size": 64,
    "latent_dim": 2,
    "n_components": 3,
    "max_iter": 3,
    "random_state": 0,
}
PAPER = {**SMALL, "recipe": "paper"}
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


def data(n=150, d=2, q=None, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, d)) * np.array([1.0, 10.0, 0.1])[:d] + 3.0
    y = 5.0 + 2.0 * np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=n)
    return x, y if q is None else np.column_stack([y, *(-3.0 * y + rng.normal(size=n) for _ in range(q - 1))])


def model(**changes):
    return PrismGPRegressor(**{"n_frequencies": 4, **SMALL, **changes})


@pytest.fixture(scope="module")
def fitted():
    """A joint fit whose mixture holds members and the plain SSGP; not to be changed."""
    x, y = data()
    return model(optimize=True).fit(x, y), x, y


@pytest.fixture(scope="module")
def fitted_two():
    x, y = data(q=2)
    return model().fit(x, y), x, y


def same_predictions(a, b, x):
    for got, expected in zip(a.predict(x, return_std=True), b.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)


# -- repeatable --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{"optimize": True}, {"recipe": "paper"}, {"dropout": 0.2}], ids=["joint", "paper", "dropout"]
)
def test_a_seed_repeats_bit_for_bit(changes):
    x, y = data()
    first, second, other = (model(**{**changes, "random_state": seed}).fit(x, y) for seed in (3, 3, 4))
    same_predictions(first, second, x)
    assert first.log_evidence_ == second.log_evidence_
    assert {**first.history_, "seconds": None} == {**second.history_, "seconds": None}
    assert not np.array_equal(first.predict(x), other.predict(x))


def test_members_differ(fitted):
    networks = [expert.map for expert in fitted[0]._mixture.experts if isinstance(expert.map, RevisedMap)]
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
    same_predictions(model().fit(np.asfortranarray(x), y), model().fit(x, y), x)


def test_chunks_do_not_matter():
    x, y = data()
    fit, other = (model(chunk_size=size).fit(x, y) for size in ("auto", 17))
    for got, expected in zip(other.predict(x, return_std=True), fit.predict(x, return_std=True), strict=True):
        # Rounding of the statistics, and the search for the weights, which sees it.
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_clone_and_pickle(fitted):
    fit, x, _ = fitted
    same_predictions(pickle.loads(pickle.dumps(fit)), fit, x)
    copied = clone(fit)
    assert copied.get_params() == fit.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(x)


# -- predictions in the user's units ---------------------------------------------------------------------


def test_predict_parts_agree(fitted, fitted_two):
    for fit, x, _ in (fitted, fitted_two):
        mean, std = fit.predict(x, return_std=True)
        _, function_std = fit.predict(x, return_std=True, include_noise=False)
        joint_mean, cov = fit.predict(x, return_cov=True)
        _, function_cov = fit.predict(x, return_cov=True, include_noise=False)
        diagonal = np.einsum("ii...->i...", cov)
        np.testing.assert_array_equal(fit.predict(x), mean)
        np.testing.assert_allclose(joint_mean, mean, rtol=1e-12)
        np.testing.assert_allclose(diagonal, std**2, rtol=1e-8)
        np.testing.assert_allclose(np.einsum("ii...->i...", function_cov), function_std**2, rtol=1e-8)
        off = ~np.eye(len(x), dtype=bool)
        np.testing.assert_array_equal(cov[off], function_cov[off])
        assert (std > function_std).all()


def test_units():
    """Rows and targets in other units: the same model, in those units."""
    x, y = data()
    first = model().fit(x, y)
    second = model(lengthscale=[1.0 * 8, 1.0 / 4]).fit(x * [8.0, 0.25], y * 16.0 - 5.0)
    mean, std = first.predict(x, return_std=True)
    moved_mean, moved_std = second.predict(x * [8.0, 0.25], return_std=True)
    # The differences are rounding, which the training magnifies.
    np.testing.assert_allclose((moved_mean + 5.0) / 16.0, mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(moved_std / 16.0, std, rtol=1e-3)


def test_log_density_is_of_the_mixture(fitted, fitted_two):
    for fit, x, y in (fitted, fitted_two):
        got = fit.log_density(x, y)
        assert got.shape == (len(x),)
        s = fit._standardiser
        z, target = ((v - shift) / scale for v, shift, scale in ((x, s.x_shift, s.x_scale), (y, s.y_shift, s.y_scale)))
        inner = fit._mixture.log_density(torch.as_tensor(z), torch.as_tensor(target.reshape(len(x), -1)))
        np.testing.assert_allclose(got, inner.numpy() - np.log(s.y_scale).sum(), rtol=1e-10)


def test_log_density_integrates_to_one_in_the_users_units(fitted):
    fit, x, _ = fitted
    mean, std = fit.predict(x[:1], return_std=True)
    grid = mean[0] + std[0] * np.linspace(-80, 80, 40_001)  # far: one expert may be much wider than the mixture
    density = np.exp(fit.log_density(np.repeat(x[:1], len(grid), 0), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, rel=1e-8)
    assert np.trapezoid(density * grid, grid) == pytest.approx(mean[0], rel=1e-8)
    assert np.trapezoid(density * (grid - mean[0]) ** 2, grid) == pytest.approx(std[0] ** 2, rel=1e-8)


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("kind", [SSGPRegressor, ExactGPRegressor])
def test_log_density_of_the_others_is_normal(kind, q):
    x, y = data(60, q=q)
    fit = kind(optimize=False).fit(x, y)
    mean, std = fit.predict(x, return_std=True)
    expected = distributions.norm.logpdf(y, mean, std).reshape(len(x), -1).sum(1)
    np.testing.assert_allclose(fit.log_density(x, y), expected, rtol=1e-9)
    with pytest.raises(DataError, match="y has"):
        fit.log_density(x, np.zeros((len(x), 3)))


def test_sampled_functions(fitted, fitted_two):
    fit, x, _ = fitted
    draws = fit.sample_y(x, 5, random_state=7)
    assert draws.shape == (len(x), 5)
    # The same functions, elsewhere, and however many are asked for.
    np.testing.assert_allclose(fit.sample_y(x[40:60], 5, random_state=7), draws[40:60], rtol=1e-9)
    np.testing.assert_allclose(fit.sample_y(x, 2, random_state=7), draws[:, :2], rtol=1e-9)
    assert not np.allclose(fit.sample_y(x, 5, random_state=8), draws)
    two, x, _ = fitted_two
    assert two.sample_y(x, 3, random_state=0).shape == (len(x), 2, 3)
    many = two.sample_y(x[:5], 1_000, random_state=0)
    mean, std = two.predict(x[:5], return_std=True, include_noise=False)
    assert (np.abs(many.mean(2) - mean) < 5 * std / np.sqrt(1_000)).all()
    np.testing.assert_allclose(many.std(2), std, rtol=5 * np.sqrt(1.5 / 1_000))


def test_two_dimensional_targets_of_one_column():
    x, y = data(80)
    flat, column = model().fit(x, y), model().fit(x, y[:, None])
    assert column.predict(x).shape == (80, 1)
    np.testing.assert_array_equal(column.predict(x)[:, 0], flat.predict(x))
    assert column.sample_y(x, 2).shape == (80, 1, 2)


# -- what a fit leaves behind ------------------------------------------------------------------------------


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
    assert len(status["stages"]) > 0
    assert len(status["temperature"]) == 1
    assert fit.n_iter_ == 12
    assert fit.frequencies_.shape[0] == 4
    assert len(fit.lengthscale_) == fit.frequencies_.shape[1]


def test_history_at_every_check(monkeypatch):
    monkeypatch.setattr(_train, "_CHECK_EVERY", 2)
    x, y = data()
    fit = model(max_steps=5).fit(x, y)
    assert fit.history_["step"] == [2, 4, 5] * 2
    assert fit.history_["member"] == [0] * 3 + [1] * 3
    best = [member["held_out_nlpd"] for member in fit.fit_status_["members"]]
    assert best == [min(fit.history_["validation_nlpd"][:3]), min(fit.history_["validation_nlpd"][3:])]


def test_checks_of_wide_features_are_the_same(monkeypatch):
    """By the kernel matrix of the rows instead of the features' moments: the same posterior."""
    x, y = data()
    narrow = model().fit(x, y).history_
    monkeypatch.setattr(_train, "_WIDE", 0)
    wide = model().fit(x, y).history_
    for name in ("validation_nlpd", "validation_rmse"):
        np.testing.assert_allclose(wide[name], narrow[name], rtol=1e-6)


def test_patience_ends_a_member(monkeypatch):
    monkeypatch.setattr(_train, "_CHECK_EVERY", 1)
    values = iter([1.0, 0.5, *[2.0] * 50])
    monkeypatch.setattr(_train, "noise_scale", lambda *_: (np.ones(1), next(values)))
    x, y = data()
    fit = model(n_members=1, max_steps=30, patience=4).fit(x, y)
    (member,) = fit.fit_status_["members"]
    assert (member["steps"], member["best_step"]) == (6, 2)
    assert "no better held-out density for 4 steps" in member["message"]
    assert fit.n_iter_ == 6


@pytest.mark.parametrize("noise_model", ["auto", "constant", "input"])
def test_kinds_of_members(noise_model):
    x, y = data(80)
    fit = model(n_members=5, max_steps=1, optimize=False, noise_model=noise_model, dropout=None).fit(x, y)
    members = fit.fit_status_["members"]
    expected = ["input", "constant", "input", "input", "input"] if noise_model == "auto" else [noise_model] * 5
    assert [member["noise"] for member in members] == expected
    assert [member["dropout"] for member in members] == [0.0, 0.0, 0.05, 0.0, 0.0]


def test_many_rows_have_one_member_and_large_batches(monkeypatch):
    """What the user has set stays; what is left to the recipe depends on the rows, and batches on the features."""
    monkeypatch.setattr(_recipes, "MANY_ROWS", 99)
    x = np.random.default_rng(0).normal(size=(100, 2))
    y = np.sin(x[:, 0])
    seen = []
    draw = _train.TrainingRows.draw
    monkeypatch.setattr(_train.TrainingRows, "draw", lambda self, n, rng: seen.append(n) or draw(self, n, rng))

    def batch(**options):
        seen.clear()
        model = PrismGPRegressor(**{"n_frequencies": 4, "max_steps": 1, "random_state": 0, **options}).fit(x, y)
        return len(model.fit_status_["members"]), seen[0]

    assert batch() == (1, 4096)
    assert batch(n_members=2, batch_size=32) == (2, 32)
    assert batch(n_frequencies=128) == (1, 1024)
    assert batch(n_frequencies=512) == (1, 512)
    assert PrismGPRegressor(4, recipe="paper", max_steps=2).fit(x, y).n_iter_ == 2
    monkeypatch.setattr(_recipes, "MANY_ROWS", 100)
    assert batch() == (4, 512)


def test_held_out_rows_join_the_posterior(fitted):
    fit, x, y = fitted
    for expert in fit._mixture.experts:
        assert expert.statistics.n == len(x)
        z = torch.as_tensor((x - fit._standardiser.x_shift) / fit._standardiser.x_scale)
        target = torch.as_tensor((y - fit._standardiser.y_shift) / fit._standardiser.y_scale)[:, None]
        whole = Expert.of(expert.name, expert.map, expert.params, expert.accumulate([(z, target)], 1))
        np.testing.assert_allclose(expert.predict(z, variance=False)[0], whole.predict(z, variance=False)[0], atol=1e-8)


def test_optimize_false_keeps_the_kernel_parameters():
    x, y = data()
    fixed = {"noise_variance": 0.5, "signal_variance": 10.0, "mean": 4.0}
    kept = model(**fixed).fit(x, y)
    s = kept._standardiser
    members = [expert for expert in kept._mixture.experts if isinstance(expert.map, RevisedMap)]
    assert members
    for expert in members:
        np.testing.assert_allclose(expert.params.signal, 10.0 / s.y_scale**2, rtol=1e-6)
        np.testing.assert_allclose(expert.params.noise, 0.5 / s.y_scale**2, rtol=1e-6)
        np.testing.assert_allclose(expert.params.mean, (4.0 - s.y_shift) / s.y_scale, rtol=1e-5)
        np.testing.assert_allclose(expert.params.lengthscale[2:], 1.0 / s.x_scale, rtol=1e-5)
        np.testing.assert_allclose(expert.params.lengthscale[:2], np.sqrt(2.0), rtol=1e-5)
    learned = model(**fixed, optimize=True).fit(x, y)
    first = next(expert for expert in learned._mixture.experts if isinstance(expert.map, RevisedMap))
    assert not np.allclose(first.params.noise, 0.5 / s.y_scale**2, rtol=1e-6)


def test_progress_bar_only_when_asked(capsys):
    x, y = data()
    model().fit(x, y)
    silent = capsys.readouterr()
    assert silent.out + silent.err == ""
    model(verbose=1).fit(x, y)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "PrismGPRegressor" in shown.err
    assert "member 2 of 2, held-out NLPD" in shown.err
    assert "12/12" in shown.err


@pytest.mark.parametrize("changes", [{"gating": "hard"}, {"gating": "none"}, {"kernel": "matern32"}, {"q": 2}])
def test_settings(changes):
    x, y = data(q=changes.pop("q", None))
    fit = model(**changes).fit(x, y)
    mean, std = fit.predict(x, return_std=True)
    assert mean.shape == y.shape
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    widths = {expert.statistics.width for expert in fit._mixture.experts if isinstance(expert.map, RevisedMap)}
    assert widths == {8 if changes.get("gating") == "none" else 24}


# -- few rows ----------------------------------------------------------------------------------------------


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


# -- more rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"gating": "hard"}, {"recipe": "paper"}, {"q": 2}], ids=str)
def test_partial_fit_adds_rows_exactly(changes):
    x, y = data(150, q=changes.pop("q", None))
    fit = model(**changes).fit(x[:100], y[:100])
    before = fit.fit_status_, fit.history_, fit.n_iter_
    s = fit._standardiser
    z = torch.as_tensor((x - s.x_shift) / s.x_scale)
    target = torch.as_tensor((y.reshape(150, -1) - s.y_shift) / s.y_scale)
    q = target.shape[1]
    expected = replace(
        fit._mixture,
        experts=tuple(each.with_statistics(each.accumulate([(z, target)], q)) for each in fit._mixture.experts),
    )
    fit.partial_fit(x[100:101], y[100:101]).partial_fit(x[101:], y[101:])
    mean, variance, noise = (part.numpy() for part in expected.predict(z, variance=True))
    got_mean, got_std = fit.predict(x, return_std=True)
    np.testing.assert_allclose(got_mean.reshape(150, -1), mean * s.y_scale + s.y_shift, rtol=1e-8)
    np.testing.assert_allclose(got_std.reshape(150, -1), np.sqrt(variance + noise) * s.y_scale, rtol=1e-8)
    evidence = expected.leader.log_evidence - 150 * np.log(s.y_scale).sum()
    assert fit.log_evidence_ == pytest.approx(evidence, rel=1e-8)
    assert fit.fit_status_["rows"] == 150
    assert (fit.history_, fit.n_iter_) == before[1:]
    assert fit.fit_status_["weights"] == before[0]["weights"]
    with pytest.raises(DataError, match="y has"):
        fit.partial_fit(x, np.zeros((150, 3)))


def test_partial_fit_keeps_the_stages():
    x, y = data()
    fit = model(optimize=True).fit(x, y)
    stages = fit.fit_status_["stages"]
    fit.partial_fit(x[:5], y[:5])
    assert fit.fit_status_["stages"] == stages


def test_first_partial_fit_is_a_fit():
    x, y = data()
    same_predictions(model().partial_fit(x, y), model().fit(x, y), x)


# -- interrupts ----------------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, member, step):
    """Ctrl-C in the given step of the given member, both counted from one."""
    original = _train._Loop.step
    seen = []

    def hook(self, number):
        if number == 1:
            seen.append(self)
        if len(seen) == member and number == step:
            raise KeyboardInterrupt
        original(self, number)

    monkeypatch.setattr(_train._Loop, "step", hook)
    monkeypatch.setattr(_train, "_CHECK_EVERY", 2)


@pytest.mark.parametrize("step", [1, 4])
def test_interrupt_keeps_what_is_there(monkeypatch, step):
    interrupt_at(monkeypatch, member=2, step=step)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(n_members=3).fit(x, y)
    status = fit.fit_status_
    assert status["interrupted"]
    assert [member["steps"] for member in status["members"]] == [6, step - 1]
    # The second member has a state only if there was a check before the interrupt.
    learned = {"member 0", "ssgp with learned noise", "ssgp"}
    assert set(status["weights"]) == learned | ({"member 1"} if step == 4 else set())
    assert fit.n_iter_ == 6 + step - 1
    assert len({len(values) for values in fit.history_.values()}) == 1
    mean, std = fit.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    json.dumps([status, fit.history_], allow_nan=False)


def test_interrupt_before_the_first_check_leaves_the_plain_ssgp(monkeypatch, tmp_path):
    interrupt_at(monkeypatch, member=1, step=2)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model().fit(x, y)
    assert fit.fit_status_["weights"] == {"ssgp": 1.0}
    assert len(fit._mixture.experts) == 1
    assert np.isfinite(fit.predict(x)).all()
    fit.save(tmp_path / "m")
    same_predictions(prismgp.load(tmp_path / "m"), fit, x)


def test_interrupted_paper_recipe(monkeypatch):
    from prismgp.vae import _vae

    def stop(self, *, update):
        if update:
            raise KeyboardInterrupt
        return original(self, update=update)

    original = _vae._Loop.step
    monkeypatch.setattr(_vae._Loop, "step", stop)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(recipe="paper").fit(x, y)
    assert fit.fit_status_["interrupted"]
    assert np.isfinite(fit.predict(x)).all()


def test_a_failed_refit_leaves_no_model(monkeypatch):
    x, y = data(60)
    fit = model().fit(x, y)

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SSGPRegressor, "_learn", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fit.fit(x * 100 + 7, y * 5)
    with pytest.raises(NotFittedError):
        fit.predict(x)


@pytest.mark.parametrize("changes", [{"elbo_weight": 1e38}, {"beta": 1e40}], ids=str)
def test_a_training_that_diverges_is_left_out(changes):
    """Absurd weights drive the networks out of floating-point range; the plain SSGP remains."""
    x, y = data()
    fit = model(max_steps=30, **changes).fit(x, y)
    assert fit.fit_status_["weights"]["ssgp"] > 0
    assert "range of floating-point numbers" in fit.fit_status_["members"][0]["message"]
    assert np.isfinite(fit.predict(x)).all()


# -- model files ---------------------------------------------------------------------------------------------


FILES = {
    "joint": {},
    "hard": {"gating": "hard", "hidden": (8, 6)},
    "none": {"gating": "none", "noise_model": "constant"},
    "no layers": {"hidden": []},
    "float32": {"dtype": "float32", "kernel": "matern52"},
    "paper": {"recipe": "paper"},
    "paper latent": {"recipe": "paper", "output": "latent", "dtype": "float32", "kernel": "matern12"},
}


@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("case", list(FILES))
def test_files_are_exact(tmp_path, case, q):
    x, y = data(80, q=q)
    frame = pd.DataFrame(x, columns=["a", "b"])
    fit = model(**FILES[case]).fit(frame, y)
    fit.save(tmp_path / "m")
    other = prismgp.load(tmp_path / "m")
    assert type(other) is PrismGPRegressor
    same_predictions(other, fit, frame)
    np.testing.assert_array_equal(other.log_density(frame, y), fit.log_density(frame, y))
    np.testing.assert_array_equal(other.sample_y(frame, 3, random_state=1), fit.sample_y(frame, 3, random_state=1))
    np.testing.assert_array_equal(other.predict(frame, return_cov=True)[1], fit.predict(frame, return_cov=True)[1])
    names = ("lengthscale_", "signal_variance_", "noise_variance_", "mean_", "frequencies_", "log_evidence_")
    for name in (*names, "feature_names_in_"):
        np.testing.assert_array_equal(getattr(other, name), getattr(fit, name))
    assert other.fit_status_ == fit.fit_status_
    assert other.history_ == fit.history_
    assert {**other.get_params(), "hidden": None} == {**fit.get_params(), "hidden": None}
    fit.partial_fit(frame[:7], y[:7])
    other.partial_fit(frame[:7], y[:7])
    same_predictions(other, fit, frame)


def test_number_of_steps_survives_a_file(fitted, tmp_path):
    fit, _, _ = fitted
    fit.save(tmp_path / "m")
    assert prismgp.load(tmp_path / "m").n_iter_ == fit.n_iter_


def test_files_hold_what_was_fitted(tmp_path):
    x, y = data(80)
    fit = model().fit(x, y)
    expected = fit.predict(x)
    fit.set_params(kernel="matern12", n_frequencies=9, gating="none", hidden=3, latent_dim=5)
    fit.save(tmp_path / "m")
    loaded = prismgp.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(x), expected)
    assert (loaded.kernel, loaded.n_frequencies) == ("rbf", 4)


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def expert_of(config):
    return config["state"]["experts"][0]


HOSTILE = {
    "kind": (lambda c: expert_of(c).update(kind="os.system"), None, "kind"),
    "kind of a list": (lambda c: expert_of(c).update(kind=["revised"]), None, "kind"),
    "gating": (lambda c: expert_of(c).update(detail="evil"), None, "gating"),
    "no experts": (lambda c: c["state"].update(experts=[]), None, "experts"),
    "experts dict": (lambda c: c["state"].update(experts={"0": 1}), None, "experts"),
    "experts text": (lambda c: c["state"].update(experts=["a"] * 4), None, "usable"),
    "too many experts": (lambda c: c["state"].update(experts=[{}] * 5_000), None, "experts"),
    "no state": (lambda c: c.pop("state"), None, "experts"),
    "rows text": (lambda c: expert_of(c).update(rows="many"), None, "range"),
    "inputs": (lambda c: c.update(inputs=3), None, "shape"),
    "outputs": (lambda c: c.update(outputs=2, target_ndim=2), None, "shape"),
    "recipe": (lambda c: c["arguments"].update(recipe="evil"), None, "recipe"),
    "stages": (lambda c: c["fit_status"].update(stages=3), None, "usable"),
    "negative weights": (None, lambda t: t["weights"].mul_(-1.0), "weights"),
    "weights too large": (None, lambda t: t["weights"].mul_(1.1), "weights"),
    "weights shape": (None, lambda t: t.update(weights=zeros(7)), "shape"),
    "no weights": (None, lambda t: t.pop("weights"), "weights"),
    "temperature": (None, lambda t: t["temperature"].zero_(), "temperature"),
    "noise factor": (None, lambda t: t["e0.noise_scale"].zero_(), "noise factor"),
    "no latent head": (None, lambda t: t.pop("e0.map.latent_head.bias"), "latent_head"),
    "no latent weights": (None, lambda t: t.pop("e0.map.latent_head.weight"), "latent_head"),
    "no statistics": (None, lambda t: t.pop("e0.moments"), "moments"),
    "statistics shape": (None, lambda t: t.update({"e0.moments": zeros(3, 3)}), "shape"),
    "statistics nan": (None, lambda t: t["e0.moments"].fill_(float("nan")), "finite"),
    "layer shape": (None, lambda t: t.update({"e0.map.layers.0.weight": zeros(8, 5)}), "shape"),
    "empty layer": (None, lambda t: t.update({"e0.map.latent_head.bias": zeros(0)}), "empty"),
    "frequencies shape": (None, lambda t: t.update({"e0.map.frequencies": zeros(4, 9)}), "shape"),
    "frequencies scalar": (None, lambda t: t.update({"e0.map.frequencies": zeros(())}), "usable"),
    "length-scale": (None, lambda t: t["e0.log_lengthscale"].fill_(1e4), "out of range"),
    "length-scales shape": (None, lambda t: t.update({"e0.log_lengthscale": zeros(9)}), "length-scales"),
    "plain shape": (None, lambda t: t.update({"e3.map.w": zeros(3)}), "kind"),
    "plain inputs": (None, lambda t: t.update({"e3.map.w": zeros(3, 4)}), "inputs"),
    "no plain": (None, lambda t: t.pop("e3.map.w"), "w"),
    "informed inputs": (None, lambda t: t.update({"e2.map.w": zeros(3, 4)}), "inputs"),
    "no level": (None, lambda t: t.pop("e2.map.level"), "level"),
    "no network beside the plain one": (None, lambda t: t.pop("e2.map.network.latent_head.bias"), "latent_head"),
    "scale zero": (None, lambda t: t["s.x_scale"].zero_(), "scale"),
}
# A file must not be able to ask for more memory than it has: these few bytes ask for terabytes.
GREEDY = {
    "frequencies": lambda t: t.update({"e0.map.frequencies": zeros(10**12, 0)}),
    "layers": lambda t: t.update({"e0.map.layers.0.bias": zeros(10**6), "e0.map.layers.1.bias": zeros(10**6)}),
    "clusters": lambda t: t.update({"e0.map.prior.log_widths": zeros(10**6), "e0.map.latent_head.bias": zeros(3)}),
}
GREEDY_PAPER = {
    "networks": lambda t: t.update({"e0.map.vae.encoder.head_weight": zeros(1, 10**12, 0)}),
    "prior": lambda t: t.update({"e0.map.vae.prior.directions": zeros(0, 10**12)}),
}
HOSTILE_PAPER = {
    "output": (lambda c: expert_of(c).update(detail="evil"), None, "re-configuration"),
    "columns": (lambda c: expert_of(c).update(detail="latent"), lambda t: t.update({"e0.map.w": zeros(5, 4)}), "fit"),
    "scale": (None, lambda t: t["e0.map.scale"].mul_(-1.0), "scale"),
    "shift": (None, lambda t: t.update({"e0.map.shift": zeros(7)}), "shape"),
    "no network": (None, lambda t: t.pop("e0.map.vae.encoder.head_weight"), "Reconfigurer"),
    "network shape": (None, lambda t: t.update({"e0.map.vae.decoder.head_bias": zeros(1)}), "usable|shape"),
}


@pytest.fixture(scope="module")
def file_bytes(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    fit, x, y = fitted
    names = ["member 0", "member 1", "ssgp with learned noise", "ssgp"]
    assert [expert.name for expert in fit._mixture.experts] == names
    fit.save(folder / "joint")
    model(**PAPER).fit(x, y).save(folder / "paper")
    return {name: (folder / name).read_bytes() for name in ("joint", "paper")}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files(file_bytes, tmp_path, case):
    edit, tensors, message = HOSTILE[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes["joint"], edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(tmp_path / "m")


@pytest.mark.parametrize("case", list(HOSTILE_PAPER))
def test_hostile_files_of_the_paper_recipe(file_bytes, tmp_path, case):
    edit, tensors, message = HOSTILE_PAPER[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes["paper"], edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("recipe", "case"), [*(("joint", case) for case in GREEDY), *(("paper", case) for case in GREEDY_PAPER)]
)
def test_greedy_files(file_bytes, tmp_path, recipe, case):
    tensors = {**GREEDY, **GREEDY_PAPER}[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes[recipe], None, tensors=tensors))
    with pytest.raises(ModelFileError):
        prismgp.load(tmp_path / "m")


def test_untouched_contents_still_load(file_bytes, tmp_path):
    """The tests above refuse because of what they change."""
    for data_ in file_bytes.values():
        (tmp_path / "m").write_bytes(rewritten(data_, None))
        prismgp.load(tmp_path / "m")


def test_learned_noise_leaves_the_mean_alone(fitted):
    """The plain SSGP with learned noise has the very mean and spread of the plain one, and another noise."""
    fit, x, _ = fitted
    *_, informed, plain = fit._mixture.experts
    rows = fit.model_.to_model(x)
    (mean, spread, noise), (plain_mean, plain_spread, plain_noise) = (
        expert.predict(rows, variance=True) for expert in (informed, plain)
    )
    torch.testing.assert_close(mean, plain_mean, rtol=0, atol=0)
    torch.testing.assert_close(spread, plain_spread, rtol=0, atol=0)
    assert float((noise / plain_noise).std()) > 0.0
    assert 0.2 < float(noise.mean() / plain_noise.mean()) / float(informed.noise_scale[0]) < 5.0
    assert informed.log_evidence == plain.log_evidence


# -- wrong parameters ----------------------------------------------------------------------------------------


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


# -- it learns -------------------------------------------------------------------------------------------------


LEARNING = {
    "n_members": 1,
    "lengthscale": 1.0,
    "max_steps": 150,
    "hidden": (16, 16),
    "latent_dim": 4,
    "n_components": 4,
    "batch_size": 128,
    "max_iter": 30,
}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_discontinuity(seed):
    """Few frequencies of the inputs cannot jump; a network can."""
    rng = np.random.default_rng(seed)

    def truth(x):
        return np.where(x[:, 0] + x[:, 1] > 0.3, 1.5, -1.5) + np.sin(x[:, 0])

    x, new = rng.uniform(-2, 2, (600, 2)), rng.uniform(-2, 2, (1_000, 2))
    y = truth(x) + 0.1 * rng.normal(size=600)
    plain = SSGPRegressor(8, lengthscale=1.0, max_iter=30, random_state=seed).fit(x, y)
    fit = PrismGPRegressor(8, **LEARNING, random_state=seed).fit(x, y)
    errors = [np.sqrt(np.mean((each.predict(new) - truth(new)) ** 2)) for each in (fit, plain)]
    assert errors[0] < 0.75 * errors[1]  # about 0.45 on average
    observed = truth(new) + 0.1 * rng.normal(size=1_000)
    assert fit.log_density(new, observed).mean() > plain.log_density(new, observed).mean() + 0.2


def test_noise_that_depends_on_the_inputs():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (600, 2))
    level = np.where(x[:, 1] > 0, 0.5, 0.05) + 0.1 * np.abs(x[:, 1])
    y = np.sin(x[:, 0]) + level * rng.normal(size=600)
    fit = PrismGPRegressor(8, **{**LEARNING, "max_steps": 100, "hidden": 16}, random_state=0).fit(x, y)
    std = fit.predict(x, return_std=True)[1]
    assert np.corrcoef(std, level)[0, 1] > 0.7
    assert std[x[:, 1] > 0.2].mean() > 1.5 * std[x[:, 1] < -0.2].mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_pure_noise_costs_little(seed):
    """Nothing to learn: the stack must not trust members that have memorised."""
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(300, 3)), rng.normal(size=(1_000, 3))
    y, observed = rng.normal(size=300), rng.normal(size=1_000)
    plain = SSGPRegressor(6, lengthscale=1.0, max_iter=20, random_state=seed).fit(x, y)
    changes = {"n_members": 2, "max_steps": 50, "hidden": 16, "latent_dim": 2, "n_components": 3, "max_iter": 20}
    fit = PrismGPRegressor(6, **{**LEARNING, **changes}, random_state=seed).fit(x, y)
    errors = [np.sqrt(np.mean((each.predict(new) - observed) ** 2)) for each in (fit, plain)]
    assert errors[0] < 1.1 * errors[1]
    assert fit.log_density(new, observed).mean() > plain.log_density(new, observed).mean() - 0.3


def test_irrelevant_inputs():
    """The search for length-scales switches them down before the network sees them."""
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(300, 12)), rng.normal(size=(500, 12))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=300)
    changes = {"lengthscale": None, "max_steps": 60, "max_iter": 10}
    fit = PrismGPRegressor(8, **{**LEARNING, **changes}, random_state=0).fit(x, y)
    network = next(expert.map for expert in fit._mixture.experts if isinstance(expert.map, RevisedMap))
    scales = network.log_input_scale.exp().numpy()
    assert scales[0] > 3 * scales[1:].max()
    assert np.sqrt(np.mean((fit.predict(new) - np.sin(2 * new[:, 0])) ** 2)) < 0.25


# -- what small and hostile data must not do ---------------------------------------------------------


@pytest.fixture
def decide(monkeypatch):
    """The decision between mixture and plain SSGP as users have it."""
    monkeypatch.setattr("prismgp.prism._stack._convincing", CONVINCING)


@pytest.mark.parametrize("kind", ["noise", "linear"])
def test_never_worse_than_the_plain_ssgp_where_there_is_nothing_to_gain(decide, kind):
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, (260, 4))
    y = rng.normal(size=260) + (x @ [1.0, -2.0, 0.5, 0.0] if kind == "linear" else 0.0)
    fit = PrismGPRegressor(8, n_members=2, max_steps=50, hidden=16, random_state=0).fit(x[:200], y[:200])
    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    assert "plain SSGP" in fit.fit_status_["message"]
    (plain,) = fit._mixture.experts
    same = SSGPRegressor(
        8,
        lengthscale=fit.lengthscale_,
        signal_variance=fit.signal_variance_,
        noise_variance=fit.noise_variance_,
        mean=fit.mean_,
        frequencies=fit.frequencies_,
        optimize=False,
    ).fit(x[:200], y[:200])
    for got, expected in zip(fit.predict(x, return_std=True), same.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-7)
    assert plain.name == "ssgp"


def test_copies_of_rows_are_held_out_together():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    x[0, 0] = 0.0
    repeated = np.repeat(x, 4, axis=0)
    repeated[1, 0] = -0.0  # the same number
    held = held_out_rows(repeated, 0.1, 10_000, np.random.default_rng(1))
    assert 30 <= len(held) <= 40
    groups = np.repeat(np.arange(100), 4)
    assert not set(groups[held]) & set(np.delete(groups, held))
    one = held_out_rows(np.ones((50, 2)), 0.1, 10_000, np.random.default_rng(1))
    assert 0 < len(one) < 50  # nothing else is possible
    mostly = held_out_rows(np.concatenate([np.ones((500, 2)), rng.normal(size=(20, 2))]), 0.1, 10_000, rng)
    assert 0 < len(mostly) < 520


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


def test_an_interrupt_in_the_final_passes_keeps_what_is_done(monkeypatch):
    x, y = data(80)
    calls = []

    over = MapStatistics.over

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return over(*arguments, **options)

    monkeypatch.setattr(MapStatistics, "over", interrupted)
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(n_members=2).fit(x, y)
    assert fit.fit_status_["interrupted"]
    assert "member 1" not in fit.fit_status_["weights"]
    assert np.isfinite(fit.predict(x)).all()


def test_many_components_can_be_saved(tmp_path):
    x, y = data(80)
    fit = model(n_components=150).fit(x, y)
    fit.save(tmp_path / "m")
    same_predictions(prismgp.load(tmp_path / "m"), fit, x)


def test_save_refuses_arguments_a_file_could_not_be_read_with(fitted, tmp_path):
    fit = pickle.loads(pickle.dumps(fitted[0]))
    fit.set_params(n_members=0)
    with pytest.raises(DataError, match="n_members"):
        fit.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_constant_columns_stay_constant_in_the_paper_recipe():
    x, y = data(80)
    x = np.column_stack([x, np.full(80, 3.0)])
    fit = model(recipe="paper", hidden=8).fit(x, y)
    (expert,) = fit._mixture.experts
    rows = torch.as_tensor((x - fit._standardiser.x_shift) / fit._standardiser.x_scale)
    assert (expert.map.reconfigure(rows)[:, 2] == 0).all()


def test_left_alone_it_is_the_plain_ssgp_of_the_same_seed(decide):
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(120, 3)), rng.normal(size=120)
    fit = PrismGPRegressor(4, n_members=1, max_steps=25, hidden=8, random_state=3).fit(x, y)
    assert fit.fit_status_["weights"]["ssgp"] == 1.0
    same_predictions(fit, SSGPRegressor(4, random_state=3).fit(x, y), x)


def test_inputs_that_say_nothing_leave_the_others_their_relevance():
    """The scales of a network's inputs are relative to the average relevance, which silent columns must not shift."""
    lengthscale = np.array([0.5, 3.0, 80.0, 7.0])
    start = Parameters(np.log(lengthscale), *(np.zeros(1) for _ in range(3)))
    silent = np.array([False, True, False, True])
    recipe = SimpleNamespace(
        standardiser=SimpleNamespace(constant_inputs=silent), settings=SimpleNamespace(learn_kernel=False)
    )
    found = JointRecipe._usable(recipe, start).lengthscale
    np.testing.assert_allclose(found[~silent], lengthscale[~silent])
    np.testing.assert_allclose(np.mean(found**-2.0), np.mean(lengthscale[~silent] ** -2.0))
    recipe.standardiser.constant_inputs = np.ones(4, dtype=bool)
    np.testing.assert_allclose(JointRecipe._usable(recipe, start).lengthscale, 1.0)
