"""Files that change, vanish or are damaged while they are in use."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sklearn.exceptions import NotFittedError

from prismgp import SSGPRegressor
from prismgp.data import TableReader, from_csv, from_parquet
from prismgp.exceptions import DataError

from .conftest import as_source, table

pytestmark = pytest.mark.usefixtures("streaming")


def touch(path: Path) -> None:
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"1,2,3,4\n" if path.suffix == ".csv" else b"more")


CHANGES = [
    (Path.unlink, "the file was removed while it was in use; it is read several times"),
    (touch, "the file has changed while it was in use"),
    (append, "the file has changed while it was in use"),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
@pytest.mark.parametrize("form", ["parquet parts", "csv parts"])
@pytest.mark.parametrize("midway", [False, True])
def test_a_file_changes(change: Callable[[Path], None], expected: str, form: str, midway: bool, tmp_path: Path) -> None:
    """Between two passes, or in the middle of one; the estimator is unfitted after it."""
    frame = table()
    source = as_source(form, frame, tmp_path)
    kind = form.split()[0]
    path = tmp_path / f"table-{kind}/part-4.{kind}"
    model = SSGPRegressor(4, optimize=False, chunk_size=64).fit(source)
    if midway:
        passes = source.blocks(16)
        for _ in range(12):  # within the file
            next(passes)
        change(path)
        with pytest.raises(DataError, match=rf"part-4\.\w+: {expected}"):
            list(passes)
    else:
        change(path)
    with pytest.raises(DataError, match=rf"part-4\.\w+: {expected}"):
        model.predict(source)
    before = model.log_evidence_
    with pytest.raises(DataError, match=expected):
        model.partial_fit(source)
    assert model.log_evidence_ == before  # nothing of it was added
    with pytest.raises(DataError, match=expected):
        model.fit(source)
    with pytest.raises(NotFittedError):
        model.predict(frame[["a", "b", "c"]])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prismgp-read-ahead")]


def test_rows_appended_while_all_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check at the start of the pass and the first row."""
    source = as_source("csv", table(), tmp_path)
    open_csv = pyarrow.csv.open_csv

    def growing(*args: Any, **options: Any) -> Any:
        with (tmp_path / "table.csv").open("a") as file:
            file.write("1,2,3,4\n" * 10)
        return open_csv(*args, **options)

    monkeypatch.setattr("pyarrow.csv.open_csv", growing)
    with pytest.raises(DataError, match="has changed"):
        source.load()


def test_a_fit_that_loses_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some passes, in the thread that reads ahead."""
    source = as_source("parquet", table(), tmp_path)
    blocks, passes = TableReader.blocks, []

    def counted(self: TableReader, rows: int) -> Any:
        passes.append(rows)
        if len(passes) == 4:
            (tmp_path / "table.parquet").unlink()
        return blocks(self, rows)

    monkeypatch.setattr(TableReader, "blocks", counted)
    model = SSGPRegressor(4, max_iter=5)
    with pytest.raises(DataError, match=r"table\.parquet: the file was removed"):
        model.fit(source)
    assert len(passes) == 4
    assert not model.__sklearn_is_fitted__()


def damaged(path: Path, **options: Any) -> None:
    """Zeros in the middle of a row group."""
    rng = np.random.default_rng(0)
    columns = {"a": rng.standard_normal(4_000), "y": rng.standard_normal(4_000)}
    pq.write_table(pa.table(columns), path, row_group_size=1_000, use_dictionary=False, **options)
    data = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(2).column(0)
    middle = group.data_page_offset + group.total_compressed_size // 2
    data[middle : middle + 40] = bytes(40)
    path.write_bytes(data)


@pytest.mark.parametrize("options", [{"write_page_checksum": True}, {"compression": "gzip"}])
def test_a_damaged_row_group(options: Any, tmp_path: Path) -> None:
    damaged(tmp_path / "t.parquet", **options)
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        from_parquet(tmp_path / "t.parquet", "y")  # counts the rows that have a target
    source = from_parquet(tmp_path / "t.parquet", "y", missing="error")
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        list(source.blocks(100))
    model = SSGPRegressor(4)
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        model.fit(source)
    assert not model.__sklearn_is_fitted__()


@pytest.mark.parametrize("keep", [3, 60, 0.5, 0.999])
def test_a_truncated_file(keep: float, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.arange(1000.0), "y": np.arange(1000.0)}), tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(data[: int(keep * len(data)) if keep < 1 else int(keep)])
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read"):
        from_parquet(tmp_path / "t.parquet", "y")
    (tmp_path / "t.csv.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00")
    with pytest.raises(DataError, match=r"t\.csv\.gz"):
        from_csv(tmp_path / "t.csv.gz", "y")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_must_not_be_read(tmp_path: Path) -> None:
    source = as_source("csv", table(), tmp_path)
    (tmp_path / "table.csv").chmod(0)
    with pytest.raises((PermissionError, DataError)):
        list(source.blocks(10))
    with pytest.raises(PermissionError):
        from_csv(tmp_path / "table.csv", "y")
