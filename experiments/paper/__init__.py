"""The paper's experiments, repeated: ``python -m experiments reproduce NAME``."""

from __future__ import annotations

from experiments.paper.figures import figures
from experiments.paper.page import page
from experiments.paper.plan import EXPERIMENTS, EXTRAS, MODELS, add_options, make_plan
from experiments.paper.tables import all_claims, markdown
from experiments.plan import Experiment
from experiments.results import Record

__all__ = ["EXPERIMENTS", "EXTRAS", "MODELS", "REPRODUCE", "all_claims"]


def _describe(result: Record) -> str:
    if result.get("kind") == "fit":
        return f"RMSE {result['rmse']:.4f}, NLPD {result['nlpd']:.4f}, fit {result['fit_seconds']:.1f} s"
    return f"done, {result['job_seconds']:.1f} s"


REPRODUCE = Experiment(
    kind="reproduce",
    summary="repeat the paper's experiments: the full GP, the sparse spectrum GP and the revised ones",
    add_options=add_options,
    make_plan=make_plan,
    describe=_describe,
    markdown=markdown,
    figures=figures,
    page=page,
)
