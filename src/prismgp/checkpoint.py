"""Checkpoints: named results of a fit in one file, with what they belong to and a checksum."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch

from prismgp._locks import Lock
from prismgp._system import atomic_path
from prismgp._types import Saved, Tensor
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

FORMAT_VERSION = 2
WRITE_SECONDS = 10.0  # between writes of a checkpoint, unless something is too costly to lose
_MAX_BYTES = 2**32
_BEGIN_AGAIN = "remove the file to begin again"
# What reading damaged entries may raise; RuntimeError is torch's.
_UNUSABLE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RuntimeError)

T = TypeVar("T")


class Checkpoint:
    """Named results of a fit, kept in one file, which is read if it exists; without a path, nothing is kept.

    The file is made like a model file: safetensors with JSON in its header and a checksum, no code. It appears whole or
    not at all, and its size does not grow with the rows. ``identity`` are settings, data and code of the fit, JSON; a
    file with another identity is refused by a DataError, one that is damaged or no checkpoint by a ModelFileError, one
    that another fit uses now by a PrismGPError. It is in use until :meth:`close`. Several threads may store results.
    """

    def __init__(self, path: str | PathLike[str] | None = None, identity: dict[str, Any] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._identity = json.loads(json.dumps(identity or {}))
        self._entries: dict[str, Saved] = {}
        self._storing = threading.Lock()
        self._written = time.monotonic()
        self._warned = False
        self._lock: Lock | None = None
        if self._path is None:
            return
        with suppress(OSError):  # without a lock the checkpoint cannot be written either, and writing it warns
            self._lock = Lock(self._path)
        try:
            if self._path.exists():
                self._entries = self._read(self._path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock on the file."""
        if self._lock is not None:
            self._lock.close()

    def scope(self, name: str) -> Checkpoint:
        """Return the same file for a part of the fit; names get the prefix ``name/``."""
        return _Scope(self, f"{name}/")

    def get(self, name: str) -> Saved | None:
        """The entry of that name."""
        return self._entries.get(name)

    def recall(self, name: str, read: Callable[[Saved], T]) -> T | None:
        """Apply ``read`` to the entry of that name; raise ModelFileError if the entry cannot be used."""
        saved = self.get(name)
        if saved is None:
            return None
        try:
            return read(saved)
        except _UNUSABLE as error:
            what = f"{type(error).__name__}: {error}"
            raise ModelFileError(f"{self.path}: {name!r} is not usable ({what:.200}); {_BEGIN_AGAIN}") from error

    @property
    def path(self) -> Path | None:
        """The file."""
        return self._path

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        """Store what ``make`` returns. It is called only when it is time to write, or ``now``."""
        if self._path is None or not (now or time.monotonic() - self._written >= WRITE_SECONDS):
            return
        tensors, info = make()
        with self._storing:
            self._entries[name] = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}, info
            self._write(self._path)

    def drop(self, name: str) -> None:
        """Remove the entry of that name, and those of the part of that name."""
        with self._storing:
            own = [each for each in self._entries if each == name or each.startswith(f"{name}/")]
            for each in own:
                del self._entries[each]

    def _write(self, path: Path) -> None:
        tensors = {f"{name}:{key}": value for name, (own, _) in self._entries.items() for key, value in own.items()}
        about = {
            "format_version": FORMAT_VERSION,
            "identity": self._identity,
            "entries": {name: info for name, (_, info) in self._entries.items()},
        }
        text = json.dumps(about)
        metadata = {"prismgp_checkpoint": text, "sha256": digest_contents(text, tensors)}
        data = safetensors.torch.save(tensors, metadata=metadata)
        try:
            with atomic_path(path, len(data)) as temporary:
                temporary.write_bytes(data)
        except OSError as error:
            # A long fit must not fail because its checkpoint cannot be written; the last one is still whole.
            if not self._warned:
                why = error.strerror or error
                warnings.warn(
                    f"the checkpoint {path} could not be written: {why}; the fit continues without saving its progress",
                    PrismGPWarning,
                    stacklevel=2,
                )
            self._warned = True
        self._written = time.monotonic()

    def _read(self, path: Path) -> dict[str, Saved]:
        about, tensors = _parse(path)
        if about.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                f"{path}: checkpoint of format {about.get('format_version')!r:.40}, this PrismGP reads "
                f"{FORMAT_VERSION}; {_BEGIN_AGAIN}"
            )
        self._check_identity(path, about["identity"])
        entries: dict[str, Saved] = {name: ({}, info) for name, info in about["entries"].items()}
        for key, value in tensors.items():
            name, _, own = key.rpartition(":")
            if name not in entries:
                raise ModelFileError(f"{path}: the checkpoint is damaged; {_BEGIN_AGAIN}")
            entries[name][0][own] = value
        return entries

    def _check_identity(self, path: Path, found: Any) -> None:
        if found == self._identity:
            return
        found = found if isinstance(found, dict) else {}
        names = [name for name in {**self._identity, **found} if found.get(name) != self._identity.get(name)]
        if "prismgp" in names or "code" in names:
            was, here = found.get("prismgp"), self._identity.get("prismgp")
            other = (
                f"version {was!r:.40} of PrismGP (here {here!r})" if was != here else "a different version of the code"
            )
            raise DataError(f"{path}: is the checkpoint of a fit by {other}; {_BEGIN_AGAIN}, or name another")
        if "data" in names:
            raise DataError(f"{path}: is the checkpoint of a fit to other data; {_BEGIN_AGAIN}, or name another")
        differ = ", ".join(
            f"{name}={_shorten(found.get(name))} (here {_shorten(self._identity.get(name))})" for name in names
        )
        raise DataError(
            f"{path}: is the checkpoint of a fit with other settings: {differ}; {_BEGIN_AGAIN}, or name another"
        )


class _Scope(Checkpoint):
    """A part of a checkpoint."""

    def __init__(self, whole: Checkpoint, prefix: str) -> None:
        self._whole, self._prefix = whole, prefix

    @property
    def path(self) -> Path | None:
        return self._whole.path

    def close(self) -> None:
        """Do nothing: only the whole checkpoint can be closed."""

    def get(self, name: str) -> Saved | None:
        return self._whole.get(self._prefix + name)

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        self._whole.put(self._prefix + name, make, now=now)

    def drop(self, name: str) -> None:
        self._whole.drop(self._prefix + name)


def digest_contents(text: str, tensors: dict[str, Tensor]) -> str:
    """Compute the checksum of the text and all tensors of a checkpoint, so that every flipped bit is noticed."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read header and tensors of a checkpoint file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path}: too large for a checkpoint; {_BEGIN_AGAIN}")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dictionary
        if digest_contents(metadata["prismgp_checkpoint"], tensors) != metadata["sha256"]:
            raise ValueError("the checksum is wrong: the file is damaged")
        about = json.loads(metadata["prismgp_checkpoint"])
        about["identity"], about["entries"].items()
    except (safetensors.SafetensorError, *_UNUSABLE) as error:  # a RecursionError is a RuntimeError
        raise ModelFileError(
            f"{path}: not a usable checkpoint ({type(error).__name__}: {error!s:.200}); {_BEGIN_AGAIN}"
        ) from error
    return about, tensors


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
