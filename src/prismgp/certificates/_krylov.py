"""Conjugate gradients and Lanczos, as tasks that ask for products with the kernel, and what they prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from prismgp._types import Tensor
from prismgp.certificates._passes import Task

__all__ = ["Lanczos", "conjugate_gradients", "lanczos", "random_starts", "ritz_shortfall"]


def conjugate_gradients(
    b: Tensor,
    *,
    solve: Callable[[Tensor], Tensor],
    before: Callable[[Tensor], Tensor],
    after: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    enough: Tensor,
) -> Task:
    """Solve ``Q x = b`` for every column by preconditioned conjugate gradients; returns x, (n, k).

    The columns are independent systems in step. The residuals of the recursion decide when to stop and which
    x is best, that of the smallest bound (E11), and nothing else: they are no certificate, and are computed again
    by who uses x.

    Parameters
    ----------
    b : Tensor, (n, k)
    solve : callable
        The preconditioner, ``P^-1 v``.
    before, after : callable
        ``Q v = after(v, K before(v))``.
    noise : Tensor, (k,)
    enough : Tensor, (k,)
        ``min(|r| / (2 s), sqrt(r'P^-1 r))`` at which a column is done.
    """
    x = solve(b)
    best, least = x, torch.full_like(noise, torch.inf)
    answer = yield before(x)
    if answer is None:
        return x
    r = b - after(x, answer)
    z = solve(r)
    p = z.clone()
    rz = (r * z).sum(0)
    while True:
        size = torch.minimum(r.square().sum(0) / (4.0 * noise), rz.clamp_min(0.0)).sqrt()
        better = size < least
        best, least = torch.where(better, x, best), torch.where(better, size, least)
        if bool((least <= enough).all()):
            return best
        answer = yield before(p)
        if answer is None:
            return best
        q = after(p, answer)
        step = rz / (p * q).sum(0).clamp_min(1e-300)
        x = x + step * p
        r = r - step * q
        z = solve(r)
        rz, last = (r * z).sum(0), rz
        p = z + (rz / last.clamp_min(1e-300)) * p


@dataclass(frozen=True)
class Lanczos:
    """Tridiagonal matrices of several starts.

    Attributes
    ----------
    diagonal, beside : Tensor, (steps, k)
        ``beside[j]`` couples steps j and j + 1; the last one is the norm of what is left.
    size : Tensor, (k,)
        Norms of the starting vectors.
    """

    diagonal: Tensor
    beside: Tensor
    size: Tensor

    @property
    def steps(self) -> int:
        return len(self.diagonal)

    @property
    def starts(self) -> int:
        return len(self.size)

    def matrices(self, *, extra: Tensor | None = None) -> Tensor:
        """The tridiagonal matrices, (k, s, s); ``extra``, (k,): one more diagonal entry."""
        diagonal, beside = self.diagonal, self.beside[:-1]
        if extra is not None:
            diagonal, beside = torch.cat([diagonal, extra[None]]), self.beside
        off = beside.T
        return torch.diag_embed(diagonal.T) + torch.diag_embed(off, offset=1) + torch.diag_embed(off, offset=-1)

    def extremes(self) -> tuple[float, float]:
        """Smallest and largest Ritz value over all starts: inside the spectrum, always."""
        values = torch.linalg.eigvalsh(self.matrices())
        return float(values.min()), float(values.max())

    def quadrature(self, function: Callable[[Tensor], Tensor], *, floor: float) -> tuple[Tensor, Tensor]:
        """Bounds on ``g'f(A) g`` for every start g, for f = log and A with no eigenvalue below ``floor``.   (K3)

        Even derivatives of the logarithm are negative and odd ones positive, so Gauss' rule is an upper bound
        and the Gauss-Radau rule with a node at the floor a lower one (Golub and Meurant, 1994).
        """
        inner = self.matrices()
        upper = _rule(inner, function) * self.size**2
        eye = torch.eye(self.steps).to(inner)
        last = torch.zeros_like(inner[:, :, :1])
        last[:, -1, 0] = self.beside[-1] ** 2
        delta = torch.linalg.solve(inner - floor * eye, last)[:, -1, 0]
        lower = _rule(self.matrices(extra=floor + delta), function) * self.size**2
        return lower, upper


def _rule(matrices: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    values, vectors = torch.linalg.eigh(matrices)
    total: Tensor = (vectors[:, 0, :].square() * function(values)).sum(1)
    return total


def random_starts(n: int, count: int, generator: torch.Generator, *, like: Tensor) -> Tensor:
    """Gaussian vectors, (n, count); drawn on the CPU, so that a seed means the same on every device."""
    return torch.randn(n, count, generator=generator, dtype=torch.float64).to(like)


def lanczos(
    start: Tensor,
    *,
    before: Callable[[Tensor], Tensor],
    after: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    enough: Callable[[Lanczos], bool] | None = None,
) -> Task:
    """Lanczos with full re-orthogonalisation from every column of ``start``; returns :class:`Lanczos` or None.

    The operator is ``v -> after(v, K before(v))``. Ends early when what is there is ``enough``.
    """
    size = start.square().sum(0).sqrt()
    q = start / size
    basis: list[Tensor] = []
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    found = None
    for _ in range(min(steps, len(start))):
        answer = yield before(q)
        if answer is None:
            break
        w = after(q, answer)
        basis.append(q)
        # A column that has found an invariant space goes on with nothing, and a Ritz value it has already.
        diagonal.append(torch.where(beside[-1] > 0.0, (q * w).sum(0), diagonal[0]) if beside else (q * w).sum(0))
        for _ in range(2):  # twice is enough
            for each in basis:
                w = w - (each * w).sum(0) * each
        norm = w.square().sum(0).sqrt()
        scale = diagonal[0].abs() + (beside[0] if beside else norm)
        over = norm <= 1e-14 * scale
        beside.append(torch.where(over, torch.zeros_like(norm), norm))
        q = torch.where(over, torch.zeros_like(w), w / norm.clamp_min(1e-300))
        found = Lanczos(torch.stack(diagonal), torch.stack(beside), size)
        if bool(over.all()) or (enough is not None and enough(found)):
            break
    return found


def ritz_shortfall(n: int, steps: int, starts: int, delta: float) -> float:
    """e with ``largest Ritz value >= (1 - e) largest eigenvalue``, for psd matrices, with probability 1 - delta.   (K1)

    Kuczynski and Wozniakowski (SIAM J. Matrix Anal. Appl. 13, 1992), for a start uniform on the sphere: the probability
    of a relative error above e is at most ``1.648 sqrt(n) exp(-sqrt(e) (2k - 1))``. The largest of
    several independent starts fails only if all do. One, that is nothing proved, where the steps do not suffice.
    """
    if steps < 1 or delta <= 0.0:
        return 1.0
    if steps >= n:
        return 0.0
    exponent = math.log(1.648 * math.sqrt(n)) - math.log(delta) / starts
    return min(1.0, (max(exponent, 0.0) / (2 * steps - 1)) ** 2)
