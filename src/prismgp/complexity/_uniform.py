"""Frequencies that serve all length-scales of a set at once, for the rbf kernel.

Over all length-scales there is no such number: as they shrink, K tends to the identity while K' keeps rank 2p. What
holds, simultaneously for all ``theta >= theta_lo`` (elementwise), with R the largest scaled distance of an in-cluster
pair at ``theta_lo``:

- (S15) every entry is within ``eps = tau + (1 + (sqrt d + t) / sqrt p + e^(-1/2)) r`` of its mean, where
  ``tau = min(sqrt(2 G / p), sqrt(G / p) + 2 G / (3 p))`` and ``G = d log(1 + 2 R / r) + log(2 / delta_1)``: a net of
  mesh r, and the slopes of K' (at most ``|Omega| / sqrt p``) and of K between its points. So ``|E_in| <= (n_max - 1)
  eps``.
- (S16) ``|E_in|_F <= D S_F / 2 + max(3, m_4) S_4 / 24`` where ``D = 2 h + h^2 >= |Omega' Omega / p - I|``, ``h =
  (sqrt d + t) / sqrt p`` and
  ``m_4 = (sqrt d + u)^2 (1 + h)^2``: the expansion of both kernels to second order, with ``S_F^2 = sum s^2`` and
  ``S_4^2 = sum s^4`` taken at ``theta_lo``.

Both are about two random things, so delta is split: in S15 between the net and ``|Omega|``, in S16 between the extreme
singular values of Omega and its longest row. The mesh is chosen before the draw: the best for the p at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["entry_error", "expansion_error", "uniform_expansion", "uniform_net"]

_MOST = 2**50  # more frequencies are no answer
_MESH = np.geomspace(1e-9, 1.0, 271)


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
    """The smallest p for which S15 gives ``|E_in| <= room``; None where none does."""
    if largest < 2 or diameter == 0.0:
        return 1
    return _first(lambda p: (largest - 1) * entry_error(p, d, diameter, delta) <= room)


def uniform_expansion(d: int, norm: float, fourth_norm: float, room: float, delta: float) -> int | None:
    """The smallest p for which S16 gives ``|E_in| <= room``; None where none does."""
    if norm == 0.0:
        return 1
    return _first(lambda p: expansion_error(p, d, norm, fourth_norm, delta) <= room)


def _first(enough: Callable[[int], bool]) -> int | None:
    """The p at which ``enough`` turns true, by doubling and bisection."""
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
