"""What files may hold, and what is said of those that cannot be used."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp.data import FileSource, from_csv, from_parquet
from prismgp.exceptions import DataError


def csv(folder: Path, content: str | bytes, name: str = "t.csv", target: Any = "y", **options: Any) -> FileSource:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return from_csv(path, target, **options)


def parquet(folder: Path, *tables: Any, target: Any = "y", **options: Any) -> FileSource:
    """Tables, each in a file of its own."""
    (folder / "parts").mkdir()
    for index, table in enumerate(tables):
        pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), folder / f"parts/{index}.parquet")
    return from_parquet(folder / "parts", target, **options)


def features(source: FileSource) -> tuple[list[str], list[list[float]]]:
    """Names and values of the inputs that a fit to all rows makes of the columns."""
    encoder = source.encoder.learn(source)
    return encoder.feature_names, encoder.encode(source.load().x).tolist()


def rows(source: FileSource) -> tuple[list[list[float]], list[list[float]]]:
    """All rows; passes in blocks of any size give the same."""
    whole = source.load()
    for size in (1, 3, 1000):
        x, y = zip(*source.blocks(size), strict=True)
        np.testing.assert_array_equal(np.concatenate(x), whole.x)
        np.testing.assert_array_equal(np.concatenate(y), whole.y)
        assert all(len(each) == size for each in x[:-1])
    assert whole.n_rows == source.n_rows
    return whole.x.tolist(), whole.y.tolist()


# -- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "x", "options"),
    [
        ("a,y\n1,5\n2,6\n", [[1], [2]], {}),
        (b"\xef\xbb\xbfa,y\r\n1,5\r\n2,6\r\n", [[1], [2]], {}),
        ('a,y\n"1","5"\n"2",6', [[1], [2]], {}),
        ("a;y\n1;5\n2;6\n", [[1], [2]], {"delimiter": ";"}),
        ("a\ty\n1\t5\n2\t6\n", [[1], [2]], {"name": "t.tsv"}),
        ("a,y\n1,5\n2,6\n", [[1], [2]], {"name": "t.csv.gz"}),
        ("a\ty\n1\t5\n2\t6\n", [[1], [2]], {"name": "t.TSV.gz"}),
        ("a,y\n1e-3,5\n+2.5E2,6\n.5,5\n5.,6\n", [[0.001], [250], [0.5], [5]], {}),
        ("a,y\n 1 ,5\n2 , 6\n", [[1], [2]], {}),
        ("a,y\n1,5\n\n2,6\n\n", [[1], [2]], {}),
        ('a,y\n"x, ""q""",5\n"two\nlines",6\n', [[0, 1], [1, 0]], {}),
        ("a,y\ntrue,5\nFALSE,6\n", [[1], [0]], {}),
        ("a,y\nTrue,5\nno,6\n", [[1, 0], [0, 1]], {}),
        ("a,y\n7,5\n07,6\n", [[0, 1], [1, 0]], {"categorical": ["a"]}),
        ("a,,y\n1,0,5\n2,1,6\n", [[1], [2]], {}),  # a saved row index
        ("a,b,y\n1,x,5\n2,z,6\n", [[1], [2]], {"exclude": "b"}),
        ("a,b,y\n1,x,5\n2,z,6\n", [[1], [2]], {"columns": "a"}),
        ("b,a,y\n3,1,5\n4,2,6\n", [[1, 3], [2, 4]], {"columns": ["a", "b"]}),
    ],
)
def test_text_files(content: Any, x: Any, options: Any, tmp_path: Path) -> None:
    source = csv(tmp_path, content, **options)
    assert features(source)[1] == x
    assert rows(source)[1][:2] == [[5], [6]]


