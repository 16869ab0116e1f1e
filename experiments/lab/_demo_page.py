"""The page and the pictures of the demo, from its stored results."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from experiments.lab._folder import RunFolder
from experiments.lab._scores import LEVELS
from experiments.report import Figure, Page, Section, Table, best_cells, certificate_section, draw_calibration
from prismgp.plots import MODEL_STYLES, PALETTE, drawing_style, drawn

__all__ = ["DATA", "draw_overview", "page", "table"]

DATA = {"diabetes": "diabetes", "gas": "gas array (simulated)", "abalone": "abalone (sample)"}
_NAMES = {"exact": "full GP", "ssgp": "SSGP", "prism1": "PrismGP, one model"}
_COLOURS = {"diabetes": PALETTE["vermillion"], "gas": PALETTE["blue"], "abalone": PALETTE["green"]}
_HEADER = ["Data", "Model", "p", "Rows", "RMSE", "NLPD", "95% intervals cover", "Fit, s"]


def _fits(results: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every fit, in the order of the table."""
    found = []
    for data in DATA:
        for model in _NAMES:
            result = results.get(f"{model}-{data}")
            if result is not None and "failed" not in result:
                found += [{"data": data, "model": model, "rows": result["rows"], **fit} for fit in result["fits"]]
    return found


def table(results: Mapping[str, dict[str, Any]]) -> Table:
    """The comparison."""
    fits = _fits(results)
    rows = [
        [
            DATA[fit["data"]],
            _NAMES[fit["model"]],
            "" if fit["p"] is None else str(fit["p"]),
            f"{fit['rows']:,}",
            f"{fit['rmse']:.3f}",
            f"{fit['nlpd']:.3f}",
            f"{100 * fit['coverage']:.1f}%",
            f"{fit['fit_seconds']:.1f}",
        ]
        for fit in fits
    ]
    kinds = [fit["data"] for fit in fits]
    best = best_cells({k: [float(row[k]) for row in rows] for k in (4, 5)}, kinds)
    note = "Held-out rows; in units of the training target's standard deviation. Fits by one thread each."
    return Table("Accuracy, calibration and time", _HEADER, rows, note=note, best=best, groups=kinds)


def page(folder: str | PathLike[str]) -> Page:
    """The report of a demo."""
    run = RunFolder.read(folder)
    results = run.results.all()
    some = next(result for result in results.values() if "machine" in result)
    figures = [
        Figure(
            drawn(lambda axes: _draw_picture(axes, results["picture"])),
            "A sparse spectrum GP with 32 frequencies (red, band) and the full GP (black, dashed) on data with a "
            "gap. Both are less sure where there is no data; the sparse one less so, as few frequencies leave fewer "
            "functions to choose from.",
            "Two similar curves through noisy points. In the gap the full GP's band is the wider one.",
        ),
        Figure(
            drawn(lambda axes: _draw_error(axes, results)),
            "Test error relative to the full GP, against the number of spectral frequencies.",
            "RMSE ratio of the sparse spectrum GP and of PrismGP at p = 16, 32 and 64, for every data set.",
        ),
        Figure(
            drawn(lambda axes: _draw_calibration(axes, results), size=(7.5, 5.0)),
            "Share of held-out values inside central intervals, against what the intervals claim.",
            "Calibration curves beside the diagonal.",
        ),
    ]
    sections = [Section("Pictures", figures=figures)]
    if "certificate" in results:
        found = results["certificate"]
        heading = f"Certificate: SSGP, p = {found['p']}, gas array (simulated)"
        sections.append(certificate_section(found["certificate"], title=heading))
    machine = some["machine"]
    return Page(
        title="PrismGP demo",
        summary="The full GP, the sparse spectrum GP (SSGP) and the revised one (PrismGP, a single model, not the "
        "default ensemble of four) with 16, 32 and 64 spectral frequencies, on real data (diabetes, which scikit-learn "
        "carries, and a sample of Abalone where its file is at hand) and on a simulated gas sensor array.",
        tables=[table(results)],
        sections=sections,
        made_by={
            "command": run.about["command"],
            "started": run.about["started"],
            "prismgp": f"{some['prismgp']}, source {some['source']}",
            "machine": f"{machine['processor']}, {machine['cores']} cores",
            "versions": ", ".join(f"{name} {version}" for name, version in some["versions"].items()),
            "seeds": "0 for splits and models, 3 for the picture with one input",
            "time of all jobs": f"{sum(result.get('job_seconds', 0.0) for result in results.values()):.0f} s",
        },
    )


