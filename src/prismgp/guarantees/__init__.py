"""Guarantees: what is proved about the error of a sparse spectrum, and for which data."""

from prismgp.guarantees._condition_report import ClusterRow, ConditionCheck, ConditionReport
from prismgp.guarantees._conditions import check_conditions
from prismgp.guarantees._records import SampleBound, SampleSizes
from prismgp.guarantees._sample_size import sample_size

__all__ = [
    "ClusterRow",
    "ConditionCheck",
    "ConditionReport",
    "SampleBound",
    "SampleSizes",
    "check_conditions",
    "sample_size",
]
