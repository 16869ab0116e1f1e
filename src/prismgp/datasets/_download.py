"""Downloads that can be interrupted, resumed and checked.

A file grows as ``NAME.part``. Beside it, ``NAME.part.json`` remembers which version of the file the server was
sending, so that the rest is only ever appended to the same version.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from prismgp.exceptions import DataError

__all__ = ["ChecksumError", "DownloadError", "Patience", "download", "sha256_of"]

_PIECE = 1 << 18
_GONE = frozenset({400, 401, 403, 404, 405, 410, 451})  # asking again does not help


class DownloadError(DataError):
    """The file could not be had from this address."""


class ChecksumError(DownloadError):
    """What arrived is not the expected file."""


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for.

    Attributes
    ----------
    timeout : float
        Seconds without a byte until an attempt counts as failed.
    attempts : int
        Attempts that may fail without a byte of progress in between.
    wait : float
        Seconds before the second attempt; doubled each time.
    """

    timeout: float = 30.0
    attempts: int = 4
    wait: float = 1.0


class _Again(Exception):  # noqa: N818  not an error to anyone outside
    """This attempt failed; another may succeed."""


def sha256_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(address: str, target: Path, sha256: str | None = None, *, patience: Patience | None = None) -> str:
    """Fetch a file over HTTP, continuing an interrupted download where it stopped.

    Parameters
    ----------
    address : str
    target : Path
        Appears only when it is complete and its checksum is right.
    sha256 : str or None
        None: any content is accepted.
    patience : Patience or None

    Returns
    -------
    str
        The checksum of what arrived.

    Raises
    ------
    ChecksumError
        The content is not what it should be; nothing of it is kept.
    DownloadError
        The server cannot be reached, has no such file, or keeps breaking off. What has arrived is kept for the
        next time.
    DataError
        The file cannot be written.
    """
    patience = patience or Patience()
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch(address, part, patience)
        found = sha256_of(part)
        if sha256 is not None and found != sha256:
            raise ChecksumError(
                f"{address} is not the expected file: its sha256 is {found}, not {sha256}; the download was removed"
            )
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except ChecksumError:
        _forget(part)
        raise
    except OSError as error:  # those of the network never get here
        raise DataError(f"cannot store {target}: {error.strerror or error}; free space or set PRISMGP_CACHE") from error
    _note_of(part).unlink(missing_ok=True)
    return found


def _fetch(address: str, part: Path, patience: Patience) -> None:
    """Attempts until the part is complete; only attempts without progress count."""
    failures = 0
    while True:
        had = part.stat().st_size if part.exists() else 0
        try:
            _attempt(address, part, patience.timeout)
            return
        except _Again as error:
            has = part.stat().st_size if part.exists() else 0
            failures = 0 if has > had else failures + 1
            if failures >= patience.attempts:
                raise DownloadError(f"{address} cannot be downloaded: {error}") from error
            time.sleep(patience.wait * 2 ** max(failures - 1, 0))


def _attempt(address: str, part: Path, timeout: float) -> None:
    """One request for what is missing."""
    note = _read_note(part, address)
    start = part.stat().st_size if note and part.exists() else 0
    headers = {"User-Agent": "prismgp", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": note["version"]}
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # the part is longer than the file: it has changed
                _forget(part)
                raise _Again("the server refused to continue the download") from error
            if error.code in _GONE:
                raise DownloadError(f"{address} cannot be downloaded: HTTP {error.code} {error.reason}") from error
            raise _Again(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Again(str(getattr(error, "reason", error)) or type(error).__name__) from error
    with response:
        start, total = _extent(response, start)
        if not start:
            _write_note(part, address, response.headers)
        _receive(response, part, start, total)


def _extent(response: Any, start: int) -> tuple[int, int | None]:
    """Where the answer begins in the file, and how long the file is."""
    if response.status == 206:
        given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if given is None or int(given[1]) != start:
            raise DownloadError(f"{response.url} answers with another part of the file than was asked for")
        return start, None if given[2] == "*" else int(given[2])
    length = response.headers.get("Content-Length", "")  # 200: the server ignores ranges, or the file has changed
    return 0, int(length) if length.isdigit() else None


def _receive(response: Any, part: Path, start: int, total: int | None) -> None:
    """Append the answer to the part."""
    name = part.name.removesuffix(".part")
    with (
        part.open("ab" if start else "wb") as file,
        tqdm(desc=name, total=total, initial=start, unit="B", unit_scale=True, disable=None) as bar,
    ):
        while True:
            try:
                piece = response.read(_PIECE)
            except (OSError, http.client.HTTPException) as error:
                raise _Again(f"the connection broke: {error or type(error).__name__}") from error
            if not piece:
                break
            file.write(piece)
            bar.update(len(piece))
    size = part.stat().st_size
    if total is not None and size < total:
        raise _Again(f"the connection broke after {size:,} of {total:,} bytes")
    if total is not None and size > total:
        _forget(part)
        raise _Again("more arrived than was announced")


# -- which version of the file a part belongs to ---------------------------------------------------


def _note_of(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _write_note(part: Path, address: str, headers: Any) -> None:
    tag = headers.get("ETag", "")
    version = tag if tag.startswith('"') else headers.get("Last-Modified")  # weak tags do not vouch for bytes
    if version:
        _note_of(part).write_text(json.dumps({"address": address, "version": version}))
    else:
        _note_of(part).unlink(missing_ok=True)


def _read_note(part: Path, address: str) -> dict[str, str]:
    """Empty where the part cannot be continued."""
    try:
        note = json.loads(_note_of(part).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    usable = isinstance(note, dict) and note.get("address") == address and isinstance(note.get("version"), str)
    return note if usable else {}


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note_of(part).unlink(missing_ok=True)
