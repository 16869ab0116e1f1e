"""Numbers as text files spell them, and text that a reader takes for numbers, dates or times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
            self._check_points([name], refuse=False)  # other tables have told what the column is like
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
        others = pc.invert(signs) if known else signs
        if pc.any(others).as_py() is True:
            row = pc.index(others, True).as_py()
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
        self._check_points(names, refuse=True)
        self._sure.update(names)

    def _check_points(self, names: Sequence[str], *, refuse: bool) -> None:
        found = {
            name: each for name in names if (each := self._points.get(name)) is not None and each.first is not None
        }
        refused = {name: each.first for name, each in found.items() if each.small and each.first is not None}
        if refused and refuse:
            raise self.other_error(list(refused), *next(iter(refused.values())))
        doubtful = [name for name, each in found.items() if not each.warned]
        for name in doubtful:
            found[name].warned = True
        if doubtful:
            value, _ = found[doubtful[0]].first or ("", 0)
            warn_caller(
                f"in {plural(doubtful, 'column')} {quote_names(doubtful)} numbers could have thousands, such as "
                f"{value!r}, and are read with a decimal point: give --decimal . if that is right, or --decimal , (in "
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


# -- text that only a reader takes for numbers, dates or times ----------------------------------------

_MANY = 20  # levels of which so many read as numbers or dates are hardly meant as categories
# Leading zeros are those of a code.
_DIGITS = "[+\u2212-]?(?:0|[1-9][0-9., '\u2019\u00a0\u202f]*|0?[.,][0-9]+|0[.,][0-9]*)"
_GROUPED_LOOSELY = "[1-9][0-9]{0,2}(?:[., '\u2019\u00a0\u202f][0-9]{3})+"
_NUMBER = f"(?i)^[+\u2212-]?(?:0|[1-9][0-9]*|{_GROUPED_LOOSELY})(?:[.,][0-9]*)?(?:e[+-]?[0-9]+| ?%)?$"
_CURRENCY = f"^[+\u2212-]?(?:[A-Z]{{0,3}}[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP|CHF|JPY) ?{_DIGITS}$"
_UNIT = f"^{_DIGITS} ?([^0-9., '\u2019\u00a0\u202f+\u2212:/-][^0-9:]{{0,11}})$"
_WITH_UNIT = (
    "^[+\u2212-]?[0-9][0-9., '\u2019]* ?[^0-9., ][^0-9]*$"
    "|^(?:[$\u20ac\u00a3\u00a5]|USD|EUR|GBP|CHF) ?[+\u2212-]?[0-9][0-9., '\u2019]*$"
)
_DAY = "(?:0?[1-9]|[12][0-9]|3[01])"
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\\.?"
_WEEKDAY = "(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\\.?,? )?"
_YEAR = "(?:19|20)[0-9]{2}"
# ISO 8601 has the year first, and hyphens.
_ISO = f"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}(?:$|[T ])"
_OTHER_DATE = "|".join(
    [
        rf"(?i)^(?:[0-9]{{1,2}}[./-][0-9]{{1,2}}[./-]{_YEAR}\b",
        rf"{_YEAR}[./][0-9]{{1,2}}[./][0-9]{{1,2}}\b",
        # Points separate the numbers of versions too, but dates with points have the day first.
        rf"{_DAY}\.(?:0?[1-9]|1[0-2])\.[0-9]{{2}}(?:$|[ ,T])",
        *(rf"{_DAY}{mark}{_DAY}{mark}[0-9]{{2}}(?:$|[ ,T])" for mark in "/-"),
        rf"{_WEEKDAY}{_DAY}(?:st|nd|rd|th)?[ ./-]*{_MONTH}[ ,./-]*(?:{_YEAR}|[0-9]{{2}})\b",
        rf"{_WEEKDAY}{_MONTH}[ .-]*{_DAY}(?:st|nd|rd|th)?,?[ -]+{_YEAR}\b",
        rf"(?:{_MONTH}[ ,./-]*{_YEAR}|{_YEAR}[ ./-]*{_MONTH}(?:[ ./-]*{_DAY})?)\b)",
    ]
)
_CLOCK = r"(?i)^[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?[ap]\.?m\.?)?$"

Find = Callable[[ArrowColumn], ArrowColumn]


class _Hint(NamedTuple):
    """What most of many levels read as, by ``find``, and one of them to show, by ``show``."""

    what: str
    find: Find
    remedy: str
    show: Find | None = None


def _matching(pattern: str) -> Find:
    return lambda levels: pc.match_substring_regex(levels, pattern)


def _has_unit(levels: ArrowColumn) -> ArrowColumn:
    """Numbers with a currency before them, or behind them the unit that is the most frequent: codes have several."""
    units = pc.struct_field(pc.extract_regex(levels, _UNIT.replace("([^", "(?P<unit>[^", 1)), "unit")
    counts = pc.value_counts(pc.drop_null(units))
    currency = pc.match_substring_regex(levels, _CURRENCY)
    if not len(counts):
        return currency
    first = pc.sort_indices(counts.field("counts"), sort_keys=[("", "descending")])[0].as_py()
    return pc.or_(currency, pc.fill_null(pc.equal(units, counts.field("values")[first]), False))


_HINTS = (
    _Hint("text that reads as numbers", _matching(_NUMBER), "convert to numbers what is no code"),
    _Hint(
        "text that reads as numbers with a unit", _has_unit, "remove the unit, and put it into the name of the column"
    ),
    _Hint(
        "text that reads as dates",
        _matching(f"{_OTHER_DATE}|{_ISO}"),
        "write them as ISO 8601 does, like 2024-12-31",
        _matching(_OTHER_DATE),
    ),
    _Hint(
        "dates and other text",
        _matching(_ISO),
        "correct or empty the cells that are no dates",
        lambda levels: pc.invert(pc.match_substring_regex(levels, _ISO)),
    ),
    _Hint(
        "text that reads as times of day",
        _matching(_CLOCK),
        "write them as a number, such as the hour, or together with the date",
    ),
)


def hint_at_text(columns: Mapping[str, ArrowColumn]) -> None:
    """Warn of columns of text whose levels are numbers, dates or times for a reader."""
    left = dict(columns)
    for hint in _HINTS:
        shown = {name: example for name, levels in left.items() if (example := _find_example(hint, levels)) is not None}
        if shown:
            value, (verb, be) = next(iter(shown.values())), ("holds", "is") if len(shown) == 1 else ("hold", "are")
            warn_caller(
                f"{plural(shown, 'column')} {quote_names(shown)} {verb} {hint.what}, such as {value!r}, "
                f"and {be} taken as categories: {hint.remedy}"
            )
        left = {name: levels for name, levels in left.items() if name not in shown}


def _find_example(hint: _Hint, levels: ArrowColumn) -> str | None:
    """One of many levels, if most of them are what the hint is about."""
    if len(levels) < _MANY:
        return None
    alike = levels.filter(hint.find(levels))
    if len(alike) < _MANY or len(alike) <= len(levels) / 2:
        return None
    shown = alike if hint.show is None else levels.filter(hint.show(levels))
    return str(shown[0].as_py()) if len(shown) else None


def unit_remedy(levels: ArrowColumn) -> str:
    """What to do about numbers that have a unit; empty where the text is something else."""
    found = levels.filter(pc.match_substring_regex(levels, _WITH_UNIT))
    if len(found) <= len(levels) / 2:
        return ""
    return f": remove the unit from cells such as {found[0].as_py()!r}"
