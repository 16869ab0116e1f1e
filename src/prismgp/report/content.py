"""The contents of a page as plain data; ``render`` only formats it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prismgp.exceptions import DataError

__all__ = ["Figure", "Highlight", "Notice", "Page", "Section", "Table", "paragraphs"]

# A number with what tables put around it: a sign, a bound, an error, a unit, a remark in brackets. The escapes are
# a minus sign, a multiplication sign and dashes.
_AMOUNT = r"[-+\u2212±]?\s*\d[\d,.]*(e[-+]?\d+)?\s*(%|[a-zµ\u00d7]{1,3})?"
_NUMBER = re.compile(rf"[<>≤≥~≈]?\s*{_AMOUNT}(\s*(±|\+-|to)\s*{_AMOUNT})?(\s*\([^)]*\))?", re.IGNORECASE)
_EMPTY = {"", "-", "\u2013", "\u2014", "n/a", "nan", "inf", "unknown"}


@dataclass(frozen=True)
class Highlight:
    """One number people want to see first, shown as a tile.

    Parameters
    ----------
    value : str
        The number, with its unit.
    label : str
        What it is.
    note : str
        How to read it, or what it is compared with; small.
    """

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Notice:
    """A sentence that must not be overlooked, in a box.

    Parameters
    ----------
    text : str
    tone : {"good", "bad", "note"}
        Also written out in words, so that colour is never the only sign.
    title : str
        Stands in front of the text, in bold.
    """

    text: str
    tone: Literal["good", "bad", "note"] = "note"
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text under a caption.

    Parameters
    ----------
    caption : str
    header : list of str
    rows : list of list of str
        The first cell of a row is its name.
    note : str
        Small, under the table.
    best : collection of pairs
        Row and column of the cells to emphasise.
    lost : collection of int
        Rows to flag as those where another library wins.
    lost_label : str
        What the flag means, said under the table and to screen readers.
    numeric : collection of int, optional
        Columns to align to the right; None: those that hold nothing but numbers.
    groups : sequence, optional
        One value per row; a line separates rows whose values differ.

    Examples
    --------
    >>> from prismgp.report import Table
    >>> Table("Errors", ["Model", "RMSE"], [["SSGP", "0.31"], ["PrismGP", "0.24"]]).numeric_columns
    frozenset({1})
    """

    caption: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    lost: frozenset[int] = frozenset()
    lost_label: str = "another library wins here"
    numeric: frozenset[int] | None = None
    groups: Sequence[Hashable] | None = None

    def __post_init__(self) -> None:
        width = len(self.header)
        for index, row in enumerate(self.rows):
            if len(row) != width:
                raise DataError(
                    f"table {self.caption!r}: row {index} has {len(row)} cells, but the header has {width}; "
                    "give every row one cell per column"
                )
        if self.groups is not None and len(self.groups) != len(self.rows):
            raise DataError(f"table {self.caption!r}: {len(self.groups)} groups for {len(self.rows)} rows")

    @property
    def numeric_columns(self) -> frozenset[int]:
        """The columns that are aligned to the right."""
        if self.numeric is not None:
            return frozenset(self.numeric)
        return frozenset(k for k in range(1, len(self.header)) if _all_numbers([row[k] for row in self.rows]))

    def starts_group(self, row: int) -> bool:
        """Whether a line is drawn above this row."""
        return self.groups is not None and row > 0 and self.groups[row] != self.groups[row - 1]


def _all_numbers(cells: Sequence[str]) -> bool:
    known = [cell.strip() for cell in cells if cell.strip().lower() not in _EMPTY]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)


@dataclass(frozen=True)
class Figure:
    """An SVG drawing with a caption and a text for those who cannot see it.

    Parameters
    ----------
    svg : str
        As `to_svg` and `draw_svg` make it.
    caption : str
    alt : str
        What the drawing shows, in words.
    wide : bool
        False: it may stand beside the next one where there is room.
    themed : bool
        Whether the drawing has colours of its own for dark pages and no paper, as those of `to_svg` have.
    """

    svg: str
    caption: str
    alt: str
    wide: bool = True
    themed: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading of its own; everything but the title may be left out.

    Parameters
    ----------
    title : str
    text : str
        Paragraphs, with empty lines between them.
    tables : list of Table
    figures : list of Figure
    notice : Notice, optional
        In a box, before everything else.
    facts : list of pairs of str
        A subject and what there is to say of it, for sentences that would be too long for a table.
    """

    title: str
    text: str = ""
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notice: Notice | None = None
    facts: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """A report: a summary, sections, and how it was made.

    Parameters
    ----------
    title : str
    summary : str
        Paragraphs, with empty lines between them.
    sections : list of Section
    made_by : dict
        How the numbers came about: command, versions, machine, seeds.
    highlights : list of Highlight
        Tiles under the summary.
    tables, figures : list
        The ones to see first, above all sections.
    notice : Notice, optional
        In a box under the summary, for instance that a run is not finished.
    """

    title: str
    summary: str
    sections: list[Section] = field(default_factory=list)
    made_by: dict[str, str] = field(default_factory=dict)
    highlights: list[Highlight] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notice: Notice | None = None


def paragraphs(text: str) -> list[str]:
    """The text between empty lines, without line breaks."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
