"""The demo, ``make demo``: the whole way on a real table, from a CSV file to a report.

The table is the census of 1990 in California (``experiments/data``), with text and missing values. A fifth of the rows
is held out. PrismGP, the plain SSGP and gradient-boosted trees are fitted on the others and compared on these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.internals import AnyArray, held_out
from experiments.machine import Lock, atomic_path
from experiments.page import Figure, Section, Table, best_cells, drawing, drawing_style, render, save_png
from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError
from prismgp.metrics import coverage, interval_score, rmse
from prismgp.plots import EXACT, FAINT, INK, OURS, CalibrationDisplay
from prismgp.report import examine, model_page, to_svg

__all__ = ["DATA", "TARGET", "add_options", "run"]

DATA = Path(__file__).parent / "data" / "housing.csv.gz"
TARGET = "median_house_value"
OUTPUTS = ("housing.prism", "predictions.csv", "report.html", "overview.png")
_SHARE = 0.2  # of the rows, held out
_LEVEL = 0.95
# Smaller than the defaults, so that the demo ends within three minutes; four members and 1,000 steps gain little here.
PRISM = {"n_members": 2, "max_steps": 500}
_BAY = ((-122.65, -121.65), (37.15, 38.05))  # the part of the map that is drawn
_DRAWN_INTERVALS = 60
_COLOURS = {"SSGP": EXACT, "PrismGP": OURS}

T = TypeVar("T")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder (default: demo)")


def run(args: argparse.Namespace) -> int:
    """Fit, predict, compare, report; everything goes into the folder."""
    folder: Path = args.out
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if other := {name for name in there if name not in OUTPUTS and not name.startswith(".")}:
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(other)[:3])}); choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / "demo"):
        return _run(folder, args)


def _run(folder: Path, args: argparse.Namespace) -> int:
    began = time.perf_counter()
    rows = read_rows()
    print(
        f"{DATA.name}: {len(rows.y) + len(rows.y_test):,} rows, {rows.X.shape[1]} columns, one of them text; ", end=""
    )
    print(f"{int(rows.X.isna().any(axis=1).sum()):,} rows of the fit with missing values. Target: {TARGET}")
    models = fit_models(rows)
    for model in models:
        model.predict(rows)
    print(f"\n{text_table(comparison(models, rows))}\n")
    prism, ssgp = models[0], models[1]
    prism.estimator.save(folder / "housing.prism")
    write_predictions(prism, rows, folder / "predictions.csv")
    with drawing_style():
        figure = draw_overview(prism, ssgp, rows)
        save_png(figure, folder / "overview.png", dpi=120)
    show = lambda step: print(f"[{time.perf_counter() - began:3.0f} s] {step} ...", flush=True)  # noqa: E731
    training = (rows.X, rows.y)
    found = examine(
        prism.estimator, rows.X_test, rows.y_test, target=TARGET, numbers=rows.numbers, training=training, progress=show
    )
    overview = Figure(
        to_svg(figure), CAPTION, "Maps of values and errors, intervals of sixty rows, calibration.", themed=True
    )
    extra = Section("Comparison", COMPARED, tables=[comparison(models, rows)], figures=[overview])
    page = model_page(
        found,
        model_name="housing.prism",
        data_name=DATA.name,
        rows_note="They were kept out of the fit.",
        made_by={"command": args.command},
        extra=extra,
    )
    render(page, folder / "report.html")
    print(f"\nDone in {time.perf_counter() - began:.0f} s. Open {folder / 'report.html'}")
    print(f"Model: {folder / 'housing.prism'}   predictions with intervals: {folder / 'predictions.csv'}")
    return 0


# -- rows and models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows of the fit and held-out rows, as the table has them."""

    X: pd.DataFrame
    y: AnyArray
    X_test: pd.DataFrame
    y_test: AnyArray
    numbers: AnyArray  # of the held-out rows in the table; the first is 1


def read_rows(path: Path = DATA, share: float = _SHARE) -> Rows:
    """Read the table and hold out a share of its rows."""
    frame = pd.read_csv(path)
    test = held_out(len(frame), share, 0)
    X, y = frame.drop(columns=TARGET), frame[TARGET].to_numpy()
    return Rows(X[~test], y[~test], X[test], y[test], np.flatnonzero(test) + 1)


