"""Log evidence of the sparse spectrum GP as a function of the parameters, and its gradient: two passes over the rows.

In the terms of (E1), the evidence of one output (:mod:`prismgp.core.statistics`), and with ``T = tr A^-1``:

    d/d log S  = 1/2 (S w'w - 2p + T)                                           (E3)
    d/d log s2 = 1/2 (r'Q^-1 r - S w'w - n + 2p - T)                            (E4)
    d/d m      = (1'r - S (Phi'1)'w) / s2                                       (E5)
    d/d Phi    = Phi M + r u',  M = -(S / s2) (S w w' + A^-1),  u = S w / s2    (E6)

Rows that differ in their noise (W1) are divided by the roots of V, and so is what (E6) gives. Where variances of rows
are known, (W2) replaces (E4): with f the mean of the function less m, and h the sums of the rows of ``Phi * d/d Phi``,

    d/d log s2 = 1/2 sum_i (r_i (r_i - f_i) / D_i - h_i - 1) / e_i                                  (E8)

Only (E6) and (E8) need the rows again. Its product with the derivative of the features gives the gradient
with respect to the projection W, and through it length-scales and frequencies (E7).

Blocks of rows that the kernel does not connect are independent: evidence and gradient are the sums of
theirs (G4).

The optimiser works with the evidence as a function of the length-scales and frequencies alone: variances and mean are
always the best ones. A pass over the rows gives the moments of the features at some length-scales, and these give the
evidence (E1) at every signal variance S, noise variance s2 and mean m. With the eigenvalues g of the Gram matrix, ``b``
and ``c`` the products of features with targets and with ones in the basis of its eigenvectors, ``rho = S / s2`` and
``f = rho / (1 + rho g)``,

    m        = (1'y - f'(b c)) / (1'1 - f'(c c))                                                                (P1)
    n s2     = (y - m)'(y - m) - f'(b - m c)^2                                                                  (P2)
    log p(y) = -1/2 (n log(2 pi s2) + log |V| + sum log(1 + rho g) + n)                                         (P3)

are the best mean, the best noise, and the evidence at both. What is left is to find rho, a search along a line at a
cost of O(p) a point. Where S and s2 are at their bounds, (P2) gives way to the bound.

By the envelope theorem, the gradient with respect to length-scales and frequencies is that of the evidence at the best
variances and mean.

An evidence with a noise variance that is far too small, such as that of an exact GP which explains far more than a few
frequencies can, is dominated by the noise: its gradients are huge, and from there the optimiser ended in length-scales
that explain nothing. Here every point has the noise that it needs, evidences of starting points compare, and there are
fewer parameters to learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.features import projection
from prismgp.core.gating import Gate
from prismgp.core.kernels import Parameters, bounds
from prismgp.core.rows import Chunked, RowNoise
from prismgp.core.statistics import (
    FeatureBuffers,
    FeatureStore,
    GatedBuffers,
    OutputEvidence,
    SpectralStatistics,
    Statistics,
    solve_outputs,
)

_ROUNDING = 1e-3  # error of the eigenvalues of A above which float32 products are not good enough
_STORE_BYTES = 64 * 2**20  # of features that are stored between the passes of an evaluation
# Up to so many multiplications, 20 ms of one thread, a second one saves a fifth where the machine has nothing else to
# do. Where another process uses one of two cores, it makes a fit of 300 rows take fifteen times as long.
_SMALL_PRODUCTS = 8e7
_KEPT = 3  # statistics, each (2p + 1 + q)^2 numbers on the compute device
_STEP = 0.25  # of the search for log rho
_POINTS = 21  # of its second round, between the neighbours of the best


class SpectralEvidence:
    """The log evidence as a function of the parameters, on a fixed set of rows.

    The frequencies, (p, d), are used where the parameters carry none of their own. Gates are soft ones, which
    multiply the number of features by that of the clusters.
    """

    def __init__(self, chunks: Chunked, frequencies: Array, gate: Gate | None = None) -> None:
        self.chunks = chunks
        self.frequencies = frequencies
        self.gate = gate
        self.n_rows = chunks.n_rows
        self.precise = False  # whether products are in float64 at all parameters, see _needs_float64
        self._kept: dict[tuple[bytes, bool, float], Statistics] = {}
        numbers = self.n_rows * (3 * len(frequencies) + 1 + chunks.n_outputs)
        small = numbers * chunks.dtype.itemsize <= _STORE_BYTES
        # On a GPU, features are computed faster than they are read again.
        self.store = FeatureStore() if small and gate is None and chunks.device.type == "cpu" else None

    def statistics(self, params: Parameters) -> Statistics:
        """Pass one. A few results are kept, as the posterior is computed where the optimiser has just been."""
        w = self._projection(params)
        precise = self.precise or self._needs_float64(params)
        # Known variances of rows are relative to the noise, so that the statistics depend on it.
        noise = float(params.noise[0]) if self.chunks.known_noise else 1.0
        key = (w.cpu().numpy().tobytes(), precise, noise)
        if key not in self._kept:
            stats = self.chunks.reduce(SpectralStatistics(w, precise, self.gate, noise, self._usable_store()))
            self._kept = dict([*self._kept.items(), (key, stats)][-_KEPT:])
        return self._kept[key]

    def _usable_store(self) -> FeatureStore | None:
        return self.store if self.chunks.stays else None

    def _needs_float64(self, params: Parameters) -> bool:
        """Whether rounding of float32 products would show.

        ``A = I + (S / s2) G`` magnifies errors of G, which grow like the square root of the rows, by the ratio
        of signal to noise. They must be small compared with one, the lower bound of the eigenvalues of A.
        """
        if self.chunks.dtype == torch.float64:
            return False
        ratio = float((params.signal / params.noise).max())
        return ratio * torch.finfo(self.chunks.dtype).eps * math.sqrt(self.n_rows) > _ROUNDING

    def value(self, params: Parameters) -> float:
        """Log evidence, summed over the outputs; one pass."""
        return sum(out.log_evidence for out in solve_outputs(self.statistics(params), params))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        """Log evidence and its gradient; two passes, memory of one chunk, or of the features of a small set."""
        stats = self.statistics(params)
        solved = solve_outputs(stats, params)
        coefficients, gradient = _small_gradients(stats, solved)
        w = self._projection(params)
        # Pass two.
        known = (solved[0].noise, solved[0].mean) if self.chunks.known_noise else None
        store = self._usable_store()
        store = store if store is not None and store.holds(w) else None
        grad_w, grad_noise = self.chunks.reduce(ProjectionGradient(w, coefficients.to(w), self.gate, known, store))
        if known is not None:
            gradient[1][0] = grad_noise
        value = sum(out.log_evidence for out in solved)
        return value, self._chain(params, grad_w.numpy(), gradient)

    def _projection(self, params: Parameters) -> Tensor:
        base = params.base(self.frequencies)
        return projection(base, params.lengthscale, dtype=self.chunks.dtype, device=self.chunks.device)

    def _chain(self, params: Parameters, grad_w: Array, small: tuple[Array, Array, Array]) -> Parameters:
        """From W to length-scales and frequencies (E7): ``W[j, t] = E[t, j] / lengthscale[j]``."""
        scaled = params.base(self.frequencies) / params.lengthscale
        grad_lengthscale = -(scaled.T * grad_w).sum(1)
        grad_frequencies = None if params.frequencies is None else grad_w.T / params.lengthscale
        return Parameters(grad_lengthscale, *small, frequencies=grad_frequencies)


class BlockEvidence:
    """The log evidence of independent blocks of rows that share all parameters (G4); one block is the usual case."""

    def __init__(self, blocks: Sequence[Chunked], frequencies: Array, gate: Gate | None = None) -> None:
        self.parts = [SpectralEvidence(chunks, frequencies, gate) for chunks in blocks]
        self.n_rows = sum(part.n_rows for part in self.parts)

    def with_frequencies(self, frequencies: Array) -> Self:
        """On the same rows, with other frequencies."""
        other = type(self)([part.chunks for part in self.parts], frequencies, self.parts[0].gate)
        for own, part in zip(self.parts, other.parts, strict=True):
            part.store = own.store  # one for all: only the last features are stored
        return other

    def complete(self, params: Parameters) -> Parameters:
        """The parameters with the values of those that the evidence does not depend on; here it depends on all."""
        return params

    @property
    def limits(self) -> Tensor | None:
        """Limits of the inputs of its rows, (2, d)."""
        return self.parts[0].chunks.limits

    @property
    def work(self) -> float:
        """What an evaluation costs, in arbitrary units."""
        return float(self.n_rows)

    @property
    def small(self) -> bool:
        """Whether an evaluation is best computed on one thread."""
        gated = self.parts[0].gate is not None  # which multiplies the features
        return not gated and self.n_rows * (2 * len(self.frequencies)) ** 2 <= _SMALL_PRODUCTS

    @property
    def frequencies(self) -> Array:
        return self.parts[0].frequencies

    @frequencies.setter
    def frequencies(self, frequencies: Array) -> None:
        for part in self.parts:
            part.frequencies = frequencies

    def statistics(self, params: Parameters) -> tuple[Statistics, ...]:
        """Of every block."""
        return tuple(part.statistics(params) for part in self.parts)

    def value(self, params: Parameters) -> float:
        """Log evidence, summed over blocks and outputs."""
        return sum(part.value(params) for part in self.parts)

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        """Log evidence and its gradient."""
        values, gradients = zip(*(part.value_and_gradient(params) for part in self.parts), strict=True)
        return sum(values), params.unpack(sum(gradient.pack() for gradient in gradients))


def _small_gradients(stats: Statistics, solved: list[OutputEvidence]) -> tuple[Tensor, tuple[Array, Array, Array]]:
    """(E3) to (E5) by output, and the matrix C with ``d/d Phi = [Phi, 1, Y] C`` summed over outputs (E6)."""
    width, q = stats.width, stats.q
    coefficients = torch.zeros(width + 1 + q, width, dtype=torch.float64, device=stats.moments.device)
    signal_grad, noise_grad, mean_grad = (torch.zeros(q, dtype=torch.float64) for _ in range(3))
    for k, out in enumerate(solved):
        inverse = out.factor.inverse()
        trace = inverse.diagonal().sum()
        norm = out.signal * out.weights.square().sum()
        signal_grad[k] = 0.5 * (norm - width + trace)
        noise_grad[k] = 0.5 * (-2.0 * out.quad - norm - stats.n + width - trace)
        ones_residual = stats.target_sum[k] - out.mean * stats.weight
        mean_grad[k] = (ones_residual - out.signal * (stats.feature_sum @ out.weights)) / out.noise
        ratio = out.signal / out.noise
        coefficients[:width] -= ratio * (out.signal * torch.outer(out.weights, out.weights) + inverse)
        coefficients[width] -= out.mean * ratio * out.weights
        coefficients[width + 1 + k] += ratio * out.weights
    return coefficients, (signal_grad.numpy(), noise_grad.numpy(), mean_grad.numpy())


@dataclass(frozen=True)
class ProjectionGradient:
    """A pass: the gradient with respect to W, (d, p), float64, given C: ``X' (cos * D_sin - sin * D_cos)``.

    ``known`` are noise variance and mean where variances of rows are known, to compute (E8) too. ``store`` has the
    features of all chunks, if they are known.
    """

    w: Tensor
    coefficients: Tensor
    gate: Gate | None = None
    known: tuple[float, float] | None = None
    store: FeatureStore | None = None

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> tuple[Tensor, float]:
        w, gate, store = self.w, self.gate, self.store
        own_rows = rows if store is None else 0
        buffers = FeatureBuffers(own_rows, w, q) if gate is None else GatedBuffers(own_rows, w, q, gate)
        width = buffers.width
        root = w.shape[1] ** -0.5
        # Psi holds cos and sin without the factor 1 / sqrt(p); put it on both sides of C.
        scaled = self.coefficients * root
        scaled[:width] *= root
        d_phi = w.new_empty(rows, width)
        total = torch.zeros(w.shape, dtype=torch.float64, device=w.device)
        by_noise, level = 0.0, 1.0 if self.known is None else self.known[0]
        for index, (x, y) in enumerate(chunks):
            targets, noise = RowNoise.split(y, q)
            if store is not None:
                buffers = store.buffers[index]
            psi = buffers.fill(x, targets) if store is None else buffers.psi
            own = d_phi[: len(x)]
            torch.mm(psi, scaled, out=own)
            if noise is not None:
                own.mul_(torch.exp(-noise.log_relative(level)).to(own)[:, None])
                if self.known is not None:
                    function = level * (psi[:, :width] @ scaled[width + 1]).double()
                    by_noise += self._by_noise(noise, targets, function, (own * psi[:, :width]).sum(1).double())
            total += x.T @ buffers.phase_gradient(psi, own)
        return total.cpu(), by_noise

    def _by_noise(self, noise: RowNoise, y: Tensor, function: Tensor, shares: Tensor) -> float:
        """(E8), from the function's means less the constant one, (n,), and the sums h, (n,)."""
        assert self.known is not None
        level, mean = self.known
        residual = y[:, 0].double() - mean
        fits = residual * (residual - function) * torch.exp(-noise.log_relative(level)) / level
        return 0.5 * float(((fits - shares - 1.0) * torch.exp(-noise.log_level(level))).sum())

    def merge(self, first: tuple[Tensor, float], second: tuple[Tensor, float]) -> tuple[Tensor, float]:
        return first[0] + second[0], first[1] + second[1]


