"""Files of the data sets: found in the user's folder or the cache, or downloaded into the cache and checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from prismgp._system import atomic_path
from prismgp.exceptions import DataError

RETRIES = 2  # of a download that fails, after one second and two
_TIMEOUT = 30.0  # seconds without a byte
_PIECE_BYTES = 1 << 18
_LARGEST_MEMBER = 4 << 30  # bytes of a file in an archive; none of the data sets has a larger one


# -- folders ---------------------------------------------------------------------------------------


def data_folder() -> Path | None:
    """The user's folder with data files.

    Returns
    -------
    Path or None
        ``$PRISMGP_DATA``; None if it is not set or not a folder.
    """
    named = os.environ.get("PRISMGP_DATA")
    folder = Path(named).expanduser() if named else None
    return folder if folder is not None and folder.is_dir() else None


def cache_folder() -> Path:
    """The folder of downloads; it need not exist yet.

    Returns
    -------
    Path
        ``$PRISMGP_CACHE``, else the system's folder for caches, such as ``~/.cache/prismgp`` on Linux.
    """
    own = os.environ.get("PRISMGP_CACHE")
    if own:
        return Path(own).expanduser()
    import pooch  # slow to import, and simulated data do without

    return Path(pooch.os_cache("prismgp"))


def search_folders() -> Iterator[Path]:
    """The folders in which files are looked for, in order."""
    own = data_folder()
    if own is not None:
        yield own
    yield cache_folder()


def find(path: str) -> Path | None:
    """Find the file in the data folder or in the cache; None if it is in neither."""
    return next((folder / path for folder in search_folders() if (folder / path).is_file()), None)


# -- downloads -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resource:
    """A file that can be downloaded.

    If the publisher states no checksum, that of the first download is kept beside the file, and later uses are checked
    against it. This detects damage, not a wrong first download.
    """

    path: str  # below the data folder or the cache
    addresses: tuple[str, ...]  # tried in order
    sha256: str | None


def fetch(resource: Resource) -> Path:
    """Return the file, from the data folder, the cache or the network; if none has it, the error says what to do."""
    found = find(resource.path)
    wanted = resource.sha256
    if found is not None:
        if wanted is None and _record(found).is_file():
            wanted = _record(found).read_text().split()[0]
        if wanted is None or sha256_of(found) == wanted:
            return found
    cached = cache_folder() / resource.path
    if found is not None:  # and damaged, or another file
        if found != cached:
            raise DataError(
                f"{found} is not the published file: its sha256 should be {wanted}; put the original there, "
                f"from {resource.addresses[0]}"
            )
        found.unlink()  # damaged since it was downloaded
    problems = []
    for address in resource.addresses:
        problem = _download(resource, address)
        if problem is None:
            if resource.sha256 is None:
                with atomic_path(_record(cached)) as temporary:
                    temporary.write_text(f"{sha256_of(cached)}  {cached.name}\n")
            return cached
        problems.append(problem)
    raise DataError(
        f"{'; '.join(problems)}. Download {resource.addresses[0]} by hand and put it at {cached}, "
        f"or at {resource.path} under a folder named by PRISMGP_DATA"
    )


def _record(path: Path) -> Path:
    """The file beside a download that keeps its checksum."""
    return path.with_name(path.name + ".sha256")


def _download(resource: Resource, address: str) -> str | None:
    """Download into the cache; the file appears only when it is complete and its checksum is right.

    Returns the reason of a failure, None on success.
    """
    import pooch  # as above

    store = pooch.create(
        path=cache_folder(),
        base_url="",
        registry={resource.path: resource.sha256},
        urls={resource.path: address},
        retry_if_failed=RETRIES,
    )
    downloader = pooch.HTTPDownloader(
        timeout=_TIMEOUT,
        chunk_size=_PIECE_BYTES,
        progressbar=sys.stderr.isatty(),
        headers={"Accept-Encoding": "identity"},  # as published: an archive must not be unpacked on its way
    )
    try:
        store.fetch(resource.path, downloader=downloader)
    except OSError as error:
        if error.errno is None:  # those of the network have no number, those of the disk do
            return f"{address} cannot be downloaded: {error}"
        raise _store_error(cache_folder() / resource.path, error) from error
    except ValueError as error:
        return f"{address} is not the expected file: {error} The download was removed"
    return None


def _store_error(place: Path, error: OSError) -> DataError:
    return DataError(f"cannot store {place}: {error.strerror or error}; free space or set PRISMGP_CACHE")


def sha256_of(path: Path) -> str:
    """Compute the checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- archives --------------------------------------------------------------------------------------


def extract_matching(archive: Path, pattern: str, folder: Path) -> list[Path]:
    """Extract the files whose bare name matches, from the archive and from archives inside it.

    The pattern is a regular expression for the whole bare name. Folders in the archive are ignored: every file is
    written directly into ``folder``, whatever the archive says. Returns the files sorted by name.
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
        raise DataError(f"{archive} has no file named like {pattern}: it is not the expected archive")
    return [found[name] for name in sorted(found)]


def _extract(file: IO[bytes], pattern: re.Pattern[str], folder: Path, found: dict[str, Path], depth: int) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = PurePosixPath(member.filename.replace("\\", "/")).name
            wanted = pattern.fullmatch(name) is not None
            inner = depth > 1 and name.lower().endswith(".zip")
            if member.is_dir() or not (wanted or inner):
                continue
            if member.file_size > _LARGEST_MEMBER:
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


# -- tables made from published files --------------------------------------------------------------


def cache_table(name: str, columns: Sequence[str], make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """Read a table with these columns from the data folder or the cache, or make it and keep it in the cache."""
    found = find(name)
    if found is not None:
        return _read_table(found, columns)
    frame = make()
    target = cache_folder() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as temporary:
            frame.to_parquet(temporary, index=False)
    except OSError as error:
        raise _store_error(target, error) from error
    return frame


def _read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        file = pq.ParquetFile(path)
        absent = [name for name in columns if name not in file.schema_arrow.names]
        if absent:
            raise DataError(f"{path} has no column {', '.join(absent)}: it is not the expected table")
        frame: pd.DataFrame = file.read(columns=list(columns)).to_pandas()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}; replace or remove it") from error
    return frame[list(columns)]
