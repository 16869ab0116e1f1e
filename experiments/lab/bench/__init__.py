"""PrismGP and its peers side by side: the same rows, splits, units and threads, one process for each fit.

``_entries`` is the plan in one table, ``peers`` has one module for each library.
"""

from experiments.lab.bench._data import DATASETS
from experiments.lab.bench._entries import DEFAULT, ENTRIES, LABELS, Entry, known_names, select
from experiments.lab.bench._page import page, write_outputs
from experiments.lab.bench._plan import AGREEMENT, Options, Plan, make_plan, outcome, remember

__all__ = [
    "AGREEMENT",
    "DATASETS",
    "DEFAULT",
    "ENTRIES",
    "LABELS",
    "Entry",
    "Options",
    "Plan",
    "known_names",
    "make_plan",
    "outcome",
    "page",
    "remember",
    "select",
    "write_outputs",
]
