"""Training of members: checks, schedule, checkpoints and interrupts."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import prismgp
from prismgp._system import Streams
from prismgp.core.ending import Ending
from prismgp.exceptions import PrismGPWarning
from prismgp.prism import MapStatistics, RevisedMap
from prismgp.prism.train import MemberSettings, MemberTraining, TrainingRows, held_out_rows
from prismgp.vae import BatchRows, TrainingResult, VAETraining, run_training
from tests.prism.small import assert_same_predictions, data, make_map, model
from tests.vae.small import MemoryStore

SETTINGS = MemberSettings(
    alpha=8.0,
    beta=1.2,
    elbo_weight=1e-3,
    dropout=0.1,
    batch_size=20,
    max_steps=11,
    patience=None,
    learn_kernel=True,
)


def make_member():
    """A network in float32, and rows to train it on."""
    rng = np.random.default_rng(0)
    place = {"dtype": torch.float32, "device": torch.device("cpu")}
    x, y = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    rows = TrainingRows(
        BatchRows(x, np.zeros(3), np.ones(3), **place),
        BatchRows(y, np.zeros(2), np.ones(2), **place),
        np.arange(0, 60, 6),
    )
    return make_map(rng).float(), rows


# -- steps -----------------------------------------------------------------------------------------


def test_learning_rates_rise_and_fall():
    """Linearly over fifty steps, times half a cosine over all of them."""
    task = MemberTraining(*make_member(), SETTINGS, Streams(0))
    for step in range(1, 12):
        expected = 1e-2 * (step / 50) * 0.5 * (1 + math.cos(math.pi * (step - 1) / 11))
        assert [group["lr"] for group in task.optimiser.param_groups] == pytest.approx([expected] * 2, rel=1e-12)
        task.step(step)


def test_average_of_the_weights():
    """Nine tenths of the new weights at first, two per cent in the end."""
    member, rows = make_member()
    expected = copy.deepcopy(member)
    task = MemberTraining(member, rows, SETTINGS, Streams(0))
    for step in range(1, 12):
        task.step(step)
        past = min(0.98, step / (9 + step))
        with torch.no_grad():
            for average, weights in zip(expected.parameters(), member.parameters(), strict=True):
                average.mul_(past).add_((1 - past) * weights)
    for (name, average), weights in zip(task.model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(average, weights, msg=name)
    assert not torch.equal(task.model.latent_head.weight, member.latent_head.weight)


@pytest.mark.parametrize("learn_kernel", [True, False])
def test_kernel_parameters_are_trained_if_asked(learn_kernel):
    member, rows = make_member()
    before = member.parameters_now()
    task = MemberTraining(member, rows, replace(SETTINGS, learn_kernel=learn_kernel), Streams(0))
    after = run_training(task).best.parameters_now()
    for name in ("log_lengthscale", "log_signal", "log_noise", "mean"):
        assert np.array_equal(getattr(before, name), getattr(after, name)) != learn_kernel, name


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [5, 6, 9])
def test_a_member_goes_on_where_it_was(monkeypatch, stop):
    """Bit for bit, with schedule, average, dropout and the terms of the last ELBO, whatever step the interrupt hit."""
    monkeypatch.setattr(MemberTraining, "check_every", 5)

    def train(store, monitor=None):
        task = MemberTraining(*make_member(), SETTINGS, Streams(3))
        return run_training(task, monitor=monitor, checkpoint=store, ending=Ending(keep=True))

    steps = iter(range(1, 100))

    def interrupt(_):
        if next(steps) == stop:
            raise KeyboardInterrupt

    store = MemoryStore()
    whole, first = train(None), train(store, interrupt)
    assert first.early
    assert first.steps == stop
    second = train(store)
    assert second.message == whole.message == "all 11 steps taken"
    assert [record["step"] for record in second.records] == [5, 10, 11]
    for a, b in zip(whole.records, second.records, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert (whole.score, whole.best_step) == (second.score, second.best_step)
    for name, value in whole.best.state_dict().items():
        assert torch.equal(value, second.best.state_dict()[name]), name


def test_a_summary_restores_a_member():
    member, rows = make_member()
    trained = run_training(MemberTraining(member, rows, SETTINGS, Streams(0)))
    other = TrainingResult()
    other.take_up(json.loads(json.dumps(trained.summary())), member, trained.best.state_dict())
    assert other.summary() == trained.summary()
    assert isinstance(other.best, RevisedMap)
    for name, value in trained.best.state_dict().items():
        assert torch.equal(value, other.best.state_dict()[name]), name


# -- checks ----------------------------------------------------------------------------------------


def test_history_at_every_check(monkeypatch):
    monkeypatch.setattr(MemberTraining, "check_every", 2)
    x, y = data()
    fit = model(max_steps=5).fit(x, y)
    assert fit.history_["step"] == [2, 4, 5] * 2
    assert fit.history_["member"] == [0] * 3 + [1] * 3
    best = [member["held_out_nlpd"] for member in fit.fit_status_["members"]]
    assert best == [min(fit.history_["validation_nlpd"][:3]), min(fit.history_["validation_nlpd"][3:])]


def test_checks_of_wide_features_are_the_same(monkeypatch):
    """By the kernel matrix of the rows instead of the features' moments: the same posterior."""
    x, y = data()
    narrow = model(noise_variance=0.1).fit(x, y).history_
    monkeypatch.setattr(MemberTraining, "wide", 0)
    wide = model(noise_variance=0.1).fit(x, y).history_
    for name in ("validation_nlpd", "validation_rmse"):
        np.testing.assert_allclose(wide[name], narrow[name], rtol=1e-6)


