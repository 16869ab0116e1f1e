"""Locks: one process at a time works with a file."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import time
import uuid
import weakref
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from prismgp.exceptions import PrismGPError

if sys.platform != "win32":  # where the existence of a file has to do
    import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
_ATTEMPTS = 20  # others may take and release the lock in between
_LONGEST = 120  # characters of a command in a message


class Lock:
    """The right to use a file, from the moment it is made until :meth:`close`.

    A second one, in this process or in another, raises a PrismGPError that names the file and the other process. The
    owner is written to a hidden file beside the file, ``.NAME.lock``, which is removed in the end. The lock itself is
    the system's, so that it ends with its process however that ends. Where the file system has no locks, the hidden
    file is the lock: that of a process on this machine that is gone is taken over, one of another machine is respected.

    OSError: the hidden file cannot be written, so that there can be no lock.

    Parameters
    ----------
    path : path
        The file need not exist; its folder must.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        target = Path(path).resolve()  # two links to one file are the same file
        self.path, self.place = Path(path), target.with_name(f".{target.name}.lock")
        handle = self._take()
        self._finalizer = weakref.finalize(self, _release, handle, self.place, os.getpid())

    def close(self) -> None:
        """Release the lock; further calls do nothing."""
        self._finalizer()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> int | None:
        """Lock the file and return its descriptor; None where the existence of the file is the lock."""
        for _ in range(_ATTEMPTS):
            handle = os.open(self.place, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
            try:
                locked = lock_file(handle)
                if locked is None:
                    break
                if not locked:
                    raise self._in_use_error(_owner(self.place))
                if _is_same(handle, self.place):  # else its last owner has just removed it
                    os.ftruncate(handle, 0)
                    os.write(handle, _describe_self())
                    kept, handle = handle, -1
                    return kept
            finally:
                if handle >= 0:
                    os.close(handle)
        else:
            raise self._in_use_error({})
        with suppress(FileNotFoundError):
            if not self.place.stat().st_size:  # made just now
                self.place.unlink()
        self._take_without_locks()
        return None

    def _take_without_locks(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                handle = os.open(self.place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                owner = _owner(self.place)
                if owner is None:
                    continue
                if not _is_gone(owner):
                    raise self._in_use_error(owner) from None
                self._set_aside(owner)
                continue
            try:
                os.write(handle, _describe_self())
            finally:
                os.close(handle)
            return
        raise self._in_use_error({})

    def _set_aside(self, owner: dict[str, Any]) -> None:
        """Remove the file of an owner that has ended, unless another process has taken the lock since."""
        aside = self.place.with_name(f"{self.place.name}-{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):
            self.place.rename(aside)
            if _owner(aside) != owner:
                with suppress(OSError):
                    os.link(aside, self.place)
            aside.unlink()

    def _in_use_error(self, owner: dict[str, Any] | None) -> PrismGPError:
        owner = owner or {}
        who = "another process"
        if "pid" in owner:
            where = "" if owner.get("host") == platform.node() else f" on {owner.get('host')}"
            who = f"process {owner['pid']}{where} ({owner.get('command')}), since {owner.get('since')}"
        remedy = "wait until it has ended, or name another"
        if owner.get("host") != platform.node() or sys.platform == "win32":
            remedy += f"; if it has ended, remove {self.place}"
        return PrismGPError(f"{self.path}: is in use by {who}; {remedy}")


def lock_file(handle: int) -> bool | None:
    """Lock an open file; return whether the lock was free, or None where the file system has no locks."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _release(handle: int | None, place: Path, pid: int) -> None:
    if os.getpid() != pid:  # a fork: the lock is that of its parent
        return
    with suppress(OSError):
        place.unlink()
    if handle is not None:
        os.close(handle)


def _is_same(handle: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(place))
    except FileNotFoundError:
        return False


def _describe_self() -> bytes:
    words = " ".join(Path(word).name if k == 0 else word for k, word in enumerate(sys.argv))
    about = {
        "pid": os.getpid(),
        "started": _start_of(os.getpid()),
        "host": platform.node(),
        "command": words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "...",
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    return json.dumps(about).encode()


def _owner(place: Path) -> dict[str, Any] | None:
    """Read the owner from the file: empty if it cannot be read, None if there is no file."""
    try:
        found = json.loads(place.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_gone(owner: dict[str, Any]) -> bool:
    """Return whether the owner has ended: no process of this machine has its id, or a later one has it."""
    pid = owner.get("pid")
    if owner.get("host") != platform.node() or type(pid) is not int or pid <= 0 or sys.platform == "win32":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return owner.get("started") is not None and owner["started"] != _start_of(pid)


def _start_of(pid: int) -> str | None:
    """Return when a process began, in the system's own units, if known: ids of processes are used again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