def test_targets_may_be_true_and_false(tmp_path: Path) -> None:
    assert rows(csv(tmp_path, "a,y\n1,true\n2,False\n,true\n", missing="drop"))[1] == [[1], [0]]
    assert rows(parquet(tmp_path, {"a": [1.0, 2.0], "y": [True, False]}))[1] == [[1], [0]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,y\n1,x\n2,z\n", "the target 'y' holds text; a regression target must be numeric"),
        ("a,y\n1,12 kg\n2,1.5 kg\n", "must be numeric: remove the unit from cells such as '12 kg'"),
        ("a,y\n1,$12\n2,$1.5\n", r"must be numeric: remove the unit from cells such as '\$12'"),
        ("a,y\n1,12 Main Street 3\n2,b7\n", "must be numeric$"),
        ("a,y\n1,x\n2,3\n3,3\n", "'x' in the first row: correct"),
        ("a,y\n" + "".join(f"1,x{index}\n" for index in range(200)), "the target 'y' holds text; a regression"),
        ("a,y\n1,2\n2,3\n3,x\n", "target 'y' is text, but most of its values are numbers; .*'x' in row 3"),
        ("a,y\n1,\n2,NA\n", "the target 'y' is empty in all 2 rows"),
        ("a,y\n1,2\n3\n", "t.csv: cannot be read: .*Expected 2 columns, got 1.*; correct the file"),
        ("a,a,y\n1,2,3\n", "duplicate column 'a'"),
        ("a,y\n", "there are no rows below the header"),
        ("", "the file is empty"),
        (b"a,y\n\xff,1\nb,2\n", "not UTF-8"),
        ("a,y\n1,2020-01-01\n2,2020-01-02\n", "the target 'y' holds dates or times"),
        ("a,y\n1,1\n2,-inf\n", "column 'y' holds -inf in row 2 .*; infinity is not a missing value"),
        ("a,y\n1e200,1\n2,2\n", r"column 'a' holds 1e\+200 in the first row; values beyond 1e\+150"),
        ("a,y\n1,1\n2,-1e200\n", r"column 'y' holds -1e\+200 in row 2"),
        ("a,b,Y\n1,2,3\n", "there is no column 'y' .*did you mean 'Y'"),
    ],
)
def test_refused_text(content: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=expected):
        csv(tmp_path, content).load()


@pytest.mark.slow
def test_types_do_not_depend_on_the_first_block(tmp_path: Path) -> None:
    """Blocks are of 1 MiB."""
    many = "".join(f"{index},{index}\n" for index in range(120_000))
    with pytest.raises(DataError, match=r"column 'a' is text.*'oops' in row 120,001"):
        csv(tmp_path, f"a,y\n{many}oops,3\n")
    source = csv(tmp_path, f"a,y\n{many.replace(',', '.5,')}1.25,3\n")
    assert source.n_rows == 120_001
    assert source.load().x[-2:].tolist() == [[119_999.5], [1.25]]
    # Text first, numbers after it: most of them decide.
    with pytest.raises(DataError, match=r"'oops' in the first row"):
        csv(tmp_path, f"a,y\noops,3\n{many}")
    # A category that first appears late has its column.
    late = csv(tmp_path, "a,y\n" + "u,1\n" * 300_000 + "v,2\n")
    names, values = features(late)
    assert names == ["a=u", "a=v"]
    assert values[-1] == [0, 1]
    # So has one that looked like a number at first, in a column that turns out to be text.
    codes = csv(tmp_path, "a,y\n" + "7,1\n" * 300_000 + "v,1\n" * 300_001)
    assert codes.encoder.columns[0].categories == ("7", "v")


