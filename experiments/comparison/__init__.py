"""PrismGP and other libraries side by side: the same rows, splits, units and threads, one process for each fit.

``entries`` is the plan in one table, ``peers`` has one module for each library.
"""

from __future__ import annotations

from experiments.comparison.agreement import disagreements
from experiments.comparison.data import DATASETS
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS
from experiments.comparison.figures import figures
from experiments.comparison.page import page
from experiments.comparison.plan import AGREEMENT, add_options, describe, make_plan
from experiments.comparison.tables import markdown
from experiments.plan import Experiment
from experiments.results import Study

__all__ = ["AGREEMENT", "BENCH", "DATASETS", "DEFAULT", "ENTRIES", "LABELS"]


def _complain(study: Study) -> list[str]:
    found = study.get(AGREEMENT)
    return [] if found is None else [f"DISAGREEMENT: {line}" for line in disagreements(found)]


BENCH = Experiment(
    kind="bench",
    summary="compare with other libraries on the same data sets, one process for each fit",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
    page=page,
    complain=_complain,
)
