"""Say which stored results were made by code that has changed since, in the parts that matter.

    python tools/check_results.py

The exit status is 1 where a stale result is not acknowledged, or not shown in ``experiments/results/tables.md``, which
the documentation includes. Results that stand although they are stale are listed in ``experiments/stale.toml`` with the
reason. Where a change does not affect numbers, or measuring again must wait, add an entry; otherwise repeat the
measurement with ``--stale``, as in ``python -m experiments accuracy --stale --results experiments/results``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # experiments are not installed

from experiments.parts import collect_stale, complaints, read_acknowledged, stale_table  # noqa: E402
from experiments.results import RESULTS  # noqa: E402

ACKNOWLEDGED = ROOT / "experiments" / "stale.toml"


def main() -> int:
    """Check; the exit status."""
    groups, acknowledged = collect_stale(RESULTS), read_acknowledged(ACKNOWLEDGED)
    found, page = list(complaints(groups, acknowledged)), RESULTS / "tables.md"
    if not page.exists() or stale_table(groups, acknowledged) not in page.read_text(encoding="utf-8"):
        found.append("experiments/results/tables.md does not show which results are stale: run make tables")
    for line in found:
        print(line)
    if not found:
        count = sum(group.stale for group in groups)
        print(f"stored results: {count} are stale, all of them acknowledged" if count else "no stored result is stale")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
