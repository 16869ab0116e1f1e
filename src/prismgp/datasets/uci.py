"""Small regression sets of the UCI repository: abalone, and those with fixed splits collected by Trefor Evans."""

from __future__ import annotations

import numpy as np
import pandas as pd

from prismgp.datasets.cache import Resource, fetch
from prismgp.datasets.dataset import Dataset, check_fraction, check_seed
from prismgp.exceptions import DataError

__all__ = ["ABALONE", "UCI", "UCI_NAMES", "load_abalone", "load_uci"]

ABALONE = Resource(
    "abalone/abalone.data",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",),
    "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
)
_ABALONE_TRAIN = 3000
_ABALONE_COLUMNS = (
    *("Sex", "Length", "Diameter", "Height"),
    *("Whole weight", "Shucked weight", "Viscera weight", "Shell weight", "Rings"),
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
        The file is not available; the message says what to do.

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
    if frame.shape[1] != len(_ABALONE_COLUMNS):
        raise DataError(f"{path} has {frame.shape[1]} columns, not {len(_ABALONE_COLUMNS)}")
    frame.columns = pd.Index(_ABALONE_COLUMNS)
    sex = pd.get_dummies(frame["Sex"], prefix="Sex", prefix_sep="=", dtype=float)
    n_train = _ABALONE_TRAIN if share is None else len(frame) - int(len(frame) * share)
    test = np.ones(len(frame), dtype=bool)
    test[np.random.default_rng(seed).permutation(len(frame))[:n_train]] = False
    return Dataset(
        name="abalone",
        X=pd.concat([sex, frame[list(_ABALONE_COLUMNS[1:-1])].astype(float)], axis=1),
        y=frame["Rings"].astype(float),
        test=test,
        simulated=False,
        title="Abalone",
        origin="https://archive.ics.uci.edu/dataset/1/abalone",
        licence="CC BY 4.0",
    )


_COLLECTION = "https://github.com/treforevans/uci_datasets"
_HOSTS = ("https://raw.githubusercontent.com", "https://media.githubusercontent.com/media")

_ROWS_SHA256 = {
    "airfoil": "1cce82516ac9e564fba52f55d817eb147fc39085f5d7b958ad15b92f4207f23e",
    "concrete": "542c5d9a0d301bdb47550280398dcbbe2fb8404631fc945de1ea6df9ade741c6",
    "elevators": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "energy": "431b6df04243db782bbcd45e408373a654334496ebe5d9c9985ab2e826a39f51",
    "keggdirected": "51b7bb56e3f3eae36273cdd5a549c042bdf0ec10948a6f8e6b01a1d6912212cd",
    "kin40k": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "pol": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "pumadyn32nm": "10d1698944e0f6e586f2781e4b62c17c05174d4c6cdb6fb824a3e5a1b3630ae4",
}
_MASKS_SHA256 = {
    "airfoil": "dbba6121fb8f900350fe10d724b54faa2b67fcc7bfc3409cf7add717281609e4",
    "concrete": "fae0926c655e4f9fb5669d0dbf2226bd8ff7daaadbd376adb8f32eac6f752e7e",
    "elevators": "9fe662eacca95ae2c9301cbc4c4134e55d58e903cb0cfb683771ffdd2d248eb5",
    "energy": "217df2cd4cabf818390e26a65384ea113c95b75bd687787a37ed2f87f28c9bb8",
    "keggdirected": "b8a7fc902444fdbc5866e8bf314e4778a303d675ef5267c83c5c25b70dacd357",
    "kin40k": "d15fd645d0e81a9a17ce2d0b8dde470bb2efba4d5f417459965abe4b237e2aea",
    "pol": "c5540259aabe58f5c7a534ed6f5141f8c1157d5de592e45884b7fced6091e981",
    "pumadyn32nm": "5a70d06c54813712456b3631ef406094c121a20fdc68b2dd400a1045f45b3f43",
}


def _resource(name: str, file: str, sha256: str) -> Resource:
    addresses = tuple(f"{host}/treforevans/uci_datasets/master/uci_datasets/{name}/{file}" for host in _HOSTS)
    return Resource(f"uci/{name}/{file}", addresses, sha256)


UCI = {
    name: (_resource(name, "data.csv.gz", rows), _resource(name, "test_mask.csv.gz", _MASKS_SHA256[name]))
    for name, rows in _ROWS_SHA256.items()
}
UCI_NAMES = tuple(sorted(UCI))

_REFUSED = {
    "bike": "its inputs determine the target",
    "gas": "it is the gas drift set, not the gas sensor array of the paper; that is load_gas_sensor()",
    "wine": "its target is the alcohol content, not the quality",
}
_NOTES = {
    "keggdirected": "32,486 rows are duplicates of others, so training and held-out rows of a split share rows.",
}


def load_uci(name: str, split: int = 0) -> Dataset:
    """One of the small regression sets with ten fixed splits.

    Inputs are called ``x1``, ``x2`` and so on, as the collection has no names; the target is centred.

    Parameters
    ----------
    name : {"airfoil", "concrete", "elevators", "energy", "keggdirected", "kin40k", "pol", "pumadyn32nm"}
    split : int from 0 to 9, default 0
        A tenth of the rows is held out; every row is in one of the ten splits.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        The set is unknown or refused, or its files are not available; the message says what to do.

    Examples
    --------
    >>> from prismgp.datasets import load_uci
    >>> load_uci("kin40k", split=3)  # doctest: +SKIP
    <Dataset kin40k: 40,000 rows (4,000 held out), 8 inputs, target 'y'>
    """
    if name in _REFUSED:
        raise DataError(f"the collection's {name!r} is left out: {_REFUSED[name]}")
    if name not in UCI:
        raise DataError(f"no data set {name!r}: there are {', '.join(UCI_NAMES)}")
    column = check_seed("split", split)
    rows, masks = (fetch(resource) for resource in UCI[name])
    table = pd.read_csv(rows, header=None).to_numpy(dtype=float)
    mask = pd.read_csv(masks, header=None).to_numpy()
    if len(mask) != len(table):
        raise DataError(f"{masks} has {len(mask):,} rows, {rows} has {len(table):,}")
    if column >= mask.shape[1]:
        raise DataError(f"split must be from 0 to {mask.shape[1] - 1}, not {column}")
    inputs = [f"x{number}" for number in range(1, table.shape[1])]
    return Dataset(
        name=name,
        X=pd.DataFrame(table[:, :-1], columns=inputs),
        y=pd.Series(table[:, -1], name="y"),
        test=mask[:, column].astype(bool),
        simulated=False,
        title=f"{name}, of the common UCI regression sets",
        origin=_COLLECTION,
        licence="the collection: MIT; its sets: see their own pages",
        note=_NOTES.get(name, ""),
    )
