"""Rows with unknown cells: the mean of the rows like them, and intervals that are as wide as these rows spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import prismgp
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.core.models import IGNORE, Marginals, Standardiser
from prismgp.exceptions import PrismGPWarning
from prismgp.model.unknown import average_draws, fill_from, find_known_gaps
from prismgp.prism.local import LocalMixture
from prismgp.prism.stacking import Residuals

NOISE = 0.1


def simulated(n: int, seed: int, *, levels: int = 4) -> tuple[pd.DataFrame, Any]:
    """Two numbers, a category, and a target that depends on all of them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.uniform(-2, 2, n), "b": rng.uniform(-2, 2, n), "k": rng.integers(levels, size=n)})
    effect = np.random.default_rng(99).normal(0, 1, levels)
    y = np.sin(frame["a"]) + frame["b"] + effect[frame["k"]] + NOISE * rng.standard_normal(n)
    return frame.assign(k=[f"level {each}" for each in frame["k"]]), y.to_numpy()


MODELS = {
    "exact": ExactGPRegressor(),
    "ssgp": SSGPRegressor(32, random_state=0, max_iter=30),
    "neighbors": NeighborGPRegressor(16, lengthscale=2.0, noise_variance=NOISE**2, optimize=False),
}


def coverage(model: Any, x: Any, y: Any, level: float = 0.95) -> float:
    lower, upper = model.predict_interval(x, level).T
    return float(np.mean((lower <= y) & (y <= upper)))


@pytest.fixture(scope="module", params=["exact", "ssgp", "neighbors"])
def complete(request: pytest.FixtureRequest) -> Any:
    """A model that has seen neither missing cells nor all levels."""
    return MODELS[request.param].fit(*simulated(400, 0))


def test_cells_that_training_never_missed(complete: Any) -> None:
    x, y = simulated(400, 1)
    holes = x.assign(b=np.nan)
    mean, std = complete.predict(holes, return_std=True)
    # b is uniform: its effect is 0 on average, and spreads by 4 / sqrt(12).
    expected = y - x["b"].to_numpy()
    assert np.mean(mean - expected) == pytest.approx(0, abs=0.15)
    assert np.sqrt(np.mean((mean - expected) ** 2)) < 0.45
    assert np.mean(std**2) == pytest.approx(16 / 12 + NOISE**2, rel=0.25)
    assert (std > 2 * complete.predict(x, return_std=True)[1]).all()
    for level in (0.5, 0.8, 0.95):
        # The 24 rows that a cell takes its values from are the same for many rows: over seeds it varies by 0.03.
        assert coverage(complete, holes, y, level) == pytest.approx(level, abs=0.09)
    normal = -0.5 * np.log(2 * np.pi * 16 / 12) - 0.5
    assert complete.log_density(holes, y).mean() == pytest.approx(normal, abs=0.2)
    np.testing.assert_allclose(complete.predict_quantiles(holes, [0.025, 0.975]), complete.predict_interval(holes))


