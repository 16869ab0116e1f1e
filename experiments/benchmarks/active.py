"""Rows needed for the same error: rows selected by the model against rows drawn at random.

An SSGP begins with some random rows of the training set. The rest of it is the pool, from which batches are added;
after each the model is fitted afresh. All criteria begin with the same rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.benchmarks.suite import DATASETS, check_data, load_split, origin
from experiments.jobs import Job
from experiments.page import PALETTE, drawing, drawing_style, markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_splits
from experiments.results import Record, Study
from experiments.scores import score
from prismgp import SSGPRegressor
from prismgp.active import CRITERIA, select

__all__ = ["ACTIVE"]

NAMES = ("airfoil", "elevators", "kin40k")
RANDOM = "random"
METHODS = {RANDOM: "random rows", "entropy": "entropy", "mutual_information": "mutual information", "alc": "ALC"}
SIZES = (50, 100, 200, 400, 800)  # rows of the fits
SPLITS = tuple(range(5))  # each with a test set and random rows of its own
FREQUENCIES = 64
STYLES: dict[str, dict[str, Any]] = {
    RANDOM: {"color": PALETTE["black"], "ls": "--"},
    "entropy": {"color": PALETTE["vermillion"], "marker": "s"},
    "mutual_information": {"color": PALETTE["green"], "marker": "^"},
    "alc": {"color": PALETTE["blue"], "marker": "o"},
}
INTRODUCTION = (
    f"An SSGP with p = {FREQUENCIES} is fitted to {SIZES[0]} random rows; then rows of the training set are added, "
    f"selected by `prismgp.active.select` or at random, and the model is fitted afresh at {', '.join(map(str, SIZES))} "
    f"rows. RMSE on the held-out rows, in units of the training target's standard deviation; mean and standard error "
    f"of {len(SPLITS)} splits. Made by `python -m experiments active`."
)


def key(dataset: str, split: int, method: str) -> str:
    return f"{dataset}-{split}-{method}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    what = parser.add_argument_group("which runs")
    what.add_argument("--datasets", type=parse_names, default=list(NAMES), metavar="A,B", help=",".join(NAMES))
    what.add_argument("--splits", type=parse_splits, default=list(SPLITS), help="3: the first three; 0-2 or 1,4: these")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    datasets = known_names(args.datasets, DATASETS, "--datasets")
    if not args.list:
        check_data()
    jobs = [
        Job(
            key(dataset, split, method),
            "experiments.benchmarks.active:measure",
            {"dataset": dataset, "split": split, "method": method, "device": args.device},
        )
        for dataset in datasets
        for split in args.splits
        for method in METHODS
    ]
    return Plan("active", jobs)


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """One curve: fit, score and select, batch by batch."""
    x, y, x_test, y_test = load_split(order["dataset"], order["split"])
    shuffled = np.random.default_rng(order["split"]).permutation(len(y))
    method, device, seed = order["method"], order["device"], order["split"]
    known = shuffled[: SIZES[0]]
    found: list[dict[str, Any]] = []
    seconds = {"fit_seconds": 0.0, "select_seconds": 0.0}
    for size, following in zip(SIZES, (*SIZES[1:], None), strict=True):
        began = time.perf_counter()
        model = SSGPRegressor(FREQUENCIES, device=device, random_state=seed).fit(x[known], y[known])
        fitted = time.perf_counter()
        seconds["fit_seconds"] += fitted - began
        found.append(score(y_test, *model.predict(x_test, return_std=True), float(y.std())))
        if following is not None:
            began = time.perf_counter()
            if method == RANDOM:
                rows = shuffled[size:following]
            else:
                rows = select(model, x, following - size, method, exclude=known)
            known = np.append(known, rows)
            seconds["select_seconds"] += time.perf_counter() - began
    curves = {name: [each[name] for each in found] for name in ("rmse", "nlpd", "coverage")}
    return {"sizes": list(SIZES), **curves, "rows": len(y), "test_rows": len(y_test), **seconds}


# -- tables and the figure -------------------------------------------------------------------------


def describe(result: Record) -> str:
    """A few words about a result."""
    return f"rmse {result['rmse'][0]:.3f} to {result['rmse'][-1]:.3f}, selected in {result['select_seconds']:.1f} s"


def collect(study: Study) -> tuple[dict[tuple[str, str], np.ndarray], list[Record], list[str]]:
    """RMSE by data set and method, (splits, sizes); the records; and the runs that are missing."""
    curves, records, missing = {}, [], []
    for dataset in NAMES:
        for method in METHODS:
            found = []
            for split in SPLITS:
                result = study.get(key(dataset, split, method))
                if result is None or "failed" in result:
                    missing.append(key(dataset, split, method))
                else:
                    found.append(result["rmse"])
                    records.append(result)
            if found:
                curves[dataset, method] = np.array(found)
    return curves, records, missing


def rows_needed(curve: np.ndarray, error: float) -> float | None:
    """Rows at which a curve of errors, (sizes,), first reaches an error, by interpolation in logarithms."""
    logs = np.log(SIZES)
    for i in range(len(SIZES)):
        if curve[i] <= error:
            if i == 0:
                return float(SIZES[0])
            share = np.log(curve[i - 1] / error) / np.log(curve[i - 1] / curve[i])
            return float(np.exp(logs[i - 1] + share * (logs[i] - logs[i - 1])))
    return None


def error_rows(curves: dict[tuple[str, str], np.ndarray]) -> list[list[str]]:
    rows = []
    for (dataset, method), curve in curves.items():
        deviation = curve.std(0, ddof=1) / len(curve) ** 0.5 if len(curve) > 1 else np.zeros(len(SIZES))
        best = np.min([found.mean(0) for (name, _), found in curves.items() if name == dataset], axis=0)
        cells = []
        for value, error, least in zip(curve.mean(0), deviation, best, strict=True):
            text = f"{value:.3f} ± {error:.3f}"
            # All begin with the same rows.
            cells.append(f"**{text}**" if value == least and cells else text)
        rows.append([dataset, METHODS[method], *cells])
    return rows


def needed_rows(curves: dict[tuple[str, str], np.ndarray]) -> list[list[str]]:
    """Rows for the error that random rows have at the last sizes, the fewest in bold."""
    table = []
    for dataset in NAMES:
        base = curves.get((dataset, RANDOM))
        if base is None:
            continue
        for size in SIZES[2:]:
            error = base.mean(0)[SIZES.index(size)]
            cells, counts = [str(size)], [float(size)]
            for method in CRITERIA:
                curve = curves.get((dataset, method))
                needed = None if curve is None else rows_needed(curve.mean(0), error)
                text = "not run" if curve is None else f"more than {SIZES[-1]}" if needed is None else f"{needed:.0f}"
                cells.append(text)
                counts.append(np.inf if needed is None else round(needed))
            marked = [f"**{text}**" if n == min(counts) else text for text, n in zip(cells, counts, strict=True)]
            table.append([dataset, f"{error:.3f}", *marked])
    return table


def markdown(study: Study) -> str:
    """All tables."""
    curves, records, missing = collect(study)
    lines = [
        "# Active learning: selected rows against random rows",
        "",
        INTRODUCTION,
        "",
        markdown_table(["data set", "rows", *(f"{size}" for size in SIZES)], error_rows(curves)),
        "",
        "## Rows needed for the error of random rows",
        "",
        "Rows at which the mean RMSE of the five splits reaches that of random rows, by interpolation.",
        "",
        markdown_table(
            ["data set", "RMSE", *(METHODS[method] for method in (RANDOM, *CRITERIA))],
            needed_rows(curves),
        ),
        "",
        "![RMSE against the number of rows](active.png)",
        "",
        "## Missing runs",
        "",
        *([f"- {each}" for each in missing] or ["None: every planned run is there."]),
        "",
        "## Made with",
        "",
        *origin(records),
    ]
    return "\n".join(lines)


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """Error against rows."""

    def make() -> Any:
        with drawing_style():
            return draw(collect(study)[0])

    return {"": make}


def draw(curves: dict[tuple[str, str], np.ndarray]) -> Any:
    """A panel for each data set."""
    figure = drawing(9, 3.4)
    axes = figure.subplots(1, len(NAMES))
    for axis, dataset in zip(axes, NAMES, strict=True):
        for method, style in STYLES.items():
            curve = curves.get((dataset, method))
            if curve is not None:
                axis.plot(SIZES, curve.mean(0), lw=1.5, markersize=4.5, **style)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(SIZES, [str(size) for size in SIZES])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axis.grid(color="#dddddd", lw=0.6)
        axis.set_title(f"{dataset}, pool of {DATASETS[dataset]:,} rows")
    figure.supxlabel("measured rows", fontsize=10)
    figure.supylabel("RMSE / target's std", fontsize=10)
    handles = [
        Line2D([], [], lw=1.5, markersize=4.5, label=METHODS[method], **style) for method, style in STYLES.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


ACTIVE = Experiment(
    kind="active",
    summary="rows selected by the model against random rows: error against the number of rows",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
)
