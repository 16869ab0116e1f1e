"""Hostile files: every kind with fit, predict and certify.

Whatever the file is, a command ends with code 0, or with code 2 and one line that says what is wrong. It leaves nothing
behind, and without success an old output stays as it is.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp.cli import main

from .conftest import Run

OLD = b"the output of an earlier run"
COMMANDS = ("fit", "predict", "certify")
N = 12
A, B = [float(i) for i in range(N)], [float(i * 7 % 5) for i in range(N)]
Y = [0.5 * a * a - b for a, b in zip(A, B, strict=True)]
HEADER = "a,b,y"
LINES = [f"{a},{b},{y}" for a, b, y in zip(A, B, Y, strict=True)]
GOOD = "\n".join([HEADER, *LINES, ""])


@dataclass(frozen=True)
class Kind:
    """A kind of file, and what the commands say of it: None for success, else a part of the message."""

    make: Callable[[Path], Path]
    fit: str | None
    predict: str | None
    certify: str | None
    options: tuple[str, ...] = ()  # of all commands
    fit_options: tuple[str, ...] = ()

    def expected(self, command: str) -> str | None:
        return {"fit": self.fit, "predict": self.predict, "certify": self.certify}[command]


def content(data: str | bytes, name: str = "d.csv") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return make


def table(columns: dict[str, Any], name: str = "d.parquet") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        pq.write_table(pa.table(columns), folder / name)
        return folder / name

    return make


def all_of(make: Callable[[Path], Path], message: str | None, *options: str) -> Kind:
    """The same for all commands."""
    return Kind(make, message, message, message, options)


def text(data: str | bytes, message: str | None, *options: str) -> Kind:
    return all_of(content(data), message, *options)


def with_column(name: str, cells: list[str] | str) -> str:
    """The table with one more column, which the model does not use."""
    cells = [cells] * N if isinstance(cells, str) else [cells[i % len(cells)] for i in range(N)]
    return "\n".join([f"{HEADER},{name}", *(f"{line},{cell}" for line, cell in zip(LINES, cells, strict=True)), ""])


def unused(data: str, fit: str | None = None, *fit_options: str) -> Kind:
    """A further column that only fit looks at."""
    return Kind(content(data), fit, None, None, fit_options=fit_options)


def read(data: bytes, message: str) -> Kind:
    """Something in a further column, which a certificate does not need."""
    return Kind(content(data), message, message, None)


def with_cell(column: int, cell: str) -> str:
    """The table with another first cell in a column."""
    first = LINES[0].split(",")
    first[column] = cell
    return "\n".join([HEADER, ",".join(first), *LINES[1:], ""])


def column_of(column: int, cells: list[str]) -> str:
    lines = []
    for i, line in enumerate(LINES):
        row = line.split(",")
        row[column] = cells[i % len(cells)]
        lines.append(",".join(row))
    return "\n".join([HEADER, *lines, ""])


def zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "d.csv", "w") as archive:
        archive.writestr("sheet.xml", GOOD)
    return folder / "d.csv"


def damaged_parquet(where: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "d.parquet"
        pq.write_table(pa.table({"a": A, "b": B, "y": Y}), path, write_page_checksum=True, compression="none")
        whole = bytearray(path.read_bytes())
        footer = len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
        if where == "footer":
            whole[footer : footer + 20] = bytes(20)
        elif where == "length":
            whole[-8:-4] = struct.pack("<I", 2**31 - 1)
        elif where == "end":
            del whole[len(whole) // 2 :]
        else:
            at = whole.index(struct.pack("<d", A[5]))
            whole[at : at + 4] = b"\xaa\xbb\xcc\xdd"
        path.write_bytes(bytes(whole))
        return path

    return make


def no_row_groups(folder: Path) -> Path:
    schema = pa.schema([(name, pa.float64()) for name in "aby"])
    pq.ParquetWriter(folder / "d.parquet", schema).close()
    return folder / "d.parquet"


def empty_folder(folder: Path) -> Path:
    (folder / "d").mkdir()
    return folder / "d"


def parts(*contents: tuple[str, str]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "d").mkdir()
        for name, data in contents:
            (folder / "d" / name).write_text(data)
        return folder / "d"

    return make


def mixed_types(folder: Path) -> Path:
    (folder / "d").mkdir()
    pq.write_table(pa.table({"a": A, "b": B, "y": Y}), folder / "d" / "p0.parquet")
    pq.write_table(pa.table({"a": [str(a) for a in A], "b": B, "y": Y}), folder / "d" / "p1.parquet")
    return folder / "d"


def loop(folder: Path) -> Path:
    (folder / "d.csv").symlink_to(folder / "d.csv")
    return folder / "d.csv"


def looping_folder(folder: Path) -> Path:
    data = parts(("d.csv", GOOD))(folder)
    (data / "again").symlink_to(data)
    return data


def folder_like_a_file(folder: Path) -> Path:
    (folder / "d.csv").mkdir()
    return folder / "d.csv"


def unreadable(folder: Path) -> Path:
    path = content(GOOD)(folder)
    path.chmod(0)
    return path


def pipe(folder: Path) -> Path:
    """A named pipe, into which a thread writes."""
    path = folder / "d.csv"
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_text(GOOD), daemon=True).start()
    return path


def wide(columns: int) -> str:
    names = ",".join(f"c{i}" for i in range(columns))
    return "\n".join([f"{HEADER},{names}", *(f"{line},{','.join(['1'] * columns)}" for line in LINES), ""])


def nested(column: Any) -> Kind:
    """A Parquet column that can be neither an input nor a cell of CSV."""
    message = "'n' holds"
    return Kind(table({"a": A, "b": B, "y": Y, "n": column}), message, message, None)


CAFE = with_column("k", ["café", "thé"])
COMMA = GOOD.replace(",", ";").replace(".", ",")
LONG = "x" * 2**21

KINDS = {
    # -- no table at all
    "empty": text("", "the file is empty"),
    "header only": text(HEADER + "\n", "no rows below the header"),
    "header without end": text(HEADER, "no rows below the header"),
    "blank lines": text("\n\n\n", "no rows below the header"),
    "png": text(b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not a text table but an image"),
    "zip": all_of(zipped, "a zip archive or an Excel workbook"),
    "pdf": text(b"%PDF-1.7\n", "a PDF document"),
    "bytes": text(bytes(range(1, 256)) * 4, "cannot be read"),
    "zero bytes": text(GOOD.replace("2.0", "2\0.0"), "holds a zero byte"),
    "zeros": text(bytes(1000), "holds a zero byte"),
    "parquet as csv": all_of(table({"a": A, "b": B, "y": Y}, "d.csv"), "give --format parquet"),
    "parquet as csv, said": all_of(table({"a": A, "b": B, "y": Y}, "d.csv"), None, "--format", "parquet"),
    "csv as parquet": all_of(content(GOOD, "d.parquet"), "cannot be read"),
    "json": text('{"a": [1, 2], "b": [3, 4]}\n', "'{\"a\": [1'"),
    "html": text("<html>\n<body>\n<p>Not found</p>\n</body>\n</html>\n", "<html>"),
    # -- compression and names
    "gzip": all_of(content(gzip.compress(GOOD.encode()), "d.csv.gz"), None),
    "gzip as csv": all_of(content(gzip.compress(GOOD.encode())), None),
    "cut gzip": all_of(content(gzip.compress(GOOD.encode())[:-12], "d.csv.gz"), "cannot be read"),
    "csv as gzip": all_of(content(GOOD, "d.csv.gz"), "cannot be read"),
    "damaged gzip": all_of(content(gzip.compress(GOOD.encode())[:30] + b"x" * 60, "d.csv.gz"), "cannot be read"),
    "unknown suffix": all_of(content(GOOD, "d.dat"), "or say what it is with --format csv|tsv|parquet"),
    "unknown suffix, said": all_of(content(GOOD, "d.dat"), None, "--format", "csv"),
    "no suffix": all_of(content(GOOD, "d"), "unsupported file type"),
    "absent": all_of(lambda folder: folder / "d.csv", "No such file"),
    # -- encodings
    "utf-8 with a mark": text(b"\xef\xbb\xbf" + GOOD.encode(), None),
    "utf-16 with a mark": text(GOOD.encode("utf-16"), None),
    "utf-32 with a mark": text(GOOD.encode("utf-32"), None),
    "utf-16 without a mark": text(GOOD.encode("utf-16-le"), "give --encoding utf-16-le"),
    "utf-16-be without a mark": text(GOOD.encode("utf-16-be"), "give --encoding utf-16-be"),
    "utf-16 without a mark, said": text(GOOD.encode("utf-16-le"), None, "--encoding", "utf-16-le"),
    "half of utf-16": text(GOOD.encode("utf-16")[:-1], "the text is not UTF-16"),
    "latin-1": read(CAFE.encode("latin-1"), "not UTF-8 in line 2; if the file is from Western Europe"),
    "latin-1, said": text(CAFE.encode("latin-1"), None, "--encoding", "latin-1"),
    "windows-1252": read(CAFE.replace("é", "€").encode("cp1252"), "give --encoding windows-1252"),
    "mixed encodings": read(CAFE.encode().replace("thé".encode(), "thé".encode("latin-1")), "not UTF-8 in line 3"),
    "wrong encoding, said": text(CAFE.encode(), "not ASCII", "--encoding", "ascii"),
    "unknown encoding, said": text(GOOD, "unknown encoding 'klingon'", "--encoding", "klingon"),
    # -- lines and cells
    "carriage returns": text(GOOD.replace("\n", "\r"), None),
    "windows lines": text(GOOD.replace("\n", "\r\n"), None),
    "mixed lines": text(GOOD.replace("\n", "\r\n", 3), None),
    "blank lines between": text(GOOD.replace("\n", "\n\n"), None),
    "no last line end": text(GOOD[:-1], None),
    "ragged": text(GOOD + "1,2\n", "Expected 3 columns, got 2"),
    "too many cells": text(GOOD + "1,2,3,4\n", "Expected 3 columns, got 4"),
    "trailing delimiters": text(GOOD.replace("\n", ",\n"), None),
    "trailing delimiters below": text(HEADER + "\n" + "".join(f"{line},\n" for line in LINES), "Expected 3 columns"),
    "comment": text("# made by a machine\n" + GOOD, "Expected 1 columns, got 3"),
    "open quote": text(GOOD + '"1,2,3\n', "Expected 3 columns, got 1"),
    "open quote in a long file": text(GOOD + '1,"2,3\n' + GOOD * 12_000, "Expected 3 columns, got 2"),
    "quote within a cell": unused(with_column("k", ['x"y', "z"])),
    "long line": text(GOOD + LONG + "\n", "a row is longer than"),
    "long cell": unused(with_column("k", "x" * 10**5)),
    "long name": unused(with_column("k" * 10**5, ["1", "2"])),
    "wide": unused(wide(2_000)),
    "semicolons": text(GOOD.replace(",", ";"), None),
    "tabs": text(GOOD.replace(",", "\t"), None),
    "bars": text(GOOD.replace(",", "|"), None),
    "colons": text(GOOD.replace(",", ":"), "'a:b:y'"),
    "colons, said": text(GOOD.replace(",", ":"), None, "--delimiter", ":"),
    "wrong delimiter, said": text(GOOD, "'a,b,y'", "--delimiter", ";"),
    # -- names
    "one column": Kind(content("y\n1\n2\n"), "no input columns are left", "'a', 'b' missing", "'a', 'b' missing"),
    "twice the same name": text(GOOD.replace(HEADER, "a,a,y"), "duplicate column 'a'"),
    "two empty names": text(GOOD.replace(HEADER, ",,y"), "duplicate column ''"),
    "an empty name": unused(with_column("", ["1", "2"])),
    "target missing": Kind(content(GOOD.replace(HEADER, "a,b,z")), "no column 'y'", None, "target column 'y' missing"),
    "input missing": Kind(content(GOOD.replace(HEADER, "a,c,y")), None, "'b' missing", "'b' missing"),
    "other case": text(GOOD.replace(HEADER, "A,B,Y"), "'"),
    "formula in a name": unused(with_column("=cmd|'/c calc'!A1", ["1", "2"])),
    "html in a name": unused(with_column("<script>alert(1)</script>", ["1", "2"])),
    "quotes and lines in a name": unused(with_column('"k ""1""\nk"', ["1", "2"])),
    "control characters in a name": unused(with_column("k\x1b[31m\x07", ["1", "2"])),
    "emoji in a name": unused(with_column("🦀", ["1", "2"])),
    "right-to-left name": unused(with_column("\u202e\u05e9\u05dd", ["1", "2"])),
    "column of ours": unused(with_column("mean", ["1", "2"])),
    # -- rows and values
    "one row": Kind(content(HEADER + "\n1,2,3\n"), None, None, "d.csv: "),
    "beyond float": text(with_cell(0, "1e999"), "infinit"),
    "beyond squares": text(with_cell(0, "1e200"), "column 'a' holds 1e+200 in the first row"),
    "infinity": text(with_cell(0, "-Inf"), "infinit"),
    "infinite target": Kind(content(with_cell(2, "inf")), "infinit", None, "infinit"),
    "tiny numbers": unused(with_column("k", ["1e-320", "5e-324"])),
    "target without values": Kind(content(column_of(2, [""])), "target 'y' is empty", None, "d.csv: "),
    "constant target": Kind(content(column_of(2, ["5"])), None, None, "d.csv: "),
    "text target": Kind(content(column_of(2, ["x", "z"])), "target 'y' holds text", None, "column 'y' holds 'x'"),
    "target of dates": Kind(content(column_of(2, ["2020-01-01"])), "target 'y' holds", None, "'y' holds '2020-01-01'"),
    "text for numbers": Kind(content(with_cell(1, "?")), "in the first row", *["holds '?' in the first row"] * 2),
    "formula in a cell": unused(with_column("k", ["=1+1", '"@SUM(1,2)"'])),
    "control characters": unused(with_column("k", ["\x01\x02", "\x7f"])),
    "mixed booleans": unused(with_column("k", ["true", "0", "FALSE", "1", "2"]), "column 'k' is text, but most"),
    "yes and no": unused(with_column("k", ["yes", "no"])),
    "missing numbers": Kind(content(with_cell(0, "NA")), None, None, "X and y are not the rows"),
    "missing numbers, not allowed": text(with_cell(0, "NA"), "missing values in column 'a' (1)", "--missing", "error"),
    "missing target": Kind(content(with_cell(2, "NA")), None, None, "X has 11 rows"),
    "an empty column": unused(with_column("k", "")),
    "dates": unused(with_column("k", ["2020-01-01", "2021-02-03"])),
    "mixed zones": unused(with_column("k", ["2020-01-01T00:00:00+01:00", "2020-01-01T00:00:00Z"])),
    "some zones": unused(with_column("k", ["2020-01-01T00:00:00+01:00", "2020-01-01T00:00:00"])),
    "dates and text": unused(with_column("k", ["2020-01-01", "soon"])),
    "impossible dates": unused(with_column("k", ["2020-02-31", "2020-13-01"])),
    "texts that all differ": unused(with_column("k", [f"k{i}" for i in range(N)])),
    # -- spellings of numbers
    "decimal comma": text(COMMA, "give --decimal ,"),
    "decimal comma, said": text(COMMA, None, "--decimal", ","),
    "decimal comma, wrongly said": text(GOOD, "give --decimal .", "--decimal", ","),
    "decimal and delimiter": text(COMMA, "cannot be both", "--decimal", ",", "--delimiter", ","),
    "mixed decimals": unused(with_column("k", ["1.5", '"1,5"']), "column 'k' holds '1,5' in row 2"),
    "thousands": unused(with_column("k", ['"1,234"', "1'234.5", "1 234", "999"])),
    "inconsistent thousands": unused(with_column("k", ['"1,234"', '"12,34"']), "column 'k' holds '12,34' in row 2"),
    "ambiguous thousands": Kind(
        content(with_column("k", "1.234").replace(",", ";").replace("1.234", "1,234")),
        "column 'k' holds '1,234' in the first row, which can have a decimal comma or thousands",
        None,
        None,
    ),
    "per cent": unused(with_column("k", ["12.5%", "3 %"])),
    "mixed per cent": unused(with_column("k", ["12.5%", "3"]), "has per cent signs in 6 of its 12 cells"),
    "leading zeros": unused(with_column("k", ["007", "012"])),
    "hexadecimal": unused(with_column("k", ["0x1F", "0x2A"])),
    # -- Parquet
    "list": nested([[1]] * N),
    "struct": nested([{"u": 1}] * N),
    "binary": nested([b"x"] * N),
    "map": nested(pa.array([[("u", 1)]] * N, pa.map_(pa.string(), pa.int64()))),
    "decimals": Kind(table({"a": A, "b": B, "y": Y, "k": pa.array(range(N), pa.decimal128(9, 2))}), None, None, None),
    "damaged footer": all_of(damaged_parquet("footer"), "cannot be read"),
    "wrong length of the footer": all_of(damaged_parquet("length"), "cannot be read"),
    "cut parquet": all_of(damaged_parquet("end"), "cannot be read"),
    "damaged page": all_of(damaged_parquet("page"), "cannot be read"),
    "no row groups": all_of(no_row_groups, "no rows below the header"),
    "options of text": all_of(table({"a": A, "b": B, "y": Y}), "no delimiter, decimal mark", "--decimal", ","),
    # -- folders and other things in the file system
    "empty folder": all_of(empty_folder, "there is no table file in it"),
    "mixed columns": all_of(parts(("p0.csv", GOOD), ("p1.csv", "a,c,y\n1,2,3\n")), "columns differ"),
    "mixed formats": all_of(parts(("p0.csv", GOOD), ("p1.parquet", GOOD)), "text and Parquet files are mixed"),
    "mixed types": all_of(mixed_types, "column 'a' holds"),
    "an empty part": all_of(parts(("p0.csv", GOOD), ("p1.csv", "")), "p1.csv: the file is empty"),
    "hidden files": all_of(parts(("p0.csv", GOOD), (".p1.csv", "?"), ("_p2.csv", "?")), None),
    "link to itself": all_of(loop, "Too many levels of symbolic links"),
    "folder in itself": all_of(looping_folder, None),
    "folder like a file": all_of(folder_like_a_file, "there is no table file in it"),
    "unreadable": all_of(unreadable, "Permission denied"),
    "named pipe": all_of(pipe, None),
    "device": all_of(lambda _: Path(os.devnull), "the file is empty"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the good table."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "d.csv").write_text(GOOD)
    argv = ["fit", folder / "d.csv", "-t", "y", "--model", "ssgp", "-p", 2, "-q", "-o", folder / "m.prism"]
    assert main([str(each) for each in argv]) == 0
    return folder / "m.prism"


@pytest.fixture
def spool(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, empty at the end."""
    folder = tmp_path_factory.mktemp("spool")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def arguments(command: str, data: object, model: Path, output: Path) -> list[object]:
    if command == "fit":
        return ["fit", data, "-t", "y", "--model", "ssgp", "-p", 2, "-o", output]
    if command == "predict":
        return ["predict", model, data, "-o", output]
    return ["certify", model, data, "--only", "evidence", "--products", 2, "--json", output]


