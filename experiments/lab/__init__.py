"""Experiments people can repeat: runs with their results on disk, the paper's experiments, and comparisons.

A *run* is a folder: ``run.json`` says what was asked for, ``results/KEY.json`` holds one finished piece of work each.
Pieces are carried out in processes of their own, and a run that was stopped goes on where it was.
"""

from experiments.lab._folder import RunFolder, Store
from experiments.lab._jobs import Job, Limits, carry_out
from experiments.lab._provenance import provenance
from experiments.lab._scores import LEVELS, scores

__all__ = ["LEVELS", "Job", "Limits", "RunFolder", "Store", "carry_out", "provenance", "scores"]
