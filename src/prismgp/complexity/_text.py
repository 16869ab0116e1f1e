"""Plain text and plain data for reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["number", "plain", "table"]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 2) -> str:
    """Columns as wide as their longest cell; the first is aligned to the left, numbers to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if _numeric(rows, j) else cell.ljust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return (" " * indent + "  ".join(aligned)).rstrip()

    return "\n".join(line(row) for row in cells)


def _numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    return column > 0 and all(row[column][:1] in "-.0123456789i" for row in rows)


def number(value: float | None) -> str:
    """Four digits, or a dash where there is no number."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.4g}"


def plain(value: Any) -> Any:
    """As JSON can hold it: arrays become lists, and numbers that are not finite None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