# -- at the best variances and mean ----------------------------------------------------------------


class ProfiledEvidence(BlockEvidence):
    """The evidence at the best variances and mean; those that the parameters have are ignored.

    Gradients with respect to them are zero, so that an optimiser leaves them alone, and :meth:`complete` finds them.
    Known noise variances of rows are not for this class: the moments would depend on the noise.
    """

    def __init__(self, blocks: Sequence[Chunked], frequencies: Array, gate: Gate | None = None) -> None:
        super().__init__(blocks, frequencies, gate)
        for part in self.parts:
            part.precise = True  # the moments must be good for every ratio of the variances

    def complete(self, params: Parameters) -> Parameters:
        """The parameters with the best variances and mean; one pass where the statistics are not known."""
        dtype = str(self.parts[0].chunks.dtype).removeprefix("torch.")
        return profile(self.statistics(params), params, dtype)

    def value(self, params: Parameters) -> float:
        return super().value(self.complete(params))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        value, gradient = super().value_and_gradient(self.complete(params))
        nothing = np.zeros_like(params.mean)
        return value, replace(gradient, log_signal=nothing, log_noise=nothing, mean=nothing)


def profile(blocks: Sequence[Statistics], params: Parameters, dtype: str) -> Parameters:
    """The parameters with the variances and the mean that are best for the statistics, (P1) to (P3).

    The statistics are those of independent blocks of rows, at the length-scales of the parameters; ``dtype`` is that of
    the features, which the bounds of the noise depend on. O(p^3) for the eigenvalues.
    """
    parts = [_Rotated.of(block) for block in blocks]
    first, q = len(params.log_lengthscale), len(params.mean)
    boxes = np.array(bounds(params, dtype=dtype))[first : first + 3 * q].reshape(3, q, 2)
    found = np.array([_Output(parts, k).best(boxes[:, k]) for k in range(q)])
    return replace(params, log_signal=found[:, 0], log_noise=found[:, 1], mean=found[:, 2])


