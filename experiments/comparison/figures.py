"""Error against time, one figure for each data set."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.lines import Line2D

from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS
from experiments.comparison.standings import Row, collect, points_of
from experiments.page import PALETTE, draw_calibration, draw_pareto, drawing, drawing_style
from experiments.pareto import Losses, front
from experiments.results import Study
from experiments.scores import LEVELS

__all__ = ["calibration_figure", "describe_figure", "figures", "pareto_figure"]

_COLOURS = {
    "prismgp": PALETTE["blue"],
    "scikit-learn": PALETTE["orange"],
    "gpytorch": PALETTE["purple"],
    "gpboost": PALETTE["green"],
    "xgpr": PALETTE["vermillion"],
    **dict.fromkeys(("catboost", "lightgbm", "ngboost"), PALETTE["sky"]),
}
_MARKERS = {"prismgp": "o", "scikit-learn": "s", "gpytorch": "^", "gpboost": "D", "xgpr": "v"}
_MARKERS |= {"catboost": "P", "lightgbm": "X", "ngboost": "*"}
_CALIBRATED = 5  # curves beside ours
_NAME = "PrismGP"  # what stands beside our default


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """One figure for each data set."""
    rows, _ = collect(study.records)
    return {f"pareto-{name}": partial(pareto_figure, name, each) for name, each in rows.items()}


def pareto_figure(dataset: str, rows: Sequence[Row]) -> Any:
    """RMSE and NLPD against the seconds of the fit, with the front as a step line; a matplotlib figure.

    With some thirty entries names would cover each other: points have numbers, and the names stand beside the panels.
    """
    whole = [row for row in rows if row.complete]
    codes = {row.name: _NAME if row.name == DEFAULT else str(k) for k, row in enumerate(whole, start=1)}
    styles = {codes[row.name]: _style(row.name) for row in whole}
    fronts: dict[str, list[str]] = {}
    with drawing_style():
        figure = drawing(13.5, 6.0)
        panels = figure.subplots(1, 3, width_ratios=(1, 1, 0.52))
        for axes, metric, title in zip(panels, ("rmse", "nlpd"), ("RMSE", "NLPD"), strict=False):
            points = points_of(whole, metric)
            fronts[metric] = front(points)
            # A few wrong variances, or a straight line, must not squeeze all others together.
            shown, far = _select_near(points, log=metric == "rmse")
            draw_pareto(
                axes,
                {codes[name]: point for name, point in shown.items()},
                ours=[_NAME],
                title=f"{dataset}: {title}",
                xlabel="seconds of the fit",
                ylabel=f"{title} of held-out rows",
                log_y=metric == "rmse",
                styles=styles,
            )
            if far:
                note = f"above: {', '.join(f'{codes[name]} ({value:.2g})' for name, value in far)}"
                axes.text(
                    0.98, 0.985, textwrap.fill(note, 60), transform=axes.transAxes, ha="right", va="top", fontsize=8
                )
        _legend(panels[2], whole, codes, fronts)
        return figure


def _legend(axes: Any, rows: Sequence[Row], codes: dict[str, str], fronts: dict[str, list[str]]) -> None:
    """Numbers, names, and on which front an entry is."""
    handles = []
    for row in rows:
        signs = "".join(sign for metric, sign in (("rmse", " ▪R"), ("nlpd", " ▪N")) if row.name in fronts[metric])
        code = "" if row.name == DEFAULT else f"{codes[row.name]}  "
        handles.append(Line2D([], [], linestyle="", label=f"{code}{row.label}{signs}", **_style(row.name)))
    axes.axis("off")
    legend = axes.legend(handles=handles, loc="center left", fontsize=8, handletextpad=0.3, labelspacing=0.35)
    legend.set_title("▪R, ▪N: on the front of RMSE, NLPD", {"size": 8})
    for text, row in zip(legend.get_texts(), rows, strict=True):
        text.set_fontweight("bold" if row.name == DEFAULT else "normal")


def _style(name: str) -> dict[str, Any]:
    entry = ENTRIES.get(name) or next(each for key, each in ENTRIES.items() if name.startswith(f"{key}-") and each.also)
    library = entry.library.distribution
    colour = _COLOURS[library]
    hollow = name not in ENTRIES  # another reading of the same fit
    face = {"markerfacecolor": "white", "markeredgecolor": colour} if hollow else {"markeredgecolor": "white"}
    return {"color": colour, "marker": _MARKERS[library], **face}


def _select_near(points: Losses, *, log: bool) -> tuple[dict[str, tuple[float, float]], list[tuple[str, float]]]:
    """Points within reach of the best ones, and those far above."""
    values = sorted(value for _, value in points.values())
    if len(values) < 4:
        return dict(points), []
    best, middle = values[0], values[len(values) // 2]
    limit = max(middle * (middle / best) ** 2, 3.0 * best) if log else max(3.0 * middle - 2.0 * best, best + 1.0)
    far = [(name, value) for name, (_, value) in points.items() if value > limit]
    return {name: point for name, point in points.items() if point[1] <= limit}, far


def calibration_figure(dataset: str, rows: Sequence[Row]) -> Any:
    """Observed against expected coverage: our default and the entries of other libraries with the best density."""
    whole = [row for row in rows if row.complete]
    others = sorted((row for row in whole if not row.ours), key=lambda row: row.values["nlpd"])[:_CALIBRATED]
    shown = [row for row in whole if row.name == DEFAULT] + others
    with drawing_style():
        figure = drawing(5.6, 5.0)
        draw_calibration(figure.subplots(), LEVELS, {row.label: row.calibration for row in shown}, title=dataset)
        return figure


def describe_figure(dataset: str, rows: Sequence[Row]) -> str:
    """The figure in words."""
    fronts = {metric: ", ".join(LABELS[name] for name in front(points_of(rows, metric))) for metric in ("rmse", "nlpd")}
    return (
        f"{dataset}, error against seconds of the fit. Front of RMSE: {fronts['rmse']}. "
        f"Front of NLPD: {fronts['nlpd']}."
    )
