"""Drawings of fitted models, of their predictions and of certificates, in scikit-learn's manner.

Every display has ``from_estimator``, which computes its numbers and draws them, attributes with the numbers, and
``plot``. matplotlib, the ``report`` extra, is needed only to draw.
"""

from prismgp.plots.certificate import draw_certificate
from prismgp.plots.columns import InputTable, sample_rows
from prismgp.plots.inputs import Dependence, PartialDependenceDisplay, RelevanceDisplay
from prismgp.plots.quality import CalibrationDisplay, Curve, HistoryDisplay, ResidualsDisplay
from prismgp.plots.style import EXACT, FAINT, FIGURE_FORMATS, INK, OURS, drawing_style, figure_format

__all__ = [
    "EXACT",
    "FAINT",
    "FIGURE_FORMATS",
    "INK",
    "OURS",
    "CalibrationDisplay",
    "Curve",
    "Dependence",
    "HistoryDisplay",
    "InputTable",
    "PartialDependenceDisplay",
    "RelevanceDisplay",
    "ResidualsDisplay",
    "draw_certificate",
    "drawing_style",
    "figure_format",
    "sample_rows",
]
