"""The exact GP's predictions: mean and variance at test points, from both sides.

With k the kernel between the training rows and a point of prior variance one:

    |k'Q^-1 r| <= min(|r| / (2 s), sqrt(r'Q^-1 r))                                                      (E11)

because ``|Q^-1 k| <= 1 / (2 s)`` and ``k'Q^-1 k <= 1``. For the variance ``v = 1 - k'Q^-1 k``, with
``P <= Q <= P + t I``, features l of the point, and any w with ``u = k - Q w``:

    1 - k'P^-1 k  <=  v  <=  1 - k'(P + t I)^-1 k                                                       (E12)
    s2 l'(L'L + s2 I)^-1 l  <=  v                                                                       (E13)
    k'w + w'u  <=  k'Q^-1 k  <=  k'w + w'u + u'P^-1 u                                                   (E14)

(E13) is the variance that would be left if the part of the function outside the span of the features were
known at the training rows; knowing more never raises it.

A sketch bounds the variance at every test point from the products of ``R = K - L L'``, for the features as computed,
with a few random vectors. For any w, with ``o = k - P w`` and ``u = o - R w``, which is ``k - Q w``,

    v = 1 - k'P^-1 k + o'P^-1 o + w'R w - u'Q^-1 u,    0 <= u'Q^-1 u <= (sqrt(o'Q^-1 o) + |R w| / s)^2      (E16)

With ``w = P^-1 k``, o is rounding, and two numbers are missing: ``w'R w`` and ``|R w|``. For Gaussian vectors g, drawn
independently of w, the pairs ``(g'w, g'R w)`` are independent normal ones: the second is ``w'R w / |w|^2`` times the
first plus independent noise, so that Student's interval for the slope of a regression through the origin holds exactly,
and ``sum (g'R w)^2 / |R w|^2`` is chi-square. All test points share the same ``R g``, which cost one product with K,
and the union bound covers them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import gammaincinv, stdtrit

from prismgp._types import Tensor
from prismgp.certificates.evidence import Solution, quadratic
from prismgp.certificates.kernel_matrix import ReferenceKernel, growth, times_thin
from prismgp.certificates.krylov import Task, random_starts
from prismgp.certificates.lowrank import LowRank
from prismgp.certificates.problem import Problem

_MOST_WRONG = 0.05  # of the products with w that rounding may be


def mean_half_width(solution: Solution, low: LowRank) -> Tensor:
    """How far ``k'a`` is from the exact mean at any point of prior variance one, (q,); (E11)."""
    direct = solution.norm / (2.0 * solution.noise.sqrt())
    return torch.minimum(direct, solution.energy(low).sqrt())