class _Rotated:
    """The statistics of one block in the basis of the eigenvectors of its Gram matrix."""

    def __init__(self, stats: Statistics, values: Array, targets: Array, ones: Array) -> None:
        self.stats, self.values, self.targets, self.ones = stats, values, targets, ones

    @classmethod
    def of(cls, stats: Statistics) -> _Rotated:
        values, vectors = torch.linalg.eigh(stats.gram)
        targets, ones = vectors.T @ stats.feature_target, vectors.T @ stats.feature_sum
        # Negative ones are rounding.
        return cls(stats, values.clamp_min(0.0).cpu().numpy(), targets.cpu().numpy(), ones.cpu().numpy())


class _Output:
    """One output: the evidence as a function of ``log rho``."""

    def __init__(self, parts: Sequence[_Rotated], k: int) -> None:
        self.g = np.concatenate([part.values for part in parts])
        self.b = np.concatenate([part.targets[:, k] for part in parts])
        self.c = np.concatenate([part.ones for part in parts])
        blocks = [part.stats for part in parts]
        self.n = sum(each.n for each in blocks)
        self.log_noise_sum = sum(each.log_noise_sum for each in blocks)
        self.weight = sum(float(each.weight) for each in blocks)
        self.target_sum = sum(float(each.target_sum[k]) for each in blocks)
        self.target_square = sum(float(each.target_square[k]) for each in blocks)

    def best(self, boxes: Array) -> tuple[float, float, float]:
        """Log signal variance, log noise variance and mean, within boxes, (3, 2)."""
        from scipy.optimize import brentq  # to learn, not to predict

        (low, high), (noise_low, noise_high), _ = boxes
        ends = low - noise_high, high - noise_low
        grid = np.linspace(*ends, 1 + math.ceil((ends[1] - ends[0]) / _STEP))
        for _ in range(2):
            top = int(np.argmax(self._at(grid, boxes)[0]))
            around = grid[max(top - 1, 0)], grid[min(top + 1, len(grid) - 1)]
            log_rho, grid = float(grid[top]), np.linspace(*around, _POINTS)

        def slope(point: float) -> float:
            return float(self._slope(np.array([point]), boxes)[0])

        # By the slope, which is zero to the last digits; values near their maximum are alike to half of them.
        if slope(around[0]) > 0.0 > slope(around[1]):
            log_rho = float(brentq(slope, *around, xtol=1e-13))
        _, log_noise, mean, _ = self._at(np.array([log_rho]), boxes)
        return log_rho + float(log_noise[0]), float(log_noise[0]), float(mean[0])

    def _slope(self, log_rho: Array, boxes: Array) -> Array:
        """Derivative of (P3) by ``log rho``; the noise counts where it follows from a bound of the signal."""
        _, log_noise, mean, square = self._at(log_rho, boxes)
        rho = np.exp(log_rho)[:, None]
        shares = 1.0 / (1.0 + rho * self.g)
        fits = (rho * shares**2 * (self.b - mean[:, None] * self.c) ** 2).sum(1)
        noise = np.exp(-log_noise)
        slope = 0.5 * (fits * noise - (rho * self.g * shares).sum(1))
        (low, high), *_ = boxes
        bound = (log_noise == low - log_rho) | (log_noise == high - log_rho)
        return np.asarray(np.where(bound, slope + 0.5 * (self.n - square * noise), slope))

    def _at(self, log_rho: Array, boxes: Array) -> tuple[Array, Array, Array, Array]:
        """Log evidence, log noise variance, mean, and n s2 of (P2) at each ``log rho``."""
        (low, high), (noise_low, noise_high), (mean_low, mean_high) = boxes
        rho = np.exp(log_rho)[:, None]
        f = rho / (1.0 + rho * self.g)
        left = np.maximum(self.weight - f @ self.c**2, 1e-12 * self.weight)
        mean = np.clip((self.target_sum - f @ (self.b * self.c)) / left, mean_low, mean_high)  # (P1)
        square = self.target_square - 2.0 * mean * self.target_sum + mean**2 * self.weight
        # Both differences lose digits when almost everything is explained; they are never negative.
        square = np.maximum(square - (f * (self.b - mean[:, None] * self.c) ** 2).sum(1), 0.0)
        with np.errstate(divide="ignore"):
            log_noise = np.log(square / self.n)  # (P2)
        log_noise = np.clip(log_noise, np.maximum(noise_low, low - log_rho), np.minimum(noise_high, high - log_rho))
        # (P3), which has n in place of the last term where no bound holds.
        value = self.n * (math.log(2.0 * math.pi) + log_noise) + np.log1p(rho * self.g).sum(1)
        return -0.5 * (value + self.log_noise_sum + square * np.exp(-log_noise)), log_noise, mean, square
