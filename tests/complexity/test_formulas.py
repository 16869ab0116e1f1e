"""The formulas: their derivations, step by step, and their inversion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats
from scipy.integrate import quad

from prismgp.complexity import formulas
from prismgp.complexity.formulas import entry_error, expansion_error, uniform_expansion, uniform_net
from prismgp.complexity.geometry import kernel_values
from prismgp.core.kernels import KERNELS, get_kernel


def gaussian_moment(function) -> float:
    """The expectation under N(0, 1)."""
    value, _ = quad(lambda z: function(z) * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi), -40, 40, limit=2000)
    return value


def moment_ratio(m: int) -> float:
    """r_m of S6."""
    return math.comb(2 * m, m) / 4**m + 1 / (2**m * math.factorial(m))


@pytest.mark.parametrize("s", [0.01, 0.3, 1.0, 1.2, 1.3, 2.0, 6.0, 30.0])
def test_moments_of_a_cosine(s):
    k = math.exp(-0.5 * s)
    assert gaussian_moment(lambda z: (math.cos(math.sqrt(s) * z) - k) ** 2) == pytest.approx(0.5 * (1 - k * k) ** 2)
    for m in (3, 4, 5, 8):
        moment = gaussian_moment(lambda z, m=m: abs(math.cos(math.sqrt(s) * z) - k) ** m)
        assert moment <= math.factorial(m) * moment_ratio(m) * min(s, formulas.CLIP) ** m * (1 + 1e-9)  # S6
        double = special.factorial2(2 * m - 1)
        assert moment <= ((double ** (1 / m) + 1) / 2 * min(s, formulas.THEORY_CLIP)) ** m * (1 + 1e-9)  # S5
        assert moment <= 0.375 * math.factorial(m) * s**m  # S7: variance 3 s^2 / 4, scale s


def test_clip():
    assert 1.0 + math.exp(-0.5 * formulas.CLIP) <= 2.0 ** (1 / 3) * formulas.CLIP
    roots = [(math.factorial(m) * moment_ratio(m)) ** (1 / m) for m in range(3, 120)]
    assert roots[0] == pytest.approx(2 ** (1 / 3))
    assert np.all(np.diff(roots) > 0)  # so the clip of the third moment serves all


def test_constants_of_the_tight_bound():
    """(1.75 S^2, S): the moments (c_m S)^m are at most m! 1.75 S^2 S^(m-2) / 2, for all m."""
    m = np.arange(3, 150)
    root = np.exp((special.gammaln(2 * m + 1) - m * math.log(2) - special.gammaln(m + 1)) / m)
    assert np.all(m * np.log((root + 1) / 2) <= special.gammaln(m + 1) + math.log(1.75 / 2))


def test_series():
    y = np.array([1e-6, 1e-3, 0.01, 0.019, 0.021, 0.1, 0.5, 0.9])
    tail = sum(moment_ratio(m) * y**m for m in range(3, 900))
    assert np.all(formulas.series_tail(y) >= tail * (1 - 1e-9))
    np.testing.assert_allclose(formulas.series_tail(y), tail, rtol=0.03)
    np.testing.assert_allclose(formulas.series_tail(y[4:]), tail[4:], rtol=1e-9)


@pytest.mark.parametrize("name", list(KERNELS))
def test_variance_of_any_kernel(name):
    """Var cos = (1 + k(4 s)) / 2 - k(s)^2, by frequencies."""
    kernel = get_kernel(name)
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((200_000, 2)) * kernel.mixing(rng.uniform(size=200_000))[:, None]
    for r in (0.2, 0.7, 1.5):
        s = np.array([r * r])
        expected = 0.5 * (1 + kernel_values(kernel, 4 * s)) - kernel_values(kernel, s) ** 2
        assert np.cos(r * draws[:, 0]).var() == pytest.approx(expected[0], abs=0.005)


GRID = [
    (v, b, room, delta) for v in (1e-3, 0.3, 50.0) for b in (1.0, 30.0) for room in (0.05, 2.0) for delta in (0.01, 0.3)
]


@pytest.mark.parametrize(("v", "scale", "room", "delta"), GRID)
def test_p_is_the_smallest(v, scale, room, delta):
    """Each p makes its tail at most delta, and p - 1 does not."""

    def bernstein(p: int, nu: float, h: float) -> float:
        return 2 * math.exp(-p * room**2 / (2 * (nu + h * room)))

    def bennett(p: int) -> float:
        u = room * scale / v
        return 2 * math.exp(-p * v / scale**2 * ((1 + u) * math.log1p(u) - u))

    p = formulas.bernstein_bounded(v, scale, room, delta)
    assert bernstein(p, v, scale / 3) <= delta * (1 + 1e-9)
    assert p == 1 or bernstein(p - 1, v, scale / 3) > delta
    q = formulas.bennett(v, scale, room, delta)
    assert q <= p
    assert bennett(q) <= delta * (1 + 1e-9)
    assert q == 1 or bennett(q - 1) > delta * (1 - 1e-6)
    m = formulas.markov(v, room, delta)
    assert v / (m * room**2) <= delta * (1 + 1e-12)
    clipped = math.sqrt(2 * v)  # rows so close that V = S^2 / 2
    c = formulas.chernoff(v, clipped, room, delta)
    assert c <= formulas.bernstein(2 / 3 * clipped**2, clipped, room, delta)
    assert c <= formulas.bernstein_tight(v, clipped, room, delta)
    n = formulas.union_tight(clipped, 10, room, delta)
    log = math.log(2 * 10 / delta)
    assert clipped * (math.sqrt(1.5 * log / n) + log / n) <= room * (1 + 1e-9)
    assert n == 1 or clipped * (math.sqrt(1.5 * log / (n - 1)) + log / (n - 1)) > room


@pytest.mark.parametrize(("v", "largest", "room", "delta"), GRID)
def test_matrix_bernstein_meets_its_condition(v, largest, room, delta):
    """The theorem asks for room >= sqrt(v / p) + n_max / (3 p); and its tail at p is at most delta."""
    p = formulas.matrix_bernstein(v, 7 * v, largest, room, delta)
    assert room >= math.sqrt(v / p) + largest / (3 * p)
    assert 8 * 7 * math.exp(-p * room**2 / 2 / (v + largest * room / 3)) <= delta * (1 + 1e-9)


def test_no_error_needs_one_frequency():
    assert formulas.markov(0.0, 1.0, 0.1) == 1
    assert formulas.bennett(0.0, 1.0, 1.0, 0.1) == 1
    assert formulas.bernstein_tight(0.0, 0.0, 1.0, 0.1) == 1
    assert formulas.chernoff(0.0, 0.0, 1.0, 0.1) == 1
    assert formulas.union_tight(0.0, 0, 1.0, 0.1) == 1
    assert formulas.matrix_bernstein(0.0, 0.0, 1.0, 1.0, 0.1) == 1
    assert uniform_net(3, 0.0, 10, 1.0, 0.1) == 1
    assert uniform_expansion(3, 0.0, 0.0, 1.0, 0.1) == 1


def test_tiny_rooms_never_round_to_one():
    """A vanishing room must ask for many frequencies, not hit the floor of a grid."""
    for room in (1e-6, 1e-9, 1e-12):
        assert formulas.chernoff(1.0, 2.0, room, 0.1) > 1 / room
        assert formulas.bennett(1.0, 2.0, room, 0.1) > 1 / room
        # Without cancellation: to first order p = 1.5 L (S_F / room)^2.
        expected = 1.5 * math.log(2 * 10 / 0.1) * (2.0 / room) ** 2
        assert formulas.union_tight(2.0, 10, room, 0.1) == pytest.approx(expected, rel=1e-3)


def test_uniform_numbers_are_the_smallest():
    p = uniform_net(3, 5.0, 50, 4.0, 0.1)
    assert 49 * entry_error(p, 3, 5.0, 0.1) <= 4.0 < 49 * entry_error(p - 1, 3, 5.0, 0.1)
    q = uniform_expansion(3, 2.0, 0.2, 0.5, 0.1)
    assert expansion_error(q, 3, 2.0, 0.2, 0.1) <= 0.5 < expansion_error(q - 1, 3, 2.0, 0.2, 0.1)
    assert uniform_expansion(3, 2.0, 100.0, 0.5, 0.1) is None


@pytest.mark.parametrize(("p", "d"), [(20, 2), (200, 2), (200, 10), (30, 40)])
def test_what_the_expansion_takes_from_the_draw(p, d):
    """S16: with probability 1 - delta, D and m_4 of the frequencies are below what it counts with."""
    delta, draws = 0.2, 400
    second, fourth = expansion_error(p, d, 2.0, 0.0, delta), expansion_error(p, d, 0.0, 24.0, delta)
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(draws):
        omega = rng.standard_normal((p, d))
        size = np.linalg.norm(omega, 2)
        above += (
            np.linalg.norm(omega.T @ omega / p - np.eye(d), 2) > second
            or max(3.0, (omega**2).sum(1).max() * size**2 / p) > fourth
        )
    assert above <= stats.binom(draws, delta).ppf(0.9999)
    assert second <= 40.0 * math.sqrt(d / p) + 20.0 * d / p  # and not by far


def test_band_limits():
    upper, lower = formulas.band_limits(871, 10.0, np.arange(1.0, 17.0))
    assert upper[0] == pytest.approx(4 * math.log(87.1))
    np.testing.assert_allclose(lower[:-1], upper[1:])
    a = -math.log2(1 - (10 / 871) ** 4)
    np.testing.assert_allclose(upper[1:], -np.log(1 - 2.0 ** -(a + np.arange(2, 17) - 1)), rtol=1e-12)
    # The caps take a = 0, which is the worst.
    sizes = formulas.condition_sizes(16)[1:]
    assert (0.5 * sizes * (sizes - 1) * np.expm1(-upper[1:] / 2) ** 2).sum() <= formulas.condition_caps()[0]
    assert (sizes * (sizes - 1) * (upper[1:] / 2) ** 2).sum() <= formulas.condition_caps()[1] ** 2
