"""A data set with its split and its provenance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prismgp.exceptions import DataError


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A regression data set.

    Attributes
    ----------
    name : str
    X : DataFrame, (n, d)
        Inputs, all numbers.
    y : Series, (n,)
        Target.
    test : ndarray of bool, (n,)
        The rows that are held out.
    simulated : bool
        Whether the rows were computed, not measured.
    title : str
    origin : str
        Address of the data's home page; empty for simulated data.
    licence : str
        As stated by the origin.
    note : str
        Limitations of the data.
    """

    name: str
    X: pd.DataFrame
    y: pd.Series[float]
    test: npt.NDArray[np.bool_]
    simulated: bool
    title: str
    origin: str
    licence: str
    note: str = ""

    @property
    def X_train(self) -> pd.DataFrame:  # noqa: N802  scikit-learn's name for it
        """Inputs of the training rows."""
        return self.X.loc[~self.test]

    @property
    def y_train(self) -> pd.Series[float]:
        """Target of the training rows."""
        return self.y.loc[~self.test]

    @property
    def X_test(self) -> pd.DataFrame:  # noqa: N802  scikit-learn's name for it
        """Inputs of the held-out rows."""
        return self.X.loc[self.test]

    @property
    def y_test(self) -> pd.Series[float]:
        """Target of the held-out rows."""
        return self.y.loc[self.test]

    def __repr__(self) -> str:
        kind = "simulated, " if self.simulated else ""
        rows = f"{len(self.y):,} rows ({int(self.test.sum()):,} held out), {self.X.shape[1]} inputs"
        return f"<Dataset {self.name}: {kind}{rows}, target {self.y.name!r}>"


def held_out(n_rows: int, share: float, seed: int | list[int]) -> npt.NDArray[np.bool_]:
    """Choose a random share of the rows, (n,)."""
    test = np.zeros(n_rows, dtype=bool)
    test[np.random.default_rng(seed).permutation(n_rows)[: int(n_rows * share)]] = True
    return test


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Check a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise DataError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def check_fraction(name: str, value: Any) -> float:
    """Check a number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating) or not 0 < value < 1:
        raise DataError(f"{name} must be between 0 and 1, not {value!r}")
    return float(value)
