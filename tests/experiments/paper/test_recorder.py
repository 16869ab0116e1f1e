"""Callbacks of fits: they change nothing, their time does not count, and the last model they get is the fitted one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from experiments.internals import observe_fit
from experiments.paper.fits import Recorder
from experiments.scores import score
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor, load
from prismgp.context import FitContext, FitEvent

pytestmark = pytest.mark.usefixtures("short_fits")
MODELS = {
    "exact": lambda: ExactGPRegressor(random_state=0, max_iter=20),
    "ssgp": lambda: SSGPRegressor(8, random_state=0, max_iter=20),
    "gated": lambda: SSGPRegressor(4, random_state=0, max_iter=10, gating="soft", n_components=2),
    "frequencies": lambda: SSGPRegressor(4, random_state=0, max_iter=10, learn_frequencies=True),
    "joint": lambda: PrismGPRegressor(4, random_state=0, n_members=2, max_steps=50, hidden=8, max_iter=10),
    "paper": lambda: PrismGPRegressor(4, random_state=0, recipe="paper", max_steps=30, max_iter=10),
}


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((150, 3))
    y = 3.0 + 2.0 * np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.2 * rng.standard_normal(len(x))
    return x[:120], y[:120], x[120:], y[120:]


def observed(name: str, rows: tuple[np.ndarray, ...], pause: float = 0.0) -> tuple[Any, list[tuple[FitEvent, Any]]]:
    x, y, x_test, _ = rows
    seen: list[tuple[FitEvent, Any]] = []

    def observe(what: FitEvent) -> None:
        time.sleep(pause)
        seen.append((what, what.model().predict(x_test, return_std=True)))

    model = MODELS[name]()
    observe_fit(model, observe)
    return model.fit(x, y), seen


@pytest.fixture(scope="module", params=MODELS)
def watched(request: pytest.FixtureRequest, rows: tuple[np.ndarray, ...]) -> tuple[str, Any, list[Any]]:
    """A model by name, fitted under observation, and what was seen."""
    return request.param, *observed(request.param, rows)


@pytest.mark.slow
def test_observed_fit_is_the_same_bit_by_bit(watched: tuple[str, Any, list[Any]], rows: tuple[np.ndarray, ...]) -> None:
    x, y, x_test, _ = rows
    name, model, seen = watched
    alone = MODELS[name]().fit(x, y)
    for mine, other in zip(model.predict(x_test, return_std=True), alone.predict(x_test, return_std=True), strict=True):
        assert np.array_equal(mine, other)
    assert alone._callback is None
    # And the last thing seen is what the fit returned, as is the last one before it.
    for mean, std in (seen[-1][1], seen[-2][1]):
        assert np.array_equal(mean, model.predict(x_test))
        assert np.array_equal(std, model.predict(x_test, return_std=True)[1])


def test_course(watched: tuple[str, Any, list[Any]]) -> None:
    name, model, seen = watched
    what = [each for each, _ in seen]
    iterations = [each.iteration for each in what]
    assert what[0].stage == "start"
    assert iterations[0] == 0
    assert iterations == sorted(iterations)
    assert [each.final for each in what] == [False] * (len(what) - 1) + [True]
    seconds = [each.seconds for each in what]
    assert seconds == sorted(seconds)
    if name in ("exact", "ssgp", "gated", "frequencies"):
        assert iterations[-1] == model.n_iter_
        assert iterations == [0, *range(1, model.n_iter_ + 1), model.n_iter_]
    if name == "joint":
        assert "members" in {each.stage for each in what}
        assert iterations[-1] - model.n_iter_ == max(each.iteration for each in what if each.stage == "l-bfgs")


@pytest.mark.slow
def test_time_of_the_callback_does_not_count(rows: tuple[np.ndarray, ...]) -> None:
    pause = 0.02
    began = time.perf_counter()
    _, seen = observed("ssgp", rows, pause)
    whole = time.perf_counter() - began
    assert seen[-1][0].seconds <= whole - pause * len(seen)


def test_clock_of_a_fit() -> None:
    seen: list[FitEvent] = []

    def observe(what: FitEvent) -> None:
        seen.append(what)
        time.sleep(0.2)

    context = FitContext(callback=observe)
    context.report("race", 10, lambda: None, iteration=1)
    context.report("final", 10, lambda: None)
    assert seen[1].seconds - seen[0].seconds < 0.15
    assert seen[1].iteration == 1


def test_without_a_callback_no_model_is_made() -> None:
    FitContext().report("final", 1, lambda: pytest.fail("nobody asked for a model"))


def test_saved_nowhere(rows: tuple[np.ndarray, ...], tmp_path: Any) -> None:
    model, _ = observed("ssgp", rows)
    assert "_callback" not in model.get_params()
    assert clone(model)._callback is None
    model.save(tmp_path / "model.prism")
    assert load(tmp_path / "model.prism")._callback is None


@pytest.mark.parametrize("name", ["exact", "ssgp", "paper"])
def test_recorder_ends_with_the_scores_of_the_model(name: str, rows: tuple[np.ndarray, ...]) -> None:
    x, y, x_test, y_test = rows
    recorder = Recorder(x_test, y_test, float(y.std()))
    model = MODELS[name]()
    observe_fit(model, recorder)
    model.fit(x, y)
    expected = score(y_test, *model.predict(x_test, return_std=True), float(y.std()))
    last = recorder.points[-1]
    assert last["stage"] == "final"
    assert {key: last[key] for key in ("rmse", "nlpd", "coverage")} == {
        key: expected[key] for key in ("rmse", "nlpd", "coverage")
    }
    assert last["seconds"] == recorder.seconds
    assert recorder.points[0]["iteration"] == 0
    assert len(recorder.points) < 45  # thinned out


def test_recorder_shows_the_leader_of_a_race() -> None:
    class Model:
        def __init__(self, value: float) -> None:
            self.value = value

        def predict(self, x: np.ndarray, return_std: bool) -> tuple[np.ndarray, np.ndarray]:
            return np.full(len(x), self.value), np.ones(len(x))

    recorder = Recorder(np.zeros((4, 1)), np.zeros(4), 1.0)
    for iteration, (evidence, value) in enumerate([(-9.0, 3.0), (-5.0, 1.0), (-7.0, 2.0)]):
        recorder(FitEvent("race", iteration, 0.1 * iteration, 4, evidence, lambda value=value: Model(value)))
    assert [point["rmse"] for point in recorder.points] == [3.0, 1.0, 1.0]
    recorder(FitEvent("l-bfgs", 3, 0.3, 4, -8.0, lambda: Model(2.5)))
    assert recorder.points[-1]["rmse"] == 2.5
