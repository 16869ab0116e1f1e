"""What is certified, what may be spent on it, and what was found.

A problem is one model and one exact GP, in the units in which the kernel has variance one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from prismgp._types import Array, Tensor
from prismgp.certificates.certificate import Interval
from prismgp.certificates.kernel_matrix import ReferenceKernel, times_thin
from prismgp.core.features import gated_features

__all__ = ["PARTS", "Effort", "Features", "Findings", "Problem", "TestPoints"]

PARTS = ("predictions", "evidence", "kernel")  # of a certificate
_ROWS = 8192  # of the features that are computed at a time


@dataclass(frozen=True)
class Features:
    """The model's kernel ``K'_uv = (phi_u'phi_v) (h_u'h_v)`` on some rows."""

    phi: Tensor  # (n, 2p), float64
    gates: Tensor | None  # h, (n, b)

    @property
    def width(self) -> int:
        """Number of features, gates included."""
        return self.phi.shape[1] * (1 if self.gates is None else self.gates.shape[1])

    def rows(self, index: slice | Tensor) -> Features:
        return Features(self.phi[index], None if self.gates is None else self.gates[index])

    def wide(self) -> Tensor:
        """All features, gates included, (n, 2p b)."""
        return self.phi if self.gates is None else gated_features(self.phi, self.gates)

    def paired(self, other: Features) -> Tensor:
        """``K'`` between each row and the same row of the other, (n,)."""
        values = (self.phi * other.phi).sum(1)
        if self.gates is not None and other.gates is not None:
            values = values * (self.gates * other.gates).sum(1)
        return values

    def times(self, v: Tensor) -> Tensor:
        """``K'v``, in two passes over the features."""
        parts = [slice(i, min(i + _ROWS, len(v))) for i in range(0, len(v), _ROWS)]
        inner = v.new_zeros(self.width, v.shape[1])
        for part in parts:
            inner += times_thin(self.rows(part).wide().T, v[part])
        return torch.cat([times_thin(self.rows(part).wide(), inner) for part in parts])

    def subtract_from(self, tile: Tensor, other: Features, out: Tensor) -> Tensor:
        """A tile of another kernel between these rows and others, minus this kernel's; in ``out``."""
        if self.gates is None or other.gates is None:
            return torch.addmm(tile, self.phi, other.phi.T, alpha=-1.0, out=out)
        return torch.addcmul(tile, self.phi @ other.phi.T, self.gates @ other.gates.T, value=-1.0, out=out)


@dataclass(frozen=True)
class TestPoints:
    """Where predictions are certified.

    Attributes
    ----------
    rows : ReferenceKernel
        The exact kernel on them.
    mean, variance : ndarray, (m, q)
        The model's predictions, of the function, in the model's units.
    noise : ndarray, (m, q)
        Noise variances there, as the model has them.
    """

    __test__ = False  # pytest would collect it for its name

    rows: ReferenceKernel
    mean: Array
    variance: Array
    noise: Array


@dataclass(frozen=True)
class Problem:
    """One model and the exact GP it approximates.

    Attributes
    ----------
    rows : ReferenceKernel
        The exact kernel on the training rows.
    features : Features
        The model's kernel on them.
    target : Tensor, (n, q)
        Targets minus the constant mean, in the model's units.
    weight : Tensor, (n,), or None
        Inverse relative noise variances ``1 / v``; None: all rows have the same noise.
    signal, noise, mean : ndarray, (q,)
    log_evidence : float
        The model's own, summed over outputs, in the model's units.
    test : TestPoints or None
    name : str
    statement : str
        Which exact GP is meant.
    """

    rows: ReferenceKernel
    features: Features
    target: Tensor
    weight: Tensor | None
    signal: Array
    noise: Array
    mean: Array
    log_evidence: float
    test: TestPoints | None
    name: str
    statement: str

    @property
    def n(self) -> int:
        return self.rows.n

    @property
    def ratio(self) -> Array:
        """Noise variance of a kernel of variance one, (q,)."""
        return self.noise / self.signal

    def whiten(self, values: Tensor) -> Tensor:
        """Divide rows by the root of their relative noise."""
        return values if self.weight is None else values * self.weight.sqrt()[:, None]


@dataclass(frozen=True)
class Effort:
    """How much may be spent, and on what.

    Attributes
    ----------
    rank : int
    products : int
    seconds : float or None
    delta : float
        Probability with which something may be wrong; zero: nothing random is used.
    tolerance : float
        Half-width, in units of the noise std, at which a prediction is known well enough.
    seed : int
    parts : tuple of str
        What is to be certified.
    """

    rank: int
    products: int
    seconds: float | None
    delta: float
    tolerance: float
    seed: int
    parts: tuple[str, ...] = PARTS

    @classmethod
    def auto(cls, n: int, *, rank: int | None, products: int | None, **others: Any) -> Effort:
        """Defaults for n rows: some minutes at most, and linear in n beyond 400,000 rows."""
        if rank is None:
            rank = int(min(n, 2_000, 50 + 10 * math.sqrt(n), max(50.0, math.sqrt(2e11 / n))))
        if products is None:
            products = int(min(40, 1.5e11 / n**2))
        return cls(rank=min(rank, n), products=products, **others)

    @property
    def random(self) -> bool:
        """Whether random bounds are wanted, and there are products to find them with."""
        return self.delta > 0.0 and self.products > 1


@dataclass(frozen=True)
class Findings:
    """Bounds for one problem; means and variances are in the model's units, (m, q). None: not asked for.

    ``largest`` and ``quadratic`` bound the largest eigenvalue of K and ``y'Q^-1 y`` from above; ``reason`` is empty
    when everything holds.
    """

    spectral: Interval | None
    frobenius: Interval | None
    log_evidence: Interval | None
    mean: Interval | None
    variance: Interval | None
    largest: float
    quadratic: float
    spent: dict[str, Any]
    reason: str

    @classmethod
    def nothing(cls, problem: Problem, effort: Effort, spent: dict[str, Any], reason: str) -> Findings:
        """Bounds that say nothing, and the reason why."""
        kernel = Interval.unknown(least=0.0) if "kernel" in effort.parts else None
        evidence = Interval.unknown(problem.log_evidence) if "evidence" in effort.parts else None
        mean = variance = None
        if problem.test is not None:
            mean, variance = Interval.unknown(problem.test.mean), Interval.unknown(problem.test.variance, least=0.0)
        return cls(kernel, kernel, evidence, mean, variance, math.inf, math.inf, spent, reason)
