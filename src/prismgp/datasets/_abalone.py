"""Abalone: the age of shellfish from their measures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from prismgp.datasets._dataset import Dataset, check_fraction, check_seed
from prismgp.datasets._resources import Resource, fetch
from prismgp.exceptions import DataError

__all__ = ["ABALONE", "load_abalone"]

ABALONE = Resource(
    "abalone/abalone.data",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",),
    "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
)
_N_TRAIN = 3000
_COLUMNS = (
    "Sex",
    "Length",
    "Diameter",
    "Height",
    "Whole weight",
    "Shucked weight",
    "Viscera weight",
    "Shell weight",
    "Rings",
)


def load_abalone(split: int = 0, *, test_fraction: float | None = None) -> Dataset:
    """Abalone, UCI 1: rings of 4,177 shells from sex and seven measures.

    Sex becomes three indicator columns, so there are ten inputs.

    Parameters
    ----------
    split : int, default 0
        Seed of the random split.
    test_fraction : float or None, default None
        Share of the rows that is held out. None: all but 3,000 rows, the split of this project's benchmarks.
        0.2 is the paper's 8-2 split.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The file cannot be had; the message says what to do.

    Examples
    --------
    >>> from prismgp.datasets import load_abalone
    >>> data = load_abalone(test_fraction=0.2)  # doctest: +SKIP
    >>> data  # doctest: +SKIP
    <Dataset abalone: 4,177 rows (835 held out), 10 inputs, target 'Rings'>
    """
    seed = check_seed("split", split)
    share = None if test_fraction is None else check_fraction("test_fraction", test_fraction)
    path = fetch(ABALONE)
    frame = pd.read_csv(path, header=None)
    if frame.shape[1] != len(_COLUMNS):
        raise DataError(f"{path} has {frame.shape[1]} columns, not {len(_COLUMNS)}")
    frame.columns = pd.Index(_COLUMNS)
    sex = pd.get_dummies(frame["Sex"], prefix="Sex", prefix_sep="=", dtype=float)
    n_train = _N_TRAIN if share is None else len(frame) - int(len(frame) * share)
    test = np.ones(len(frame), dtype=bool)
    test[np.random.default_rng(seed).permutation(len(frame))[:n_train]] = False
    return Dataset(
        name="abalone",
        X=pd.concat([sex, frame[list(_COLUMNS[1:-1])].astype(float)], axis=1),
        y=frame["Rings"].astype(float),
        test=test,
        simulated=False,
        title="Abalone",
        origin="https://archive.ics.uci.edu/dataset/1/abalone",
        licence="CC BY 4.0",
    )