def test_bad_arguments(tmp_path: Path) -> None:
    content = "a,yes,y,z\n1,2,3,4\n5,6,7,8\n"
    for options, expected in (
        ({"target": "q"}, "there is no column 'q'"),
        ({"target": ["y", "q"]}, "there is no column 'q'"),
        ({"target": ["y", "y"]}, "duplicate target 'y'"),
        ({"target": ["y", "z"], "columns": ["a", "z"]}, "the target 'z' cannot be an input"),
        ({"columns": ["a", "a"]}, "duplicate input 'a'"),
        ({"columns": ["a", "q"]}, "there is no column 'q'"),
        ({"exclude": ["q"]}, "there is no column 'q'"),
        ({"exclude": ["a", "z", "yes"]}, "no input columns are left"),
        ({"categorical": ["y"]}, "categorical column 'y': not among the inputs"),
        ({"missing": "fill"}, "from_csv: missing='fill' is unknown"),
    ):
        with pytest.raises(DataError, match=expected):
            csv(tmp_path, content, **options)
    assert csv(tmp_path, content, exclude="yes").feature_names == ["a", "z"]  # not the letters of the name
    with pytest.raises(DataError, match=r"is not one of .parquet, .pq"):
        from_parquet(tmp_path / "t.csv", "y")
    with pytest.raises(DataError, match=r"no table file \(.parquet, .pq\) in it"):
        from_parquet(tmp_path, "y")
    with pytest.raises(DataError, match="the list: there is no table file"):
        from_csv([], "y")
    with pytest.raises(DataError, match="unsupported file type"):
        from_csv(tmp_path / "t.xlsx", "y")
    with pytest.raises(FileNotFoundError):
        from_csv(tmp_path / "absent.csv", "y")


# -- missing values ------------------------------------------------------------------------------

GAPS = {"a": [1.0, None, 3.0, 4.0, np.inf, 6.0], "k": ["u", "v", None, "u", "u", "v"], "y": [1.0, 2, 3, np.nan, 5, 6]}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_values(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{kind}"
    frame = pd.DataFrame(GAPS)
    make: Any = from_csv if kind == "csv" else from_parquet
    frame.to_csv(path, index=False) if kind == "csv" else pq.write_table(pa.table(GAPS), path)
    with pytest.raises(DataError, match="column 'a' holds inf in row 5 "):
        make(path, "y")
    source = make(path, "y", missing="drop")
    assert (source.n_rows, source.rows_read, source.rows_without_target) == (2, 6, 1)
    assert features(source) == (["a", "k=u", "k=v"], [[1, 1, 0], [6, 0, 1]])
    assert rows(source)[1] == [[1], [6]]
    assert source.take(np.array([1])).x[:, 0].tolist() == [6]
    frame["a"] = frame["a"].replace(np.inf, np.nan)
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    with pytest.raises(
        DataError, match=r"in columns 'a' \(2\), 'k' \(1\), 'y' \(1\); .*missing=\"impute\" or \"drop\""
    ):
        make(path, "y", missing="error").load()
    filled = make(path, "y")  # the target is never imputed
    assert (filled.n_rows, filled.rows_read, filled.rows_without_target) == (5, 6, 1)
    names, values = features(filled)
    assert names == ["a", "a is missing", "k=u", "k=v", "k is missing"]
    np.testing.assert_array_equal(values[1], [np.nan, 1, 0, 1, 0])
    np.testing.assert_array_equal(values[2], [3, 0, 0, 0, 1])
    # A column that is not used may be empty.
    assert make(path, "y", columns=["k"], missing="drop").n_rows == 4
    assert make(path, None, columns=["a"], missing="drop").n_rows == 4
    assert make(path, None, columns=["a"]).n_rows == 6


def test_missing_cells_are_counted_as_they_are_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'a' holds inf in the first row"):
        csv(tmp_path, "a,k,y\n1e400,inf,2\n1,b,4\n2,b,3\n")  # beyond float64, and a category of that name
    with pytest.raises(DataError, match=r"in column 'b' \(1\);"):
        csv(tmp_path, "b,y\ntrue,2\n,4\nfalse,3\n", missing="error").load()
    with pytest.raises(DataError, match="every one of the 2 rows has a missing value; exclude the emptiest"):
        csv(tmp_path, "a,b,y\n1,,2\n,1,3\n", missing="drop")
    with pytest.raises(DataError, match="the target is empty in all 2 rows"):
        parquet(tmp_path, {"a": [1.0, 2.0], "y": [np.nan, np.nan]})


def test_rows_read_after_a_part_was_taken(tmp_path: Path) -> None:
    source = parquet(tmp_path, {"a": np.arange(10.0), "y": np.arange(10.0)})
    assert source.rows_read == 10
    source.take(np.array([0, 2]))
    assert source.rows_read == 10


# -- types ---------------------------------------------------------------------------------------


def test_parquet_types(tmp_path: Path) -> None:
    source = parquet(
        tmp_path,
        {
            "text": pa.array(["u", "v"], pa.large_string()),
            "dictionary": pa.array(["r", "q"]).dictionary_encode(),
            "whole": pa.array([3, 2**53 + 1], pa.int64()),
            "small": pa.array([1, 2], pa.int8()),
            "half": pa.array(np.float16([0.5, 1.5])),
            "decimal": pa.array([1, 2], pa.decimal128(5, 2)),
            "flag": pa.array([True, False]),
            "a.b": pa.array([1.0, 2.0]),
            "y": [1.0, 2.0],
        },
        categorical=["small"],
    )
    names, x = features(source)
    assert names == [
        *("text=u", "text=v", "dictionary=q", "dictionary=r"),
        *("whole", "small=1", "small=2", "half", "decimal", "flag", "a.b"),
    ]
    assert x == [
        [1, 0, 0, 1, 3, 1, 0, 0.5, 1, 1, 1],
        [0, 1, 1, 0, 2**53, 0, 1, 1.5, 2, 0, 2],
    ]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([[1], [2]]), "column 'a' holds list.*neither number, text nor time"),
        (pa.array([{"q": 1}, {"q": 2}]), "column 'a' holds struct"),
        (pa.array([b"1", b"2"]), "column 'a' holds binary"),
    ],
)
def test_refused_types(column: Any, expected: str, tmp_path: Path) -> None:
    table = {"a": column, "b": np.arange(len(column)), "y": np.arange(len(column), dtype=float)}
    with pytest.raises(DataError, match=expected):
        parquet(tmp_path, table)
    assert from_parquet(tmp_path / "parts", "y", exclude="a").load().n_rows == len(column)
    with pytest.raises(DataError, match=r"target|neither"):
        from_parquet(tmp_path / "parts", "a")
    for other in (pa.array([1, 2], pa.timestamp("s")), pa.nulls(2)):
        pq.write_table(pa.table({"a": other, "y": [1.0, 2.0]}), tmp_path / "other.parquet")
        with pytest.raises(DataError, match=r"a regression target must be numeric|is empty"):
            from_parquet(tmp_path / "other.parquet", "a")


