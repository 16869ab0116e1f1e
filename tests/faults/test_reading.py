"""Faults while files are read: they change, grow, shrink or vanish; pages are damaged; the device has errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prismgp.data.tables import TableFile, _translate_errors
from prismgp.model import container
from tests.commands import assert_refused
from tests.faults.commands import COMMANDS, Bench, make_table

TABLES = tuple(name for name in COMMANDS if name not in ("predict gzip", "certify figure"))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"1.0,2.0,x,3.0\n")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def touch(path: Path) -> None:
    """Written again, with the same size: only the time tells."""
    data = path.read_bytes()
    path.write_bytes(data[:-4] + data[-4:][::-1])
    os.utime(path, ns=(1, 1))


def swap(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes() + b"\n")
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


CHANGES: dict[str, Callable[[Path], None]] = {each.__name__: each for each in (grow, cut, empty, touch, swap, remove)}


def change_while_read(monkeypatch: pytest.MonkeyPatch, path: Path, change: Callable[[Path], None], batch: int) -> None:
    """Change a table when so many of its batches have been read, in whichever pass that is."""
    original, seen = TableFile.raw_batches, 0

    def raw_batches(self: TableFile, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for each in original(self, *args, **options):
            yield each
            seen += 1
            if seen == batch:
                change(path)

    monkeypatch.setattr(TableFile, "raw_batches", raw_batches)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_changes_while_it_is_read(
    bench: Bench, name: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    bench.prepare(name)
    path = bench.folder / command.data
    change_while_read(monkeypatch, path, CHANGES[change], 1)
    with bench.unharmed(command.data):
        outcome = bench.run(name)
    said = "the file was removed" if change == "remove" else "the file has changed while it was in use"
    assert_refused(outcome, str(path), said)


@pytest.mark.parametrize(("name", "batch"), [("fit csv", 2), ("fit csv", 3), ("fit parquet", 2), ("report", 2)])
def test_a_table_changes_between_two_passes(
    bench: Bench, name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that read their table several times notice it in whichever pass it happens."""
    command = COMMANDS[name]
    bench.prepare(name)
    change_while_read(monkeypatch, bench.folder / command.data, grow, batch)
    with bench.unharmed(command.data):
        outcome = bench.run(name)
    assert_refused(outcome, str(bench.folder / command.data), "the file has changed while it was in use")


MODELS = tuple(name for name, command in COMMANDS.items() if command.has_model and "figure" not in name)


@pytest.mark.parametrize("change", ["grow", "cut", "touch", "empty"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_changes_while_it_is_read(
    bench: Bench, name: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.prepare(name)
    path, original = bench.folder / "m.prism", container.digest_file

    def digest(*args: Any) -> bytes:
        found: bytes = original(*args)
        CHANGES[change](path)
        return found

    monkeypatch.setattr(container, "digest_file", digest)
    with bench.unharmed("m.prism"):
        assert_refused(bench.run(name), str(path), "changed while it was read")


# -- damaged pages and devices ---------------------------------------------------------------------


def damage(path: Path, column: int, group: int, *, how: str) -> None:
    """Write the table in three row groups, and damage the page of one column of one of them."""
    options: dict[str, Any] = {"compression": "none", "write_page_checksum": True}
    if how == "compressed":
        options = {"compression": "zstd"}
    pq.write_table(pa.Table.from_pandas(make_table()), path, row_group_size=20, use_dictionary=False, **options)
    place = pq.ParquetFile(path).metadata.row_group(group).column(column)
    data = bytearray(path.read_bytes())
    end = place.data_page_offset + place.total_compressed_size
    at = end - 9
    if how == "compressed":  # the format of the compression, as numbers that do not compress are stored as they are
        at = data.index(b"\x28\xb5\x2f\xfd", place.data_page_offset)
    data[at : at + 8] = bytes(byte ^ 0xA5 for byte in data[at : at + 8])
    path.write_bytes(data)


PARQUET = ("fit parquet", "predict parquet", "certify figure", "report")


@pytest.mark.parametrize("how", ["checksum", "compressed"])
@pytest.mark.parametrize(("column", "group"), [(0, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("name", PARQUET)
def test_a_damaged_page(bench: Bench, name: str, column: int, group: int, how: str) -> None:
    path = bench.folder / "d.parquet"
    damage(path, column, group, how=how)
    bench.prepare(name)
    with bench.unharmed():
        assert_refused(bench.run(name), str(path), "cannot be read")


@pytest.mark.parametrize("name", TABLES)
def test_a_device_with_errors(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.folder / COMMANDS[name].data

    def raw_batches(self: TableFile, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        with _translate_errors(self):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        yield

    bench.prepare(name)
    monkeypatch.setattr(TableFile, "raw_batches", raw_batches)
    with bench.unharmed():
        assert_refused(bench.run(name), str(path), "Input/output error")
