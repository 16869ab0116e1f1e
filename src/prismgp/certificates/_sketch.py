"""The variance at every test point, from a few random looks at what the low rank leaves.

Let ``R = K - L L'`` for the features as computed, ``P = L L' + s2 I``, and k the kernel of a test point. For any w,
with ``o = k - P w`` and ``u = o - R w``, which is ``k - Q w``,

    v = 1 - k'P^-1 k + o'P^-1 o + w'R w - u'Q^-1 u,    0 <= u'Q^-1 u <= (sqrt(o'Q^-1 o) + |R w| / s)^2      (E16)

With ``w = P^-1 k``, o is rounding, and two numbers are missing: ``w'R w`` and ``|R w|``. For Gaussian vectors g, drawn
independently of w, the pairs ``(g'w, g'R w)`` are independent normal ones: the second is ``w'R w / |w|^2`` times the
first plus independent noise, so that Student's interval for the slope of a regression through the origin holds exactly,
and ``sum (g'R w)^2 / |R w|^2`` is chi-square. All test points share the same ``R g``, which cost one product with K,
and the union bound covers them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.special import gammaincinv, stdtrit

from prismgp._types import Tensor
from prismgp.certificates._krylov import random_starts
from prismgp.certificates._lowrank import LowRank
from prismgp.certificates._passes import Task
from prismgp.certificates._problem import Problem
from prismgp.certificates._rounding import growth

__all__ = ["Sketch", "SketchedPoints", "quantiles", "sketch_task"]

_MOST_WRONG = 0.05  # of the looks at w that rounding may be


@dataclass(frozen=True)
class Sketch:
    """Gaussian vectors g and ``R g``.

    Attributes
    ----------
    low : LowRank
    vectors : Tensor, (n, 2 s)
        The g, then the ``R g``.
    inside : Tensor, (m, 2 s)
        ``U'L'`` of them, U the eigenvectors of ``L'L``.
    """

    low: LowRank
    vectors: Tensor
    inside: Tensor

    @property
    def count(self) -> int:
        """s."""
        return self.vectors.shape[1] // 2


def sketch_task(problem: Problem, low: LowRank, *, count: int, generator: torch.Generator) -> Task:
    """Look at R once, with ``count`` vectors; returns :class:`Sketch` or None."""
    start = random_starts(problem.n, count, generator, like=problem.target)
    product = yield problem.whitened(start)
    if product is None:
        return None
    vectors = torch.cat([start, low.rest(start, problem.whitened(product))], 1)
    return Sketch(low, vectors, low.vectors.T @ low.transposed(vectors))


def quantiles(count: int, tail: float) -> tuple[float, float]:
    """What the slope's Student variable exceeds, and what the chi-square variable is below, with so small a chance."""
    return -float(stdtrit(count - 1, tail)), 2.0 * float(gammaincinv(0.5 * count, tail))


