"""Encodings and delimiters of text files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from prismgp.data import from_csv, open_tables
from prismgp.exceptions import DataError


def delimiter(folder: Path, text: str, name: str = "t.csv", decimal: str | None = None) -> str:
    (folder / name).write_text(text)
    found = open_tables(folder / name, decimal=decimal).files[0].text
    assert found is not None
    return found.delimiter


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_the_delimiter_that_splits_the_header(mark: str, name: str, tmp_path: Path) -> None:
    text = f"a{mark}b\n1{mark}2\n3{mark}4\n"
    if name.endswith("gz"):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert open_tables(tmp_path / name).files[0].schema.names == ["a", "b"]
    else:
        assert delimiter(tmp_path, text, name) == mark


@pytest.mark.parametrize(
    ("text", "decimal", "expected"),
    [
        ("a\n1\n", None, ","),
        ("a\n1,5\n", ",", ";"),
        ("a;b\n1,5;2,5\n", None, ";"),
        ('a,b\n"1,5","2,5"\n', ",", ","),
        ('"a;b","c"\n1,2\n', None, ","),
        ('"a,b";c\n1;2\n', None, ";"),
        ("a, in m;b, in s\n1,5;2,5\n", ",", ";"),
        ("a;x,b\n1,2\n3,4\n", None, ","),  # a row of it has one semicolon less
        ("a,x;b\n1;2\n3;4\n", None, ";"),
        ("a;b\n1;2\n3\n", None, ";"),  # ragged, whatever it is
        ('a;"b\nc"\n1;2\n', None, ";"),
        ("", None, None),
    ],
)
def test_several_candidates(text: str, decimal: str | None, expected: str | None, tmp_path: Path) -> None:
    if expected is None:
        with pytest.raises(DataError, match="the file is empty"):
            delimiter(tmp_path, text, decimal=decimal)
    else:
        assert delimiter(tmp_path, text, decimal=decimal) == expected


def test_a_given_delimiter_is_taken(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b,c\n1;2,3\n")
    assert open_tables(tmp_path / "t.csv", delimiter=";").names == ["a", "b,c"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_encodings(encoding: str, packed: bool, tmp_path: Path) -> None:
    raw = "größe,k,y\n1,é,1\n2,ü,3\n3,é,2\n".encode(encoding)
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    found = encoding.startswith("utf") and encoding != "utf-16-be"
    source = from_csv(path, target="y", encoding=None if found else encoding)
    assert source.encoder.input_names == ["größe", "k"]
    assert [block[0][:, 0].tolist() for block in source.blocks(9)] == [[1, 2, 3]]


def test_a_mark_says_more_than_the_option(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("a,y\n1,2\n".encode("utf-16"))
    assert open_tables(tmp_path / "t.csv", encoding="utf-16-le").names == ["a", "y"]
    assert open_tables(tmp_path / "t.csv", encoding="latin-1").names == ["a", "y"]


@pytest.mark.parametrize("line", [2, 3, 40_000])
def test_the_line_of_wrong_bytes(line: int, tmp_path: Path) -> None:
    lines = [b"a,y", *([b"thirty characters of text .....,1"] * 40_000)]
    lines[line - 1] = b"\xe9,1"
    (tmp_path / "t.csv").write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=rf"t\.csv: the text is not UTF-8 in line {line:,}; .* --encoding latin-1"):
        from_csv(tmp_path / "t.csv", target="y")


@pytest.mark.parametrize("decimal", ["x", "", ";"])
def test_unknown_decimal_marks(decimal: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    with pytest.raises(DataError, match=r"must be '\.' or ','"):
        from_csv(tmp_path / "t.csv", decimal=decimal)


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "sep=;\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_line_that_tells_excel_the_delimiter(first: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\r\n".join([first, "a;b,c;y", "1;2;3", "4;5;6", ""]).encode(encoding))
    source = from_csv(path, "y")
    assert source.encoder.input_names == ["a", "b,c"]
    assert source.load().x.tolist() == [[1, 2], [4, 5]]
    path.write_text("sep=,\na\n1\n\n3\n")
    np.testing.assert_array_equal(from_csv(path).load().x[:, 0], [1, 3])
    assert delimiter(tmp_path, "sep=x,y\n1,2\n") == ","
    assert open_tables(tmp_path / "t.csv").names == ["sep=x", "y"]
