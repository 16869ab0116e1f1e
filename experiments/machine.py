"""Memory, files and cores of this machine, and what a result was made with."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import prismgp
from prismgp._locks import Lock
from prismgp._system import atomic_path, available_bytes, format_bytes, read_proc_bytes

__all__ = [
    "ROOT",
    "Lock",
    "atomic_path",
    "available_bytes",
    "code_version",
    "format_bytes",
    "peak_bytes",
    "provenance",
    "reset_peak",
    "source_digest",
    "usable_cores",
]

ROOT = Path(__file__).resolve().parents[1]  # of the checkout
_PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow")


def provenance(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Versions, machine and source of whatever this process makes.

    Parameters
    ----------
    packages : tuple of str
        Further packages whose versions matter.
    """
    machine = {
        "system": platform.system(),
        "processor": _processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {"python": platform.python_version()}
    for name in (*_PACKAGES, *packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {**code_version(), "machine": machine, "versions": versions}


def code_version() -> dict[str, Any]:
    """Version, commit and digest of the package; all that is known of a job that did not end by itself."""
    return {"prismgp": prismgp.__version__, "commit": _commit(), "source": source_digest()}


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_bytes() -> int:
    """The most main memory this process has held so far."""
    peak = read_proc_bytes("/proc/self/status", "VmHWM")
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
    used = read_proc_bytes("/proc/self/status", "VmRSS")
    return peak_bytes() if used is None else used


@cache
def source_digest() -> str:
    """A digest of the package's source: a commit says little where files have changed since, or git is absent."""
    folder = Path(prismgp.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@cache
def _commit() -> str | None:
    """The commit of the checkout; None where there is no git."""
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
