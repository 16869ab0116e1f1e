"""The context of a fit: progress shown to the user, a history, and a checkpoint that survives an interruption.

A fit is deterministic, so an interrupted one is not continued in the middle of its bookkeeping: it is run again, and
its costly parts are read from the checkpoint instead of being computed. Those are evaluations of the evidence, in
their order; states of networks in training; trained networks; statistics of all rows. The result is that of a fit
without interruption, bit for bit on the same machine.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch
from tqdm import tqdm

from prismgp._system import atomic_path
from prismgp._types import Array, Tensor
from prismgp.core.ending import Ending
from prismgp.core.features import Statistics
from prismgp.core.rows import Callback
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

FORMAT_VERSION = 1
WRITE_SECONDS = 10.0  # between writes of a checkpoint, unless something is too costly to lose
_MAX_BYTES = 2**32
_EVALUATIONS = "evaluations"

Saved: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]  # numbers, and what JSON can hold


@dataclass(frozen=True)
class FitEvent:
    """What the callback of a fit is told.

    ``stage`` is "start", "exact GP start", "race", "l-bfgs", "quasi-newton", "fitted SSGP" where more is to come,
    "members", or "final". ``model`` returns the fitted model on all training rows at the present parameters. Networks
    change after the callback returns, so it must be called before.
    """

    stage: str
    iteration: int  # of the optimiser so far: of L-BFGS, and steps of Adam on mini-batches for networks
    seconds: float  # since the fit began, without the time spent in the callback
    rows: int  # used by the present stage
    log_evidence: float | None  # of these rows in the model's units, where the stage has one
    model: Callable[[], Any]

    @property
    def final(self) -> bool:
        """Whether this is the model that the fit returns."""
        return self.stage == "final"


class FitContext(Callback):
    """Progress, history, checkpoint and callback of one fit.

    ``label`` names the progress bar, which ``verbose`` asks for. ``callback`` is called with a :class:`FitEvent` after
    every iteration. ``log_scale`` is the sum of the logarithms of the targets' scales: evidences come in the model's
    units and are recorded in the user's. ``ending`` says when the fit ends before it is done.
    """

    def __init__(
        self,
        label: str = "",
        *,
        verbose: int = 0,
        checkpoint: Checkpoint | None = None,
        callback: Callable[[FitEvent], None] | None = None,
        log_scale: float = 0.0,
        ending: Ending | None = None,
    ) -> None:
        super().__init__(ending)
        self.label, self.verbose = label, verbose
        self.checkpoint = checkpoint or Checkpoint()
        self.history: dict[str, list[float]] = {"rows": [], "log_evidence": [], "seconds": []}
        self.iteration = 0
        self._callback = callback
        self._log_scale = log_scale
        self._began = time.perf_counter()
        self._in_callback = 0.0
        self._evaluations = _Evaluations(self.checkpoint)
        self._bar: Any = tqdm(disable=True)

    def part(
        self, name: str, label: str, model: Callable[[Any], Any] = lambda found: found, *, share: float = 1.0
    ) -> FitContext:
        """The context of a fit within this one, whose results are in the checkpoint under the name.

        ``label`` is added to that of the progress bar.
        ``model`` makes the model of this fit from that of the inner one, for the callback.
        ``share`` is the part of the time left that the inner fit may take.
        """
        return FitContext(
            f"{self.label}, {label}",
            verbose=self.verbose,
            checkpoint=self.checkpoint.scope(name),
            callback=None if self._callback is None else lambda event: self._pass_on(event, model),
            log_scale=self._log_scale,
            ending=self.ending.part(share),
        )

    def _pass_on(self, event: FitEvent, model: Callable[[Any], Any]) -> None:
        stage = "fitted SSGP" if event.final else event.stage
        self.report(stage, event.rows, lambda: model(event.model()), event.log_evidence, iteration=event.iteration)

    def status(self) -> dict[str, Any]:
        """What ``fit_status_`` says about the end of the fit."""
        status: dict[str, Any] = {"interrupted": self.ending.interrupted, "timed_out": self.ending.timed_out}
        return status | ({"seconds": time.perf_counter() - self.ending.began} if self.ending.limited else {})

    # -- progress --------------------------------------------------------------------------------

    @contextmanager
    def progress(self, unit: str, total: int | None = None) -> Iterator[None]:
        """Show a progress bar, if the user has asked for one, until the block ends."""
        # Of notebooks too, but only for a bar that is shown: the import warns where there are no ipywidgets.
        make_bar: Any = import_module("tqdm.auto").tqdm if self.verbose else tqdm
        with make_bar(desc=self.label, unit=unit, total=total, disable=not self.verbose, leave=True) as bar:
            self._bar = bar
            try:
                yield
            finally:
                self._bar = tqdm(disable=True)

    def advance(self, text: str | None = None, *, to: int | None = None, total: int | None = None) -> None:
        """Move the progress bar on by one, or first to a number of steps, of a new total; ``text`` stands behind it."""
        if total is not None:
            self._bar.total = total
        if to is not None:
            self._bar.update(to - self._bar.n)
        if text is not None:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()

    # -- what the optimiser calls ----------------------------------------------------------------

    def evaluate(self, rows: int, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Value and gradient from the checkpoint, or computed; recorded and shown."""
        value, gradient = self._evaluations.get(vector, compute)
        log_evidence = value - rows * self._log_scale
        self.history["rows"].append(rows)
        self.history["log_evidence"].append(log_evidence)
        self.history["seconds"].append(time.perf_counter() - self._began)
        self.advance(f"{rows:,} rows, log evidence per row {log_evidence / rows:.4f}")
        return value, gradient

    def report(
        self,
        stage: str,
        rows: int,
        model: Callable[[], Any],
        log_evidence: float | None = None,
        *,
        iteration: int | None = None,
    ) -> None:
        """Tell the callback, if there is one; ``iteration``: None counts one more, but for the start and the end."""
        if self._callback is None:
            return
        now = time.perf_counter()
        self.iteration = self.iteration + (stage not in ("start", "final")) if iteration is None else iteration
        seconds = now - self._began - self._in_callback
        with self.ending.allow():
            self._callback(FitEvent(stage, self.iteration, seconds, rows, log_evidence, model))
        self._in_callback += time.perf_counter() - now

    def statistics(self, compute: Callable[[], tuple[Statistics, ...]]) -> tuple[Statistics, ...]:
        return self.cached_statistics("statistics", compute)

    def cached_statistics(self, name: str, compute: Callable[[], tuple[Statistics, ...]]) -> tuple[Statistics, ...]:
        """Statistics of blocks of rows, from the checkpoint if it has them: they take a pass over all rows.

        The checkpoint is for a fit that is done: where this one has ended early, its parameters are others.
        """
        saved = None if self.ending.early else self.checkpoint.get(name)
        if saved is not None:
            tensors, info = saved
            return tuple(
                Statistics(n, q, tensors[str(k)].to(device), log_noise_sum)
                for k, (n, q, log_noise_sum, device) in enumerate(info["blocks"])
            )
        found = self.ending.insist(compute)
        if self.ending.early:
            return found
        about = [(each.n, each.q, each.log_noise_sum, str(each.moments.device)) for each in found]
        moments = {str(k): each.moments for k, each in enumerate(found)}
        self.checkpoint.put(name, lambda: (moments, {"blocks": about}), now=True)
        return found


