"""Targets given their neighbours: the conditional distribution of a target given the k nearest rows.

Rows have coordinates c, (n, D), and targets t, (n, q). For one output, with ``g ~ GP(m, S k)`` in the coordinates
divided by length-scales and ``t = g(c) + N(0, nu)``, given the rows N that are nearest to c:

- (N1) ``mean = m + w'(t_N - m)``, ``w = (S / nu) A^-1 r``, ``A = I + (S / nu) R``, R = k(N, N), r = k(N, c);
- (N2) ``variance of g(c) = S (1 - w'r)``; of a new target: the same plus nu.

Rows that differ in their noise (W1) have nu V in place of nu: then ``w = (S / nu) V^-1/2 A^-1 V^-1/2 r`` with
``A = I + (S / nu) V^-1/2 R V^-1/2``.

Where the spread of the targets differs from place to place, the neighbours show it. With a Student-t process of
``degrees`` of freedom in place of the GP (Shah et al. 2014), both variances are multiplied by

- (N6) ``(degrees - 2 + beta) / (degrees - 2 + k)``, ``beta = (t_N - m)' A^-1 (t_N - m) / nu``,

which is below one where the neighbours differ less from each other than the GP expects. Infinite degrees: a GP.

With k = n this is the exact GP. All eigenvalues of A are at least one, so factorisations do not fail while S / nu is
bounded. Where rounding makes them fail, :func:`prismgp.core.numerics.factor` mends the few matrices concerned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from prismgp._types import Tensor
from prismgp.core.kernels import Kernel, Parameters
from prismgp.core.numerics import factor
from prismgp.core.rows import RowNoise

VARIANCE_FLOOR = 1e-12  # share of the prior variance; below it the subtraction has no digits left


@dataclass(frozen=True)
class Neighborhoods:
    """The neighbours of m points: what the density of their targets depends on."""

    offsets: Tensor  # coordinates of the neighbours less those of the point, (m, k, D), float64
    targets: Tensor  # of the neighbours, (m, k, q), float64
    row_noise: RowNoise | None = None  # of the neighbours, where they differ, all (m, k)

    def to(self, dtype: torch.dtype) -> Neighborhoods:
        """The same in another precision, but for the noise of rows."""
        return Neighborhoods(self.offsets.to(dtype), self.targets.to(dtype), self.row_noise)


@dataclass(frozen=True)
class _Solved:
    """One output at m points."""

    weights: Tensor  # w, (m, k)
    mean: Tensor  # (m,)
    variance: Tensor  # of the function, (m,)
    lower: Tensor  # factor of A, (m, k, k)
    residuals: Tensor  # t_N - m, (m, k)
    roots: Tensor | None  # of V, (m, k), where rows differ in their noise
    misfit: Tensor | None = None  # beta of (N6), (m,), where that is asked for

    def solve(self, b: Tensor) -> Tensor:
        """``V^-1/2 A^-1 V^-1/2 b``, (m, k)."""
        if self.roots is None:
            return torch.cholesky_solve(b[:, :, None], self.lower)[:, :, 0]
        return torch.cholesky_solve((b / self.roots)[:, :, None], self.lower)[:, :, 0] / self.roots


def scaled_distances(offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances between the neighbours, (m, k, k), and to the point, (m, k), of scaled offsets (m, k, D).

    The product form loses digits where rows are far from the origin. So the origin is moved to the mean of the
    neighbours, not to the point, which may be far from all of them. Also returns the offsets from that mean.
    """
    apart = offsets.detach()
    centred = apart - apart.mean(1, keepdim=True)
    norms = centred.square().sum(2)
    between = torch.baddbmm(norms[:, :, None] + norms[:, None, :], centred, centred.mT, alpha=-2.0)
    own = torch.eye(offsets.shape[1], dtype=torch.bool, device=offsets.device)
    between.clamp_(min=0.0).masked_fill_(own, 0.0)  # a view of the diagonal could not be exported to ONNX
    return between, offsets.square().sum(2), centred


def _factor(a: Tensor) -> Tensor:
    """Lower factors of matrices whose eigenvalues are at least one, (m, k, k)."""
    lower: Tensor
    lower, info = torch.linalg.cholesky_ex(a)
    failed = ((info != 0) | ~lower[:, -1, -1].isfinite()).nonzero()[:, 0]
    if len(failed):
        lower[failed] = torch.stack([factor(each).lower for each in a[failed]])
    return lower


