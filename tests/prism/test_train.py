"""Training of members: steps, checks, schedule, checkpoints and interrupts."""

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
from prismgp.core.numerics import hash_rows
from prismgp.core.parallel import Workers
from prismgp.core.rows import Ending
from prismgp.exceptions import PrismGPWarning
from prismgp.prism import RevisedMap
from prismgp.prism.batch import batch_log_evidence
from prismgp.prism.judging import HeldOutRows
from prismgp.prism.maps import MapStatistics
from prismgp.prism.members import ELBO_EVERY, Member, MemberObjective, MemberSettings
from prismgp.prism.train import MemberTraining
from prismgp.prism.training_rows import RowsInMemory, held_out_rows
from prismgp.vae import BatchRows, TrainingResult, VAETraining, run_training, torch_generator
from tests.prism.small import assert_same_predictions, data, make_map, model
from tests.vae.small import MemoryStore

SETTINGS = MemberSettings(
    alpha=8.0,
    beta=1.2,
    elbo_weight=1e-3,
    batch_size=20,
    first_steps=11,
    max_steps=11,
    patience=None,
    learn_kernel=True,
)


def make_rows(noise=0):
    """Rows to train on, with so many noise columns."""
    rng = np.random.default_rng(0)
    place = {"dtype": torch.float32, "device": torch.device("cpu")}
    x, y = rng.normal(size=(60, 3)), rng.normal(size=(60, 2))
    return RowsInMemory(
        BatchRows(x, np.zeros(3), np.ones(3), **place),
        BatchRows(y, np.zeros(2), np.ones(2), **place),
        np.arange(0, 60, 6),
        rng.uniform(0.5, 2.0, (60, noise)) if noise else None,
    )


def make_members(*kinds):
    """Members in float32, each with a noise model and a dropout."""
    kinds = kinds or [("input", 0.1)]
    networks = [make_map(np.random.default_rng(k), noise=noise).float() for k, (noise, _) in enumerate(kinds)]
    return [
        Member(network, network.frequencies.numpy(), dropout, Streams(k))
        for k, (network, (_, dropout)) in enumerate(zip(networks, kinds, strict=True))
    ]


KINDS = (("input", 0.0), ("constant", 0.0), ("input", 0.1))


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0, 2])
@pytest.mark.parametrize("learn_kernel", [True, False])
def test_steps_are_those_of_torch(learn_kernel, noise):
    """A member's steps, by autograd and AdamW of torch on its module alone."""
    rows, settings = make_rows(noise), replace(SETTINGS, learn_kernel=learn_kernel, elbo_weight=1e-2)
    members = make_members(*KINDS[:2])
    task = MemberTraining(members, rows, settings)
    for step in range(1, 10):
        task.step(step)
    for m, member in enumerate(members):
        expected = MemberObjective(copy.deepcopy(member.network), torch_generator(member.streams, "decoder"))
        network, streams = expected.network, member.streams
        for name in ("log_lengthscale", "log_signal", "log_noise", "mean"):
            getattr(network, name).requires_grad_(learn_kernel)
        trained = [parameter for parameter in expected.parameters() if parameter.requires_grad]
        matrices, others = ([p for p in trained if (p.ndim > 1) == wide] for wide in (True, False))
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        optimiser = torch.optim.AdamW(groups, lr=1e-2)
        batches, draws = streams.generator("batches"), torch_generator(streams, "latent noise")
        average = {name: value.clone() for name, value in network.state_dict().items()}
        for step in range(1, 10):
            index = rows.draw(settings.batch_size, batches)
            x, y = rows.x[index], rows.y[index]
            with_elbo = (step - 1) % ELBO_EVERY == 0
            drawn = torch.randn(20, 1, network.sizes.latent, generator=draws) if with_elbo else None
            output, terms = expected(x, (), drawn, settings.alpha, settings.beta)
            loss = -batch_log_evidence(network, output, y, rows.read(index).row_noise) / 20
            if terms is not None:
                loss = loss - ELBO_EVERY * settings.elbo_weight * terms.objective
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 10.0)
            for group in optimiser.param_groups:
                group["lr"] = task._learning_rate(task.runs[m], step)
            optimiser.step()
            for name, value in network.state_dict().items():
                average[name].lerp_(value, 1.0 - min(0.98, step / (9 + step)))
        for name, value in task.members.network(m).state_dict().items():
            torch.testing.assert_close(value, average[name], rtol=1e-4, atol=1e-5, msg=lambda text, n=name: n + text)


