"""Page to HTML: styles and drawings inside, nothing fetched from anywhere; drawings follow the page into dark mode."""

from __future__ import annotations

import base64
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable
from importlib.resources import files
from os import PathLike
from typing import Any

from prismgp._system import atomic_path
from prismgp.exceptions import DataError
from prismgp.plots.style import EDGE, EXACT, FAINT, GRID, INK, OURS, drawing_style
from prismgp.report.content import Page, paragraphs

__all__ = ["draw_svg", "render", "to_html", "to_svg"]

_CONTENTS_FROM = 4  # sections from which on a page has a table of contents
_MADE = "How it was made"
# Light and dark. An image in a page sees the reader's preference, but not the page's own variables.
_COLOURS = {
    "ink": (INK, "#dfe3ea"),
    "faint": (FAINT, "#8a93a1"),
    "edge": (EDGE, "#7c8694"),
    "grid": (GRID, "#363d48"),
    "ours": (OURS, "#6aa9ec"),
    "exact": (EXACT, "#f0924f"),
}


def to_html(page: Page) -> str:
    """Format the page as HTML; equal pages give equal text.

    Drawings become data URIs of ``img`` elements, so whatever a drawing holds cannot run in the page;
    all text is escaped, and the page's own policy forbids scripts and requests.

    Parameters
    ----------
    page : Page

    Returns
    -------
    str
    """
    try:
        import jinja2  # the report extra
    except ModuleNotFoundError as error:
        raise DataError('pages need Jinja2, which is not installed: pip install "prismgp[report]"') from error

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"data_uri": to_data_uri, "paragraphs": paragraphs}
    folder = files("prismgp.report")
    template = environment.from_string((folder / "template.html").read_text(encoding="utf-8"))
    style = (folder / "style.css").read_text(encoding="utf-8")
    anchors = _anchors([*(section.title for section in page.sections), _MADE])
    contents = len(page.sections) >= _CONTENTS_FROM
    return template.render(page=page, style=style, anchors=anchors, contents=contents, made=_MADE).strip() + "\n"


def render(page: Page, path: str | PathLike[str]) -> None:
    """Write the page to one HTML file, which appears whole or not at all.

    Parameters
    ----------
    page : Page
    path : path
    """
    html = to_html(page).encode()
    with atomic_path(path, len(html)) as temporary:
        temporary.write_bytes(html)


def to_data_uri(svg: str) -> str:
    """Encode a figure as an address that contains it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _anchors(titles: Iterable[str]) -> list[str]:
    """Make readable anchors, all different, that stay the same when a section is added."""
    found: list[str] = []
    for title in titles:
        plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
        stem = "s-" + (re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "section")
        name, number = stem, 2
        while name in found:
            name, number = f"{stem}-{number}", number + 1
        found.append(name)
    return found


# -- drawings ------------------------------------------------------------------------------------------


def to_svg(figure: Any) -> str:
    """Convert a matplotlib figure to SVG without background, with colours for light and dark pages.

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
