"""Watching a fit: who observes one learns how it goes, and may ask for the model as it would be if it ended there.

A fit without an observer does nothing of this; one with an observer computes the same, on a clock that stops while
the observer is at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Observation", "Observer", "Watch"]


@dataclass(frozen=True)
class Observation:
    """Where a fit stands.

    Attributes
    ----------
    stage : str
        "start", "exact GP start", "race", "l-bfgs", "quasi-newton", "fitted SSGP" where more
        is to come, "member 0" and so on, "final".
    iteration : int
        Iterations of the optimiser so far: of L-BFGS, and steps of Adam on mini-batches for networks.
    seconds : float
        Since the fit began, without what the observer took.
    rows : int
        That the present stage looks at.
    log_evidence : float or None
        Of these rows in the model's units, where the stage has one.
    model : callable
        Makes the fitted model on all training rows at the present parameters; those of networks only while the
        observer is at work, because they move on.
    """

    stage: str
    iteration: int
    seconds: float
    rows: int
    log_evidence: float | None
    model: Callable[[], Any]

    @property
    def final(self) -> bool:
        """Whether this is the model that the fit returns."""
        return self.stage == "final"


Observer = Callable[[Observation], None]


class Watch:
    """The clock of a fit, and its line to the observer.

    Parameters
    ----------
    observer : callable or None
    """

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._began = time.perf_counter()
        self._outside = 0.0
        self.iteration = 0

    def __call__(
        self,
        stage: str,
        rows: int,
        model: Callable[[], Any],
        *,
        iteration: int | None = None,
        log_evidence: float | None = None,
    ) -> None:
        """Tell the observer, if there is one; ``iteration``: None stands for that of the call before."""
        if self._observer is None:
            return
        now = time.perf_counter()
        self.iteration = self.iteration if iteration is None else iteration
        seconds = now - self._began - self._outside
        self._observer(Observation(stage, self.iteration, seconds, rows, log_evidence, model))
        self._outside += time.perf_counter() - now

    def listener(self, model_at: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None] | None:
        """What :class:`Progress` tells of iterations; ``model_at`` makes the model that such an event describes."""
        if self._observer is None:
            return None

        def listen(event: dict[str, Any]) -> None:
            iteration = self.iteration + (event["method"] != "start")
            log_evidence = event.get("log_evidence")
            self(
                event["method"], event["rows"], lambda: model_at(event), iteration=iteration, log_evidence=log_evidence
            )

        return listen

    def inner(self, translate: Callable[[Any], Any]) -> Observer | None:
        """The observer of a fit inside this one; ``translate`` makes a model of this fit from one of that."""
        if self._observer is None:
            return None

        def observe(seen: Observation) -> None:
            stage = "fitted SSGP" if seen.final else seen.stage
            self(
                stage,
                seen.rows,
                lambda: translate(seen.model()),
                iteration=seen.iteration,
                log_evidence=seen.log_evidence,
            )

        return observe
