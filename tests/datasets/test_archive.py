"""Zip archives, honest and hostile."""

from __future__ import annotations

import io
import zipfile

import pytest

from prismgp.datasets._archive import extract_matching
from prismgp.exceptions import DataError


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.fixture
def archive(tmp_path):
    def write(members):
        path = tmp_path / "in.zip"
        path.write_bytes(zipped(members))
        return path

    return write


def test_names_are_sorted_and_folders_ignored(archive, tmp_path):
    path = archive({"deep/er/b.csv": "b", "a.csv": "a", "read.me": "no", "csv/": ""})
    found = extract_matching(path, r"[a-z]\.csv", tmp_path / "out")
    assert [file.name for file in found] == ["a.csv", "b.csv"]
    assert [file.read_text() for file in found] == ["a", "b"]
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.csv", "b.csv"]


def test_archive_in_archive(archive, tmp_path):
    path = archive({"inner.zip": zipped({"folder/a.csv": "a"})})
    assert extract_matching(path, r"a\.csv", tmp_path / "out") == [tmp_path / "out" / "a.csv"]


@pytest.mark.parametrize("name", ["../a.csv", "/a.csv", "..\\..\\a.csv", "x/../../a.csv"])
def test_nothing_leaves_the_folder(archive, tmp_path, name):
    found = extract_matching(archive({name: "a"}), r"a\.csv", tmp_path / "out")
    assert found == [tmp_path / "out" / "a.csv"]
    assert sorted(file.name for file in tmp_path.iterdir() if file.name not in {"cache", "data"}) == ["in.zip", "out"]


def test_twice(archive, tmp_path):
    with pytest.raises(DataError, match="there twice"):
        extract_matching(archive({"a.csv": "1", "x/a.csv": "2"}), r"a\.csv", tmp_path / "out")


def test_no_such_file(archive, tmp_path):
    with pytest.raises(DataError, match="not the expected archive"):
        extract_matching(archive({"b.txt": ""}), r"a\.csv", tmp_path / "out")


@pytest.mark.parametrize("damage", [b"", b"<html>not a zip</html>"])
def test_no_archive(tmp_path, damage):
    (tmp_path / "in.zip").write_bytes(damage)
    with pytest.raises(DataError, match="not a usable zip archive"):
        extract_matching(tmp_path / "in.zip", r"a\.csv", tmp_path / "out")


def test_damaged_member(archive, tmp_path):
    path = archive({"a.csv": "1,2,3\n" * 1000})
    content = bytearray(path.read_bytes())
    content[40:50] = bytes(10)
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a usable zip archive"):
        extract_matching(path, r"a\.csv", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