def test_there_are_many() -> None:
    assert len(KINDS) >= 60


@pytest.mark.usefixtures("spool")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_hostile_file(kind: Kind, command: str, run: Run, trained: Path, tmp_path: Path) -> None:
    if kind.make is unreadable and os.geteuid() == 0:
        pytest.skip("root may read everything")
    data = kind.make(tmp_path)
    output = tmp_path / "out.csv"
    output.write_bytes(OLD)
    before = sorted(tmp_path.rglob("*"))
    options = [*kind.options, *(kind.fit_options if command == "fit" else ())]
    outcome = run(*arguments(command, data, trained, output), *options)
    expected = kind.expected(command)
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
    assert "Traceback" not in outcome.err
    assert all(character.isprintable() or character == "\n" for character in outcome.out + outcome.err)
    if expected is None:
        assert outcome.code in ((0, 1) if command == "certify" else (0,)), outcome
        assert output.read_bytes() != OLD
        assert all(line.startswith("prismgp: ") for line in outcome.err.splitlines())
        return
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("prismgp: error: ")
    assert outcome.err.count("\n") == 1
    assert expected in outcome.err
    assert output.read_bytes() == OLD


# -- options, outputs and standard input -----------------------------------------------------------


@pytest.mark.usefixtures("spool")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-t", "y,y"], "duplicate target 'y'"),
        (["-t", "y,q"], "no column 'q'"),
        (["-t", "q,r"], "no column 'q'"),
        (["-t", ""], "--target names no column"),
        (["-t", "y,b", "--inputs", "a,b"], "target 'b' cannot be an input"),
        (["-t", "a,b,y"], "no input columns are left"),
        (["--inputs", "a,nope"], "no column 'nope'"),
        (["--decimal", ";"], "invalid choice: ';'"),
        (["--format", "xlsx"], "invalid choice: 'xlsx'"),
        (["--encoding", "hex"], "unknown encoding 'hex'"),
    ],
)
def test_hostile_options(options: list[str], expected: str, refused: Callable[..., str], tmp_path: Path) -> None:
    content(GOOD)(tmp_path)
    argv = arguments("fit", tmp_path / "d.csv", tmp_path, tmp_path / "m.prism")
    assert expected in refused(*argv, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]


