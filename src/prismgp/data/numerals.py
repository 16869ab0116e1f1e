"""Numbers as text files spell them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from prismgp._system import warn_caller
from prismgp.data.cells import ArrowColumn, in_row, plural, quote_names
from prismgp.exceptions import DataError

DECIMALS = (".", ",")
_BLANKS, _APOSTROPHES = " \u00a0\u2009\u202f", "'\u2019"
_WORDS = "inf|infinity|nan"


class Numerals:
    """The numerals of a text file, with this decimal mark; None: a point.

    Thousands may be separated by the other mark, by blanks or by apostrophes, in groups of three digits. A per cent
    sign divides by one hundred. A comma separates thousands only if the decimal point is given or columns are separated
    by commas: in other files 1,234 is more likely a number between 1 and 2, and 1.234 may be either too. What the cells
    of a column have shown of that, and of per cent signs, is remembered for those that follow.
    """

    def __init__(self, decimal: str | None = None, *, delimiter: str = ",") -> None:
        self.decimal = decimal or "."
        separators = [f"[{_BLANKS}]", f"[{_APOSTROPHES}]"]
        if self.decimal == ",":
            separators.append(r"\.")
        elif decimal is not None or delimiter == ",":
            separators.append(",")
        self._pattern = _numeral(self.decimal, separators)
        self._guesses = decimal is None and delimiter != ","
        self._points: dict[str, _Points] = {}
        self._sure: set[str] = set()  # columns of which the scan of all cells has told what points are
        self._percents: dict[str, bool] = {}  # whether the cells of a column have per cent signs
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

        DataError for a number with the other decimal mark, or one that may be meant so, and for per cent signs in only
        some cells; ``first_row``: where the column starts in its file.
        """
        text = pc.utf8_trim_whitespace(text)
        if name not in self._sure:
            self.look_at(name, text, first_row)
            self._check_points([name])
        if self.decimal == "." and _can_cast(text):
            self._check_percents(name, text, first_row)
            return pc.cast(text, pa.float64())
        row = pc.index(self.match_other(text), True).as_py()
        if row >= 0:
            raise self.other_error([name], text[row].as_py(), first_row + row)
        numeral = self.match(text)
        plain = pc.if_else(numeral, self._to_plain(text), text)
        if pc.all(numeral).as_py() is False:
            return plain
        self._check_percents(name, text, first_row)
        return pc.cast(plain, pa.float64())

    def expect_percents(self, columns: Mapping[str, bool]) -> None:
        """Take in whether the cells of columns have per cent signs, as another table has taught a model."""
        self._percents.update(columns)

    def _check_percents(self, name: str, text: ArrowColumn, first_row: int) -> None:
        signs = pc.ends_with(text, "%")
        if signs.null_count == len(signs):
            return
        known = self._percents.setdefault(name, pc.drop_null(signs)[0].as_py())
        row = pc.index(signs, not known).as_py()
        if row >= 0:
            raise DataError(
                f"column {name!r} holds {text[row].as_py()!r} {in_row(first_row + row)}; cells before it, or those of "
                f"the fit, have {'a' if known else 'no'} per cent sign: write all of them in the same way"
            )

    def look_at(self, name: str, text: ArrowColumn, first_row: int) -> None:
        """Note cells of a column that may have thousands or decimals."""
        if self._guesses:
            self._points.setdefault(name, _Points()).add(text, first_row)

    def conclude(self, names: Sequence[str]) -> None:
        """Refuse columns of which all cells have been looked at, and that may hold thousands, or warn of them."""
        self._check_points(names)
        self._sure.update(names)

    def _check_points(self, names: Sequence[str]) -> None:
        found = {
            name: each for name in names if (each := self._points.get(name)) is not None and each.first is not None
        }
        refused = {name: each.first for name, each in found.items() if each.small and each.first is not None}
        if refused:
            raise self.other_error(list(refused), *next(iter(refused.values())))
        doubtful = [name for name, each in found.items() if not each.warned]
        for name in doubtful:
            found[name].warned = True
        if doubtful:
            value, _ = found[doubtful[0]].first or ("", 0)
            warn_caller(
                f"in {plural(doubtful, 'column')} {quote_names(doubtful)} every number could have thousands, such as "
                f"{value!r}, and is read with a decimal point: give --decimal . if that is right, or --decimal , (in "
                "Python: decimal='.' or decimal=',')"
            )

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
        mark = "comma" if "," in value else "point"
        what = f"which can have a decimal {mark} or thousands" if len(fitting) > 1 else "another spelling of a number"
        also = f", and so do {len(names) - 1} more" if len(names) > 1 else ""
        return DataError(
            f"column {names[0]!r} holds {value!r} {in_row(row)}, {what}{also}; "
            f"give {options} (in Python: {given}), or take such a column as categories"
        )


@dataclass
class _Points:
    """What a column has shown of its points, where they may separate decimals or thousands."""

    first: tuple[str, int] | None = None  # value and row of the first cell like 1.234; None once others tell decimals
    small: bool = False  # whether there are whole numbers below a thousand, which have no thousands to separate
    settled: bool = False
    warned: bool = False

    def add(self, text: ArrowColumn, first_row: int) -> None:
        if self.settled:
            return
        grouped, small = (pc.match_substring_regex(text, pattern) for pattern in (_GROUPED, _SMALL))
        if pc.all(pc.or_(grouped, small)).as_py() is False:
            self.settled, self.first = True, None
            return
        self.small = self.small or pc.any(small).as_py() is True
        row = pc.index(grouped, True).as_py()
        if self.first is None and row >= 0:
            self.first = text[row].as_py(), first_row + row


def count_percents(text: ArrowColumn) -> int:
    """The number of cells that end with a per cent sign."""
    return int(pc.sum(pc.ends_with(pc.utf8_trim_whitespace(text), "%")).as_py() or 0)


def _numeral(decimal: str, groups: list[str]) -> str:
    mark = "\\" + decimal
    # The first of several groups has no leading zero: 0,123 is not 123.
    grouped = "|".join(f"[1-9][0-9]{{0,2}}(?:{each}[0-9]{{3}})+" for each in groups)
    digits = f"(?:(?:[0-9]+|{grouped})(?:{mark}[0-9]*)?|{mark}[0-9]+)"
    return f"(?i)^[+\u2212-]?(?:{digits}(?:[{_BLANKS}]?%|e[+-]?[0-9]+)?|{_WORDS})$"


_GROUPED = "^[+\u2212-]?[1-9][0-9]{0,2}(?:\\.[0-9]{3})+$"
_SMALL = "^[+\u2212-]?[0-9]{1,3}$"
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
