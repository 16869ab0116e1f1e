"""Figures of the experiments, and the pages of `prismgp.report` that they are shown on."""

from experiments.internals import drawing_style
from experiments.page.figures import draw_calibration, draw_curves, draw_embedding, draw_pareto
from experiments.page.style import MODEL_STYLES, PALETTE, draw_svg, drawing, model_styles, save_png, to_svg
from experiments.page.tables import best_cells, errors_of_chance, markdown_table
from prismgp.report import (
    Figure,
    Highlight,
    Notice,
    Page,
    Section,
    Table,
    certificate_section,
    render,
    to_html,
)

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
    "errors_of_chance",
    "markdown_table",
    "model_styles",
    "render",
    "save_png",
    "to_html",
    "to_svg",
]
