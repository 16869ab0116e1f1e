"""One self-contained HTML page from tables and figures, and the figures themselves."""

from experiments.internals import drawing_style
from experiments.page.certificate import certificate_section
from experiments.page.content import Figure, Highlight, Notice, Page, Section, Table, best_cells, markdown_table
from experiments.page.figures import draw_calibration, draw_curves, draw_embedding, draw_pareto
from experiments.page.render import render, to_html
from experiments.page.style import MODEL_STYLES, PALETTE, draw_svg, drawing, model_styles, save_png, to_svg

__all__ = [
    "MODEL_STYLES",
    "PALETTE",
    "Figure",
    "Highlight",
    "Notice",
    "Page",
    "Section",
    "Table",
    "best_cells",
    "certificate_section",
    "draw_calibration",
    "draw_curves",
    "draw_embedding",
    "draw_pareto",
    "draw_svg",
    "drawing",
    "drawing_style",
    "markdown_table",
    "model_styles",
    "render",
    "save_png",
    "to_html",
    "to_svg",
]
