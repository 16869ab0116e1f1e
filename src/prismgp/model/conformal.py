"""Split conformal prediction: intervals with a guaranteed coverage, from rows that the model was not fitted to.

Held-out rows have scores ``(y - mean) / std``, one for each output. If they and a new row are exchangeable, the rank
of the new row's score among the n + 1 is uniform. So with ``k = ceil((n + 1) (1 + coverage) / 2)`` and sorted scores,

- (H1) ``P(y > mean + std score[k]) <= (1 - coverage) / 2``, and ``P(y < mean + std score[n + 1 - k])`` likewise,
- (H2) ``coverage <= P(y in the interval) <= coverage + 2 / (n + 1)``, the latter where no two scores are equal,

whatever the distribution and however wrong the model. The probability is over the held-out rows and the new row; it
is an average over inputs, not a statement about each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from prismgp._types import Array
from prismgp.exceptions import DataError

MOST_SCORES = 10_000  # that are kept; intervals between them are a little wider, never narrower


@dataclass(frozen=True)
class Conformal:
    """Sorted scores of held-out rows; all of them, or some, the smallest and the largest included."""

    scores: Array  # (m, q), each column increasing
    rows: int  # n, held-out rows

    @classmethod
    def of(cls, scores: Array) -> Conformal:
        """From the scores of all held-out rows, (n, q), in any order."""
        rows = len(scores)
        return cls(np.sort(scores, axis=0)[_kept_ranks(rows, kept_scores(rows)) - 1], rows)

    def check(self, coverage: float) -> None:
        """Refuse a coverage that the number of rows cannot guarantee."""
        if _upper_rank(self.rows, coverage) > self.rows:
            most = math.floor(1000 * (self.rows - 1) / (self.rows + 1)) / 1000
            remedy = f"conformalize with more, or ask for a coverage of at most {most:g}" if most > 0 else "give more"
            raise DataError(
                f"conformal intervals of coverage {coverage:g} need at least {rows_needed(coverage):,} held-out rows, "
                f"but there are {self.rows:,}; {remedy}"
            )

    def factors(self, coverage: float) -> Array:
        """Ends of the intervals, in standard deviations from the mean: lower and upper, (q, 2)."""
        self.check(coverage)
        ranks = _kept_ranks(self.rows, len(self.scores))
        upper = _upper_rank(self.rows, coverage)
        # The nearest kept scores farther out.
        above = int(np.searchsorted(ranks, upper))
        below = int(np.searchsorted(ranks, self.rows + 1 - upper, side="right")) - 1
        return np.stack([self.scores[below], self.scores[above]], axis=1)


def rows_needed(coverage: float) -> int:
    """Return the fewest held-out rows with which the coverage can be guaranteed."""
    return math.ceil(2 / (1 - _exact(coverage))) - 1


def kept_scores(n: int) -> int:
    """Return how many scores of n rows are kept, m."""
    return min(n, MOST_SCORES)


def _upper_rank(n: int, coverage: float) -> int:
    """k of (H1), from one."""
    return math.ceil((n + 1) * (1 + _exact(coverage)) / 2)


def _exact(coverage: float) -> Fraction:
    """Return the decimal number that was meant, such as 0.95, as its float may round a rank up."""
    return Fraction(repr(float(coverage)))


def _kept_ranks(n: int, m: int) -> npt.NDArray[np.int64]:
    """Ranks, from one, of m scores that are kept of n."""
    return np.linspace(1, n, m).round().astype(np.int64)
