"""The pivoted Cholesky factor."""

from __future__ import annotations

import numpy as np

from prismgp.certificates.lowrank import select_pivots
from tests.certificates.coverage import start
from tests.certificates.exact import KERNELS, random_case


def test_rounding_does_not_choose_pivots():
    """All rows are worth the same at first; the first is taken, whatever the last digit of the diagonal."""
    for seed in range(20):
        case = random_case(np.random.default_rng(seed), n=80, d=7, kernel=KERNELS[seed % 4], noise=0.1)
        pivots, _ = select_pivots(case.problem().rows, 5, weight=None, generator=start(0))
        assert int(pivots[0]) == 0
