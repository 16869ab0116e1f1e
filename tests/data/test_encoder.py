"""The encoder of tables: what it learns, encodes, and writes to model files."""

from __future__ import annotations

import copy
import datetime as dt
import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prismgp.data import ArraySource, TableEncoder, from_parquet, open_tables
from prismgp.data.scan import scan_files
from prismgp.estimators import SSGPRegressor
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

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


def scanned(table: pa.Table, **options: Any) -> TableEncoder:
    """How a table in a file is read."""
    with tempfile.TemporaryDirectory() as folder:
        pa.parquet.write_table(table, f"{folder}/table.parquet")
        return scan_files(open_tables(f"{folder}/table.parquet"), ["y"], **options)[0]


def learned(table: pa.Table, **options: Any) -> TableEncoder:
    """The encoder of a table in a file, fitted to all of its rows."""
    encoder = scanned(table, **options)
    return encoder.learn(ArraySource(encoder.read(table).values, np.array(table["y"], dtype=float)[:, None]))


def encoded(encoder: TableEncoder, table: Any) -> Any:
    return encoder.encode(encoder.read(table).values)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([f"{k}.50" for k in range(30)], "column 'a' holds text that reads as numbers, such as '0.50'"),
        ([f"{k},439" for k in range(1, 31)], "such as '1,439', and is taken as categories: convert to numbers"),
        ([*(f"{k}" for k in range(25)), "n.d.", "unknown"], "reads as numbers"),
        ([f"{k + 1}/{k % 12 + 1}/2020" for k in range(28)], "column 'a' holds text that reads as dates, such as '1/1/"),
        ([f"{k + 1:02}.11.1999 10:00" for k in range(28)], "write them as ISO 8601 does"),
        ([f"${k + 1},234.50" for k in range(30)], "reads as numbers with a unit, such as '$1,234.50'"),
        ([f"{k}.50 kg" for k in range(30)], "'0.50 kg', and is taken as categories: remove the unit, and put it into"),
        ([*(f"{k}kWh" for k in range(30)), "n/k", "none"], "'0kWh'"),
        ([f"{k + 1} km/h" for k in range(30)], "'1 km/h'"),
        ([f"1/{k + 1}/24" for k in range(28)], "reads as dates, such as '1/1/24'"),
        ([f"{k + 1:02}-Jan-2023" for k in range(28)], "'01-Jan-2023'"),
        ([f"Jan {k + 1:02}, 2023" for k in range(28)], "'Jan 01, 2023'"),
        ([f"{k + 1}. February 1999 10:30" for k in range(28)], "reads as dates"),
        ([f"Mon, {k + 1:02} Jan 2023" for k in range(28)], "reads as dates"),
        (
            [f"13:{k:02}" for k in range(30)],
            "reads as times of day, such as '13:00', and is taken as categories: write",
        ),
        ([f"{k % 12 + 1}:{k:02}:07 PM" for k in range(30)], "reads as times of day"),
        ([f"2024-01-{k:02}" if k % 2 else f"{k:02}.01.2024" for k in range(1, 31)], "as dates, such as '02.01.2024'"),
        (
            [*(f"2024-01-{k:02}" for k in range(1, 31)), "soon"],
            "holds dates and other text, such as 'soon', and is taken as categories: correct or empty",
        ),
    ],
)
def test_text_that_reads_as_numbers_or_dates(texts: list[str], message: str) -> None:
    """Types say text, and text it stays, but not without a word."""
    table = pa.table({"a": texts, "y": np.arange(len(texts)) / 2})
    with pytest.warns(PrismGPWarning) as caught:
        encoder = scanned(table)
    assert len(caught) == 1
    assert message in str(caught[0].message)
    assert encoder.columns[0].categories == tuple(sorted(texts))
    with pytest.warns(PrismGPWarning) as caught:
        SSGPRegressor(2, optimize=False, random_state=0).fit(table.select(["a"]).to_pandas(), table["y"].to_numpy())
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    assert message in str(caught[0].message)


