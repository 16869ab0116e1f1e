"""Page to HTML: styles and drawings inside, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Iterable
from importlib.resources import files
from os import PathLike

from prismgp._system import atomic_path
from prismgp.exceptions import DataError
from prismgp.report.content import Page, paragraphs

__all__ = ["render", "to_html"]

_CONTENTS_FROM = 4  # sections from which on a page has a table of contents
_MADE = "How it was made"


def to_html(page: Page) -> str:
    """The page as HTML; the same page is the same text.

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
    environment.filters |= {"data_uri": _data_uri, "paragraphs": paragraphs}
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


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _anchors(titles: Iterable[str]) -> list[str]:
    """Readable and different; links to them stay good when a section is added."""
    found: list[str] = []
    for title in titles:
        plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
        stem = "s-" + (re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "section")
        name, number = stem, 2
        while name in found:
            name, number = f"{stem}-{number}", number + 1
        found.append(name)
    return found
