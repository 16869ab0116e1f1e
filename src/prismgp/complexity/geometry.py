"""The geometry of a partition in the kernel's metric, in time linear in the rows and memory of one chunk.

Per cluster, of the rows ``a`` scaled by the length-scales and centred: the size, the radius, and sums over all
ordered pairs of the scaled squared distance s, by identities instead of pairs,

- (S11) ``sum s = 2 n sum |a|^2``, ``sum s^2 = 2 n sum |a|^4 + 2 (sum |a|^2)^2 + 4 |A'A|_F^2``.

Between clusters, the norm of the kernel's off-cluster part, from above. With ``r_u`` the distance of row u of
cluster c to the centre of cluster e, and rows v of e within ``r_v`` of that centre, the kernel is at most
``k((r_u - r_v)_+^2)``. Both are counted in bins, so

- (S12) ``tau_out <= |N|``, ``N_ce^2 = min(F_ce, F_ec)``, ``F_ce = sum_u sum_v k((r_u - r_v)_+^2)^2``

for the b x b matrix N of zero diagonal. Up to the bins it is never above ``sqrt(n_c n_e) k((D_ce - R_c - R_e)_+^2)``
of centre distances and radii, and unlike that it is not spoilt by one far row.

The kernel's own norm and squares, from above, by counting rows in cells. Rows are projected on a few orthonormal axes,
which only brings them closer, and counted in the cells of a grid. Two rows in cells i and j are at least ``g_ij``
apart, the gap between the cells, so entry by entry the kernel matrix is below one that is constant on pairs of cells.
For matrices without negative entries the norm grows with the entries, and with m_i rows in cell i

- (S13) ``|K| <= max_i (M x)_i / x_i`` for any positive x, ``M_ij = sqrt(m_i m_j) k(g_ij^2)`` (Collatz and Wielandt).

A few power iterations make x close to the best one.

Sums are accurate to about 1e-12; ``SLACK`` covers them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import AnyArray, Array
from prismgp.core.kernels import Kernel

SLACK = 1.0 + 1e-9  # relative, on every quantity that must be an upper bound
_BIN_PAIRS = 2**24  # most pairs of bins in one evaluation of S12
_CHUNK_BYTES = 2**25
_CELLS = 1024  # of a grid, over all its axes


def kernel_values(kernel: Kernel, s: Array) -> Array:
    """k(s), elementwise, for arrays."""
    return np.asarray(kernel.value(torch.from_numpy(np.ascontiguousarray(s, dtype=np.float64))).numpy())


@dataclass(frozen=True)
class ClusterGeometry:
    """The quantities of a partition that conditions and sample sizes use; b clusters, in scaled units."""

    sizes: AnyArray  # (b,)
    centres: Array  # (b, d)
    radii: Array  # largest distance of a row to its centre, (b,)
    variances: Array  # of each column within each cluster, ``sum a^2 / (size - 1)``; zero for single rows, (b, d)
    distance_sums: Array  # of s over ordered pairs (S11), (b,)
    square_sums: Array  # of s^2
    norms: Array  # |K_cc|, from above, (b,)
    kernel_squares: Array  # sum k^2 over all ordered pairs, the diagonal included, from above, (b,)
    bin_start: Array  # bins of the distances from rows of cluster c (first index) to the centre of e, (b, b)
    bin_width: Array
    bin_counts: Array  # (b, b, bins)
    shell_counts: Array  # rows by distance to their own centre, in equal steps up to the radius, (b, shells)

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
    members = np.split(order, np.cumsum(sizes)[:-1])
    # One row for each cluster, and a column for each quantity.
    columns = zip(*(_measure_cluster(x, rows, lengthscale, kernel, chunk) for rows in members), strict=True)
    centres, radii, *sums = map(np.array, columns)
    resolution = (64, 16) if b * b * 1024 <= _BIN_PAIRS else (max(2, _BIN_PAIRS // (b * b * 4)), 4)
    counts = _count_distances(x, members, centres, radii, lengthscale, resolution, chunk)
    fields: list[AnyArray] = [sizes, centres, radii, *sums, *counts]
    return ClusterGeometry(*fields)


def _chunks(x: AnyArray, rows: AnyArray, lengthscale: Array, centre: Array | float, chunk: int) -> Iterator[Array]:
    for begin in range(0, len(rows), chunk):
        yield x[rows[begin : begin + chunk]].astype(np.float64) / lengthscale - centre


def _measure_cluster(
    x: AnyArray, rows: AnyArray, lengthscale: Array, kernel: Kernel, chunk: int
) -> tuple[Array, float, Array, float, float, float, float]:
    """Centre, radius, variances, sums of s and s^2, and bounds of the kernel's norm and squares, in this order."""
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
        # About the three leading principal axes, (d, 3); any orthonormal axes keep the bounds valid.
        axes = np.eye(d)[:, np.argsort(-np.diag(second), kind="stable")[:3]]
        for _ in range(8):
            axes = np.linalg.qr(second @ axes + 1e-12 * np.trace(second) * axes)[0]
        projected = (a @ axes for a in _chunks(x, rows, lengthscale, centre, chunk))
        cells_norm, cells_squares = cell_bounds(np.concatenate(list(projected)), kernel)
        norm, kernel_squares = min(norm, cells_norm), min(kernel_squares, cells_squares)
    return (
        centre,
        float(np.sqrt(radius)) * SLACK,
        column_squares / max(size - 1, 1),
        max(distance_sum, 0.0) * SLACK,
        max(square_sum, 0.0) * SLACK,
        norm * SLACK,
        kernel_squares * SLACK,
    )


def cell_bounds(projected: Array, kernel: Kernel) -> tuple[float, float]:
    """Upper bounds of ``|K|`` and of ``sum_uv k_uv^2``, the diagonal included.

    The best over grids on the first one, two, ... columns of ``projected`` (n, q).
    """
    norms, squares = zip(*(_grid(projected[:, :q], kernel) for q in range(1, projected.shape[1] + 1)), strict=True)
    return min(norms), min(squares)


def _grid(projected: Array, kernel: Kernel) -> tuple[float, float]:
    q = projected.shape[1]
    per_axis = int(_CELLS ** (1.0 / q) + 1e-9)
    low = projected.min(0)
    width = (projected.max(0) - low) / per_axis
    place = ((projected - low) / np.maximum(width, np.finfo(float).tiny)).astype(np.int64)
    place = np.clip(place, 0, per_axis - 1)
    _, cell, counts = np.unique(place @ per_axis ** np.arange(q), return_inverse=True, return_counts=True)

    # The gap between the rows' bounding boxes, which is at least that between the cells.
    shape = (len(counts), q)
    lower, upper = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(lower, cell, projected)
    np.maximum.at(upper, cell, projected)
    gap = np.maximum(lower[:, None, :] - upper[None, :, :], 0.0)
    gap += gap.transpose(1, 0, 2)  # at most one of the two is positive
    values = kernel_values(kernel, (gap * gap).sum(2) * (1.0 - 1e-9))
    root = np.sqrt(counts.astype(np.float64))
    matrix = root[:, None] * values * root[None, :]
    x, best = root, np.inf
    for _ in range(30):
        product = matrix @ x
        best = min(best, float((product / x).max()))
        # Entries that vanish would need a ratio of two roundings; any positive x is allowed.
        x = np.maximum(product / product.max(), 1e-12)
    return best, float(counts @ values**2 @ counts)


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
