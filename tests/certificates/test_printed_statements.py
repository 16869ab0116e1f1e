"""The paper's Lemmas 6 to 11, as printed: counterexamples to those that are false, and what holds instead.

Notation of the paper: ``Q = K + s2 I``, ``lambda = |K - K'|``, ``c = lambda / s2``, kernels of variance one. The
additive statement about the evidence is what :func:`prismgp.certify` reports as ``evidence_difference``.
"""

from __future__ import annotations

import numpy as np
import pytest


def random_pair(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """K, K' and the noise: random kernel matrices with a unit diagonal."""
    n = int(rng.integers(1, 12))
    x = rng.normal(size=(n, 2)) * 10.0 ** rng.uniform(-1, 0.5)
    k = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1))
    angle = x @ rng.normal(size=(2, int(rng.integers(1, 30))))
    phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(angle.shape[1])
    return k, phi @ phi.T, 10.0 ** rng.uniform(-3, 0.5)


def norm(e: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(e)).max())


def logdet(q: np.ndarray) -> float:
    return float(np.linalg.slogdet(q)[1])


def form(q: np.ndarray, y: np.ndarray) -> float:
    return float(y @ np.linalg.solve(q, y))


def negative_log_evidence(q: np.ndarray, y: np.ndarray) -> float:
    """Without the constant."""
    return 0.5 * (logdet(q) + form(q, y))


def test_lemma_6_holds():
    """``(1 - c) Q <= Q' <= (1 + c) Q``."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        k, approximate, noise = random_pair(rng)
        q, other = (each + noise * np.eye(len(k)) for each in (k, approximate))
        c = norm(k - approximate) / noise
        for difference in ((1 + c) * q - other, other - (1 - c) * q):
            assert np.linalg.eigvalsh(difference)[0] > -1e-9


def test_lemma_7_is_false():
    """Printed: the mean is right to a factor of 1 +- c. One row, K = K' exactly, so c = 0: the means must agree.

    They do not, because the kernel between the row and the test point is approximated too.
    """
    noise, y, away = 0.1, 1.0, 1.0
    exact, frequency = np.exp(-0.5 * away**2), 1.5
    approximate = np.cos(frequency * away)
    c = abs(1.0 - 1.0) / noise
    mean, other = exact * y / (1 + noise), approximate * y / (1 + noise)
    assert mean == pytest.approx(0.551, abs=5e-4)
    assert c == 0.0
    assert not (1 - c) * mean <= other <= (1 + c) * mean
    # What holds: |mu - k_*'a| <= |y - Q a| / (2 s) for any a, k_* being the exact one; here a = y / Q, residual zero.
    assert abs(mean - exact * y / (1 + noise)) <= 1e-15


def test_lemma_8_is_false():
    """Printed: the variance is right to a factor of 1 +- c, plus c. One row again, K = K', c = 0."""
    noise, away = 0.1, 1.0
    exact, approximate = np.exp(-0.5 * away**2), np.cos(1.5 * away)
    variance, other = (1 - each**2 / (1 + noise) for each in (exact, approximate))
    c = 0.0
    assert not (1 - c) * variance - c <= other <= (1 + c) * variance + c


def test_lemma_9_is_false():
    """Printed: ``log |Q'|`` is right to a factor of 1 +- tau.

    Two rows with eigenvalues of Q on both sides of one: log |Q| is zero, and log |Q'| is not.
    """
    noise = 0.1
    off = np.sqrt((1 + noise) ** 2 - 1.0)  # |Q| = 1
    q = np.array([[1 + noise, off], [off, 1 + noise]])
    other = q.copy()
    other[0, 1] = other[1, 0] = off + 0.04
    c = 0.04 / noise
    assert logdet(q) == pytest.approx(0.0, abs=1e-12)
    assert logdet(other) < -0.03  # no factor of zero is
    assert abs(logdet(q) - logdet(other)) <= 2 * np.log1p(c)  # corrected


def test_lemmas_10_and_11_are_false():
    """Printed: so is the log evidence. With targets of zero it is the log determinant alone."""
    noise = 0.1
    off = np.sqrt((1 + noise) ** 2 - 1.0)
    q = np.array([[1 + noise, off], [off, 1 + noise]])
    other = np.array([[1 + noise, off - 0.2], [off - 0.2, 1 + noise]])
    y = np.zeros(2)
    assert negative_log_evidence(q, y) == pytest.approx(0.0, abs=1e-12)
    assert negative_log_evidence(other, y) > 0.05
    assert negative_log_evidence(other, y) <= np.log1p(0.2 / noise)  # corrected


def test_the_additive_statement_holds():
    """``|l - l'| <= 1/2 (n log(1 + c) + c min(y'Q^-1 y, y'Q'^-1 y))``, and printed Lemma 9 often does not."""
    rng = np.random.default_rng(1)
    printed_fails = 0
    for _ in range(2000):
        k, approximate, noise = random_pair(rng)
        n = len(k)
        q, other = (each + noise * np.eye(n) for each in (k, approximate))
        y = rng.normal(size=n) * 10.0 ** rng.uniform(-2, 2)
        c = norm(k - approximate) / noise
        bound = 0.5 * (n * np.log1p(c) + c * min(form(q, y), form(other, y)))
        difference = abs(negative_log_evidence(q, y) - negative_log_evidence(other, y))
        assert difference <= bound * (1 + 1e-9) + 1e-9
        assert abs(logdet(q) - logdet(other)) <= n * np.log1p(c) * (1 + 1e-9) + 1e-9
        ends = np.abs(np.log(np.linalg.eigvalsh(q)[[0, -1]])).min()
        if c < 1.0:
            tau = max(np.log1p(c), abs(np.log1p(-c))) / ends
            printed_fails += abs(logdet(q) - logdet(other)) > tau * abs(logdet(q)) + 1e-9
    assert printed_fails > 5


def test_means_and_variances_of_random_cases_break_the_printed_lemmas():
    """Lemmas 7 and 8 over random frequencies: one row, one test point, K = K'. The factor is one, and never right."""
    rng = np.random.default_rng(2)
    noise = 0.5
    wrong = 0
    for _ in range(500):
        away = rng.normal(size=3)
        approximate = np.cos(rng.normal(size=(8, 3)) @ away).mean()
        wrong += abs(np.exp(-0.5 * away @ away) - approximate) / (1 + noise) > 1e-3
    assert wrong > 450
