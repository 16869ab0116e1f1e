"""Progress of a fit: a bar for people when asked for, a history for everyone."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from prismgp.model.checkpoint import Journal

__all__ = ["Progress"]


class Progress:
    """Collects the course of the optimisation and shows a bar with the evidence.

    Parameters
    ----------
    label : str
    log_scale : float
        Sum of the logarithms of the targets' scales: evidences come in the model's units and are noted
        in the user's.
    verbose : int
        0 is silent.
    listen : callable or None
        Told about every iteration, where the fit is observed.
    journal : Journal or None
        Knows evaluations from before an interruption.
    """

    def __init__(
        self,
        label: str,
        *,
        log_scale: float,
        verbose: int,
        listen: Callable[[dict[str, Any]], None] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal
        self._log_scale = log_scale
        self._listen = listen
        self.history: dict[str, list[float]] = {"rows": [], "log_evidence": [], "seconds": []}
        self._began = time.perf_counter()
        self._bar = tqdm(desc=label, unit="eval", disable=not verbose, leave=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def __call__(self, event: dict[str, Any]) -> None:
        """Note one evaluation of the evidence, or pass on where an iteration has led to."""
        if "params" in event:
            if self._listen is not None:
                self._listen(event)
            return
        rows = event["rows"]
        log_evidence = event["log_evidence"] - rows * self._log_scale
        self.history["rows"].append(rows)
        self.history["log_evidence"].append(log_evidence)
        self.history["seconds"].append(time.perf_counter() - self._began)
        self._bar.set_postfix_str(f"{rows:,} rows, log evidence per row {log_evidence / rows:.4f}", refresh=False)
        self._bar.update()
