"""How much memory is there, and refusing before it is exhausted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

__all__ = ["available_bytes", "format_bytes", "peak_bytes", "reset_peak"]

_UNKNOWN = 8 * 2**30  # assumed where the system does not tell


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now on the device, respecting a container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [value for value in (_proc_available(), _cgroup_available()) if value is not None]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def _proc_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_available() -> int | None:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        # Cached file pages are given back under pressure.
        return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


def peak_bytes() -> int:
    """The most main memory this process has held so far."""
    peak = _proc_status("VmHWM")
    if peak is not None:  # the system's other figure, below, begins with that of the process that started this one
        return peak
    import resource  # absent on Windows, where there is no such figure

    peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return peak if sys.platform == "darwin" else 1024 * peak


def reset_peak() -> int:
    """Bytes in use now; from here on, the peak counts afresh where the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return peak_bytes()
    used = _proc_status("VmRSS")
    return peak_bytes() if used is None else used


def _proc_status(name: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def format_bytes(count: float) -> str:
    """``1.5 GiB`` and the like."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
