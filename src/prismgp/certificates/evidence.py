"""The exact GP's log evidence: ``log |Q|`` and ``y'Q^-1 y`` from both sides.

With ``P = L L' + s2 I <= Q`` and any vector a with residual ``r = y - Q a``:

    log |P| <= log |Q| <= log |P| + sum_u log(1 + r_u / s2),   r = diag(K - L L')                       (E8)
    y'(P + t I)^-1 y <= y'Q^-1 y <= y'P^-1 y                                                            (E8b)
    y'Q^-1 y = y'a + a'r + r'Q^-1 r,   0 <= r'Q^-1 r <= r'P^-1 r                                        (E9)

(E8) is ``|I + P^-1/2 R P^-1/2| <= |I + R / s2|`` for ``R = K - L L'``, then Hadamard's inequality; it is below the
``n log(1 + t / (n s2))`` of the trace alone, and falls with every greedy pivot, which that does not.

The gap in (E8) is ``tr log(P^-1/2 Q P^-1/2)``, which Gaussian probes and Lanczos quadrature estimate with a known
probability (E10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch

from prismgp._types import Tensor
from prismgp.certificates.certificate import Interval
from prismgp.certificates.kernel_matrix import growth
from prismgp.certificates.krylov import Lanczos, Task, lanczos, random_starts, ritz_shortfall
from prismgp.certificates.lowrank import LowRank

_NEGLIGIBLE = 0.02  # share of the width of an interval that more steps of Lanczos could save


@dataclass(frozen=True)
class Solution:
    """Approximate solutions of ``Q a = b``, column by column, and bounds on their residuals."""

    b: Tensor  # (n, k)
    a: Tensor  # (n, k)
    noise: Tensor  # (k,)
    residual: Tensor  # b - Q a, computed again after the last step, (n, k)
    error: Tensor  # bound on the norm of the residual's rounding error, (k,)
    inner_low: Tensor  # bounds on a'(b - Q a), (k,)
    inner_high: Tensor

    @classmethod
    def of_product(cls, b: Tensor, a: Tensor, noise: Tensor, product: Tensor, error: Tensor) -> Solution:
        """From ``K a`` and bounds on the norms of its rounding errors, (k,)."""
        residual = b - product - noise * a
        size = a.square().sum(0).sqrt()
        off = error + 4.0 * growth(1) * (b.square().sum(0).sqrt() + noise * size)
        inner = (a * residual).sum(0)
        wrong = size * (off + growth(len(a)) * residual.square().sum(0).sqrt())
        return cls(b, a, noise, residual, off, inner - wrong, inner + wrong)

    def columns(self, which: slice) -> Solution:
        """Some of the systems."""
        return Solution(*(getattr(self, field.name)[..., which] for field in fields(self)))

    @property
    def norm(self) -> Tensor:
        """Of the residual, from above, (k,)."""
        return self.residual.square().sum(0).sqrt() + self.error

    def energy(self, low: LowRank) -> Tensor:
        """``r'Q^-1 r`` from above, (k,)."""
        shift = self.error / (self.noise - low.slack).sqrt()
        preconditioned = (low.checked_solve(self.noise - low.slack, self.residual).form[1].sqrt() + shift).square()
        return torch.minimum(self.norm.square() / self.noise, preconditioned)


def quadratic(solution: Solution, low: LowRank) -> tuple[Tensor, Tensor]:
    """Bounds on ``b'Q^-1 b``, column by column, (E9)."""
    first = (solution.b * solution.a).sum(0)
    sizes = solution.b.square().sum(0).sqrt() * solution.a.square().sum(0).sqrt()
    wrong = growth(low.n) * sizes
    lower = first + solution.inner_low - wrong
    return lower, first + solution.inner_high + wrong + solution.energy(low)


def logdet_by_rank(low: LowRank, noise: float) -> Interval:
    """``log |Q|`` by (E8); rounding of L changes ``log |P|`` by at most its trace norm over the noise."""
    known = low.logdet(noise)
    wrong = low.trace_error / (noise - low.slack) + growth(low.n + low.rank) * (abs(known) + low.n)
    left = float(torch.log1p(low.left / noise).sum()) * (1.0 + growth(low.n))
    return Interval(known - wrong, known + left + wrong, 1.0, f"pivoted Cholesky of rank {low.rank}")


