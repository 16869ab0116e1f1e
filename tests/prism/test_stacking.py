"""Stacking by held-out rows: noise, weights, temperature, and when the plain SSGP is used alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as distributions

from prismgp.prism.stacking import (
    HeldOut,
    mixture_moments,
    noise_scale,
    selection_factor,
    stack,
    stack_forward,
    tail_share,
)
from tests import reference


def problem(rng, m=400, q=1, noise=0.1):
    """Targets around a known function."""
    f = rng.normal(size=(m, q))
    return f, f + np.sqrt(noise) * rng.normal(size=(m, q))


def expert(mean, *, variance=0.01, noise=0.1):
    return HeldOut(mean, np.full_like(mean, variance), np.full_like(mean, noise))


# -- weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_clearly_better_expert_gets_all_weight(rng, place):
    f, y = problem(rng)
    experts = [expert(f + rng.normal(size=f.shape), noise=1.1) for _ in range(3)]
    experts[place] = expert(f)
    found = stack(y, experts, simple=1)
    assert found.weights[place] > 0.97
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.weights >= 0).all()


def test_equal_experts_share(rng):
    f, y = problem(rng)
    found = stack(y, [expert(f), expert(f)], simple=0)
    np.testing.assert_allclose(found.weights, 0.5, atol=1e-3)
    # Equal predictions are no reason to use networks.
    found = stack(y, [expert(f), expert(f), expert(f)], simple=1)
    np.testing.assert_array_equal(found.weights, [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(found.temperature, 1.0)


def test_experts_join_while_they_help(rng):
    """Two with independent errors join the one that knows nothing; one that is noise does not."""
    f, y = problem(rng)
    better = [expert(f + 0.3 * rng.normal(size=f.shape), variance=0.09) for _ in range(2)]
    noise = expert(rng.normal(size=f.shape), noise=2.0)
    base = expert(0 * f, noise=1.1)
    found, _ = stack_forward(y, [[better[0]], [noise], [better[1]]], base)
    assert (found.weights[[0, 2]] > 0.2).all()
    assert found.weights[1] == 0.0
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-12)
    same = stack(y, [*better, base], simple=1)
    assert found.nlpd == pytest.approx(same.nlpd, abs=1e-3)
    alone, _ = stack_forward(y, [[noise]], expert(f))
    np.testing.assert_array_equal(alone.weights, [0.0, 1.0])
    np.testing.assert_array_equal(alone.temperature, 1.0)
    assert (stack_forward(y, [[each] for each in better], base, margin=-np.inf)[0].weights[:2] > 0).all()


def test_a_variant_must_be_better_than_the_simpler_one(rng):
    m = 400
    scale = np.where(np.arange(m) % 2, 1.0, 0.1)[:, None]
    f = rng.normal(size=(m, 1))
    y, base = f + scale * rng.normal(size=(m, 1)), expert(0 * f, noise=2.0)
    known, constant = HeldOut(f, 0 * f, scale**2), HeldOut(f, 0 * f, np.full_like(f, np.mean(scale**2)))
    by_chance = HeldOut(f, 0 * f, constant.noise * np.exp(0.3 * rng.normal(size=(m, 1))))
    found, variants = stack_forward(y, [[constant, by_chance, known]], base)
    assert variants == [2]
    assert found.weights[0] > 0.9
    assert stack_forward(y, [[constant, by_chance]], base)[1] == [0]


@pytest.mark.slow
def test_the_plain_ssgp_is_used_alone_unless_the_mixture_is_better(rng):
    # Members that are slightly better by chance must not win often; members that are much better must win.
    wins = 0
    for _ in range(40):
        f, y = problem(rng, m=60)
        plain = expert(f + 0.3 * rng.normal(size=f.shape), noise=0.15)
        members = [expert(plain.mean, noise=0.15) for _ in range(4)]
        wins += stack(y, [*members, plain], simple=1).weights[-1] < 1.0
    assert wins <= 2
    f, y = problem(rng, m=200)
    members = [expert(f) for _ in range(4)]
    assert stack(y, [*members, expert(0 * f, noise=1.0)], simple=1).weights[-1] == 0.0


def test_experts_with_errors_of_their_own_are_averaged(rng):
    f, y = problem(rng, 2_000, noise=0.01)
    experts = [expert(f + 0.5 * rng.normal(size=f.shape), variance=0.25, noise=0.01) for _ in range(4)]
    found = stack(y, experts, simple=0)
    assert found.weights.min() > 0.1
    alone = stack(y, experts[:1], simple=0)
    assert found.nlpd < alone.nlpd


def test_a_wide_useless_expert_gets_nothing(rng):
    """Exactly nothing: even a small share of a wide expert widens every prediction."""
    f, y = problem(rng)
    found = stack(y, [expert(f), expert(f), expert(np.zeros_like(f), variance=50.0)], simple=1)
    assert found.weights[2] == 0.0
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("simple", [0, 1])
def test_one_expert_has_all_weight(rng, simple):
    f, y = problem(rng)
    np.testing.assert_array_equal(stack(y, [expert(f)], simple=simple).weights, [1.0])


def test_the_simplest_that_nothing_beats_is_used_alone(rng):
    """Plain SSGP, last, before the same with learned noise, before members, unless these are significantly better."""
    f, y = problem(rng, 400)
    worse, bad = f + 0.3 * rng.normal(size=f.shape), f + 2.0
    good, wide = expert(f), expert(f, noise=100.0)
    # Learned noise is what counts; the members, of the same density, are not taken.
    alone = stack(y, [good, good, good, wide], simple=2)
    np.testing.assert_array_equal(alone.weights, [0, 0, 1, 0])
    np.testing.assert_array_equal(alone.temperature, [1.0])
    # It is of no use: the plain one.
    np.testing.assert_array_equal(stack(y, [wide, wide, wide, good], simple=2).weights, [0, 0, 0, 1])
    np.testing.assert_array_equal(stack(y, [good, good, good, good], simple=2).weights, [0, 0, 0, 1])
    # The members are far better than both.
    found = stack(y, [good, good, expert(bad), expert(worse + 2.0)], simple=2)
    assert found.weights[:2].sum() > 0.9


@pytest.mark.parametrize("margin", [-np.inf, 0.0, 1.0, 100.0])
def test_margin(rng, margin):
    """How much better than the plain SSGP the mixture must be, in standard errors."""
    f, y = problem(rng, 400)
    experts = [expert(f), expert(f + 0.2 * rng.normal(size=f.shape))]
    found = stack(y, experts, simple=1, margin=margin)
    assert (found.weights[0] > 0) == (margin < 100.0)
    equal = stack(y, [expert(f), expert(f)], simple=1, margin=margin)
    assert (equal.weights[0] > 0) == (margin == -np.inf)
    if margin == -np.inf:
        np.testing.assert_allclose(equal.weights, [0.95, 0.05], atol=1e-3)


def test_one_held_out_row_is_never_enough():
    f, y = problem(np.random.default_rng(0), 1)
    np.testing.assert_array_equal(stack(y, [expert(y), expert(f + 50.0)], simple=1).weights, [0.0, 1.0])


def test_few_rows_move_the_weights_little():
    """One held-out row must not decide."""
    f, y = problem(np.random.default_rng(0), 1)
    found = stack(y, [expert(f), expert(f + 0.5)], simple=0)
    assert (found.weights > 0.2).all()


def test_weights_are_those_of_the_best_density(rng):
    """Against a grid over the one free weight, with the pull towards equal shares that ten rows have."""
    f, y = problem(rng, 60)
    experts = [expert(f + 0.3), expert(f - 0.5 + 0.3 * rng.normal(size=f.shape))]
    means, totals = (np.stack([getattr(each, name) for each in experts]) for name in ("mean", "total"))
    grid = np.linspace(0.011, 0.989, 2_000)
    losses = []
    for w in grid:
        mean, variance = reference.mixture_moments(np.array([w, 1 - w]), means, totals)
        pull = -0.5 * np.log(w) - 0.5 * np.log(1 - w)
        losses.append(-distributions.norm.logpdf(y, mean, np.sqrt(variance)).sum() + 10 * pull)
    found = stack(y, experts, simple=0)
    assert found.weights[0] == pytest.approx(grid[int(np.argmin(losses))], abs=5e-3)


def test_moments(rng):
    weights = rng.dirichlet(np.ones(4))
    means, variances = rng.normal(size=(4, 5, 2)), rng.uniform(0.1, 2.0, (4, 5, 2))
    for got, expected in zip(
        mixture_moments(weights, means, variances), reference.mixture_moments(weights, means, variances), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-10)


# -- noise ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0, 20.0])
def test_noise_scale_recovers_a_known_factor(rng, factor):
    f, y = problem(rng, 5_000, q=2, noise=0.1)
    stated = np.full_like(f, 0.1 / factor)
    scale, nlpd = noise_scale(y, HeldOut(f, np.full_like(f, 1e-4), stated))
    assert scale.shape == (2,)
    np.testing.assert_allclose(scale, factor, rtol=0.12)  # steps of the grid are 5%, the estimate's error 2%
    expected = -distributions.norm.logpdf(y, f, np.sqrt(1e-4 + stated * scale)).mean()
    assert nlpd == pytest.approx(expected, rel=1e-10)


def test_noise_scale_of_outputs_and_rows_apart(rng):
    """Each output has a factor of its own, on noise that may differ from row to row."""
    f = rng.normal(size=(4_000, 2))
    relative = np.exp(rng.normal(size=(4_000, 1))) * np.array([1.0, 0.01])
    y = f + np.sqrt(relative * np.array([4.0, 0.5])) * rng.normal(size=f.shape)
    scale, _ = noise_scale(y, HeldOut(f, np.zeros_like(f) + 1e-6, relative))
    np.testing.assert_allclose(scale, [4.0, 0.5], rtol=0.15)


def test_noise_scale_stays_near_one_on_few_rows():
    f, y = problem(np.random.default_rng(0), 2, noise=0.1)
    for factor in (0.1, 10.0):
        scale, _ = noise_scale(y, HeldOut(f, np.zeros_like(f), np.full_like(f, 0.1 / factor)))
        assert 0.5 < scale[0] < 2.5


def test_noise_scale_is_bounded():
    """Targets that no noise explains, and targets explained perfectly."""
    f = np.zeros((50, 1))
    for y in (f + 1e9, f):
        scale, nlpd = noise_scale(y, HeldOut(f, np.full_like(f, 1e-6), np.full_like(f, 1e-3)))
        assert 0.04 < scale[0] < 55.0
        assert np.isfinite(nlpd)


# -- temperature -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_temperature_recovers_a_known_factor(rng, factor):
    f, y = problem(rng, 5_000, q=2, noise=0.11)
    found = stack(y, [expert(f, variance=0.01 / factor, noise=0.1 / factor)], simple=0)
    assert found.temperature.shape == (2,)
    np.testing.assert_allclose(found.temperature, factor, rtol=0.1)
    expected = -distributions.norm.logpdf(y, f, np.sqrt(found.temperature * 0.11 / factor)).sum(1).mean()
    assert found.nlpd == pytest.approx(expected, rel=1e-10)


def test_temperature_stays_near_one_on_few_rows():
    f, y = problem(np.random.default_rng(0), 3)
    found = stack(y, [expert(f, variance=0.01, noise=0.2)], simple=0)
    assert 0.9 < found.temperature[0] < 1.1


def test_temperature_is_per_output(rng):
    f = rng.normal(size=(5_000, 2))
    y = f + np.array([0.5, 2.0]) * rng.normal(size=f.shape)
    found = stack(y, [expert(f, variance=0.5, noise=0.5)], simple=0)
    np.testing.assert_allclose(found.temperature, [0.25, 4.0], rtol=0.1)


# -- rows to come --------------------------------------------------------------------------------------


def test_choices_cost_less_the_more_rows_make_them():
    """(Z9)."""
    factors = [selection_factor(None, m) for m in (0, 50, 1_000, 100_000)]
    np.testing.assert_allclose(factors, [1.3, 1.15, 1.0 + 15 / 1_050, 1.0 + 15 / 100_050])


def test_unequal_weights_are_fewer_rows():
    """A row of weight one among rows of weight zero is one row."""
    assert selection_factor(np.ones(80), 80) == selection_factor(None, 80)
    assert selection_factor(np.eye(80)[0], 80) == selection_factor(None, 1)


def test_one_row_more_than_were_held_out_may_be_far_away():
    """(Z6)."""
    assert tail_share(None, 99) == 0.01
    assert tail_share(np.full(99, 7.0), 99) == pytest.approx(0.01)
    assert tail_share(np.append(np.ones(49), np.zeros(50)), 99) == pytest.approx(0.02)
