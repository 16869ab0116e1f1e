"""Sufficient statistics of features, one small matrix whatever the number of rows, and the evidence that they give.

For one output, with ``G = Phi'Phi``, residual ``r = y - m`` and ``A = I + (S / s2) G``,

    log p(y) = const + logdet + quad                                            (E1)
    const    = -n/2 log(2 pi s2)
    logdet   = -1/2 log |A|
    quad     = -1/2 (r'r - (S / s2) b'A^-1 b) / s2,       b = Phi'r             (E2)

which is the multivariate normal density of ``N(m, S Phi Phi' + s2 I)`` (paper, equation 3) by the Woodbury and
Sylvester identities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from prismgp._types import Saved, Tensor
from prismgp.core.gating import Gate
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import Factor, factor
from prismgp.core.rows import Codec, RowNoise


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


def _write(blocks: tuple[Statistics, ...]) -> Saved:
    about = [(each.n, each.q, each.log_noise_sum, str(each.moments.device)) for each in blocks]
    return {str(k): each.moments for k, each in enumerate(blocks)}, {"blocks": about}


def _read(saved: Saved) -> tuple[Statistics, ...]:
    tensors, info = saved
    return tuple(
        Statistics(n, q, tensors[str(k)].to(device), log_noise_sum)
        for k, (n, q, log_noise_sum, device) in enumerate(info["blocks"])
    )


STATISTICS = Codec(_write, _read)  # of blocks of rows


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


@dataclass(frozen=True)
class OutputEvidence:
    """The evidence of one output at given parameters, with the factors others need."""

    const: float  # the three terms of (E1)
    logdet: float
    quad: float
    weights: Tensor  # w = A^-1 Phi'r / s2, (2p,); the posterior mean of the feature weights is S w
    factor: Factor  # of A
    signal: float
    noise: float
    mean: float

    @property
    def log_evidence(self) -> float:
        return self.const + self.logdet + self.quad


def solve_outputs(stats: Statistics, params: Parameters) -> list[OutputEvidence]:
    """Evaluate (E1) and (E2) for every output from the statistics alone; O(q p^3)."""
    solved = []
    for k in range(stats.q):
        signal, noise, mean = float(params.signal[k]), float(params.noise[k]), float(params.mean[k])
        ratio = signal / noise
        a = ratio * stats.gram
        a.diagonal().add_(1.0)
        fac = factor(a)
        del a  # as large as all that is kept
        b = stats.feature_target[:, k] - mean * stats.feature_sum
        half = fac.half_solve(b[:, None])
        weight = float(stats.weight)
        residual_square = float(stats.target_square[k] - 2.0 * mean * stats.target_sum[k]) + mean**2 * weight
        # The difference loses digits when almost everything is explained; it is never negative.
        explained = max(0.0, residual_square - ratio * float(half.square().sum()))
        solved.append(
            OutputEvidence(
                const=-0.5 * (stats.n * math.log(2.0 * math.pi * noise) + stats.log_noise_sum),
                logdet=-0.5 * float(fac.logdet()),
                quad=-0.5 * explained / noise,
                weights=fac.solve(b[:, None])[:, 0] / noise,
                factor=fac,
                signal=signal,
                noise=noise,
                mean=mean,
            )
        )
    return solved


def noise_log_evidence(blocks: Sequence[Statistics]) -> float:
    """Log evidence of independent noise around a mean, both the best ones, summed over outputs.

    Minus infinity where an output does not vary, because then there is nothing to explain.
    """
    n, weight = sum(each.n for each in blocks), sum(float(each.weight) for each in blocks)
    total = 0.0
    for k in range(blocks[0].q):
        mean = sum(float(each.target_sum[k]) for each in blocks) / weight
        square = sum(float(each.target_square[k]) for each in blocks)
        variance = (square - weight * mean**2) / n
        if variance <= 1e-12 * square / n or square == 0.0:
            return -math.inf
        total -= 0.5 * (n * (math.log(2.0 * math.pi * variance) + 1.0) + sum(each.log_noise_sum for each in blocks))
    return total
