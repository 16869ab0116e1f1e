"""Tables: which cells are the best, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from scipy.stats import t

from prismgp.exceptions import DataError

__all__ = ["best_cells", "errors_of_chance", "markdown_table"]


def best_cells(
    columns: Mapping[int, Sequence[float | None]], groups: Sequence[Hashable] | None = None
) -> frozenset[tuple[int, int]]:
    """The cells with the least value of their column, in every group of rows.

    Parameters
    ----------
    columns : mapping
        Column of the table to one number per row, of which the least is best; None or NaN: no contender. Where the
        largest is best, give the negatives; where a target is, the distances from it.
    groups : sequence, optional
        One value per row; rows compete with those of the same value. None: all of them do.

    Returns
    -------
    frozenset of pairs
        Row and column. Equal values are all best, so round to the digits shown. A row that has no competitor is not.

    Examples
    --------
    >>> from experiments.page import best_cells
    >>> sorted(best_cells({1: [0.3, 0.2, 5.0, 4.0]}, groups=["a", "a", "b", "b"]))
    [(1, 1), (3, 1)]
    """
    best: set[tuple[int, int]] = set()
    for column, values in columns.items():
        names = [None] * len(values) if groups is None else list(groups)
        if len(names) != len(values):
            raise DataError(f"column {column}: {len(values)} values for {len(names)} rows")
        rivals: dict[Hashable, dict[int, float]] = {}
        for row, (name, value) in enumerate(zip(names, values, strict=True)):
            if value is not None and value == value:  # NaN is not itself
                rivals.setdefault(name, {})[row] = value
        for found in rivals.values():
            least = min(found.values())
            if len(found) > 1:
                best |= {(row, column) for row, value in found.items() if value == least}
    return frozenset(best)


def markdown_table(header: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, without a line break at its end."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def errors_of_chance(runs: int) -> float:
    """How many standard errors the mean of paired differences must exceed, so that chance does so in 5% of cases.

    Examples
    --------
    >>> from experiments.page import errors_of_chance
    >>> round(errors_of_chance(5), 2)
    2.78
    """
    return float(t.ppf(0.975, runs - 1))
