"""The log evidence of mini-batches under a network's features, and predictions given a batch.

A batch of n rows with features phi, gates r, relative noise variances v and residuals r_k = y_k - m_k:

    log p(Y) = sum over outputs of  -1/2 log |A| - 1/2 rho'A^-1 rho - 1/2 sum log(2 pi s2 v)        (B1)
    A = I + (S / s2) B,   B = V^-1/2 K V^-1/2,   K = (r r') * (phi phi'),   rho = V^-1/2 r_k / s2^(1/2)

the same density as (E1), written with the n x n matrix: where a batch has no more rows than there are gated
features, the cost, O(n^3), does not depend on the number of frequencies. With ``beta = A^-1 rho``
and, summed over outputs, ``D = (S / s2) 1/2 (beta beta' - A^-1)``:

    d/d B = D,   d/d phi = 2 (D * r r') phi,   d/d r = 2 (D * phi phi') r,   d/d rho = -beta         (B2)

A batch of more rows is cheaper by its w gated features F = V^-1/2 (r (x) phi), O(n w^2):

    log |A| = log |M|,   M = I + (S / s2) F'F,   beta = rho - F g,   g = (S / s2) M^-1 F'rho         (B3)
    d/d F = beta g' - (S / s2) F M^-1                                                                (B4)

A, M and their factors are in float64 where the noise is low, since they are ill-conditioned there, and otherwise in the
network's precision, on a CPU: at this size, touching memory costs as much as arithmetic. The gradient is formed in the
forward pass and in the network's precision.

All tensors may have a leading dimension of members, each with a batch of its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import torch

from prismgp._types import Tensor
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import Factor, factor, factor_all, invert_lower
from prismgp.core.rows import RowNoise
from prismgp.prism.maps import NetworkOutput

# Rows times the largest ratio of signal to noise. Rounding to float32 moves eigenvalues, which are at least one, by
# 1e-7 of it. At this limit the errors of gradients are up to a fifth of their deviation from batch to batch.
_COARSE = 5e5
_PRECISE = 3e4  # ratio of signal to noise variance above which the gradient, too, is formed in float64


class KernelTensors(Protocol):
    """Kernel parameters to differentiate, (..., q): those of a network, or of several."""

    @property
    def log_signal(self) -> Tensor: ...

    @property
    def log_noise(self) -> Tensor: ...

    @property
    def mean(self) -> Tensor: ...


class _Solved(NamedTuple):
    """What (B1) or (B3) needs of the matrices ``I + ratio products`` of members, for one output."""

    half: Tensor  # L^-1 of the right-hand sides, (M, k, 1)
    solution: Tensor  # A^-1 of them
    logdet: Tensor  # (M,)
    inverse: Tensor  # (M, k, k), in the network's precision unless that is too coarse


def _precision(log_ratio: Tensor, features: Tensor) -> torch.dtype:
    """The precision of A or M, given logarithms of ratios, (M, q), and features, (M, n, w)."""
    if features.is_cuda:  # a recorded step cannot look at numbers
        return torch.float64
    largest = features.square().sum(-1).max() * log_ratio.max().exp()  # on the diagonal of A - I
    return features.dtype if bool(largest * features.shape[1] < _COARSE) else torch.float64


def _solve(products: Tensor, ratio: Tensor, right: Tensor, dtype: torch.dtype) -> _Solved:
    """Factor ``I + ratio products``, (M, k, k), with ratios (M,), for right-hand sides, (M, k, 1).

    Factors have the precision of the products; ``dtype`` is that of the network.
    """
    matrix = products * ratio.to(products)[:, None, None]
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    lower = factor_all(matrix)
    logdet = 2.0 * lower.diagonal(dim1=-2, dim2=-1).double().log().sum(-1)
    right = right.to(lower)
    if lower.is_cuda:  # where to solve takes as long for one right-hand side as for many, and ten times a product
        root = invert_lower(lower)
        half = root @ right
        return _Solved(half, root.mT @ half, logdet, root.mT @ root)
    half = torch.linalg.solve_triangular(lower, right, upper=False)
    solution = torch.linalg.solve_triangular(lower.mT, half, upper=True)
    # The factor has half the digits of the matrix's condition: its inverse may be in the network's precision, unless
    # the noise is very low. Transposed, which changes nothing but the order in memory: that of what it meets.
    inverse = torch.cholesky_inverse(lower.to(dtype) if bool(ratio.max() < _PRECISE) else lower).mT
    return _Solved(half.double(), solution.double(), logdet, inverse)


class _Density(torch.autograd.Function):
    """Scalars of members, (M,), whose gradients are formed in the forward pass and saved there."""

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        scale = outer[0]
        found = (None if g is None else scale.to(g.dtype).view(-1, *[1] * (g.ndim - 1)) * g for g in ctx.saved_tensors)
        return tuple(found)


Found = tuple[Tensor, *tuple[Tensor | None, ...]]  # a density of members, (M,), and its gradients


class _WhitenedDensity(_Density):
    """``sum_k -1/2 log |A_k| - 1/2 rho_k'A_k^-1 rho_k`` with the closed-form gradient (B2), (M,).

    Arguments: features with rows already divided by the roots of v, (M, n, 2p), and gates, (M, n, b), or None, in
    the network's precision; logarithms of S / s2, (M, q), and rho, (M, n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, phi: Tensor, gates: Tensor | None, log_ratio: Tensor, rho: Tensor) -> Tensor:
        value, *gradients = _by_whitened(phi, gates, log_ratio, rho)
        ctx.save_for_backward(*gradients)
        return value


