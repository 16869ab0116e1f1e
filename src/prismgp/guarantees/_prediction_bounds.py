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

__all__ = ["VarianceByRank", "crossed", "mean_half_width", "variance_by_solution"]


def mean_half_width(solution: Solution, low: LowRank) -> Tensor:
    """How far ``k'a`` is from the exact mean at any point of prior variance one, (q,); (E11)."""
    direct = solution.norm / (2.0 * solution.noise.sqrt())
    return torch.minimum(direct, solution.energy(low).sqrt())


class VarianceByRank:
    """Bounds (E12) and (E13) at test points, from one pass over the kernel between them and the training rows.

    Keeps O(rank) numbers per test point, so that a better t, found later, costs no second pass.
    """

    def __init__(self, problem: Problem, low: LowRank, rows: ReferenceKernel) -> None:
        noise = torch.as_tensor(problem.ratio).to(problem.target)
        self.low, self.noise = low, noise
        m = rows.n
        self._square, self._relative = (noise.new_empty(m, 1) for _ in range(2))
        self._inner = noise.new_empty(low.rank, m)
        left = noise.new_empty(m, len(noise))
        train_error = problem.rows.row_error[:, None]

        def use(j: slice, block: Tensor) -> None:
            own = rows.rows(j)
            k = problem.whitened(block)
            squares = k.square()
            total = squares.sum(0)[:, None]
            relative = 2.0 * (own.row_error[:, None] + (squares.T @ train_error) / total.clamp_min(1e-300))
            self._square[j] = total
            self._relative[j] = relative + 4.0 * growth(problem.n + low.rank)
            self._inner[:, j] = low.vectors.T @ low.transposed(k)
            features, off, _ = low.map.features(own)
            left[j] = self._left(features, off)

        problem.rows.cross(rows, use)
        # What Q explains at most: as much as P, less what rounding hides.
        self.most_explained = self._explained(noise - low.slack, 1.0)
        self.lower = torch.maximum(1.0 - self.most_explained, left).clamp_min(0.0)

    def least_explained(self, shift: float) -> Tensor:
        """``k'(P + t I)^-1 k``, (m, q)."""
        return self._explained(self.noise + shift, -1.0)

    def upper(self, shift: float) -> Tensor:
        """Of v, for a t in (E12)."""
        return (1.0 - self.least_explained(shift)).clamp_max(1.0)

    def _explained(self, level: Tensor, side: float) -> Tensor:
        """``k'(L L' + level I)^-1 k``, (m, q), from above or from below."""
        inverse = 1.0 / (self.low.values[:, None] + level)
        return (self._square - self._inner.square().T @ inverse + side * self._relative * self._square) / level

    def _left(self, features: Tensor, off: Tensor) -> Tensor:
        """(E13), (m, q); rounding of the features of training and test rows together lowers it."""
        top = float(self.low.values[-1:].sum()) + 1.0
        slack = self.low.slack + 2.0 * top**0.5 * off + off.square()
        inside = (features @ self.low.vectors).square()
        columns = []
        for noise in self.noise:
            level = (noise - slack).clamp_min(0.0)[:, None]
            share = level / (self.low.values + level).clamp_min(1e-300)
            columns.append((inside * share).sum(1) - slack)
        return torch.stack(columns, 1)


def crossed(problem: Problem, rows: ReferenceKernel, a: Tensor) -> tuple[Tensor, Tensor]:
    """``k'a`` at test points, and a bound on its rounding error; both (m, k)."""
    products, errors = (a.new_empty(rows.n, a.shape[1]) for _ in range(2))
    weighted = problem.whitened(a)
    train_error = problem.rows.row_error[:, None]

    def use(j: slice, block: Tensor) -> None:
        products[j] = block.T @ weighted
        size = block.T @ weighted.abs()
        own = rows.rows(j).row_error[:, None]
        errors[j] = (own + growth(problem.n)) * size + block.T @ (train_error * weighted.abs())

    problem.rows.cross(rows, use)
    return products, errors


def variance_by_solution(solution: Solution, low: LowRank, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """(E14): bounds on v at the points whose kernels the columns are, (k,).

    ``wrong``, (k,): norm of the rounding error of each column itself, which moves v by at most ``wrong / s``, twice.
    """
    lower, upper = quadratic(solution, low)
    moved = 2.0 * wrong / solution.noise.sqrt()
    return (1.0 - upper - moved).clamp_min(0.0), (1.0 - lower + moved).clamp(0.0, 1.0)
