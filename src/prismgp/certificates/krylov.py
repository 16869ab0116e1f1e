"""Conjugate gradients and Lanczos, what they prove, and how they share products with the kernel matrix.

An algorithm is a generator, a task, that yields a block of vectors, (n, k), and is sent its product with K; when the
budget is spent it is sent None instead, and returns what it has. Tasks run together: one pass over the kernel serves
all of them. The cost of a pass is that of computing the entries of K; more columns cost little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prismgp._types import Tensor

Task = Generator[Tensor, Tensor | None, Any]
_ENTRIES = 32  # columns that take about as long as computing the entries of K


class Budget:
    """What may still be spent on products: their number, and seconds from now."""

    def __init__(self, products: int, seconds: float | None = None) -> None:
        self.products, self.used = products, 0
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._pace = 0.0  # seconds of the last product for each of its columns, the entries of K counted as some more

    def allows(self, columns: int, reserve: int = 0) -> bool:
        """Whether another product may be made, ``reserve`` being for later, and there is time for it and a last one."""
        if self.used + reserve >= self.products:
            return False
        expected = 2.0 * self._pace * (columns + _ENTRIES)
        return self._deadline is None or time.monotonic() + expected < self._deadline

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def spend(self, product: Callable[[Tensor], Tensor], v: Tensor) -> Any:
        """Make a product, and record what it took."""
        start = time.monotonic()
        done = product(v)
        if v.device.type == "cuda":
            torch.cuda.synchronize(v.device)
        self._pace = (time.monotonic() - start) / (v.shape[1] + _ENTRIES)
        self.used += 1
        return done


def run_together(
    product: Callable[[Tensor], Tensor],
    tasks: list[Task],
    budget: Budget,
    *,
    reserve: int = 0,
    riders: Sequence[int] = (),
) -> list[Any]:
    """Run all tasks to their end or to the end of the budget, less ``reserve`` products; their results, in order.

    ``riders`` take part in the products that others ask for, and end with the others.
    """
    results: list[Any] = [None] * len(tasks)
    waiting: dict[int, Tensor] = {}

    def advance(k: int, answer: Tensor | None) -> None:
        try:
            waiting[k] = tasks[k].send(answer)
        except StopIteration as end:
            waiting.pop(k, None)
            results[k] = end.value

    for k in range(len(tasks)):  # a generator starts when it is sent None
        advance(k, None)
    while waiting:
        order = list(waiting)
        sizes = [waiting[k].shape[1] for k in order]
        if all(k in riders for k in order) or not budget.allows(sum(sizes), reserve):
            for k in order:
                advance(k, None)
            break
        answers = budget.spend(product, torch.cat([waiting[k] for k in order], 1))
        for k, answer in zip(order, answers.split(sizes, 1), strict=True):
            advance(k, answer)
    return results


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

    ``Q v`` is ``after(v, K before(v))``, and ``solve`` the preconditioner, ``P^-1 v``. The columns are independent
    systems in step; one is done when ``min(|r| / (2 s), sqrt(r'P^-1 r))`` is at most ``enough``, (k,). The residuals
    of the recursion decide when to stop and which x is best, that of the smallest bound (E11), and nothing else: they
    prove nothing, and the caller computes them again.
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
    """Tridiagonal matrices of several starts."""

    diagonal: Tensor  # (steps, k)
    beside: Tensor  # (steps, k): beside[j] couples steps j and j + 1; the last one is the norm of the remainder
    size: Tensor  # norms of the starting vectors, (k,)

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
        above = torch.diag_embed(beside.T, offset=1)
        return torch.diag_embed(diagonal.T) + above + above.transpose(1, 2)

    def extremes(self) -> tuple[float, float]:
        """Smallest and largest Ritz value over all starts; they are always inside the spectrum."""
        values = torch.linalg.eigvalsh(self.matrices())
        return float(values.min()), float(values.max())

    def log_quadrature(self, *, floor: float) -> tuple[Tensor, Tensor]:
        """Bounds on ``g'log(A) g`` for every start g, for A with no eigenvalue below ``floor``.   (K3)

        Even derivatives of the logarithm are negative and odd ones positive, so Gauss' rule is an upper bound
        and the Gauss-Radau rule with a node at the floor a lower one (Golub and Meurant, 1994).
        """
        inner = self.matrices()
        last = torch.zeros_like(inner[:, :, :1])
        last[:, -1, 0] = self.beside[-1] ** 2
        delta = torch.linalg.solve(inner - floor * torch.eye(self.steps).to(inner), last)[:, -1, 0]

        def rule(matrices: Tensor) -> Tensor:
            values, vectors = torch.linalg.eigh(matrices)
            total: Tensor = (vectors[:, 0, :].square() * torch.log(values)).sum(1)
            return total * self.size**2

        return rule(self.matrices(extra=floor + delta)), rule(inner)


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

    The operator is ``v -> after(v, K before(v))``. Ends early when ``enough`` says so.
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
        # A column that has found an invariant space goes on with zeros, and a Ritz value it has already.
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
    several independent starts fails only if all do. It is 1, which proves nothing, where the steps do not suffice.
    """
    if steps < 1 or delta <= 0.0:
        return 1.0
    if steps >= n:
        return 0.0
    exponent = math.log(1.648 * math.sqrt(n)) - math.log(delta) / starts
    return min(1.0, (max(exponent, 0.0) / (2 * steps - 1)) ** 2)
