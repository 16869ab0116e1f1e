"""Sample complexity: how many frequencies suffice, and the conditions on the data under which few do."""

from prismgp.complexity._condition_report import ClusterRow, ConditionCheck, ConditionReport
from prismgp.complexity._conditions import check_conditions
from prismgp.complexity._records import SampleBound, SampleSizes
from prismgp.complexity._sample_size import sample_size

__all__ = [
    "ClusterRow",
    "ConditionCheck",
    "ConditionReport",
    "SampleBound",
    "SampleSizes",
    "check_conditions",
    "sample_size",
]
