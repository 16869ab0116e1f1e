"""Results of the comparison brought together: means over splits, fronts, and which entries are better than ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.comparison.data import DATASETS
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS, OURS
from experiments.comparison.plan import AGREEMENT, describe
from experiments.pareto import dominators, front

__all__ = ["METRICS", "Row", "beaten_by", "collect", "points_of", "summarise", "where_others_win"]

METRICS = {
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "nlpd_shaped": "NLPD, learned shape",
    "mae": "MAE",
    "coverage": "95% coverage",
}
_MEANS = (
    "rmse",
    "nlpd",
    "mae",
    "coverage",
    "fit_seconds",
    "predict_seconds",
    "peak_bytes",
    "fit_peak_bytes",
    "rows",
    "rows_used",
    "test_rows",
    "nlpd_own",
    "nlpd_shaped",
)


@dataclass(frozen=True)
class Row:
    """An entry on a data set, over the splits it has finished.

    Attributes
    ----------
    name, label : str
    values : dict
        Means over the splits.
    splits : tuple of int
    calibration : list of float
        Shares of targets inside the central intervals of `LEVELS`.
    complete : bool
        Whether it has every split that our default has finished on this data set, or, without our default, any entry;
        others do not compete. Further splits do not count.
    """

    name: str
    label: str
    values: dict[str, float]
    splits: tuple[int, ...]
    calibration: list[float] = field(default_factory=list)
    complete: bool = True

    @property
    def ours(self) -> bool:
        """Whether it is one of PrismGP's regressors."""
        return self.name in OURS

    def loss(self, metric: str) -> float:
        """The metric as something of which less is better; infinite where it was not measured."""
        return abs(self.values[metric] - 0.95) if metric == "coverage" else self.values.get(metric, np.inf)


def collect(results: Mapping[str, dict[str, Any]]) -> tuple[dict[str, list[Row]], dict[str, dict[str, str]]]:
    """Rows by data set, and the outcome of jobs without scores: data set to label and split to words."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    lost: dict[str, dict[str, str]] = {}
    for key, result in results.items():
        if key == AGREEMENT or result.get("dataset") not in DATASETS or result.get("entry") not in ENTRIES:
            continue
        dataset, entry, split = result["dataset"], result["entry"], int(result["split"])
        if "failed" in result:
            lost.setdefault(dataset, {})[f"{LABELS[entry]}, split {split}"] = describe(result)
            continue
        found.setdefault(dataset, {}).setdefault(entry, {})[split] = result
        for suffix, also in result.get("also", {}).items():
            found[dataset].setdefault(f"{entry}-{suffix}", {})[split] = {**result, **also}
    rows = {name: _rows(found[name]) for name in DATASETS if name in found}
    return rows, {name: lost[name] for name in DATASETS if name in lost}


def _rows(entries: dict[str, dict[int, dict[str, Any]]]) -> list[Row]:
    every = set(entries.get(DEFAULT, ())) or set().union(*entries.values())
    order = list(LABELS)
    rows = []
    for name in sorted(entries, key=order.index):
        by_split = {split: each for split, each in entries[name].items() if split in every} or entries[name]
        each = list(by_split.values())
        values = {
            metric: float(np.mean([result[metric] for result in each]))
            for metric in _MEANS
            if all(metric in result for result in each)
        }
        per_1000 = [1e3 * result["predict_seconds"] / result["test_rows"] for result in each]
        values["predict_seconds_per_1000"] = float(np.mean(per_1000))
        calibration = np.mean([result["calibration"] for result in each], axis=0).tolist()
        splits = tuple(sorted(by_split))
        label = LABELS[name] + (", GPU" if any(result.get("device") == "cuda" for result in each) else "")
        rows.append(Row(name, label, values, splits, calibration, set(splits) == every))
    return rows


# -- fronts ----------------------------------------------------------------------------------------


def points_of(rows: Iterable[Row], metric: str) -> dict[str, tuple[float, float]]:
    """Seconds of the fit and loss, of the rows that compete."""
    return {row.name: (row.values["fit_seconds"], row.loss(metric)) for row in rows if row.complete}


def summarise(rows: Mapping[str, list[Row]]) -> dict[str, Any]:
    """For every data set and metric: the front, the best, and where our default stands."""
    summary: dict[str, Any] = {}
    for dataset, each in rows.items():
        summary[dataset] = {}
        for metric in ("rmse", "nlpd"):
            points = points_of(each, metric)
            there = DEFAULT in points
            order = sorted(points, key=lambda name: points[name][1])
            summary[dataset][metric] = {
                "front": front(points),
                "best": order[0] if order else None,
                "default_on_front": not dominators(points, DEFAULT) if there else None,
                "default_dominated_by": dominators(points, DEFAULT) if there else [],
                "default_rank": order.index(DEFAULT) + 1 if there else None,
                "entries": len(points),
            }
    return summary


# -- where others win ------------------------------------------------------------------------------


def beaten_by(rows: list[Row], metric: str) -> list[Row]:
    """The entries of other libraries that are better than our default, the best first."""
    default = next((row for row in rows if row.name == DEFAULT and row.complete), None)
    if default is None or metric not in default.values:
        return []
    better = [row for row in rows if row.complete and not row.ours and row.loss(metric) < default.loss(metric)]
    return sorted(better, key=lambda row: row.loss(metric))


def where_others_win(rows: Mapping[str, list[Row]]) -> list[tuple[str, str, Row, list[Row]]]:
    """Data set, metric, our default, and the entries that are better, where there are any."""
    found = []
    for dataset, each in rows.items():
        for metric in METRICS:
            if better := beaten_by(each, metric):
                found.append((dataset, metric, next(row for row in each if row.name == DEFAULT), better))
    return found
