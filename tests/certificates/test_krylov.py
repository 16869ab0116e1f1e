"""Conjugate gradients and Lanczos: what they prove holds as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from prismgp.certificates.krylov import Budget, lanczos, ritz_shortfall, run_together
from tests.certificates.coverage import SEEDS, apart, rarely, start


@pytest.mark.slow
@pytest.mark.parametrize(("n", "steps", "starts", "delta"), [(400, 8, 1, 0.2), (400, 5, 2, 0.2), (100, 3, 4, 0.5)])
def test_norm_of_a_psd_matrix(n, steps, starts, delta):  # (K1), (K2)
    """A hard spectrum: a single large eigenvalue just above a continuum; the shortfall is seen to bite."""
    values = torch.linspace(0.0, 1.0, n, dtype=torch.float64) ** 2
    shortfall = ritz_shortfall(n, steps, starts, delta)
    assert 0.0 < shortfall < 1.0
    failures, short = 0, []
    first = torch.randn(n, starts * SEEDS, generator=start(1), dtype=torch.float64)
    task = lanczos(first, before=lambda v: v, after=lambda _, kv: kv, steps=steps)
    whole = run_together(lambda v: values[:, None] * v, [task], Budget(steps))[0]
    for found in apart(whole, starts):
        ritz = found.extremes()[1]
        assert ritz <= 1.0 + 1e-12
        short.append(1.0 - ritz)
        failures += ritz < 1.0 - shortfall
    assert len(short) == SEEDS
    assert rarely(failures, SEEDS, delta)
    # Lanczos is indeed short, by a tenth or more of what is allowed for: none at all would be too small a charge.
    assert np.mean(short) > 0.03 * shortfall


def test_shortfall_is_that_of_independent_starts():  # (K1)
    one, many = (ritz_shortfall(400, 10, k, 0.2) for k in (1, 8))
    assert one == pytest.approx((math.log(1.648 * 20.0 / 0.2) / 19.0) ** 2)
    assert many == pytest.approx((math.log(1.648 * 20.0 / 0.2 ** (1 / 8)) / 19.0) ** 2)
    assert ritz_shortfall(10, 10, 1, 0.2) == 0.0
    assert ritz_shortfall(10, 0, 1, 0.2) == ritz_shortfall(10, 3, 1, 0.0) == 1.0


def test_quadrature_encloses():  # (K3)
    """Gauss from above and Gauss-Radau from below, for every start and number of steps."""
    generator = np.random.default_rng(0)
    for k in range(200):
        n = 30
        values = 1.0 + generator.exponential(size=n) * 10.0 ** generator.uniform(-3, 3)
        a = torch.as_tensor(values)
        g = torch.as_tensor(generator.normal(size=(n, 3)))
        exact = (g.square() * a.log()[:, None]).sum(0)
        task = lanczos(g, before=lambda v: v, after=lambda _, kv: kv, steps=1 + k % 8)
        found = run_together(lambda v, a=a: a[:, None] * v, [task], Budget(99))[0]
        lower, upper = found.log_quadrature(floor=1.0)
        assert (lower <= exact * (1 + 1e-12)).all()
        assert (exact <= upper * (1 + 1e-12)).all()
        if k % 8 < 2:
            assert (upper - lower > 1e-9 * exact).all()  # they differ, so that the order is a statement


def test_riders_ask_for_no_product():
    """They see every product that others ask for, and end with them."""

    def asks(times):
        seen = 0
        for _ in range(times):
            if (yield torch.ones(3, 1)) is None:
                break
            seen += 1
        return seen

    made = []

    def product(v):
        made.append(v.shape[1])
        return v

    assert run_together(product, [asks(9), asks(2), asks(1)], Budget(20), riders=[0]) == [2, 2, 1]
    assert made == [3, 2]
    assert run_together(product, [asks(9)], Budget(20), riders=[0]) == [0]
    assert len(made) == 2
