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

PARTS = ("predictions", "evidence", "kernel")  # of a certificate
_ROWS = 8192  # of the features that are computed at a time
_ENOUGH = 0.3  # what the rank may leave of a row, on average, in units of noise and tolerance
FEW_ROWS = 2_500  # up to which the default rank goes by the rows alone
_MOST_RANK, _RANK_WORK = 3_000, 5e11  # of the defaults: the largest rank, and rows times its square
LEAST_RANK = 3.5  # roots of n: so many pivots take less time than the products that they save, which grow with n^2


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

    def expand(self) -> Tensor:
        """All features, gates included, (n, 2p b)."""
        return self.phi if self.gates is None else gated_features(self.phi, self.gates)

    def pair(self, other: Features) -> Tensor:
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
            inner += times_thin(self.rows(part).expand().T, v[part])
        return torch.cat([times_thin(self.rows(part).expand(), inner) for part in parts])

    def subtract_from(self, tile: Tensor, other: Features, out: Tensor) -> Tensor:
        """A tile of another kernel between these rows and others, minus this kernel's; in ``out``."""
        if self.gates is None or other.gates is None:
            return torch.addmm(tile, self.phi, other.phi.T, alpha=-1.0, out=out)
        return torch.addcmul(tile, self.phi @ other.phi.T, self.gates @ other.gates.T, value=-1.0, out=out)


@dataclass(frozen=True)
class TestPoints:
    """Where predictions are certified, and the model's predictions there, (m, q), in the model's units."""

    __test__ = False  # pytest would collect it for its name

    rows: ReferenceKernel  # the exact kernel on them
    mean: Array  # of the function, as the variance
    variance: Array
    noise: Array  # noise variances


@dataclass(frozen=True)
class Problem:
    """One model and the exact GP it approximates."""

    rows: ReferenceKernel  # the exact kernel on the training rows
    features: Features  # the model's kernel on them
    target: Tensor  # (n, q), minus the constant mean, in the model's units
    weight: Tensor | None  # (n,), inverse relative noise variances 1 / v; None: all rows have the same noise
    signal: Array  # (q,)
    noise: Array  # (q,)
    mean: Array  # (q,)
    log_evidence: float  # the model's own, summed over outputs, in the model's units
    test: TestPoints | None
    name: str
    statement: str  # which exact GP is meant

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
    """How much may be spent, and on what."""

    rank: int
    products: int
    seconds: float | None
    delta: float  # probability with which something may be wrong; zero: nothing random is used
    tolerance: float  # half-width, in units of the noise std, at which a prediction is known well enough
    seed: int
    parts: tuple[str, ...] = PARTS  # what is to be certified
    enough: float = 0.0  # share of the noise that the rank may leave of a row, on average; zero: all of it is used
    least_rank: int = 0  # that is used in any case

    @classmethod
    def auto(
        cls, n: int, *, rank: int | None, products: int | None, delta: float, tolerance: float, **others: Any
    ) -> Effort:
        """Defaults for n rows: some minutes at most, and linear in n beyond 400,000 rows.

        With random vectors, what the rank leaves need only be small; without, the bounds are as good as the rank. Of
        few rows, a large rank costs next to nothing.
        """
        if products is None:
            products = int(min(40, 1.5e11 / n**2))
        enough, least_rank = 0.0, 0
        if rank is None:
            rank = int(min(2_000, 50 + 10 * math.sqrt(n), max(50.0, math.sqrt(2e11 / n))))
            if n > FEW_ROWS and delta > 0.0 and products > 1:
                rank, enough = int(min(_MOST_RANK, max(50.0, math.sqrt(_RANK_WORK / n)))), _ENOUGH * tolerance
                least_rank = min(rank, int(LEAST_RANK * math.sqrt(n)))
        sizes: dict[str, Any] = {"rank": min(rank, n), "least_rank": least_rank, "enough": enough, "products": products}
        return cls(**sizes, delta=delta, tolerance=tolerance, **others)

    @property
    def random(self) -> bool:
        """Whether random bounds are wanted, and there are products to find them with."""
        return self.delta > 0.0 and self.products > 1


@dataclass(frozen=True)
class Findings:
    """Bounds for one problem; None: not asked for."""

    spectral: Interval | None
    frobenius: Interval | None
    log_evidence: Interval | None
    mean: Interval | None  # in the model's units, (m, q), as the variance
    variance: Interval | None
    largest: float  # the largest eigenvalue of K, from above
    quadratic: float  # y'Q^-1 y, from above
    spent: dict[str, Any]
    reason: str  # empty when everything holds

    @classmethod
    def nothing(cls, problem: Problem, effort: Effort, spent: dict[str, Any], reason: str) -> Findings:
        """Bounds that say nothing, and the reason why."""
        kernel = Interval.unknown(least=0.0) if "kernel" in effort.parts else None
        evidence = Interval.unknown(problem.log_evidence) if "evidence" in effort.parts else None
        mean = variance = None
        if problem.test is not None:
            mean, variance = Interval.unknown(problem.test.mean), Interval.unknown(problem.test.variance, least=0.0)
        return cls(kernel, kernel, evidence, mean, variance, math.inf, math.inf, spent, reason)
