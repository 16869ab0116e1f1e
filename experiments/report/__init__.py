"""One self-contained HTML page from tables and figures, and drawings; needs the ``report`` extra."""

from experiments.report._certificate_section import certificate_section
from experiments.report._content import Figure, Highlight, Notice, Page, Section, Table, best_cells
from experiments.report._plots import draw_calibration, draw_curves, draw_embedding, draw_pareto, pareto_front
from experiments.report._render import check_installed, render, to_html
from experiments.report._runs import build, read_results, read_run
from prismgp.plots.certificate import FIGURE_FORMATS, draw_certificate, figure_format
from prismgp.plots.drawing import MODEL_STYLES, PALETTE, drawing_style, drawn, model_styles, to_svg

__all__ = [
    "FIGURE_FORMATS",
    "MODEL_STYLES",
    "PALETTE",
    "Figure",
    "Highlight",
    "Notice",
    "Page",
    "Section",
    "Table",
    "best_cells",
    "build",
    "certificate_section",
    "check_installed",
    "draw_calibration",
    "draw_certificate",
    "draw_curves",
    "draw_embedding",
    "draw_pareto",
    "drawing_style",
    "drawn",
    "figure_format",
    "model_styles",
    "pareto_front",
    "read_results",
    "read_run",
    "render",
    "to_html",
    "to_svg",
]
