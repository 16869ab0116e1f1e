"""The paper's own bounds (Theorems 3 and 4, Lemmas 7 to 12), as printed, beside the additive one that is true."""

from __future__ import annotations

import math
from typing import Any

from prismgp.certificates._effort import Findings
from prismgp.certificates._interval import Interval
from prismgp.certificates._problem import Problem

__all__ = ["paper_bounds"]


def paper_bounds(found: Findings, spectral: Interval, problem: Problem) -> dict[str, Any]:
    """Quantities of Theorem 3 and Lemma 10 at the certified kernel error.

    Parameters
    ----------
    found : Findings
    spectral : Interval
        The norm of the kernel error.
    problem : Problem
        Of several outputs or rows with noise of their own, the least noise counts.

    Returns
    -------
    dict
        Each entry has a ``value``, whether it is ``valid``, and ``why``.
    """
    error, noise = float(spectral.upper), float(problem.ratio.min())
    if problem.weight is not None:
        noise /= float(problem.weight.max())
    c = error / noise
    above, below = math.log1p(c), abs(math.log1p(-c)) if c < 1.0 else math.inf

    def tau(largest: float) -> float:
        """Lemma 9's constant for a matrix with eigenvalues from zero to this."""
        ends = abs(math.log(noise)), abs(math.log(largest + noise)) if math.isfinite(largest) else 0.0
        return max(above, below) / min(ends) if min(ends) > 0.0 else math.inf

    additive = 0.5 * (len(problem.ratio) * problem.n * above + c * found.quadratic)
    heuristic = "heuristic"
    return {
        "closeness": _entry(
            error, not found.reason, f"lambda, the kernel error; probability {spectral.probability:.4g}"
        ),
        "mean_factor": _entry(
            c, False, f"{heuristic}: Theorem 3 says the mean is right to this factor; false, as k_* is approximated too"
        ),
        "variance_factor": _entry(
            c, False, f"{heuristic}: Theorem 3 says the variance is right to this factor plus this; false"
        ),
        "evidence_factor": _entry(
            max(tau(found.largest), c),
            False,
            f"{heuristic}: Lemma 10; false where eigenvalues plus noise lie on both sides of one",
        ),
        "optimised_mean_factor": _entry(
            max(tau(found.largest), tau(found.largest + error), c),
            False,
            f"{heuristic}: rho of Theorem 4, at the model's parameters; false. Its other constant needs the exact GP's "
            "own optimum, which nobody knows",
        ),
        "evidence_difference": _entry(
            additive,
            not found.reason,
            "corrected Lemma 10: |l - l'| <= 1/2 (n log(1 + c) + c y'Q^-1 y), c = lambda / noise",
        ),
    }


def _entry(value: float, valid: bool, why: str) -> dict[str, Any]:
    return {"value": value if math.isfinite(value) else None, "valid": valid, "why": why}
