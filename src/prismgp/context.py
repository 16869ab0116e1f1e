"""The context of a fit: progress shown to the user, a history, and a checkpoint that survives an interruption.

A fit is deterministic, so an interrupted one is not continued in the middle of its bookkeeping: it is run again, and
its costly parts are read from the checkpoint instead of being computed. Those are evaluations of the evidence, in
their order; states of networks in training; trained networks; statistics of all rows. The result is that of a fit
without interruption, bit for bit on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import torch
from tqdm import tqdm

from prismgp._system import too_large
from prismgp._types import Array
from prismgp.checkpoint import Checkpoint, Saved
from prismgp.core.rows import Callback, Ending
from prismgp.core.statistics import Statistics

_EVALUATIONS = "evaluations"

Recorder: TypeAlias = Callable[[Ending], Callback]  # see FitContext.recorder


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

    ``label`` names the progress bar, which ``verbose`` asks for. ``callback`` is called with a :class:`FitEvent` after
    every iteration. ``log_scale`` is the sum of the logarithms of the targets' scales: evidences come in the model's
    units and are recorded in the user's. ``ending`` says when the fit ends before it is done.

    The fit is the block of a ``with`` statement: at its end others may use the checkpoint, and where memory did not
    suffice, that is the error.
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

    def __enter__(self) -> FitContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.checkpoint.close()
        if (found := too_large(error, f"the fit of {self.label}")) is not None:
            raise found from error

    def part(
        self, name: str, label: str, model: Callable[[Any], Any] = lambda found: found, *, share: float = 1.0
    ) -> FitContext:
        """Return the context of a fit within this one, whose results are in the checkpoint under the name.

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

    def recorder(self, name: str) -> Recorder:
        """Return a maker of callbacks for trainings in turn, whose evaluations are in the checkpoint under the name."""
        evaluations = _Evaluations(self.checkpoint.scope(name))
        return lambda ending: _Recorder(evaluations, ending)

    def forget(self, name: str) -> None:
        """Remove the evaluations of a :meth:`recorder` from the checkpoint."""
        self.checkpoint.scope(name).drop(_EVALUATIONS)

    def status(self) -> dict[str, Any]:
        """Return the entries of ``fit_status_`` about the end of the fit."""
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
        """Move the progress bar by one step, after setting its position, its total and the text behind it if given."""
        if total is not None:
            self._bar.total = total
        if to is not None:
            self._bar.update(to - self._bar.n)
        if text is not None:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()

    # -- what the optimiser calls ----------------------------------------------------------------

    def evaluate(self, rows: int, vector: Array, compute: Callable[[], tuple[float, Array]]) -> tuple[float, Array]:
        """Take value and gradient from the checkpoint, or compute them; record and show them."""
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
        """Call the callback, if there is one; ``iteration``: None counts one more, except at the start and the end."""
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
        """Take statistics of blocks of rows from the checkpoint, or compute them, which takes a pass over all rows.

        The checkpoint is for a fit that is done: where this one has ended early, its parameters are others.
        """
        saved = None if self.ending.early else self.checkpoint.recall(name, _read_statistics)
        if saved is not None:
            return saved
        found = self.ending.insist(compute)
        if self.ending.early:
            return found
        about = [(each.n, each.q, each.log_noise_sum, str(each.moments.device)) for each in found]
        moments = {str(k): each.moments for k, each in enumerate(found)}
        self.checkpoint.put(name, lambda: (moments, {"blocks": about}), now=True)
        return found


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
            # Another machine, where the arithmetic differs in the last bit: from here on the fit is its own.
            del self._known[self._next :]
        value, gradient = compute()
        self._known.append((vector.copy(), value, gradient.copy()))
        self._next += 1
        self._checkpoint.put(_EVALUATIONS, lambda: _pack(self._known))
        return value, gradient


class _Recorder(Callback):
    """Evaluations from a checkpoint, or computed; nothing is shown."""

    def __init__(self, evaluations: _Evaluations, ending: Ending) -> None:
        super().__init__(ending)
        self._evaluations = evaluations

    def evaluate(
        self,
        rows: int,  # noqa: ARG002
        vector: Array,
        compute: Callable[[], tuple[float, Array]],
    ) -> tuple[float, Array]:
        return self._evaluations.get(vector, compute)


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


def _read_statistics(saved: Saved) -> tuple[Statistics, ...]:
    tensors, info = saved
    return tuple(
        Statistics(n, q, tensors[str(k)].to(device), log_noise_sum)
        for k, (n, q, log_noise_sum, device) in enumerate(info["blocks"])
    )
