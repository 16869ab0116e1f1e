"""Drawings for pages: SVG whose colours follow the page into dark mode."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

from prismgp.plots.style import EDGE, EXACT, FAINT, GRID, INK, OURS, drawing_style

__all__ = ["draw_svg", "to_svg"]

# Light and dark. An image in a page sees the reader's preference, but not the page's own variables.
_COLOURS = {
    "ink": (INK, "#dfe3ea"),
    "faint": (FAINT, "#8a93a1"),
    "edge": (EDGE, "#7c8694"),
    "grid": (GRID, "#363d48"),
    "ours": (OURS, "#6aa9ec"),
    "exact": (EXACT, "#f0924f"),
}


def to_svg(figure: Any) -> str:
    """A matplotlib figure as SVG without paper, with colours for light and dark pages.

    The same drawing is the same text. Words stay words, so that any script is shown in the reader's fonts.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        In the colours of `prismgp.plots`; others stay as they are.

    Returns
    -------
    str
    """
    import matplotlib as mpl  # the report extra

    buffer = io.StringIO()
    with drawing_style(), mpl.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        # Of the font that measures the words; the reader's fonts show them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", dpi=150, transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    for name, (light, _) in _COLOURS.items():
        svg = svg.replace(f": {light}", f": var(--{name})")
    light, dark = ("; ".join(f"--{name}: {pair[k]}" for name, pair in _COLOURS.items()) for k in (0, 1))
    style = f"<style>svg {{ {light} }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}</style>"
    at = svg.index(">", svg.index("<svg")) + 1
    return svg[:at] + style + svg[at:]


def draw_svg(draw: Callable[[Any], object], size: tuple[float, float]) -> str:
    """One panel as SVG.

    Parameters
    ----------
    draw : callable
        Takes the axes to draw on.
    size : pair of float
        Width and height in inches; 4.1 is as wide as a phone.

    Returns
    -------
    str
    """
    with drawing_style():
        from matplotlib.figure import Figure  # the report extra

        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots())
        return to_svg(figure)
