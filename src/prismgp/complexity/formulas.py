"""How many frequencies make ``|K - K'| <= bound``, with probability at least ``1 - delta``: the formulas.

Notation. ``s`` is the scaled squared distance of a pair of rows, ``k = k(s)`` its kernel value, and one
frequency estimates it by a cosine, so ``K' = (C_1 + ... + C_p) / p`` with independent ``C_t`` of mean K. Masked
means that entries between clusters are set to zero. All sums run over ordered in-cluster pairs ``u != v``:
diagonals carry no error. With ``E_in`` the in-cluster error and ``tau_out = |K_off|``,

- (S0) ``|K - K'| <= tau_out + |E_in|``, so the frequencies have ``room = bound - tau_out`` to fill.

The sums that the formulas need, of which upper bounds serve as well:

- ``V = sum (1 + k(4 s)) / 2 - k(s)^2``, the variance of a cosine; for the rbf kernel ``sum (1 - k^2)^2 / 2``,
- ``B^2``, a bound of ``|C_t - K|_F^2``,
- ``S^2 = sum min(s, clip)^2`` (rbf), and without the clip ``S_F^2``.

Everything but the printed formula is proved in ``docs/sample-size.md``. Of p, the smallest integer is returned.

The formulas at the end are for all length-scales of a set at once, for the rbf kernel. For all length-scales there is
no such number: as they shrink, K tends to the identity while K' keeps rank 2p. What holds, simultaneously for all
``theta >= theta_lo`` (elementwise), with R the largest scaled distance of an in-cluster pair at ``theta_lo``:

- (S15) every entry is within ``eps = tau + (1 + (sqrt d + t) / sqrt p + e^(-1/2)) r`` of its mean, where
  ``tau = min(sqrt(2 G / p), sqrt(G / p) + 2 G / (3 p))`` and ``G = d log(1 + 2 R / r) + log(2 / delta_1)``: a net of
  mesh r, and the slopes of K' (at most ``|Omega| / sqrt p``) and of K between its points. So ``|E_in| <= (n_max - 1)
  eps``.
- (S16) ``|E_in|_F <= D S_F / 2 + max(3, m_4) S_4 / 24`` where ``D = 2 h + h^2 >= |Omega' Omega / p - I|``,
  ``h = (sqrt d + t) / sqrt p`` and ``m_4 = (sqrt d + u)^2 (1 + h)^2``: the expansion of both kernels to second order,
  with ``S_F^2 = sum s^2`` and ``S_4^2 = sum s^4`` taken at ``theta_lo``.

Both are about two random things, so delta is split: in S15 between the net and ``|Omega|``, in S16 between the extreme
singular values of Omega and its longest row. The mesh is chosen before the draw: the best for the given p.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from prismgp._types import Array

MOST_FREQUENCIES = 2**50  # more are of no use
THEORY_CLIP = 1.155  # of S in (S5): above 2 / c_3, where c_3 bounds the third moment of a cosine

# Of S in (S6): the root of ``1 + exp(-s / 2) = 2^(1/3) s``. Beyond it the cosine's range, 1 + k, is below the
# third moment's bound 2^(1/3) s, so the moments of a clipped pair are bounded as those of a pair at the clip.
CLIP = float(brentq(lambda s: 1.0 + math.exp(-0.5 * s) - 2.0 ** (1.0 / 3.0) * s, 1.0, 2.0)) * (1.0 + 1e-12)


_MESH = np.geomspace(1e-9, 1.0, 271)


def _round_up(p: float) -> int:
    """The smallest integer that is at least p, and at least 1."""
    return max(1, math.ceil(p))


def printed(n: int, n_clusters: int, bound: float, delta: float) -> int:
    """Lemma 5 and Theorem 2 as printed (S1), claimed with probability ``1 - 2 delta``; needs ``bound < n``.

    ``p = 32 b / (bound^2 2^a) log(b 2^(b+1) / delta)`` with ``2^a = n^4 / (n^4 - bound^4)``.
    """
    b = n_clusters
    log_term = math.log(b / delta) + (b + 1) * math.log(2.0)  # 2^(b+1) itself overflows for large b
    return _round_up(32.0 * b * (1.0 - (bound / n) ** 4) / bound**2 * log_term)


def least_delta(n_clusters: int, d: int) -> float:
    """The delta from which on Theorem 2 is stated, ``exp(b - sqrt d)``, its unknown constant taken as one.

    Above 1 the theorem is empty: no probability satisfies it. The proof of Lemma 3 needs ``4^b exp(-sqrt d)``, more.
    """
    return math.exp(min(n_clusters - math.sqrt(d), 700.0))  # exp itself overflows from 710 on


def markov(variance: float, room: float, delta: float) -> int:
    """Markov's inequality (S2) for ``E |E_in|_F^2 = V / p``: ``p = V / (delta room^2)``."""
    return _round_up(variance / (delta * room**2))