class Model:
    """A model to compare; after :meth:`predict` also its predictions of the held-out rows."""

    def __init__(self, name: str, fit: Callable[[], Any]) -> None:
        print(f"Fitting {name} ...", flush=True)
        began = time.perf_counter()
        self.name, self.estimator = name, fit()
        self.seconds = time.perf_counter() - began
        self.nlpd: float | None = None

    def predict(self, rows: Rows) -> None:
        """Predict means and intervals of the held-out rows, and score their density."""
        self.mean = np.asarray(self.estimator.predict(rows.X_test))
        self.lower, self.upper = np.asarray(self.estimator.predict_interval(rows.X_test, _LEVEL)).T
        self.nlpd = -float(self.estimator.log_density(rows.X_test, rows.y_test).mean())


class Trees(Model):
    """Gradient-boosted trees: one model of the mean, and one for each end of the interval."""

    def predict(self, rows: Rows) -> None:
        mean, lower, upper = (each.predict(_categories(rows.X_test)) for each in self.estimator)
        self.mean, self.lower, self.upper = mean, np.minimum(lower, upper), np.maximum(lower, upper)


def fit_models(rows: Rows, **options: Any) -> list[Model]:
    """PrismGP, the plain SSGP and trees, all on the same rows."""

    def fit_trees() -> list[Any]:
        losses: list[dict[str, Any]] = [{}, *({"loss": "quantile", "quantile": q} for q in (0.025, 0.975))]
        X = _categories(rows.X)
        return [HistGradientBoostingRegressor(random_state=0, **loss).fit(X, rows.y) for loss in losses]

    prism = PrismGPRegressor(**{**PRISM, **options}, random_state=0, verbose=1)
    ssgp = SSGPRegressor(random_state=0, verbose=1)
    return [
        Model("PrismGP", lambda: prism.fit(rows.X, rows.y)),
        Model("SSGP", lambda: ssgp.fit(rows.X, rows.y)),
        Trees("trees", fit_trees),
    ]


def _categories(X: pd.DataFrame) -> pd.DataFrame:
    text = {name: "category" for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])}
    return X.astype(text)


def write_predictions(model: Model, rows: Rows, path: Path) -> None:
    """The held-out rows with predictions and intervals."""
    added = {TARGET: rows.y_test, "mean": model.mean, "lower": model.lower, "upper": model.upper}
    with atomic_path(path) as temporary:
        rows.X_test.assign(**added).to_csv(temporary, index=False)


# -- comparison ------------------------------------------------------------------------------------

COMPARED = (
    "Three models on the same rows, compared on the held-out ones. The trees are scikit-learn's "
    "HistGradientBoostingRegressor, one for the mean and two for the ends of the intervals; they have no density, so "
    "no NLPD."
)


def comparison(models: list[Model], rows: Rows) -> Table:
    """Scores on the held-out rows."""
    y = rows.y_test
    table, numbers = [], []
    for model in models:
        ends = model.lower, model.upper
        scores = [rmse(y, model.mean), interval_score(y, *ends, _LEVEL), float(np.mean(np.subtract(*ends[::-1])))]
        covered = coverage(y, *ends)
        nlpd = "-" if model.nlpd is None else f"{model.nlpd:.3f}"
        cells = [f"{scores[0]:,.0f}", nlpd, f"{covered:.1%}", f"{scores[2]:,.0f}", f"{scores[1]:,.0f}"]
        table.append([model.name, *cells, f"{model.seconds:.0f}"])
        numbers.append((scores[0], model.nlpd, abs(covered - _LEVEL), scores[1], model.seconds))
    columns = {1: 0, 2: 1, 3: 2, 5: 3, 6: 4}
    best = best_cells({cell: [each[k] for each in numbers] for cell, k in columns.items()})
    header = ["Model", "RMSE", "NLPD", "95% intervals cover", "Mean width", "Interval score", "Fit, s"]
    note = (
        f"{len(y):,} held-out rows, in dollars. NLPD and interval score: lower is better. The interval score is the "
        "width plus a penalty for every value outside."
    )
    return Table("Held-out rows", header, table, note=note, best=best)


