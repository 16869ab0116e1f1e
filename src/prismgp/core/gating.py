"""Gates: to which cluster a row belongs, wholly or in part.

With gates ``r_c(x) >= 0`` and ``sum_c r_c(x)^2 = 1``, the kernel

    k'(x, x') = sum_c r_c(x) r_c(x') k_p(x, x')                                 (G1)

is positive semi-definite (Schur product), has the diagonal of ``k_p``, and is that of the features
``r(x) (x) phi(x)``. A rule scores the clusters by

    score_c(x) = o_c - 1/2 sum_j (h_cj (x_j - m_cj))^2                          (G2)

and opens the gates by

    hard: r_c = 1 for the highest score, else 0;   soft: r_c = softmax_c(score)^(1/2)      (G3)

Hard gates make the kernel exactly zero between clusters: the clusters are independent GPs that share
their parameters. Equal ``h_c`` and ``o_c`` give the nearest centre; ``o_c = log weight_c + sum_j log h_cj``
the responsibilities of a mixture of Gaussians with standard deviations ``1 / h_cj``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from prismgp._types import AnyArray, Tensor

_LARGEST_DISTANCE = 1e30  # distances beyond are not squared; ONNX holds numbers up to 1e38 only
_SMALLEST = 1e-6  # share of the total spread below which a cluster's own is taken for rounding


class Gate(Protocol):
    """Gates of rows in the model's units."""

    @property
    def kind(self) -> str:
        """ "hard" or "soft"."""
        ...

    @property
    def n_clusters(self) -> int: ...

    def labels(self, x: Tensor) -> Tensor:
        """The cluster of each row, (n,), int64."""
        ...

    def gates(self, x: Tensor) -> Tensor:
        """``r(x)``, (n, b), float64, rows of norm one."""
        ...


@dataclass(frozen=True)
class GateLabels:
    """A pass: the cluster of each row, (n,), int32."""

    gate: Gate

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> AnyArray:  # noqa: ARG002
        found = [self.gate.labels(x).cpu().numpy().astype(np.int32) for x, _ in chunks]
        return np.concatenate([np.empty(0, dtype=np.int32), *found])

    def merge(self, first: AnyArray, second: AnyArray) -> AnyArray:
        return np.concatenate([first, second])


def hard_gates(labels: Tensor, n_clusters: int) -> Tensor:
    """One-hot rows, (n, b), float64."""
    return torch.nn.functional.one_hot(labels, n_clusters).double()


def soft_gates(log_joint: Tensor) -> Tensor:
    """Square roots of the responsibilities, (n, b), from their logarithms up to a constant for each row."""
    return torch.exp(0.5 * torch.log_softmax(log_joint, 1))


@dataclass(frozen=True)
class RuleGate:
    """Gates by the scores (G2), which a model file can hold; all tensors are float64."""

    kind: str  # "hard" or "soft"
    centres: Tensor  # m, (b, d), in the model's units, like the rows
    roots: Tensor  # h, (b, d), square roots of the precisions
    offsets: Tensor  # o, (b,)

    @property
    def n_clusters(self) -> int:
        return len(self.offsets)

    def scores(self, x: Tensor) -> Tensor:
        """(G2), (n, b), float64."""
        centres, roots, offsets = (each.to(x.device) for each in (self.centres, self.roots, self.offsets))
        rows = x.double()
        out = rows.new_empty(rows.shape[0], self.n_clusters)  # not len(rows), as in spectral_features
        for c in range(self.n_clusters):
            # By differences: expanded squares would cancel where clusters are far from the origin.
            away = ((rows - centres[c]) * roots[c]).clamp_(-_LARGEST_DISTANCE, _LARGEST_DISTANCE)
            out[:, c] = offsets[c] - 0.5 * away.square().sum(1)
        return out

    def labels(self, x: Tensor) -> Tensor:
        return self.scores(x).argmax(1)

    def gates(self, x: Tensor) -> Tensor:
        """(G3)"""
        if self.kind == "hard":
            return hard_gates(self.labels(x), self.n_clusters)
        return soft_gates(self.scores(x))

    def disagreement(self, rows: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> int:
        """How many rows of ``(x, labels, weights)`` it would put elsewhere."""
        return sum(int((self.labels(x) != labels).sum()) for x, labels, _ in rows)


@dataclass(frozen=True)
class ClusterMoments:
    """Sizes, means and spreads of labelled rows; what a rule is made of."""

    counts: Tensor  # (b,), float64
    means: Tensor  # (b, d)
    squares: Tensor  # (b, d), sums of squared differences from the mean of the cluster

    @classmethod
    def of(
        cls, rows: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor | None]]], n_clusters: int, d: int
    ) -> ClusterMoments:
        """Two passes over ``(x, labels, weights)``, weights None where all are one; every cluster must have a row."""
        counts = torch.zeros(n_clusters, dtype=torch.float64)
        sums, squares = (torch.zeros(n_clusters, d, dtype=torch.float64) for _ in range(2))
        for x, labels, weights in rows():
            counts += torch.bincount(labels, weights, minlength=n_clusters)
            sums.index_add_(0, labels, x.double() if weights is None else weights[:, None] * x.double())
        means = sums / counts[:, None]
        for x, labels, weights in rows():
            away = (x.double() - means[labels]).square()
            squares.index_add_(0, labels, away if weights is None else weights[:, None] * away)
        return cls(counts, means, squares)

    def nearest_mean(self, lengthscale: Tensor) -> RuleGate:
        """The hard gate of the nearest mean, by distances in length-scales."""
        roots = (1.0 / lengthscale).expand_as(self.means).clone()
        return RuleGate("hard", self.means, roots, torch.zeros_like(self.counts))

    def mixture(self, lengthscale: Tensor) -> RuleGate:
        """The soft gate of a mixture of Gaussians that are spherical where inputs are in length-scales."""
        squares = self.squares / lengthscale.square()
        n = self.counts.sum()
        centre = (self.counts @ self.means) / n
        between = self.counts @ ((self.means - centre) / lengthscale).square()
        # The effective number of inputs: those of long length-scales have hardly any spread here.
        spread = squares.sum(0) + between
        shares = spread / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny)
        dims = 1.0 / max(float(shares.square().sum()), 1.0 / len(shares))
        # Each cluster has one more row of the average spread, so that single rows have a width.
        pooled = (squares.sum() + _SMALLEST * between.sum()) / n
        if float(pooled) == 0.0:
            pooled = torch.ones_like(pooled)
        variance = (squares.sum(1) + pooled) / ((self.counts + 1.0) * dims)
        roots = 1.0 / (lengthscale * variance.sqrt()[:, None])
        return RuleGate("soft", self.means, roots, self.counts.log() - 0.5 * dims * variance.log())
