"""What is certified: one model against one exact GP, in the units in which the kernel has variance one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from prismgp._types import Array, Tensor
from prismgp.certificates._reference import ReferenceKernel
from prismgp.core.features import gated_features

__all__ = ["Features", "Problem", "TestPoints"]


@dataclass(frozen=True)
class Features:
    """The model's kernel ``K'_uv = (phi_u'phi_v) (h_u'h_v)`` on some rows."""

    phi: Tensor  # (n, 2p), float64
    gates: Tensor | None  # h, (n, b)

    def rows(self, index: slice | Tensor) -> Features:
        return Features(self.phi[index], None if self.gates is None else self.gates[index])

    def wide(self) -> Tensor:
        """All features, gates included, (n, 2p b)."""
        return self.phi if self.gates is None else gated_features(self.phi, self.gates)

    def less(self, tile: Tensor, other: Features, out: Tensor) -> Tensor:
        """A tile of another kernel between these rows and others, less this kernel's; in ``out``."""
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

    __test__ = False  # not a test, whatever its name

    rows: ReferenceKernel
    mean: Array
    variance: Array
    noise: Array


@dataclass(frozen=True)
class Problem:
    """One model and the exact GP it stands for.

    Attributes
    ----------
    rows : ReferenceKernel
        The exact kernel on the training rows.
    features : callable
        The model's features of some of the training rows.
    width : int
        Number of its features, gates included.
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
    features: Callable[[slice | Tensor], Features]
    width: int
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

    def whitened(self, values: Tensor) -> Tensor:
        """Rows divided by the root of their relative noise."""
        return values if self.weight is None else values * self.weight.sqrt()[:, None]