class _FeatureDensity(_Density):
    """The same by (B3), with the gradient (B4).

    Arguments: features with rows already divided by the roots of v, (M, n, w), in the network's precision; logarithms
    of S / s2, (M, q), and rho, (M, n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, log_ratio: Tensor, rho: Tensor) -> Tensor:
        value, *gradients = _by_features(features, log_ratio, rho)
        ctx.save_for_backward(*gradients)
        return value


def _by_whitened(phi: Tensor, gates: Tensor | None, log_ratio: Tensor, rho: Tensor) -> Found:
    """Value and gradients of :class:`_WhitenedDensity`."""
    dtype = _precision(log_ratio, phi)
    wide, gate = phi.to(dtype), None if gates is None else gates.to(dtype)
    inner = wide @ wide.mT
    outer = None if gate is None else gate @ gate.mT
    b = inner if outer is None else inner * outer
    value = rho.new_zeros(len(phi))
    grad_ratio, grad_rho = torch.empty_like(log_ratio), torch.empty_like(rho)
    total: Tensor | None = None
    for k in range(rho.shape[2]):
        ratio = log_ratio[:, k].exp()
        solved = _solve(b, ratio, rho[:, :, k : k + 1], phi.dtype)
        beta, inverse = solved.solution, solved.inverse
        quadratic = solved.half.square().sum((1, 2))
        value = value - 0.5 * (solved.logdet + quadratic)
        # <d/dA, A - I> without forming the product.
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        grad_ratio[:, k] = 0.5 * (quadratic - beta.square().sum((1, 2)) - phi.shape[1] + trace)
        grad_rho[:, :, k] = -beta[:, :, 0]
        column = beta.to(inverse.dtype)
        half = (0.5 * ratio).to(inverse.dtype)[:, None, None]
        part = torch.baddbmm(inverse, column, column.mT, beta=-1.0).mul_(half).to(phi.dtype)
        total = part if total is None else total.add_(part)
    assert total is not None
    grad_gates = None
    if gates is not None and outer is not None:
        grad_gates = 2.0 * (inner.to(phi.dtype).mul_(total) @ gates)
        total.mul_(outer.to(phi.dtype))
    return value, 2.0 * (total @ phi), grad_gates, grad_ratio, grad_rho


def _by_features(features: Tensor, log_ratio: Tensor, rho: Tensor) -> Found:
    """Value and gradients of :class:`_FeatureDensity`."""
    wide = features.to(_precision(log_ratio, features))
    inner, projected = wide.mT @ wide, wide.mT @ rho.to(wide)
    value = rho.new_zeros(len(wide))
    grad_ratio, grad_rho = torch.empty_like(log_ratio), torch.empty_like(rho)
    total: Tensor | None = None
    for k in range(rho.shape[2]):
        ratio = log_ratio[:, k].exp()
        solved = _solve(inner, ratio, projected[:, :, k : k + 1], features.dtype)
        inverse = solved.inverse
        weights = ratio[:, None, None] * solved.solution
        beta = rho[:, :, k : k + 1] - wide @ weights.to(wide)
        quadratic = (rho[:, :, k : k + 1] * beta).sum((1, 2))
        value = value - 0.5 * (solved.logdet + quadratic)
        # As above: n less the trace of A's inverse is w less that of M's.
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        grad_ratio[:, k] = 0.5 * (quadratic - beta.square().sum((1, 2)) - inner.shape[1] + trace)
        grad_rho[:, :, k] = -beta[:, :, 0]
        scaled = inverse * ratio.to(inverse.dtype)[:, None, None]
        outer = (beta @ weights.mT).to(inverse.dtype)
        part = torch.baddbmm(outer, features.to(inverse.dtype), scaled, alpha=-1.0).to(features.dtype)
        total = part if total is None else total.add_(part)
    return value, total, grad_ratio, grad_rho


def batch_log_evidence(
    kernel: KernelTensors, output: NetworkOutput, y: Tensor, row_noise: RowNoise | None = None
) -> Tensor:
    """Compute (B1) from the network's output for rows and their targets, (..., n, q); float64, to differentiate.

    Rows may differ in their noise (W1), beside what the network says of it.
    """
    log_signal, log_noise = kernel.log_signal.double(), kernel.log_noise.double()
    n, q = y.shape[-2:]
    phi, gates = output.phi, output.gates
    rho = (y.double() - kernel.mean.double().unsqueeze(-2)) * torch.exp(-0.5 * log_noise).unsqueeze(-2)
    constant = -0.5 * n * (math.log(2.0 * math.pi) + log_noise).sum(-1)
    log_relative = output.log_noise
    if row_noise is not None:
        log_relative = row_noise.log_relative(log_noise[..., :1].exp(), output.log_noise)
    if log_relative is not None:
        root = torch.exp(-0.5 * log_relative).unsqueeze(-1)
        phi, rho = phi * root.to(phi), rho * root
        constant = constant - 0.5 * q * log_relative.double().sum(-1)
    log_ratio = log_signal - log_noise
    alone = phi.ndim == 2
    if alone:
        phi, log_ratio, rho = phi[None], log_ratio[None], rho[None]
        gates = None if gates is None else gates[None]
    width = phi.shape[-1] * (1 if gates is None else gates.shape[-1])
    density: Tensor
    if n <= width:
        density = _WhitenedDensity.apply(phi, gates, log_ratio, rho)  # type: ignore[no-untyped-call]
    else:
        features = output._replace(phi=phi, gates=gates).features()
        density = _FeatureDensity.apply(features, log_ratio, rho)  # type: ignore[no-untyped-call]
    return (density[0] if alone else density) + constant


def _identity_plus(products: Tensor, ratio: float) -> Factor:
    """Factorise ``I + ratio products``, float64."""
    matrix = products * ratio
    matrix.diagonal().add_(1.0)
    return factor(matrix)


def batch_predict(
    params: Parameters, context: NetworkOutput, y: Tensor, rows: NetworkOutput, row_noise: RowNoise | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance of the function and noise variance at other rows, given the rows of a batch; all (m, q) float64.

    The same posterior as that of the features' weights. O(n^3), whatever the number of features. ``row_noise`` is that
    of the rows of the batch, where they differ.
    """
    inner, cross = _kernel(context, context), _kernel(rows, context)
    root = None if context.log_noise is None else torch.exp(-0.5 * context.log_noise.double())
    if row_noise is not None:
        root = torch.exp(-0.5 * row_noise.log_relative(float(params.noise[0]), context.log_noise))
    if root is not None:
        inner, cross = inner * (root[:, None] * root), cross * root
    means, variances, noises = [], [], []
    for k in range(y.shape[1]):
        signal, noise, mean = float(params.signal[k]), float(params.noise[k]), float(params.mean[k])
        ratio = signal / noise
        solved = _identity_plus(inner, ratio)
        residual = y[:, k : k + 1].double() - mean
        whitened = residual if root is None else residual * root[:, None]
        means.append(mean + ratio * (cross @ solved.solve(whitened))[:, 0])
        share = 1.0 - ratio * solved.half_solve(cross.T).square().sum(0)
        variances.append(signal * share.clamp_min(0.0))
        level = torch.full_like(means[-1], noise)
        noises.append(level if rows.log_noise is None else level * rows.log_noise.double().exp())
    return torch.stack(means, 1), torch.stack(variances, 1), torch.stack(noises, 1)


def _kernel(rows: NetworkOutput, columns: NetworkOutput) -> Tensor:
    """``(r r') * (phi phi')``, float64."""
    kernel = rows.phi.double() @ columns.phi.double().T
    if rows.gates is None or columns.gates is None:
        return kernel
    return kernel * (rows.gates.double() @ columns.gates.double().T)
