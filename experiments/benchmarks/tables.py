"""The Markdown tables of the README, from the stored results.

python benchmarks/tables.py
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from _common import RESULTS
from _runs import DATASETS, MODELS, finished
from accuracy import SUITE

P = 32
SHOWN = ("exact", "ssgp", "prism")


def stored(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def means(model: str, dataset: str) -> dict[str, float] | None:
    """Mean scores over the splits; None if one of them is missing."""
    runs = [run for run in SUITE.plan(datasets=[dataset], models=[model]) if run.p in (None, P)]
    done = finished(RESULTS, SUITE.name, runs)
    if len(done) < len(runs):
        return None
    keys = ("rmse", "nlpd", "coverage", "rows")
    return {key: float(np.mean([result[key] for result in done.values()])) for key in keys}


def accuracy() -> None:
    names = [MODELS[model] + (f", p = {P}" if model != "exact" else "") for model in SHOWN]
    print(f"| data set | rows | {' | '.join(names)} |")
    print(f"| --- | --- | {' | '.join('---' for _ in SHOWN)} |")
    for dataset in sorted(DATASETS, key=lambda name: DATASETS[name]):
        found = [means(model, dataset) for model in SHOWN]
        cells = [f"{x['rmse']:.3f} / {x['nlpd']:.3f} / {x['coverage']:.1%}" if x else "not run" for x in found]
        print(f"| {dataset} | {DATASETS[dataset]:,} | {' | '.join(cells)} |")


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
