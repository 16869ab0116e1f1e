"""What a report says, as plain data. Rendering only formats it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Figure", "Page", "Table"]


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption."""

    caption: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """An SVG drawing with a caption and a text for those who cannot see it."""

    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Page:
    """A report: a summary, tables, figures, and how it was made."""

    title: str
    summary: str
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    made_by: dict[str, str] = field(default_factory=dict)
