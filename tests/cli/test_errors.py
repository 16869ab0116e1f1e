"""Bad usage and bad input: exit code 2 and one clear line, whatever is wrong."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prismgp
from prismgp import ExactGPRegressor
from prismgp.exceptions import TooLargeError

from .conftest import Run

Refused = Callable[..., str]
GOOD = "a,b,y\n" + "".join(f"{i},{i % 3},{i * i}\n" for i in range(10))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"a,b,y\n", "no rows below the header"),
        (b"a,b,y", "no rows below the header"),
        (b"\n\n", "no rows below the header"),
        (b"a,b,y\n1,2,3\n1,2\n", "Row #3: Expected 3 columns, got 2"),
        (b"a,b,y\n1,2,3,4\n", "Expected 3 columns, got 4"),
        (b"a,b,y\n1,caf\xe9,3\n2,x,4\n", "not UTF-8"),
        (b"a,\xe9,y\n1,2,3\n", "not UTF-8"),
        ("a,b,y\n1,2,3\n".encode("utf-16-le"), "UTF-16 without a byte order mark; give --encoding utf-16-le"),
        (b"a,a,y\n1,2,3\n", "duplicate column 'a'"),
        (b"a,b,z\n1,2,3\n", "no column 'y' (there are 'a', 'b', 'z')"),
        (b"a,b,Y \n1,2,3\n", "did you mean 'Y '?"),
        (b"a:b:y\n1:2:3\n", "no column 'y' (there are 'a:b:y')"),
        (b"y\n1\n", "no input columns are left"),
        (b"a,b,y\n1,2,x\n2,3,z\n", "target 'y' holds text"),
        (b"a,b,y\n1,2,3\n2,3,?\n3,4,5\n", "target 'y' is text, but most of its values are numbers"),
        (b"a,b,y\n1,2,\n2,3,\n", "target 'y' is empty in all 2 rows"),
        (b"a,b,y\n1,2,3\n,2,4\nNA,n/a,4\n1,inf,4\n1,2,NaN\n", "column 'b' holds inf in row 4"),
        (b"a,b,y\n1,2,inf\n1,-inf,3\n", "2 problems: column 'b' holds -inf in row 2"),
        (b"a,b,y\n1,2,2020-01-01\n", "target 'y' holds dates or times"),
        (b"a,b,y\n1,1.5,3\n1,2,3\n1,?,3\n", "column 'b' is text, but most of its values are numbers"),
        (b"a,b,y\n1,1.5,3\n1,2,3\n1,?,3\n", "is '?' in row 3 (the first is 1)"),
        (b"a,b,y\n1,1e200,3\n1,2,3\n", "column 'b' holds 1e+200 in the first row"),
        (b"a,a=x,y\nx,1,3\nz,2,3\n", "duplicate encoded column 'a=x'"),
    ],
)
def test_bad_csv(refused: Refused, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "d.csv").write_bytes(content)
    line = refused("fit", tmp_path / "d.csv", "-t", "y", "-p", 2, "-o", tmp_path / "m.prism")
    assert expected in line
    assert [each.name for each in tmp_path.iterdir()] == ["d.csv"]


def test_missing_values_as_errors(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"a,b,y\n1,2,3\n,2,4\nNA,n/a,4\n1,3,4\n1,2,NaN\n")
    argv = ("fit", tmp_path / "d.csv", "-t", "y", "-p", 2, "-o", tmp_path / "m.prism", "--missing", "error")
    line = refused(*argv)
    assert "columns 'a' (2), 'b' (1), 'y' (1); impute them with --missing impute" in line
    assert "invalid choice: 'fill'" in refused(*argv[:-1], "fill")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--exclude", "q"], "no column 'q'"),
        (["--inputs", "a,q"], "no column 'q'"),
        (["--inputs", "a,y"], "target 'y' cannot be an input"),
        (["--inputs", "a,a"], "duplicate input 'a'"),
        (["--inputs", "a", "--exclude", "a"], "no input columns are left"),
        (["--inputs", "a", "--categorical", "b"], "not among the inputs"),
        (["--holdout", "0.95"], "leaves 0 of 10 rows"),
        (["--holdout", "1.5"], "'1.5' is not a number between 0 and 1"),
        (["--model", "exact", "-p", "4"], "for --model prism and ssgp"),
        (["--model", "neighbors", "-p", "4"], "for --model prism and ssgp; the neighbors model"),
        (["-p", "0"], "'0' is not a whole number of at least 1"),
        (["--kernel", "cubic"], "invalid choice: 'cubic'"),
        (["--seed", "-1"], "--seed: '-1' is not a whole number between 0 and 2^32 - 1"),
        (["--delimiter", "ab"], "'ab' is not one character"),
        (["--frequenc", "4"], "unrecognized arguments"),
    ],
)
def test_bad_fit_options(refused: Refused, tmp_path: Path, options: list[str], expected: str) -> None:
    (tmp_path / "d.csv").write_text(GOOD)
    assert expected in refused("fit", tmp_path / "d.csv", "-t", "y", "-o", tmp_path / "m.prism", *options)


def test_bad_paths(refused: Refused, tmp_path: Path) -> None:
    data, output = tmp_path / "d.csv", tmp_path / "m.prism"
    data.write_text(GOOD)
    (tmp_path / "d.xlsx").write_text(GOOD)
    (tmp_path / "bad.parquet").write_text(GOOD)
    (tmp_path / "bad.csv.gz").write_text(GOOD)
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress(GOOD.encode() * 1000)[:-40])
    assert "nope.csv: No such file" in refused("fit", tmp_path / "nope.csv", "-t", "y", "-o", output)
    assert "unsupported file type" in refused("fit", tmp_path / "d.xlsx", "-t", "y", "-o", output)
    for name in ("bad.parquet", "bad.csv.gz", "short.csv.gz"):
        assert f"{name}: cannot be read" in refused("fit", tmp_path / name, "-t", "y", "-o", output)
    assert "does not exist" in refused("fit", data, "-t", "y", "-o", tmp_path / "none" / "m.prism")
    assert "is a folder" in refused("fit", data, "-t", "y", "-o", tmp_path)
    assert "would replace an input" in refused("fit", data, "-t", "y", "-o", data)
    assert data.read_text() == GOOD


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([[1], [2], [3]]), "list<"),
        (pa.array([b"a", b"b", b"c"]), "binary"),
        (pa.array([1.0, float("inf"), None]), "'a' holds inf in row 2"),
    ],
)
def test_bad_parquet_columns(refused: Refused, tmp_path: Path, column: pa.Array, expected: str) -> None:
    pq.write_table(pa.table({"a": column, "y": [1.0, 2.0, 3.0]}), tmp_path / "d.parquet")
    line = refused("fit", tmp_path / "d.parquet", "-t", "y", "-o", tmp_path / "m.prism")
    assert "'a'" in line
    assert expected in line


def test_nothing_left(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b,y\n1,,3\n,2,4\n")
    line = refused("fit", tmp_path / "d.csv", "-t", "y", "--drop-missing", "-o", tmp_path / "m.prism")
    assert "every one of the 2 rows has a missing value" in line


def test_too_large(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TooLargeError("would need 7 TiB\nof memory")

    (tmp_path / "d.csv").write_text(GOOD)
    monkeypatch.setattr(ExactGPRegressor, "fit", refuse)
    argv = ["fit", tmp_path / "d.csv", "-t", "y", "--model", "exact", "-o", tmp_path / "m.prism"]
    assert refused(*argv) == "prismgp: error: would need 7 TiB of memory\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b"size,grade,count,flag\n", "no rows below the header"),
        (b"size,grade,flag\n1,low,true\n", "input column 'count' missing"),
        (b"size,Grade\n1,low\n", "input columns 'grade', 'count', 'flag' missing"),
        (b"size,grade,count,flag\n1,low,2,true\n1,low\n", "Row #3: Expected 4 columns, got 2"),
        (b"size,grade,count,flag\n1,low,2,true\nbig,low,2,true\n", "'size' holds 'big' in row 2"),
        (b"size,grade,count,flag\n1,low,2,maybe\n", "'flag' holds 'maybe' in the first row"),
        (b"size,grade,count,flag\n1,l\xf6w,2,true\n", "not UTF-8"),
        (b"size,size,grade,count,flag\n1,1,low,2,true\n", "duplicate column 'size'"),
        (b"size,grade,count,flag\n1,low,1e300,true\n", "'count' holds 1e+300 in the first row"),
    ],
)
def test_bad_prediction_data(refused: Refused, model: Path, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "d.csv").write_bytes(content)
    assert expected in refused("predict", model, tmp_path / "d.csv", "-o", tmp_path / "o.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["d.csv"]


def test_bad_prediction_usage(refused: Refused, model: Path, fresh: pd.DataFrame, tmp_path: Path) -> None:
    data = tmp_path / "d.parquet"
    fresh.assign(nested=[[1]] * len(fresh)).to_parquet(data)
    assert "unsupported file type" in refused("predict", model, data, "-o", tmp_path / "o.xlsx")
    assert "'nested' holds lists or bytes" in refused("predict", model, data, "-o", tmp_path / "o.csv")
    assert "would replace an input" in refused("predict", model, data, "-o", data)
    assert "no delimiter" in refused("predict", model, data, "-o", tmp_path / "o.csv", "--delimiter", ";")
    assert "both use standard output" in refused("predict", model, data, "-o", "-", "--json")
    assert "between 0 and 1" in refused("predict", model, data, "-o", "-", "--level", "95")
    assert [each.name for each in tmp_path.iterdir()] == ["d.parquet"]


@pytest.mark.parametrize("command", ["predict", "certify", "info"])
def test_damaged_model(refused: Refused, model: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "d.csv").write_text("size,grade,count,flag\n1,low,2,true\n")
    rest = [] if command == "info" else [tmp_path / "d.csv"]
    rest += ["-o", tmp_path / "o.csv"] if command == "predict" else []
    whole = model.read_bytes()
    broken = tmp_path / "m.prism"
    for content in (b"", b"text", whole[:-1], whole[: len(whole) // 2], whole[:-9] + b"x" + whole[-8:]):
        broken.write_bytes(content)
        assert str(broken) in refused(command, broken, *rest)
    assert "No such file" in refused(command, tmp_path / "absent.prism", *rest)


def test_usage(refused: Refused, run: Run) -> None:
    assert "COMMAND" in refused()
    assert "invalid choice: 'fly'" in refused("fly")
    assert "required: -t/--target" in refused("fit", "d.csv", "-o", "m")
    assert run("--version") == (0, f"prismgp {prismgp.__version__}\n", "")
    for command in ("fit", "predict", "certify", "info"):
        outcome = run(command, "--help")
        assert outcome.code == 0
        assert outcome.out.startswith(f"usage: prismgp {command}")


def test_no_terminal_codes_from_files(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("\x1b[31ma,b\n1,2\n")
    line = refused("fit", tmp_path / "d.csv", "-t", "\x1b[31mc", "-o", tmp_path / "m.prism")
    assert "\x1b" not in line


@pytest.mark.slow
def test_broken_pipe_and_module_entry(model: Path, tmp_path: Path) -> None:
    """Through a real process: the reader goes away after one line, and there is no traceback."""
    rows = "".join(f"{i % 4},low,{i % 9},true\n" for i in range(20_000))
    (tmp_path / "d.csv").write_text("size,grade,count,flag\n" + rows)
    command = [sys.executable, "-m", "prismgp", "predict", str(model), str(tmp_path / "d.csv"), "-q", "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"size,grade,count,flag,mean,std,lower,upper\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
def test_broken_pipe_of_a_short_text(model: Path) -> None:
    """What is still buffered when the reader is gone must not fail at the exit of the interpreter."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "prismgp", "info", str(model)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, env=buffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_table_in_place_of_the_model(refused: Refused, model: Path, tmp_path: Path) -> None:
    table = model.parent / "train.csv"
    for command in (("predict", "-o", tmp_path / "o.csv"), ("certify",), ("suggest",)):
        line = refused(command[0], table, model, *command[1:])
        assert "train.csv looks like a table: MODEL comes before DATA" in line
    assert "not a PrismGP model file, or a damaged one" in refused("predict", table, table, "-o", tmp_path / "o.csv")
    assert "train.csv: not a PrismGP model file" in refused("info", table)
