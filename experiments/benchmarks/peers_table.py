"""The comparison with the peers in one table: our default, the best Gaussian process of others, and trees.

python benchmarks/peers_table.py [RUN]
"""

from __future__ import annotations

import sys
from typing import Any

from _common import RESULTS
from _report import table

from experiments.lab import RunFolder

DEFAULT, TREES, NO_GP = "prism-32", "trees", ("trees", "linear")
OWN = ("prism", "ssgp", "exact")


def cell(result: dict[str, Any] | None, *, named: bool = False) -> str:
    if result is None:
        return "not run"
    name = f"{result['label']}: " if named else ""
    return f"{name}{result['rmse']:.3f} / {result['nlpd']:.3f} / {result['fit_seconds']:.0f} s"


def main() -> None:
    run = RunFolder.read(sys.argv[1] if len(sys.argv) > 1 else RESULTS / "bench")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for result in run.results.all().values():
        if "rmse" in result:
            found.setdefault(result["dataset"], {})[result["entry"]] = result
    rows = []
    for dataset, entries in sorted(found.items(), key=lambda item: next(iter(item[1].values()))["rows"]):
        others = [r for name, r in entries.items() if not name.startswith(OWN) and name not in NO_GP]
        ours = entries.get(DEFAULT)
        best = [min(others, key=lambda r: r[score], default=None) for score in ("rmse", "nlpd")]
        other = (
            cell(best[0], named=True)
            if best[0] is best[1]
            else f"{cell(best[0], named=True)}; {cell(best[1], named=True)}"
        )
        n = next(iter(entries.values()))["rows"]
        rows.append([dataset, f"{n:,}", cell(ours), other, cell(entries.get(TREES))])
    header = ["data set", "rows", "PrismGP, p = 32", "best GP of others, by RMSE and by NLPD", "trees"]
    print("\n".join(table(header, rows)))


if __name__ == "__main__":
    main()