def text_table(content: Table) -> str:
    """A table for a terminal."""
    lines = [content.header, *content.rows]
    widths = [max(len(row[k]) for row in lines) for k in range(len(content.header))]

    def line(row: list[str]) -> str:
        return "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])

    return "\n".join(map(line, lines))


# -- the figure ------------------------------------------------------------------------------------

CAPTION = (
    "House values in the census of 1990, held-out rows. Top: the values around San Francisco, and the errors there of "
    "a plain SSGP and of the full model (PrismGP). Bottom: 95% intervals of sixty rows drawn at random, "
    "and the calibration of both models on all held-out rows."
)


def draw_overview(prism: Model, ssgp: Model, rows: Rows) -> Any:
    """What a plain SSGP gets, what the full model adds, and whether its intervals can be trusted."""
    figure = drawing(11.0, 7.2)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.0, 0.95))
    maps = top.subplots(1, 3, sharex=True, sharey=True)
    place = [rows.X_test[name].to_numpy() for name in ("longitude", "latitude")]
    inside = np.all([(low < at) & (at < high) for at, (low, high) in zip(place, _BAY, strict=True)], axis=0)
    at = [each[inside] for each in place]
    thousands = rows.y_test / 1e3
    dots = {"s": 17.0, "linewidth": 0.25, "edgecolor": FAINT, "rasterized": True}
    seen = maps[0].scatter(*at, c=thousands[inside], cmap="viridis", **dots)
    maps[0].set_title("Observed value\nin \\$1,000")
    top.colorbar(seen, ax=maps[0], shrink=0.8)
    for axes, model, what in (
        (maps[1], ssgp, "a plain SSGP"),
        (maps[2], prism, "the full model (PrismGP)"),
    ):
        error = np.abs(rows.y_test - model.mean) / 1e3
        shown = axes.scatter(*at, c=error[inside], cmap="YlOrRd", vmin=0, vmax=150, **dots)
        axes.set_title(f"Error of {what}\nall held-out rows: RMSE {rmse(rows.y_test, model.mean) / 1e3:.0f}")
    top.colorbar(shown, ax=maps[1:], shrink=0.8, extend="max")
    for axes in maps:
        axes.set(xlim=_BAY[0], ylim=_BAY[1], xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_aspect(1.26)  # a degree of latitude is longer here
    left, right = bottom.subplots(1, 2, width_ratios=(1.9, 1.0))
    _draw_intervals(left, prism, rows)
    for model in (ssgp, prism):
        curve = CalibrationDisplay.from_estimator(
            model.estimator, rows.X_test, rows.y_test, name=model.name, plot=False
        )
        curve.plot(ax=right, color=_COLOURS[model.name])
    handles, labels = right.get_legend_handles_labels()
    order = [labels.index(name) for name in ("PrismGP", "SSGP", "by chance, 95%")]
    right.legend([handles[k] for k in order], [labels[k] for k in order], loc="upper left")
    right.set_title("Calibration")
    return figure


def _draw_intervals(axes: Any, model: Model, rows: Rows) -> None:
    """Intervals of some rows, by predicted mean, and what was observed."""
    chosen = np.random.default_rng(0).permutation(len(rows.y_test))[:_DRAWN_INTERVALS]
    chosen = chosen[np.argsort(model.mean[chosen], kind="stable")]
    y, lower, upper = (each[chosen] / 1e3 for each in (rows.y_test, model.lower, model.upper))
    at, out = np.arange(len(chosen)), (y < lower) | (y > upper)
    axes.vlines(at, lower, upper, color=_COLOURS["PrismGP"], alpha=0.35, linewidth=4.0, label="95% interval")
    axes.plot(at, model.mean[chosen] / 1e3, "_", color=_COLOURS["PrismGP"], markersize=6, label="predicted")
    axes.plot(at[~out], y[~out], ".", color=INK, markersize=6, label="observed")
    axes.plot(at[out], y[out], "D", color=EXACT, markersize=5, label="observed, outside")
    axes.set(xlim=(-1, len(at)), xticks=[], ylabel=r"\$1,000", xlabel="held-out rows, by predicted value")
    axes.set_title(f"PrismGP: {int((~out).sum())} of {len(at)} rows are in their 95% intervals")
    axes.grid(axis="y")
    axes.legend(loc="upper left", ncols=2)
