"""Drawings that several pages share. Each takes plain data and draws on axes it is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from experiments.internals import FAINT, INK, Array
from experiments.page.style import PALETTE, model_styles
from experiments.pareto import front

__all__ = ["draw_calibration", "draw_curves", "draw_embedding", "draw_pareto"]

_RASTER_FROM = 2_000  # points; as vectors, more of them would make a page of megabytes
_MARKED_TO = 25  # points of a curve; markers on more would run together
_CLUSTERS = tuple(PALETTE[name] for name in ("blue", "vermillion", "green", "purple", "orange", "sky", "black"))
# Where a label may stand around its point, in points of type: beside it first, then further off.
_PLACES = [
    (dx * reach, dy * reach, ha, va)
    for reach in (1.0, 2.2, 3.8, 5.6)
    for dx, dy, ha, va in (
        (7, 0, "left", "center"),
        (5, 5, "left", "bottom"),
        (5, -5, "left", "top"),
        (-7, 0, "right", "center"),
        (-5, 5, "right", "bottom"),
        (-5, -5, "right", "top"),
        (0, 7, "center", "bottom"),
        (0, -7, "center", "top"),
    )
]


def draw_calibration(
    axes: Any,
    levels: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    title: str = "Calibration",
    styles: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Observed against expected coverage of central intervals, with the diagonal of perfect calibration.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    levels : array-like, (k,)
        What the intervals claim, between 0 and 1.
    curves : mapping
        Label to the shares of held-out values inside, (k,).
    title : str
    styles : mapping, optional
        Label to keyword arguments of ``plot``; None: `model_styles`.
    """
    place = np.asarray(levels, dtype=float)
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1.0, zorder=1, label="perfect")
    for label, style in _styles(curves, styles).items():
        axes.plot(place, np.asarray(curves[label], dtype=float), label=label, linewidth=1.6, **_drop_markers(style))
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="expected coverage", ylabel="observed coverage", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    axes.set_aspect("equal")
    axes.grid()
    axes.legend(loc="upper left")
    axes.text(0.97, 0.05, "below: too sure of itself", ha="right", fontsize=8, color="#6a6a6a")


