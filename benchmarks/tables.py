"""The Markdown tables of the README, from the stored results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from _common import RESULTS


def stored(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def means(result: dict[str, Any] | None) -> dict[str, dict[str, float]]:
    """Mean scores and rows by data set."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for run in result["runs"] if result else []:
        by_name.setdefault(run["dataset"], []).append(run)
    keys = ("rmse", "nlpd", "coverage", "rows")
    return {name: {key: float(np.mean([run[key] for run in runs])) for key in keys} for name, runs in by_name.items()}


def accuracy() -> None:
    ssgp, exact = means(stored("accuracy_ssgp_p64")), means(stored("accuracy_exact"))
    print("| data set | rows | SSGP, p = 64: RMSE / NLPD / 95% coverage | full GP: RMSE / NLPD / 95% coverage |")
    print("| --- | --- | --- | --- |")
    for name, s in sorted(ssgp.items(), key=lambda item: item[1]["rows"]):
        cells = [f"{x['rmse']:.3f} / {x['nlpd']:.3f} / {100 * x['coverage']:.1f}%" for x in (s, exact.get(name)) if x]
        print(f"| {name} | {s['rows']:,.0f} | {cells[0]} | {cells[1] if len(cells) > 1 else 'not run'} |")


def flights() -> None:
    print("\n| | device | time | RMSE | NLPD |\n| --- | --- | --- | --- | --- |")
    for device in ("cpu", "cuda"):
        result = stored(f"flights_{device}")
        if result is None:
            continue
        where = "2 cores" if device == "cpu" else result["machine"]["gpu"]
        seconds = float(np.median([run["seconds"] for run in result["ssgp"]]))
        first = result["ssgp"][0]
        name = "`SSGPRegressor`, p = 64, whole fit"
        print(f"| {name} | {where} | {seconds:.1f} s | {first['rmse']:.4f} | {first['nlpd']:.4f} |")
        svgp = result["svgp_epoch"]
        if svgp:
            name = "GPyTorch SVGP, 512 inducing points, one epoch"
            print(f"| {name} | {where} | {svgp['seconds']:.1f} s | {svgp['rmse']:.4f} | {svgp['nlpd']:.4f} |")


if __name__ == "__main__":
    accuracy()
    flights()
