"""Progress of a fit: a bar for people when asked for, a history for everyone."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

__all__ = ["Progress"]


class Progress:
    """Collects the course of the optimisation and shows a bar with the evidence.

    Parameters
    ----------
    label : str
    verbose : int
        0 is silent.
    """

    def __init__(self, label: str, *, verbose: int) -> None:
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
        """Note one evaluation of the evidence."""
        self.history["rows"].append(event["rows"])
        self.history["log_evidence"].append(event["log_evidence"])
        self.history["seconds"].append(time.perf_counter() - self._began)
        per_row = event["log_evidence"] / event["rows"]
        self._bar.set_postfix_str(f"{event['rows']:,} rows, log evidence per row {per_row:.4f}", refresh=False)
        self._bar.update()