@pytest.mark.slow
@pytest.mark.parametrize("levels", [4, 40])
def test_levels_that_training_never_saw(levels: int) -> None:
    """Over effects drawn again and again: the rows of a new level are covered, by intervals that are wider for it."""
    inside, widths, errors = [], [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        codes, effect = rng.integers(levels + 1, size=200), rng.normal(size=levels + 1)
        x = pd.DataFrame({"a": rng.uniform(-2, 2, 200), "k": [f"level {each}" for each in codes]})
        y = np.sin(x["a"]) + effect[codes] + NOISE * rng.standard_normal(200)
        own = codes == levels
        model = SSGPRegressor(12, random_state=0, max_iter=8).fit(x[~own], y[~own])
        with pytest.warns(PrismGPWarning, match="unseen"):
            lower, upper = model.predict_interval(x[own]).T
        with pytest.warns(PrismGPWarning, match="unseen"):
            mean = model.predict(x[own])
        inside.append(np.mean((lower <= y[own]) & (y[own] <= upper)))
        known_lower, known_upper = model.predict_interval(x[~own]).T
        widths.append((upper - lower).mean() / (known_upper - known_lower).mean())
        errors.append(np.mean(mean - (np.sin(x["a"]) + effect[codes[~own]].mean())[own]))
    assert np.mean(inside) > 0.85
    assert min(widths) > 1.3
    assert np.abs(errors).mean() < 0.35  # of the average effect


@pytest.mark.parametrize("name", ["exact", "ssgp"])
def test_cells_that_training_missed_too(name: str) -> None:
    """Missing at random in a fifth of the rows: an imputed row must not be more certain than the rows like it."""
    x, y = simulated(400, 3)
    rng = np.random.default_rng(0)
    train = x.assign(b=np.where(rng.random(400) < 0.2, np.nan, x["b"]))
    model = MODELS[name].fit(train, y)
    assert "b is missing" in model.table_encoder_.feature_names
    new, target = simulated(400, 4)
    holes = new.assign(b=np.nan)
    mean, std = model.predict(holes, return_std=True)
    assert std.min() > 0.8 * 4 / np.sqrt(12)  # what b does not say
    assert coverage(model, holes, target) > 0.9
    assert np.sqrt(np.mean((mean - target) ** 2)) < 1.35
    assert coverage(model, new, target) > 0.85  # the complete rows are not spoiled


def test_missing_means_something_where_training_says_so() -> None:
    """Missing because the target is high: the learned mean counts, not the average over what the cell may be."""
    rng = np.random.default_rng(5)
    x = pd.DataFrame({"a": rng.normal(size=500), "b": rng.normal(size=500)})
    gone = rng.random(500) < 0.3
    y = x["a"] + 5.0 * gone + NOISE * rng.standard_normal(500)
    model = ExactGPRegressor().fit(x.assign(b=x["b"].mask(gone)), y)
    new = pd.DataFrame({"a": [0.0, 1.0], "b": [np.nan, np.nan]})
    np.testing.assert_allclose(model.predict(new), [5, 6], atol=0.3)


# -- cells that many rows of the fit missed too ------------------------------------------------------


def gappy(n: int, seed: int) -> tuple[pd.DataFrame, Any]:
    """Where a is low, nobody measures b, and where it is missing it has no effect; c is missing now and then."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.uniform(-2, 2, (3, n))
    y = np.sin(2 * a) + np.where(a < 0, 0.0, 3.0 * b) + NOISE * rng.standard_normal(n)
    return pd.DataFrame({"a": a, "b": np.where(a < 0, np.nan, b), "c": np.where(rng.random(n) < 0.01, np.nan, c)}), y


def quick(n_frequencies: int, **settings: Any) -> Any:
    usual = {"n_members": 1, "hidden": (16,), "max_steps": 30, "validation_fraction": 0.25, "local": "never"}
    return PrismGPRegressor(n_frequencies, random_state=0, **(usual | settings))


@pytest.fixture(scope="module")
def fitted() -> Any:
    return quick(32).fit(*gappy(600, 0))


def test_rows_that_miss_what_many_rows_of_the_fit_missed_are_like_them(fitted: Any, tmp_path: Path) -> None:
    """They are no less certain than complete rows, though complete rows that resemble them differ a lot."""
    x, y = gappy(600, 1)
    known = x[x["c"].notna()].reset_index(drop=True)
    assert fitted.model_.known_gaps.cells.tolist() == [[False, True, False, False, False]]  # b, and not c
    gaps = known["b"].isna()
    _, std = fitted.predict(known, return_std=True)
    assert np.quantile(std[gaps], 0.95) < 2.0 * np.median(std[~gaps])  # a few are just outside
    assert 0.9 < coverage(fitted, known[gaps], y[x["c"].notna()][gaps]) < 0.99
    fitted.save(tmp_path / "m.prism")
    loaded = prismgp.load(tmp_path / "m.prism")
    for name in ("cells", "low", "high"):
        np.testing.assert_array_equal(getattr(loaded.model_.known_gaps, name), getattr(fitted.model_.known_gaps, name))
    for mine, theirs in zip(fitted.predict(x, return_std=True), loaded.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_other_rows_with_unknown_cells_are_averaged(fitted: Any) -> None:
    """Where c is missing too, and where b is missing although a is high: no rows of the fit were like that."""
    model = fitted.model_
    values = [[-1.0, np.nan, np.nan], [-1.0, np.nan, 0.5], [1.0, 0.5, np.nan], [1.0, np.nan, 0.5]]
    rows = fitted.table_encoder_.encode(np.array(values))
    filled = model.known_gaps.fill(rows, model.encoder)
    np.testing.assert_array_equal(np.isnan(filled).any(axis=1), [True, False, True, True])
    others = [0, 2, 3]
    np.testing.assert_array_equal(filled[others], rows[others])
    assert np.isnan(rows[1]).any()  # the rows that were given stay as they are
    assert model.known_gaps.fill(known := rows[others], model.encoder) is known


def test_gaps_elsewhere_are_not_trusted(fitted: Any) -> None:
    """Training missed b only where a is low. Elsewhere nobody knows what a missing b means: intervals are wider."""
    a = np.linspace(-1.9, 1.9, 39)
    rows = pd.DataFrame({"a": a, "b": np.nan, "c": 0.0})
    _, std = fitted.predict(rows, return_std=True)
    assert std[a < 0].max() < std[a > 0.2].min()


@pytest.mark.parametrize(("scale", "gaps", "found"), [(1.0, 60, True), (1.0, 40, False), (2.0, 60, False)])
def test_held_out_rows_must_show_it(
    fitted: Any, rng: np.random.Generator, scale: float, gaps: int, found: bool
) -> None:
    """Enough of them, whose intervals are wide enough."""
    encoder = fitted.table_encoder_
    x = np.zeros((500, 5))  # a, b, whether b is missing, c, whether c is
    x[:, 2] = np.arange(500) < gaps
    residuals = np.where(np.arange(500)[:, None] < gaps, scale, 1.0) * np.sign(rng.normal(size=(500, 2)))
    seen = Residuals(residuals, torch.as_tensor(x), None)
    units = Standardiser(np.zeros(5), np.ones(5), np.zeros(2), np.ones(2), np.zeros(2))
    assert (find_known_gaps(seen, units, encoder) is not None) == found
    ignored = replace(units, x_scale=np.where(encoder.indicators >= 0, IGNORE, 1.0))
    assert find_known_gaps(seen, ignored, encoder) is None


@pytest.mark.slow
def test_zeros_are_recognised_after_a_fit_in_single_precision() -> None:
    """Whose standardised rows, far from the mean, do not give them back to the last digit."""
    x, y = gappy(600, 1)
    x["c"] = np.where(np.arange(600) % 3 == 0, np.exp(9.0 + x["a"]), 0.0)
    model = quick(8, dtype="float32").fit(x, y)
    gaps = model.table_encoder_.encode(x[x["b"].isna()].to_numpy())
    assert np.isfinite(model.model_.known_gaps.fill(gaps, model.model_.encoder)).all(axis=1).mean() > 0.9


@pytest.mark.slow
def test_columns_that_are_ignored_say_nothing_of_rows_with_gaps(tmp_path: Path) -> None:
    x, y = gappy(600, 1)
    x["country"] = "FR"
    model = quick(8).fit(x, y)
    assert model.model_.known_gaps is not None
    model.save(tmp_path / "m.prism")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "m.prism").predict(x), model.predict(x))


def test_arrays() -> None:
    """The same without names; a row's prediction does not depend on the rows beside it."""
    x, y = simulated(300, 6)
    array = x[["a", "b"]].to_numpy()
    complete = SSGPRegressor(16, random_state=0, max_iter=20).fit(array, y)
    assert not hasattr(complete, "table_encoder_")
    holes = array[:9].copy()
    holes[::2, 1] = np.nan
    mean, std = complete.predict(holes, return_std=True)
    np.testing.assert_allclose(mean[1::2], complete.predict(array[1:9:2]), rtol=1e-12)
    for row in range(9):
        np.testing.assert_allclose(complete.predict(holes[row : row + 1]), mean[row], rtol=1e-9)
    assert (std[::2] > 1.5 * std[1::2].max()).all()
    train = array.copy()
    train[::7, 0] = np.nan
    model = SSGPRegressor(16, random_state=0, max_iter=20).fit(train, y)
    assert (model.n_features_in_, model.model_.n_inputs) == (2, 3)
    assert not hasattr(model, "feature_names_in_")
    assert np.isfinite(model.predict(train)).all()
    dropped = SSGPRegressor(16, random_state=0, max_iter=20, missing="drop").fit(train, y)
    rest = np.arange(300) % 7 != 0
    expected = SSGPRegressor(16, random_state=0, max_iter=20).fit(train[rest], y[rest])
    np.testing.assert_array_equal(dropped.predict(array), expected.predict(array))


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_columns_that_never_varied(kind: str, tmp_path: Path) -> None:
    """No prediction depends on them: what is missing or new there changes nothing, beside other missing cells too."""
    x, y = simulated(200, 9)
    constant = "FR" if kind == "text" else 3.5
    model = SSGPRegressor(16, random_state=0, max_iter=20).fit(x.assign(country=constant), y)
    model.save(tmp_path / "m.prism")
    new = x[:8].assign(b=[0.1, np.nan, 0.5, np.nan, 1.0, 0.0, 0.0, 0.0])
    others: list[Any] = ["DE", None] if kind == "text" else [np.nan, 1e6]
    for fitted in (model, prismgp.load(tmp_path / "m.prism")):
        expected = fitted.predict(new.assign(country=constant), return_std=True)
        density = fitted.log_density(new.assign(country=constant), y[:8])
        for other in others:
            changed = new.assign(country=pd.Series([other] * 8, dtype=type(constant)) if other is None else other)
            np.testing.assert_allclose(fitted.predict(changed, return_std=True), expected, rtol=1e-9)
            np.testing.assert_allclose(fitted.log_density(changed, y[:8]), density, rtol=1e-9)
            np.testing.assert_allclose(
                fitted.predict(changed, return_cov=True)[1],
                fitted.predict(new.assign(country=constant), return_cov=True)[1],
                atol=1e-9,
            )
    # A level that no training row of a column that varies had still counts.
    with pytest.warns(PrismGPWarning, match="'k'"):
        wide = model.predict(new.assign(k="other", country=constant), return_std=True)[1]
    assert (wide > expected[1]).all()


def test_covariances_and_functions_agree_with_the_variances() -> None:
    x, y = simulated(200, 7)
    model = SSGPRegressor(16, random_state=0, max_iter=20).fit(x, y)
    new = x[:6].assign(b=[0.1, np.nan, 0.5, np.nan, 1.0, 0.0])
    mean, std = model.predict(new, return_std=True)
    center, cov = model.predict(new, return_cov=True)
    np.testing.assert_allclose(center, mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(np.diag(cov)), std, rtol=1e-6)
    assert np.linalg.eigvalsh(cov).min() > 0
    draws = model.sample_y(new, 4000, random_state=0)
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.1)
    function = model.predict(new, return_std=True, include_noise=False)[1]
    np.testing.assert_allclose(draws.std(1), function, rtol=0.1)