def test_a_member_does_not_depend_on_the_others():
    """To rounding: other shapes of products may sum in another order."""
    rows, settings = make_rows(), replace(SETTINGS, first_steps=30, max_steps=30)
    members = make_members(*KINDS)
    together = run_training(MemberTraining(members, rows, settings))
    for k, member in enumerate(members):
        (alone,) = run_training(MemberTraining([member], rows, settings))
        assert alone.score == pytest.approx(together[k].score, abs=1e-4)
        assert alone.best.sizes == together[k].best.sizes == member.network.sizes
        for name, value in alone.best.state_dict().items():
            torch.testing.assert_close(value, together[k].best.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_members_have_the_same_bits_on_any_number_of_threads():
    rows, members = make_rows(), make_members(*KINDS)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run_training(MemberTraining(members, rows, SETTINGS))
        torch.set_num_threads(3)
        with Workers() as workers:
            side_by_side = run_training(MemberTraining(members, rows, SETTINGS, workers=workers))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    for one, other in zip(alone, side_by_side, strict=True):
        assert one.score == other.score
        assert one.best.state_dict().keys() == other.best.state_dict().keys()
        for name, value in one.best.state_dict().items():
            torch.testing.assert_close(value, other.best.state_dict()[name], rtol=0, atol=0)


def test_a_member_that_diverges_leaves_the_others_alone():
    rows = make_rows()
    members = make_members(*KINDS)
    calm = run_training(MemberTraining(members, rows, SETTINGS))
    with torch.no_grad():
        members[1].network.latent_head.weight.fill_(math.nan)
    found = run_training(MemberTraining(members, rows, SETTINGS))
    assert found[1].best is None
    assert "range of floating-point numbers" in found[1].message
    for k in (0, 2):
        for name, value in calm[k].best.state_dict().items():
            torch.testing.assert_close(value, found[k].best.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_learning_rates_rise_and_fall():
    """Linearly over fifty steps, times half a cosine over all of them."""
    task = MemberTraining(make_members(), make_rows(), SETTINGS)
    (run,) = task.runs
    for step in range(1, 12):
        expected = 1e-2 * (step / 50) * 0.5 * (1 + math.cos(math.pi * (step - 1) / 11))
        assert task._learning_rate(run, step) == pytest.approx(expected, rel=1e-12)
        task.step(step)


@pytest.mark.parametrize("learn_kernel", [True, False])
def test_kernel_parameters_are_trained_if_asked(learn_kernel):
    (member,) = members = make_members()
    before = member.network.parameters_now()
    task = MemberTraining(members, make_rows(), replace(SETTINGS, learn_kernel=learn_kernel))
    after = run_training(task)[0].best.parameters_now()
    for name in ("log_lengthscale", "log_signal", "log_noise", "mean"):
        assert np.array_equal(getattr(before, name), getattr(after, name)) != learn_kernel, name


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.fixture
def weighting(monkeypatch):
    """Let every check find that rows far away should count less."""
    monkeypatch.setattr(HeldOutRows, "have_outliers", lambda *_: True)
    monkeypatch.setattr(HeldOutRows, "prefer", lambda *_: True)


@pytest.mark.parametrize(("stop", "weighted"), [(5, False), (6, True), (9, False)])
def test_members_go_on_where_they_were(monkeypatch, request, stop, weighted):
    """Bit for bit, with averages, dropout, row weights and the terms of the last ELBO, whatever step the interrupt hit.

    One member is over before the others.
    """
    monkeypatch.setattr(MemberTraining, "check_every", 5)
    if weighted:
        request.getfixturevalue("weighting")

    def train(store, monitor=None):
        ending = Ending(keep=True)
        task = MemberTraining(make_members(*KINDS), make_rows(), SETTINGS, ending)
        task.runs[1].end = 5
        return run_training(task, monitor=monitor, checkpoint=store, ending=ending)

    steps = iter(range(1, 100))

    def interrupt(_):
        if next(steps) == stop:
            raise KeyboardInterrupt

    store = MemoryStore()
    whole, first = train(None), train(store, interrupt)
    assert [each.early for each in first] == [True, False, True]
    assert [each.steps for each in first] == [stop, 5, stop]
    second = train(store)
    assert [each.message for each in second] == [each.message for each in whole]
    assert [record["step"] for record in second[0].records] == [5, 10, 11]
    for one, other in zip(whole, second, strict=True):
        for a, b in zip(one.records, other.records, strict=True):
            assert {**a, "seconds": 0} == {**b, "seconds": 0}
        assert (one.score, one.best_step) == (other.score, other.best_step)
        for name, value in one.best.state_dict().items():
            assert torch.equal(value, other.best.state_dict()[name]), name


@pytest.mark.parametrize("noise", [0, 2])
@pytest.mark.usefixtures("weighting")
def test_rows_count_in_steps_as_the_last_check_says(monkeypatch, noise):
    """Weights of a member's rows are those of its own network, and held-out rows have none."""
    monkeypatch.setattr(MemberTraining, "check_every", 5)
    rows = make_rows(noise)
    task = MemberTraining(make_members(*KINDS), rows, SETTINGS)
    train_steps(task, 5)
    for run in task.runs:
        found = run.row_weights.numpy()
        np.testing.assert_array_equal(found[rows.held_out], 1.0)
        assert 0.0 < found.min() < 0.9
    assert not torch.equal(task.runs[0].row_weights, task.runs[1].row_weights)
    given = []
    monkeypatch.setattr(task.members, "step", lambda draw: given.append(draw(range(len(KINDS)))))
    draws = [copy.deepcopy(run.draws["batches"]) for run in task.runs]
    task.step(6)
    for m, (run, draw) in enumerate(zip(task.runs, draws, strict=True)):
        index = rows.draw(SETTINGS.batch_size, draw)
        weights = run.row_weights[torch.as_tensor(index)].numpy()
        own = given[0].row_noise[m].numpy()
        np.testing.assert_array_equal(own[:, 0], weights if not noise else weights * rows.noise[index, 0])
        np.testing.assert_array_equal(own[:, 1:], np.empty((20, 0)) if not noise else rows.noise[index, 1:])


def train_steps(task, steps):
    """Take steps, with the check that is due after the last."""
    for number in range(1, steps + 1):
        task.step(number)
        task.steps = number
    for run in task.active:
        task.check([run])


def test_the_default_dtype_of_torch_does_not_matter():
    """Members with dropout, whose factors are drawn as numbers of Python."""
    x, y = data(60)
    before = model(max_steps=3, dropout=0.1).fit(x, y).predict(x)
    torch.set_default_dtype(torch.float64)
    try:
        after = model(max_steps=3, dropout=0.1).fit(x, y).predict(x)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(after, before)


def test_a_summary_restores_a_member():
    (member,) = members = make_members()
    (trained,) = run_training(MemberTraining(members, make_rows(), SETTINGS))
    other = TrainingResult()
    other.load(json.loads(json.dumps(trained.summary())), member.network, trained.best.state_dict())
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


def give_values(monkeypatch, values):
    """Checks of these values, by the step."""
    monkeypatch.setattr(MemberTraining, "measure", lambda self, *_: (values(self.steps), {}))


@pytest.mark.parametrize(
    ("gain", "max_steps", "steps"),
    [(0.001, 450, 20), (0.02, 450, 320), (0.02, 150, 150)],
    ids=["too little", "until it is too little", "the limit"],
)
def test_the_steps_double_while_the_held_out_density_improves(monkeypatch, gain, max_steps, steps):
    """By a tenth between a quarter and half of the steps; from step 80 on nothing improves any more."""
    monkeypatch.setattr(MemberTraining, "check_every", 5)
    give_values(monkeypatch, lambda step: -gain * min(step, 80))
    task = MemberTraining(make_members(), make_rows(), replace(SETTINGS, first_steps=20, max_steps=max_steps))
    (result,) = run_training(task)
    assert (result.steps, result.best_step) == (steps, min(steps, 80))
    assert result.message == f"all {steps} steps taken"
    assert not result.early


def test_patience_ends_a_member(monkeypatch):
    monkeypatch.setattr(MemberTraining, "check_every", 1)
    give_values(monkeypatch, lambda step: {1: 1.0, 2: 0.5}.get(step, 2.0))
    x, y = data()
    fit = model(n_members=1, max_steps=30, patience=4).fit(x, y)
    (member,) = fit.fit_status_["members"]
    assert (member["steps"], member["best_step"]) == (6, 2)
    assert "no better held-out density for 4 steps" in member["message"]
    assert fit.n_iter_ == 6


def test_patience_grows_with_the_steps(monkeypatch):
    monkeypatch.setattr(MemberTraining, "check_every", 5)
    give_values(monkeypatch, lambda step: -float(min(step, 25)))
    (result,) = run_training(
        MemberTraining(make_members(), make_rows(), replace(SETTINGS, first_steps=40, max_steps=80, patience=10))
    )
    assert (result.steps, result.best_step) == (50, 25)


def hold_out(x, targets=None, seed=1):
    hashes = hash_rows(x)
    observations = hashes if targets is None else hash_rows(targets, hashes)
    return held_out_rows(hashes, 0.1, 10_000, np.random.default_rng(seed), lambda: observations)


def test_copies_of_rows_are_held_out_together():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3))
    x[0, 0] = 0.0
    repeated = np.repeat(x, 4, axis=0)
    repeated[1, 0] = -0.0  # the same number
    held = hold_out(repeated)
    assert 30 <= len(held) <= 40
    groups = np.repeat(np.arange(100), 4)
    assert not set(groups[held]) & set(np.delete(groups, held))
    one = hold_out(np.ones((50, 2)))
    assert 0 < len(one) < 50  # nothing else is possible
    few_others = np.concatenate([np.ones((500, 2)), rng.normal(size=(20, 2))])
    mostly = hold_out(few_others)
    assert 0 < len(mostly) < 520


