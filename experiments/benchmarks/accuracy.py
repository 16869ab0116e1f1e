"""Accuracy and calibration on real data: exact GP, SSGP, PrismGP by the two stages as printed, PrismGP.

p = 32 on every split, p = 16 and 64 on the first. Abalone has five random splits of 3,000 training rows, the others
the first three of their collection's splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from experiments.benchmarks.suite import (
    DATASETS,
    EXACT_LIMIT,
    EXACT_ROWS,
    LEVELS,
    MODELS,
    Run,
    Suite,
    closing,
    describe,
    select_failed,
    select_finished,
)
from experiments.page import MODEL_STYLES, drawing, drawing_style, markdown_table
from experiments.plan import Experiment
from experiments.results import Record, Study

__all__ = ["ACCURACY", "SUITE"]

MAIN_P = 32
LABELS = {**MODELS, "paper": "PrismGP, the two stages as printed"}
MANY_TEST_ROWS = 1_000  # below, one row in a hundred moves the coverage by too much to judge it
INTRODUCTION = (
    "Held-out rows of real data sets. RMSE and NLPD (mean negative log density) are in units of the training "
    "target's standard deviation; the NLPD is of the Gaussian with the predicted mean and standard deviation, "
    "unless it is said to be of the model's own distribution, with the shape of the noise. "
    "Made by `make bench-accuracy`; seeds are the numbers of the splits."
)
SHORT = ("exact", "ssgp", "prism")  # models of the table for the README
SUITE = Suite(
    name="accuracy",
    models=("exact", "ssgp", "paper", "prism"),
    splits=lambda dataset: range(5 if dataset == "abalone" else 3),
    frequencies=lambda split: (MAIN_P, 16, 64) if split == 0 else (MAIN_P,),
)


class Column(NamedTuple):
    """A model and which of its predictive densities the NLPD is of."""

    model: str
    nlpd: str
    title: str


class Worst(NamedTuple):
    value: float
    where: str


class Results:
    """The finished runs of the plan, and comparisons between them on the splits that both sides have."""

    def __init__(self, study: Study) -> None:
        done = select_finished(study, SUITE.runs(models=("prism1",)))
        models = (*SUITE.models, *(("prism1",) if done else ()))
        self.plan = SUITE.runs(models=models)
        self.done = select_finished(study, self.plan)
        self.failed = select_failed(study, self.plan)
        self.models = models
        self.datasets = sorted(DATASETS, key=lambda name: DATASETS[name])
        self.columns = [Column(model, "nlpd", LABELS[model]) for model in models]
        if any("nlpd_mixture" in result for run, result in self.done.items() if run.model == "prism"):
            place = [column.model for column in self.columns].index("prism") + 1
            self.columns.insert(
                place, Column("prism", "nlpd_mixture", f"{LABELS['prism']}, NLPD of its own distribution")
            )

    def splits(self, dataset: str) -> list[int]:
        return sorted({run.split for run in self.plan if run.dataset == dataset})

    def of(self, dataset: str, split: int, model: str, p: int = MAIN_P) -> Record | None:
        return self.done.get(Run(dataset, split, model, None if model == "exact" else p))

    def over_splits(self, dataset: str, model: str) -> list[Record]:
        found = [self.of(dataset, split, model) for split in self.splits(dataset)]
        return [result for result in found if result is not None]

    def pairs(self, dataset: str, model: str, other: str) -> list[tuple[int, Record, Record]]:
        found = [
            (split, self.of(dataset, split, model), self.of(dataset, split, other)) for split in self.splits(dataset)
        ]
        return [(split, a, b) for split, a, b in found if a is not None and b is not None]

    def rmse_ratio(self, dataset: str, model: str) -> float | None:
        """Mean RMSE over the mean RMSE of the exact GP."""
        pairs = self.pairs(dataset, model, "exact")
        return mean(a["rmse"] for _, a, _ in pairs) / mean(b["rmse"] for _, _, b in pairs) if pairs else None

    def nlpd_difference(self, dataset: str, model: str, key: str = "nlpd") -> float | None:
        """Mean NLPD minus the mean NLPD of the exact GP."""
        pairs = [(a, b) for _, a, b in self.pairs(dataset, model, "exact") if key in a]
        return mean(a[key] - b["nlpd"] for a, b in pairs) if pairs else None


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


# -- sections --------------------------------------------------------------------------------------


def absent(results: Results, dataset: str, model: str) -> str:
    runs = [Run(dataset, split, model, None if model == "exact" else MAIN_P) for split in results.splits(dataset)]
    return "failed" if any(run in results.failed for run in runs) else "not run"


def partial(results: Results, dataset: str, count: int) -> str:
    planned = len(results.splits(dataset))
    return f" ({count} of {planned} splits)" if count < planned else ""


def scores_table(results: Results) -> list[str]:
    """Mean scores by data set and model."""

    def cell(dataset: str, column: Column) -> str:
        found = [result for result in results.over_splits(dataset, column.model) if column.nlpd in result]
        if not found:
            return absent(results, dataset, column.model)
        if column.nlpd == "nlpd_mixture":
            return f"{mean(r['nlpd_mixture'] for r in found):.3f}" + partial(results, dataset, len(found))
        values = {key: mean(r[key] for r in found) for key in ("rmse", "nlpd", "coverage", "fit_seconds")}
        text = f"{values['rmse']:.3f} / {values['nlpd']:.3f} / {100 * values['coverage']:.1f}%"
        star = "\\*" if any("exact_rows" in r for r in found) else ""
        return f"{text} / {seconds(values['fit_seconds'])}{star}" + partial(results, dataset, len(found))

    header = ["data set", "rows", "splits"]
    header += [column.title for column in results.columns]
    rows = (
        [name, f"{DATASETS[name]:,}", str(len(results.splits(name)))] + [cell(name, each) for each in results.columns]
        for name in results.datasets
    )
    lines = ["RMSE / NLPD / coverage of 95% intervals / seconds of the fit.", "", markdown_table(header, rows), ""]
    if any("exact_rows" in result for result in results.done.values()):
        lines += [
            (
                f"\\* More than {EXACT_LIMIT:,} rows: the exact GP's parameters were learned on {EXACT_ROWS:,} random "
                "rows; with these, all rows entered one Cholesky factorisation."
            ),
            "",
        ]
    return lines


def relative_table(results: Results) -> list[str]:
    def cell(dataset: str, column: Column) -> str:
        difference = results.nlpd_difference(dataset, column.model, column.nlpd)
        ratio = results.rmse_ratio(dataset, column.model)
        if difference is None or ratio is None:
            return "no pair"
        pairs = results.pairs(dataset, column.model, "exact")
        text = f"{difference:+.3f}" if column.nlpd != "nlpd" else f"{ratio:.3f} / {difference:+.3f}"
        return text + partial(results, dataset, len(pairs))

    columns = [column for column in results.columns if column.model != "exact"]
    header = ["data set"] + [column.title for column in columns]
    rows = ([name] + [cell(name, column) for column in columns] for name in results.datasets)
    return ["RMSE over that of the exact GP / NLPD minus that of the exact GP.", "", markdown_table(header, rows), ""]


def bars_table(results: Results) -> list[str]:
    """How often and by how much a model misses the exact GP, and SSGP in single splits."""
    columns = [column for column in results.columns if column.model != "exact"]

    def tally(values: dict[str, float | None], limit: float) -> str:
        known = [value for value in values.values() if value is not None]
        left_out = f"; {len(values) - len(known)} not compared" if len(known) < len(values) else ""
        return f"{sum(value <= limit for value in known)} of {len(known)}{left_out}"

    def worst(values: dict[str, float | None], form: str) -> str:
        known = [Worst(value, where) for where, value in values.items() if value is not None]
        return f"{max(known).value:{form}} ({max(known).where})" if known else "-"

    def ratios(column: Column) -> dict[str, float | None]:
        return {name: results.rmse_ratio(name, column.model) for name in results.datasets}

    def differences(column: Column) -> dict[str, float | None]:
        return {name: results.nlpd_difference(name, column.model, column.nlpd) for name in results.datasets}

    def by_split(column: Column, compare: Callable[[Record, Record], float]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for name in results.datasets:
            pairs = {split: (a, b) for split, a, b in results.pairs(name, column.model, "ssgp") if column.nlpd in a}
            for split in results.splits(name):
                found[f"{name}, split {split}"] = compare(*pairs[split]) if split in pairs else None
        return found

    def rmse_over(a: Record, b: Record) -> float:
        return float(a["rmse"] / b["rmse"])

    def coverage(column: Column) -> str:
        found = {}
        for name in results.datasets:
            runs = results.over_splits(name, column.model)
            if runs and runs[0]["test_rows"] >= MANY_TEST_ROWS:
                found[name] = mean(run["coverage"] for run in runs)
        if not found:
            return "-"
        low, high = min(found, key=lambda name: found[name]), max(found, key=lambda name: found[name])
        return f"{100 * found[low]:.1f}% ({low}) to {100 * found[high]:.1f}% ({high}), {len(found)} sets"

    def line(title: str, cell: Callable[[Column], str], *, gaussian: bool, rival: bool) -> list[str]:
        """Cells that do not apply stay empty: SSGP against itself, RMSE and coverage of the mixture's density."""
        apt = [(column.nlpd == "nlpd" or not gaussian) and (column.model != "ssgp" or not rival) for column in columns]
        return [title, *(cell(column) if fits else "" for column, fits in zip(columns, apt, strict=True))]

    def nlpd_over(column: Column) -> dict[str, float | None]:
        return by_split(column, lambda a, b: float(a[column.nlpd] - b["nlpd"]))

    rows = [
        line("sets with RMSE at most the exact GP's", lambda c: tally(ratios(c), 1.0), gaussian=True, rival=False),
        line("worst RMSE over the exact GP's", lambda c: worst(ratios(c), ".3f"), gaussian=True, rival=False),
        line(
            "sets with NLPD at most the exact GP's", lambda c: tally(differences(c), 0.0), gaussian=False, rival=False
        ),
        line("worst NLPD minus the exact GP's", lambda c: worst(differences(c), "+.3f"), gaussian=False, rival=False),
        line(f"coverage, sets with {MANY_TEST_ROWS:,} test rows or more", coverage, gaussian=True, rival=False),
        line(
            "single splits with RMSE at most SSGP's",
            lambda c: tally(by_split(c, rmse_over), 1.0),
            gaussian=True,
            rival=True,
        ),
        line(
            "worst RMSE over SSGP's in a single split",
            lambda c: worst(by_split(c, rmse_over), ".3f"),
            gaussian=True,
            rival=True,
        ),
        line("single splits with NLPD at most SSGP's", lambda c: tally(nlpd_over(c), 0.0), gaussian=False, rival=True),
        line(
            "worst NLPD minus SSGP's in a single split",
            lambda c: worst(nlpd_over(c), "+.3f"),
            gaussian=False,
            rival=True,
        ),
    ]
    return [markdown_table(["", *(column.title for column in columns)], rows), ""]