@pytest.mark.slow
def test_the_mixture_of_experts(tmp_path: Path) -> None:
    x, y = simulated(250, 8)
    model = PrismGPRegressor(8, n_members=1, max_steps=30, n_neighbors=8, random_state=0).fit(x, y)
    holes = x[:50].assign(b=np.nan)
    mean, std = model.predict(holes, return_std=True)
    assert std.mean() > 1.5 * model.predict(x[:50], return_std=True)[1].mean()
    assert coverage(model, holes, y[:50]) > 0.85
    model.save(tmp_path / "m.prism")
    again = prismgp.load(tmp_path / "m.prism")
    np.testing.assert_array_equal(again.predict(holes, return_std=True), (mean, std))
    np.testing.assert_array_equal(again.predict_interval(holes), model.predict_interval(holes))


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_means_alone_of_a_model_with_neighbours() -> None:
    """Neighbours compute variances whether they are asked for or not."""
    model = PrismGPRegressor(4, local="always", random_state=0).fit(*simulated(600, 0))
    assert isinstance(model.model_.predictor, LocalMixture)
    x, _ = simulated(20, 2)
    x.loc[5:9, "b"] = np.nan
    np.testing.assert_allclose(model.predict(x), model.predict(x, return_std=True)[0])


def test_one_more_value_is_covered_on_average() -> None:
    """A cell may be any value of its distribution, of which the model knows 24: the distribution of one more."""
    rng = np.random.default_rng(0)
    inside, squares = [], []
    for _ in range(300):
        values = rng.uniform(-2, 2, 24)
        factor = fill_from(np.full((1, 1), np.nan), values[:, None], np.ones(1))[1]
        mean, variance = torch.as_tensor(values)[:, None], torch.full((24, 1), NOISE**2, dtype=torch.float64)
        found = average_draws(Marginals.normal(mean, variance), factor)
        y = rng.uniform(-2, 2, 100) + NOISE * rng.standard_normal(100)
        ends = found.quantiles([0.1, 0.9]).numpy().ravel()
        inside.append(np.mean((ends[0] <= y) & (y <= ends[1])))
        squares.append(np.mean((y - found.mean.item()) ** 2) / found.variance.item())
    assert np.mean(squares) == pytest.approx(1.0, abs=0.05)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)  # 0.75 if the 24 were all there is


