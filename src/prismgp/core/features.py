"""The feature map, X to ``[cos(X W), sin(X W)]``, limits of its inputs, and the sufficient statistics of features.

The statistics are one small matrix, whatever the number of rows.

Beyond the limits of an input with long tails, a row is taken to be at the limit. The kernel of a few frequencies does
not vanish at large distances. Where an input has long tails, a few rows lie far from all others, the length-scales that
suit the many are far too short for the few, and what the model predicts beyond the rows it has seen is arbitrary:
errors of tens of standard deviations, of which the model's own standard deviation knows nothing. The evidence shows
that. The targets of the rows are the same with limits and without, so that their evidences compare, and a fit chooses
the higher one (:class:`prismgp.core.fit.SSGPSettings`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch

from prismgp._types import Array, GatingKind, Tensor
from prismgp.core.gating import Gate
from prismgp.core.rows import RowNoise

GATINGS = get_args(GatingKind)
_LIMITED_ROWS = 300  # among fewer, next to no rows are beyond a limit
_BEYOND = 0.01  # of the rows are beyond a limit
NO_LIMIT = 1e30  # finite, because model files hold finite numbers
_LONG = 2.0  # a tail is long if it ends so many times as far from the median as the limit is


def find_limits(x: Tensor) -> Tensor | None:
    """Lower and upper limits of each input, (2, d), from rows, (n, d); None where no input has long tails.

    Tails that are not long have the limit ``NO_LIMIT``. So have indicators, and other tails where almost all rows have
    the same value.
    """
    if len(x) < _LIMITED_ROWS:
        return None
    values = x.double().cpu().numpy()
    low, middle, high = np.quantile(values, [_BEYOND, 0.5, 1.0 - _BEYOND], axis=0)
    below = (low < middle) & (middle - values.min(0) > _LONG * (middle - low))
    above = (high > middle) & (values.max(0) - middle > _LONG * (high - middle))
    if not (below.any() or above.any()):
        return None
    limits = np.stack([np.where(below, low, -NO_LIMIT), np.where(above, high, NO_LIMIT)])
    return torch.as_tensor(limits, device=x.device)


def limit_inputs(x: Tensor, limits: Tensor | None) -> Tensor:
    """Rows, (..., d), within the limits, (2, d); None leaves them as they are."""
    if limits is None:
        return x
    low, high = limits.to(x)
    limited: Tensor = torch.clamp(x, low, high)
    return limited


def projection(frequencies: Array, lengthscale: Array, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``W = (E / lengthscale)'``, (d, p)."""
    # Copied: a single frequency counts as contiguous with any strides, by which products choose how they sum.
    return torch.as_tensor(np.array((frequencies / lengthscale).T, order="C"), dtype=dtype, device=device)


def spectral_features(x: Tensor, w: Tensor) -> Tensor:
    """``Phi = [cos(X W), sin(X W)] / sqrt(p)``, (n, 2p); every row has norm one."""
    p = w.shape[1]
    z = x @ w
    if z.requires_grad:
        differentiable: Tensor = torch.cat([z.cos(), z.sin()], 1) * p**-0.5
        return differentiable
    phi = x.new_empty(x.shape[0], 2 * p)  # not len(x), which would fix the number of rows of an exported model
    torch.cos(z, out=phi[:, :p])
    torch.sin(z, out=phi[:, p:])
    return phi.mul_(p**-0.5)


def gated_features(phi: Tensor, gates: Tensor) -> Tensor:
    """``r(x) (x) phi(x)``, (..., n, 2p b): features whose kernel is ``(r'r) k``, by the Schur product theorem.

    Rows of the gates, (..., n, b), have norm one, so that rows of the result have the norm of those of phi,
    (..., n, 2p).
    One-hot rows give the masked kernel, zero between clusters.
    """
    return (gates.unsqueeze(-1) * phi.unsqueeze(-2)).flatten(-2)


