"""How figures look: palette, one style for each model, and ways to SVG and PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

from matplotlib.figure import Figure as Drawing
from PIL import Image

from experiments.internals import drawing_style
from experiments.machine import atomic_path

__all__ = ["MODEL_STYLES", "PALETTE", "draw_svg", "drawing", "model_styles", "save_png", "to_svg"]

_COLOURS = 128  # of a PNG: a figure with more looks the same and takes three times the bytes
_DPI = 110

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
    "brown": "#8C510A",
    "violet": "#5E3C99",
}

MODEL_STYLES: dict[str, dict[str, Any]] = {
    "exact": {"color": PALETTE["black"]},
    "ssgp": {"color": PALETTE["vermillion"], "marker": "s", "markeredgecolor": "white"},
    "released_ssgp": {"color": PALETTE["brown"], "marker": "s", "markerfacecolor": "white"},
    "paper": {"color": PALETTE["green"], "marker": "^", "markeredgecolor": "white"},
    "released": {"color": PALETTE["violet"], "marker": "^", "markerfacecolor": "white"},
    "prism": {"color": PALETTE["blue"], "marker": "o", "markeredgecolor": "white"},
    "prism1": {"color": PALETTE["blue"], "marker": "D", "markerfacecolor": "white"},
}

# Patterns of the names of our models in legends.
_NAMES = (
    (r"(exact|full)\b|exactgp", "exact"),
    (r"prism1\b|one prismgp\b|single prismgp\b", "prism1"),
    (r"ssgp, as released|released_ssgp", "released_ssgp"),
    (r".*as released|released\b", "released"),
    (r"paper\b|the paper|.*as printed", "paper"),
    (r"prism", "prism"),
    (r"ssgp", "ssgp"),
)
_PEER_COLOURS = tuple(PALETTE[name] for name in ("purple", "orange", "sky"))
_PEER_MARKERS = ("v", "P", "X", "d", "<", ">", "h", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


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


def save_png(figure: Any, path: str | PathLike[str], dpi: int = _DPI) -> None:
    """Write a matplotlib figure as a PNG with a palette; the file appears whole or not at all."""
    buffer = io.BytesIO()
    with drawing_style():
        figure.savefig(buffer, format="png", dpi=dpi)
    image = Image.open(buffer).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    with atomic_path(path) as temporary:
        image.save(temporary, format="PNG", optimize=True)


def drawing(width: float, height: float) -> Any:
    """An empty matplotlib figure; to be used under `drawing_style`."""
    return Drawing(figsize=(width, height), layout="constrained")


def draw_svg(draw: Callable[[Any], object], size: tuple[float, float] = (7.5, 4.0)) -> str:
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
    >>> from experiments.page import draw_svg
    >>> draw_svg(lambda axes: axes.plot([0, 1], [1, 0])).startswith("<?xml")
    True
    """
    with drawing_style():
        figure = drawing(*size)
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
    >>> from experiments.page import model_styles
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