def test_warnings_from_a_thread_that_reads_ahead_name_the_line_of_the_caller(tmp_path: Path) -> None:
    frame = pa.table({"k": ["a", "b"] * 10, "y": np.arange(20.0)})
    pq.write_table(frame, tmp_path / "fit.parquet")
    pq.write_table(frame.set_column(0, "k", pa.array(["c"] * 20)), tmp_path / "new.parquet")
    model = SSGPRegressor(2, optimize=False, random_state=0).fit(from_parquet(tmp_path / "fit.parquet", "y"))
    with pytest.warns(PrismGPWarning, match="'k': 20 value") as caught:
        model.predict(from_parquet(tmp_path / "new.parquet", "y"))
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}


@pytest.mark.parametrize("method", ["predict", "predict_interval", "sample_y", "log_density", "score"])
def test_warnings_of_unseen_levels_name_the_line_of_the_caller(method: str) -> None:
    frame = pa.table({"k": ["a", "b"] * 10}).to_pandas()
    y = np.arange(20.0)
    model = SSGPRegressor(2, optimize=False, random_state=0).fit(frame, y)
    beside = (y,) if method in ("log_density", "score") else ()
    with pytest.warns(PrismGPWarning, match="'k': 20 value") as caught:
        getattr(model, method)(frame.assign(k="c"), *beside)
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([str(each % 19) for each in range(40)]),  # few levels, as of a code
        pa.array([f"{each:05}" for each in range(40)]),
        pa.array([f"1.{each}.7" for each in range(40)]),
        pa.array([str(each) for each in range(40)]).dictionary_encode(),
        pa.array([*map(str, range(20)), *(f"level {each}" for each in range(21))]),
        pa.array([f"{each}{chr(65 + each)}" for each in range(26)]),
        pa.array([f"0{each}x" for each in range(40)]),
        pa.array([f"{each} Main Street 5" for each in range(40)]),
        pa.array([f"{each}.{each}.{40 + each}" for each in range(40)]),
        pa.array([f"{each}:{each}" for each in range(10, 50)]).dictionary_encode(),
        pa.array([f"A{each}" for each in range(40)]),
    ],
    ids=[
        *("few", "leading zeros", "versions", "dictionary", "a half", "letters", "zeros and letters", "addresses"),
        *("longer versions", "categorical times", "codes"),
    ],
)
def test_text_that_is_meant_as_categories(column: Any) -> None:
    scanned(pa.table({"a": column, "y": np.arange(len(column)) / 2}))


def test_kinds_and_names() -> None:
    encoder = learned(TABLE, categorical=["code"])
    assert encoder.feature_names == NAMES
    assert encoder.n_features == len(NAMES)
    values = encoded(encoder, TABLE)
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, VALUES)
    assert encoder.read(TABLE).unseen == {}
    for batch in TABLE.to_batches(max_chunksize=1):
        row = batch.column("number")[0].as_py() - 1
        np.testing.assert_array_equal(encoded(encoder, batch), VALUES[row : row + 1])


def test_order_of_columns_and_additional_ones_do_not_matter() -> None:
    encoder = learned(TABLE, categorical=["code"])
    shuffled = TABLE.select(TABLE.column_names[::-1]).append_column("more", pa.array([[1], [2], [3]]))
    np.testing.assert_array_equal(encoded(encoder, shuffled), VALUES)


def test_unseen_and_missing_cells_are_unknown() -> None:
    encoder = learned(TABLE, columns=["text", "number"])
    table = pa.table({"text": ["c", "a", None, "d", " b "], "number": [1.0, np.nan, 3.0, None, 5.0]})
    batch = encoder.read(table)
    assert batch.unseen == {"text": 2}
    assert batch.missing == {"text": 1, "number": 2}
    assert batch.incomplete.tolist() == [False, True, True, True, False]
    nan, inf = np.nan, np.inf
    expected = [[inf, inf, 1], [1, 0, nan], [nan, nan, 3], [inf, inf, nan], [0, 1, 5]]
    np.testing.assert_array_equal(encoder.encode(batch.values), expected)
    np.testing.assert_array_equal(encoder.impute(np.array(expected)), expected)  # training had no missing cells


