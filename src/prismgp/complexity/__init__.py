"""Sample complexity: how many frequencies suffice, and the conditions on the data under which few do.

``inputs`` turns what users pass into upper bounds of sums and norms, with ``geometry`` for those of a partition;
``formulas`` turns these into numbers of frequencies; ``sample_sizes`` and ``conditions`` are the two public functions,
and ``records`` their answers.
"""

from prismgp.complexity.conditions import check_conditions
from prismgp.complexity.records import ClusterRow, ConditionCheck, ConditionReport, SampleBound, SampleSizes
from prismgp.complexity.sample_sizes import sample_size

__all__ = [
    "ClusterRow",
    "ConditionCheck",
    "ConditionReport",
    "SampleBound",
    "SampleSizes",
    "check_conditions",
    "sample_size",
]
