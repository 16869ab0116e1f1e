"""Certificates: intervals that contain what the exact GP would say."""

from prismgp.certificates._certificate import Certificate
from prismgp.certificates._certify import certify
from prismgp.certificates._interval import Interval

__all__ = ["Certificate", "Interval", "certify"]
