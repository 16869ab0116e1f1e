"""The files of the data sets: what they are called, where they come from, and how they are found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prismgp._system import atomic_path
from prismgp.datasets._download import ChecksumError, DownloadError, Patience, download, sha256_of
from prismgp.datasets._folders import cache_folder, search_folders
from prismgp.exceptions import DataError

__all__ = ["Resource", "by_hand", "fetch", "find"]

_PATIENCE = Patience()


@dataclass(frozen=True)
class Resource:
    """A file that can be downloaded.

    Attributes
    ----------
    path : str
        Below the data folder or the cache.
    addresses : tuple of str
        Tried in order.
    sha256 : str or None
        None where the publisher states none: then that of the first download is kept beside the file, and later
        uses are checked against it. This detects damage, not a wrong first download.
    """

    path: str
    addresses: tuple[str, ...]
    sha256: str | None


def find(path: str) -> Path | None:
    """The file in the data folder or the cache, whichever comes first."""
    return next((folder / path for folder in search_folders() if (folder / path).is_file()), None)


def fetch(resource: Resource) -> Path:
    """The file, from the data folder, the cache, or the network.

    Raises
    ------
    DataError
        It is damaged, or cannot be had; the message says what to do.
    """
    there = find(resource.path)
    cached = cache_folder() / resource.path
    if there is not None:
        wanted = resource.sha256 or (_recorded(cached) if there == cached else None)
        if wanted is None or sha256_of(there) == wanted:
            return there
        if there != cached:
            raise DataError(
                f"{there} is not the published file: its sha256 should be {wanted}; put the original there, "
                f"from {resource.addresses[0]}"
            )
        there.unlink()  # damaged since it was downloaded
        _record_of(cached).unlink(missing_ok=True)
    problem: DownloadError | None = None
    for address in resource.addresses:
        try:
            found = download(address, cached, resource.sha256, patience=_PATIENCE)
        except DownloadError as error:
            # A wrong file says more than a later address that cannot be reached.
            problem = problem if isinstance(problem, ChecksumError) else error
            continue
        if resource.sha256 is None:
            with atomic_path(_record_of(cached)) as temporary:
                temporary.write_text(f"{found}  {cached.name}\n")
        return cached
    raise DataError(f"{problem}. {by_hand(resource)}") from problem


def by_hand(resource: Resource) -> str:
    """What a person can do where a download fails."""
    return (
        f"Download {resource.addresses[0]} by hand and put it at {cache_folder() / resource.path}, "
        f"or at {resource.path} under a folder named by PRISMGP_DATA"
    )


def _record_of(cached: Path) -> Path:
    return cached.with_name(cached.name + ".sha256")


def _recorded(cached: Path) -> str | None:
    record = _record_of(cached)
    words = record.read_text().split() if record.is_file() else []
    return words[0] if words else None
