"""One small table as arrays, as Parquet and CSV files, whole and in parts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prismgp.data import FileSource, from_csv, from_parquet

ODD = (0, 1, 87, 87, 160, 231, 300)  # where the parts begin; one of them is empty


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source is small enough to be kept in memory."""
    monkeypatch.setattr("prismgp.data.sources.KEPT_BYTES", 0)


def table(dtype: str = "float64", n: int = ODD[-1]) -> pd.DataFrame:
    """Three inputs, two of which matter, and a target."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-2, 2, (n, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.1 * rng.standard_normal(n)
    return pd.DataFrame({"a": x[:, 0], "b": 100 + x[:, 1], "c": x[:, 2], "y": y}).astype(dtype)


def write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)


def parts(frame: pd.DataFrame, folder: Path, suffix: str) -> Path:
    """The table in files of odd numbers of rows."""
    folder.mkdir()
    bounds = [*[begin for begin in ODD if begin < len(frame)], len(frame)]
    for index, (begin, end) in enumerate(pairwise(bounds)):
        write(frame.iloc[begin:end], folder / f"part-{index}{suffix}")
    return folder


def as_source(form: str, frame: pd.DataFrame, folder: Path, target: object = "y", **options: object) -> FileSource:
    """The table as a source: "parquet" or "csv", one file, or "... parts", a folder of several."""
    kind, *several = form.split()
    path = folder / f"table.{kind}"
    if several:
        path = parts(frame, folder / f"table-{kind}", f".{kind}")
    else:
        write(frame, path)
    make: Callable[..., FileSource] = from_parquet if kind == "parquet" else from_csv
    return make(path, target, **options)


FORMS = ("parquet", "parquet parts", "csv", "csv parts")
