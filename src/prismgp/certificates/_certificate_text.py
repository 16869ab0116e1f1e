"""A certificate in words, for the command line and for reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prismgp.certificates._certificate import Certificate

__all__ = ["MEMBER_HEADER", "certificate_lines", "member_rows"]

MEMBER_HEADER = ("mean within", "std within", "log evidence within", "|K - K'| at most")


def certificate_lines(certificate: Certificate) -> list[tuple[str, str]]:
    """Pairs of a subject and a sentence: the summary, and what is typical where predictions are certified."""
    lines = [(subject.capitalize(), text) for subject, text in certificate.summary()]
    typical = _typical(certificate)
    if typical is not None:
        lines.insert(2, ("Typical mean", typical))
    return lines


def _typical(certificate: Certificate) -> str | None:
    """The worst point of many is seldom the one that matters."""
    if not certificate.holds or certificate.mean is None or certificate.noise_variance is None:
        return None
    share = np.ravel(certificate.mean.difference / np.sqrt(certificate.noise_variance))
    parts = [
        f"{_number(100 * float(np.quantile(share, level, method='higher')))}% of the noise std at {level:.0%}"
        for level in (0.5, 0.95)
    ]
    return f"within {' and '.join(parts)} of the test points"


def member_rows(certificate: Certificate) -> list[tuple[str, list[str]]]:
    """Every member's name and what is known of it, in the columns of ``MEMBER_HEADER``."""
    rows = []
    for member in certificate.members:
        cells = [_worst(each) for each in (member.mean, member.std, member.log_evidence)]
        error = _number(member.kernel_error.upper) if member.kernel_error is not None else "-"
        name = member.name.split(", ")[-1]
        rows.append((name if member.holds else f"{name} (fails)", [*cells, error]))
    return rows


def _worst(interval: Any) -> str:
    return "-" if interval is None else _number(float(np.max(interval.difference)))


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unknown"
