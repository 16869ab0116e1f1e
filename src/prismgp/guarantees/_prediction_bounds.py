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

import torch

from prismgp._types import Tensor
from prismgp.guarantees._evidence_bounds import Solution, quadratic
from prismgp.guarantees._lowrank import LowRank
from prismgp.guarantees._problem import Problem
from prismgp.guarantees._reference import ReferenceKernel
from prismgp.guarantees._rounding import growth
from prismgp.guarantees._sketch import Sketch, SketchedPoints
from prismgp.guarantees._thin import times_thin

__all__ = ["VarianceByRank", "crossed", "mean_half_width", "variance_by_solution"]


def mean_half_width(solution: Solution, low: LowRank) -> Tensor:
    """How far ``k'a`` is from the exact mean at any point of prior variance one, (q,); (E11)."""
    direct = solution.norm / (2.0 * solution.noise.sqrt())
    return torch.minimum(direct, solution.energy(low).sqrt())


class VarianceByRank:
    """Bounds (E12) and (E13) at test points, from one pass over the kernel between them and the training rows.

    With ``k = L l + e``, ``L'L = U diag(g) U'``, ``c = U'l``, ``h = U'L'e`` and ``D = 1 / (g + level)``,

        1 - k'(L L' + level I)^-1 k = 1 - l'l + level c'D c - 2 c'D h - (e'e - h'D h) / level               (E12b)

    in which nothing large cancels. Keeps O(rank) numbers per test point, so that a better t, found later, costs no
    second pass. With a sketch, also (E16).
    """

    def __init__(self, problem: Problem, low: LowRank, rows: ReferenceKernel, sketch: Sketch | None = None) -> None:
        noise = torch.as_tensor(problem.ratio).to(problem.target)
        self.low, self.noise = low, noise
        m = rows.n
        self._rest, self._square, self._wrong = (noise.new_empty(m, 1) for _ in range(3))
        self._inside, self._across = (noise.new_empty(low.rank, m) for _ in range(2))
        self._sketched = None if sketch is None else SketchedPoints(sketch, noise, m)
        left = noise.new_empty(m, len(noise))
        train_error = problem.rows.row_error[:, None]
        train_powers = torch.cat([torch.ones_like(train_error), train_error, train_error.square()], 1)

        def use(j: slice, block: Tensor) -> None:
            own = rows.rows(j)
            features, off, _ = low.map.features(own)
            k = problem.whitened(block)
            # Norm of the rounding errors of e: those of the entries of k, and those of the product. Here as sums of
            # k_u^2 (e_u + e_j)^2 in one product: passes over a block of this size take as long as the arithmetic.
            sums = times_thin(k.square().T, train_powers)
            there = own.row_error
            entries = (sums[:, 2] + there * (2.0 * sums[:, 1] + there * sums[:, 0])).sqrt()
            e = low.subtract_from(k, features.T)
            self._rest[j] = 1.0 - features.square().sum(1, keepdim=True)
            self._inside[:, j] = low.vectors.T @ features.T
            self._across[:, j] = low.vectors.T @ low.transposed(e)
            square = e.square().sum(0)
            self._square[j] = square[:, None]
            if sketch is not None and self._sketched is not None:
                self._sketched.add(j, sketch, e, square, self._inside[:, j], self._across[:, j])
            product = growth(low.rank) * float(low.values.sum()) ** 0.5 * features.square().sum(1).sqrt()
            self._wrong[j] = (entries + product)[:, None]
            left[j] = self._left(self._inside[:, j], off)

        problem.rows.cross(rows, use)
        # What Q explains at most: as much as P, and what rounding hides.
        self.most_explained = 1.0 - self._variance(noise - low.slack, -1.0)
        self.lower = torch.maximum(1.0 - self.most_explained, left).clamp_min(0.0)
        # And at the least: (E12) with the trace that is left for t.
        least = self._variance(noise + low.excess, 1.0)
        self.least_explained, self.most = 1.0 - least, least.clamp_max(1.0)

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
        one of ``U'L'e`` by ``growth |L|_F |e|`` passes ``D c`` and ``D h / level``, and one of ``L'L`` by
        ``growth |g|`` both of them twice.
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
        sizes = sizes + 2.0 * float(self.low.values.sum()) ** 0.5 * self._square.sqrt() * ways / level.sqrt()
        sizes = sizes + self.low.largest * ways.square()
        moved = self._wrong / level.sqrt()
        return value, (2.0 * (1.0 - value).clamp_min(1.0).sqrt() + moved) * moved + each * sizes

    def _left(self, inside: Tensor, off: Tensor) -> Tensor:
        """(E13), (m, q), lowered by the rounding of the features: of training rows in L, of the test row in l."""
        squares = inside.square()
        size = squares.sum(0)
        moved = (2.0 * size.sqrt() + off) * off + growth(self.low.rank) * size
        shares = self.noise / (self.low.values[:, None] + self.noise + self.low.slack)
        return squares.T @ shares - moved[:, None]


def crossed(problem: Problem, rows: ReferenceKernel, a: Tensor) -> tuple[Tensor, Tensor]:
    """``k'a`` at test points, and a bound on its rounding error; both (m, k)."""
    products, errors = (a.new_empty(rows.n, a.shape[1]) for _ in range(2))
    weighted = problem.whitened(a)
    train_error = problem.rows.row_error[:, None]
    columns = torch.cat([weighted, weighted.abs(), train_error * weighted.abs()], 1)

    def use(j: slice, block: Tensor) -> None:
        products[j], size, off = times_thin(block.T, columns).chunk(3, 1)  # one pass over the block
        errors[j] = (rows.rows(j).row_error[:, None] + growth(problem.n)) * size + off

    problem.rows.cross(rows, use)
    return products, errors


def variance_by_solution(solution: Solution, low: LowRank, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """(E14): bounds on v at the points whose kernels the columns are, (k,).

    ``wrong``, (k,): norm of the rounding error of each column itself, which moves v by at most ``wrong / s``, twice.
    """
    lower, upper = quadratic(solution, low)
    moved = 2.0 * wrong / solution.noise.sqrt()
    return (1.0 - upper - moved).clamp_min(0.0), (1.0 - lower + moved).clamp(0.0, 1.0)
