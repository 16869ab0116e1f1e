"""From results to numbers: means over runs, curves and rows of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.internals import Array
from experiments.machine import format_bytes
from experiments.page import best_cells
from experiments.paper.plan import EXPERIMENTS, MODELS

__all__ = [
    "HEADER",
    "Group",
    "best_scores",
    "groups",
    "over_iterations",
    "over_time",
    "published_of",
    "published_rows",
    "table_rows",
]

_TIME_POINTS = 48
SCORES = ("RMSE", "NLPD")
HEADER = ["Model", "p", "Runs", "RMSE", "NLPD", "95% intervals cover", "Fit, s", "Predict, s", "Peak memory"]


@dataclass(frozen=True)
class Group:
    """The results of one model at one p, by run."""

    model: str
    p: int | None
    results: dict[int, dict[str, Any]]

    @property
    def label(self) -> str:
        return MODELS[self.model] if self.p is None else f"{MODELS[self.model]}, p = {self.p}"

    def mean(self, name: str) -> float:
        return float(np.mean([result[name] for result in self.results.values()]))

    @property
    def devices(self) -> set[str]:
        """Where the fits were made; times of different devices do not compare."""
        return {str(result.get("device") or "cpu") for result in self.results.values()}

    def error(self, name: str) -> float | None:
        """Standard error of the mean; None for one run."""
        values = [result[name] for result in self.results.values()]
        return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def groups(results: Mapping[str, dict[str, Any]]) -> dict[tuple[str, int | None], Group]:
    """Finished fits by model and p, in the order of tables."""
    found: dict[tuple[str, int | None], Group] = {}
    fits = [result for result in results.values() if result.get("kind") == "fit" and "failed" not in result]
    order = list(MODELS)
    for result in sorted(fits, key=lambda each: (order.index(each["model"]), each["p"] or 0, each["run"])):
        key = (result["model"], result["p"])
        found.setdefault(key, Group(*key, {})).results[result["run"]] = result
    return found


# -- curves ----------------------------------------------------------------------------------------


def course(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The points of a fit; of a network that starts from a fitted SSGP, those from there on."""
    points: list[dict[str, Any]] = result["curve"]
    networks = [k for k, point in enumerate(points) if point["stage"].startswith("member")]
    return points[max(networks[0] - 1, 0) :] if networks else points


def over_iterations(group: Group, score: str) -> tuple[Array, Array, Array, Array]:
    """Iterations counted from 1, mean score, and mean minus and plus one standard deviation over the runs."""
    grid = sorted({point["iteration"] for result in group.results.values() for point in course(result)})
    x = np.array(grid, dtype=np.float64)
    return (x + 1.0, *_band(group, "iteration", score, x))


def over_time(group: Group, score: str) -> tuple[Array, Array, Array, Array]:
    """Seconds, mean score, and mean minus and plus one standard deviation; from where all runs have a score."""
    curves = [course(result) for result in group.results.values()]
    low = max(max(curve[0]["seconds"] for curve in curves), 1e-3)
    high = max(curve[-1]["seconds"] for curve in curves)
    if high <= low:
        x = np.array([high])
    else:
        own = [point["seconds"] for curve in curves for point in curve if low <= point["seconds"] <= high]
        x = np.unique([*own, low, high]) if len(curves) == 1 else np.geomspace(low, high, _TIME_POINTS)
    return (x, *_band(group, "seconds", score, x))


def _band(group: Group, along: str, score: str, x: Array) -> tuple[Array, Array, Array]:
    """Every run holds its last score until it has a new one, and its final score after its end."""
    rows = []
    for result in group.results.values():
        places = np.array([point[along] for point in course(result)], dtype=np.float64)
        values = np.array([point[score] for point in course(result)])
        index = np.searchsorted(places, x * (1 + 1e-12), side="right") - 1
        rows.append(values[np.maximum(index, 0)])
    mean, spread = np.mean(rows, axis=0), np.std(rows, axis=0)
    return mean, mean - spread, mean + spread


# -- tables ----------------------------------------------------------------------------------------


def table_rows(found: Mapping[Any, Group]) -> list[list[str]]:
    """One row for each model and p, under ``HEADER``."""
    rows = []
    for group in found.values():
        rows.append(
            [
                MODELS[group.model],
                "" if group.p is None else str(group.p),
                str(len(group.results)),
                _with_error(group, "rmse"),
                _with_error(group, "nlpd"),
                f"{100 * group.mean('coverage'):.1f}%",
                f"{group.mean('fit_seconds'):.1f}",
                f"{group.mean('predict_seconds'):.2f}",
                format_bytes(int(group.mean("peak_bytes"))),
            ]
        )
    return rows


def best_scores(found: Mapping[Any, Group]) -> frozenset[tuple[int, int]]:
    """Row and column of the least RMSE and NLPD of the table, to the digits shown."""
    scores = {HEADER.index(name): [round(group.mean(name.lower()), 4) for group in found.values()] for name in SCORES}
    return best_cells(scores)


def _with_error(group: Group, name: str) -> str:
    error = group.error(name)
    return f"{group.mean(name):.4f}" + ("" if error is None else f" ± {error:.4f}")


def published_of(options: Mapping[str, Any]) -> tuple[tuple[str, int | None, float], ...]:
    """Errors read off the authors' plots, where the data are theirs: model, p, RMSE."""
    about = EXPERIMENTS[options["experiment"]]
    return () if options["simulated"] or options["rows"] != about.rows else about.published


def published_rows(found: Mapping[Any, Group], options: Mapping[str, Any]) -> list[list[str]]:
    """Our errors beside the published ones: model, ours, theirs."""
    rows: list[list[str]] = []
    for model, p, rmse in published_of(options):
        group = found.get((model, p))
        if group is not None:
            name = MODELS[model] if p is None else f"{MODELS[model]}, p = {p}"
            rows.append([name, _with_error(group, "rmse"), f"{rmse:.3f}"])
    return rows