def test_a_damaged_description_of_a_column(tmp_path: Path) -> None:
    # A column that says that it cannot have nulls, while its histogram counts them: Arrow ends the process of whoever
    # asks for the size of the column.
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1.0, None, 3.0], "y": [1.0, 2.0, 3.0]}), path)
    optional, required = b"\x15\x0a\x25\x02\x18\x01a", b"\x15\x0a\x25\x00\x18\x01a"  # of type double
    content = path.read_bytes()
    assert content.count(optional) == 1
    path.write_bytes(content.replace(optional, required))
    with pytest.raises(DataError, match="cannot be read"):
        from_parquet(path, "y").load()


def test_damaged_text(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"a": ["level one", "level two"] * 20, "y": [1.0, 2.0] * 20})
    pq.write_table(table, path, compression="none")
    content = path.read_bytes()
    assert b"level two" in content
    path.write_bytes(content.replace(b"level two", b"level \xfftw"))
    with pytest.raises(DataError, match=r"t\.parquet: column 'a' cannot be read, the file is damaged: Invalid UTF8"):
        from_parquet(path, "y")


def test_names_with_dots(tmp_path: Path) -> None:
    """Parquet has paths of that form for nested columns."""
    table = {"a.b": [1.0, 2.0], "a": [3.0, 4.0], "y": [5.0, 6.0]}
    assert rows(parquet(tmp_path, table, columns="a"))[0] == [[3], [4]]
    assert rows(from_parquet(tmp_path / "parts", "y", columns=["a", "a.b"]))[0] == [[3, 1], [4, 2]]


