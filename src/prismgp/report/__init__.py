"""One self-contained HTML page from tables and figures; needs the ``report`` extra."""

from prismgp.report._content import Figure, Page, Table
from prismgp.report._render import render

__all__ = ["Figure", "Page", "Table", "render"]
