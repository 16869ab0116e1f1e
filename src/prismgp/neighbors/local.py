"""The GP on nearest neighbours: rows and parameters, and the predictions, joint predictions and draws they give.

The formulas (N1), (N2) and (N6) of a point given its neighbours are in :mod:`prismgp.neighbors.conditional`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.exact import PRIOR_FREQUENCIES, ExactEvidence, ExactPosterior, draw_prior
from prismgp.core.kernels import Kernel, Parameters, draw_frequencies
from prismgp.core.numerics import Hashes, factor, hash_rows, mix_bits, raise_diagonal
from prismgp.core.rows import RowNoise
from prismgp.exceptions import DataError, TooLargeError
from prismgp.neighbors.conditional import (
    VARIANCE_FLOOR,
    Conditionals,
    Neighborhoods,
    conditionals,
    spread_factor,
    weights_of,
)
from prismgp.neighbors.search import NeighborSearch
from prismgp.neighbors.shards import PointShards, ShardSearch

_BLOCK_BYTES = {"cpu": 2**24, "cuda": 2**28}  # of the neighbours' coordinates and kernel matrices of one block
_FARTHEST = 1e30  # of a standardised coordinate: every kernel is zero there, and squares stay in range
MOST_JOINT = 8_192  # neighbours of points that are predicted jointly


def row_normals(seed: int, rows: Tensor, q: int) -> Tensor:
    """Standard normal numbers of rows, (n, q), that depend on the seed and the row's number alone."""
    numbers = rows.cpu().numpy().astype(np.uint64)
    uniforms = []
    for column in range(2 * q):
        z = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        z = z + np.uint64((column + 1) * 0xD1B54A32D192ED03 % 2**64)
        uniforms.append((mix_bits(z) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54)
    radius, angle = np.stack(uniforms[:q], 1), np.stack(uniforms[q:], 1)
    normals = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)  # Box and Muller
    return torch.as_tensor(normals).to(rows.device)


def check_observations(x: Tensor, y: Tensor, noise: Tensor | None) -> None:
    """Refuse observations that cannot join the rows: every member of a batch would need a search of its own."""
    if x.ndim > 2 or y.ndim > 2:
        raise DataError(
            f"a model with neighbours takes one set of observations, (n, d) and (n, outputs), got a batch, "
            f"{tuple(x.shape)} and {tuple(y.shape)}; for batches, as of fantasies, fit an SSGPRegressor, or a "
            'PrismGPRegressor with local="never"'
        )
    if noise is not None:
        raise DataError("a model with neighbours has one noise variance for all rows; leave noise out")
    if bool(y.isnan().any()):
        raise DataError("observations of a model with neighbours need values of all outputs, but some are missing")
    if x.requires_grad or y.requires_grad:
        raise DataError("the rows of a model with neighbours have no derivatives; detach the observations")


