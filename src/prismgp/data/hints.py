"""Text that is numbers, dates or times for a reader, though not for a program: patterns, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow.compute as pc

from prismgp._system import warn_caller
from prismgp.data.cells import ArrowColumn, plural, quote_names

_MANY = 20  # levels of which so many read as numbers or dates are hardly meant as categories
# Leading zeros are those of a code.
_DIGITS = "[+\u2212-]?(?:0|[1-9][0-9., '\u2019\u00a0\u202f]*|0?[.,][0-9]+|0[.,][0-9]*)"
_GROUPED = "[1-9][0-9]{0,2}(?:[., '\u2019\u00a0\u202f][0-9]{3})+"
_NUMBER = f"(?i)^[+\u2212-]?(?:0|[1-9][0-9]*|{_GROUPED})(?:[.,][0-9]*)?(?:e[+-]?[0-9]+| ?%)?$"
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
