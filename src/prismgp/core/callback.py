"""The one thing that the mathematics calls outside itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prismgp._types import Array
from prismgp.core.statistics import Statistics


class Callback:
    """What a fit calls on its way. This one does nothing; subclasses show progress or keep results."""

    def evaluate(
        self,
        rows: int,  # noqa: ARG002
        vector: Array,  # noqa: ARG002
        compute: Callable[[], tuple[float, Array]],
    ) -> tuple[float, Array]:
        """Called instead of ``compute``, which evaluates the log evidence of some rows at a packed vector."""
        return compute()

    def reached(self, stage: str, rows: int, model: Callable[[], Any], log_evidence: float | None = None) -> None:
        """Called after every iteration; ``model`` makes the model at its parameters."""

    def statistics(self, compute: Callable[[], tuple[Statistics, ...]]) -> tuple[Statistics, ...]:
        """Called instead of ``compute``, which takes a pass over all rows at the final parameters."""
        return compute()
