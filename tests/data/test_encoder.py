"""The encoder of tables: what it learns, encodes, and writes to model files."""

from __future__ import annotations

import copy
import json
import tempfile
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prismgp.data import TableEncoder, open_tables
from prismgp.data.scan import learn_encoder
from prismgp.exceptions import DataError, ModelFileError

TABLE = pa.table(
    {
        "number": [1, 2, 3],
        "text": ["b", "a", "b"],
        "money": pa.array([Decimal("1.50"), Decimal("2.25"), Decimal("3.00")]),
        "flag": [True, False, True],
        "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
        "code": [7, 10, 7],
        "y": [1.0, 2.0, 3.0],
    }
)
NAMES = ["number", "text=a", "text=b", "money", "flag", "kind=u", "kind=v", "code=10", "code=7"]
VALUES = [[1, 0, 1, 1.5, 1, 1, 0, 0, 1], [2, 1, 0, 2.25, 0, 0, 1, 1, 0], [3, 0, 1, 3, 1, 1, 0, 0, 1]]


def learned(table: pa.Table, **options: Any) -> TableEncoder:
    """The encoder of a table in a file."""
    with tempfile.TemporaryDirectory() as folder:
        pa.parquet.write_table(table, f"{folder}/table.parquet")
        return learn_encoder(open_tables(f"{folder}/table.parquet"), ["y"], **options)[0]


def test_kinds_and_names() -> None:
    encoder = learned(TABLE, categorical=["code"])
    values, _, unseen = encoder.encode(TABLE)
    assert encoder.feature_names == NAMES
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, VALUES)
    assert unseen == {}
    for batch in TABLE.to_batches(max_chunksize=1):
        row = batch.column("number")[0].as_py() - 1
        np.testing.assert_array_equal(encoder.encode(batch)[0], VALUES[row : row + 1])


def test_order_of_columns_and_additional_ones_do_not_matter() -> None:
    encoder = learned(TABLE, categorical=["code"])
    shuffled = TABLE.select(TABLE.column_names[::-1]).append_column("more", pa.array([[1], [2], [3]]))
    np.testing.assert_array_equal(encoder.encode(shuffled)[0], VALUES)


def test_unseen_and_missing() -> None:
    encoder = learned(TABLE, columns=["text", "number"])
    table = pa.table({"text": ["c", "a", None, "d"], "number": [1.0, np.nan, 3.0, np.inf]})
    encoded = encoder.encode(table)
    assert encoded.unseen == {"text": 2}
    assert encoded.missing == {"text": 1, "number": 2}
    assert np.isfinite(encoded.values).all(axis=1).tolist() == [True, False, False, False]
    assert encoded.values[0].tolist() == [0, 0, 1]
    with pytest.raises(DataError, match=r"columns 'text' \(1\), 'number' \(2\)"):
        encoder.encode_frame(table)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_type_of_text(kind: Any) -> None:
    table = pa.table({"t": pa.array(["x", "y", "x"], kind), "y": [1.0, 2.0, 3.0]})
    encoder = learned(table)
    np.testing.assert_array_equal(encoder.encode(table)[0], [[1, 0], [0, 1], [1, 0]])


def test_numbers_as_text_at_prediction() -> None:
    encoder = learned(TABLE, columns=["number", "flag"])
    table = pa.table({"number": [" 1.5", "-2e1"], "flag": ["TRUE", "0"]})
    np.testing.assert_array_equal(encoder.encode(table)[0], [[1.5, 1], [-20, 0]])
    for wrong in ("1,5", "0x10", "1_000", "one", "--1"):
        with pytest.raises(DataError, match="'number' holds"):
            encoder.encode(pa.table({"number": [wrong], "flag": ["1"]}))


def test_wrong_types_at_prediction() -> None:
    encoder = learned(TABLE, columns=["number", "text"])
    with pytest.raises(DataError, match="'text' holds double; the model learned it as text"):
        encoder.encode(pa.table({"number": [1], "text": [1.0]}))
    with pytest.raises(DataError, match="'number' holds date32"):
        encoder.encode(pa.table({"number": pa.array([1], pa.date32()), "text": ["a"]}))
    with pytest.raises(DataError, match="input column missing: 'text'"):
        encoder.encode(pa.table({"number": [1]}))


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.data())
def test_encoding_survives_json(texts: list[str], data: st.DataObject) -> None:
    """Any categories, in any number: the description read back encodes alike."""
    cells = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=12))
    table = pa.table({"t": cells, "y": np.arange(len(cells), dtype=float)})
    encoder = learned(table, categorical=["t"])
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    values, _, unseen = again.encode(table)
    assert unseen == {}
    decoded = [again.columns[0].categories[code] for code in values.argmax(axis=1)]
    assert decoded == cells
    assert (values.sum(axis=1) == 1).all()


def damaged() -> list[Any]:
    good = learned(TABLE).to_dict()

    def column(**changes: Any) -> dict[str, Any]:
        result = copy.deepcopy(good)
        result["columns"][1].update(changes)
        return result

    return [
        None,
        [],
        "table",
        {},
        {"columns": good["columns"]},
        {**good, "extra": 1},
        {**good, "target": 3},
        {**good, "target": "\ud800"},
        {**good, "target": "number"},
        {**good, "columns": []},
        {**good, "columns": {}},
        {**good, "columns": None},
        {**good, "columns": [1]},
        {**good, "columns": [{"name": "a"}]},
        {**good, "columns": good["columns"] * 2},
        column(name=1),
        column(name="number"),
        column(name="\udfff"),
        column(kind="date"),
        column(kind=["category"]),
        column(kind="number"),
        column(kind=None),
        column(categories=[]),
        column(categories="ab"),
        column(categories=["b", "a"]),
        column(categories=["a", "a"]),
        column(categories=["a", 1]),
        column(categories=[["a"]]),
        column(extra=1),
    ]


@pytest.mark.parametrize("data", damaged())
def test_malformed_descriptions_are_refused(data: Any) -> None:
    with pytest.raises(ModelFileError):
        TableEncoder.from_dict(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "kind", "categories", "target", "columns"]), inner)
    ),
)


@given(json_values)
def test_arbitrary_descriptions_never_fail_otherwise(data: Any) -> None:
    try:
        encoder = TableEncoder.from_dict(data)
    except ModelFileError:
        return
    assert encoder.to_dict() == data
