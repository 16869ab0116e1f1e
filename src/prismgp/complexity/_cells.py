"""Upper bounds of a kernel matrix's norm and of its squares, by counting rows in cells.

Rows are projected on a few orthonormal axes, which only brings them closer, and counted in the cells of a grid. Two
rows in cells i and j are at least ``g_ij`` apart, the gap between the cells, so entry by entry the kernel matrix is
below one that is constant on pairs of cells. For matrices without negative entries the norm grows with the entries,
and with m_i rows in cell i

- (S13) ``|K| <= max_i (M x)_i / x_i`` for any positive x, ``M_ij = sqrt(m_i m_j) k(g_ij^2)`` (Collatz and Wielandt).

A few power iterations make x close to the best one. The cost is linear in the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from prismgp._types import Array
from prismgp.core.kernels import Kernel

__all__ = ["CellBounds", "cell_bounds"]

_CELLS = 1024  # of a grid, over all its axes


@dataclass(frozen=True)
class CellBounds:
    """Upper bounds of ``|K|`` and of ``sum_uv k_uv^2``, the diagonal included."""

    norm: float
    squares: float


def cell_bounds(projected: Array, kernel: Kernel) -> CellBounds:
    """The best bounds over grids on the first one, two, ... columns of ``projected`` (n, q)."""
    found = [_grid(projected[:, :count], kernel) for count in range(1, projected.shape[1] + 1)]
    return CellBounds(min(f.norm for f in found), min(f.squares for f in found))


def _grid(projected: Array, kernel: Kernel) -> CellBounds:
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
    values = kernel.value(torch.from_numpy((gap * gap).sum(2) * (1.0 - 1e-9))).numpy()
    root = np.sqrt(counts.astype(np.float64))
    matrix = root[:, None] * values * root[None, :]
    x = root
    best = np.inf
    for _ in range(30):
        product = matrix @ x
        best = min(best, float((product / x).max()))
        x = product / product.max()
        # Entries that vanish would need a ratio of two roundings; any positive x is allowed.
        x = np.maximum(x, 1e-12)
    return CellBounds(best, float(counts @ values**2 @ counts))