def test_floats_are_no_categories(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only text and whole numbers can be categories"):
        parquet(tmp_path, {"a": [1.0, 2.0], "y": [1.0, 2.0]}, categorical="a")


def test_text_of_numbers_is_no_target_of_a_typed_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the target 'y' holds text"):
        parquet(tmp_path, {"a": [1.0, 2.0], "y": ["1", "2"]})


# -- folders -------------------------------------------------------------------------------------

Y = [1.0, 2.0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.array([1, 2]), pa.array([1.5, 2.5]), [1, 2, 1.5, 2.5]),
        (pa.array([1.5, 2.5], pa.float32()), pa.array([1.1, 2.0]), [1.5, 2.5, 1.1, 2.0]),
        (pa.array([1, 2], pa.int8()), pa.array([300, 2**53 + 2]), [1, 2, 300, 2**53 + 2]),
        (pa.array([1, 2], pa.uint64()), pa.array([-3, 4]), [1, 2, -3, 4]),
        (pa.array([1, 2**60 + 1]), pa.array([1.5, 2.5]), [1, 2**60, 1.5, 2.5]),
        (pa.array([1, 2], pa.decimal128(5, 2)), pa.array([1, 2], pa.decimal128(7, 3)), [1, 2, 1, 2]),
    ],
)
def test_numbers_of_several_types(first: Any, second: Any, expected: Any, tmp_path: Path) -> None:
    source = parquet(tmp_path, {"a": first, "y": Y}, {"a": second, "y": Y})
    assert np.ravel(rows(source)[0]).tolist() == expected


@pytest.mark.parametrize("second", [pa.array(["w", "v"], pa.large_string()), pa.array(["w", "v"]).dictionary_encode()])
@pytest.mark.parametrize("swap", [False, True])
def test_text_of_several_types(second: Any, swap: bool, tmp_path: Path) -> None:
    tables = [{"a": pa.array(["u", "v"]), "y": Y}, {"a": second, "y": Y}]
    source = parquet(tmp_path, *(reversed(tables) if swap else tables))
    names, x = features(source)
    assert names == ["a=u", "a=v", "a=w"]
    assert sorted(x) == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("swap", [False, True])
def test_a_part_may_be_null(swap: bool, tmp_path: Path) -> None:
    required = pa.schema([pa.field("a", pa.float64(), nullable=False), ("y", pa.float64())])
    tables = [pa.table({"a": Y, "y": Y}, schema=required), {"a": pa.nulls(2), "y": Y}, {"a": [None, 4.0], "y": Y}]
    source = parquet(tmp_path, *(reversed(tables) if swap else tables), missing="drop")
    assert sorted(np.ravel(rows(source)[0])) == [1, 2, 4]
    assert source.rows_read == 6


def test_whole_numbers_stay_categories(tmp_path: Path) -> None:
    tables = ({"a": pa.array([1, 2], pa.int32()), "y": Y}, {"a": pa.array([2, 30]), "y": Y})
    assert features(parquet(tmp_path, *tables, categorical=["a"]))[0] == ["a=1", "a=2", "a=30"]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"a": ["u", "v"], "y": Y}, r"1.parquet: column 'a' holds string, in .*0.parquet it holds double; make it one"),
        ({"a": [True, False], "y": Y}, "column 'a' holds bool"),
        ({"b": Y, "y": Y}, r"1.parquet: columns differ from those of .*0.parquet \('a', 'b' in one only\)"),
        ({"a": Y, "b": Y, "y": Y}, r"columns differ .*\('b' in one only\)"),
    ],
)
def test_parts_that_do_not_fit(second: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=expected):
        parquet(tmp_path, {"a": Y, "y": Y}, second)


