"""Shapes of the noise, row by row: densities and quantiles of new observations ``mean + std Z`` (Z2), and their tails.

Of m rows that a model did not know, none may be far away; still one in m may be, and a normal distribution would call
the next such row impossible. So a predictive distribution learned from m held-out rows is                      (Z6)

    (1 - e) p(y) + e t(y),   e = 1 / (m + 1),

where t has the mean and the variance of p, and tails as heavy as those of a Student's t with 3 degrees of freedom: it
is a mixture of normal distributions with standard deviations c, 4 c, 16 c, ... of p's, each 64 times rarer than the one
before. Mean and standard deviation stay, and what is not far away is hardly touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.models import Marginals, normal_cdf, normal_quantile
from prismgp.core.numerics import Hashes
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.prism.shapes import Mask, mark_copies

Shapes = dict[int, NoiseShape]  # those that are not normal, by output
_T = TypeVar("_T")

_COUNT = 6  # of standard deviations: the widest is some 900 standard deviations wide
_RAW = 64.0 ** -np.arange(_COUNT)
TAIL_WEIGHTS: Array = _RAW / _RAW.sum()
_SQUARES = 16.0 ** np.arange(_COUNT)
TAIL_VARIANCES: Array = _SQUARES / (TAIL_WEIGHTS @ _SQUARES)
_HALVINGS = 80


@dataclass(frozen=True)
class RowShapes:
    """The shapes of the rows of a model; the distribution of outputs without one is the predictor's."""

    usual: Shapes
    of_copies: Shapes
    tail_share: float  # (Z6)
    known: Hashes | None  # sorted, of the rows whose copies have shapes of their own; None: there are no such rows

    @classmethod
    def of(
        cls,
        shapes: Iterable[NoiseShape] | None,
        copy_shapes: Iterable[NoiseShape] | None,
        tail_share: float,
        known: Hashes | None,
    ) -> RowShapes:
        usual, of_copies = (
            {k: shape for k, shape in enumerate(each or ()) if not isinstance(shape, NormalShape)}
            for each in (shapes, copy_shapes)
        )
        return cls(usual, of_copies, tail_share, known)

    def __bool__(self) -> bool:
        return bool(self.usual) or self.known is not None

    def covers_all(self, outputs: int, copied: Mask | None) -> bool:
        """Whether every row has a shape for each of so many outputs."""
        return min(len(self.usual), outputs if copied is None else len(self.of_copies)) == outputs

    def mark_copies(self, inputs: Tensor) -> Mask | None:
        """Which rows, in the model's units, have the shapes of copies; None: none."""
        return None if self.known is None else mark_copies(self.known, inputs)

    def density(self, marginals: Marginals, y: Tensor, copied: Mask | None = None) -> Array:
        """Log density of targets, (n, q), output by output."""
        found = add_tails(marginals, self.tail_share).log_density(y).cpu().numpy()
        variance = marginals.variance.cpu().numpy()
        z = (y - marginals.mean).cpu().numpy() / np.sqrt(variance)
        for rows, shapes in _by_rows(self.usual, self.of_copies, copied):
            for k, shape in shapes.items():
                density = tailed_log_density(shape, self.tail_share, z[rows, k])
                found[rows, k] = density - 0.5 * np.log(variance[rows, k])
        return np.asarray(found)

    def quantiles(self, levels: Sequence[float]) -> RowQuantiles:
        """The quantiles of the shapes at these levels."""
        usual, of_copies = (
            {k: tailed_quantiles(shape, self.tail_share, levels) for k, shape in shapes.items()}
            for shapes in (self.usual, self.of_copies)
        )
        return RowQuantiles(usual, of_copies)


@dataclass(frozen=True)
class RowQuantiles:
    """Quantiles of the shapes, by output, (number of levels,)."""

    usual: dict[int, Array]
    of_copies: dict[int, Array]

    def write_into(self, values: Array, mean: Array, std: Array, copied: Mask | None) -> None:
        """Write the quantiles of rows with this mean and standard deviation, (n, q), into values, (n, q, levels)."""
        for rows, found in _by_rows(self.usual, self.of_copies, copied):
            for k, z in found.items():
                values[rows, k] = mean[rows, k, None] + std[rows, k, None] * z


def _by_rows(usual: _T, of_copies: _T, copied: Mask | None) -> list[tuple[Any, _T]]:
    return [(slice(None), usual)] if copied is None else [(~copied, usual), (copied, of_copies)]


# -- tails -------------------------------------------------------------------------------------------


def add_tails(marginals: Marginals, share: float) -> Marginals:
    """Distributions with tails (Z6)."""
    if share == 0.0:
        return marginals
    weights, variances = (torch.as_tensor(each).to(marginals.mean) for each in (TAIL_WEIGHTS, TAIL_VARIANCES))
    return Marginals(
        marginals.mean,
        marginals.variance,
        torch.cat([(1.0 - share) * marginals.weights, share * weights]),
        torch.cat([marginals.centers, marginals.mean.expand(_COUNT, *marginals.mean.shape)]),
        torch.cat([marginals.variances, variances[:, None, None] * marginals.variance]),
    )


def add_tail_density(log_density: Tensor, marginals: Marginals, y: Tensor, share: float) -> Tensor:
    """The joint log density of several outputs, (n,), with tails, in which the outputs are independent."""
    if share == 0.0:
        return log_density
    only = add_tails(marginals, 1.0)
    tails = Marginals(
        only.mean, only.variance, *(each[-_COUNT:] for each in (only.weights, only.centers, only.variances))
    )
    far = tails.log_density(y).sum(1)
    return torch.logaddexp(log_density + math.log1p(-share), far + math.log(share))


def tailed_log_density(shape: NoiseShape, share: float, z: Array) -> Array:
    """Log density of standardised residuals of a shape with tails, entry by entry."""
    found = shape.log_density(z)
    if share == 0.0:
        return found
    with np.errstate(over="ignore"):
        logs = -0.5 * (np.square(z)[..., None] / TAIL_VARIANCES + np.log(2.0 * math.pi * TAIL_VARIANCES))
    far = np.logaddexp.reduce(logs + np.log(TAIL_WEIGHTS), axis=-1)
    return np.asarray(np.logaddexp(found + math.log1p(-share), far + math.log(share)))


def tailed_quantiles(shape: NoiseShape, share: float, levels: Sequence[float]) -> Array:
    """Quantiles of a shape with tails, (len(levels),), by bisection between those of its parts."""
    u = np.array(levels, dtype=np.float64)
    base = shape.quantile(u)
    if share == 0.0:
        return base
    roots = np.sqrt(TAIL_VARIANCES)
    parts = np.column_stack([base, np.array([normal_quantile(level) for level in levels])[:, None] * roots])
    low, high = parts.min(1), parts.max(1)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = (1.0 - share) * shape.cdf(middle) + share * (normal_cdf(middle[:, None] / roots) @ TAIL_WEIGHTS) < u
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))
