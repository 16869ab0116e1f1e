"""The geometry of a partition in the kernel's metric, in time linear in the rows and memory of one chunk.

Per cluster, of the rows ``a`` scaled by the length-scales and centred: the size, the radius, and sums over all
ordered pairs of the scaled squared distance s, by identities instead of pairs,

- (S11) ``sum s = 2 n sum |a|^2``, ``sum s^2 = 2 n sum |a|^4 + 2 (sum |a|^2)^2 + 4 |A'A|_F^2``.

Between clusters, the norm of the kernel's off-cluster part, from above. With ``r_u`` the distance of row u of
cluster c to the centre of cluster e, and rows v of e within ``r_v`` of that centre, the kernel is at most
``k((r_u - r_v)_+^2)``. Both are counted in bins, so

- (S12) ``tau_out <= |N|``, ``N_ce^2 = min(F_ce, F_ec)``, ``F_ce = sum_u sum_v k((r_u - r_v)_+^2)^2``

for the b x b matrix N of zero diagonal. It is never above ``sqrt(n_c n_e) k((D_ce - R_c - R_e)_+^2)`` of centre
distances and radii but for the bins, and unlike it is not spoilt by one far row.

The kernel's own norm, from above, by cells: see ``_cells.py``. Sums are accurate to about 1e-12; ``SLACK`` covers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import AnyArray, Array
from prismgp.complexity._cells import cell_bounds
from prismgp.core.kernels import Kernel

__all__ = ["SLACK", "ClusterGeometry", "cluster_geometry", "kernel_values"]

SLACK = 1.0 + 1e-9  # relative, on every quantity that must be an upper bound
_BIN_PAIRS = 2**24  # most pairs of bins in one evaluation of S12
_CHUNK_BYTES = 2**25


def kernel_values(kernel: Kernel, s: Array) -> Array:
    """k(s), elementwise, for arrays."""
    return np.asarray(kernel.value(torch.from_numpy(np.ascontiguousarray(s, dtype=np.float64))).numpy())


@dataclass(frozen=True)
class ClusterGeometry:
    """What the conditions and the sample sizes need to know of a partition; b clusters, in scaled units.

    Attributes
    ----------
    sizes : ndarray of int, (b,)
    centres : ndarray, (b, d)
    radii : ndarray, (b,)
        Largest distance of a row to its centre.
    variances : ndarray, (b, d)
        Of each scaled column within each cluster, as ``sum a^2 / (size - 1)``; zero for single rows.
    distance_sums, square_sums : ndarray, (b,)
        Sums of s and of s^2 over ordered pairs (S11).
    norms, kernel_squares : ndarray, (b,)
        Upper bounds of ``|K_cc|`` and of ``sum k^2`` over all ordered pairs, the diagonal included.
    bin_start, bin_width : ndarray, (b, b)
        Bins of the distances from rows of cluster c (first index) to the centre of cluster e.
    bin_counts : ndarray, (b, b, bins)
    shell_counts : ndarray, (b, shells)
        Rows by distance to their own centre, in equal steps up to the radius.
    """

    sizes: AnyArray
    centres: Array
    radii: Array
    variances: Array
    distance_sums: Array
    square_sums: Array
    norms: Array
    kernel_squares: Array
    bin_start: Array
    bin_width: Array
    bin_counts: Array
    shell_counts: Array

    @property
    def pairs(self) -> Array:
        """Ordered pairs of different rows in each cluster."""
        sizes = self.sizes.astype(np.float64)
        return np.asarray(sizes * (sizes - 1.0))

    def centre_distances(self) -> Array:
        """Distances of the centres, (b, b)."""
        s = self.centres - self.centres.mean(0)
        squares = (s * s).sum(1)
        return np.asarray(np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2.0 * s @ s.T, 0.0)))

    def off_cluster_norm(self, kernel: Kernel, scale: float = 1.0) -> float:
        """An upper bound of ``tau_out`` (S12) when all length-scales are multiplied by ``scale``."""
        b, bins = len(self.sizes), self.bin_counts.shape[2]
        if b == 1:
            return 0.0
        shells = self.shell_counts.shape[1]
        outer = self.radii[:, None] * (np.arange(1, shells + 1) / shells)  # (b, shells), upper edges
        squares = np.zeros((b, b))
        for c in range(b):
            inner = self.bin_start[c][:, None] + self.bin_width[c][:, None] * np.arange(bins)  # (b, bins), lower edges
            gap = np.maximum(inner[:, :, None] - outer[:, None, :], 0.0) / scale
            squares[c] = np.einsum(
                "ei,eij,ej->e", self.bin_counts[c], kernel_values(kernel, gap * gap) ** 2, self.shell_counts
            )
        np.fill_diagonal(squares, 0.0)
        found = float(np.linalg.eigvalsh(np.sqrt(np.minimum(squares, squares.T)))[-1])
        return found * SLACK + 1e-160 * float(self.sizes.sum())  # for entries whose squares underflow


def cluster_geometry(
    x: AnyArray, labels: AnyArray, lengthscale: Array, kernel: Kernel, *, chunk_size: int | None = None
) -> ClusterGeometry:
    """Geometry of the clusters ``labels`` (n,), integers 0 to b - 1, all in use; x is (n, d)."""
    d = x.shape[1]
    sizes = np.bincount(labels)
    b = len(sizes)
    chunk = chunk_size or max(256, _CHUNK_BYTES // (8 * (d + b)))
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(sizes)
    members = [order[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    clusters = [_one_cluster(x, rows, lengthscale, kernel, chunk) for rows in members]
    centres = np.stack([cluster.centre for cluster in clusters])
    radii = np.array([cluster.radius for cluster in clusters])
    bins, shells = (64, 16) if b * b * 1024 <= _BIN_PAIRS else (max(2, _BIN_PAIRS // (b * b * 4)), 4)
    start, width, counts, own = _count_distances(x, members, centres, radii, lengthscale, (bins, shells), chunk)
    return ClusterGeometry(
        sizes=sizes,
        centres=centres,
        radii=radii,
        variances=np.stack([cluster.variance for cluster in clusters]),
        distance_sums=np.array([cluster.distance_sum for cluster in clusters]),
        square_sums=np.array([cluster.square_sum for cluster in clusters]),
        norms=np.array([cluster.norm for cluster in clusters]),
        kernel_squares=np.array([cluster.kernel_squares for cluster in clusters]),
        bin_start=start,
        bin_width=width,
        bin_counts=counts,
        shell_counts=own,
    )


@dataclass(frozen=True)
class _Cluster:
    centre: Array
    radius: float
    variance: Array
    distance_sum: float
    square_sum: float
    norm: float
    kernel_squares: float


def _chunks(x: AnyArray, rows: AnyArray, lengthscale: Array, centre: Array | float, chunk: int) -> Iterator[Array]:
    for begin in range(0, len(rows), chunk):
        yield x[rows[begin : begin + chunk]].astype(np.float64) / lengthscale - centre


def _one_cluster(x: AnyArray, rows: AnyArray, lengthscale: Array, kernel: Kernel, chunk: int) -> _Cluster:
    size, d = len(rows), x.shape[1]
    # About the first row, so that a cluster far from the origin loses no digits in its mean.
    first = x[rows[0]].astype(np.float64) / lengthscale
    centre = first + sum(a.sum(0) for a in _chunks(x, rows, lengthscale, first, chunk)) / size

    total, weighted = np.zeros(d), np.zeros(d)
    squares, fourths, radius = 0.0, 0.0, 0.0
    column_squares, second = np.zeros(d), np.zeros((d, d))
    for a in _chunks(x, rows, lengthscale, centre, chunk):
        q = (a * a).sum(1)
        total += a.sum(0)
        weighted += q @ a
        squares += float(q.sum())
        fourths += float((q * q).sum())
        radius = max(radius, float(q.max()))
        column_squares += (a * a).sum(0)
        second += a.T @ a
    # The identities S11 for rows whose mean is zero only up to rounding.
    distance_sum = 2.0 * size * squares - 2.0 * float(total @ total)
    square_sum = 2.0 * size * fourths + 2.0 * squares**2 + 4.0 * float((second * second).sum())
    square_sum -= 8.0 * float(weighted @ total)

    norm, kernel_squares = float(size), float(size) ** 2  # all kernel values at most 1
    if size > 1 and radius > 0.0:
        axes = _leading_axes(second)
        projected = (a @ axes for a in _chunks(x, rows, lengthscale, centre, chunk))
        found = cell_bounds(np.concatenate(list(projected)), kernel)
        norm, kernel_squares = min(norm, found.norm), min(kernel_squares, found.squares)
    return _Cluster(
        centre=centre,
        radius=float(np.sqrt(radius)) * SLACK,
        variance=column_squares / max(size - 1, 1),
        distance_sum=max(distance_sum, 0.0) * SLACK,
        square_sum=max(square_sum, 0.0) * SLACK,
        norm=norm * SLACK,
        kernel_squares=kernel_squares * SLACK,
    )


def _leading_axes(second: Array) -> Array:
    """About the three leading principal axes, (d, 3); any orthonormal axes keep the bounds valid."""
    axes = np.eye(len(second))[:, np.argsort(-np.diag(second), kind="stable")[:3]]
    for _ in range(8):
        axes = np.linalg.qr(second @ axes + 1e-12 * np.trace(second) * axes)[0]
    return axes


def _count_distances(
    x: AnyArray,
    members: list[AnyArray],
    centres: Array,
    radii: Array,
    lengthscale: Array,
    resolution: tuple[int, int],
    chunk: int,
) -> tuple[Array, Array, Array, Array]:
    """The counts of S12, in one pass: rows of each cluster by their distance to every centre."""
    bins, shells = resolution
    b, d = centres.shape
    counts, own = np.zeros((b, b, bins)), np.zeros((b, shells))
    start, width = np.zeros((b, b)), np.zeros((b, b))
    tiny = np.finfo(float).tiny
    for c, rows in enumerate(members):
        shift = centres - centres[c]
        apart = np.sqrt((shift * shift).sum(1))
        start[c] = np.maximum(apart - radii[c], 0.0) * (2.0 - SLACK)
        width[c] = (apart + radii[c] - start[c]) / bins
        # The product form of squared distances is off by at most this; lower distances are safe.
        rounding = 4.0 * d * np.finfo(float).eps * (apart + radii[c]) ** 2
        for a in _chunks(x, rows, lengthscale, centres[c], chunk):
            q = (a * a).sum(1)
            far = q[:, None] - 2.0 * a @ shift.T + (apart**2 - rounding)[None, :]
            place = (np.sqrt(np.maximum(far, 0.0)) - start[c]) / np.maximum(width[c], tiny)
            flat = np.clip(place.astype(np.int64), 0, bins - 1) + bins * np.arange(b)
            counts[c] += np.bincount(flat.ravel(), minlength=b * bins).reshape(b, bins)
            shell = np.ceil(np.sqrt(q) * SLACK / max(radii[c], tiny) * shells).astype(np.int64) - 1
            own[c] += np.bincount(np.clip(shell, 0, shells - 1), minlength=shells)
    return start, width, counts, own