def bernstein(variance: float, scale: float, room: float, delta: float) -> int:
    """Bernstein in a Hilbert space, solved for p: ``p = 2 L (nu + H room) / room^2``, ``L = log(2 / delta)``.

    For moments ``E |C_t - K|_F^m <= m! nu H^(m-2) / 2``, the mean of p terms is above ``room`` with probability at
    most ``2 exp(-p room^2 / (2 (nu + H room)))``.
    """
    return _round_up(2.0 * math.log(2.0 / delta) * (variance + scale * room) / room**2)


def bernstein_bounded(variance: float, largest: float, room: float, delta: float) -> int:
    """Bernstein for bounded terms (S3): ``nu = V``, ``H = B / 3``."""
    return bernstein(variance, largest / 3.0, room, delta)


def bennett(variance: float, largest: float, room: float, delta: float) -> int:
    """Bennett for bounded terms (S4): ``p = L B^2 / (V h(room B / V))``, ``h(u) = (1 + u) log(1 + u) - u``.

    Never above (S3), because ``h(u) >= u^2 / (2 + 2 u / 3)``.
    """
    if variance == 0.0:
        return 1
    u = room * largest / variance
    # For small u the two terms of h cancel; its lower bound is safe there, and differs first in u^4.
    h = (1.0 + u) * math.log1p(u) - u if u > 1e-3 else 0.5 * u * u / (1.0 + u / 3.0)
    return _round_up(math.log(2.0 / delta) * largest**2 / (variance * h))


def bernstein_tight(variance: float, clipped: float, room: float, delta: float) -> int:
    """Bernstein by the moments of a cosine (S5, rbf), the better of two pairs: ``clipped`` is S with ``THEORY_CLIP``.

    ``E |C_t - K|_F^m <= (c_m S)^m`` with ``c_m = (((2m-1)!!)^(1/m) + 1) / 2``, so ``(nu, H)`` may be ``(1.75 S^2, S)``,
    or ``(V, S max_m (2 c_m^m S^2 / (m! V))^(1/(m-2)))``.
    """
    if clipped == 0.0 or variance == 0.0:
        return 1
    m = np.arange(3, 400)
    log_factorial = np.array([math.lgamma(k + 1.0) for k in m])
    log_double = np.array([math.lgamma(2.0 * k + 1.0) - k * math.log(2.0) - math.lgamma(k + 1.0) for k in m])
    log_moment = m * np.log((np.exp(log_double / m) + 1.0) / 2.0)
    excess = (log_moment - log_factorial + math.log(2.0 * clipped**2 / variance)) / (m - 2)
    return min(
        bernstein(1.75 * clipped**2, clipped, room, delta),
        bernstein(variance, clipped * math.exp(float(excess.max())), room, delta),
    )


def series_tail(y: Array) -> Array:
    """``T(y) = sum_{m >= 3} r_m y^m`` on [0, 1), ``r_m = binom(2m, m) / 4^m + 1 / (2^m m!)``.

    For small y a bound above it. ``m! r_m s^m`` bounds the m-th moment of ``|cos - k|``: with ``a = 1 - cos <= z^2 /
    2`` and ``b = 1 - k <= s / 2``, both non-negative, ``|a - b|^m <= a^m + b^m``.
    """
    closed = 1.0 / np.sqrt(1.0 - y) + np.exp(0.5 * y) - 2.0 - y - 0.5 * y * y
    return np.asarray(np.where(y < 0.02, y**3 / (3.0 * (1.0 - y)), closed))  # r_m <= r_3 = 1 / 3


