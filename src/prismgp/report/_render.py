"""Page to HTML: styles and drawings inside, nothing fetched from anywhere."""

from __future__ import annotations

import base64
from importlib.resources import files
from os import PathLike

from prismgp._files import atomic_path
from prismgp.report._content import Page

__all__ = ["render"]


def render(page: Page, path: str | PathLike[str]) -> None:
    """Write the page to one HTML file, atomically.

    Drawings become data URIs of ``img`` elements, so whatever a drawing holds cannot run in the page;
    all text is escaped.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["data_uri"] = _data_uri
    folder = files("prismgp.report")
    template = environment.from_string((folder / "template.html").read_text(encoding="utf-8"))
    style = (folder / "style.css").read_text(encoding="utf-8")
    with atomic_path(path) as temporary:
        temporary.write_text(template.render(page=page, style=style), encoding="utf-8")


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