def logdet_task(
    low: LowRank, noise: float, *, steps: int, starts: int, generator: torch.Generator, delta: float
) -> Task:
    """Lanczos on ``P^-1/2 Q P^-1/2`` from Gaussian probes; it ends when more steps would gain next to nothing."""
    start = random_starts(low.n, starts, generator, like=low.values)
    level = torch.full((1,), noise, dtype=torch.float64, device=low.values.device)
    held: list[Tensor] = []

    def half(v: Tensor) -> Tensor:
        return low.apply(torch.rsqrt, level, v)

    def before(v: Tensor) -> Tensor:
        held[:] = [half(v)]
        return low.weight(held[0])

    def after(_: Tensor, product: Tensor) -> Tensor:
        return half(low.weight(product) + noise * held[0])

    def enough(found: Lanczos) -> bool:
        # What the quadrature leaves open, compared with what the probes leave open.
        lower, upper = found.log_quadrature(floor=1.0 - 2.0 * _operator_error(low, noise)[1])
        interval = logdet_by_probes(found, low, noise, delta=delta)
        return interval is None or float((upper - lower).mean()) < _NEGLIGIBLE * interval.width

    # Steps that bound the largest eigenvalue are useful beyond the quadrature.
    patient = ritz_shortfall(low.n, steps, starts, 0.5 * delta) < 1.0
    return lanczos(start, before=before, after=after, steps=steps, enough=None if patient else enough)


def _operator_error(low: LowRank, noise: float) -> tuple[float, float]:
    """Norm of the rounding error of the operator in Lanczos; and how far its eigenvalues may be below one."""
    seen = (low.product_error + growth(4096 + low.n) * (noise + low.largest)) / noise
    return seen, low.slack / noise + seen


def logdet_by_probes(found: Lanczos | None, low: LowRank, noise: float, *, delta: float) -> Interval | None:
    """``log |Q|`` from probes; half of delta for the largest eigenvalue, half for the trace.             (E10)

    For ``A = log(P^-1/2 Q P^-1/2)``, psd up to rounding, and X the average of ``g'A g`` over N Gaussian probes, the
    chi-square bounds of Laurent and Massart (2000) with ``|A|_F^2 <= |A| tr A`` give
    ``sqrt(X - c) - sqrt(c) <= sqrt(tr A) <= sqrt(X + c) + sqrt(c)`` for ``c = |A| log(4 / delta) / N``, each side with
    probability ``1 - delta / 4``.
    """
    if found is None:
        return None
    seen, below = _operator_error(low, noise)
    if not below < 0.25:
        return None
    shift = -math.log1p(-below)
    lower, upper = found.log_quadrature(floor=1.0 - 2.0 * below)
    _, ritz = found.extremes()
    shortfall = ritz_shortfall(low.n, found.steps, found.starts, 0.5 * delta)
    largest = math.log1p(low.excess / noise)
    if shortfall < 1.0:
        largest = min(largest, math.log1p(max((ritz - 1.0 + 2.0 * below) / (1.0 - shortfall), 0.0)))
    norms = float(found.size.square().mean())
    # A + shift I is psd; the bounds are for it, and the shift is subtracted again.
    c = (largest + shift) * math.log(4.0 / delta) / found.starts
    low_mean, high_mean = (float(each.mean()) + shift * norms for each in (lower, upper))
    least = max(math.sqrt(max(low_mean - c, 0.0)) - math.sqrt(c), 0.0) ** 2
    most = (math.sqrt(max(high_mean + c, 0.0)) + math.sqrt(c)) ** 2
    known = low.logdet(noise)
    wrong = growth(low.n + low.rank) * (abs(known) + low.n) + 2.0 * seen * max(norms, low.n)
    method = f"rank {low.rank}, {found.starts} probes, {found.steps} products"
    return Interval(known + least - shift * low.n - wrong, known + most - shift * low.n + wrong, 1.0 - delta, method)
