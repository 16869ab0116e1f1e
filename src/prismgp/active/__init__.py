"""Active learning: which rows to measure next."""

from prismgp.active.select import CRITERIA, Selected, select, select_rows

__all__ = ["CRITERIA", "Selected", "select", "select_rows"]
