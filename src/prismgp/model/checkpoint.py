"""Checkpoints: what a fit has computed so far, in one file, so that a fit that was killed goes on where it was.

A fit is deterministic, so it need not be stopped and continued in the middle of its bookkeeping: it is begun again, and
its costly parts, whose results the file remembers, cost nothing this time. Those are evaluations of the evidence, in
their order (:class:`Journal`); states of networks in training; networks that are trained; passes over all rows.
The result is that of a fit without interruption, bit for bit on the same machine.

The file is made like a model file: safetensors, with JSON in its header, no code; it appears whole or not at all, and
its size does not grow with the rows.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch

from prismgp._system import atomic_path
from prismgp._types import Array, Tensor
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

__all__ = ["Checkpoint", "Journal", "Saved"]

FORMAT_VERSION = 1
_SECONDS = 10.0  # between writes, unless something is too dear to lose
_MAX_BYTES = 2**32

Saved: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]  # numbers, and what JSON can hold


class Checkpoint:
    """Named results of a fit, kept in a file; without a path, nothing is kept.

    Parameters
    ----------
    path : path or None
        Read where there is one already.
    identity : dict
        What makes the fit what it is, JSON; a file with another identity is refused.

    Raises
    ------
    DataError
        When the file belongs to another fit.
    ModelFileError
        When it is damaged, or no checkpoint at all.
    """

    def __init__(self, path: str | PathLike[str] | None = None, identity: dict[str, Any] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._identity = json.loads(json.dumps(identity or {}))
        self._entries: dict[str, Saved] = {}
        self._written = time.monotonic()
        self._prefix = ""
        self._complained = False
        if self._path is not None and self._path.exists():
            self._entries = self._read(self._path)

    def scope(self, name: str) -> Checkpoint:
        """The same file, for a part of the fit whose names begin with that of the part."""
        return _Scope(self, f"{name}/")

    def get(self, name: str) -> Saved | None:
        """What is remembered under the name."""
        return self._entries.get(name)

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        """Remember what ``make`` returns, which is asked only when it is time to write, or ``now``."""
        if self._path is None or not (now or time.monotonic() - self._written >= _SECONDS):
            return
        tensors, info = make()
        self._entries[name] = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}, info
        self._write(self._path)

    def forget(self, name: str) -> None:
        """Drop what is remembered under the name."""
        self._entries.pop(name, None)

    # -- the file --------------------------------------------------------------------------------

    def _write(self, path: Path) -> None:
        tensors = {f"{name}:{key}": value for name, (own, _) in self._entries.items() for key, value in own.items()}
        about = {
            "format_version": FORMAT_VERSION,
            "identity": self._identity,
            "entries": {name: info for name, (_, info) in self._entries.items()},
        }
        data = safetensors.torch.save(tensors, metadata={"prismgp_checkpoint": json.dumps(about)})
        try:
            with atomic_path(path) as temporary:
                temporary.write_bytes(data)
        except OSError as error:
            # A fit of hours must not die for want of a checkpoint; the last one is still whole.
            if not self._complained:
                why = error.strerror or error
                warnings.warn(f"the checkpoint {path} could not be written: {why}", PrismGPWarning, stacklevel=2)
            self._complained = True
        self._written = time.monotonic()

    def _read(self, path: Path) -> dict[str, Saved]:
        about, tensors = _parsed(path)
        if about.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                f"{path}: checkpoint of format {about.get('format_version')!r}, this PrismGP reads {FORMAT_VERSION}; "
                "remove the file to begin again"
            )
        self._check_identity(path, about["identity"])
        entries: dict[str, Saved] = {name: ({}, info) for name, info in about["entries"].items()}
        for key, value in tensors.items():
            name, _, own = key.rpartition(":")
            if name not in entries:
                raise ModelFileError(f"{path}: the checkpoint is damaged; remove the file to begin again")
            entries[name][0][own] = value
        return entries

    def _check_identity(self, path: Path, found: Any) -> None:
        if found == self._identity:
            return
        found = found if isinstance(found, dict) else {}
        names = [name for name in {**self._identity, **found} if found.get(name) != self._identity.get(name)]
        if "data" in names:
            raise DataError(
                f"{path}: is the checkpoint of a fit to other data; remove the file to begin again, or name another"
            )
        differ = ", ".join(
            f"{name}={_short(found.get(name))} (here {_short(self._identity.get(name))})" for name in names
        )
        raise DataError(
            f"{path}: is the checkpoint of a fit with other settings: {differ}; "
            "remove the file to begin again, or name another"
        )


class _Scope(Checkpoint):
    """A part of a checkpoint."""

    def __init__(self, whole: Checkpoint, prefix: str) -> None:
        self._whole, self._prefix = whole, prefix

    def scope(self, name: str) -> Checkpoint:
        return _Scope(self._whole, f"{self._prefix}{name}/")

    def get(self, name: str) -> Saved | None:
        return self._whole.get(self._prefix + name)

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        self._whole.put(self._prefix + name, make, now=now)

    def forget(self, name: str) -> None:
        self._whole.forget(self._prefix + name)


class Journal:
    """Evaluations of the evidence in their order: asked again for one it knows, it answers without computing.

    Parameters
    ----------
    checkpoint : Checkpoint
        Where it is kept, under the name "evaluations".
    """

    _NAME = "evaluations"

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._known: list[tuple[Array, float, Array]] = []
        self._next = 0
        saved = checkpoint.get(self._NAME)
        if saved is not None:
            self._known = _unpacked(saved)

    def evaluate(self, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Value and gradient (empty where none is wanted) at the vector; computed only if this is not known."""
        if self._next < len(self._known):
            at, value, gradient = self._known[self._next]
            if at.tobytes() == vector.tobytes():
                self._next += 1
                return value, gradient.copy()
            # Another machine, where the arithmetic differs in the last bit: from here on the fit is its own.
            del self._known[self._next :]
        value, gradient = compute()
        self._known.append((vector.copy(), value, gradient.copy()))
        self._next += 1
        self._checkpoint.put(self._NAME, lambda: _packed(self._known))
        return value, gradient


def _packed(known: list[tuple[Array, float, Array]]) -> Saved:
    numbers = np.concatenate([np.concatenate([at, [value], gradient]) for at, value, gradient in known])
    sizes = np.array([(len(at), len(gradient)) for at, _, gradient in known], dtype=np.int64)
    return {"numbers": torch.from_numpy(numbers), "sizes": torch.from_numpy(sizes)}, {}


def _unpacked(saved: Saved) -> list[tuple[Array, float, Array]]:
    numbers, sizes = saved[0]["numbers"].numpy(), saved[0]["sizes"].numpy()
    known, start = [], 0
    for width, gradient_width in sizes.tolist():
        middle, end = start + width, start + width + 1 + gradient_width
        known.append((numbers[start:middle].copy(), float(numbers[middle]), numbers[middle + 1 : end].copy()))
        start = end
    return known


def _parsed(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a checkpoint file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path}: too large for a checkpoint")
        data = path.read_bytes()
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["prismgp_checkpoint"])
        tensors = safetensors.torch.load(data)
        about["identity"], about["entries"].items()
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path}: not a usable checkpoint ({type(error).__name__}: {error}); remove the file to begin again"
        ) from error
    return about, tensors


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
