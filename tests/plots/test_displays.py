"""Displays: their numbers against computations of their own, and that they draw what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, Reconfigurer, SSGPRegressor
from prismgp.data import ArraySource, from_csv
from prismgp.exceptions import DataError
from prismgp.metrics import calibration_curve
from prismgp.plots import (
    CalibrationDisplay,
    HistoryDisplay,
    InputTable,
    PartialDependenceDisplay,
    RelevanceDisplay,
    ResidualsDisplay,
)
from prismgp.plots.style import label

mpl.use("Agg")


def make_rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three inputs, of which the last does nothing; the noise grows with the first."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    return X, 3.0 * X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def model() -> SSGPRegressor:
    return SSGPRegressor(24, random_state=0).fit(*make_rows(200, 0))


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


# -- quality ---------------------------------------------------------------------------------------


def test_calibration_of_a_normal_model_is_that_of_the_metrics(model: SSGPRegressor) -> None:
    X, y = make_rows(300, 1)
    shown = CalibrationDisplay.from_estimator(model, X, y)
    levels, covered = calibration_curve(y, *model.predict(X, return_std=True), levels=shown.levels)
    np.testing.assert_allclose(shown.coverage, covered, atol=1 / 300 + 1e-12)  # a row at the edge of an interval
    np.testing.assert_array_equal(shown.line_.get_ydata(), shown.coverage)
    assert shown.error == pytest.approx(np.abs(covered - levels).mean(), abs=1 / 300)
    assert (shown.lower < levels).all()
    assert (levels < shown.upper).all()


def test_the_band_of_calibration_holds_what_chance_gives() -> None:
    shown = CalibrationDisplay(np.array([0.5, 0.95]), np.array([0.5, 0.95]), 200)
    counts = np.random.default_rng(0).binomial(200, shown.levels, (4_000, 2)) / 200
    inside = ((shown.lower <= counts) & (counts <= shown.upper)).mean(axis=0)
    assert (inside >= 0.94).all()
    assert (inside <= 0.985).all()


def test_residuals_and_their_groups(model: SSGPRegressor) -> None:
    X, y = make_rows(105, 2)
    shown = ResidualsDisplay.from_estimator(model, X, y, n_groups=4)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(shown.residuals, y - mean)
    order = np.argsort(std)
    first = order[:27]  # 105 rows in four groups
    assert shown.group_rmse[0] == pytest.approx(np.sqrt(np.mean((y - mean)[first] ** 2)))
    assert (np.diff(shown.group_std) > 0).all()
    assert len(ResidualsDisplay(std[:15], mean[:15]).group_std) == 1


def test_several_outputs() -> None:
    X, y = make_rows(80, 3)
    Y = np.stack([y, 10 * y], axis=1)
    model = SSGPRegressor(8, random_state=0, max_iter=10).fit(X, Y)
    shown = ResidualsDisplay.from_estimator(model, X, Y, output=1, plot=False)
    np.testing.assert_allclose(shown.residuals, Y[:, 1] - model.predict(X)[:, 1])
    assert CalibrationDisplay.from_estimator(model, X, Y, plot=False).n_observations == 160
    inside = (np.diff(np.sign(model.predict_interval(X, 0.9) - Y[:, :, None]), axis=2) > 0)[:, 1, 0].mean()
    curve = CalibrationDisplay.from_estimator(model, X, Y, levels=[0.9], output=1, plot=False)
    assert curve.coverage == pytest.approx([inside])
    assert curve.n_observations == 80
    relevance = [RelevanceDisplay.from_estimator(model, X, Y, n_repeats=1, output=k, plot=False) for k in (None, 0, 1)]
    assert relevance[1].rmse * 10 == pytest.approx(relevance[2].rmse, rel=0.1)
    # Outputs of one kernel are independent, so their densities add.
    assert relevance[0].nlpd == pytest.approx(relevance[1].nlpd + relevance[2].nlpd)
    dependence = PartialDependenceDisplay.from_estimator(model, X, features=0, output=1, plot=False)
    assert dependence.curves[0].mean[-1] - dependence.curves[0].mean[0] > 20
    with pytest.raises(DataError, match="output=2, but y has 2 column"):
        ResidualsDisplay.from_estimator(model, X, Y, output=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "y_name", "curves"),
    [
        (SSGPRegressor(4, random_state=0, max_iter=5), "best log evidence per row", None),
        (ExactGPRegressor(max_iter=5), "best log evidence per row", None),
        (NeighborGPRegressor(max_iter=5), "best log evidence per row", None),
        (PrismGPRegressor(4, n_members=2, max_steps=30, local="never", random_state=0), "NLPD of held-out rows", 2),
        (PrismGPRegressor(4, recipe="paper", max_steps=20, hidden=4, random_state=0), "objective of held-out rows", 1),
        (Reconfigurer(max_steps=20, hidden=4, random_state=0), "objective of held-out rows", 1),
    ],
    ids=lambda each: type(each).__name__ if hasattr(each, "fit") else None,
)  # fmt: skip
def test_history(estimator: Any, y_name: str, curves: int | None) -> None:
    estimator.fit(*make_rows(60, 4))
    shown = HistoryDisplay.from_estimator(estimator)
    assert shown.y_name == y_name
    assert curves is None or len(shown.curves) == curves
    assert len(shown.ax_.get_lines()) == len(shown.curves)
    for curve in shown.curves:
        assert np.isfinite(curve.y).all()
        if "best" in y_name:
            assert (np.diff(curve.y) >= 0).all()
    if curves is None:
        history = estimator.history_
        last = history["rows"][-1]
        best = max(v / r for v, r in zip(history["log_evidence"], history["rows"], strict=True) if r == last)
        assert max(curve.y[-1] for curve in shown.curves if curve.name == f"{last:,} rows") == pytest.approx(best)


def test_no_history_is_an_error() -> None:
    model = SSGPRegressor(4, optimize=False, random_state=0).fit(*make_rows(30, 0))
    model.history_ = {}
    with pytest.raises(DataError, match="no history of its training"):
        HistoryDisplay.from_estimator(model)


# -- inputs ----------------------------------------------------------------------------------------


def test_relevance_of_a_linear_function_is_known() -> None:
    """Permuting a column of weight w adds 2 w^2 var(x) to the mean square error."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_500, 3))
    y = 2.0 * X[:, 0] + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(1_500)
    model = SSGPRegressor(32, random_state=0).fit(X[:500], y[:500])
    shown = RelevanceDisplay.from_estimator(model, X[500:], y[500:], n_repeats=2)
    added = (shown.rmse_increase.mean(axis=1) + shown.rmse) ** 2 - shown.rmse**2
    np.testing.assert_allclose(added[:2], [8.0, 0.5], rtol=0.15)
    assert abs(added[2]) < 0.02
    assert shown.order.tolist() == [0, 1, 2]
    assert [each.get_text() for each in shown.ax_.get_yticklabels()] == ["column 0", "column 1", "column 2"]
    assert shown.nlpd == pytest.approx(-model.log_density(X[500:], y[500:]).mean())


