"""The paper's experiments, repeated: ``prismgp reproduce``."""

from prismgp.experiments.reproduce._page import page
from prismgp.experiments.reproduce._plan import EXPERIMENTS, EXTRAS, MODELS, Plan, make_plan
from prismgp.experiments.reproduce._run import carry_out_plan, write_outputs

__all__ = ["EXPERIMENTS", "EXTRAS", "MODELS", "Plan", "carry_out_plan", "make_plan", "page", "write_outputs"]