@dataclass(frozen=True)
class LocalGP:
    """Rows, kernel and parameters of a GP that predicts by the k nearest rows."""

    kernel: Kernel
    params: Parameters  # of the coordinates, (D,), and outputs, (q,)
    coordinates: Tensor  # (n, D), float32 or float64
    targets: Tensor  # (n, q), float64
    n_neighbors: int
    row_noise: RowNoise | None = None  # of the rows, where they differ
    shards: PointShards | None = None  # the same coordinates on a cluster, whose workers search them in a fit
    degrees: float = math.inf  # of freedom (N6)

    @property
    def n_rows(self) -> int:
        return len(self.coordinates)

    @property
    def k(self) -> int:
        """Neighbours of a point: as many as asked for, or all rows."""
        return min(self.n_neighbors, self.n_rows)

    @cached_property
    def search(self) -> NeighborSearch | ShardSearch:
        """Of nearest rows in the metric of the parameters."""
        scale = torch.as_tensor(1.0 / self.params.lengthscale)
        return NeighborSearch(self.coordinates, scale) if self.shards is None else self.shards.search(scale)

    @property
    def whole_rows(self) -> bool:
        """Whether all rows are neighbours of every point."""
        return self.n_rows <= self.n_neighbors

    @cached_property
    def whole(self) -> ExactPosterior | None:
        """The exact GP, where all rows are neighbours of every point: one factorisation serves all points."""
        return self.evidence.posterior(self.params)[0] if self.whole_rows else None

    @property
    def evidence(self) -> ExactEvidence:
        """Of the exact GP on all rows."""
        return ExactEvidence(self.coordinates.double(), self.targets, self.kernel, self.row_noise)

    def sorted_hashes(self, count: int) -> Hashes:
        """Hashes of the first coordinates of the rows, so many of them, in float32; sorted, (n,)."""
        if count not in self._hashes:
            self._hashes[count] = np.sort(hash_rows(self.coordinates[:, :count].float().cpu().numpy()))
        return self._hashes[count]

    @cached_property
    def _hashes(self) -> dict[int, Hashes]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be computed again, or belongs to a cluster."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"shards": None}

    def leave_cluster(self) -> LocalGP:
        """The same, which searches its rows itself."""
        return replace(self, shards=None)

    def to(self, device: torch.device) -> LocalGP:
        if self.coordinates.device == device:
            return self
        noise = None if self.row_noise is None else self.row_noise.to(device)
        return replace(self, coordinates=self.coordinates.to(device), targets=self.targets.to(device), row_noise=noise)

    def with_parameters(self, params: Parameters) -> LocalGP:
        return replace(self, params=params)

    def take(self, index: Tensor) -> LocalGP:
        """With some of the rows."""
        noise = None if self.row_noise is None else self.row_noise.take(index)
        coordinates, targets = self.coordinates[index], self.targets[index]
        return replace(self, coordinates=coordinates, targets=targets, row_noise=noise, shards=None)

    def extend(self, coordinates: Tensor, targets: Tensor, row_noise: RowNoise | None = None) -> LocalGP:
        """With further rows, at the same parameters."""
        parts = (self.row_noise, self.n_rows), (row_noise, len(targets))
        return replace(
            self,
            coordinates=torch.cat([self.coordinates, self.round(coordinates)]),
            targets=torch.cat([self.targets, targets.to(self.targets)]),
            row_noise=RowNoise.join(parts, self.targets.device),
            shards=None,
        )

    def gather(self, points: Tensor, rows: Tensor) -> Neighborhoods:
        """The given rows, (m, k), as neighbours of points, (m, D)."""
        offsets = self.coordinates[rows].double() - points.double()[:, None, :]
        noise = None if self.row_noise is None else self.row_noise.take(rows)
        return Neighborhoods(offsets, self.targets[rows], noise)

    def block_rows(self, k: int | None = None) -> int:
        """Points whose neighbourhoods fill a fixed amount of memory."""
        k = self.k if k is None else k
        size = 8 * k * (self.coordinates.shape[1] + 2 * k + self.targets.shape[1])
        return max(1, _BLOCK_BYTES[self.coordinates.device.type] // size)

    def predict(self, points: Tensor) -> Conditionals:
        """The targets at points, (m, D), given their neighbours."""
        points = self.round(points)
        if self.whole is not None:
            mean, variance = self.whole.predict(points.double(), variance=True)
            assert variance is not None
            return Conditionals(mean, variance, torch.as_tensor(self.params.noise).to(mean).expand_as(mean))
        return self.predict_from(points, self.search.query(points, self.k))

    def predict_from(self, points: Tensor, rows: Tensor, *, misfit: bool = False) -> Conditionals:
        """The targets at points given these rows, (m, k); ``misfit`` as of :func:`conditionals`."""
        return Conditionals.join(
            [
                conditionals(
                    self.kernel,
                    self.params,
                    self.gather(points[block], rows[block]),
                    self.degrees,
                    misfit=misfit,
                )
                for block in self._blocks(len(points))
            ]
        )

    def round(self, points: Tensor) -> Tensor:
        """In the precision of the rows' coordinates, so that a row is at distance zero from itself."""
        return points.to(self.coordinates).clamp(-_FARTHEST, _FARTHEST)

    def covariance(self, points: Tensor) -> Tensor:
        """Joint covariance of the function at points, (m, m, q), given the union of their neighbours.

        Batches of points, (..., m, D), have covariances, (..., m, m, q), given the neighbours of each.
        """
        if points.shape[-2] == 1:
            variance = self.predict(points.reshape(-1, points.shape[-1]))[1]
            return variance.reshape(*points.shape[:-1], 1, -1)
        if points.ndim > 2:
            parts = [self.covariance(each) for each in points.flatten(0, -3)]
            return torch.stack(parts).reshape(*points.shape[:-2], *parts[0].shape)
        points = self.round(points)
        if self.whole is not None:
            return self.whole.covariance(points.double())
        nearest = self.search.query(points, self.k)
        rows = torch.unique(nearest)
        if len(rows) > MOST_JOINT:
            raise TooLargeError(
                f"the joint covariance of {len(points):,} points is conditioned on all their {len(rows):,} neighbours, "
                f"more than {MOST_JOINT:,}; ask for fewer points at a time, or for return_std"
            )
        scale = torch.as_tensor(self.params.lengthscale).to(points.device)
        here, near = points.double() / scale, self.coordinates[rows].double() / scale
        prior, cross = self._value(here, here), self._value(near, here)
        inner = self._value(near, near)
        parts = []
        for k in range(self.targets.shape[1]):
            signal, noise = float(self.params.signal[k]), float(self.params.noise[k])
            own, across = inner, cross
            if self.row_noise is not None:
                roots = torch.exp(0.5 * self.row_noise.take(rows).log_relative(noise))
                own, across = inner / roots[:, None] / roots, cross / roots[:, None]
            half = factor(torch.eye(len(rows)).to(inner) + signal / noise * own).half_solve(across)
            parts.append(signal * raise_diagonal(prior - signal / noise * half.T @ half, VARIANCE_FLOOR))
        joint = torch.stack(parts, 2)
        if math.isinf(self.degrees):
            return joint
        spread = self._spread(self.predict_from(points, nearest))
        return spread[:, None] * spread * joint

    def _spread(self, found: Conditionals) -> Tensor:
        """Roots of the factors (N6) on variances, (m, q)."""
        assert found.misfit is not None
        return spread_factor(found.misfit, self.k, self.degrees).sqrt()

    def draw(self, count: int, rng: np.random.Generator) -> Callable[[Tensor], Tensor]:
        """Functions drawn from the posterior, which take points, (m, D), and return values, (m, q, count).

        Pathwise conditioning (Wilson et al. 2020): a function drawn from the prior by spectral features, plus what
        its neighbours say of it: ``g(c) + w'(t_N - m - g(N) - noise)``, noise drawn once for every row. So a function
        has the same value at a point whatever else is asked, and the first functions do not depend on the count.   (N5)
        """
        q, d = self.targets.shape[1], self.coordinates.shape[1]
        device = self.coordinates.device
        base = draw_frequencies(self.kernel, PRIOR_FREQUENCIES, d, "iid", rng) / self.params.lengthscale
        streams = rng.spawn(count)
        noise_seeds = [int(each.integers(2**63 - 1)) for each in streams]
        w, signal = (torch.as_tensor(each).to(device) for each in (base.T.copy(), self.params.signal))
        drawn = draw_prior(w, signal, streams)
        mean = torch.as_tensor(self.params.mean).to(device)[:, None]
        root = torch.as_tensor(self.params.noise).to(device).sqrt()[:, None]

        def prior(points: Tensor) -> Tensor:
            return drawn(points.double())

        def noise(rows: Tensor) -> Tensor:
            drawn = root * torch.stack([row_normals(seed, rows, q) for seed in noise_seeds], 2)
            if self.row_noise is None:
                return drawn
            own = self.row_noise.take(rows)
            scales = [torch.exp(0.5 * own.log_relative(float(level))) for level in self.params.noise]
            return torch.stack(scales, 1)[:, :, None] * drawn

        def compute_residuals(rows: Tensor) -> Tensor:
            return self.targets[rows][:, :, None] - mean - prior(self.coordinates[rows]) - noise(rows)

        def draw_near(points: Tensor) -> Tensor:
            rows = self.search.query(points, self.k)
            unique, place = torch.unique(rows, return_inverse=True)
            weight = weights_of(self.kernel, self.params, self.gather(points, rows))  # (m, k, q)
            values = mean + prior(points) + torch.einsum("mkq,mkqs->mqs", weight, compute_residuals(unique)[place])
            if math.isinf(self.degrees):
                return values
            found = self.predict_from(points, rows)
            centre, spread = found.mean[:, :, None], self._spread(found)[:, :, None]
            return centre + spread * (values - centre)

        def functions(points: Tensor) -> Tensor:
            points = self.round(points)
            if self.whole is not None:
                all_rows = torch.arange(self.n_rows, device=device)
                change = torch.einsum("mkq,kqs->mqs", self.whole_weights(points), compute_residuals(all_rows))
                return mean + prior(points) + change
            # The neighbours' values take memory for each function.
            step = max(1, self.block_rows() // (1 + count // self.k))
            blocks = (points[start : start + step] for start in range(0, len(points), step))
            return torch.cat([draw_near(block) for block in blocks])

        return functions

    def whole_weights(self, points: Tensor) -> Tensor:
        """The weights w of all rows, (m, n, q), where all are neighbours."""
        whole = self.whole
        assert whole is not None
        scale = whole.lengthscale
        cross = self._value(self.coordinates.double() / scale, points.double() / scale)
        ratios = (whole.signal / whole.noise).tolist()
        solved = (ratio * torch.cholesky_solve(cross, lower) for ratio, lower in zip(ratios, whole.lower, strict=True))
        return torch.stack([each.T for each in solved], 2)

    def _value(self, a: Tensor, b: Tensor) -> Tensor:
        return self.kernel.value(torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square())

    def _blocks(self, m: int) -> Iterator[slice]:
        rows = self.block_rows()
        return (slice(start, start + rows) for start in range(0, m, rows))
