"""Rounding: how far a computed sum of products can be from the true one.

A sum of k products is off by at most ``k u`` of the sum of their absolute values, u the unit roundoff; that
needs every error to have the same sign. We charge ``8 sqrt(k) u``: under the model of Higham and Mary
(SIAM J. Sci. Comput. 41, 2019; errors independent, of mean zero) it is exceeded with a probability below
1e-13, and below k = 64 it is the larger of the two anyway.                                            (U1)
"""

from __future__ import annotations

import math

__all__ = ["UNIT", "growth"]

UNIT = 2.0**-53


def growth(k: int) -> float:
    """Relative error of a sum of k products, (U1)."""
    return 8.0 * math.sqrt(k) * UNIT
