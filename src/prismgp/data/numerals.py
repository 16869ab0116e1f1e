"""Numbers as text files spell them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from prismgp.data.cells import ArrowColumn, in_row
from prismgp.exceptions import DataError

DECIMALS = (".", ",")
_BLANKS, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
_WORDS = "inf|infinity|nan"


class Numerals:
    """The numerals of a text file, with this decimal mark; None: a point.

    Thousands may be separated by the other mark, by blanks or by apostrophes, in groups of three digits. A per cent
    sign divides by one hundred. A comma separates thousands only if the decimal point is given or columns are separated
    by commas: in other files 1,234 is more likely a number between 1 and 2.
    """

    def __init__(self, decimal: str | None = None, *, delimiter: str = ",") -> None:
        self.decimal = decimal or "."
        separators = [f"[{_BLANKS}]", f"[{_APOSTROPHES}]"]
        if self.decimal == ",":
            separators.append(r"\.")
        elif decimal is not None or delimiter == ",":
            separators.append(",")
        self._pattern = _numeral(self.decimal, separators)
        self._separators = f"[{_BLANKS}{_APOSTROPHES}{'.' if self.decimal == ',' else ','}]"

    def match(self, text: ArrowColumn) -> ArrowColumn:
        """Which cells are numerals; null where the text is null."""
        return pc.match_substring_regex(pc.utf8_trim_whitespace(text), self._pattern)

    def match_other(self, text: ArrowColumn) -> ArrowColumn:
        """Which cells are numerals with a decimal mark that is given, but not here."""
        text = pc.utf8_trim_whitespace(text)
        either = [pc.match_substring_regex(text, pattern) for pattern in _GIVEN.values()]
        return pc.and_(pc.or_(*either), pc.invert(self.match(text)))

    def are_plain(self, text: ArrowColumn) -> bool:
        """Whether the parser of files converts all these cells."""
        text = pc.utf8_trim_whitespace(text)
        if self.decimal == ",":
            if pc.any(pc.match_substring(text, ".")).as_py():
                return False
            text = pc.replace_substring(text, ",", ".")
        return _can_cast(text)

    def read(self, name: str, text: ArrowColumn, first_row: int = 0) -> ArrowColumn:
        """Convert a column to float64 if every cell is a numeral; otherwise it stays text, for messages about it.

        DataError for a number with the other decimal mark; ``first_row``: where the column starts in its file.
        """
        text = pc.utf8_trim_whitespace(text)
        if self.decimal == "." and _can_cast(text):
            return pc.cast(text, pa.float64())
        row = pc.index(self.match_other(text), True).as_py()
        if row >= 0:
            raise self.other_error([name], text[row].as_py(), first_row + row)
        numeral = self.match(text)
        plain = pc.if_else(numeral, self._to_plain(text), text)
        return pc.cast(plain, pa.float64()) if pc.all(numeral).as_py() is not False else plain

    def _to_plain(self, text: ArrowColumn) -> ArrowColumn:
        """Numerals as Python spells them."""
        plain = pc.replace_substring_regex(text, self._separators, "")
        for mark, replacement in ((",", "."), ("\u2212", "-"), ("%", "e-2")):
            plain = pc.replace_substring(plain, mark, replacement)
        return plain

    def other_error(self, names: Sequence[str], value: str, row: int) -> DataError:
        """The error for columns whose numbers are spelled in another way, with such a cell of the first column."""
        fitting = [mark for mark, pattern in _GIVEN.items() if _matches(value, pattern)]
        options = " or ".join(f"--decimal {mark}" for mark in fitting)
        given = " or ".join(f"decimal={mark!r}" for mark in fitting)
        what = "which can have a decimal comma or thousands" if len(fitting) > 1 else "another spelling of a number"
        also = f", and so do {len(names) - 1} more" if len(names) > 1 else ""
        return DataError(
            f"column {names[0]!r} holds {value!r} {in_row(row)}, {what}{also}; "
            f"give {options} (in Python: {given}), or take such a column as categories"
        )


def count_percents(text: ArrowColumn) -> int:
    """The number of cells that end with a per cent sign."""
    return int(pc.sum(pc.ends_with(pc.utf8_trim_whitespace(text), "%")).as_py() or 0)


def _numeral(decimal: str, groups: list[str]) -> str:
    mark = "\\" + decimal
    # The first of several groups has no leading zero: 0,123 is not 123.
    grouped = "|".join(f"[1-9][0-9]{{0,2}}(?:{each}[0-9]{{3}})+" for each in groups)
    digits = f"(?:(?:[0-9]+|{grouped})(?:{mark}[0-9]*)?|{mark}[0-9]+)"
    return f"(?i)^[+\u2212-]?(?:{digits}(?:[{_BLANKS}]?%|e[+-]?[0-9]+)?|{_WORDS})$"


# What numerals are if the decimal mark is given.
_GIVEN = {
    mark: _numeral(mark, [f"[{_BLANKS}]", f"[{_APOSTROPHES}]", other]) for mark, other in ((".", ","), (",", r"\."))
}


def _matches(value: str, pattern: str) -> bool:
    return bool(pc.match_substring_regex(value.strip(), pattern).as_py())


def _can_cast(text: ArrowColumn) -> bool:
    try:
        pc.cast(text, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