def calibration_table(results: Results) -> list[str]:
    """Coverage of central intervals of PrismGP's own distribution."""

    def cell(dataset: str, level: int) -> str:
        found = [run for run in results.over_splits(dataset, "prism") if "central_coverage" in run]
        return f"{100 * mean(run['central_coverage'][str(level)] for run in found):.1f}%" if found else "not run"

    rows = ([name, *(cell(name, level) for level in LEVELS)] for name in results.datasets)
    header = ["data set", *(f"{level}%" for level in LEVELS)]
    return ["Share of test rows inside central intervals, mean over splits.", "", markdown_table(header, rows), ""]


def neighbours_table(results: Results) -> list[str]:
    """Each split with neighbours and without: what the same fit predicts with the mixture of experts alone."""

    def line(dataset: str, split: int, found: Record) -> list[str]:
        alone = found.get("spectrum")
        if alone is None:  # the mixture is used alone
            return [dataset, str(split), f"{found['rmse']:.4f} / {found['nlpd']:.3f}", "the same", "", ""]
        change = 100 * (found["rmse"] / alone["rmse"] - 1)
        return [
            dataset,
            str(split),
            f"{alone['rmse']:.4f} / {alone['nlpd']:.3f}",
            f"{found['rmse']:.4f} / {found['nlpd']:.3f}",
            f"{change:+.1f}%",
            f"{found['nlpd'] - alone['nlpd']:+.3f}",
        ]

    rows = [
        line(name, split, found)
        for name in results.datasets
        for split in results.splits(name)
        if (found := results.of(name, split, "prism")) is not None and "degrees" in found
    ]
    if not rows:
        return ["not run", ""]
    header = ["data set", "split", '`local="never"`', '`local="auto"`', "RMSE", "NLPD"]
    return ["RMSE / NLPD of a normal; negative changes are better.", "", markdown_table(header, rows), ""]