def test_relevance_takes_some_rows_and_is_repeatable(model: SSGPRegressor) -> None:
    X, y = make_rows(100, 5)
    first, second = (
        RelevanceDisplay.from_estimator(model, X, y, max_rows=40, n_repeats=1, plot=False) for _ in range(2)
    )
    assert first.n_rows == 40
    np.testing.assert_array_equal(first.nlpd_increase, second.nlpd_increase)
    with pytest.raises(DataError, match="100 rows of X and 99 of y"):
        RelevanceDisplay.from_estimator(model, X, y[1:])
    with pytest.raises(DataError, match="measure='mae'"):
        first.plot(measure="mae")


def test_partial_dependence_of_the_mean_and_its_posterior(model: SSGPRegressor) -> None:
    """The band against the exact covariance of the average, at a few values."""
    X, _ = make_rows(30, 6)
    (curve,) = PartialDependenceDisplay.from_estimator(
        model, X, features=[0], grid_size=4, max_rows=30, n_draws=600
    ).curves
    for value, mean, std in zip(curve.values, curve.mean, curve.std, strict=True):
        varied = X.copy()
        varied[:, 0] = value
        expected, covariance = model.predict(varied, return_cov=True, include_noise=False)
        assert mean == pytest.approx(expected.mean())
        assert std == pytest.approx(np.sqrt(covariance.mean()), rel=0.15)  # 600 draws: 3% for one standard error
    slope = np.polyfit(curve.values, curve.mean, 1)[0]
    assert slope == pytest.approx(3.0, rel=0.05)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.uniform(0, 4, 150), "grade": rng.choice(["low", "high"], 150, p=[0.3, 0.7])})
    return frame.assign(price=2.0 * frame["size"] + 5.0 * (frame["grade"] == "high"))