def chernoff(variance: float, clipped: float, room: float, delta: float) -> int:
    """The moments of a cosine, kept whole (S6, rbf); ``clipped`` is S with ``CLIP``.

    For every y in (0, 1), ``P(|E_in|_F > room) <= 2 exp(-p [y room / S - log(1 + y^2 V / (2 S^2) + T(y))])``, because
    ``E cosh(t |C_1 + ... + C_p - p K|_F) <= (1 + E (e^x - 1 - x))^p``, ``x = t |C_1 - K|_F``. The best y of a grid is
    used. Bernstein's inequality follows for the pairs ``(2 S^2 / 3, S)`` and ``(V, 2 S^3 / (3 V))``.
    """
    if clipped == 0.0 or variance == 0.0:
        return 1
    variance = min(variance, 0.5 * clipped**2)  # 1 - k^2 <= min(s, 1)
    y = np.concatenate([np.geomspace(1e-9, 0.5, 6000), 1.0 - np.geomspace(0.5, 1e-7, 3000)])
    rate = float((y * room / clipped - np.log1p(0.5 * y**2 * variance / clipped**2 + series_tail(y))).max())
    pairs = (
        bernstein(2.0 / 3.0 * clipped**2, clipped, room, delta),
        bernstein(variance, 2.0 / 3.0 * clipped**3 / variance, room, delta),
    )
    return min(pairs) if rate <= 0.0 else min(*pairs, _round_up(math.log(2.0 / delta) / rate))


def union_tight(norm: float, pairs: int, room: float, delta: float) -> int:
    """Every pair at once (S7, rbf): ``|k - k'| <= s (sqrt(1.5 L / p) + L / p)`` with ``L = log(2 N / delta)``.

    ``norm`` is ``S_F`` and ``pairs`` the number N of unordered pairs. The sub-gamma tail of one pair has
    variance ``3 s^2 / 4`` and scale s, by the moments ``m! r_m s^m`` of (S6).
    """
    if norm == 0.0 or pairs == 0:
        return 1
    ratio = room / norm
    x = 2.0 * ratio / (math.sqrt(1.5 + 4.0 * ratio) + math.sqrt(1.5))  # the root of x^2 + sqrt(1.5) x = ratio, stably
    return _round_up(math.log(2.0 * pairs / delta) / x**2)


def matrix_bernstein(variance: float, trace: float, largest: float, room: float, delta: float) -> int:
    """Matrix Bernstein, intrinsic dimension (S8): ``p = (2 v / room^2 + 2 n_max / (3 room)) log(8 tr / (v delta))``.

    ``v`` and ``trace`` are the norm and the trace of one matrix above ``E (C_t - K)^2`` in the order of positive
    semi-definite matrices. At this p the theorem's condition, ``room >= sqrt(v / p) + n_max / (3 p)``, is met.
    """
    if variance == 0.0:
        return 1
    dimension = max(1.0, trace / variance)
    return _round_up((2.0 * variance / room**2 + 2.0 * largest / (3.0 * room)) * math.log(8.0 * dimension / delta))


def relative(n: int, noise_variance: float, share: float, dimension: float, error: float, delta: float) -> int:
    """Relative error (S9): ``(1 - D) Q <= Q' <= (1 + D) Q``, ``Q = K + noise I``; ``share``: ``|K| / (|K| + noise)``.

    ``p = (2 / D^2) (share + D / 3) (n / noise) log(8 dimension / (share delta))``, with ``dimension`` at least the
    effective dimension ``tr(K Q^-1)``.
    """
    scale = n / noise_variance
    return matrix_bernstein(scale * share, scale * dimension, scale, error, delta)


def condition_sizes(n_clusters: int) -> Array:
    """Condition 2: clusters of ``2^(i/2)`` rows, rounded to whole ones, i = 1, 2, ..."""
    return np.asarray(np.maximum(1.0, np.rint(2.0 ** (np.arange(1.0, n_clusters + 1.0) / 2.0))))


def implied_clusters(n: int) -> int:
    """The number of clusters that Condition 2 implies: the fewest whose sizes add up to n."""
    most = 4 + math.ceil(2.0 * math.log2(n))
    return 1 + int(np.searchsorted(np.cumsum(condition_sizes(most)), n))


