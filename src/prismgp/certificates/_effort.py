"""What may be spent on a certificate, and what it found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from prismgp.certificates._interval import Interval
from prismgp.certificates._problem import Problem

__all__ = ["PARTS", "Effort", "Findings"]

PARTS = ("predictions", "evidence", "kernel")  # of a certificate


@dataclass(frozen=True)
class Effort:
    """How much may be spent, and on what.

    Attributes
    ----------
    rank : int
    products : int
    seconds : float or None
    delta : float
        Probability with which something may be wrong; zero: nothing random is used.
    tolerance : float
        Half-width, in units of the noise std, at which a prediction is known well enough.
    seed : int
    parts : tuple of str
        What is to be certified.
    """

    rank: int
    products: int
    seconds: float | None
    delta: float
    tolerance: float
    seed: int
    parts: tuple[str, ...] = PARTS

    @classmethod
    def auto(cls, n: int, *, rank: int | None, products: int | None, **others: Any) -> Effort:
        """Defaults for n rows: some minutes at the very most, and linear in n beyond 400,000 rows."""
        if rank is None:
            rank = int(min(n, 2_000, 50 + 10 * math.sqrt(n), max(50.0, math.sqrt(2e11 / n))))
        if products is None:
            products = int(min(40, 1.5e11 / n**2))
        return cls(rank=min(rank, n), products=products, **others)

    @property
    def random(self) -> bool:
        """Whether bounds with a probability are wanted, and products to find them with are there."""
        return self.delta > 0.0 and self.products > 1


@dataclass(frozen=True)
class Findings:
    """Bounds for one problem; means and variances are in the model's units, (m, q). None: not asked for.

    ``largest`` and ``quadratic`` bound the largest eigenvalue of K and ``y'Q^-1 y`` from above; ``reason`` is empty
    when everything holds.
    """

    spectral: Interval | None
    frobenius: Interval | None
    log_evidence: Interval | None
    mean: Interval | None
    variance: Interval | None
    largest: float
    quadratic: float
    spent: dict[str, Any]
    reason: str

    @classmethod
    def nothing(cls, problem: Problem, effort: Effort, spent: dict[str, Any], reason: str) -> Findings:
        """Bounds that say nothing, for a problem in which nothing can be said."""
        kernel = Interval(0.0, math.inf, 1.0, "none") if "kernel" in effort.parts else None
        evidence = mean = variance = None
        if "evidence" in effort.parts:
            evidence = Interval(-math.inf, math.inf, 1.0, "none", problem.log_evidence)
        if problem.test is not None:
            most = np.full(problem.test.mean.shape, np.inf)
            mean = Interval(-most, most, 1.0, "none", problem.test.mean)
            variance = Interval(np.zeros_like(most), most, 1.0, "none", problem.test.variance)
        return cls(kernel, kernel, evidence, mean, variance, math.inf, math.inf, spent, reason)
