"""The one reader of tables: rows, their numbers, and reports on missing and unseen cells."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp.data import ArraySource, InputColumn, TableEncoder, TableReader, open_tables
from prismgp.exceptions import DataError, ModelFileError

ENCODER = TableEncoder((InputColumn("a", "number"), InputColumn("k", "category", ("u", "v"))), "y")
COLUMNS = {
    "id": ["p", "q", "r", "s", "t"],
    "a": [1.0, None, 3.0, 4.0, 5.0],
    "k": ["u", "v", "w", None, "v"],
    "y": [1.0, 2.0, 3.0, 4.0, 5.0],
}


def write(folder: Path, kind: str, columns: dict[str, Any] = COLUMNS) -> Any:
    path = folder / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = zip(*columns.values(), strict=True)
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        path.write_text("\n".join(",".join(row) for row in [list(columns), *cells]) + "\n")
    return open_tables(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("all_columns", [False, True])
def test_complete_rows_and_where_they_are(kind: str, all_columns: bool, tmp_path: Path) -> None:
    reader = TableReader(write(tmp_path, kind), ENCODER, ["y"], missing="drop")
    blocks = list(pickle.loads(pickle.dumps(reader)).blocks(2, all_columns=all_columns))
    assert np.floor(np.concatenate([block.x for block in blocks])).tolist() == [[1, 0], [3, -1], [5, 1]]
    assert np.concatenate([block.y for block in blocks]).tolist() == [[1], [3], [5]]
    assert np.concatenate([block.first_row + block.positions for block in blocks]).tolist() == [0, 2, 4]
    assert sum(block.table.num_rows for block in blocks) == 5
    for block in blocks:
        assert set(block.table.column_names) == (set(COLUMNS) if all_columns else {"a", "k", "y"})
    if all_columns:
        assert [block.table.num_rows for block in blocks] == [2, 2, 1]
    list(reader.blocks(2))
    assert reader.rows_read == 5
    assert reader.missing_cells == {"a": 1, "k": 1}
    assert reader.unseen == {"k": 1}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_all_missing_cells_are_counted_before_the_error(kind: str, tmp_path: Path) -> None:
    reader = TableReader(
        write(tmp_path, kind, {**COLUMNS, "y": [1.0, 2.0, None, None, 5.0]}), ENCODER, ["y"], missing="error"
    )
    found = []
    with pytest.raises(DataError, match=rf"t\.{kind}: missing .* columns 'a' \(1\), 'k' \(1\), 'y' \(2\);"):
        found.extend(block.table.num_rows for block in reader.blocks(1, all_columns=True))
    assert found == [1]  # none after the first missing cell


def test_bad_cells_are_named_with_their_rows(tmp_path: Path) -> None:
    files = write(tmp_path, "csv", {**COLUMNS, "a": [1, 2, "three", 4, 5]})
    with pytest.raises(DataError, match=r"column 'a' holds 'three' in row 3 "):
        list(TableReader(files, ENCODER).blocks(2))


def test_encoders_of_models(tmp_path: Path) -> None:
    files = write(tmp_path, "parquet")
    learned = ENCODER.learn(ArraySource(np.array([[1.0, 0.2], [2.0, 1.2]]), np.zeros((2, 1))))
    assert TableReader.for_model(files, learned, ["a", "k=u", "k=v"]).encoder is learned
    assert TableReader.for_model(files, None, ["y", "a"]).encoder.input_names == ["y", "a"]
    assert TableReader.for_model(files, None, 3, ignore=["y"]).encoder.input_names == ["id", "a", "k"]
    with pytest.raises(DataError, match=r"has 2 inputs without names, .* it has 4"):
        TableReader.for_model(files, None, 2)
    with pytest.raises(DataError, match=r"t\.parquet: input columns 'b', 'c' missing; the file has 'id', 'a'"):
        TableReader.for_model(files, None, ["b", "c"])
    with pytest.raises(ModelFileError, match="does not fit its inputs"):
        TableReader.for_model(files, learned, ["a"])