def variance_by_solution(solution: Solution, low: LowRank, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds on v at the points whose kernels are the right-hand sides, (k,); (E14).

    ``wrong``, (k,): norm of the rounding error of each column itself, which moves v by at most ``wrong / s``, twice.
    """
    lower, upper = quadratic(solution, low)
    moved = 2.0 * wrong / solution.noise.sqrt()
    return (1.0 - upper - moved).clamp_min(0.0), (1.0 - lower + moved).clamp(0.0, 1.0)


class CrossProducts:
    """``k'a`` at test points, and a bound on its rounding error; both (m, k)."""

    def __init__(self, problem: Problem, rows: ReferenceKernel, a: Tensor) -> None:
        self.problem, self.rows = problem, rows
        self.products, self.errors = (a.new_empty(rows.n, a.shape[1]) for _ in range(2))
        weighted = problem.whiten(a)
        train_error = problem.rows.row_error[:, None]
        self._columns = torch.cat([weighted, weighted.abs(), train_error * weighted.abs()], 1)

    def add(self, j: slice, block: Tensor) -> None:
        """Add the points j, whose kernel with the training rows is the block."""
        self.products[j], size, off = times_thin(block.T, self._columns).chunk(3, 1)  # one pass over the block
        self.errors[j] = (self.rows.rows(j).row_error[:, None] + growth(self.problem.n)) * size + off


class VarianceByRank:
    """Bounds (E12) and (E13) at test points, from one pass over the kernel between them and the training rows.

    With ``k = L c + e``, ``L'L = U diag(g) U'``, ``h = U'L'e``, ``D = 1 / (g + level)``, and c in the basis U,

        1 - k'(L L' + level I)^-1 k = 1 - c'c + level c'D c - 2 c'D h - (e'e - h'D h) / level               (E12b)

    for any c. With the point's own features, ``c = l``, nothing large cancels; without any, ``c = 0``, a third of the
    work is saved, which is done where rounding is small beside the noise even so. Keeps O(rank) numbers per test point,
    so that a better t, found later, costs no second pass. With a sketch, also (E16).
    """

    def __init__(self, problem: Problem, low: LowRank, rows: ReferenceKernel, sketch: Sketch | None = None) -> None:
        noise = torch.as_tensor(problem.ratio).to(problem.target)
        self.problem, self.low, self.rows, self.noise = problem, low, rows, noise
        m = rows.n
        self._rest, self._square, self._wrong = (noise.new_ones(m, 1) for _ in range(3))
        self._inside, self._across = (noise.new_zeros(low.rank, m) for _ in range(2))
        self._left = noise.new_empty(m, len(noise))
        self.sketched = None if sketch is None else SketchedPoints(sketch, noise, m)
        train_error = problem.rows.row_error[:, None]
        self._powers = torch.cat([torch.ones_like(train_error), train_error, train_error.square()], 1)

    def add(self, j: slice, block: Tensor) -> None:
        """Add the points j, whose kernel with the training rows is the block; may overwrite it."""
        low, own = self.low, self.rows.rows(j)
        features, off, _ = low.map.features(own)
        inside = low.vectors.T @ features.T
        self._left[j] = self._variance_left(inside, off)
        k = self.problem.whiten(block)
        # Norm of the rounding errors of e: those of the entries of k, and those of the product. Here as sums of
        # k_u^2 (e_u + e_j)^2 in one product: passes over a block of this size take as long as the arithmetic.
        sums = times_thin(k.square().T, self._powers)
        there = own.row_error
        wrong = (sums[:, 2] + there * (2.0 * sums[:, 1] + there * sums[:, 0])).sqrt()
        e, square = k, sums[:, 0]
        if not self._direct:
            size = features.square().sum(1)
            e = low.subtract_from(k, features.T)
            square = e.square().sum(0)
            self._rest[j], self._inside[:, j] = 1.0 - size[:, None], inside
            wrong = wrong + growth(low.rank) * low.frobenius * size.sqrt()
        self._across[:, j] = low.vectors.T @ low.times_transpose(e)
        self._square[j], self._wrong[j] = square[:, None], wrong[:, None]
        if self.sketched is not None:
            self.sketched.add(j, e, square, self._inside[:, j], self._across[:, j])

    @cached_property
    def _direct(self) -> bool:
        """Whether rounding is harmless with ``e = k``: the sizes of :meth:`_value`, as ``|k|^2 <= |K|``."""
        low, level = self.low, float(self.noise.min())
        sizes = 2.0 + low.frobenius / level**0.5 + low.largest / (4.0 * level)
        each = growth(low.n + low.rank) * sizes + low.turn_error * (low.largest / level) ** 0.5
        return bool(each * low.norm < self.rows.limits.harmless * level**2)

    @cached_property
    def most_explained(self) -> Tensor:
        """What Q explains at most: as much as P, and rounding."""
        return 1.0 - self._variance(self.noise - self.low.slack, -1.0)

    @cached_property
    def least_explained(self) -> Tensor:
        """What Q explains at least: (E12) with the remaining trace for t."""
        return 1.0 - self._variance(self.noise + self.low.excess, 1.0)

    @property
    def lower(self) -> Tensor:
        """Lower bound of v."""
        return torch.maximum(1.0 - self.most_explained, self._left).clamp_min(0.0)

    @property
    def most(self) -> Tensor:
        """Upper bound of v, with the remaining trace for t."""
        return (1.0 - self.least_explained).clamp_max(1.0)

    def upper(self, shift: float) -> Tensor:
        """Upper bound of v, for a t in (E12)."""
        return self._variance(self.noise + shift, 1.0).clamp_max(1.0)

    def by_sketch(self, delta: float) -> tuple[Tensor, Tensor] | None:
        """Lower and upper bounds on v, (m, q), by (E16); all of them with probability ``1 - delta``."""
        if self.sketched is None:
            return None
        below, above = self.sketched.bounds(self._square, self._inside, self._across, self._wrong, delta)
        value, wrong = self._value(self.noise)
        return value - wrong + below, value + wrong + above

    def _variance(self, level: Tensor, side: float) -> Tensor:
        """(E12b), (m, q), from above or from below."""
        value, wrong = self._value(level)
        return value + side * wrong

    def _value(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """(E12b), and how far it may be off, (m, q).

        Rounding: an error w of k moves ``k'M k`` by ``2 w'M k + w'M w``, where ``|M k| <= sqrt(k'M k / level)``;
        one of ``U'L'e`` by ``growth |L|_F |e|`` passes ``D c`` and ``D h / level``, those of products with U pass them
        too, and one of ``L'L`` by ``growth |g|`` both of them twice.
        """
        inverse, each = 1.0 / (self.low.values[:, None] + level), growth(self.low.n + self.low.rank)
        inside, across = self._inside, self._across
        first = level * (inside.square().T @ inverse)
        second = 2.0 * ((inside * across).T @ inverse)
        third = (self._square - across.square().T @ inverse) / level
        value = self._rest + first - second - third
        ways = level.sqrt() * (inside.square().T @ inverse.square()).sqrt()
        ways = ways + (across.square().T @ inverse.square()).sqrt() / level.sqrt()
        sizes = 1.0 + first + 2.0 * self._square / level
        sizes = sizes + 2.0 * self.low.frobenius * self._square.sqrt() * ways / level.sqrt()
        sizes = sizes + self.low.largest * ways.square()
        c, h = (part.square().sum(0).sqrt()[:, None] for part in (inside, across))
        turned = 2.0 * self.low.turn_error * (h / level.sqrt() + level.sqrt() * c) * ways
        moved = self._wrong / level.sqrt()
        return value, (2.0 * (1.0 - value).clamp_min(1.0).sqrt() + moved) * moved + each * sizes + turned

    def _variance_left(self, inside: Tensor, off: Tensor) -> Tensor:
        """(E13), (m, q), lowered by the rounding of the features: of training rows in L, of the test row in l."""
        squares = inside.square()
        size = squares.sum(0)
        moved = (2.0 * size.sqrt() + off) * off + growth(self.low.rank) * size
        shares = self.noise / (self.low.values[:, None] + self.noise + self.low.slack)
        return squares.T @ shares - moved[:, None]


@dataclass(frozen=True)
class Sketch:
    """Gaussian vectors g and ``R g``."""

    low: LowRank
    vectors: Tensor  # the g, then the R g, (n, 2 s)
    inside: Tensor  # U'L' of them, (m, 2 s), U the eigenvectors of L'L


def sketch_task(problem: Problem, low: LowRank, *, count: int, generator: torch.Generator) -> Task:
    """Multiply R once, with ``count`` random vectors; returns :class:`Sketch` or None."""
    start = random_starts(problem.n, count, generator, like=problem.target)
    product = yield problem.whiten(start)
    if product is None:
        return None
    vectors = torch.cat([start, low.rest(start, problem.whiten(product))], 1)
    return Sketch(low, vectors, low.vectors.T @ low.times_transpose(vectors))


def quantiles(count: int, tail: float) -> tuple[float, float]:
    """The upper quantile of the slope's Student variable and the lower one of the chi-square variable."""
    return -float(stdtrit(count - 1, tail)), 2.0 * float(gammaincinv(0.5 * count, tail))


class SketchedPoints:
    """Products of a sketch with the w of test points, gathered block by block; nothing larger than (m, q) is kept."""

    def __init__(self, sketch: Sketch, noise: Tensor, points: int) -> None:
        self.sketch, self.low, self.noise = sketch, sketch.low, noise
        self._drawn, self._left = (float(part.square().sum()) ** 0.5 for part in sketch.vectors.chunk(2, 1))
        self._drawn_inside, self._left_inside = (float(x.square().sum()) ** 0.5 for x in sketch.inside.chunk(2, 1))
        # Of the products g'w and g'R w: squared norms and the inner product. |w|^2, and sizes for rounding.
        empty = noise.new_empty(6, points, len(noise))
        self._aa, self._ab, self._bb, self._ww, self._ww_size, self._z = empty

    def add(self, j: slice, e: Tensor, square: Tensor, inside: Tensor, across: Tensor) -> None:
        """Add the points j, with ``k = L l + e``; ``square = |e|^2``, ``inside = U'l``, ``across = U'L'e``.

        ``w = e / s2 + L U z``, ``z = (inside - across / s2) / (g + s2)``.
        """
        values = self.low.values[:, None]
        outside = self.sketch.vectors.T @ e
        for k, level in enumerate(self.noise):
            z = (inside - across / level) / (values + level)
            first, second = (outside / level + self.sketch.inside.T @ z).chunk(2)
            self._aa[j, k], self._bb[j, k] = first.square().sum(0), second.square().sum(0)
            self._ab[j, k] = (first * second).sum(0)
            parts = square / level**2, 2.0 * (across * z).sum(0) / level, (values * z.square()).sum(0)
            self._ww[j, k] = sum(parts)
            self._z[j, k] = z.square().sum(0).sqrt()
            self._ww_size[j, k] = parts[0] + parts[1].abs() + parts[2]

    def bounds(
        self, square: Tensor, inside: Tensor, across: Tensor, wrong: Tensor, delta: float
    ) -> tuple[Tensor, Tensor]:
        """Bounds on ``v - (1 - k'P^-1 k)``, from below and from above, (m, q); all with probability ``1 - delta``.

        ``square``, (m, 1), ``inside`` and ``across``, (rank, m), are those of :meth:`add` for all points; ``wrong``,
        (m, 1), is the norm of the rounding errors of e.
        """
        low, s, level = self.low, self.sketch.vectors.shape[1] // 2, self.noise
        each, known, turn = growth(low.n + low.rank), low.frobenius, low.turn_error
        e, c, h = square.sqrt(), *(part.square().sum(0).sqrt()[:, None] for part in (inside, across))
        student, least = quantiles(s, delta / (3.0 * max(self._aa.numel(), 1)))
        # The vector w as computed is not quite P^-1 k; (E16) holds for it, with an o of this size, by P^-1 and by
        # Q^-1: Q >= P - slack I, which is at least 3/4 of P.
        shift = each * (known * e / level + low.largest * self._z) + turn * (h / level + c)
        shift = shift / (2.0 * level.sqrt())
        off = 1.2 * (low.largest + level).sqrt() * (2.0 * wrong / level + shift)
        # Rounding of the products with g: of inner products, and of the product with K that made R g.
        seen = each * (e / level + known * self._z)
        sizes = self._ww_size + known * e * self._z / level + low.largest * self._z.square()
        ww_off = 4.0 * (each * sizes + turn * h * self._z / level)
        size = (self._ww + ww_off).clamp_min(0.0).sqrt()
        a, b = self._aa.sqrt(), self._bb.sqrt()
        a_off = self._drawn * seen + 2.0 * turn * self._drawn_inside * self._z
        b_off = self._left * seen + 2.0 * turn * self._left_inside * self._z
        b_off = b_off + self._drawn * low.rest_error * size
        slope = self._ab / self._aa
        # First order in the rounding errors of a and b, with room for the second: they are small, or nothing is
        # claimed.
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
