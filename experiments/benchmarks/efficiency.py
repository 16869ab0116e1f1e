"""Error against the number of frequencies: SSGP, and a single PrismGP model, from p = 16 to 1,024.

    python benchmarks/efficiency.py [--device cuda --jobs 5 --threads 3]
    python benchmarks/efficiency.py --list | --tables

First split of every data set. Options and result files are those of ``accuracy.py``, in
``benchmarks/results/efficiency/``; the exact GP is taken from the accuracy benchmark's results. Writes
``efficiency.md``, ``efficiency.png`` and ``efficiency.svg``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from _plan import main
from _report import STYLES, closing, plotting, save, table
from _runs import DATASETS, MODELS, Run, Suite, failed, finished

FREQUENCIES = (16, 32, 64, 128, 256, 512, 1024)
FEW = 32  # frequencies of PrismGP whose error SSGP is asked to reach
LEAST_SPAN = 1.2  # of a panel's axis: differences of a percent between single runs are no more than noise
# Where the two agree, which is where PrismGP has chosen the plain SSGP, both marks are seen.
MARKS: dict[str, dict[str, float]] = {"ssgp": {"markersize": 4.5, "zorder": 3}, "prism1": {"markersize": 6.5}}
SUITE = Suite(
    name="efficiency",
    models=("ssgp", "prism1"),
    splits=lambda _: (0,),
    frequencies=lambda _: FREQUENCIES,
)
INTRODUCTION = (
    "RMSE on the held-out rows of the first split, in units of the training target's standard deviation; every "
    "number is a single run with one seed. Made by `python benchmarks/efficiency.py`; the exact GP is that of "
    "`make bench-accuracy`."
)
Results = dict[Run, dict[str, Any]]


def curve(done: Results, dataset: str, model: str) -> dict[int, dict[str, Any]]:
    """Scores of a model by p."""
    found = {p: done.get(Run(dataset, 0, model, p)) for p in FREQUENCIES}
    return {p: result for p, result in found.items() if result is not None}


def enough(done: Results, dataset: str) -> str:
    """The least p at which SSGP is as good as PrismGP with few frequencies."""
    ssgp, prism = curve(done, dataset, "ssgp"), curve(done, dataset, "prism1")
    if FEW not in prism or not ssgp:
        return "not run"
    reached = [p for p, result in ssgp.items() if result["rmse"] <= prism[FEW]["rmse"]]
    return f"{min(reached):,}" if reached else f"more than {max(ssgp):,}"


def rows_of(done: Results, exact: Results, datasets: list[str]) -> list[list[str]]:
    rows = []
    for name in datasets:
        line = exact.get(Run(name, 0, "exact", None))
        for model in SUITE.models:
            found = curve(done, name, model)
            cells = [f"{found[p]['rmse']:.4f}" if p in found else "not run" for p in FREQUENCIES]
            last = f"{line['rmse']:.4f}" if line else "not run"
            rows.append([name, MODELS[model], *cells, last])
    return rows


def draw(done: Results, exact: Results, datasets: list[str], stem: Path) -> list[Path]:
    """A panel for each data set."""
    plt = plotting()
    if plt is None:
        return []
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    figure, axes = plt.subplots(3, 3, figsize=(9, 7.8), sharex=True, layout="constrained")
    for axis, name in zip(axes.flat, datasets, strict=True):
        values = []
        for model in SUITE.models:
            found = curve(done, name, model)
            errors = [result["rmse"] for result in found.values()]
            axis.plot(list(found), errors, lw=1.5, **MARKS[model], **STYLES[model])
            values += errors
        line = exact.get(Run(name, 0, "exact", None))
        if line:
            axis.axhline(line["rmse"], lw=1.2, ls="--", **STYLES["exact"])
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
    handles = [
        plt.Line2D([], [], lw=1.5, label=MODELS[model], **MARKS[model], **STYLES[model]) for model in SUITE.models
    ]
    handles.append(plt.Line2D([], [], lw=1.2, ls="--", label=MODELS["exact"], **STYLES["exact"]))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return save(plt, figure, stem)


def write_tables(folder: Path) -> list[Path]:
    plan = SUITE.plan()
    needed = SUITE.plan(models=("exact",))
    done, exact = finished(folder, SUITE.name, plan), finished(folder, "accuracy", needed)
    missing = failed(folder, SUITE.name, plan) | failed(folder, "accuracy", needed)
    datasets = sorted(DATASETS, key=lambda name: DATASETS[name])
    lines = [
        "# Error against the number of frequencies",
        "",
        INTRODUCTION,
        "",
        f"Planned runs that are there: {len(done)} of {len(plan)}; [missing runs](#missing-runs).",
        "",
        *table(
            ["data set", "model", *(f"p = {p:,}" for p in FREQUENCIES), MODELS["exact"]],
            rows_of(done, exact, datasets),
        ),
        "![RMSE against the number of frequencies](efficiency.png)",
        "",
        f"## Frequencies that SSGP needs for the RMSE of PrismGP with p = {FEW}",
        "",
        *table(["data set", "least p"], ([name, enough(done, name)] for name in datasets)),
        *closing([*plan, *needed], [*done, *exact], missing, made=done.values()),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "efficiency.md"
    path.write_text("\n".join(lines))
    return [path, *draw(done, exact, datasets, folder / "efficiency")]


if __name__ == "__main__":
    sys.exit(main(SUITE, write_tables, str(__doc__).splitlines()[0]))
