"""The context of a fit: progress shown to the user, a history, and a checkpoint that survives an interruption.

A fit is deterministic, so an interrupted one is not continued in the middle of its bookkeeping: it is run again, and
its costly parts are read from the checkpoint instead of being computed. Those are evaluations of the evidence, in
their order; states of networks in training; trained networks; statistics of all rows. The result is that of a fit
without interruption, bit for bit on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from prismgp._system import too_large
from prismgp._types import Array, Saved
from prismgp.checkpoint import Checkpoint
from prismgp.core.rows import Callback, Codec, Ending

_EVALUATIONS = "evaluations"

T = TypeVar("T")


@dataclass(frozen=True)
class FitEvent:
    """An event of a fit, as its callback receives it.

    ``stage`` is "start", "exact GP start", "race", "l-bfgs", "quasi-newton", "adam", "fitted SSGP" where more is to
    come, "members", or "final". ``model`` returns the fitted model on all training rows at the present parameters.
    Networks change after the callback returns, so it must be called before.
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

    ``callback`` is called with a :class:`FitEvent` after every iteration. ``log_scale`` is the sum of the logarithms of
    the targets' scales: evidences come in the model's units and are recorded in the user's. ``ending`` says when the
    fit ends before it is done.

    The fit is the block of a ``with`` statement. On exit the lock on the checkpoint is released, and running out of
    memory becomes a TooLargeError. Inside, ``bar`` is the progress bar, a ``tqdm`` with this label, unit and total. It
    is shown if there is a unit and ``verbose`` asks for it; evaluations advance it, as do fits that take other steps.
    """

    def __init__(
        self,
        label: str = "",
        *,
        verbose: int = 0,
        unit: str = "",
        total: int | None = None,
        checkpoint: Checkpoint | None = None,
        callback: Callable[[FitEvent], None] | None = None,
        log_scale: float = 0.0,
        ending: Ending | None = None,
    ) -> None:
        super().__init__(ending)
        self.label, self.verbose = label, verbose
        self.bar: Any = tqdm(disable=True)
        self.checkpoint = checkpoint or Checkpoint()
        self.history: dict[str, list[float]] = {"rows": [], "log_evidence": [], "seconds": []}
        self.iteration = 0
        self._unit, self._total = unit, total
        self._callback = callback
        self._log_scale = log_scale
        self._began = time.perf_counter()
        self._in_callback = 0.0
        self._evaluations = _Evaluations(self.checkpoint)

    def __enter__(self) -> FitContext:
        if self.verbose and self._unit:
            # Of notebooks too, but only for a bar that is shown: the import warns where there are no ipywidgets.
            make_bar = import_module("tqdm.auto").tqdm
            self.bar = make_bar(desc=self.label, unit=self._unit, total=self._total, leave=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
        self.checkpoint.close()
        if (found := too_large(error, f"the fit of {self.label}")) is not None:
            raise found from error

    def part(
        self,
        name: str,
        label: str = "",
        *,
        model: Callable[[Any], Any] | None = None,
        share: float = 1.0,
        unit: str = "",
        total: int | None = None,
    ) -> FitContext:
        """Return the context of a part of this fit, whose results are in the checkpoint under the name.

        ``label`` is added to that of the progress bar.
        ``model`` makes the model of this fit from that of the part, for the callback; None: the callback is not called.
        ``share`` is the part of the time left that it may take.
        """
        return FitContext(
            f"{self.label}, {label}",
            verbose=self.verbose,
            unit=unit,
            total=total,
            checkpoint=self.checkpoint.scope(name),
            callback=None if self._callback is None or model is None else partial(self._pass_on, model),
            log_scale=self._log_scale,
            ending=self.ending.part(share),
        )

    def _pass_on(self, model: Callable[[Any], Any], event: FitEvent) -> None:
        stage = "fitted SSGP" if event.final else event.stage
        self.report(stage, event.rows, lambda: model(event.model()), event.log_evidence, iteration=event.iteration)

    def evaluate(self, rows: int, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Take value and gradient from the checkpoint, or compute them; record and show them."""
        value, gradient = self._evaluations.get(vector, compute)
        log_evidence = value - rows * self._log_scale
        self.history["rows"].append(rows)
        self.history["log_evidence"].append(log_evidence)
        self.history["seconds"].append(time.perf_counter() - self._began)
        self.bar.set_postfix_str(f"{rows:,} rows, log evidence per row {log_evidence / rows:.4f}", refresh=False)
        self.bar.update()
        return value, gradient

    def recall(self, name: str, compute: Callable[[], T], codec: Codec[T]) -> T:
        """Take a result from the checkpoint, or compute it; it replaces what a part of that name has stored.

        After an early end the checkpoint is neither read nor written: it is for complete fits, with other parameters.
        """
        saved = None if self.ending.early else self.checkpoint.recall(name, codec.read)
        if saved is not None:
            return saved
        found = compute()
        if not self.ending.early:
            self.checkpoint.drop(name)
            self.checkpoint.put(name, lambda: codec.write(found), now=True)
        return found

    def report(
        self,
        stage: str,
        rows: int,
        model: Callable[[], Any],
        log_evidence: float | None = None,
        *,
        iteration: int | None = None,
    ) -> None:
        """Call the callback, if there is one; ``iteration``: None counts one more, except at the start and the end."""
        if self._callback is None:
            return
        now = time.perf_counter()
        self.iteration = self.iteration + (stage not in ("start", "final")) if iteration is None else iteration
        seconds = now - self._began - self._in_callback
        with self.ending.catch_end():
            self._callback(FitEvent(stage, self.iteration, seconds, rows, log_evidence, model))
        self._in_callback += time.perf_counter() - now


class _Evaluations:
    """Evaluations of the evidence in their order, kept in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._known: list[tuple[Array, float, Array]] = checkpoint.recall(_EVALUATIONS, _unpack) or []
        self._next = 0

    def get(self, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Return value and gradient (empty if not asked for) at the vector; computed only if they are not known."""
        if self._next < len(self._known):
            at, value, gradient = self._known[self._next]
            if at.tobytes() == vector.tobytes():
                self._next += 1
                return value, gradient.copy()
            # On another machine arithmetic differs in the last bit: from here on the evaluations are new.
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
    if numbers.ndim != 1 or sizes.ndim != 2 or (sizes < 0).any() or (sizes.sum(axis=1) + 1).sum() != len(numbers):
        raise ValueError("the sizes of the evaluations do not fit their numbers")
    known, start = [], 0
    for width, gradient_width in sizes.tolist():
        middle, end = start + width, start + width + 1 + gradient_width
        known.append((numbers[start:middle].copy(), float(numbers[middle]), numbers[middle + 1 : end].copy()))
        start = end
    return known
