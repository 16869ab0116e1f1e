"""When a fit ends before it is done: at a time limit, or by an interrupt after which the best state so far is kept.

A stage runs inside :meth:`Ending.allow` and calls :meth:`Ending.check` before everything that takes time. When the
end has come, the check leaves the block, and the stage continues with the best state it has reached. What every model
needs, such as the last pass over the rows, is done in :meth:`Ending.insist`, whatever the clock says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar, get_args

from prismgp._types import OnInterrupt

T = TypeVar("T")

ON_INTERRUPT = get_args(OnInterrupt)


class FitEndedError(Exception):
    """The fit is to end with the best state so far; :meth:`Ending.allow` catches it."""


def time_twice(work: Callable[[], object]) -> float:
    """Seconds that some work takes; the second time, because the first prepares things."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@dataclass
class _Record:
    """What happened to a fit; its parts share it."""

    timed_out: bool = False
    interrupted: bool = False


class Ending:
    """Time limit of a fit, and what an interrupt (Ctrl-C) does.

    ``max_seconds``: None for no limit, counted from ``began``, a value of ``time.perf_counter`` (None: now). ``keep``:
    an interrupt ends the fit with the best state so far, instead of being raised; a second one is raised.
    """

    def __init__(self, max_seconds: float | None = None, *, keep: bool = False, began: float | None = None) -> None:
        self.began = time.perf_counter() if began is None else began
        self.keep = keep
        self._deadline = math.inf if max_seconds is None else self.began + max_seconds
        self._record = _Record()
        self._over = False

    def part(self, share: float = 1.0) -> Ending:
        """The ending of a stage that gets a share of the time left; an interrupt ends the whole fit."""
        now = time.perf_counter()
        inner = Ending(keep=self.keep, began=now)
        inner._record = self._record
        if self.limited:
            inner._deadline = now + share * max(0.0, self._deadline - now)
        return inner

    def reserve(self, seconds: float) -> None:
        """Keep time for what has to be done afterwards."""
        self._deadline -= seconds

    def shorten(self, share: float) -> None:
        """Take a share of the time instead of all of it."""
        if self.limited:
            self._deadline = self.began + share * (self._deadline - self.began)

    @property
    def limited(self) -> bool:
        """Whether there is a time limit."""
        return math.isfinite(self._deadline)

    @property
    def left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return self._deadline - time.perf_counter()

    @property
    def share(self) -> float:
        """The part of the time that has passed, at most 1; 0 without a limit."""
        whole = self._deadline - self.began
        return 0.0 if not self.limited else min(1.0, 1.0 - self.left / whole) if whole > 0.0 else 1.0

    @property
    def over(self) -> bool:
        """Whether this stage has been ended."""
        return self._over or self._record.interrupted

    @property
    def timed_out(self) -> bool:
        """Whether the time limit has ended a stage of the fit."""
        return self._record.timed_out

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt has ended the fit."""
        return self._record.interrupted

    @property
    def early(self) -> bool:
        """Whether a stage of the fit ended before it was done, so that its result is no longer reproducible."""
        return self.timed_out or self.interrupted

    @property
    def reason(self) -> str:
        """Why the fit ended early, for messages."""
        return "interrupted" if self.interrupted else "stopped by the time limit"

    def check(self, seconds: float = 0.0) -> None:
        """End the stage if something that takes this many seconds would end after the time limit."""
        if time.perf_counter() + seconds > self._deadline:
            self._over = self._record.timed_out = True
        if self.over:
            raise FitEndedError

    def allow(self) -> _Block:
        """Return a context manager that the end of the stage leaves, so that the code after it runs."""
        return _Block(self)

    def insist(self, compute: Callable[[], T]) -> T:
        """Compute a result that the model needs; if an interrupt is to keep the model, compute it again."""
        try:
            return compute()
        except KeyboardInterrupt:
            if not self.keeps_interrupt():
                raise
        return compute()

    def keeps_interrupt(self) -> bool:
        """Whether an interrupt that was caught ends the fit with the best state so far; only the first one does."""
        kept = self.keep and not self._record.interrupted
        self._record.interrupted |= kept
        return kept


class _Block:
    """What :meth:`Ending.allow` returns; a class, so that type checkers know that it stops exceptions."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return self._ending.keeps_interrupt()
        return isinstance(error, FitEndedError)