Solver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _solve_by_factors(a: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """``A^-1`` of right-hand sides, (m, k, c), and the factors of A, (m, k, k)."""
    lower = _factor(a)
    return torch.cholesky_solve(right, lower), lower


def solve_output(
    r_inner: Tensor,
    r: Tensor,
    near: Neighborhoods,
    params: Parameters,
    k: int,
    solver: Solver = _solve_by_factors,
    *,
    misfit: bool = False,
) -> _Solved:
    """(N1) and (N2) for output k; and beta of (N6), if asked for."""
    signal, noise, mean = float(params.signal[k]), float(params.noise[k]), float(params.mean[k])
    ratio = signal / noise
    a = r_inner * ratio
    roots = None if near.row_noise is None else torch.exp(0.5 * near.row_noise.log_relative(noise))
    if roots is not None:
        a.div_(roots[:, :, None]).div_(roots[:, None, :])
    a += torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    residuals = near.targets[:, :, k] - mean
    right = torch.stack([r, residuals], 2) if misfit else r[:, :, None]
    if roots is not None:
        right = right / roots[:, :, None]
    solution, lower = solver(a, right)
    found = solution[:, :, 0]
    weights = ratio * (found if roots is None else found / roots)
    variance = signal * (1.0 - (weights * r).sum(1)).clamp_min(VARIANCE_FLOOR)
    beta = (right[:, :, 1] * solution[:, :, 1]).sum(1) / noise if misfit else None
    return _Solved(weights, mean + (weights * residuals).sum(1), variance, lower, residuals, roots, beta)


class Conditionals(NamedTuple):
    """Predictions at points from their neighbours, all (m, q), float64."""

    mean: Tensor
    variance: Tensor  # of the function
    noise: Tensor  # variance
    misfit: Tensor | None = None  # beta of (N6)

    @classmethod
    def join(cls, parts: Sequence[Conditionals]) -> Conditionals:
        first, *_ = parts
        given = cls._fields if first.misfit is not None else cls._fields[:3]
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in given))


def conditionals(
    kernel: Kernel,
    params: Parameters,
    near: Neighborhoods,
    degrees: float = math.inf,
    solver: Solver = _solve_by_factors,
    *,
    misfit: bool = False,
) -> Conditionals:
    """The targets of the points given their neighbours; ``misfit``: compute beta also for a GP.

    ``solver`` returns ``A^-1 B`` and what it was found by, from A, (m, k, k), and B, (m, k, c).
    """
    inner, r = _correlations(kernel, params, near)
    misfit = misfit or math.isfinite(degrees)
    outputs = range(near.targets.shape[2])
    solved = [solve_output(inner, r, near, params, k, solver, misfit=misfit) for k in outputs]
    mean, variance = torch.stack([each.mean for each in solved], 1), torch.stack([each.variance for each in solved], 1)
    noise = torch.as_tensor(params.noise).to(mean).expand_as(mean)
    found = [each.misfit for each in solved if each.misfit is not None]
    if not found:
        return Conditionals(mean, variance, noise)
    beta = torch.stack(found, 1)
    spread = spread_factor(beta, near.targets.shape[1], degrees)
    return Conditionals(mean, spread * variance, spread * noise, beta)


def _correlations(kernel: Kernel, params: Parameters, near: Neighborhoods) -> tuple[Tensor, Tensor]:
    """R, (m, k, k), and r, (m, k)."""
    scale = torch.as_tensor(params.lengthscale).to(near.offsets)
    between, squares, _ = scaled_distances(near.offsets / scale)
    return kernel.value(between), kernel.value(squares)


def spread_factor(misfit: Tensor, k: int, degrees: float) -> Tensor:
    """(N6), for k neighbours."""
    if math.isinf(degrees):
        return torch.ones_like(misfit)
    return (degrees - 2.0 + misfit) / (degrees - 2.0 + k)


def weights_of(kernel: Kernel, params: Parameters, near: Neighborhoods) -> Tensor:
    """The weights w of the neighbours, (m, k, q)."""
    inner, r = _correlations(kernel, params, near)
    return torch.stack([solve_output(inner, r, near, params, k).weights for k in range(near.targets.shape[2])], 2)