@dataclass(frozen=True)
class Gating:
    """The gate of a model, or none."""

    gate: Gate | None = None
    about: dict[str, Any] = field(default_factory=dict)  # what fit_status_ says of it

    @property
    def kind(self) -> str:
        return "none" if self.gate is None else self.gate.kind

    @property
    def soft(self) -> Gate | None:
        """Gates that multiply the features; hard ones split the rows instead."""
        return self.gate if self.kind == "soft" else None

    @property
    def widening(self) -> int:
        """By how much they multiply the number of features."""
        return 1 if self.soft is None else self.soft.n_clusters

    def features(self, phi: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gated features of rows in the model's units, or the features and the blocks they belong to."""
        if self.gate is None:
            return phi, None
        if self.kind == "hard":
            return phi, self.gate.labels(x)
        return gated_features(phi, self.gate.gates(x).to(phi)), None


class FeatureBuffers:
    """Memory reused by all chunks of a pass: ``Psi = [cos(X W), sin(X W), 1, Y]``, not scaled.

    The scale ``1 / sqrt(p)`` is applied to the small matrices made from Psi instead of to its rows,
    and the last columns let one matrix product give all sufficient statistics at once.
    """

    def __init__(self, rows: int, w: Tensor, q: int) -> None:
        p = w.shape[1]
        self.w = w
        self.width = 2 * p
        self._psi = w.new_empty(rows, 2 * p + 1 + q)
        self._psi[:, 2 * p] = 1.0
        self._z = w.new_empty(rows, p)

    def fill(self, x: Tensor, y: Tensor) -> Tensor:
        """Psi of one chunk, (rows, 2p + 1 + q); valid until the next call."""
        n, p = len(x), self.w.shape[1]
        psi, z = self._psi[:n], self._z[:n]
        torch.mm(x, self.w, out=z)
        torch.cos(z, out=psi[:, :p])
        torch.sin(z, out=psi[:, p : 2 * p])
        psi[:, 2 * p + 1 :] = y
        return psi

    @property
    def psi(self) -> Tensor:
        """Psi of the last chunk, if that was as large as the buffers are."""
        return self._psi

    def phase_gradient(self, psi: Tensor, d: Tensor) -> Tensor:
        """``cos * D_sin - sin * D_cos``, (rows, p): the chain rule through cos and sin."""
        p = self.w.shape[1]
        z = self._z[: len(psi)]
        torch.mul(psi[:, :p], d[:, p:], out=z)
        return z.addcmul_(psi[:, p : 2 * p], d[:, :p], value=-1.0)


class FeatureStore:
    """Features of all chunks of a small set: the pass of the gradient finds what the pass of the moments has computed.

    Both passes must have the same chunks.
    """

    def __init__(self) -> None:
        self.buffers: list[FeatureBuffers] = []
        self._w: Tensor | None = None  # of the features that are stored

    def fill(self, index: int, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Psi of a chunk, which is stored."""
        self._w = None  # until those of all chunks are there
        if index == len(self.buffers) or len(self.buffers[index].psi) != len(x):  # the first pass, or other chunks
            self.buffers[index:] = [FeatureBuffers(len(x), w, y.shape[1])]
        self.buffers[index].w = w
        return self.buffers[index].fill(x, y)

    def complete(self, w: Tensor) -> None:
        """Say that the features of all chunks are those of a projection."""
        self._w = w

    def holds(self, w: Tensor) -> bool:
        """Whether the features of a projection are stored."""
        return self._w is not None and torch.equal(self._w, w)


class GatedBuffers(FeatureBuffers):
    """The same for gated features: ``Psi = [r_1 cos, r_1 sin, ..., r_b cos, r_b sin, 1, Y]``, not scaled (G1)."""

    def __init__(self, rows: int, w: Tensor, q: int, gate: Gate) -> None:
        super().__init__(rows, w, q)
        self.gate = gate
        self.width = 2 * w.shape[1] * gate.n_clusters
        self._wide = w.new_empty(rows, self.width + 1 + q)
        self._wide[:, self.width] = 1.0
        self._gates = w.new_empty(0)

    def fill(self, x: Tensor, y: Tensor) -> Tensor:
        """Psi of one chunk, (rows, 2p b + 1 + q); valid until the next call."""
        psi = super().fill(x, y)
        n, p = len(x), self.w.shape[1]
        self._gates = self.gate.gates(x).to(psi)
        wide = self._wide[:n]
        products = wide[:, : self.width].view(n, -1, 2 * p)
        torch.mul(self._gates[:, :, None], psi[:, None, : 2 * p], out=products)
        wide[:, self.width + 1 :] = y
        return wide

    def phase_gradient(self, psi: Tensor, d: Tensor) -> Tensor:
        """The derivative by ``phi`` is ``sum_c r_c D_c``; the rest is that of features without gates."""
        parts = d.view(len(d), -1, 2 * self.w.shape[1])
        inner = parts[:, 0] * self._gates[:, :1]
        for c in range(1, self.gate.n_clusters):
            inner.addcmul_(parts[:, c], self._gates[:, c : c + 1])
        return super().phase_gradient(self._psi[: len(psi)], inner)


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
    stay on the projection's device. Memory is that of one chunk, and of the store. Cost ``2 n (d p + (2p)^2)``
    multiply-adds and ``2 n p`` cosines and sines. ``noise`` is the noise variance s2, which known variances of rows are
    relative to. A ``store`` gets the features; it is for features without gates.
    """

    w: Tensor
    precise: bool = True
    gate: Gate | None = None
    noise: float = 1.0
    store: FeatureStore | None = None

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> Statistics:
        w, gate, store = self.w, self.gate, self.store
        rows = rows if store is None else 0  # the store has its own buffers
        buffers = FeatureBuffers(rows, w, q) if gate is None else GatedBuffers(rows, w, q, gate)
        size = buffers.width + 1 + q
        total = torch.zeros(size, size, dtype=torch.float64, device=w.device)
        n, log_noise_sum = 0, 0.0
        for index, (x, y) in enumerate(chunks):
            targets, noise = RowNoise.split(y, q)
            psi = buffers.fill(x, targets) if store is None else store.fill(index, x, targets, w)
            if self.precise:
                psi = psi.double()
            if noise is not None:
                log_relative = noise.log_relative(self.noise)
                psi = psi * torch.exp(-0.5 * log_relative).to(psi)[:, None]  # V^-1/2 Psi
                log_noise_sum += float(log_relative.sum())
            total += psi.T @ psi
            n += len(x)
        if store is not None:
            store.complete(w)
        if buffers.width <= _HOST_FEATURES:
            total = total.cpu()
        scale = torch.ones(size, dtype=torch.float64, device=total.device)
        scale[: buffers.width] = w.shape[1] ** -0.5
        return Statistics(n, q, total.mul_(scale[:, None]).mul_(scale), log_noise_sum)

    def merge(self, first: Statistics, second: Statistics) -> Statistics:
        return first.merge(second)


def accumulate_features(
    chunks: Iterable[tuple[Tensor, Tensor | None, Tensor]], q: int, noise: float = 1.0
) -> Statistics:
    """Statistics of any features, from chunks ``(Phi, log_noise, Y)``: (n, k), (n,) and (n, q).

    ``log_noise`` are logarithms of the rows' relative noise variances, or None where all are alike. Y may have the
    noise columns of the rows behind it, and ``noise`` is the variance s2 that known variances are relative to.
    """
    total: Tensor | None = None
    n, log_noise_sum = 0, 0.0
    for phi, log_noise, columns in chunks:
        y, rows = RowNoise.split(columns, q)
        psi = torch.cat([phi.double(), phi.new_ones(len(phi), 1).double(), y.double()], 1)
        if rows is not None:
            log_noise = rows.log_relative(noise, log_noise)
        if log_noise is not None:
            psi *= torch.exp(-0.5 * log_noise.double())[:, None]
            log_noise_sum += float(log_noise.double().sum())
        products = psi.T @ psi
        total = products if total is None else total + products
        n += len(phi)
    if total is None:
        raise ValueError("there are no rows to accumulate")
    return Statistics(n, q, total, log_noise_sum)
