"""Random problems for the certificates, and the exact GP in extended precision, without any of the code under test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from prismgp.certificates.kernel_matrix import Limits, ReferenceKernel
from prismgp.certificates.problem import Features, Problem, TestPoints
from prismgp.core.kernels import get_kernel

LONG = np.longdouble  # 64 bits of mantissa where the platform has them
KERNELS = ("rbf", "matern12", "matern32", "matern52")


@dataclass(frozen=True)
class Case:
    """One exact GP and one approximation of its kernel; scaled inputs, kernel of variance one."""

    kernel: str
    x: np.ndarray  # (n, d)
    x_test: np.ndarray  # (m, d)
    y: np.ndarray  # (n, q)
    noise: np.ndarray  # (q,), of a kernel of variance one
    phi: np.ndarray  # (n, 2p), the model's features
    signal: np.ndarray  # (q,)
    mean: np.ndarray  # (q,)
    model_gates: np.ndarray | None = None  # of K'
    gates: np.ndarray | None = None  # of K
    test_gates: np.ndarray | None = None
    weight: np.ndarray | None = None  # inverse relative noise variances

    def problem(self, limits: Limits | None = None) -> Problem:
        """What the certificates see."""

        def tensor(values):
            return None if values is None else torch.as_tensor(np.ascontiguousarray(values))

        rows = ReferenceKernel.on(get_kernel(self.kernel), tensor(self.x), tensor(self.gates), limits=limits)
        m, q = len(self.x_test), self.y.shape[1]
        nothing = np.zeros((m, q))
        return Problem(
            rows=rows,
            features=Features(tensor(self.phi), tensor(self.model_gates)),
            target=tensor(self.y - self.mean),
            weight=tensor(self.weight),
            signal=self.signal,
            noise=self.noise * self.signal,
            mean=self.mean,
            log_evidence=0.0,
            test=TestPoints(rows.at(tensor(self.x_test), tensor(self.test_gates)), nothing, nothing, nothing),
            name="case",
            statement="",
        )


@dataclass(frozen=True)
class Truth:
    """What the certificates must contain."""

    spectral: float
    frobenius: float
    log_evidence: float
    mean: np.ndarray
    variance: np.ndarray


def kernel_matrix(case: Case, a: np.ndarray, b: np.ndarray, g: np.ndarray | None, h: np.ndarray | None) -> np.ndarray:
    """Textbook kernels of distances by differences, in extended precision."""
    s = np.zeros((len(a), len(b)), dtype=LONG)
    for u, v in zip(a.T.astype(LONG), b.T.astype(LONG), strict=True):
        s += (u[:, None] - v[None, :]) ** 2
    if case.kernel == "rbf":
        k = np.exp(-s / 2)
    else:
        nu = int(case.kernel[-2])
        r = np.sqrt(nu * s)
        k = {1: LONG(1), 3: 1 + r, 5: 1 + r + r * r / 3}[nu] * np.exp(-r)
    return k if g is None or h is None else k * (g.astype(LONG) @ h.astype(LONG).T)


def cholesky(a: np.ndarray) -> np.ndarray:
    """Of a matrix in extended precision, column by column."""
    rest, lower = a.copy(), np.zeros_like(a)
    for k in range(len(a)):
        lower[k:, k] = rest[k:, k] / np.sqrt(rest[k, k])
        rest[k + 1 :, k + 1 :] -= np.multiply.outer(lower[k + 1 :, k], lower[k + 1 :, k])
    return lower


def forward(lower: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``lower^-1 b``."""
    z = b.astype(LONG).copy()
    for k in range(len(z)):
        z[k] /= lower[k, k]
        z[k + 1 :] -= np.multiply.outer(lower[k + 1 :, k], z[k])
    return z


def truth(case: Case) -> Truth:
    """The exact GP."""
    n, q = case.y.shape
    k = kernel_matrix(case, case.x, case.x, case.gates, case.gates)
    cross = kernel_matrix(case, case.x, case.x_test, case.gates, case.test_gates)
    approximate = case.phi.astype(LONG) @ case.phi.astype(LONG).T
    if case.model_gates is not None:
        approximate *= case.model_gates.astype(LONG) @ case.model_gates.astype(LONG).T
    error = k - approximate
    v = np.ones(n, dtype=LONG) if case.weight is None else 1 / case.weight.astype(LONG)
    evidence, means, variances = LONG(0), [], []
    for j in range(q):
        noise, signal = LONG(case.noise[j]), LONG(case.signal[j])
        lower = cholesky(k + np.diag(noise * v))
        z = forward(lower, np.column_stack([(case.y[:, j] - case.mean[j]) / np.sqrt(signal), cross]))
        logdet = 2 * np.log(np.diag(lower)).sum() + n * np.log(2 * LONG(np.pi) * signal)
        evidence -= (logdet + (z[:, 0] ** 2).sum()) / 2
        means.append(np.sqrt(signal) * (z[:, 1:].T @ z[:, 0]) + case.mean[j])
        variances.append(signal * (1 - (z[:, 1:] ** 2).sum(0)))
    small = error.astype(float)
    return Truth(
        spectral=float(np.abs(np.linalg.eigvalsh((small + small.T) / 2)).max()),
        frobenius=float(np.sqrt((error**2).sum())),
        log_evidence=float(evidence),
        mean=np.array(means, dtype=float).T.reshape(-1, q),
        variance=np.array(variances, dtype=float).T.reshape(-1, q),
    )


def spectral_features(x: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """``[cos, sin] / sqrt(p)``."""
    angle = x @ frequencies.T
    return np.concatenate([np.cos(angle), np.sin(angle)], 1) / np.sqrt(len(frequencies))


def random_case(rng: np.random.Generator, *, n: int, d: int, kernel: str, noise: float, q: int = 1, m: int = 5) -> Case:
    """A plain problem: normal inputs, length-scales of some sizes, iid frequencies."""
    scale = rng.uniform(0.3, 3.0) * np.sqrt(d) if d > 1 else rng.uniform(0.2, 2.0)
    x = rng.normal(size=(n, d)) / scale
    x_test = rng.normal(size=(m, d)) / scale
    if m:
        x_test[0] = x[0]
    y = np.sin(3 * x @ rng.normal(size=(d, q))) + np.sqrt(noise) * rng.normal(size=(n, q))
    degrees = {"rbf": None, "matern12": 1, "matern32": 3, "matern52": 5}[kernel]
    p = int(rng.integers(1, 40))
    frequencies = rng.normal(size=(p, d))
    if degrees is not None:
        frequencies *= np.sqrt(degrees / rng.chisquare(degrees, size=(p, 1)))
    return Case(
        kernel,
        x,
        x_test,
        y * (10.0 ** rng.uniform(-1, 1)),
        noise * 10.0 ** rng.uniform(-0.1, 0.1, q),
        spectral_features(x, frequencies),
        10.0 ** rng.uniform(-1, 1, q),
        rng.normal(size=q),
    )


def unit_gates(rng: np.random.Generator, rows: int, b: int, *, hard: bool) -> np.ndarray:
    """Gates of norm one: one-hot, or soft."""
    if hard:
        return np.eye(b)[rng.integers(0, b, rows)]
    g = rng.exponential(size=(rows, b))
    return g / np.sqrt((g**2).sum(1, keepdims=True))