def test_patience_ends_a_member(monkeypatch):
    monkeypatch.setattr(MemberTraining, "check_every", 1)
    values = iter([1.0, 0.5, *[2.0] * 50])
    monkeypatch.setattr(MemberTraining, "check", lambda _: (next(values), {}))
    x, y = data()
    fit = model(n_members=1, max_steps=30, patience=4).fit(x, y)
    (member,) = fit.fit_status_["members"]
    assert (member["steps"], member["best_step"]) == (6, 2)
    assert "no better held-out density for 4 steps" in member["message"]
    assert fit.n_iter_ == 6


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


# -- interrupts ------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, member, step):
    """Ctrl-C in the given step of the given member, both counted from one."""
    original = MemberTraining.step
    seen = []

    def hook(self, number):
        if number == 1:
            seen.append(self)
        if len(seen) == member and number == step:
            raise KeyboardInterrupt
        original(self, number)

    monkeypatch.setattr(MemberTraining, "step", hook)
    monkeypatch.setattr(MemberTraining, "check_every", 2)


@pytest.mark.parametrize("step", [1, 4])
def test_interrupt_keeps_what_is_there(monkeypatch, step):
    interrupt_at(monkeypatch, member=2, step=step)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(n_members=3, on_interrupt="keep").fit(x, y)
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
        fit = model(on_interrupt="keep").fit(x, y)
    assert fit.fit_status_["weights"] == {"ssgp": 1.0}
    assert len(fit.model_.predictor.experts) == 1
    assert np.isfinite(fit.predict(x)).all()
    fit.save(tmp_path / "m")
    assert_same_predictions(prismgp.load(tmp_path / "m"), fit, x)


def test_interrupted_paper_recipe(monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(VAETraining, "step", stop)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(recipe="paper", on_interrupt="keep").fit(x, y)
    assert fit.fit_status_["interrupted"]
    assert np.isfinite(fit.predict(x)).all()


def test_an_interrupt_in_the_final_passes_repeats_the_pass(monkeypatch):
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
        fit = model(n_members=2, on_interrupt="keep").fit(x, y)
    assert fit.fit_status_["interrupted"]
    assert_same_predictions(fit, model(n_members=2).fit(x, y), x)


def test_a_failed_refit_leaves_no_model(monkeypatch):
    x, y = data(60)
    fit = model().fit(x, y)

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("prismgp.prism.fit.fit_ssgp", interrupt)
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