@pytest.fixture(scope="module")
def table_model(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> SSGPRegressor:
    path = tmp_path_factory.mktemp("table") / "table.csv"
    table.to_csv(path, index=False)
    return SSGPRegressor(16, random_state=0).fit(from_csv(path, target="price"))


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.from_pandas, pa.Table.from_pandas])
def test_raw_columns_of_an_encoded_table(kind: Any, table: pd.DataFrame, table_model: SSGPRegressor) -> None:
    X = kind(table[["grade", "size"]])  # another order, and for Arrow no index
    relevance = RelevanceDisplay.from_estimator(table_model, X, table["price"], n_repeats=1, plot=False)
    assert relevance.names == ["size", "grade"]
    assert (relevance.rmse_increase > 1.0).all()
    shown = PartialDependenceDisplay.from_estimator(table_model, X, features=["grade", "size"])
    grade, size = shown.curves
    assert list(grade.values) == ["high", "low"]  # the most frequent first
    assert not grade.ordered
    assert grade.mean[0] - grade.mean[1] == pytest.approx(5.0, abs=0.5)
    assert size.ordered
    assert size.values[0] >= table["size"].min()
    assert [each.get_text() for each in shown.axes_[0].get_xticklabels()] == ["high", "low"]


def test_dates_and_missing_cells_are_a_scale(model: SSGPRegressor) -> None:
    days = pd.date_range("2024-01-01", periods=10).to_series().reset_index(drop=True)
    days[3] = pd.NaT
    table = InputTable(model, pd.DataFrame({"day": days, "flag": [True, False] * 5, "n": range(10)}))
    scale = table.scale(0)
    assert scale is not None
    assert np.isnat(scale[3])
    assert scale[4] == np.datetime64("2024-01-05")
    assert table.scale(1) is None
    assert table.scale(2) is not None


def test_clear_errors(model: SSGPRegressor) -> None:
    X, y = make_rows(20, 7)
    with pytest.raises(DataError, match=r"'z' is not a column; the columns are 'column 0', 'column 1', 'column 2'"):
        PartialDependenceDisplay.from_estimator(model, X, features="z")
    with pytest.raises(DataError, match="not sources of rows"):
        RelevanceDisplay.from_estimator(model, ArraySource(X, y[:, None]), y)
    with pytest.raises(DataError, match="ax has 1 axes for 3 columns"):
        PartialDependenceDisplay.from_estimator(model, X, ax=Figure().subplots())
    with pytest.raises(DataError, match="no rows to show"):
        CalibrationDisplay.from_estimator(model, X[:0], y[:0])


# -- drawing ---------------------------------------------------------------------------------------


def test_all_draw_on_given_axes_and_on_their_own(model: SSGPRegressor) -> None:
    X, y = make_rows(60, 8)
    axes = Figure().subplots(2, 2)
    assert CalibrationDisplay.from_estimator(model, X, y, ax=axes[0, 0]).ax_ is axes[0, 0]
    assert ResidualsDisplay.from_estimator(model, X, y, ax=axes[0, 1]).figure_ is axes[0, 1].figure
    assert RelevanceDisplay.from_estimator(model, X, y, n_repeats=1, ax=axes[1, 0]).ax_ is axes[1, 0]
    assert HistoryDisplay.from_estimator(model, X, y, ax=axes[1, 1]).ax_ is axes[1, 1]
    assert len(PartialDependenceDisplay.from_estimator(model, X, y).axes_) == 3


def test_labels_are_text_and_no_formula() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.set_xlabel(label("$\\frac{1}$ and $2$"))
    figure.canvas.draw()  # as a formula, the first would be an error
    assert label("a\nb\tc") == "a b c"
    assert len(label("x" * 99)) == 40
    assert label("") == "?"


@pytest.mark.slow
def test_numbers_need_no_matplotlib() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import numpy as np
from prismgp import SSGPRegressor
from prismgp.plots import CalibrationDisplay
X = np.arange(20.0)[:, None]
model = SSGPRegressor(4, optimize=False, random_state=0).fit(X, np.sin(X[:, 0]))
print(CalibrationDisplay.from_estimator(model, X, np.sin(X[:, 0]), plot=False).n_observations)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "20"
