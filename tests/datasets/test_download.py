"""Downloads: resumed, checked, given up; against a server on this machine."""

from __future__ import annotations

import hashlib
import json
import socket

import pytest

from prismgp.datasets._download import ChecksumError, DownloadError, download, sha256_of
from prismgp.datasets._resources import Resource, fetch
from prismgp.exceptions import DataError
from tests.datasets.conftest import IMPATIENT


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "new" / "file.bin"


def names(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_whole(site, target):
    assert download(site.address, target, sha256(site.content)) == sha256(site.content)
    assert target.read_bytes() == site.content
    assert names(target) == ["file.bin"]


def test_broken_connection_is_resumed(site, target):
    site.cut = [30_000, 40_000]
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert target.read_bytes() == site.content
    assert [request.get("Range") for request in site.requests] == [None, "bytes=30000-", "bytes=70000-"]
    assert site.requests[1]["If-Range"] == '"one"'
    assert names(target) == ["file.bin"]


def test_interrupted_download_is_resumed_next_time(site, target):
    site.cut = [30_000, 0, 0, 0]
    with pytest.raises(DownloadError, match="broke after 30,000 of 100,000 bytes"):
        download(site.address, target, patience=IMPATIENT)
    assert names(target) == ["file.bin.part", "file.bin.part.json"]
    site.cut, site.requests = [], []
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert [request.get("Range") for request in site.requests] == ["bytes=30000-"]


def test_changed_file_starts_over(site, target):
    site.cut = [30_000, 0, 0, 0]
    with pytest.raises(DownloadError):
        download(site.address, target, patience=IMPATIENT)
    site.cut, site.content, site.tag = [], b"new" * 20_000, '"two"'
    download(site.address, target, patience=IMPATIENT)
    assert target.read_bytes() == site.content


def test_server_without_ranges(site, target):
    site.ranges, site.cut = False, [30_000]
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert target.read_bytes() == site.content
    assert len(site.requests) == 2


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_unidentified_version_is_not_resumed(site, target, tag):
    site.tag, site.cut = tag, [30_000]
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert [request.get("Range") for request in site.requests] == [None, None]


def test_part_of_another_address_is_not_resumed(site, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(b"x" * 50)
    target.with_name("file.bin.part.json").write_text(json.dumps({"address": "elsewhere", "version": '"one"'}))
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert "Range" not in site.requests[0]


def test_part_longer_than_the_file(site, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(b"x" * 200_000)
    target.with_name("file.bin.part.json").write_text(json.dumps({"address": site.address, "version": '"one"'}))
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert target.read_bytes() == site.content


def test_no_length_announced(site, target):
    site.length = False
    download(site.address, target, sha256(site.content), patience=IMPATIENT)
    assert target.read_bytes() == site.content


def test_wrong_checksum_leaves_nothing(site, target):
    with pytest.raises(ChecksumError, match=r"not the expected file.*removed"):
        download(site.address, target, "0" * 64)
    assert names(target) == []


def test_absent_file_is_asked_for_once(site, target):
    site.status = [404]
    with pytest.raises(DownloadError, match="HTTP 404"):
        download(site.address, target, patience=IMPATIENT)
    assert len(site.requests) == 1


def test_busy_server_is_asked_again(site, target):
    site.status = [503]
    download(site.address, target, patience=IMPATIENT)
    assert len(site.requests) == 2


def test_busy_server_is_given_up(site, target):
    site.status = [503] * 9
    with pytest.raises(DownloadError, match="HTTP 503"):
        download(site.address, target, patience=IMPATIENT)
    assert len(site.requests) == IMPATIENT.attempts


def test_unwritable_folder(site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot store"):
        download(site.address, tmp_path / "file" / "under", patience=IMPATIENT)


# -- resources: data folder, cache, network ----------------------------------------------------------


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
