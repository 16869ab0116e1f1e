"""Log evidence of a mini-batch, and its gradient with respect to everything the network makes.

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

A, M and their factors are in float64, since they are ill-conditioned where the noise is low. The gradient is formed in
the forward pass and in the network's precision: at this size, touching memory costs as much as arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from prismgp._types import Tensor
from prismgp.core.features import gated_features
from prismgp.core.linalg import Factor, factor
from prismgp.core.parameters import Parameters
from prismgp.prism._network import Encoded, RevisedMap

__all__ = ["batch_log_evidence", "batch_predict"]


_PRECISE = 3e4  # ratio of signal to noise variance above which the gradient, too, is formed in float64


class _WhitenedDensity(torch.autograd.Function):
    """``sum_k -1/2 log |A_k| - 1/2 rho_k'A_k^-1 rho_k`` with the closed-form gradient (B2).

    Arguments: features with rows already divided by the roots of v, (n, 2p), and gates, (n, b), or None, in
    the network's precision; logarithms of S / s2, (q,), and rho, (n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, phi: Tensor, gates: Tensor | None, log_ratio: Tensor, rho: Tensor) -> Tensor:
        phi64 = phi.double()
        inner = _products(phi64)
        outer = None if gates is None else _products(gates.double())
        b = inner if outer is None else inner * outer
        value = rho.new_zeros(())
        total: Tensor | None = None
        grad_ratio = torch.zeros_like(log_ratio)
        grad_rho = torch.empty_like(rho)
        for k, ratio in enumerate(log_ratio.exp()):
            solved = _identity_plus(b, ratio)
            beta = solved.solve(rho[:, k : k + 1])
            quadratic = rho[:, k] @ beta[:, 0]
            value = value - 0.5 * (solved.logdet() + quadratic)
            inverse = _inverse(solved, ratio, phi.dtype)
            # <d/dA, A - I> without forming the product.
            grad_ratio[k] = 0.5 * (quadratic - beta.square().sum() - len(b) + inverse.diagonal().sum())
            grad_rho[:, k] = -beta[:, 0]
            half = 0.5 * float(ratio)
            column = beta.to(inverse.dtype)
            part = inverse.addmm_(column, column.T, beta=-half, alpha=half).to(phi.dtype)
            total = part if total is None else total.add_(part)
        assert total is not None
        grad_gates = None
        if gates is not None and outer is not None:
            grad_gates = 2.0 * (inner.to(phi.dtype).mul_(total) @ gates)
            total.mul_(outer.to(phi.dtype))
        ctx.save_for_backward(2.0 * (total @ phi), grad_gates, grad_ratio, grad_rho)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return _passed_on(ctx, *outer)


class _FeatureDensity(torch.autograd.Function):
    """The same by (B3), with the gradient (B4).

    Arguments: features with rows already divided by the roots of v, (n, w), in the network's precision; logarithms
    of S / s2, (q,), and rho, (n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, log_ratio: Tensor, rho: Tensor) -> Tensor:
        double = features.double()
        inner, projected = double.T @ double, double.T @ rho
        value = rho.new_zeros(())
        grad_features: Tensor | None = None
        grad_ratio = torch.zeros_like(log_ratio)
        grad_rho = torch.empty_like(rho)
        for k, ratio in enumerate(log_ratio.exp()):
            solved = _identity_plus(inner, ratio)
            weights = ratio * solved.solve(projected[:, k : k + 1])
            beta = rho[:, k : k + 1] - double @ weights
            quadratic = rho[:, k] @ beta[:, 0]
            value = value - 0.5 * (solved.logdet() + quadratic)
            inverse = _inverse(solved, ratio, features.dtype)
            # As above: n less the trace of A's inverse is w less that of M's.
            grad_ratio[k] = 0.5 * (quadratic - beta.square().sum() - len(inner) + inverse.diagonal().sum())
            grad_rho[:, k] = -beta[:, 0]
            outer = (beta @ weights.T).to(inverse.dtype)
            part = outer.addmm_(features.to(inverse.dtype), inverse, alpha=-float(ratio)).to(features.dtype)
            grad_features = part if grad_features is None else grad_features.add_(part)
        ctx.save_for_backward(grad_features, grad_ratio, grad_rho)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return _passed_on(ctx, *outer)


def batch_log_evidence(member: RevisedMap, encoded: Encoded, y: Tensor) -> Tensor:
    """(B1) for encoded rows and their targets, (n, q); a float64 scalar to differentiate."""
    log_signal, log_noise = member.log_signal.double(), member.log_noise.double()
    phi, gates = encoded.phi, encoded.gates
    rho = (y.double() - member.mean.double()) * torch.exp(-0.5 * log_noise)
    constant = -0.5 * len(y) * (math.log(2.0 * math.pi) + log_noise).sum()
    if encoded.log_noise is not None:
        root = torch.exp(-0.5 * encoded.log_noise)[:, None]
        phi, rho = phi * root, rho * root
        constant = constant - 0.5 * y.shape[1] * encoded.log_noise.double().sum()
    log_ratio = log_signal - log_noise
    density: Tensor
    if len(y) <= member.sizes.width:
        density = _WhitenedDensity.apply(phi, gates, log_ratio, rho)  # type: ignore[no-untyped-call]
    else:
        features = phi if gates is None else gated_features(phi, gates)
        density = _FeatureDensity.apply(features, log_ratio, rho)  # type: ignore[no-untyped-call]
    return density + constant


def _products(rows: Tensor) -> Tensor:
    return rows @ rows.T


def _identity_plus(products: Tensor, ratio: float | Tensor) -> Factor:
    """The factor of ``I + ratio products``, float64."""
    matrix = products * ratio
    matrix.diagonal().add_(1.0)
    return factor(matrix)


def _inverse(solved: Factor, ratio: Tensor, dtype: torch.dtype) -> Tensor:
    """Of the factored matrix, for a gradient.

    The factor has half the digits of the matrix's condition: its inverse may be in the network's precision, unless the
    noise is very low.
    """
    return torch.cholesky_inverse(solved.lower.to(dtype if ratio < _PRECISE else torch.float64))


def _passed_on(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the forward pass, times the one that comes in."""
    return tuple(None if g is None else scale.to(g.dtype) * g for g in ctx.saved_tensors)


def batch_predict(params: Parameters, context: Encoded, y: Tensor, rows: Encoded) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance of the function and noise variance at other rows, given the rows of a batch; all (m, q) float64.

    The same posterior as that of the features' weights. O(n^3), whatever the number of features.
    """
    inner, cross = _kernel(context, context), _kernel(rows, context)
    root = None if context.log_noise is None else torch.exp(-0.5 * context.log_noise.double())
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


def _kernel(rows: Encoded, columns: Encoded) -> Tensor:
    """``(r r') * (phi phi')``, float64."""
    kernel = rows.phi.double() @ columns.phi.double().T
    if rows.gates is None or columns.gates is None:
        return kernel
    return kernel * (rows.gates.double() @ columns.gates.double().T)
