"""The paper's experiments, repeated: ``prismgp reproduce``."""

from experiments.lab.reproduce._page import page
from experiments.lab.reproduce._plan import EXPERIMENTS, EXTRAS, MODELS, Plan, make_plan
from experiments.lab.reproduce._run import carry_out_plan, write_outputs

__all__ = ["EXPERIMENTS", "EXTRAS", "MODELS", "Plan", "carry_out_plan", "make_plan", "page", "write_outputs"]
