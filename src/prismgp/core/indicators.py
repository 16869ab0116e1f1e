"""Groups of indicator columns, which share a length-scale while a start is looked for.

A category with twenty levels is twenty columns, of which a small subsample shows most levels a few times: length-scales
of their own cannot be learned there, and take as many rows and steps as twenty numbers would. One for all of them can,
in the unit of the indicators, between zero and one, so that all levels are equally far apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.exact import ExactEvidence
from prismgp.core.kernels import Parameters

_LEAST_ROWS = 20  # among fewer, numbers may look like indicators


@dataclass(frozen=True)
class Groups:
    """Which inputs share a length-scale, and what it is multiplied by for each."""

    index: AnyArray  # of the group of each input, (d,)
    log_factor: Array  # (d,), zero on average over a group

    @property
    def count(self) -> int:
        return int(self.index[-1]) + 1

    @classmethod
    def find(cls, x: Tensor) -> Groups:
        """Find them in rows, (n, d): neighbouring columns of two values, of which each row has one high at most.

        A column that does not vary among the rows counts as the indicator of a level that is too rare for them.
        """
        if len(x) < _LEAST_ROWS:
            return cls(np.arange(x.shape[1]), np.zeros(x.shape[1]))
        low, high = x.amin(0), x.amax(0)
        on = (x == high) & (high > low)
        indicator = ((x == low) | (x == high)).all(0).tolist()
        # A level that no row has is as rare as one that a single row would have.
        gap = torch.where(high > low, high - low, len(x) ** 0.5).log().cpu().numpy()
        index = np.zeros(x.shape[1], dtype=np.intp)
        taken = on[:, 0]
        for j in range(1, x.shape[1]):
            together = indicator[j - 1] and indicator[j] and not bool((taken & on[:, j]).any())
            taken = taken | on[:, j] if together else on[:, j]
            index[j] = index[j - 1] + (not together)
        means = np.bincount(index, gap) / np.bincount(index)
        return cls(index, gap - means[index])

    def tie(self, params: Parameters) -> Parameters:
        """Parameters with one length-scale for each group, the mean of those of its inputs."""
        sums = np.bincount(self.index, params.log_lengthscale - self.log_factor)
        return replace(params, log_lengthscale=sums / np.bincount(self.index))

    def untie(self, params: Parameters) -> Parameters:
        """Parameters with a length-scale for each input."""
        return replace(params, log_lengthscale=params.log_lengthscale[self.index] + self.log_factor)


class TiedEvidence:
    """The log evidence of the full GP as a function of tied parameters."""

    def __init__(self, evidence: ExactEvidence, groups: Groups) -> None:
        self.evidence, self.groups = evidence, groups
        self.n_rows, self.work = evidence.n_rows, evidence.work

    def value(self, params: Parameters) -> float:
        """Log evidence, summed over the outputs."""
        return self.evidence.value(self.groups.untie(params))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        """Log evidence and its gradient with respect to the tied parameters."""
        value, gradient = self.evidence.value_and_gradient(self.groups.untie(params))
        sums = np.bincount(self.groups.index, gradient.log_lengthscale).astype(np.float64)
        return value, replace(gradient, log_lengthscale=sums)
