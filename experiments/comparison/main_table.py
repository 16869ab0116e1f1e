"""The main table: every entry of `MAIN` on every split of every data set. A time-out is an entry too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.comparison.data import DATASETS
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS, MAIN
from experiments.page import markdown_table
from experiments.results import Record

__all__ = ["main_table"]

OLD = "†"
_ROUNDS = 3_000  # of boosting, at most
_PATIENCE = {"trees": 0}  # rounds after the best one that are not used; scikit-learn keeps them
_SETS = [name for name, shape in DATASETS.items() if shape.default]
# Of some entries a second reading of the same fit is the one to compare.
_READINGS = {"xgpr-2048": "corrected"}


class _Score(NamedTuple):
    key: str
    title: str
    text: Callable[[float], str]
    competes: bool = False
    timing: bool = False


_SCORES = (
    _Score("rmse", "RMSE", lambda value: f"{value:.3f}", True),
    _Score("nlpd", "NLPD of the normal distribution", lambda value: f"{value:.3f}", True),
    _Score("nlpd_shaped", "NLPD with a learned shape of the noise", lambda value: f"{value:.3f}", True),
    _Score("coverage", "Coverage of 95% intervals", lambda value: f"{100 * value:.1f}%"),
    _Score(
        "fit_seconds",
        "Seconds of the fit",
        lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
        timing=True,
    ),
)


class _Cell:
    """An entry on a data set: the results of its splits, and what is missing."""

    def __init__(self, records: list[Record | None]) -> None:
        self.splits = len(records)
        self.tried = [record for record in records if record is not None]
        self.done = [record for record in self.tried if "failed" not in record]
        # Whether results are stale today is the question of `experiments.parts`; a table must not change with the code.
        self.old = any(record.get("parts") is None for record in self.tried)

    def mean(self, key: str) -> float | None:
        values = [record[key] for record in self.done if key in record]
        return float(np.mean(values)) if values else None

    def text(self, score: _Score) -> str:
        value = self.mean(score.key)
        if value is not None:
            part = f" ({len(self.done)}/{self.splits})" if len(self.done) < self.splits else ""
            where = " GPU" if score.timing and any(record.get("device") == "cuda" for record in self.done) else ""
            return score.text(value) + where + part + (OLD if self.old else "")
        late = [record for record in self.tried if record.get("timed_out")]
        if late and not self.done:
            return f"> {late[0]['limit_seconds']:g} s"
        return "failed" if self.tried and not self.done else "-"


def main_table(results: Mapping[str, Record]) -> list[str]:
    """Paragraphs of Markdown: what is there, and a table for each score."""
    found = {(each.get("dataset"), each.get("entry"), each.get("split")): each for each in results.values()}
    cells = {
        (name, entry): _Cell([_reading(found.get((name, entry, split))) for split in range(DATASETS[name].splits)])
        for name in _SETS
        for entry in MAIN
    }
    planned = sum(cell.splits for cell in cells.values())
    done = sum(len(cell.done) for cell in cells.values())
    late = sum(bool(record.get("timed_out")) for cell in cells.values() for record in cell.tried)
    parts = [
        (
            f"{done} of {planned} fits are there and {late} ran out of time. Means over the splits; (1/3) where one of "
            f"three is there, a dash where none is; {OLD} where a result is from before digests were stored. "
            f"Bold: best of a complete column. {LABELS['exact']} gets at most {ENTRIES['exact'].max_rows:,} rows; "
            "the heads have training rows."
        ),
        "\n".join(f"- {remark}" for remark in _remarks(cells)),
    ]
    for score in _SCORES:
        lines = [[_label(entry), *(cells[name, entry].text(score) for name in _SETS)] for entry in MAIN]
        for column, name in enumerate(_SETS, start=1):
            best = _find_best([cells[name, entry] for entry in MAIN], score)
            for line in best:
                lines[line][column] = f"**{lines[line][column]}**"
        header = ["", *(f"{name}, {_thousands(DATASETS[name].rows)}" for name in _SETS)]
        parts += [f"**{score.title}**", markdown_table(header, lines)]
    return parts


def _remarks(cells: Mapping[tuple[str, str], _Cell]) -> Iterator[str]:
    """What the fits had, and where they ended early."""
    everything = [(name, entry, record) for (name, entry), cell in cells.items() for record in cell.done]
    if not everything:
        yield "No fit is there yet."
        return
    one = Counter(entry for _, entry, record in everything if record.get("threads") == 1)
    total = Counter(entry for _, entry, _ in everything)
    shares = (f"{_shorten(entry)} {one[entry]} of {total[entry]}" for entry in MAIN if one[entry])
    yield f"Threads: {sum(one.values())} of {len(everything)} fits had one, the others two. One: {'; '.join(shares)}."
    beside = [record["jobs"] for _, _, record in everything if record.get("jobs")]
    if beside:
        unknown = len(everything) - len(beside)
        yield f"At a time: up to {max(beside)} fits on one machine; of {unknown} fits that is not recorded."
    late = _by_entry(
        (name, entry) for name, entry, record in everything if record.get("facts", {}).get("ended_by_time")
    )
    if late:
        yield f"Ended at three quarters of the time limit: {late}."
    least = {entry: _ROUNDS - _PATIENCE.get(entry, 100) for entry in MAIN}
    last = _by_entry((name, entry) for name, entry, record in everything if _rounds(record) >= least[entry])
    if last:
        yield f"Boosting that went on to the last of {_ROUNDS:,} rounds: {last}."
    fewer = {
        (name, entry): record["rows_used"]
        for name, entry, record in everything
        if ENTRIES[entry].max_rows is None and record.get("rows_used", np.inf) < record.get("rows", 0)
    }
    if fewer:
        texts = (f"{_shorten(entry)} {rows:,} rows of {name}" for (name, entry), rows in fewer.items())
        yield f"Memory allowed fewer rows: {'; '.join(texts)}."


def _by_entry(found: Iterable[tuple[str, str]]) -> str:
    """Entries with their data sets, and the number of splits where there are several."""
    counts = Counter(found)
    sets: dict[str, list[str]] = {}
    for (name, entry), count in counts.items():
        splits = DATASETS[name].splits
        sets.setdefault(entry, []).append(f"{name} ({count} of {splits})" if splits > 1 else name)
    return "; ".join(f"{_shorten(entry)} on {', '.join(sets[entry])}" for entry in MAIN if entry in sets)


def _rounds(record: Record) -> int:
    return int(record.get("facts", {}).get("trees", 0))


def _shorten(entry: str) -> str:
    return LABELS[entry].split(", ")[0]


def _reading(record: Record | None) -> Record | None:
    """The result with the scores of the reading that is compared."""
    reading = None if record is None else _READINGS.get(record["entry"])
    if record is None or reading is None:
        return record
    scores: dict[str, Any] = record.get("also", {}).get(reading, {})
    return {**record, **scores}


def _label(entry: str) -> str:
    reading = _READINGS.get(entry)
    label = LABELS[entry if reading is None else f"{entry}-{reading}"]
    return f"→ {label}" if entry == DEFAULT else label


def _find_best(cells: list[_Cell], score: _Score) -> list[int]:
    """Which are the best, to the digits shown; none while fits are missing: means over other splits do not compare."""
    if not score.competes or any(len(cell.tried) < cell.splits for cell in cells):
        return []
    values = {k: cell.mean(score.key) for k, cell in enumerate(cells) if len(cell.done) == cell.splits}
    known = {k: round(value, 3) for k, value in values.items() if value is not None}
    return [k for k, value in known.items() if value == min(known.values())]


def _thousands(rows: int) -> str:
    return f"{rows / 1e6:.1f}M" if rows >= 1e6 else f"{rows / 1e3:.0f}k" if rows >= 1e4 else f"{rows:,}"
