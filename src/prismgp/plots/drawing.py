"""How drawings look: one style, one palette, one way to SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

INK, FAINT = "#333333", "#9a9a9a"

# Okabe and Ito's palette, which colour-blind readers can tell apart. Its yellow is left out: on white paper it is
# hardly seen. Markers differ too, for print without colour.
PALETTE = {
    "black": "#222222",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "orange": "#E69F00",
    "sky": "#56B4E9",
}

MODEL_STYLES: dict[str, dict[str, Any]] = {
    "exact": {"color": PALETTE["black"]},
    "ssgp": {"color": PALETTE["vermillion"], "marker": "s", "markeredgecolor": "white"},
    "paper": {"color": PALETTE["green"], "marker": "^", "markeredgecolor": "white"},
    "prism": {"color": PALETTE["blue"], "marker": "o", "markeredgecolor": "white"},
    "prism1": {"color": PALETTE["blue"], "marker": "D", "markerfacecolor": "white"},
}

# By how people write the names of our models in legends.
_NAMES = (
    (r"(exact|full)\b|exactgp", "exact"),
    (r"prism1\b|one prismgp\b|single prismgp\b", "prism1"),
    (r"paper\b|the paper", "paper"),
    (r"prism", "prism"),
    (r"ssgp", "ssgp"),
)
_PEER_COLOURS = tuple(PALETTE[name] for name in ("purple", "orange", "sky"))
_PEER_MARKERS = ("v", "P", "X", "d", "<", ">", "h", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))

# White paper under everything, so that a drawing is legible on a dark page too.
_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "prismgp",
    "svg.fonttype": "path",  # readers need no fonts
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """The settings of matplotlib under which every drawing is made and saved; undone afterwards."""
    from matplotlib import rc_context

    with rc_context(_STYLE):  # type: ignore[arg-type,unused-ignore]
        yield


def to_svg(figure: Any) -> str:
    """A matplotlib figure as SVG; the same drawing is the same text.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Made under `drawing_style`, as far as its looks should be those of the other drawings.

    Returns
    -------
    str
    """
    buffer = io.StringIO()
    with drawing_style():
        # Without a date and with a fixed salt for identifiers, nothing differs from run to run.
        figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def drawn(draw: Callable[[Any], object], size: tuple[float, float] = (7.5, 4.0)) -> str:
    """One panel as SVG, in the style of all drawings.

    Parameters
    ----------
    draw : callable
        Takes the axes to draw on.
    size : pair of float, default (7.5, 4.0)
        Width and height in inches; a page shows 7.5 inches as 720 pixels.

    Returns
    -------
    str

    Examples
    --------
    >>> from experiments.report import drawn
    >>> drawn(lambda axes: axes.plot([0, 1], [1, 0])).startswith("<?xml")
    True
    """
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        return to_svg(figure)


def model_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Line and marker settings for every label, by which model it names.

    Our models have their own colours wherever they are drawn; variants of one differ in dashes. Everything else gets
    the colours that are left, in the order given, and markers of its own.

    Parameters
    ----------
    labels : iterable of str
        For instance ``"full GP"``, ``"SSGP, p = 32"``, ``"PrismGP"``, or the keys of ``MODEL_STYLES``.

    Returns
    -------
    dict
        Label to keyword arguments of ``axes.plot``.

    Examples
    --------
    >>> from experiments.report import model_styles
    >>> found = model_styles(["PrismGP", "scikit-learn"])
    >>> found["PrismGP"]["color"], found["scikit-learn"]["marker"]
    ('#0072B2', 'v')
    """
    styles: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    peers = 0
    for label in dict.fromkeys(labels):
        model = _model_of(label)
        if model is None:
            style: dict[str, Any] = {
                "color": _PEER_COLOURS[peers % len(_PEER_COLOURS)],
                "marker": _PEER_MARKERS[peers % len(_PEER_MARKERS)],
                "markeredgecolor": "white",
                "linestyle": _DASHES[peers // len(_PEER_COLOURS) % len(_DASHES)],
            }
            peers += 1
        else:
            variant = seen.get(model, 0)
            seen[model] = variant + 1
            style = {**MODEL_STYLES[model], "linestyle": _DASHES[variant % len(_DASHES)]}
        styles[label] = style
    return styles


def _model_of(label: str) -> str | None:
    if label in MODEL_STYLES:
        return label
    return next((model for pattern, model in _NAMES if re.match(pattern, label, re.IGNORECASE)), None)
