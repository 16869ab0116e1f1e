"""A table, the same table as files, and a cluster of two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("distributed", reason="dask and distributed are not installed")

INPUTS = ["a", "b", "c"]


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=600)
    return pd.DataFrame(X, columns=INPUTS).assign(y=y)


@pytest.fixture(scope="session")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet files of unequal lengths, several row groups each."""
    path = tmp_path_factory.mktemp("parts")
    for number, (start, stop) in enumerate([(0, 160), (160, 440), (440, 600)]):
        frame[start:stop].to_parquet(path / f"part-{number}.parquet", row_group_size=120, index=False)
    return path


@pytest.fixture(scope="session")
def cluster() -> Any:
    from distributed import LocalCluster

    with LocalCluster(processes=True, n_workers=2, threads_per_worker=1, dashboard_address=":0") as made:
        yield made


@pytest.fixture
def client(cluster: Any) -> Any:
    from distributed import Client

    with Client(cluster, set_as_default=True) as made:
        yield made


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row group a shard."""
    monkeypatch.setattr("prismgp.data.dask.SHARD_ROWS", 1)
