"""Stationary kernels as functions of the scaled squared distance, and their spectral laws.

With ``s = sum_j ((x_j - x'_j) / lengthscale_j)^2`` and ``r = sqrt(s)``:

======== ============================================= ==========================
name     k(s)                                          base frequency
======== ============================================= ==========================
rbf      ``exp(-s / 2)``                               N(0, I)
matern12 ``exp(-r)``                                   t, 1 degree of freedom
matern32 ``(1 + sqrt(3) r) exp(-sqrt(3) r)``           t, 3 degrees of freedom
matern52 ``(1 + sqrt(5) r + 5 s / 3) exp(-sqrt(5) r)`` t, 5 degrees of freedom
======== ============================================= ==========================

The Matern laws are *multivariate* t: one mixing variable per frequency, shared by its d
coordinates. Independent coordinates would give a product kernel when d > 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from prismgp._types import Array, Tensor
from prismgp.exceptions import DataError


@dataclass(frozen=True)
class Kernel:
    """A kernel of unit variance."""

    name: str
    degrees: int | None  # of freedom of the spectral t law (twice the Matern smoothness); None: normal

    def value(self, s: Tensor) -> Tensor:
        """k(s), elementwise."""
        if self.degrees is None:
            return (-0.5 * s).exp()
        r = (self.degrees * s).sqrt()
        if self.degrees == 1:
            return (-r).exp()
        if self.degrees == 3:
            return (1.0 + r) * (-r).exp()
        return (1.0 + r + r * r / 3.0) * (-r).exp()

    def slope(self, s: Tensor) -> Tensor:
        """dk/ds, elementwise.

        For matern12 it is infinite at s = 0; zero is returned there, which is right wherever the
        slope is multiplied by a coordinate difference that vanishes too.
        """
        if self.degrees is None:
            return -0.5 * (-0.5 * s).exp()
        r = (self.degrees * s).sqrt()
        if self.degrees == 1:
            return -0.5 * (-r).exp() / r.clamp_min(1e-150) * (s > 0)
        if self.degrees == 3:
            return -1.5 * (-r).exp()
        return -(5.0 / 6.0) * (1.0 + r) * (-r).exp()

    def mixing(self, u: Array) -> Array:
        """Scale of a base frequency relative to a normal one, from uniforms u in (0, 1)."""
        if self.degrees is None:
            return np.ones_like(u)
        from scipy import stats  # to draw frequencies; predictions need none

        return np.asarray(np.sqrt(self.degrees / stats.chi2(self.degrees).ppf(u)))

    def radius(self, u: Array, d: int) -> Array:
        """Quantiles of the norm of a base frequency in d dimensions, u in (0, 1)."""
        from scipy import stats

        if self.degrees is None:
            return np.asarray(stats.chi(d).ppf(u))
        return np.asarray(np.sqrt(d * stats.f(d, self.degrees).ppf(u)))


KERNELS = {
    kernel.name: kernel
    for kernel in (Kernel("rbf", None), Kernel("matern12", 1), Kernel("matern32", 3), Kernel("matern52", 5))
}


def get_kernel(name: str) -> Kernel:
    """Look a kernel up by name."""
    if name not in KERNELS:
        raise DataError(f"kernel={name!r} is unknown; choose one of {', '.join(KERNELS)}")
    return KERNELS[name]


def squared_distance(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Pairwise squared distances of scaled rows: (n, d) and (m, d) to (n, m); without b, of a with itself.

    By one matrix product, so no (n, m, d) array exists. Rows are centred first, because the
    product form loses digits when the rows are far from the origin.
    """
    centre = a.mean(0)
    left = a - centre
    right = left if b is None else b - centre
    s = (left @ right.T).mul_(-2.0)
    s += left.square().sum(1)[:, None]
    s += right.square().sum(1)[None, :]
    s.clamp_(min=0.0)
    if b is None:
        s.fill_diagonal_(0.0)
    return s
