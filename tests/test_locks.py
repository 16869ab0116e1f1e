"""Locks: the second one is told who holds the first, and what is left of a process that is gone is taken over."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from prismgp import SSGPRegressor, _locks
from prismgp._locks import Lock
from prismgp.context import FitEvent
from prismgp.exceptions import PrismGPError, PrismGPWarning

unix = pytest.mark.skipif(sys.platform == "win32", reason="locks of Unix")


@pytest.fixture(params=["locks", "no locks"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With locks of the file system, and without."""
    if request.param == "no locks":
        monkeypatch.setattr(_locks, "lock_file", lambda _: None)
    return str(request.param)


def test_the_second_is_refused_and_told_why(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c"
    with Lock(path) as first:
        assert first.place.exists()
        with pytest.raises(PrismGPError, match=rf"{path}: is in use by process {os.getpid()} \(.*\), since 2"):
            Lock(path)
        Lock(tmp_path / "d").close()  # another file
        assert first.place.exists()
    first.close()
    assert list(tmp_path.iterdir()) == []
    Lock(path).close()


def test_links_are_the_same_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c").touch()
    (tmp_path / "link").symlink_to(tmp_path / "c")
    with Lock(tmp_path / "c"), pytest.raises(PrismGPError, match="link: is in use"):
        Lock(tmp_path / "link")


def test_a_forgotten_lock_ends(tmp_path: Path, kind: str) -> None:
    lock = Lock(tmp_path / "c")
    assert lock.place.exists()
    del lock
    Lock(tmp_path / "c").close()


CHILD = """
import os, sys
from prismgp import _locks
if sys.argv[2] == "no locks":
    _locks.lock_file = lambda _: None
lock = _locks.Lock(sys.argv[1])
print(os.getpid(), flush=True)
sys.stdin.readline()
os._exit(9)  # as if killed: nothing is tidied up
"""


@unix
def test_other_processes(tmp_path: Path, kind: str) -> None:
    """One that lives is named; of one that is gone the lock is taken over."""
    path = tmp_path / "c"
    argv = [sys.executable, "-c", CHILD, str(path), kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        with pytest.raises(PrismGPError, match=f"in use by process {pid} "):
            Lock(path)
        child.communicate("\n")
    assert child.returncode == 9
    assert [each.name for each in tmp_path.iterdir()] == [".c.lock"]
    with Lock(path) as lock:
        assert json.loads(lock.place.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


@unix
def test_numbers_of_processes_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_locks, "lock_file", lambda _: None)
    owner = {"pid": os.getpid(), "host": platform.node(), "started": "0"}
    (tmp_path / ".c.lock").write_text(json.dumps(owner))
    if not Path("/proc/self/stat").exists():
        pytest.skip("the system does not tell when a process began")
    Lock(tmp_path / "c").close()


def test_without_locks_other_machines_are_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_locks, "lock_file", lambda _: None)
    place = tmp_path / ".c.lock"
    for content in (json.dumps({"pid": 1, "host": "elsewhere"}), "not JSON", "[]", json.dumps({"pid": "x"})):
        place.write_text(content)
        with pytest.raises(PrismGPError, match=rf"in use by .*; if it has ended, remove {place}"):
            Lock(tmp_path / "c")
        assert place.read_text() == content
    place.unlink()
    Lock(tmp_path / "c").close()


@unix
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_systems_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def none(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", none)
    with Lock(tmp_path / "c"), pytest.raises(PrismGPError, match="in use by process"):
        Lock(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("short_race")
def test_two_fits_on_one_checkpoint(tmp_path: Path) -> None:
    """The second is refused while the first runs, by its callback; afterwards, and after an error, the way is free."""
    x = [[float(i)] for i in range(20)]
    y = [float(i % 3) for i in range(20)]
    path = tmp_path / "c"
    refused = []

    def second(event: FitEvent) -> None:
        if event.final:  # the fit is over
            return
        with pytest.raises(PrismGPError, match=rf"{path}: is in use by process {os.getpid()}") as caught:
            SSGPRegressor(2, max_iter=2, random_state=0, checkpoint=path).fit(x, y)
        refused.append(str(caught.value))

    def fails(_: object) -> None:
        raise RuntimeError("from the callback")

    model = SSGPRegressor(2, max_iter=2, random_state=0, checkpoint=path)
    model._callback = second
    model.fit(x, y)
    assert refused
    assert "\n" not in refused[0]
    model._callback = fails
    with pytest.raises(RuntimeError, match="from the callback"):
        model.fit(x, y)
    model._callback = None
    model.fit(x, y)
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


@pytest.mark.usefixtures("short_race")
def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock, and no checkpoint, but a fit."""

    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    x = [[float(i)] for i in range(20)]
    monkeypatch.setattr("prismgp._locks.os.open", read_only)
    with pytest.warns(PrismGPWarning, match=f"the checkpoint {tmp_path / 'c'} could not be written: Read-only"):
        SSGPRegressor(2, max_iter=2, random_state=0, checkpoint=tmp_path / "c").fit(x, [each[0] for each in x])
