"""Whether more frequencies ever hurt: the default PrismGP with p = 16 to 256, five seeds, three data sets.

Every seed draws rows, networks and frequencies; all p of a seed have the same rows, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from experiments.benchmarks.suite import Run, Suite, closing, describe, select_failed, select_finished
from experiments.page import errors_of_chance, markdown_table
from experiments.plan import Experiment
from experiments.results import Record, Study

__all__ = ["FREQUENCIES_OF_PRISM", "SUITE", "largest_rise"]

FREQUENCIES = (16, 32, 64, 128, 256)
SEEDS = range(5)
SUITE = Suite(
    name="frequencies",
    models=("prism",),
    splits=lambda _: SEEDS,
    frequencies=lambda _: FREQUENCIES,
    datasets=("gas10k", "elevators", "kin40k"),
)
_READINGS = {"with neighbours": "whole", "without": "spectrum"}  # which scores of a result; the whole are its own
_SCORES = {"rmse": "RMSE", "nlpd": "NLPD"}
_CHANCE = errors_of_chance(len(SEEDS))
INTRODUCTION = (
    "Means over five seeds of RMSE and NLPD of a normal distribution, all settings but p the defaults. *Largest rise*: "
    "from the best of the smaller p to a larger one, mean of the five differences and their standard error; it is "
    f"beyond chance where it exceeds {_CHANCE:.2f} standard errors. Without neighbours: of the same "
    "fits. Made by `python -m experiments frequencies`."
)


class Rise(NamedTuple):
    """How much worse a score gets from one p to a larger one."""

    mean: float
    error: float  # standard error of the mean
    smaller: int
    larger: int

    @property
    def is_chance(self) -> bool:
        return self.mean <= _CHANCE * self.error


def largest_rise(values: dict[int, np.ndarray]) -> Rise | None:
    """The largest rise, in standard errors, of scores by p, (seeds,), from the best mean of the smaller p."""
    found = []
    for p in sorted(values)[1:]:
        best = min((other for other in values if other < p), key=lambda other: float(values[other].mean()))
        differences = values[p] - values[best]
        error = float(differences.std(ddof=1) / np.sqrt(len(differences)))
        found.append(Rise(float(differences.mean()), error, best, p))
    return max(found, key=lambda each: each.mean / max(each.error, 1e-300), default=None)


def scores(done: dict[Run, Record], dataset: str, reading: str, name: str) -> dict[int, np.ndarray]:
    """A score by p, (seeds,), of the seeds that all p have; a fit that refused neighbours has one reading."""
    have = [seed for seed in SEEDS if all(Run(dataset, seed, "prism", p) in done for p in FREQUENCIES)]
    if len(have) < 2:
        return {}
    records = {p: [done[Run(dataset, seed, "prism", p)] for seed in have] for p in FREQUENCIES}
    return {p: np.array([each.get(reading, each)[name] for each in found]) for p, found in records.items()}


def rows_of(done: dict[Run, Record]) -> Iterator[list[str]]:
    for dataset in SUITE.datasets:
        for label, reading in _READINGS.items():
            for name, title in _SCORES.items():
                values = scores(done, dataset, reading, name)
                rise = largest_rise(values)
                if rise is None:
                    yield [dataset, label, title, *("not run" for _ in FREQUENCIES), "", ""]
                    continue
                text = f"{rise.mean:+.4f} ± {rise.error:.4f} ({rise.smaller} to {rise.larger})"
                means = (f"{each.mean():.4f}" for each in values.values())
                yield [dataset, label, title, *means, text, "chance" if rise.is_chance else "**beyond chance**"]


def markdown(study: Study) -> str:
    """One table."""
    plan = SUITE.runs()
    done = select_finished(study, plan)
    header = ["data set", "", "score", *(f"p = {p}" for p in FREQUENCIES), "largest rise", ""]
    lines = [
        "# More frequencies",
        "",
        INTRODUCTION,
        "",
        markdown_table(header, rows_of(done)),
        "",
        *closing(plan, done, select_failed(study, plan), made=done.values()),
    ]
    return "\n".join(lines)


FREQUENCIES_OF_PRISM = Experiment(
    kind="frequencies",
    summary="whether more frequencies ever make PrismGP worse: p = 16 to 256, five seeds, three data sets",
    add_options=SUITE.add_options,
    make_plan=SUITE.make_plan,
    describe=describe,
    markdown=markdown,
)
