"""What a table's columns are to the model: chosen, checked and described one by one."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prismgp.data._columns import BOOLEAN, CATEGORY, NUMBER, listed
from prismgp.exceptions import DataError, ModelFileError

__all__ = [
    "InputColumn",
    "check_unique",
    "choose_inputs",
    "is_clean_text",
    "is_saved_index",
    "mostly_numbers",
    "parse_column",
    "plural",
    "too_many_categories",
]

_SAVED_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0|")


@dataclass(frozen=True)
class InputColumn:
    """One raw column and how it is encoded.

    Attributes
    ----------
    name : str
    kind : {"number", "boolean", "category"}
    categories : tuple of str
        Sorted; empty unless the kind is "category".
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded columns."""
        if self.kind == CATEGORY:
            return tuple(f"{self.name}={value}" for value in self.categories)
        return (self.name,)


def is_saved_index(name: str) -> bool:
    """Whether a column of this name is the row index of a frame, saved along by accident."""
    return _SAVED_INDEX.fullmatch(name) is not None


def plural(items: Collection[Any], noun: str) -> str:
    return noun if len(items) == 1 else f"{noun}s"


def check_unique(names: Sequence[str], what: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"duplicate {what} {listed(twice)}; every column needs a name of its own")


def _unknown(name: str, names: Sequence[str]) -> DataError:
    hint = ""
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        hint = "; is the separator another character? (--delimiter)"
    else:
        lookup = {each.strip().lower(): each for each in names}
        close = difflib.get_close_matches(name.strip().lower(), list(lookup), n=1)
        if close:
            hint = f"; did you mean {lookup[close[0]]!r}?"
    return DataError(f"there is no column {name!r} (there are {listed(names)}){hint}")


def choose_inputs(
    names: Sequence[str],
    target: str | None,
    include: Sequence[str] | None,
    exclude: Collection[str],
    categorical: Collection[str],
) -> list[str]:
    check_unique(names, "column")
    for name in (target, *(include or ()), *exclude, *categorical):
        if name is not None and name not in names:
            raise _unknown(name, names)
    if include is not None:
        check_unique(include, "input")
        if target is not None and target in include:
            raise DataError(f"the target {target!r} cannot be an input as well")
        chosen = [name for name in include if name not in exclude]
    else:
        chosen = [name for name in names if name != target and name not in exclude and not is_saved_index(name)]
    if not chosen:
        raise DataError("no input columns are left beside the target")
    unused = [name for name in categorical if name not in chosen]
    if unused:
        raise DataError(f"categorical {plural(unused, 'column')} {listed(unused)}: not among the inputs")
    return chosen


def too_many_categories(name: str, example: str, most: int) -> DataError:
    """The complaint about a text column."""
    return DataError(
        f"text column {name!r} has many values (e.g. {example!r}), more than {most:,}; "
        "leave it out with --exclude, code it as numbers, or raise --max-categories"
    )


def mostly_numbers(what: str, name: str, value: str, row: int) -> DataError:
    """The complaint about a column of numbers in which a cell, the first in ``row``, is none."""
    return DataError(
        f"{what} {name!r} is text, but most of its values are numbers; the first that is not is "
        f"{value!r} in row {row + 1:,} (the first is 1): correct or empty such cells"
        + (", or take the column as categories with --categorical" if what == "column" else "")
    )


def is_clean_text(value: Any) -> bool:
    """A string that can be written as UTF-8; JSON lets lone surrogates through."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def parse_column(item: Any) -> InputColumn:
    if not isinstance(item, dict) or set(item) != {"name", "kind", "categories"}:
        raise ModelFileError("a column of the table is not an object with 'name', 'kind' and 'categories'")
    name, kind, categories = item["name"], item["kind"], item["categories"]
    if not is_clean_text(name):
        raise ModelFileError("a column of the table has no proper name")
    if kind not in (NUMBER, BOOLEAN, CATEGORY):
        raise ModelFileError(f"column {name!r} of the table is of an unknown kind")
    if not isinstance(categories, list) or not all(is_clean_text(value) for value in categories):
        raise ModelFileError(f"the categories of column {name!r} are not a list of texts")
    if (kind == CATEGORY) != bool(categories):
        raise ModelFileError(f"column {name!r} of kind {kind!r} has {len(categories)} categories")
    if any(later <= earlier for earlier, later in pairwise(categories)):
        raise ModelFileError(f"the categories of column {name!r} are not sorted and distinct")
    return InputColumn(name, kind, tuple(categories))
