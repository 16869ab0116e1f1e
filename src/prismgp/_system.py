"""The machine: files that appear whole or not at all, memory, threads, devices; random streams; formats of values."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_limits

from prismgp.exceptions import DataError, PrismGPError, PrismGPWarning, TooLargeError

if TYPE_CHECKING:  # torch takes a second to load, and not every command needs it
    import torch

    from prismgp._types import RandomState

DEVICES = ("cpu", "cuda", "auto")  # and "cuda:1" and the like
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, a limit on the size of files
_FLOOR = 256 * 2**20  # bytes beside the loaded libraries
_SQUARE = 200  # rows of matrices whose product needs buffers
_UNKNOWN = 8 * 2**30  # assumed where the system does not tell
_OWN_FILES = os.path.join(os.path.dirname(__file__), "")  # as frames name them
_caller: ContextVar[tuple[str, int] | None] = ContextVar("caller", default=None)  # file and line, in our threads


@contextmanager
def atomic_path(path: str | PathLike[str], size: int = 0) -> Iterator[Path]:
    """Provide a temporary path beside ``path``; renamed over it when the block succeeds, removed when it fails.

    Contents reach the disk before the rename, so a crash leaves the old file or the new one. ``size`` are the bytes
    that will be written, if that is known: without room for them, nothing is begun. Errors name ``path``; those of a
    full disk also say how many bytes are needed.
    """
    target = Path(path).resolve()  # through a link, so that the link stays
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    free = free_bytes(target.parent)
    if free is not None and size > free:
        raise _no_room(errno.ENOSPC, path, size, free)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:  # names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    os.close(handle)
    temporary = Path(name)
    try:
        with name_errors(path, temporary, size):
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)  # mkstemp's 0600 would surprise whoever shares the folder
            temporary.replace(target)
    finally:
        with suppress(OSError):  # of a disk that is read-only by now; what went wrong before counts
            temporary.unlink(missing_ok=True)


@contextmanager
def name_errors(place: str | PathLike[str], written: Path | None = None, size: int = 0) -> Iterator[None]:
    """Name the place that the user knows in errors of the system that name no file, or ``written``.

    Where the disk of ``written`` is full, they also say how many bytes are needed: at least ``size``, and those that
    are there.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(written)):
            raise
        if error.errno in _FULL and written is not None:
            with suppress(OSError):
                size = max(size, written.stat().st_size)
            raise _no_room(error.errno, place, size, free_bytes(written.parent)) from error
        raise OSError(error.errno, error.strerror or str(error), str(place)) from error


