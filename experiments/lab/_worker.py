"""The process of one job: calls a function, and stores what it returns with its provenance.

    python -m experiments.lab._worker ORDER.json

The order is ``{"function": "module:name", "order": {...}, "store": folder, "key": name}``. A process of its own
for each job gives each its own peak of memory, its own threads, and takes nobody along when it dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.lab._folder import Store
from experiments.lab._provenance import provenance
from prismgp._memory import peak_bytes

__all__ = ["main"]

_WATCH_SECONDS = 0.5


def end_with_parent() -> None:
    """Leave when the plan that began this process is gone: it would be begun again beside this one."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(path: str) -> None:
    """Carry out the order in the file."""
    order: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    module, _, name = order["function"].partition(":")
    function = getattr(import_module(module), name)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(order["order"])
    said = sorted({f"{warning.category.__name__}: {warning.message}" for warning in caught})
    about = {"job_seconds": time.perf_counter() - began, "peak_bytes": peak_bytes(), "warnings": said}
    Store(Path(order["store"])).put(order["key"], {**provenance(), **order["order"], **about, **result})


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1])
