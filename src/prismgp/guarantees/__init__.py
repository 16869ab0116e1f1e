"""Guarantees: what is proved about the error of a sparse spectrum, and for which data."""

from prismgp.guarantees._certificate import Certificate
from prismgp.guarantees._certify import certify
from prismgp.guarantees._condition_report import ClusterRow, ConditionCheck, ConditionReport
from prismgp.guarantees._conditions import check_conditions
from prismgp.guarantees._interval import Interval
from prismgp.guarantees._records import SampleBound, SampleSizes
from prismgp.guarantees._sample_size import sample_size

__all__ = [
    "Certificate",
    "ClusterRow",
    "ConditionCheck",
    "ConditionReport",
    "Interval",
    "SampleBound",
    "SampleSizes",
    "certify",
    "check_conditions",
    "sample_size",
]
