"""Figures of the paper's experiments: error against iteration and time, calibration, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.page import MODEL_STYLES, draw_calibration, draw_curves, draw_embedding, drawing, drawing_style
from experiments.paper.plan import MODELS, title_of
from experiments.paper.summary import Group, groups, over_iterations, over_time, published_of
from experiments.results import Study
from experiments.scores import LEVELS

__all__ = ["CaptionedFigure", "captioned_figures", "figures"]

_SCORES = {"rmse": "RMSE", "nlpd": "NLPD"}
_ROOM = 0.5  # above the final scores that a panel shows at least of the way there


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure and what is said about it.

    Attributes
    ----------
    name : str
        Of its file.
    make : callable
        Gives the matplotlib figure.
    caption, alt : str
    """

    name: str
    make: Callable[[], Any]
    caption: str
    alt: str


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """The figures by the names of their files."""
    return {each.name: each.make for each in captioned_figures(study)}


def captioned_figures(study: Study) -> list[CaptionedFigure]:
    """All figures the results allow; published levels beside them where the data are those of the paper."""
    options, found = study.about["options"], groups(study.records)
    title, published = title_of(options), published_of(options)
    embedding = study.get("embedding")
    frequencies = sorted({p for model, p in found if p is not None and model != "prism"})
    out = []
    levels = "" if not published else " Dotted: final errors read off the authors' published plots."
    runs = max((len(group.results) for group in found.values()), default=0)
    band = f" Bands: one standard deviation over {runs} runs." if runs > 1 else " One run."
    if frequencies:
        for name, along, axis, what in (
            ("error_iterations", over_iterations, "iterations + 1", "Test error against iterations of the optimiser"),
            ("error_seconds", over_time, "seconds of training", "Test error against training time"),
        ):
            steps = " Our recipe starts from a fitted SSGP, and its curve there."
            if name == "error_iterations":
                steps = " Of L-BFGS, and steps of Adam for the network of our recipe, which starts from a fitted SSGP."
            out.append(
                CaptionedFigure(
                    name,
                    _course(found, frequencies, along, axis, title, published),
                    f"{what}, {title}.{steps} In units of the target's standard deviation.{band}{levels}",
                    f"RMSE and NLPD of the models for p = {', '.join(map(str, frequencies))}.",
                )
            )
    if found:
        out.append(
            CaptionedFigure(
                "calibration",
                _calibration(found, title),
                f"Share of held-out values inside central intervals, against what the intervals claim, {title}; "
                "mean over the runs.",
                "Calibration curves of the models beside the diagonal.",
            )
        )
    if embedding is not None and "failed" not in embedding:
        out.append(
            CaptionedFigure(
                "embedding",
                _embedding(embedding, title),
                f"{embedding['rows']:,} training rows of the first run before and after re-configuration, {title}: two "
                "principal components (above) and t-SNE (below). Colours: clusters that K-means finds in each space.",
                "Scatter plots of the inputs and of the latent inputs of two networks, coloured by cluster.",
            )
        )
    return out


def _course(
    found: Mapping[tuple[str, int | None], Group],
    frequencies: list[int],
    along: Callable[[Group, str], tuple[Any, ...]],
    xlabel: str,
    title: str,
    published: tuple[tuple[str, int | None, float], ...],
) -> Callable[[], Any]:
    def make() -> Any:
        with drawing_style():
            figure = drawing(1.2 + 3.6 * len(frequencies), 6.4)
            axes = figure.subplots(2, len(frequencies), squeeze=False, sharey="row", sharex=True)
            for row, score in enumerate(_SCORES):
                ends, tops = [], []
                for column, p in enumerate(frequencies):
                    panel = axes[row, column]
                    curves, styles = {}, {}
                    for model in ("exact", "ssgp", "released_ssgp", "paper", "released", "prism1"):
                        group = found.get((model, None if model == "exact" else p))
                        if group is not None:
                            curve = along(group, score)
                            single = len(group.results) == 1
                            curves[MODELS[model]] = curve[:2] if single else curve
                            colour = MODEL_STYLES[model]["color"]
                            styles[MODELS[model]] = {"color": colour}
                            panel.plot(curve[0][-1:], curve[1][-1:], "o", color=colour, markersize=5, zorder=4)
                            ends.append(curve[1][-1])
                            tops.append(curve[1].max())
                    draw_curves(
                        panel,
                        curves,
                        title=f"p = {p}" if row == 0 else "",
                        xlabel=xlabel if row == 1 else "",
                        ylabel=_SCORES[score] if column == 0 else "",
                        log_x=True,
                        styles=styles,
                    )
                    if panel.get_legend() is not None:
                        panel.get_legend().remove()
                    if score == "rmse":
                        for model, at, rmse in published:
                            if at is None or at == p:
                                colour = MODEL_STYLES[model]["color"]
                                panel.axhline(rmse, color=colour, linestyle=":", linewidth=1.2, zorder=1)
                low, high = min(ends), max(ends)
                top = min(max(tops), high + max(_ROOM, 2.0 * (high - low)))
                room = 0.06 * max(top - low, 1e-3)
                axes[row, 0].set_ylim(low - room, top + room)
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
            return figure

    return make


def _calibration(found: Mapping[tuple[str, int | None], Group], title: str) -> Callable[[], Any]:
    def make() -> Any:
        largest = {model: max((p for m, p in found if m == model and p is not None), default=None) for model in MODELS}
        curves, styles = {}, {}
        for (model, p), group in found.items():
            if p == largest[model]:
                values = [result["calibration"] for result in group.results.values()]
                curves[group.label] = np.mean(values, axis=0)
                styles[group.label] = MODEL_STYLES[model]
        with drawing_style():
            figure = drawing(7.5, 5.4)
            draw_calibration(figure.subplots(), LEVELS, curves, title=f"Calibration, {title}", styles=styles)
            return figure

    return make


def _embedding(embedding: Mapping[str, Any], title: str) -> Callable[[], Any]:
    def make() -> Any:
        spaces = embedding["spaces"]
        with drawing_style():
            figure = drawing(0.6 + 3.6 * len(spaces), 6.8)
            axes = figure.subplots(2, len(spaces), squeeze=False)
            for column, space in enumerate(spaces):
                for row, (key, name) in enumerate((("pca", "principal components"), ("tsne", "t-SNE"))):
                    panel = axes[row, column]
                    heading = f"{space['title']}" if row == 0 else ""
                    draw_embedding(panel, space[key], space["labels"], title=heading)
                    if panel.get_legend() is not None:
                        panel.get_legend().remove()
                    if column == 0:
                        panel.set_ylabel(name)
            figure.suptitle(title, x=0.01, ha="left", fontsize=11)
            return figure

    return make
