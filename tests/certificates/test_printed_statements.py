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


def random_prediction(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Q, Q', the exact kernel values k_* of a test point, targets, and c."""
    k, approximate, noise = random_pair(rng)
    n = len(k)
    # Jitter keeps the factor of the kernel matrix real; a row of it is the kernel of one more point with unit variance.
    factor = np.linalg.cholesky(k + 1e-9 * np.eye(n))
    direction = rng.normal(size=n)
    cross = factor @ (direction / np.linalg.norm(direction)) * rng.uniform()
    q, other = (each + noise * np.eye(n) for each in (k, approximate))
    return q, other, cross, rng.normal(size=n), norm(k - approximate) / noise


def test_lemma_6_holds():
    """Printed: ``|Q'^-1| = (1 +- c) |Q^-1|``. The proof has more, ``(1 - c) Q <= Q' <= (1 + c) Q``."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        k, approximate, noise = random_pair(rng)
        q, other = (each + noise * np.eye(len(k)) for each in (k, approximate))
        c = norm(k - approximate) / noise
        for difference in ((1 + c) * q - other, other - (1 - c) * q):
            assert np.linalg.eigvalsh(difference)[0] > -1e-9
        inverse, other_inverse = (norm(np.linalg.inv(each)) for each in (q, other))
        assert abs(other_inverse - inverse) <= c * inverse + 1e-9 * inverse


def test_lemma_7_is_false():
    """Printed: the mean is right to a factor of 1 +- c; the proof has the exact k_* in both means.

    Two rows, and targets whose approximate mean is zero: so should the exact one be, whatever c is.
    """
    noise, cross = 0.7, np.array([0.9, 0.6])
    q, other = (np.array([[1 + noise, off], [off, 1 + noise]]) for off in (0.5, 0.6))
    w = np.linalg.solve(other, cross)
    y = np.array([-w[1], w[0]]) / np.linalg.norm(w)
    assert cross @ np.linalg.solve(other, y) == pytest.approx(0.0, abs=1e-15)
    mean = cross @ np.linalg.solve(q, y)
    assert abs(mean) > 0.02
    # What holds: |mu - k_*'a| <= |y - Q a| / (2 s) for any a, here that of the approximate GP.
    a = np.linalg.solve(other, y)
    assert abs(mean - cross @ a) <= np.linalg.norm(y - q @ a) / (2 * np.sqrt(noise))


def test_random_cases_break_lemma_7_and_none_lemma_8():
    """With the exact k_* in both: many means are off by more than the factor, and no variance is."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(1000):
        q, other, cross, y, c = random_prediction(rng)
        mean, other_mean = (cross @ np.linalg.solve(each, y) for each in (q, other))
        wrong += abs(mean - other_mean) > c * abs(other_mean) + 1e-9
        variance, other_variance = (1 - form(each, cross) for each in (q, other))
        # 1 - (1 + c) q' = (1 + c)(1 - q') - c, and likewise from above.
        low, high = (1 + c) * other_variance - c, (1 - c) * other_variance + c
        slack = 1e-9 * (1 + c) * (1 + abs(other_variance))
        assert low - slack <= variance <= high + slack
    assert wrong > 20


def test_lemma_8_fails_for_an_ssgp():
    """An SSGP approximates k_* as well. One row, K = K', so c = 0 and the variances must agree: they do not."""
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


def test_lemmas_9_and_10_hold_for_large_noise():
    """All eigenvalues of Q are above one, as they are where the noise variance is at least one, and c is below one."""
    rng = np.random.default_rng(3)
    tried = 0
    for _ in range(2000):
        k, approximate, noise = random_pair(rng)
        noise = max(noise, 1.0)
        q, other = (each + noise * np.eye(len(k)) for each in (k, approximate))
        c = norm(k - approximate) / noise
        if not 1e-12 < c < 1.0:
            continue
        tried += 1
        tau = -np.log1p(-c) / np.log(max(np.linalg.eigvalsh(q)[0], 1.0 + 1e-15))
        assert abs(logdet(other) - logdet(q)) <= tau * logdet(q) * (1 + 1e-9)
        y = rng.normal(size=len(k)) * 10.0 ** rng.uniform(-2, 2)
        negative = negative_log_evidence(q, y)
        assert abs(negative_log_evidence(other, y) - negative) <= max(tau, c) * negative * (1 + 1e-9)
    assert tried > 300


def test_lemma_11_corrected():
    """``|l'(T'*) - l(T*)| <= max(e(T*), e(T'*))`` over the same set of length-scales, e the bound of Lemma 10."""
    rng = np.random.default_rng(4)
    nearest = np.inf
    for _ in range(60):
        n, p, noise = int(rng.integers(2, 25)), int(rng.integers(1, 400)), 10.0 ** rng.uniform(-2, 0.5)
        x, epsilon = rng.normal(size=(n, 2)), rng.normal(size=(2, p))
        y = np.sin(2 * x[:, 0]) + np.sqrt(noise) * rng.normal(size=n)
        found = []
        for theta in np.geomspace(0.1, 10.0, 15):
            angle = x @ epsilon / theta
            phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(p)
            k = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1) / theta**2)
            q, other = (each + noise * np.eye(n) for each in (k, phi @ phi.T))
            c = norm(q - other) / noise
            bound = 0.5 * (n * np.log1p(c) + c * min(form(q, y), form(other, y)))
            found.append((negative_log_evidence(q, y), negative_log_evidence(other, y), bound))
        exact, approximate, bounds = np.array(found).T
        best, other_best = int(exact.argmin()), int(approximate.argmin())
        difference, bound = abs(approximate[other_best] - exact[best]), max(bounds[best], bounds[other_best])
        assert difference <= bound * (1 + 1e-9) + 1e-9
        nearest = min(nearest, bound / max(difference, 1e-12))
    assert nearest < 20.0  # of the size of what it bounds, somewhere
