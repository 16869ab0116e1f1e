"""One self-contained HTML page from tables and figures, and drawings; needs the ``report`` extra."""

from prismgp.report._certificate_figure import FIGURE_FORMATS, draw_certificate, figure_format
from prismgp.report._content import Figure, Page, Table
from prismgp.report._render import render

__all__ = ["FIGURE_FORMATS", "Figure", "Page", "Table", "draw_certificate", "figure_format", "render"]
