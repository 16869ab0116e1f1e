"""Figures of certificates; needs the ``report`` extra."""

from prismgp.plots.certificate import FAINT, FIGURE_FORMATS, INK, draw_certificate, drawing_style, figure_format

__all__ = ["FAINT", "FIGURE_FORMATS", "INK", "draw_certificate", "drawing_style", "figure_format"]