def frequencies_table(results: Results) -> list[str]:
    """The first split at every p."""

    def cell(dataset: str, model: str, p: int) -> str:
        found = results.of(dataset, 0, model, p)
        return f"{found['rmse']:.3f} / {found['nlpd']:.3f}" if found else absent(results, dataset, model)

    choices = sorted({run.p for run in results.plan if run.p is not None})
    header = ["data set", "p", *(LABELS[model] for model in results.models)]
    rows = (
        [name, str(p), *(cell(name, model, p) for model in results.models)]
        for name in results.datasets
        for p in choices
    )
    return ["RMSE / NLPD.", "", markdown_table(header, rows), ""]


# -- figure ----------------------------------------------------------------------------------------


def draw(results: Results) -> Any:
    """RMSE and NLPD against the exact GP's: a mark for the mean, faint ones for the splits."""
    names = results.datasets[::-1]
    models = [model for model in results.models if model != "exact"]
    figure = drawing(9, 1.2 + 0.5 * len(names))
    left, right = figure.subplots(1, 2, sharey=True)
    means: tuple[Callable[[str, str], float | None], ...] = (results.rmse_ratio, results.nlpd_difference)
    singles: tuple[Callable[[Record, Record], float], ...] = (
        lambda a, b: float(a["rmse"] / b["rmse"]),
        lambda a, b: float(a["nlpd"] - b["nlpd"]),
    )
    for axis, of_set, of_split, neutral in zip((left, right), means, singles, (1.0, 0.0), strict=True):
        axis.axvline(neutral, color=MODEL_STYLES["exact"]["color"], lw=1)
        for place, name in enumerate(names):
            if place % 2:
                axis.axhspan(place - 0.5, place + 0.5, color="#f3f3f3", lw=0, zorder=0)
            if not results.over_splits(name, "exact"):
                note(axis, "no exact GP to compare with", neutral, place, MODEL_STYLES["exact"])
                continue
            for index, model in enumerate(models):
                # One above the other: equal values stay visible.
                height = place + 0.22 * ((len(models) - 1) / 2 - index)
                value = of_set(name, model)
                if value is None:
                    note(axis, "no split to compare", neutral, height, MODEL_STYLES[model])
                    continue
                points = [of_split(a, b) for _, a, b in results.pairs(name, model, "exact")]
                axis.plot(
                    points, [height] * len(points), "|", color=MODEL_STYLES[model]["color"], alpha=0.5, markersize=6
                )
                axis.plot(value, height, ls="", markersize=6, **MODEL_STYLES[model])
        axis.grid(axis="x", color="#dddddd", lw=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
    left.set_xscale("log")
    ratio_ticks(left)
    left.set_yticks(range(len(names)), [f"{name}\n{DATASETS[name]:,} rows" for name in names])
    left.set_ylim(-0.5, len(names) - 0.5)
    left.set(title="RMSE over the exact GP's", xlabel="ratio; left of the line is better")
    right.set_xscale("symlog", linthresh=1.0, linscale=2.0)  # one row far away must not hide the others
    ticks = [-10, -3, -1, -0.5, 0, 0.5, 1, 3, 10]
    low, high = right.get_xlim()
    right.set_xticks([each for each in ticks if low <= each <= high], minor=False)
    right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.minorticks_off()
    right.set(title="NLPD minus the exact GP's", xlabel="difference; left of the line is better")
    handles = [Line2D([], [], ls="", markersize=6, label=LABELS[model], **MODEL_STYLES[model]) for model in models]
    handles.append(Line2D([], [], ls="", marker="|", color="#888888", label="single splits"))
    handles.append(Line2D([], [], color=MODEL_STYLES["exact"]["color"], lw=1, label=LABELS["exact"]))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        title=f"p = {MAIN_P} frequencies",
    )
    return figure