class Checkpoint:
    """Named results of a fit, kept in one file, which is read if it exists; without a path, nothing is kept.

    The file is made like a model file: safetensors with JSON in its header, no code. It appears whole or not at all,
    and its size does not grow with the rows. ``identity`` are settings and data of the fit, JSON; a file with another
    identity is refused by a DataError, one that is damaged or no checkpoint by a ModelFileError.
    """

    def __init__(self, path: str | PathLike[str] | None = None, identity: dict[str, Any] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._identity = json.loads(json.dumps(identity or {}))
        self._entries: dict[str, Saved] = {}
        self._written = time.monotonic()
        self._warned = False
        if self._path is not None and self._path.exists():
            self._entries = self._read(self._path)

    def scope(self, name: str) -> Checkpoint:
        """The same file, for a part of the fit; names get the prefix ``name/``."""
        return _Scope(self, f"{name}/")

    def get(self, name: str) -> Saved | None:
        """The entry of that name."""
        return self._entries.get(name)

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        """Store what ``make`` returns. It is called only when it is time to write, or ``now``."""
        if self._path is None or not (now or time.monotonic() - self._written >= WRITE_SECONDS):
            return
        tensors, info = make()
        self._entries[name] = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}, info
        self._write(self._path)

    def drop(self, name: str) -> None:
        """Remove the entry of that name."""
        self._entries.pop(name, None)

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
            # A long fit must not fail because its checkpoint cannot be written; the last one is still whole.
            if not self._warned:
                why = error.strerror or error
                warnings.warn(f"the checkpoint {path} could not be written: {why}", PrismGPWarning, stacklevel=2)
            self._warned = True
        self._written = time.monotonic()

    def _read(self, path: Path) -> dict[str, Saved]:
        about, tensors = _parse(path)
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

    def get(self, name: str) -> Saved | None:
        return self._whole.get(self._prefix + name)

    def put(self, name: str, make: Callable[[], Saved], *, now: bool = False) -> None:
        self._whole.put(self._prefix + name, make, now=now)

    def drop(self, name: str) -> None:
        self._whole.drop(self._prefix + name)


class _Evaluations:
    """Evaluations of the evidence in their order, kept in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._known: list[tuple[Array, float, Array]] = []
        self._next = 0
        saved = checkpoint.get(_EVALUATIONS)
        if saved is not None:
            self._known = _unpack(saved)

    def get(self, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Value and gradient (empty if not asked for) at the vector; computed only if this one is not known."""
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
        self._checkpoint.put(_EVALUATIONS, lambda: _pack(self._known))
        return value, gradient


def _pack(known: list[tuple[Array, float, Array]]) -> Saved:
    numbers = np.concatenate([np.concatenate([at, [value], gradient]) for at, value, gradient in known])
    sizes = np.array([(len(at), len(gradient)) for at, _, gradient in known], dtype=np.int64)
    return {"numbers": torch.from_numpy(numbers), "sizes": torch.from_numpy(sizes)}, {}


def _unpack(saved: Saved) -> list[tuple[Array, float, Array]]:
    numbers, sizes = saved[0]["numbers"].numpy(), saved[0]["sizes"].numpy()
    known, start = [], 0
    for width, gradient_width in sizes.tolist():
        middle, end = start + width, start + width + 1 + gradient_width
        known.append((numbers[start:middle].copy(), float(numbers[middle]), numbers[middle + 1 : end].copy()))
        start = end
    return known


def _parse(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
