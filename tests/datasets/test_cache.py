"""Files of the data sets: folders, downloads against a server on this machine, archives honest and hostile."""

from __future__ import annotations

import hashlib
import io
import socket
import zipfile

import pytest

from prismgp.datasets.cache import RETRIES, Resource, extract_matching, fetch, sha256_of
from prismgp.exceptions import DataError


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def published(site, **options):
    return Resource("new/file.bin", (site.address,), **{"sha256": sha256(site.content), **options})


def names(cache):
    return sorted(path.name for path in (cache / "new").iterdir())


# -- downloads -------------------------------------------------------------------------------------


def test_whole(site, own_folder, cache):
    assert fetch(published(site)).read_bytes() == site.content
    assert names(cache) == ["file.bin"]
    fetch(published(site))
    assert len(site.requests) == 1


def test_broken_connection_is_tried_again(site, own_folder, cache):
    site.cut = [30_000]
    assert fetch(published(site)).read_bytes() == site.content
    assert len(site.requests) == 2
    assert names(cache) == ["file.bin"]


def test_broken_connection_is_given_up(site, own_folder, cache):
    site.cut = [30_000, 40_000]
    with pytest.raises(DataError, match="cannot be downloaded"):
        fetch(published(site, sha256=None))
    assert names(cache) == []


def test_no_length_announced(site, own_folder):
    site.length = False
    assert fetch(published(site)).read_bytes() == site.content


def test_wrong_checksum_leaves_nothing(site, own_folder, cache):
    with pytest.raises(DataError, match=rf"{site.address} is not the expected file.*{'0' * 64}.*removed"):
        fetch(published(site, sha256="0" * 64))
    assert names(cache) == []


def test_absent_file(site, own_folder, cache):
    site.status = [404] * 9
    with pytest.raises(DataError, match="cannot be downloaded: 404"):
        fetch(published(site))
    assert names(cache) == []


def test_busy_server_is_asked_again(site, own_folder):
    site.status = [503]
    fetch(published(site))
    assert len(site.requests) == 2


def test_busy_server_is_given_up(site, own_folder, monkeypatch):
    monkeypatch.setattr("prismgp.datasets.cache.RETRIES", RETRIES)
    site.status = [503] * 9
    with pytest.raises(DataError, match="cannot be downloaded: 503"):
        fetch(published(site))
    assert len(site.requests) == 1 + RETRIES


def test_unwritable_folder(site, own_folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRISMGP_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot store .* set PRISMGP_CACHE"):
        fetch(published(site))


# -- data folder, cache, network ---------------------------------------------------------------------


def dead_address():
    """An address of this machine at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"


def test_no_network_says_what_to_do(own_folder, cache):
    resource = Resource("set/file.bin", (dead_address(),), "0" * 64)
    with pytest.raises(DataError) as caught:
        fetch(resource)
    message = str(caught.value)
    assert "\n" not in message
    for part in (resource.addresses[0], "by hand", str(cache / "set" / "file.bin"), "PRISMGP_DATA"):
        assert part in message


def test_data_folder_comes_first(site, own_folder, cache):
    resource = Resource("file.bin", (site.address,), sha256(site.content))
    for folder in (own_folder, cache):
        folder.mkdir(exist_ok=True)
        (folder / "file.bin").write_bytes(site.content)
    assert fetch(resource) == own_folder / "file.bin"
    (own_folder / "file.bin").unlink()
    assert fetch(resource) == cache / "file.bin"
    assert not site.requests


def test_wrong_file_of_the_user_is_named_and_kept(site, own_folder):
    (own_folder / "file.bin").write_bytes(b"mine")
    with pytest.raises(DataError, match="not the published file"):
        fetch(Resource("file.bin", (site.address,), sha256(site.content)))
    assert (own_folder / "file.bin").read_bytes() == b"mine"


def test_damaged_cache_is_replaced(site, own_folder, cache):
    resource = Resource("file.bin", (site.address,), sha256(site.content))
    fetch(resource).write_bytes(b"damaged")
    assert fetch(resource).read_bytes() == site.content


def test_second_address_after_a_wrong_file(site, own_folder):
    resource = Resource("file.bin", (dead_address(), site.address), sha256(site.content))
    assert fetch(resource).read_bytes() == site.content


def test_wrong_file_is_the_reason_given(site, own_folder):
    with pytest.raises(DataError, match="not the expected file"):
        fetch(Resource("file.bin", (site.address, dead_address()), "0" * 64))


def test_checksum_of_first_download_is_kept(site, own_folder, cache):
    resource = Resource("file.bin", (site.address,), None)
    path = fetch(resource)
    assert (cache / "file.bin.sha256").read_text().split()[0] == sha256_of(path)
    assert fetch(resource) == path
    assert len(site.requests) == 1
    path.write_bytes(b"damaged")
    assert fetch(resource).read_bytes() == site.content
    assert len(site.requests) == 2


# -- archives --------------------------------------------------------------------------------------


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
