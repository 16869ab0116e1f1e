"""What each part of the joint recipe is worth: one member, p = 32, with one thing changed at a time.

    python benchmarks/variants.py [--jobs 5 --threads 3]
    python benchmarks/variants.py --list | --tables

First split of a few data sets. Options and result files are those of ``accuracy.py``, in
``benchmarks/results/variants/``. Writes ``variants.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _plan import main
from _report import closing, table
from _runs import VARIANTS, Run, Suite, failed, finished

DATASETS = ("concrete", "airfoil")
P = 32
MEANINGS = {
    "base": "noise depends on the inputs, no dropout, 8 soft gates, network (128, 128), batches of 512 rows",
    "constant-noise": "one noise level for all rows",
    "dropout-05": "5% of the hidden values dropped",
    "dropout-10": "10% dropped",
    "no-gates": "no gates: 64 features instead of 512",
    "hard-gates": "one-hot gates: the masked kernel",
    "no-elbo": "evidence alone, no augmented ELBO",
    "elbo-ten-times": "weight of the augmented ELBO 0.01 instead of 0.001",
    "half-network": "hidden layers of 64",
    "paper-network": "the paper's sizes: one hidden layer of 10, 4 latent columns",
    "half-batch": "batches of 256 rows",
}
SUITE = Suite(
    name="variants",
    models=tuple(VARIANTS),
    splits=lambda _: (0,),
    frequencies=lambda _: (P,),
    datasets=DATASETS,
)
INTRODUCTION = (
    "RMSE / NLPD on the held-out rows of the first split; one member stacked with the plain SSGP, p = 32, and one "
    "thing changed at a time against the first line. Made by `python benchmarks/variants.py`."
)


def write_tables(folder: Path) -> list[Path]:
    plan = SUITE.plan()
    done = finished(folder, SUITE.name, plan)
    rows = []
    for name in VARIANTS:
        found = [done.get(Run(dataset, 0, name, P)) for dataset in DATASETS]
        cells = [f"{each['rmse']:.4f} / {each['nlpd']:.3f}" if each else "not run" for each in found]
        rows.append([name, MEANINGS[name], *cells])
    lines = [
        "# Variants of the joint recipe",
        "",
        INTRODUCTION,
        "",
        *table(["variant", "meaning", *DATASETS], rows),
        *closing(plan, done, failed(folder, SUITE.name, plan), made=done.values()),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "variants.md"
    path.write_text("\n".join(lines))
    return [path]


if __name__ == "__main__":
    sys.exit(main(SUITE, write_tables, str(__doc__).splitlines()[0]))
