"""Fits that end early: at a time limit, or by an interrupt; in Python."""

from __future__ import annotations

import json
import types
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import prismgp
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, Reconfigurer, SSGPRegressor
from prismgp import checkpoint as checkpoint_module
from prismgp.core import rows
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.prism import local_fit

MODELS = {
    "ssgp": SSGPRegressor(4, max_iter=10, random_state=0),
    "learned": SSGPRegressor(3, learn_frequencies=True, max_iter=5, random_state=0),
    "hard": SSGPRegressor(3, gating="hard", n_components=2, max_iter=5, random_state=0),
    "exact": ExactGPRegressor(max_iter=10, random_state=0),
    "neighbors": NeighborGPRegressor(8, max_iter=12, random_state=0),
    "prism": PrismGPRegressor(
        4, n_members=2, max_steps=30, hidden=8, batch_size=64, latent_dim=2, n_components=2, max_iter=5, random_state=0
    ),
    "paper": PrismGPRegressor(
        4, recipe="paper", max_steps=60, hidden=4, batch_size=64, n_components=2, max_iter=5, random_state=0
    ),
}


@pytest.fixture(autouse=True)
def short_local_training(monkeypatch, short_race):
    monkeypatch.setattr(local_fit, "FEW", replace(local_fit.FEW, steps=10, searches=1, batch_rows=64))


def data(n=250):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2))
    return x, np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.1 * rng.normal(size=n)


def interrupt_at(model, moment):
    """An interrupt at the so-manieth event of the fit; returns how many there were."""
    seen = []

    def callback(event):
        seen.append(event.stage)
        if len(seen) == moment:
            raise KeyboardInterrupt

    model._callback = callback
    return seen


