"""Sufficient statistics of the sparse spectrum GP: one small matrix, whatever the number of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from prismgp._types import Tensor
from prismgp.core.features import FeatureBuffers, GatedBuffers
from prismgp.core.gating import Gate

# Features up to which the algebra of one small matrix is faster on the CPU than by launches on a GPU.
_HOST_FEATURES = 128


@dataclass(frozen=True)
class Statistics:
    """Moments of ``[Phi, 1, Y]``; all that the evidence and the posterior need to know of the rows.

    The moments are ``[Phi, 1, Y]' V^-1 [Phi, 1, Y]``, V the identity unless rows differ in their noise. What is made
    from them is computed on their device.
    """

    n: int  # rows seen
    q: int  # outputs
    moments: Tensor  # (2p + 1 + q, 2p + 1 + q), float64
    log_noise_sum: float = 0.0  # log |V|, the sum of the logarithms of the rows' relative noise variances

    @property
    def width(self) -> int:
        """Number of features, 2p."""
        return len(self.moments) - 1 - self.q

    @property
    def weight(self) -> Tensor:
        """``1' V^-1 1``; the number of rows when all have the same noise."""
        return self.moments[self.width, self.width]

    @property
    def gram(self) -> Tensor:
        """``G = Phi' Phi``, (2p, 2p)."""
        return self.moments[: self.width, : self.width]

    @property
    def feature_sum(self) -> Tensor:
        """``Phi' 1``, (2p,)."""
        return self.moments[: self.width, self.width]

    @property
    def feature_target(self) -> Tensor:
        """``Phi' Y``, (2p, q)."""
        return self.moments[: self.width, self.width + 1 :]

    @property
    def target_sum(self) -> Tensor:
        """``Y' 1``, (q,)."""
        return self.moments[self.width, self.width + 1 :]

    @property
    def target_square(self) -> Tensor:
        """Diagonal of ``Y' Y``, (q,)."""
        return self.moments.diagonal()[self.width + 1 :]

    def merge(self, other: Statistics) -> Statistics:
        """Statistics of both sets of rows together, on this set's device."""
        self._check_compatible(other)
        moments = self.moments + other.moments.to(self.moments.device)
        return Statistics(self.n + other.n, self.q, moments, self.log_noise_sum + other.log_noise_sum)

    def without(self, other: Statistics) -> Statistics:
        """Statistics of the rows that are in this set and not in the other, a subset of it; takes no pass."""
        self._check_compatible(other)
        moments = self.moments - other.moments.to(self.moments.device)
        return Statistics(self.n - other.n, self.q, moments, self.log_noise_sum - other.log_noise_sum)

    def _check_compatible(self, other: Statistics) -> None:
        if self.moments.shape != other.moments.shape or self.q != other.q:
            raise ValueError("statistics of different feature maps cannot be combined")


@dataclass(frozen=True)
class SpectralStatistics:
    """A pass: statistics under the projection ``w``, (d, p), and the gate where there is one.

    Sums over chunks are in float64. ``precise`` asks for float64 within a chunk as well: then the moments of float32
    features are as good as those of any other features, and the Gram matrix is positive semi-definite to float64
    rounding; otherwise products within a chunk are in the features' precision. The moments of more than a few features
    stay on the projection's device. Memory is that of one chunk. Cost ``2 n (d p + (2p)^2)`` multiply-adds and
    ``2 n p`` cosines and sines.
    """

    w: Tensor
    precise: bool = True
    gate: Gate | None = None

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> Statistics:
        w, gate = self.w, self.gate
        buffers = FeatureBuffers(rows, w, q) if gate is None else GatedBuffers(rows, w, q, gate)
        size = buffers.width + 1 + q
        total = torch.zeros(size, size, dtype=torch.float64, device=w.device)
        n = 0
        for x, y in chunks:
            psi = buffers.fill(x, y)
            if self.precise:
                psi = psi.double()
            total += psi.T @ psi
            n += len(x)
        if buffers.width <= _HOST_FEATURES:
            total = total.cpu()
        scale = torch.ones(size, dtype=torch.float64, device=total.device)
        scale[: buffers.width] = w.shape[1] ** -0.5
        return Statistics(n, q, total.mul_(scale[:, None]).mul_(scale))

    def merge(self, first: Statistics, second: Statistics) -> Statistics:
        return first.merge(second)


def accumulate_features(chunks: Iterable[tuple[Tensor, Tensor | None, Tensor]], q: int) -> Statistics:
    """Statistics of any features, from chunks ``(Phi, log_noise, Y)``: (n, k), (n,) and (n, q).

    ``log_noise`` are logarithms of the rows' relative noise variances, or None where all are alike.
    """
    total: Tensor | None = None
    n, log_noise_sum = 0, 0.0
    for phi, log_noise, y in chunks:
        psi = torch.cat([phi.double(), phi.new_ones(len(phi), 1).double(), y.double()], 1)
        if log_noise is not None:
            psi *= torch.exp(-0.5 * log_noise.double())[:, None]
            log_noise_sum += float(log_noise.double().sum())
        products = psi.T @ psi
        total = products if total is None else total + products
        n += len(phi)
    if total is None:
        raise ValueError("there are no rows to accumulate")
    return Statistics(n, q, total, log_noise_sum)
