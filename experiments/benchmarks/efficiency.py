"""Error against the number of frequencies: SSGP, and PrismGP with one member, from p = 16 to 1,024.

Of PrismGP twice: what the spectrum of its member finds, and the prediction with neighbours. First split of every data
set; the exact GP is that of the accuracy benchmark in the same folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments.benchmarks.suite import DATASETS, MODELS, Run, Suite, closing, describe, select_failed, select_finished
from experiments.page import MODEL_STYLES, drawing, drawing_style, markdown_table
from experiments.plan import Experiment
from experiments.results import Record, Study

__all__ = ["EFFICIENCY", "SUITE"]

FREQUENCIES = (16, 32, 64, 128, 256, 512, 1024)
FEW = 32  # frequencies of PrismGP whose error SSGP is asked to reach
LEAST_SPAN = 1.2  # of a panel's axis: differences of a percent between single runs are no more than noise
# What is drawn: the label, the model that was fitted, and its style. Where the spectrum of PrismGP is the plain SSGP,
# which held-out rows may prefer, both marks are seen.
SPECTRUM = "spectrum"
LINES = {
    "ssgp": ("SSGP", "ssgp", {"markersize": 4.5, "zorder": 3, **MODEL_STYLES["ssgp"]}),
    SPECTRUM: ("PrismGP, one member, without neighbours", "prism1", {"markersize": 6.5, **MODEL_STYLES["prism1"]}),
    "prism1": ("PrismGP, one member", "prism1", {"markersize": 5.0, **MODEL_STYLES["prism"]}),
}
SUITE = Suite(
    name="efficiency",
    models=("ssgp", "prism1"),
    splits=lambda _: (0,),
    frequencies=lambda _: FREQUENCIES,
)
INTRODUCTION = (
    "RMSE on the held-out rows of the first split, in units of the training target's standard deviation; every "
    "number is a single run with one seed. Made by `python -m experiments efficiency`; the exact GP is that of "
    "`make bench-accuracy`."
)
Results = dict[Run, Record]


def curve(done: Results, dataset: str, line: str) -> dict[int, Record]:
    """Scores of a line by p."""
    found = {p: done.get(Run(dataset, 0, LINES[line][1], p)) for p in FREQUENCIES}
    # A fit that refuses neighbours has one prediction.
    return {p: result.get(line, result) for p, result in found.items() if result is not None}


def enough(done: Results, dataset: str) -> str:
    """The least p at which SSGP is as good as the spectrum of PrismGP with few frequencies."""
    ssgp, prism = curve(done, dataset, "ssgp"), curve(done, dataset, SPECTRUM)
    if FEW not in prism or not ssgp:
        return "not run"
    reached = [p for p, result in ssgp.items() if result["rmse"] <= prism[FEW]["rmse"]]
    return f"{min(reached):,}" if reached else f"more than {max(ssgp):,}"


def rows_of(done: Results, exact: Results, datasets: list[str]) -> list[list[str]]:
    rows = []
    for name in datasets:
        line = exact.get(Run(name, 0, "exact", None))
        for key, (label, *_) in LINES.items():
            found = curve(done, name, key)
            cells = [f"{found[p]['rmse']:.4f}" if p in found else "not run" for p in FREQUENCIES]
            last = f"{line['rmse']:.4f}" if line else "not run"
            rows.append([name, label, *cells, last])
    return rows


def count_wins(done: Results, datasets: list[str]) -> list[list[str]]:
    """How often the spectrum of PrismGP is better than SSGP with as many frequencies."""
    rows = []
    for score in ("rmse", "nlpd"):
        counts = [0, 0, 0]
        for name in datasets:
            ssgp, prism = curve(done, name, "ssgp"), curve(done, name, SPECTRUM)
            for p in ssgp.keys() & prism.keys():
                ours, theirs = (f"{found[p][score]:.4g}" for found in (prism, ssgp))
                counts[1 if ours == theirs else 0 if prism[p][score] < ssgp[p][score] else 2] += 1
        rows.append([score.upper(), *(str(count) for count in counts)])
    return rows


def draw(done: Results, exact: Results, datasets: list[str]) -> Any:
    """A panel for each data set."""
    figure = drawing(9, 7.8)
    axes = figure.subplots(3, 3, sharex=True)
    for axis, name in zip(axes.flat, datasets, strict=True):
        values = []
        for key, (_, _, style) in LINES.items():
            found = curve(done, name, key)
            errors = [result["rmse"] for result in found.values()]
            axis.plot(list(found), errors, lw=1.5, **style)
            values += errors
        line = exact.get(Run(name, 0, "exact", None))
        if line:
            axis.axhline(line["rmse"], lw=1.2, ls="--", **MODEL_STYLES["exact"])
            values.append(line["rmse"])
        absent = [MODELS[model] for model in SUITE.models if len(curve(done, name, model)) < len(FREQUENCIES)]
        absent += [] if line else [MODELS["exact"]]
        if absent:
            text = "not all run: " + ", ".join(absent)
            axis.text(0.98, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=6, color="#666666")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        if values and max(values) < LEAST_SPAN * min(values):
            middle = (max(values) * min(values)) ** 0.5
            axis.set_ylim(middle / LEAST_SPAN**0.5, middle * LEAST_SPAN**0.5)
        # Decades say nothing where a panel spans less than one.
        wide = bool(values) and max(values) > 3 * min(values)
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)) if wide else MaxNLocator(4))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axis.set_xticks(FREQUENCIES, [str(p) for p in FREQUENCIES])
        axis.grid(color="#dddddd", lw=0.6)
        axis.set_title(f"{name}, {DATASETS[name]:,} rows")
    figure.supxlabel("frequencies p", fontsize=10)
    figure.supylabel("RMSE, units of the target's standard deviation", fontsize=10)
    handles = [Line2D([], [], lw=1.5, label=label, **style) for label, _, style in LINES.values()]
    handles.append(Line2D([], [], lw=1.2, ls="--", label=MODELS["exact"], **MODEL_STYLES["exact"]))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def collect(study: Study) -> tuple[Results, Results, list[str]]:
    """The finished runs, those of the exact GP from the accuracy benchmark, and the data sets by size."""
    exact = select_finished(study.sibling("accuracy"), SUITE.runs(models=("exact",)))
    return select_finished(study, SUITE.runs()), exact, sorted(DATASETS, key=lambda name: DATASETS[name])


def markdown(study: Study) -> str:
    """All tables."""
    plan, needed = SUITE.runs(), SUITE.runs(models=("exact",))
    done, exact, datasets = collect(study)
    missing = select_failed(study, plan) | select_failed(study.sibling("accuracy"), needed)
    header = ["data set", "model", *(f"p = {p:,}" for p in FREQUENCIES), MODELS["exact"]]
    lines = [
        "# Error against the number of frequencies",
        "",
        INTRODUCTION,
        "",
        f"Planned runs that are there: {len(done)} of {len(plan)}; missing runs are listed below.",
        "",
        markdown_table(header, rows_of(done, exact, datasets)),
        "",
        "![RMSE against the number of frequencies](efficiency.png)",
        "",
        f"## Frequencies that SSGP needs for the RMSE of PrismGP with p = {FEW}, without neighbours",
        "",
        markdown_table(["data set", "least p"], ([name, enough(done, name)] for name in datasets)),
        "",
        "## The same number of frequencies",
        "",
        "PrismGP with one member and without neighbours against SSGP, all data sets and p; same: to four digits.",
        "",
        markdown_table(["score", "PrismGP better", "same", "SSGP better"], count_wins(done, datasets)),
        "",
        *closing([*plan, *needed], [*done, *exact], missing, made=done.values()),
    ]
    return "\n".join(lines)


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """Error against frequencies."""

    def make() -> Any:
        with drawing_style():
            return draw(*collect(study))

    return {"": make}


EFFICIENCY = Experiment(
    kind="efficiency",
    summary="error against the number of frequencies, from 16 to 1,024",
    add_options=SUITE.add_options,
    make_plan=SUITE.make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
)