# -- interrupts --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ssgp", "neighbors", "prism"])
def test_twenty_moments(kind, tmp_path, monkeypatch):
    """At every moment the estimator is left unfitted, and the checkpoint goes on to the same model."""
    monkeypatch.setattr(checkpoint_module, "WRITE_SECONDS", 0.0)
    x, y = data()
    whole = clone(MODELS[kind])
    stages = interrupt_at(whole, None)
    expected = whole.fit(x, y).predict(x, return_std=True)
    path = tmp_path / "c"
    moments = np.unique(np.linspace(1, len(stages), 7 if kind != "ssgp" else 6).round().astype(int))
    hit = set()
    for moment in moments:
        model = clone(MODELS[kind]).set_params(checkpoint=path)
        events = interrupt_at(model, moment)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x, y)
        hit.add(events[-1].split()[0])
        with pytest.raises(NotFittedError):
            model.predict(x)
    resumed = clone(MODELS[kind]).set_params(checkpoint=path).fit(x, y)
    assert not resumed.fit_status_["interrupted"]
    for mine, theirs in zip(resumed.predict(x, return_std=True), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert {"start", "final"} <= hit


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MODELS))
def test_kept_interrupts(kind, tmp_path):
    """The best state so far, at every stage; the model says so, also in its file."""
    x, y = data()
    whole = clone(MODELS[kind])
    stages = interrupt_at(whole, None)
    whole.fit(x, y)
    for moment in sorted({1, len(stages) // 2, len(stages) - 1}):
        model = clone(MODELS[kind]).set_params(on_interrupt="keep")
        interrupt_at(model, moment)
        with pytest.warns(PrismGPWarning, match="interrupted; the best states so far are used"):
            model.fit(x, y)
        assert model.fit_status_["interrupted"]
        assert not model.fit_status_["timed_out"]
        assert np.isfinite(model.predict(x)).all()
        json.dumps(model.fit_status_, allow_nan=False)
    model.save(tmp_path / "m")
    assert prismgp.load(tmp_path / "m").fit_status_["interrupted"]


def test_a_cross_validation_stops():
    x, y = data(60)
    calls = []

    class Interrupted(SSGPRegressor):
        def fit(self, X, y=None, **options):
            calls.append(1)
            self._callback = self._interrupt
            return super().fit(X, y, **options)

        def _interrupt(self, event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cross_val_score(Interrupted(2, random_state=0), x, y, cv=3)
    assert len(calls) == 1


# -- time limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(MODELS))
@pytest.mark.parametrize("ticks", [3, 40, 150])
def test_time_limits(kind, ticks, monkeypatch, tmp_path):
    """A clock that counts how often it is asked, so that fits end at the same places on every machine."""
    now = [0]

    def tick():
        now[0] += 1
        return float(now[0])

    monkeypatch.setattr(rows, "time", types.SimpleNamespace(perf_counter=tick))
    monkeypatch.setattr(rows.Ending, "reserve", lambda *_: None)  # real seconds
    monkeypatch.setattr("prismgp.estimators.base.time", types.SimpleNamespace(perf_counter=lambda: 0.0))
    x, y = data()
    model = clone(MODELS[kind]).set_params(max_seconds=float(ticks))
    assert model.get_params()["max_seconds"] == ticks
    model.fit(x, y)
    status = model.fit_status_
    assert status["timed_out"] or ticks > 3
    assert not status["interrupted"]
    assert status["seconds"] > 0
    mean, std = model.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    json.dumps(status, allow_nan=False)
    model.save(tmp_path / "m")
    again = prismgp.load(tmp_path / "m")
    assert again.fit_status_ == json.loads(json.dumps(status))
    np.testing.assert_array_equal(again.predict(x), mean)


def test_enough_time_changes_nothing():
    x, y = data()
    for kind in ("ssgp", "exact"):
        plain, limited = (clone(MODELS[kind]).set_params(max_seconds=each).fit(x, y) for each in (None, 1e6))
        np.testing.assert_array_equal(plain.predict(x), limited.predict(x))
        assert not limited.fit_status_["timed_out"]
        assert "seconds" not in plain.fit_status_


def test_a_checkpoint_of_a_fit_that_ran_out_of_time_is_continued(tmp_path, monkeypatch):
    """It holds nothing of the model that ended early: not the statistics at its parameters."""
    monkeypatch.setattr(checkpoint_module, "WRITE_SECONDS", 0.0)
    x, y = data()
    whole = clone(MODELS["ssgp"]).fit(x, y)
    first = clone(MODELS["ssgp"]).set_params(checkpoint=tmp_path / "c", max_seconds=1e6)

    def expire(event):
        if event.stage == "race":
            first_context[0].reserve(2e6)

    original, first_context = rows.Ending.__init__, []

    def remember(self, *arguments, **options):
        original(self, *arguments, **options)
        if arguments and arguments[0] == 1e6:
            first_context.append(self)

    monkeypatch.setattr(rows.Ending, "__init__", remember)
    first._callback = expire
    first.fit(x, y)
    assert first.fit_status_["timed_out"]
    second = clone(MODELS["ssgp"]).set_params(checkpoint=tmp_path / "c").fit(x, y)
    np.testing.assert_array_equal(second.predict(x), whole.predict(x))
    assert not np.array_equal(first.predict(x), whole.predict(x))


def test_the_reconfigurer_ends_too():
    x, _ = data(100)
    encoder = Reconfigurer(2, 2, hidden=4, max_steps=10**6, patience=None, random_state=0, max_seconds=0.2).fit(x)
    assert encoder.fit_status_["timed_out"]
    assert encoder.n_iter_ < 10**6
    assert np.isfinite(encoder.transform(x)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seconds": 0}, "max_seconds=0 must be a number above 0"),
        ({"max_seconds": "soon"}, "max_seconds='soon' must be a number above 0"),
        ({"on_interrupt": "ignore"}, "on_interrupt='ignore' is unknown; choose one of 'raise', 'keep'"),
    ],
)
def test_bad_arguments(changes, message):
    for model in (SSGPRegressor(2), Reconfigurer()):
        with pytest.raises(DataError, match=message):
            model.set_params(**changes).fit(*data(20))
