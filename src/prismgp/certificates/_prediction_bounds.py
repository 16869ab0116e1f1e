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
"""

from __future__ import annotations

from functools import cached_property

import torch

from prismgp._types import Tensor
from prismgp.certificates._evidence_bounds import Solution, quadratic
from prismgp.certificates._lowrank import LowRank
from prismgp.certificates._problem import Problem
from prismgp.certificates._reference import ReferenceKernel
from prismgp.certificates._rounding import growth
from prismgp.certificates._sketch import Sketch, SketchedPoints
from prismgp.certificates._thin import times_thin

__all__ = ["Crossed", "VarianceByRank", "mean_half_width", "variance_by_solution"]


_HARMLESS = 1e-4  # of the noise variance, that rounding may take from a variance: half of that of the std


def mean_half_width(solution: Solution, low: LowRank) -> Tensor:
    """How far ``k'a`` is from the exact mean at any point of prior variance one, (q,); (E11)."""
    direct = solution.norm / (2.0 * solution.noise.sqrt())
    return torch.minimum(direct, solution.energy(low).sqrt())


class VarianceByRank:
    """Bounds (E12) and (E13) at test points, from one pass over the kernel between them and the training rows.

    With ``k = L c + e``, ``L'L = U diag(g) U'``, ``h = U'L'e``, ``D = 1 / (g + level)``, and c in the basis U,

        1 - k'(L L' + level I)^-1 k = 1 - c'c + level c'D c - 2 c'D h - (e'e - h'D h) / level               (E12b)

    for any c. With the point's own features, ``c = l``, nothing large cancels; without any, ``c = 0``, a third of the
    work is spared, which is done where rounding is nothing to the noise even so. Keeps O(rank) numbers per test point,
    so that a better t, found later, costs no second pass. With a sketch, also (E16).
    """

    def __init__(self, problem: Problem, low: LowRank, rows: ReferenceKernel, sketch: Sketch | None = None) -> None:
        noise = torch.as_tensor(problem.ratio).to(problem.target)
        self.problem, self.low, self.rows, self.noise = problem, low, rows, noise
        m = rows.n
        self._rest, self._square, self._wrong = (noise.new_ones(m, 1) for _ in range(3))
        self._inside, self._across = (noise.new_zeros(low.rank, m) for _ in range(2))
        self._left = noise.new_empty(m, len(noise))
        self._sketch, self._sketched = sketch, None if sketch is None else SketchedPoints(sketch, noise, m)
        train_error = problem.rows.row_error[:, None]
        self._powers = torch.cat([torch.ones_like(train_error), train_error, train_error.square()], 1)

    def add(self, j: slice, block: Tensor) -> None:
        """Points j, of which this is the kernel with the training rows; may overwrite it."""
        low, own = self.low, self.rows.rows(j)
        features, off, _ = low.map.features(own)
        inside = low.vectors.T @ features.T
        self._left[j] = self._variance_left(inside, off)
        k = self.problem.whitened(block)
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
        self._across[:, j] = low.vectors.T @ low.transposed(e)
        self._square[j], self._wrong[j] = square[:, None], wrong[:, None]
        if self._sketch is not None and self._sketched is not None:
            self._sketched.add(j, self._sketch, e, square, self._inside[:, j], self._across[:, j])

    @cached_property
    def _direct(self) -> bool:
        """Whether rounding is harmless with ``e = k``: the sizes of :meth:`_value`, as ``|k|^2 <= |K|``."""
        low, level = self.low, float(self.noise.min())
        sizes = 2.0 + low.frobenius / level**0.5 + low.largest / (4.0 * level)
        each = growth(low.n + low.rank) * sizes + low.turn_error * (low.largest / level) ** 0.5
        return bool(each * low.norm < _HARMLESS * level**2)

    @cached_property
    def most_explained(self) -> Tensor:
        """What Q explains at most: as much as P, and what rounding hides."""
        return 1.0 - self._variance(self.noise - self.low.slack, -1.0)

    @cached_property
    def least_explained(self) -> Tensor:
        """And at the least: (E12) with the trace that is left for t."""
        return 1.0 - self._variance(self.noise + self.low.excess, 1.0)

    @property
    def lower(self) -> Tensor:
        """Of v."""
        return torch.maximum(1.0 - self.most_explained, self._left).clamp_min(0.0)

    @property
    def most(self) -> Tensor:
        """Of v, with the trace that is left."""
        return (1.0 - self.least_explained).clamp_max(1.0)

    def upper(self, shift: float) -> Tensor:
        """Of v, for a t in (E12)."""
        return self._variance(self.noise + shift, 1.0).clamp_max(1.0)

    @property
    def sketched(self) -> bool:
        """Whether a sketch has looked at the points."""
        return self._sketched is not None

    def by_sketch(self, delta: float) -> tuple[Tensor, Tensor] | None:
        """Lower and upper bounds on v, (m, q), by (E16); all of them with probability ``1 - delta``."""
        if self._sketched is None:
            return None
        below, above = self._sketched.bounds(self._square, self._inside, self._across, self._wrong, delta)
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


class Crossed:
    """``k'a`` at test points, and a bound on its rounding error; both (m, k)."""

    def __init__(self, problem: Problem, rows: ReferenceKernel, a: Tensor) -> None:
        self.problem, self.rows = problem, rows
        self.products, self.errors = (a.new_empty(rows.n, a.shape[1]) for _ in range(2))
        weighted = problem.whitened(a)
        train_error = problem.rows.row_error[:, None]
        self._columns = torch.cat([weighted, weighted.abs(), train_error * weighted.abs()], 1)

    def add(self, j: slice, block: Tensor) -> None:
        """Points j, of which this is the kernel with the training rows."""
        self.products[j], size, off = times_thin(block.T, self._columns).chunk(3, 1)  # one pass over the block
        self.errors[j] = (self.rows.rows(j).row_error[:, None] + growth(self.problem.n)) * size + off


def variance_by_solution(solution: Solution, low: LowRank, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """(E14): bounds on v at the points whose kernels the columns are, (k,).

    ``wrong``, (k,): norm of the rounding error of each column itself, which moves v by at most ``wrong / s``, twice.
    """
    lower, upper = quadratic(solution, low)
    moved = 2.0 * wrong / solution.noise.sqrt()
    return (1.0 - upper - moved).clamp_min(0.0), (1.0 - lower + moved).clamp(0.0, 1.0)
