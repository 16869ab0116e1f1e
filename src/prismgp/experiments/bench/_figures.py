"""Error against time, one drawing per data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prismgp.experiments._scores import LEVELS
from prismgp.experiments.bench._entries import DEFAULT, LABELS
from prismgp.experiments.bench._front import Row, front, points_of
from prismgp.report import draw_calibration, draw_pareto, drawing_style

__all__ = ["calibration_figure", "describe", "pareto_figure"]

_SHORT = (
    ("GPyTorch ", ""),
    ("Gradient-boosted trees", "trees"),
    ("Bayesian linear regression", "linear"),
    ("Vecchia, ", ""),
    (" + BayesianRidge", ""),
    ("scikit-learn GPR", "sklearn GPR"),
    (", std as returned", ", as returned"),
    (", std corrected", ", corrected"),
    (", one member", ", one"),
)
_CALIBRATED = 5  # curves beside ours


def _short(label: str) -> str:
    for long, short in _SHORT:
        label = label.replace(long, short)
    return "GPyTorch exact" if label == "exact GP" else label


def pareto_figure(dataset: str, rows: Sequence[Row]) -> Any:
    """RMSE and NLPD against the seconds of the fit, with the front as a step line; a matplotlib figure."""
    from matplotlib.figure import Figure

    names = {row.name: _short(row.label) for row in rows if row.complete}
    with drawing_style():
        figure = Figure(figsize=(12.5, 6.2), layout="constrained")
        for axes, metric, title in zip(figure.subplots(1, 2), ("rmse", "nlpd"), ("RMSE", "NLPD"), strict=True):
            points = points_of(rows, metric)
            if metric == "nlpd":  # a few wrong variances must not squeeze all others into a line
                points, left_out = _near(points)
            else:
                left_out = []
            kept = front(points)
            draw_pareto(
                axes,
                {names[name]: point for name, point in points.items()},
                ours=[names[name] for name in points if name == DEFAULT],
                title=f"{dataset}: {title}",
                xlabel="seconds of the fit",
                ylabel=f"{title} of held-out rows",
                log_y=metric == "rmse",
            )
            note = f"on the front: {', '.join(names[name] for name in kept)}"
            if left_out:
                note += f"\nabove the panel: {', '.join(f'{names[n]} ({v:.1f})' for n, v in left_out)}"
            axes.set_xlabel(f"seconds of the fit\n{_wrapped(note)}", fontsize=9)
        return figure


def _near(points: dict[str, tuple[float, float]]) -> tuple[dict[str, tuple[float, float]], list[tuple[str, float]]]:
    """Points within reach of the best ones, and those far above."""
    values = sorted(value for _, value in points.values())
    if len(values) < 4:
        return points, []
    middle = values[len(values) // 2]
    limit = max(middle + 2.0 * (middle - values[0]), values[0] + 2.0)
    far = [(name, value) for name, (_, value) in points.items() if value > limit]
    return {name: point for name, point in points.items() if point[1] <= limit}, far


def _wrapped(text: str) -> str:
    import textwrap

    return "\n".join(line for part in text.splitlines() for line in textwrap.wrap(part, 95))


def calibration_figure(dataset: str, rows: Sequence[Row]) -> Any:
    """Observed against expected coverage: our default and the entries of other libraries with the best density."""
    from matplotlib.figure import Figure

    whole = [row for row in rows if row.complete]
    others = sorted((row for row in whole if not row.ours), key=lambda row: row.values["nlpd"])[:_CALIBRATED]
    shown = [row for row in whole if row.name == DEFAULT] + others
    with drawing_style():
        figure = Figure(figsize=(5.6, 5.0), layout="constrained")
        draw_calibration(
            figure.subplots(), LEVELS, {_short(row.label): row.calibration for row in shown}, title=dataset
        )
        return figure


def describe(dataset: str, rows: Sequence[Row]) -> str:
    """The drawing in words."""
    fronts = {metric: ", ".join(LABELS[name] for name in front(points_of(rows, metric))) for metric in ("rmse", "nlpd")}
    return (
        f"{dataset}, error against seconds of the fit. Front of RMSE: {fronts['rmse']}. "
        f"Front of NLPD: {fronts['nlpd']}."
    )
