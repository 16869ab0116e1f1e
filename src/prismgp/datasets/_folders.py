"""Where data files are looked for and where downloads are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["cache_folder", "data_folder", "search_folders"]

_ROOT = Path(__file__).resolve().parents[3]  # of a source checkout; some other folder when installed


def data_folder() -> Path | None:
    """The folder with data files that were put there by hand, if there is one.

    Returns
    -------
    Path or None
        ``$PRISMGP_DATA``, or without that variable a folder ``shared/data`` beside a source checkout; None when it
        is not a folder.
    """
    named = os.environ.get("PRISMGP_DATA")
    if named:
        folder = Path(named).expanduser()
    elif (_ROOT / "pyproject.toml").is_file() and (_ROOT / "src" / "prismgp").is_dir():
        folder = _ROOT.parent / "shared" / "data"
    else:
        return None
    return folder if folder.is_dir() else None


def cache_folder() -> Path:
    """The folder that keeps downloads; it need not exist yet.

    Returns
    -------
    Path
        ``$PRISMGP_CACHE``, else ``$XDG_CACHE_HOME/prismgp``, else ``%LOCALAPPDATA%\\prismgp`` on Windows, else
        ``~/.cache/prismgp``.
    """
    own = os.environ.get("PRISMGP_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(shared) if shared else Path.home() / ".cache") / "prismgp"


def search_folders() -> Iterator[Path]:
    """The folders in which a file may lie, in the order in which they are tried."""
    own = data_folder()
    if own is not None:
        yield own
    yield cache_folder()