def band_limits(n: int, bound: float, index: Array) -> tuple[Array, Array]:
    """U(i) and L(i) of Lemma 3 for the clusters ``index``, 1 the smallest; needs ``bound < n``.

    ``U(i) = -log(1 - 2^-(a+i-1))`` and ``L(i) = U(i + 1)``. ``2^-a = 1 - (bound / n)^4``, so ``U(1) = 4 log(n /
    bound)``.
    """
    log_ratio = math.log(n / bound)
    rest = -math.expm1(-4.0 * log_ratio)  # 2^-a

    def upper(i: Array) -> Array:
        below = np.minimum(rest * 2.0 ** (1.0 - i), 0.999)  # i = 1 is replaced below
        return np.where(i <= 1.0, 4.0 * log_ratio, -np.log1p(-below))

    i = np.asarray(index, dtype=np.float64)
    return upper(i), upper(i + 1.0)


def condition_caps() -> tuple[float, float]:
    """Caps of V and S_F (S10) under the corrected Conditions 1 to 3, whatever n and the number of clusters.

    Cluster i has at most ``2^i`` ordered pairs, with ``k^4 >= 1 - 2^(1-i)``; cluster 1 is a single row. So
    ``V <= sum_i 2^i (1 - sqrt(1 - 2^(1-i)))^2 / 2`` and ``S_F^2 <= sum_i 2^i (log(1 - 2^(1-i)) / 2)^2`` over i >= 2.
    """
    i = np.arange(2.0, 60.0)  # what follows adds less than 2^-58 to either sum, below their rounding
    q = 2.0 ** (1.0 - i)
    variance = np.sum(2.0**i * 0.5 * np.expm1(0.5 * np.log1p(-q)) ** 2)
    fourth = np.sum(2.0**i * (0.5 * np.log1p(-q)) ** 2)
    return float(variance), math.sqrt(float(fourth))


def entry_error(p: int, d: int, diameter: float, delta: float) -> float:
    """eps of S15: with probability ``1 - delta`` no entry errs by more, for any ``theta >= theta_lo``."""
    net, norm = 0.9 * delta, 0.1 * delta
    slope = 1.0 + (math.sqrt(d) + math.sqrt(2.0 * math.log(1.0 / norm))) / math.sqrt(p) + math.exp(-0.5)
    log_net = d * np.log1p(2.0 * diameter / _MESH) + math.log(2.0 / net)
    hoeffding = np.sqrt(2.0 * log_net / p)
    bernstein = np.sqrt(log_net / p) + 2.0 * log_net / (3.0 * p)  # variance at most 1/2, range 2
    return float((np.minimum(hoeffding, bernstein) + slope * _MESH).min())


def expansion_error(p: int, d: int, norm: float, fourth_norm: float, delta: float) -> float:
    """The bound S16 of ``|E_in|_F``; ``norm`` is S_F and ``fourth_norm`` S_4."""
    t = math.sqrt(2.0 * math.log(4.0 / delta))  # delta / 2 over both singular values
    u = math.sqrt(2.0 * math.log(2.0 * p / delta))  # delta / 2 over p rows
    h = (math.sqrt(d) + t) / math.sqrt(p)
    fourth = max(3.0, (math.sqrt(d) + u) ** 2 * (1.0 + h) ** 2)
    return 0.5 * (2.0 * h + h * h) * norm + fourth * fourth_norm / 24.0


def uniform_net(d: int, diameter: float, largest: int, room: float, delta: float) -> int | None:
    """Return the smallest p for which S15 gives ``|E_in| <= room``; None if there is no such p."""
    if largest < 2 or diameter == 0.0:
        return 1
    return _find_smallest(lambda p: (largest - 1) * entry_error(p, d, diameter, delta) <= room)


def uniform_expansion(d: int, norm: float, fourth_norm: float, room: float, delta: float) -> int | None:
    """Return the smallest p for which S16 gives ``|E_in| <= room``; None if there is no such p."""
    if norm == 0.0:
        return 1
    return _find_smallest(lambda p: expansion_error(p, d, norm, fourth_norm, delta) <= room)


def _find_smallest(enough: Callable[[int], bool]) -> int | None:
    """Find the p at which ``enough`` becomes true, by doubling and bisection."""
    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_FREQUENCIES:
            return None
    candidates = range(high // 2 + 1, high + 1)
    return candidates[bisect_left(candidates, True, hi=len(candidates) - 1, key=enough)]
