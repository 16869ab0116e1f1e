"""Accuracy and calibration on real data: exact GP, SSGP, PrismGP by the paper's recipe, PrismGP.

    make bench-accuracy                                    the whole plan, then tables and figure
    python benchmarks/accuracy.py --list                   the plan and what is done of it
    python benchmarks/accuracy.py --datasets energy,pol --splits 1 --models ssgp,prism --p 32
    python benchmarks/accuracy.py --device cuda --jobs 5 --threads 3 --limit-seconds 500
    python benchmarks/accuracy.py --tables                 tables and figure alone

The plan: p = 32 on every split, p = 16 and 64 on the first. Abalone has five random splits of 3,000 training
rows, the others the first three of their collection's splits. Every run has a file of its own in
``benchmarks/results/accuracy/`` and is kept; ``--force`` repeats it. ``accuracy.md``, ``accuracy.png`` and
``accuracy.svg`` are made from these files. ``--results`` puts everything elsewhere.
"""

from __future__ import annotations

import sys

from _plan import main
from _runs import Suite
from accuracy_tables import MAIN_P, write_tables

SUITE = Suite(
    name="accuracy",
    models=("exact", "ssgp", "paper", "prism"),
    splits=lambda dataset: range(5 if dataset == "abalone" else 3),
    frequencies=lambda split: (MAIN_P, 16, 64) if split == 0 else (MAIN_P,),
)


if __name__ == "__main__":
    sys.exit(main(SUITE, lambda results: write_tables(SUITE, results), str(__doc__).splitlines()[0]))