def draw_overview(results: Mapping[str, dict[str, Any]]) -> Any:
    """The three pictures side by side; a matplotlib figure."""
    from matplotlib.figure import Figure as Drawing

    with drawing_style():
        figure = Drawing(figsize=(13, 4.4), layout="constrained")
        axes = figure.subplots(1, 3, width_ratios=(1.5, 1.15, 1))
        _draw_picture(axes[0], results["picture"])
        _draw_error(axes[1], results)
        _draw_calibration(axes[2], results)
        return figure


def _draw_picture(axes: Any, found: Mapping[str, Any]) -> None:
    """Data with a gap, mean, and 95% band."""
    grid = np.array(found["grid"])
    axes.plot(found["x"], found["y"], ".", color="#888888", markersize=4, label="data")
    for model, label in (("exact", "full GP"), ("ssgp", f"SSGP, p = {found['p']}")):
        mean, std = (np.array(found["curves"][model][name]) for name in ("mean", "std"))
        colour = MODEL_STYLES[model]["color"]
        axes.plot(grid, mean, color=colour, linewidth=1.4, label=label)
        if model == "exact":
            for sign in (-1, 1):
                axes.plot(grid, mean + sign * 1.96 * std, color=colour, linewidth=0.8, linestyle="--")
        else:
            axes.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.2, linewidth=0)
    axes.set(title="Mean and 95% interval of a new observation", xlabel="x", ylabel="y", ylim=(-4.5, 4.5))
    axes.legend(loc="upper left")


def _draw_error(axes: Any, results: Mapping[str, dict[str, Any]]) -> None:
    """RMSE over that of the full GP, against the number of frequencies."""
    fits = _fits(results)
    exact = {fit["data"]: fit["rmse"] for fit in fits if fit["model"] == "exact"}
    frequencies = sorted({fit["p"] for fit in fits if fit["p"] is not None})
    # Rings, so that both are seen where they coincide.
    styles: dict[str, dict[str, Any]] = {
        "SSGP": {"linestyle": "--", "marker": "s", "markersize": 4},
        "PrismGP": {"linestyle": "-", "marker": "o", "markersize": 9, "fillstyle": "none"},
    }
    for data in exact:
        for model, style in zip(("ssgp", "prism1"), styles.values(), strict=True):
            mine = [fit for fit in fits if (fit["data"], fit["model"]) == (data, model)]
            ratios = [fit["rmse"] / exact[data] for fit in mine]
            axes.plot([fit["p"] for fit in mine], ratios, color=_COLOURS[data], **style)
    axes.axhline(1.0, color=MODEL_STYLES["exact"]["color"], linewidth=1)
    # A key to colours and one to shapes, below: the lines may be anywhere.
    for name, style in styles.items():
        axes.plot([], [], color="#555555", label=name, **style)
    axes.plot([], [], color=MODEL_STYLES["exact"]["color"], linewidth=1, label="full GP")
    for data in exact:
        axes.plot([], [], color=_COLOURS[data], linewidth=4, label=DATA[data])
    axes.set_xscale("log", base=2)
    axes.set_xticks(frequencies, [str(p) for p in frequencies])
    axes.set(title="Error against spectral frequencies", xlabel="frequencies p", ylabel="RMSE / RMSE of the full GP")
    axes.grid(axis="y")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, columnspacing=1.2)


def _draw_calibration(axes: Any, results: Mapping[str, dict[str, Any]]) -> None:
    """Of the largest models, on the simulated array."""
    fits = [fit for fit in _fits(results) if fit["data"] == "gas"]
    curves, styles = {}, {}
    for model, name in _NAMES.items():
        mine = [fit for fit in fits if fit["model"] == model]
        if mine:
            fit = max(mine, key=lambda each: each["p"] or 0)
            label = name if fit["p"] is None else f"{name.split(',')[0]}, p = {fit['p']}"
            curves[label], styles[label] = fit["calibration"], MODEL_STYLES[model]
    draw_calibration(axes, LEVELS, curves, title="Calibration, gas array (simulated)", styles=styles)