class SketchedPoints:
    """What a sketch sees of test points, gathered block by block; nothing larger than (m, q) is kept of it."""

    def __init__(self, sketch: Sketch, noise: Tensor, points: int) -> None:
        self.low, self.count, self.noise = sketch.low, sketch.count, noise
        self._drawn, self._left = (float(part.square().sum()) ** 0.5 for part in sketch.vectors.chunk(2, 1))
        self._drawn_inside, self._left_inside = (
            float(part.square().sum()) ** 0.5 for part in sketch.inside.chunk(2, 1)
        )
        # Of the looks at w and at R w: squared norms and the inner product. |w|^2, and sizes for rounding.
        self._aa, self._ab, self._bb, self._ww, self._ww_size, self._z = (
            noise.new_empty(points, len(noise)) for _ in range(6)
        )

    def add(self, j: slice, sketch: Sketch, e: Tensor, square: Tensor, inside: Tensor, across: Tensor) -> None:
        """Points j, of which ``k = L l + e``; ``square = |e|^2``, ``inside = U'l``, ``across = U'L'e``.

        ``w = e / s2 + L U z``, ``z = (inside - across / s2) / (g + s2)``.
        """
        values = self.low.values[:, None]
        outside = sketch.vectors.T @ e
        for k, level in enumerate(self.noise):
            z = (inside - across / level) / (values + level)
            first, second = (outside / level + sketch.inside.T @ z).chunk(2)
            self._aa[j, k], self._bb[j, k] = first.square().sum(0), second.square().sum(0)
            self._ab[j, k] = (first * second).sum(0)
            parts = square / level**2, 2.0 * (across * z).sum(0) / level, (values * z.square()).sum(0)
            self._ww[j, k] = sum(parts)
            self._z[j, k] = z.square().sum(0).sqrt()
            self._ww_size[j, k] = parts[0] + parts[1].abs() + parts[2]

    def bounds(
        self, square: Tensor, inside: Tensor, across: Tensor, wrong: Tensor, delta: float
    ) -> tuple[Tensor, Tensor]:
        """What is to be added to ``1 - k'P^-1 k`` for v, from below and from above, (m, q); all at once with
        probability ``1 - delta``.

        Parameters
        ----------
        square, inside, across : Tensor, (m, 1), (rank, m), (rank, m)
            What was added, of all points.
        wrong : Tensor, (m, 1)
            Norm of the rounding errors of e.
        """
        low, s, level = self.low, self.count, self.noise
        each, known = growth(low.n + low.rank), low.frobenius
        turn = low.turn_error
        e, c, h = square.sqrt(), *(part.square().sum(0).sqrt()[:, None] for part in (inside, across))
        student, least = quantiles(s, delta / (3.0 * max(self._aa.numel(), 1)))
        # The vector w that was looked at is not quite P^-1 k; (E16) holds for it, with an o of this size, by P^-1
        # and by Q^-1: Q >= P - slack I, which is 3/4 of P at the least.
        shift = each * (known * e / level + low.largest * self._z) + turn * (h / level + c)
        shift = shift / (2.0 * level.sqrt())
        off = 1.2 * (low.largest + level).sqrt() * (2.0 * wrong / level + shift)
        # Rounding of the looks themselves: of inner products, and of the product with K that made R g.
        seen = each * (e / level + known * self._z)
        sizes = self._ww_size + known * e * self._z / level + low.largest * self._z.square()
        ww_off = 4.0 * (each * sizes + turn * h * self._z / level)
        size = (self._ww + ww_off).clamp_min(0.0).sqrt()
        a, b = self._aa.sqrt(), self._bb.sqrt()
        a_off = self._drawn * seen + 2.0 * turn * self._drawn_inside * self._z
        b_off = self._left * seen + 2.0 * turn * self._left_inside * self._z
        b_off = b_off + self._drawn * low.rest_error * size
        slope = self._ab / self._aa
        # First order in the rounding errors of a and b, with room for the second: they are small, or nothing is said.
        slope_off = 1.1 * (b_off / a + 3.0 * b * a_off / self._aa)
        rest = (self._bb - self._ab * slope + 4.0 * growth(s) * self._bb).clamp_min(0.0).sqrt()
        rest = rest + 1.1 * (b_off + 2.0 * b * a_off / a)
        half = student * rest / ((s - 1) ** 0.5 * (a - a_off)) + slope_off + 2.0 * growth(s) * b / a
        ends = [(slope + side * half) * (self._ww + more) for side in (-1.0, 1.0) for more in (-ww_off, ww_off)]
        beneath, above = torch.minimum(ends[0], ends[1]), torch.maximum(ends[2], ends[3])
        second = (off + (b + b_off) / (least * level).sqrt()).square()
        trusted = (a_off < _MOST_WRONG * a) & torch.isfinite(half)
        nothing = torch.full_like(half, torch.inf)
        return torch.where(trusted, beneath - second, -nothing), torch.where(trusted, above + off.square(), nothing)
