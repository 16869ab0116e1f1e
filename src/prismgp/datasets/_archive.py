"""Taking files out of zip archives that nobody vouches for."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from prismgp._system import atomic_path
from prismgp.exceptions import DataError

__all__ = ["extract_matching"]

_LARGEST = 4 << 30  # bytes of one file: more is not one of our data sets


def extract_matching(archive: Path, pattern: str, folder: Path) -> list[Path]:
    """Extract the files whose bare name matches, from the archive and from archives inside it.

    Folders in the archive are ignored: every file lands directly in ``folder``, whatever the archive says.

    Parameters
    ----------
    archive : Path
    pattern : str
        Regular expression for the whole bare name.
    folder : Path
        Created if needed.

    Returns
    -------
    list of Path
        Sorted by name.

    Raises
    ------
    DataError
        The archive is damaged, holds no such file, holds one twice, or the disk is full.
    """
    found: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with archive.open("rb") as file:
            _extract(file, re.compile(pattern), folder, found, depth=2)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise DataError(f"{archive} is not a usable zip archive: {error}; remove it to download it again") from error
    except OSError as error:
        raise DataError(f"cannot extract {archive} into {folder}: {error.strerror or error}") from error
    if not found:
        raise DataError(f"{archive} holds no file named like {pattern}: it is not the expected archive")
    return [found[name] for name in sorted(found)]


def _extract(file: IO[bytes], pattern: re.Pattern[str], folder: Path, found: dict[str, Path], depth: int) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename.replace("\\", "/")).name
            wanted = pattern.fullmatch(name) is not None
            inner = depth > 1 and name.lower().endswith(".zip")
            if member.is_dir() or not (wanted or inner):
                continue
            if member.file_size > _LARGEST:
                raise zipfile.BadZipFile(f"{name} claims {member.file_size:,} bytes")
            if name in found:
                raise zipfile.BadZipFile(f"{name} is there twice")
            # A zip file's directory is at its end: reading it from a compressed stream would unpack it several times.
            with archive.open(member) as source, contextlib.ExitStack() as stack:
                if wanted:
                    target = stack.enter_context(stack.enter_context(atomic_path(folder / name)).open("wb"))
                    shutil.copyfileobj(source, target, 1 << 20)
                    found[name] = folder / name
                else:
                    temporary = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                    shutil.copyfileobj(source, temporary, 1 << 20)
                    temporary.seek(0)
                    _extract(temporary, pattern, folder, found, depth - 1)
