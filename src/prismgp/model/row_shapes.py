"""Which shape of the noise a row has: densities and quantiles of new observations ``mean + std Z`` (Z2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from prismgp._types import Array, Tensor
from prismgp.core.models import Marginals
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.core.tails import add_tails, tailed_log_density, tailed_quantiles
from prismgp.prism.copies import KnownRows, Mask

Shapes = dict[int, NoiseShape]  # those that are not normal, by output
_T = TypeVar("_T")


@dataclass(frozen=True)
class RowShapes:
    """The shapes of the rows of a model; the distribution of outputs without one is the predictor's."""

    usual: Shapes
    of_copies: Shapes
    tail_share: float  # (Z6)
    known: KnownRows | None  # whose copies have shapes of their own; None: all rows have the usual ones

    @classmethod
    def of(
        cls,
        shapes: Iterable[NoiseShape] | None,
        copy_shapes: Iterable[NoiseShape] | None,
        tail_share: float,
        known: KnownRows | None,
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
        return None if self.known is None else self.known.mark_copies(inputs)

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
