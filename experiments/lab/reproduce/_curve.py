"""The course of a fit on test rows: an observer that asks for predictions at a few iterations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from experiments.lab._scores import scores
from prismgp._types import AnyArray
from prismgp.model.observe import Observation

__all__ = ["Recorder"]

_RACE = "race"


class Recorder:
    """Scores a model along its fit, at iterations in about a geometric sequence, and at the end.

    While starting points race, the one with the largest evidence so far is the model.

    Parameters
    ----------
    x, y : ndarray, (m, d) and (m,)
        Test rows.
    scale : float
        Unit of the scores.
    growth : float
        From one iteration that is looked at to the next.
    between : bool
        False: only the end is scored.
    model : callable, optional
        Makes what is scored from the model that is observed.
    """

    def __init__(
        self,
        x: AnyArray,
        y: AnyArray,
        scale: float,
        *,
        growth: float = 1.4,
        between: bool = True,
        model: Callable[[Any], Any] = lambda seen: seen,
    ) -> None:
        self.x, self.y, self.scale, self._between, self._model = x, y, scale, between, model
        self._growth, self._next, self._stage = growth, 0, ""
        self._leader: Observation | None = None
        self.points: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.iterations = 0

    def __call__(self, seen: Observation) -> None:
        """Look at the fit, as an observer."""
        self.seconds, self.iterations = seen.seconds, seen.iteration
        if seen.final:
            self.add(seen, seen.model())
            return
        changed, self._stage = seen.stage != self._stage, seen.stage
        if changed:
            self._leader = None
        if seen.stage == _RACE and (self._leader is None or _evidence(seen) > _evidence(self._leader)):
            self._leader = seen
        wanted = changed or seen.iteration >= self._next
        if not self._between or not wanted:
            return
        self._next = max(seen.iteration + 1, int(self._growth * seen.iteration))
        self.add(seen, self._model((self._leader or seen).model()))

    def add(self, seen: Observation, model: Any) -> None:
        """Score a model as the one of that moment."""
        mean, std = model.predict(self.x, return_std=True)
        found = scores(self.y, mean, std, self.scale)
        point = {"stage": seen.stage, "iteration": seen.iteration, "seconds": seen.seconds, "rows": seen.rows}
        self.points.append({**point, **{name: found[name] for name in ("rmse", "nlpd", "coverage")}})


def _evidence(seen: Observation) -> float:
    return -math.inf if seen.log_evidence is None else seen.log_evidence