def _no_room(number: int, place: str | PathLike[str], size: int, free: int | None) -> OSError:
    needed = f": at least {size:,} bytes are needed" if size else ""
    there = "" if free is None else f"{',' if needed else ':'} {free:,} are free"
    return OSError(number, f"{os.strerror(number)}{needed}{there}", str(place))


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that can still be written to the folder's disk; None if the system cannot tell."""
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):  # Windows has no such call
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def available_bytes(device: torch.device | None = None) -> int:
    """Return the bytes that can be allocated now on the device, None: the CPU, respecting a container's limit."""
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    figures = (read_proc_bytes("/proc/meminfo", "MemAvailable"), bytes_within_cgroup(), bytes_within_limit())
    found = [value for value in figures if value is not None]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def read_proc_bytes(file: str, name: str) -> int | None:
    """Read an entry of a file such as /proc/meminfo, in bytes; None if the system does not have it."""
    try:
        for line in Path(file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def bytes_within_cgroup(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the bytes that the limits of the container, and of groups around it, leave; None without a limit."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    found = []
    for _, controllers, path in [("0", "", "/"), ("0", "memory", "/"), *(line for line in lines if len(line) == 3)]:
        if controllers not in ("", "memory"):
            continue
        # A container may see its own group as the root of the mount, while the path is that outside of it.
        root = mount / controllers
        folder = root / path.lstrip("/")
        while True:
            found.append(_group_available(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return min((value for value in found if value is not None), default=None)


def _group_available(folder: Path) -> int | None:
    """Return the bytes that the limit of one group leaves, by the files of version 2 or of version 1."""
    for limit, used, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((folder / limit).read_text())  # "max" is no limit, and no number
            taken = int((folder / used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # Cached file pages are given back under pressure.
            return max(0, most - taken + int(stat.get(inactive, 0)))
        except (OSError, ValueError):
            continue
    return None


def bytes_within_limit() -> int | None:
    """Return the bytes that a limit of the process, as set by ``ulimit -v``, leaves; None without a limit."""
    try:
        import resource  # absent on Windows, which has no such limit
    except ModuleNotFoundError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = read_proc_bytes("/proc/self/status", "VmSize")
    return None if limit == resource.RLIM_INFINITY or used is None else max(0, limit - used)


def reserve_memory() -> None:
    """Refuse to begin where the limit of the process is too low for the libraries, and let them take what they need.

    Where an allocation fails, OpenBLAS tries it again without an end, and Arrow waits for a thread that never begins.
    Limits of containers do not make allocations fail.
    """
    there = bytes_within_limit()
    if there is None:
        return
    if there < _FLOOR:
        raise TooLargeError(
            f"the limit of the process leaves {format_bytes(there)} of memory, and at least {format_bytes(_FLOOR)} are "
            "needed; raise it (ulimit -v)"
        )
    square = np.ones((_SQUARE, _SQUARE))
    np.dot(square, square)
    if "scipy.linalg" in sys.modules:  # with an OpenBLAS of its own; not all commands load it
        sys.modules["scipy.linalg"].blas.dgemm(1.0, square, square)


@contextmanager
def refuse_too_large(what: str) -> Iterator[None]:
    """Turn a failed allocation in any library into a TooLargeError: ``what`` needs too much memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        found = too_large(error, what)
        if found is None:
            raise
        raise found from error


def too_large(error: BaseException | None, what: str) -> TooLargeError | None:
    """Return the TooLargeError for a failed allocation; None for any other error, and for a TooLargeError.

    torch says so by a RuntimeError, which on the CPU has no class of its own.
    """
    text = str(error)
    failed = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "bad_alloc" in text)
    )
    if "torch" in sys.modules:
        failed = failed or isinstance(error, sys.modules["torch"].cuda.OutOfMemoryError)
    if not failed or isinstance(error, TooLargeError):
        return None
    asked = re.search(r"(?i)allocate ([\d.]+ ?[KMGTPE]i?B|\d+ bytes)", text)
    piece = "" if asked is None else f" (a piece of {asked[1]} was refused)"
    there = format_bytes(available_bytes())
    return TooLargeError(
        f"{what} needs more memory than there is{piece}, {there} are available; use fewer rows at a time, fewer "
        "columns or fewer frequencies, or raise the limit"
    )


def warn_caller(message: str) -> None:
    """Warn, and name the line that called this library, however deep in it or in which of its threads that is."""
    remembered = _caller.get()
    if remembered is None:
        warnings.warn(message, PrismGPWarning, stacklevel=1 + _find_caller()[0])
    else:
        warnings.warn_explicit(message, PrismGPWarning, *remembered)


def remember_caller() -> Context:
    """A context for a thread of this library, in which warnings name the line that called the library here."""
    context = copy_context()
    if _caller.get() is None:
        context.run(_caller.set, _find_caller()[1])
    return context


def _find_caller() -> tuple[int, tuple[str, int]]:
    """How many frames up from here the caller of our outermost function is, with its file and line."""
    frames, frame = [], sys._getframe().f_back
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    # Scikit-learn may stand between, and decorators before it.
    own = max(k for k, (file, _) in enumerate(frames) if file.startswith(_OWN_FILES))
    caller = next((k for k in range(own + 1, len(frames)) if frames[k][0] != contextlib.__file__), own)
    return caller, frames[caller]


def format_amount(value: float) -> str:
    """Format a number in the user's units, in few characters."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e12 else f"{value:.4g}"


def format_count(count: int, noun: str) -> str:
    """Format a number of things, e.g. ``1 row`` or ``2,000 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_bytes(count: float) -> str:
    """Format a number of bytes, e.g. ``1.5 GiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it: arrays become lists, and numbers that are not finite None."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        return to_plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def limit_blas_threads() -> threadpool_limits:
    """A context in which the OpenBLAS of NumPy and SciPy uses one thread.

    Its idle threads spin for a while after each call. Between calls into torch, which has a pool of its
    own, that takes cores away: on two cores, fits took two to three times as long. NumPy and SciPy only
    handle vectors of parameters here, so they lose nothing.
    """
    return _find_pools(len(sys.modules)).limit(limits={"libscipy_openblas": 1})


@lru_cache(maxsize=1)
def _find_pools(n_modules: int) -> ThreadpoolController:  # noqa: ARG001
    """Find the thread pools of this process; again, which takes milliseconds, after modules have been loaded."""
    return ThreadpoolController()


def is_device(name: object) -> bool:
    """Return whether this is the name of a device, which need not be present."""
    return isinstance(name, str) and (name in DEVICES or re.fullmatch(r"cuda:(0|[1-9]\d{0,3})", name) is not None)


def unknown_device(name: object) -> DataError:
    """Return the error for a name that is not that of a device."""
    choices = ", ".join(map(repr, DEVICES))
    return DataError(f"device={name!r:.80} is unknown; choose one of {choices}, or a numbered GPU such as 'cuda:1'")


def compute_device(name: str) -> torch.device:
    """Return the device of this name; "auto" takes a GPU if there is one."""
    import torch

    if not is_device(name):
        raise unknown_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise PrismGPError(f'device="{name}" was asked for, but no CUDA device is available; use "auto" or "cpu"')
        if device.index is not None and device.index >= count:
            there = '"cuda:0"' if count == 1 else f'"cuda:0" to "cuda:{count - 1}"'
            raise PrismGPError(f'device="{name}" was asked for, but this machine has only {there}')
    return device


class Streams:
    """Named generators derived from one ``random_state``; an integer gives the same streams every time."""

    def __init__(self, random_state: RandomState) -> None:
        from sklearn.utils import check_random_state  # predictions draw nothing

        state = check_random_state(random_state)
        self.seed = int(state.randint(np.iinfo(np.int32).max))

    def generator(self, name: str) -> np.random.Generator:
        """Make a new generator; the same name always gives the same stream."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])
