"""What may be spent on a certificate, and what it found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from prismgp.guarantees._interval import Interval

__all__ = ["Effort", "Findings"]


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
    """

    rank: int
    products: int
    seconds: float | None
    delta: float
    tolerance: float
    seed: int

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
    """Bounds for one problem; means and variances are in the model's units, (m, q).

    ``largest`` and ``quadratic`` bound the largest eigenvalue of K and ``y'Q^-1 y`` from above; ``reason`` is empty
    when everything holds.
    """

    spectral: Interval
    frobenius: Interval
    log_evidence: Interval
    mean: Interval | None
    variance: Interval | None
    largest: float
    quadratic: float
    spent: dict[str, Any]
    reason: str