def note(axis: Any, text: str, x: float, y: float, style: dict[str, Any]) -> None:
    """What stands in the place of a missing mark."""
    axis.annotate(
        text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6, color=style["color"]
    )


def ratio_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, few enough to read."""
    low, high = axis.get_xlim()
    steps: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0)
    if high / low < 4:
        steps = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5)
    axis.xaxis.set_major_locator(FixedLocator([step for step in steps if low <= step <= high]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlim(low, high)


# -- all of it -------------------------------------------------------------------------------------


def short_table(results: Results) -> list[str]:
    """The table of the README: means over all splits."""

    def cell(dataset: str, model: str) -> str:
        found = results.over_splits(dataset, model)
        if len(found) < len(results.splits(dataset)):
            return "not run"
        rmse, nlpd, coverage = (mean(result[key] for result in found) for key in ("rmse", "nlpd", "coverage"))
        return f"{rmse:.3f} / {nlpd:.3f} / {coverage:.1%}"

    def own(dataset: str) -> str:
        found = results.over_splits(dataset, "prism")
        return f"{mean(result['nlpd_mixture'] for result in found):.3f}" if found else "not run"

    header = ["data set", "rows", *(LABELS[model] + (f", p = {MAIN_P}" if model != "exact" else "") for model in SHORT)]
    rows = (
        [name, f"{DATASETS[name]:,}", *(cell(name, model) for model in SHORT), own(name)] for name in results.datasets
    )
    lines = ["RMSE / NLPD / coverage of 95% intervals; the last column has the NLPD of PrismGP's own distribution.", ""]
    return [*lines, markdown_table([*header, "its own NLPD"], rows), ""]


def markdown(study: Study) -> str:
    """All tables."""
    results = Results(study)
    lines = [
        "# Accuracy and calibration",
        "",
        INTRODUCTION,
        "",
        f"Planned runs that are there: {len(results.done)} of {len(results.plan)}; missing runs are listed below.",
        "",
        "## Three models",
        "",
        *short_table(results),
        f"## Scores, p = {MAIN_P}, mean over splits",
        "",
        *scores_table(results),
        f"## Against the exact GP, p = {MAIN_P}, mean over splits",
        "",
        *relative_table(results),
        "![RMSE and NLPD against the exact GP](accuracy.png)",
        "",
        f"## In short, p = {MAIN_P}",
        "",
        *bars_table(results),
        f"## Calibration of {LABELS['prism']} at every level, p = {MAIN_P}",
        "",
        *calibration_table(results),
        f"## {LABELS['prism']} with neighbours and without, p = {MAIN_P}",
        "",
        *neighbours_table(results),
        "## By number of frequencies, first split",
        "",
        *frequencies_table(results),
        *closing(results.plan, results.done, results.failed, made=results.done.values()),
        "Fits that ran beside others shared the machine: their seconds are upper limits.",
    ]
    return "\n".join(lines) + "\n"


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """The figure of the README."""

    def make() -> Any:
        with drawing_style():
            return draw(Results(study))

    return {"": make}


ACCURACY = Experiment(
    kind="accuracy",
    summary="accuracy and calibration of the models on real data",
    add_options=SUITE.add_options,
    make_plan=SUITE.make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
)