def draw_curves(
    axes: Any,
    curves: Mapping[str, Sequence[ArrayLike]],
    *,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    log_x: bool = False,
    log_y: bool = False,
    styles: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Curves with bands, for instance error against time: the median of several seeds and the range of all.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    curves : mapping
        Label to ``(x, middle)`` or ``(x, middle, low, high)``, (k,) each; a NaN breaks a curve.
    title, xlabel, ylabel : str
    log_x, log_y : bool
    styles : mapping, optional
        Label to keyword arguments of ``plot``; None: `model_styles`.
    """
    for label, style in _styles(curves, styles).items():
        x, middle, *band = (np.asarray(each, dtype=float) for each in curves[label])
        shown = dict(style) if len(x) <= _MARKED_TO else _drop_markers(style)
        axes.plot(x, middle, label=label, linewidth=1.6, markersize=6, zorder=3, **shown)
        if band:
            axes.fill_between(x, band[0], band[1], color=style.get("color"), alpha=0.18, linewidth=0, zorder=2)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    for axis, log in ((axes.xaxis, log_x), (axes.yaxis, log_y)):
        if log and curves:
            _plain_ticks(axis)
    axes.grid()
    if curves:
        axes.legend()


def draw_pareto(
    axes: Any,
    points: Mapping[str, tuple[float, float]],
    *,
    ours: Collection[str] = (),
    title: str = "",
    xlabel: str = "seconds",
    ylabel: str = "error",
    log_y: bool = True,
    styles: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """Error against time on logarithmic axes, with the front of what nothing else beats.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    points : mapping
        Label to seconds and error, both positive; the error may be any number where ``log_y`` is False. Points that
        are not finite are left out.
    ours : collection of str
        Labels in bold.
    title, xlabel, ylabel : str
    log_y : bool
    styles : mapping, optional
        Label to keyword arguments of ``plot``; None: `model_styles`.
    """
    known = {label: (float(x), float(y)) for label, (x, y) in points.items() if np.isfinite([x, y]).all()}
    axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(which="major")
    if not known:
        return
    for label, style in _styles(known, styles).items():
        mark = {"marker": "o", **style, "linestyle": "", "markersize": 9.5 if label in ours else 8}
        axes.plot(*([value] for value in known[label]), **mark, zorder=3)
    _widen(axes, known, log_y=log_y)
    best = np.array([known[label] for label in front(known)])
    # The least error within a time, up to the edges of the panel.
    x = np.concatenate([best[:1, 0], best[:, 0], [axes.get_xlim()[1]]])
    y = np.concatenate([[axes.get_ylim()[1]], best[:, 1], best[-1:, 1]])
    axes.plot(x, y, drawstyle="steps-post", color=FAINT, linewidth=1.1, linestyle=(0, (4, 2)), zorder=1, scalex=False)
    _label_points(axes, known, bold=ours, line=np.stack([np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]], axis=1))


def draw_embedding(axes: Any, xy: ArrayLike, labels: ArrayLike, *, title: str = "", name: str = "cluster") -> None:
    """Points in the plane, coloured by cluster.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    xy : array-like, (n, 2)
    labels : array-like, (n,)
        Of any kind; the largest cluster is drawn first, so that small ones lie on top.
    title : str
    name : str
        What the labels are, for the legend.
    """
    places, kinds = np.asarray(xy, dtype=float), np.asarray(labels)
    values, counts = np.unique(kinds, return_counts=True)
    many = len(values) > len(_CLUSTERS)
    size = float(np.clip(2_500.0 / max(len(places), 1), 3.0, 26.0))
    for rank in np.argsort(-counts, kind="stable"):
        value, count = values[rank], counts[rank]
        mine = places[kinds == value]
        colour = _many_colours(len(values))[rank] if many else _CLUSTERS[rank]
        # All clusters of a large drawing become pixels together; axes and text stay vectors.
        look = {"s": size, "color": colour, "alpha": 0.75, "linewidths": 0, "rasterized": len(places) > _RASTER_FROM}
        axes.scatter(mine[:, 0], mine[:, 1], **look, label=f"{name} {value} ({count:,})")
    axes.set(title=title, xticks=[], yticks=[], aspect="equal")
    axes.set_adjustable("datalim")
    axes.spines[:].set_visible(False)  # the coordinates mean nothing by themselves
    if 1 < len(values) <= 12:
        handles, names = axes.get_legend_handles_labels()
        order = [names.index(f"{name} {value} ({count:,})") for value, count in zip(values, counts, strict=True)]
        legend = axes.legend(
            [handles[k] for k in order], [names[k] for k in order], loc="center left", bbox_to_anchor=(1.0, 0.5)
        )
        for handle in legend.legend_handles:
            handle.set(sizes=[30.0], rasterized=False)


# -- parts -----------------------------------------------------------------------------------------


def _styles(labels: Mapping[str, Any], styles: Mapping[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    own = model_styles(labels)
    return own if styles is None else {label: styles.get(label, own[label]) for label in labels}


def _drop_markers(style: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in style.items() if not name.startswith("marker")}


def _many_colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.04, 0.96, count)))


def _widen(axes: Any, points: Mapping[str, tuple[float, float]], *, log_y: bool) -> None:
    """Room for labels at every side, also where all points are the same."""
    x, y = np.array(list(points.values())).T
    low, high = np.log10(x.min()), np.log10(x.max())
    room = max(0.12 * (high - low), 0.15)
    # Labels stand to the right of their points first.
    axes.set_xlim(10 ** (low - room), 10 ** (high + 2.0 * room))
    _plain_ticks(axes.xaxis)
    if log_y:
        low, high = np.log10(y.min()), np.log10(y.max())
        room = max(0.14 * (high - low), 0.02)
        axes.set_ylim(10 ** (low - room), 10 ** (high + room))
        _plain_ticks(axes.yaxis)
    else:
        room = max(0.14 * (y.max() - y.min()), 1e-3 * max(abs(y).max(), 1e-9))
        axes.set_ylim(y.min() - room, y.max() + room)


def _plain_ticks(axis: Any) -> None:
    """Numbers instead of powers on a logarithmic axis, and enough of them where it spans a decade or so."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    if high / low <= 1e7:
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    if high / low > 30.0:
        axis.set_minor_formatter(NullFormatter())
        return
    steps = (1.0, 2.0, 3.0, 5.0) if high / low > 4.0 else ()
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = np.ravel(np.outer(decades, steps)) if steps else MaxNLocator(6).tick_values(low, high)
    axis.set_major_locator(FixedLocator(ticks[(ticks >= low) & (ticks <= high)]))
    axis.set_minor_locator(NullLocator())


def _label_points(axes: Any, points: Mapping[str, tuple[float, float]], *, bold: Collection[str], line: Array) -> None:
    """Every label at the first place around its point where it covers no point, no other label and not the line."""
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    figure = axes.figure.figure  # the whole one, where the axes are in a part
    figure.draw_without_rendering()  # only now is it known where things are
    where = {label: axes.transData.transform(point) for label, point in points.items()}
    reach = 5.0 * figure.dpi / 72.0
    taken = [Bbox.from_extents(*(place - reach), *(place + reach)) for place in where.values()]
    inside = axes.get_window_extent()
    steps = Path(axes.transData.transform(line))
    # Ours first: what is placed later has less choice.
    for label in sorted(points, key=lambda name: name not in bold):
        text = axes.annotate(
            label,
            points[label],
            (0, 0),
            textcoords="offset points",
            fontsize=9,
            color=INK,
            fontweight="bold" if label in bold else "normal",
            zorder=4,
            bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6},
        )
        found: tuple[float, tuple[float, float, str, str], Any] | None = None
        for order, place in enumerate(_PLACES):
            text.set(position=place[:2], ha=place[2], va=place[3])
            box = text.get_window_extent()
            outside = max(inside.x0 - box.x0, 0) + max(box.x1 - inside.x1, 0)
            outside += max(inside.y0 - box.y0, 0) + max(box.y1 - inside.y1, 0)
            cost = order + 1e3 * sum(box.overlaps(other) for other in taken) + 10.0 * outside
            cost += 12.0 * steps.intersects_bbox(box, filled=False)
            if found is None or cost < found[0]:
                found = (cost, place, box)
        assert found is not None
        _, (dx, dy, ha, va), box = found
        text.set(position=(dx, dy), ha=ha, va=va)
        taken.append(box)
        if np.hypot(dx, dy) > 14.0:  # far enough off to need a line to its point
            style = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            axes.annotate("", points[label], (dx, dy), textcoords="offset points", arrowprops=style, zorder=2)
