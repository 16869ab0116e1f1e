"""Pictures of models and certificates."""

from prismgp.plots.certificate import FIGURE_FORMATS, draw_certificate, figure_format
from prismgp.plots.drawing import MODEL_STYLES, PALETTE, drawing_style, drawn, model_styles, to_svg

__all__ = [
    "FIGURE_FORMATS",
    "MODEL_STYLES",
    "PALETTE",
    "draw_certificate",
    "drawing_style",
    "drawn",
    "figure_format",
    "model_styles",
    "to_svg",
]
