"""Log evidence of a mini-batch, and its gradient with respect to everything the network makes.

A batch of n rows with features phi, gates r, relative noise variances v and residuals r_k = y_k - m_k:

    log p(Y) = sum over outputs of  -1/2 log |A| - 1/2 rho'A^-1 rho - 1/2 sum log(2 pi s2 v)        (B1)
    A = I + (S / s2) B,   B = V^-1/2 K V^-1/2,   K = (r r') * (phi phi'),   rho = V^-1/2 r_k / s2^(1/2)

the same density as (E1), written with the n x n matrix: a batch has fewer rows than the gated features have
columns, and then the cost, O(n^3), does not depend on the number of frequencies. With ``beta = A^-1 rho``
and, summed over outputs, ``D = (S / s2) 1/2 (beta beta' - A^-1)``:

    d/d B = D,   d/d phi = 2 (D * r r') phi,   d/d r = 2 (D * phi phi') r,   d/d rho = -beta         (B2)

The n x n matrices are in float64, since A is ill-conditioned where the noise is low, and the gradient is formed
in the forward pass, in place: at this size, touching memory costs as much as the arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from prismgp._linalg import factor
from prismgp._types import Tensor
from prismgp.revised._network import Encoded, RevisedMap

__all__ = ["batch_log_evidence"]


class _WhitenedDensity(torch.autograd.Function):
    """``sum_k -1/2 log |A_k| - 1/2 rho_k'A_k^-1 rho_k`` with the closed-form gradient (B2).

    Arguments: features with rows already divided by the roots of v, (n, 2p); gates, (n, b), or None;
    logarithms of S / s2, (q,); rho, (n, q). All float64.
    """

    @staticmethod
    def forward(ctx: Any, phi: Tensor, gates: Tensor | None, log_ratio: Tensor, rho: Tensor) -> Tensor:
        inner = phi @ phi.T
        outer = None if gates is None else gates @ gates.T
        b = inner if outer is None else inner * outer
        value = rho.new_zeros(())
        total: Tensor | None = None
        grad_ratio = torch.zeros_like(log_ratio)
        grad_rho = torch.empty_like(rho)
        for k, ratio in enumerate(log_ratio.exp()):
            a = b * ratio
            a.diagonal().add_(1.0)
            solved = factor(a)
            beta = solved.solve(rho[:, k : k + 1])
            inverse = solved.inverse()
            quadratic = rho[:, k] @ beta[:, 0]
            value = value - 0.5 * (solved.logdet() + quadratic)
            # <d/dA, A - I> without forming the product.
            grad_ratio[k] = 0.5 * (quadratic - beta.square().sum() - len(b) + inverse.diagonal().sum())
            grad_rho[:, k] = -beta[:, 0]
            half = 0.5 * float(ratio)
            part = inverse.addmm_(beta, beta.T, beta=-half, alpha=half)
            total = part if total is None else total.add_(part)
        assert total is not None
        grad_gates = None
        if gates is not None:
            grad_gates = 2.0 * (inner.mul_(total) @ gates)
            assert outer is not None
            total = total.mul_(outer)
        ctx.save_for_backward(2.0 * (total @ phi), grad_gates, grad_ratio, grad_rho)
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = outer
        return tuple(None if gradient is None else scale * gradient for gradient in ctx.saved_tensors)


def batch_log_evidence(member: RevisedMap, encoded: Encoded, y: Tensor) -> Tensor:
    """(B1) for encoded rows and their targets, (n, q); a float64 scalar to differentiate."""
    log_signal, log_noise = member.log_signal.double(), member.log_noise.double()
    phi = encoded.phi.double()
    rho = (y.double() - member.mean.double()) * torch.exp(-0.5 * log_noise)
    constant = -0.5 * len(y) * (math.log(2.0 * math.pi) + log_noise).sum()
    if encoded.log_noise is not None:
        log_v = encoded.log_noise.double()
        root = torch.exp(-0.5 * log_v)[:, None]
        phi, rho = phi * root, rho * root
        constant = constant - 0.5 * y.shape[1] * log_v.sum()
    gates = None if encoded.gates is None else encoded.gates.double()
    density: Tensor = _WhitenedDensity.apply(phi, gates, log_signal - log_noise, rho)  # type: ignore[no-untyped-call]
    return density + constant
