"""The full GP, the sparse spectrum GP and the revised one side by side, on real and simulated data.

    python examples/demo.py --out demo

Prints a table and writes ``report.html`` and ``overview.png`` into the folder, which is a run: ``prismgp report demo``
makes the page again. What is done is in ``prismgp/experiments/demo.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.lab import demo


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"))
    out = parser.parse_args().out
    done = demo.run(out, command=f"python examples/demo.py --out {out}")
    print(demo.text_table(done.results.all()))
    print(f"\nReport: {out / 'report.html'}   picture: {out / 'overview.png'}")


if __name__ == "__main__":
    main()
