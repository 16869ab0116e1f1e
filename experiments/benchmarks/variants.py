"""What each part of the joint recipe contributes: one member, p = 32, with one thing changed at a time.

First split of a few data sets.
"""

from __future__ import annotations

from experiments.benchmarks.suite import VARIANTS, Run, Suite, closing, describe, select_failed, select_finished
from experiments.page import markdown_table
from experiments.plan import Experiment
from experiments.results import Study

__all__ = ["VARIANTS_OF_PRISM"]

DATASETS = ("concrete", "airfoil")
P = 32
MEANINGS = {
    "base": "noise depends on the inputs, no dropout, 8 soft gates, network (128, 128), batches of 504 rows",
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
    "thing changed at a time against the first line; without neighbours, and the same fit with them. Every number "
    "is of a single run. Made by `python -m experiments variants`."
)


def markdown(study: Study) -> str:
    """One line for each variant."""
    plan = SUITE.runs()
    done = select_finished(study, plan)
    rows = []
    for name in VARIANTS:
        found = [done.get(Run(dataset, 0, name, P)) for dataset in DATASETS]
        both = [reading for each in found for reading in (each.get("spectrum", each) if each else None, each)]
        cells = [f"{each['rmse']:.4f} / {each['nlpd']:.3f}" if each else "not run" for each in both]
        rows.append([name, MEANINGS[name], *cells])
    columns = [f"{dataset}{which}" for dataset in DATASETS for which in ("", ", neighbours")]
    lines = [
        "# Variants of the joint recipe",
        "",
        INTRODUCTION,
        "",
        markdown_table(["variant", "meaning", *columns], rows),
        "",
        *closing(plan, done, select_failed(study, plan), made=done.values()),
    ]
    return "\n".join(lines)


VARIANTS_OF_PRISM = Experiment(
    kind="variants",
    summary="what each part of the joint recipe contributes, one change at a time",
    add_options=SUITE.add_options,
    make_plan=SUITE.make_plan,
    describe=describe,
    markdown=markdown,
)