def test_order_of_columns_and_empty_parts(tmp_path: Path) -> None:
    first = pa.table({"a": [1.0], "b": [2.0], "y": [3.0]})
    source = parquet(tmp_path, first.slice(0, 0), first, first.slice(0, 0), first.select(["y", "b", "a"]))
    assert rows(source) == ([[1, 2], [1, 2]], [[3], [3]])
    for name, content in (("0", "a,y\n"), ("1", "a,y\n1,2\n"), ("2", "a,y\n"), ("3", "y,a\n4,3")):
        (tmp_path / f"parts/{name}.csv").write_text(content)
    assert rows(from_csv(tmp_path / "parts", "y")) == ([[1], [3]], [[2], [4]])
    with pytest.raises(DataError, match="no rows below the header"):
        from_csv([tmp_path / "parts/0.csv", tmp_path / "parts/2.csv"], "y")
    (tmp_path / "parts/4.csv").write_text("")
    with pytest.raises(DataError, match=r"4.csv: the file is empty"):
        from_csv(tmp_path / "parts", "y")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_in_the_names_of_folders(kind: str, tmp_path: Path) -> None:
    """As pandas and Dask write them: the same as in the files. What a file has itself counts."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "y": rng.normal(size=60), "own": rng.normal(size=60)})
    frame["year"], frame["site"] = np.repeat([2023, 2024, 2025], 20), np.tile(["north/east", "007"], 30)
    frame = frame.sort_values(["site", "year"], kind="stable", ignore_index=True)
    read = from_csv if kind == "csv" else from_parquet
    parts = {f"parts/site={site.replace('/', '%2F')}/year={year}/own=2": part.drop(columns=["year", "site"])
             for (site, year), part in frame.groupby(["site", "year"])}  # fmt: skip
    for place, part in {**parts, "whole": frame}.items():
        (tmp_path / place).mkdir(parents=True)
        file = tmp_path / place / f"0.{kind}"
        part.to_csv(file, index=False) if kind == "csv" else part.to_parquet(file)
    split, whole = read(tmp_path / "parts", "y"), read(tmp_path / "whole", "y")
    assert split.encoder.input_names == ["a", "own", "site", "year"]
    assert rows(split)[1] == rows(whole)[1]
    ours, expected = (dict(zip(names, np.transpose(x), strict=True)) for names, x in (features(split), features(whole)))
    assert ours.keys() == expected.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, expected[name])


def test_folders_without_a_value(tmp_path: Path) -> None:
    """Which is missing, and so is what the folders of one file alone do not say."""
    for place in ("a=1/b=x", "a=2/b=__HIVE_DEFAULT_PARTITION__", "a=3"):
        (tmp_path / place).mkdir(parents=True)
        pq.write_table(pa.table({"c": np.arange(9.0), "y": np.arange(9.0)}), tmp_path / place / "0.parquet")
    x, _ = rows(from_parquet(tmp_path, "y"))
    assert [row[1] for row in x[::9]] == [1, 2, 3]
    known, *unknown = (row[2] for row in x[::9])
    assert unknown[0] == unknown[1] != known


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("2024", "NA"), (2024, np.nan)),
        (("2024", ""), (2024, np.nan)),
        (("2024", " 5"), (2024, 5)),
        (("2,024", "1"), (2024, 1)),
        (("01", "12"), (1, 12)),
        (("999999999999999999", "1"), (1e18, 1)),
    ],
)
def test_numbers_in_the_names_of_folders_are_as_in_cells(
    values: tuple[str, str], expected: tuple[float, float], tmp_path: Path
) -> None:
    for value in values:
        (tmp_path / f"v={value}").mkdir()
        (tmp_path / f"v={value}/0.csv").write_text("a,y\n1,2\n3,4\n5,6\n")
    source = from_csv(tmp_path, "y")
    found = dict(zip(source.encoder.input_names, np.transpose(rows(source)[0]), strict=True))
    known = {value: float(number) for value, number in zip(values, expected, strict=True)}
    order = sorted(values, key=lambda value: f"v={value}")
    wanted = np.repeat([known[value] for value in order], 3)
    np.testing.assert_array_equal(found["v"], wanted)


@pytest.mark.parametrize("values", [("1", "999999999999999999"), ("01", "12")])
def test_integers_in_the_names_of_folders_of_parquet_files(values: tuple[str, str], tmp_path: Path) -> None:
    for value in values:
        (tmp_path / f"v={value}").mkdir()
        pq.write_table(pa.table({"a": np.arange(3.0), "y": np.arange(3.0)}), tmp_path / f"v={value}/0.parquet")
    x, _ = rows(from_parquet(tmp_path, "y"))
    assert [row[1] for row in x[::3]] == [float(value) for value in values]


def test_codes_in_the_names_of_folders(tmp_path: Path) -> None:
    """Beside text, numbers are text as it is written, as where the table is one file."""
    for value in ("01", "1", "12", "AB"):
        (tmp_path / f"code={value}").mkdir()
        pq.write_table(pa.table({"a": np.arange(3.0), "y": np.arange(3.0)}), tmp_path / f"code={value}/0.parquet")
    codes = from_parquet(tmp_path, "y").encoder.columns[1]
    assert sorted(codes.categories) == ["01", "1", "12", "AB"]


@pytest.mark.parametrize("name", [b"v=\xff", b"v=%FF"])
def test_names_of_folders_are_utf8(name: bytes, tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), name)
    os.mkdir(folder)
    with open(os.path.join(folder, b"0.csv"), "w") as file:
        file.write("a,y\n1,2\n3,4\n")
    with pytest.raises(DataError, match="is not UTF-8; rename the folder"):
        from_csv(tmp_path, "y")


def test_which_files_of_a_folder(tmp_path: Path) -> None:
    """By name, in folders too; not what is hidden, what begins with an underscore, nor what is no table."""
    order = ["a/2.csv", "a/10.csv.gz", "b/_year=1/x.tsv", "c.csv"]
    ignored = [".hidden.csv", "_temporary/d.csv", "a/.git/e.csv", "readme.txt", "_SUCCESS"]
    for index, name in enumerate([*order, *ignored]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = f"a,y\n{index},1\n"
        text = text.replace(",", "\t") if name.endswith("tsv") else text
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = [row[0] for row in rows(from_csv(tmp_path, "y"))[0]]
    assert found == [1, 0, 2, 3]  # "10" before "2"
    assert [row[0] for row in rows(from_csv([tmp_path / "c.csv", str(tmp_path / "a/2.csv")], "y"))[0]] == [3, 0]
    pq.write_table(pa.table({"a": [9.0], "y": [1.0]}), tmp_path / "z.parquet")
    assert from_csv(tmp_path, "y").n_rows == 4  # of its kind only
    assert from_parquet(tmp_path, "y").n_rows == 1


@pytest.mark.parametrize(("option", "role"), [("weight", "weight column"), ("noise", "noise column")])
def test_columns_of_noise_with_trouble(option: str, role: str, tmp_path: Path) -> None:
    for cells, message in (
        ("u,v", f"the {role} 'c' holds text; it must be numeric"),
        ("2020-01-01,2020-01-02", f"the {role} 'c' holds dates or times; it must be numeric"),
        (",", f"the {role} 'c' is empty in all 2 rows"),
    ):
        first, second = cells.split(",")
        with pytest.raises(DataError, match=message):
            csv(tmp_path, f"a,y,c\n1,2,{first}\n3,4,{second}\n", **{option: "c"})
    table = pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0], "c": ["u", "v"]})
    with pytest.raises(DataError, match=f"the {role} 'c' holds string; it must be numeric|the {role} 'c' holds text"):
        parquet(tmp_path, table, **{option: "c"})