@pytest.mark.usefixtures("spool")
@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_outputs(command: str, refused: Callable[..., str], trained: Path, tmp_path: Path) -> None:
    data = content(GOOD)(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    before = sorted(tmp_path.rglob("*"))
    for name, expected in (
        ("d.csv", "would replace an input"),
        ("link.csv", "would replace an input"),
        ("absent/o.csv", "does not exist"),
        ("folder.csv", "is a folder"),
        ("d.csv/o.csv", "does not exist"),
        ("loop.csv", "loop.csv: Too many levels of symbolic links"),
        ("pipe.csv", "is not a regular file"),
    ):
        assert expected in refused(*arguments(command, data, trained, tmp_path / name)), name
    assert sorted(tmp_path.rglob("*")) == before
    assert data.read_text() == GOOD


@pytest.mark.usefixtures("spool")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (GOOD.encode(), [], None),
        (gzip.compress(GOOD.encode()), [], None),
        (COMMA.encode("utf-16"), ["--decimal", ","], None),
        (b"", [], "standard input: the file is empty"),
        (GOOD.encode(), ["--format", "parquet"], "standard input: cannot be read"),
        (GOOD.encode() + b"1,2\n", [], "standard input: cannot be read: CSV parse error: Row #14"),
    ],
    # Packed bytes hold the time: as a name, two processes that test would not agree on it.
    ids=["plain", "gzip", "utf-16", "empty", "other format", "cut row"],
)
def test_standard_input(
    command: str,
    data: bytes,
    options: list[str],
    expected: str | None,
    run: Run,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as stream:
        stream.write(data)
        stream.seek(0)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
        outcome = run(*arguments(command, "-", trained, tmp_path / "out.csv"), *options)
    if expected is None:
        assert outcome.code in (0, 1), outcome
        assert (tmp_path / "out.csv").exists()
    else:
        assert outcome.code == 2
        assert expected in outcome.err
        assert outcome.err.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_only_one_standard_input(refused: Callable[..., str], trained: Path) -> None:
    assert "cannot both be standard input" in refused("certify", trained, "-", "--test", "-")