def test_unknown_cells_take_the_values_of_the_nearest_rows() -> None:
    rng = np.random.default_rng(0)
    background = rng.normal(size=(200, 3))
    background[:, 2] = background[:, 0]  # what is known says what is not
    x = np.array([[1.0, 0.3, np.nan], [-1.0, np.nan, np.nan], [0.0, 0.0, 0.0]])
    drawn, factor = fill_from(x, background, np.ones(3))
    np.testing.assert_allclose(factor, 25 / 23)  # one more of 24
    assert drawn.shape == (24, 3, 3)
    np.testing.assert_array_equal(drawn[:, 0, :2], np.tile(x[0, :2], (24, 1)))
    np.testing.assert_array_equal(drawn[:, 2], np.zeros((24, 3)))
    assert np.abs(drawn[:, 0, 2] - 1.0).mean() < 0.5
    distances = np.abs(background[:, 0] + 1.0)
    nearest = np.argsort(distances)[:24]
    np.testing.assert_array_equal(drawn[:, 1, 1:], background[nearest][:, 1:])


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_the_nearest_rows_are_those_of_direct_differences(rng: np.random.Generator, offset: float) -> None:
    """Also where a column is far from zero; and a row does not depend on the rows beside it."""
    scale = np.array([1.0, 0.5, 2.0])
    background = rng.normal(size=(200, 3)) + offset
    x = rng.normal(size=(20, 3)) + offset
    x[:, 0] = np.nan
    together, _ = fill_from(x, background, scale)
    distances = np.square((x[:, None, 1:] - background[:, 1:]) / scale[1:]).sum(axis=2)
    for k in range(len(x)):
        nearest = background[np.argsort(distances[k])[: len(together)], 0]
        assert set(together[:, k, 0]) == set(nearest)
        np.testing.assert_array_equal(fill_from(x[k : k + 1], background, scale)[0][:, 0], together[:, k])