def test_missing_cells_of_training_are_imputed() -> None:
    table = pa.table({"a": [1.0, None, 4.0, 2.0], "t": ["u", None, "v", "u"], "y": [0.0, 1.0, 2.0, 3.0]})
    encoder = learned(table)
    assert encoder.feature_names == ["a", "a is missing", "t=u", "t=v", "t is missing"]
    values = encoded(encoder, table)
    np.testing.assert_array_equal(values[1], [np.nan, 1, 0, 0, 1])
    np.testing.assert_array_equal(encoder.impute(values)[1], [2, 1, 0, 0, 1])  # the median
    np.testing.assert_array_equal(encoder.forget_indicators(values)[1], [np.nan, np.nan, 0, 0, 1])
    assert encoder.indicators.tolist() == [1, -1, -1, -1, -1]


def test_columns_without_a_value_are_constant() -> None:
    table = pa.table({"a": [1.0, 2.0], "none": pa.nulls(2), "y": [0.0, 1.0]})
    encoder = learned(table)
    assert encoder.feature_names == ["a", "none is missing"]
    np.testing.assert_array_equal(encoded(encoder, table), [[1, 1], [2, 1]])


@pytest.mark.parametrize("cells", [[True, None], [1.5, None], ["a", None], [dt.date(2024, 1, 1), None]])
def test_values_in_columns_without_one_are_unseen(cells: list[Any]) -> None:
    encoder = learned(pa.table({"a": [1.0, 2.0], "none": pa.nulls(2), "y": [0.0, 1.0]}))
    batch = encoder.read(pa.table({"a": [1.0, 2.0], "none": cells}))
    assert batch.unseen == {"none": 1}
    assert batch.missing == {"none": 1}
    assert batch.incomplete.tolist() == [False, True]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_every_type_of_text(kind: Any) -> None:
    table = pa.table({"t": pa.array(["x", "y ", " x"], kind), "y": [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(encoded(learned(table), table), [[1, 0], [0, 1], [1, 0]])


def test_numbers_as_text_at_prediction() -> None:
    encoder = learned(TABLE, columns=["number", "flag"])
    table = pa.table({"number": [" 1.5", "-2e1"], "flag": ["TRUE", "0"]})
    np.testing.assert_array_equal(encoded(encoder, table), [[1.5, 1], [-20, 0]])
    for wrong in ("1,5", "0x10", "1_000", "one", "--1"):
        with pytest.raises(DataError, match="'number' holds"):
            encoder.read(pa.table({"number": [wrong], "flag": ["1"]}))


def test_wrong_types_at_prediction() -> None:
    encoder = learned(TABLE, columns=["number", "text"])
    with pytest.raises(DataError, match="'text' holds double; the model learned it as text: convert it to text"):
        encoder.read(pa.table({"number": [1], "text": [1.0]}))
    with pytest.raises(
        DataError, match=r"'number' holds date32.*; the model learned it as numbers: convert it to numbers"
    ):
        encoder.read(pa.table({"number": pa.array([1], pa.date32()), "text": ["a"]}))
    with pytest.raises(DataError, match="input column missing: 'text'; the table has 'number': add or rename it"):
        encoder.read(pa.table({"number": [1]}))
    with pytest.raises(DataError, match=r"input columns missing: 'number', 'text'; .* add or rename them"):
        encoder.read(pa.table({"other": [1]}))


def test_wrong_times_and_truths_at_prediction() -> None:
    encoder = learned(pa.table({"when": pa.array([0, 1], pa.date32()), "flag": [True, False], "y": [0, 1]}))
    with pytest.raises(DataError, match=r"'when' holds double; .* dates or times: convert it to such"):
        encoder.read(pa.table({"when": [1.0], "flag": [True]}))
    with pytest.raises(DataError, match=r"'when' holds 'soon' in row 2 .*: write it by ISO 8601, such as 2024-12-31"):
        encoder.read(pa.table({"when": ["2024-12-31", "soon"], "flag": [True, True]}))
    with pytest.raises(DataError, match=r"'flag' holds 'perhaps' .* true, false or numbers: correct or empty the cell"):
        encoder.read(pa.table({"when": ["2024-12-31"], "flag": ["perhaps"]}))


def test_all_problems_are_in_one_message() -> None:
    encoder = learned(TABLE, columns=["number", "text", "money"])
    table = pa.table({"number": [1.0, np.inf], "text": [1.0, 2.0], "money": ["2", "two"]})
    with pytest.raises(
        DataError, match=r"3 problems: .*'number' holds inf in row 2.*'text' holds double.*'two' in row 2"
    ):
        encoder.read(table)
    bad = TABLE.append_column("list", pa.array([[1], [2], [3]])).append_column("bytes", pa.array([b"a"] * 3))
    with pytest.raises(DataError, match=r"2 problems: column 'list' .*column 'bytes'"):
        scanned(bad)
    with pytest.raises(DataError, match=r"2 problems: there is no column 'nummer'.*mean 'number'.*no column 'z'"):
        scanned(TABLE, exclude=["nummer", "z"])


BLANKS = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0"
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).filter(str.strip)  # else missing


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.data())
def test_encoding_survives_json(texts: list[str], data: st.DataObject) -> None:
    """Any categories, in any number: the description read back encodes alike."""
    cells = data.draw(st.lists(st.sampled_from(texts), min_size=1, max_size=12))
    table = pa.table({"t": cells, "y": np.arange(len(cells), dtype=float)})
    encoder = learned(table, categorical=["t"])
    again = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    assert again == encoder
    assert again.read(table).unseen == {}
    values = encoded(again, table)
    decoded = [again.columns[0].categories[code] for code in values.argmax(axis=1)]
    assert decoded == [cell.strip(BLANKS) for cell in cells]
    assert (values.sum(axis=1) == 1).all()


def damaged() -> list[Any]:
    days = pa.array([0, 400, 800], pa.date32())
    table = TABLE.append_column("day", days).append_column("gap", pa.array([1.0, None, 2.0]))
    good = learned(table.append_column("level", pa.array(["p", "q", "r"])), max_categories=2).to_dict()
    place = {column["name"]: index for index, column in enumerate(good["columns"])}

    def column(which: str = "text", /, **changes: Any) -> dict[str, Any]:
        result = copy.deepcopy(good)
        result["columns"][place[which]].update(changes)
        return result

    level = good["columns"][place["level"]]["encoding"]
    day = good["columns"][place["day"]]["encoding"]
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
        {**good, "positional": 1},
        {**good, "columns": []},
        {**good, "columns": {}},
        {**good, "columns": None},
        {**good, "columns": [1]},
        {**good, "columns": [{"name": "a"}]},
        {**good, "columns": good["columns"] * 2},
        column(name="number"),
        *({**good, "columns": [{**good["columns"][0], "name": wrong}]} for wrong in (1, "\udfff", None)),
        column(kind="date"),
        column(kind=["category"]),
        column(kind="number"),
        column(kind="levels"),
        column(kind=None),
        column(categories="ab"),
        column(categories=["b", "a"]),
        column(categories=["a", "a"]),
        column(categories=["a", 1]),
        column(categories=[["a"]]),
        column(extra=1),
        *(column(encoding=wrong) for wrong in (None, 1, [], {}, "seen", {"seen": 1}, {"seen": []}, {"seen": [1.5]})),
        *(column(encoding={"seen": wrong}) for wrong in ([-1], [3], [1, 0], [0, 0], [True], ["a"], [2**70])),
        *(column("gap", encoding={"median": wrong}) for wrong in ("1", True, [1], float("nan"), float("inf"))),
        *(column("day", encoding={**day, "origin": wrong}) for wrong in (None, "1", float("nan"), [0])),
        *(column("day", encoding={**day, "periods": wrong}) for wrong in (None, "year", ["month"], ["day", "year"])),
        *(column("level", encoding={**level, "counts": wrong}) for wrong in (None, [1], [1, 1, 1, -1], ["a"] * 4)),
        *(
            column("level", encoding={**level, "effects": wrong})
            for wrong in (None, [[1]], [1, 1, 1, 1], [[1], [1, 2]])
        ),
        column("level", encoding={**level, "effects": [[float("nan")]] * 4}),
    ]


@pytest.mark.parametrize("data", damaged())
def test_malformed_descriptions_are_refused(data: Any) -> None:
    with pytest.raises(ModelFileError):
        TableEncoder.from_dict(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "kind", "categories", "target", "columns", "positional"]), inner)
    ),
)


@given(json_values)
def test_arbitrary_descriptions_never_fail_otherwise(data: Any) -> None:
    try:
        encoder = TableEncoder.from_dict(data)
    except ModelFileError:
        return
    assert encoder.to_dict() == data
