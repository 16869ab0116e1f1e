"""The data sets of the comparison: every library gets the same split in the same units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from experiments.internals import Array
from prismgp import datasets

__all__ = ["DATASETS", "MOST_TEST_ROWS", "Rows", "Shape", "load", "prepare"]

MOST_TEST_ROWS = 100_000  # a random choice of more; the exact GPs would predict for hours
_SIMULATED_ROWS = 5_000
_QUICK_ROWS = 400


@dataclass(frozen=True)
class Shape:
    """What a plan must know before the data is read.

    Attributes
    ----------
    rows : int
        For training, to within a few.
    inputs : int
    splits : int
        How many splits the comparison takes when it is not told: three below 100,000 rows, one above.
    default : bool
        Whether the data set is taken when none is named.
    """

    rows: int
    inputs: int
    splits: int = 3
    default: bool = True


DATASETS: dict[str, Shape] = {
    "energy": Shape(691, 8),
    "concrete": Shape(927, 8),
    "airfoil": Shape(1_353, 5),
    "abalone": Shape(3_000, 10),
    "simulated": Shape(4_000, 18, 1, default=False),
    "pumadyn32nm": Shape(7_373, 32),
    "pol": Shape(13_500, 26),
    "elevators": Shape(14_939, 18),
    "kin40k": Shape(36_000, 8),
    "keggdirected": Shape(43_944, 20),
    "beijing": Shape(344_115, 15, 1),
    "flights": Shape(2_698_944, 8, 1),
}


class Rows(NamedTuple):
    """A split in units of the training rows' standard deviations, (n, d), (n,), (k, d), (k,)."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


def load(name: str, split: int) -> datasets.Dataset:
    """Load the data set with its split."""
    if name == "abalone":
        return datasets.load_abalone(split)
    if name == "beijing":
        return datasets.load_beijing_pm25(split)
    if name == "flights":
        return datasets.load_flights(split)
    if name == "simulated":
        return datasets.make_gas_sensor(_SIMULATED_ROWS, split)
    return datasets.load_uci(name, split)


def prepare(data: Any, *, seed: int, quick: bool = False) -> Rows:
    """Standardise by the training rows; a random choice of very many test rows."""
    rng = np.random.default_rng([seed, 1])
    X, y = np.asarray(data.X_train, dtype=np.float64), np.asarray(data.y_train, dtype=np.float64)
    X_test, y_test = np.asarray(data.X_test, dtype=np.float64), np.asarray(data.y_test, dtype=np.float64)
    if quick:
        some = rng.permutation(len(y))[:_QUICK_ROWS]
        X, y = X[some], y[some]
    if len(y_test) > (most := _QUICK_ROWS if quick else MOST_TEST_ROWS):
        some = rng.permutation(len(y_test))[:most]
        X_test, y_test = X_test[some], y_test[some]
    shift, scale = X.mean(0), X.std(0)
    scale[scale == 0] = 1.0  # a column that never varies stays one
    centre, spread = y.mean(), y.std() or 1.0
    return Rows((X - shift) / scale, (y - centre) / spread, (X_test - shift) / scale, (y_test - centre) / spread)
