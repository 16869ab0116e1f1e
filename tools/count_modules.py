"""Print the modules of the package that a fit from a Parquet file, and a prediction, pass through.

    python tools/count_modules.py

A module counts where one of its functions is called, in the order of first calls; loading it does not count. Also
printed: lines and modules of the installed package.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd

import prismgp
from prismgp.cli import main
from prismgp.prism.fit import DEFAULTS

PACKAGE = Path(prismgp.__file__).parent
LIMITS = {"fit": 35, "predict": 15}


def modules_of(arguments: list[str]) -> list[str]:
    """Modules whose functions a command calls, in the order of first calls."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Not the body of a module or a class, nor a comprehension, which is a function before Python 3.12.
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and function and code.co_filename.startswith(str(PACKAGE)):
            found.setdefault(Path(code.co_filename).relative_to(PACKAGE).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        code = main(arguments)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(f"prismgp {' '.join(arguments)} ended with exit code {code}")
    return list(found)


def run() -> int:
    DEFAULTS["joint"].update(max_steps=26, n_members=1, hidden=8, batch_size=64)  # watching every call takes long
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
    rows = rows.assign(kind=np.where(rows["a"] > 0, "left", "right"), y=np.sin(rows["a"]))
    exceeded = 0
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        rows.to_parquet(there / "rows.parquet", index=False)
        rows.drop(columns="y").to_parquet(there / "new.parquet", index=False)
        table, new = str(there / "rows.parquet"), str(there / "new.parquet")
        commands = {}
        for model in ("exact", "ssgp", "prism"):
            file, out = str(there / f"{model}.prism"), str(there / "out.parquet")
            commands[f"fit, {model}"] = ["fit", table, "-t", "y", "--model", model, "-o", file, "-q"]
            commands[f"predict, {model}"] = ["predict", file, new, "-o", out, "-q"]
        for name, arguments in commands.items():
            found = modules_of(arguments)
            limit = LIMITS[arguments[0]]
            exceeded += len(found) > limit
            print(f"{name}: {len(found)} modules, at most {limit}")
            print(f"  {' -> '.join(found)}\n")
    sources = list(PACKAGE.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in sources)
    print(f"installed: {lines:,} lines in {len(sources)} modules")
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(run())
