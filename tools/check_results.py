"""Say which stored results were made by code that has changed since, in the parts that matter.

    python tools/check_results.py            # exit status 1 where a stale result is not acknowledged
    python tools/check_results.py --write    # writes experiments/results/stale.md, which the documentation includes

Results that stand although they are stale are listed in ``experiments/stale.toml`` with the reason. Where a
change does not affect numbers, or measuring again must wait, add an entry; otherwise repeat the measurement with
``--stale``, as in ``python -m experiments accuracy --stale --results experiments/results``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # experiments are not installed

from experiments.machine import atomic_path  # noqa: E402
from experiments.parts import collect_stale, complaints, read_acknowledged, stale_table  # noqa: E402
from experiments.results import RESULTS  # noqa: E402

ACKNOWLEDGED = ROOT / "experiments" / "stale.toml"


def main(arguments: list[str]) -> int:
    """Check, or write; the exit status."""
    groups, acknowledged = collect_stale(RESULTS), read_acknowledged(ACKNOWLEDGED)
    table, page = stale_table(groups, acknowledged), RESULTS / "stale.md"
    found = list(complaints(groups, acknowledged))
    if "--write" in arguments:
        with atomic_path(page) as temporary:
            temporary.write_text(table, encoding="utf-8")
    elif not page.exists() or page.read_text(encoding="utf-8") != table:
        found.append("experiments/results/stale.md is out of date: run python tools/check_results.py --write")
    for line in found:
        print(line)
    if not found:
        count = sum(group.stale for group in groups)
        print(f"stored results: {count} are stale, all of them acknowledged" if count else "no stored result is stale")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