@pytest.mark.parametrize(("places", "together"), [(6, False), (100, False), (300, True)])
def test_repeated_measurements_at_few_places_are_held_out_one_by_one(places, together):
    """Of 6 places one would be held out, which says nothing about the others."""
    rng = np.random.default_rng(0)
    place = np.repeat(np.arange(places), 1_200 // places)
    held = hold_out(place[:, None].astype(float), rng.normal(size=(1_200, 1)))
    apart = set(place[held]) & set(np.delete(place, held))
    assert len(held) == 120
    assert (not apart) == together
    if not together:
        assert len(set(place[held])) >= min(places, 50)


# -- interrupts ------------------------------------------------------------------------------------


def interrupt_at(monkeypatch, step):
    """Ctrl-C in the given step, counted from one."""
    original = MemberTraining.step

    def hook(self, number):
        if number == step:
            raise KeyboardInterrupt
        original(self, number)

    monkeypatch.setattr(MemberTraining, "step", hook)
    monkeypatch.setattr(MemberTraining, "check_every", 2)


def test_interrupt_keeps_what_is_there(monkeypatch):
    interrupt_at(monkeypatch, step=4)
    x, y = data()
    with pytest.warns(PrismGPWarning, match="interrupted"):
        fit = model(n_members=3, on_interrupt="keep").fit(x, y)
    status = fit.fit_status_
    assert status["interrupted"]
    assert [(member["steps"], member["best_step"]) for member in status["members"]] == [(3, 2)] * 3
    learned = {"ssgp with learned noise", "ssgp"}
    assert set(status["weights"]) == learned | {"member 0", "member 1", "member 2"}
    assert fit.n_iter_ == 9
    assert len({len(values) for values in fit.history_.values()}) == 1
    mean, std = fit.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    json.dumps([status, fit.history_], allow_nan=False)


def test_interrupt_before_the_first_check_leaves_the_plain_ssgp(monkeypatch, tmp_path):
    interrupt_at(monkeypatch, step=2)
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
