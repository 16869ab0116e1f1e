"""What the formulas for sample sizes take from the data: computed in linear time, exactly, or assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.distance import cdist

from prismgp._types import AnyArray, Array
from prismgp.complexity._geometry import SLACK, ClusterGeometry, kernel_values
from prismgp.complexity._samples import CLIP, THEORY_CLIP, condition_caps, condition_sizes
from prismgp.core.kernels import Kernel

_ROUNDING = 1e-15  # of a difference of kernel values

__all__ = ["BoundInputs", "assumed_inputs", "box_inputs", "exact_inputs", "linear_inputs"]


@dataclass(frozen=True)
class BoundInputs:
    """Upper bounds, all of them, of what the formulas need; b clusters.

    Attributes
    ----------
    source : {"exact", "linear", "assumed"}
    sizes : ndarray of int, (b,)
    tau_out : float
        Norm of the off-cluster part of the kernel matrix.
    variance, square_sum, fourth_sum, clipped, theory_clipped : float
        V, ``sum s^2``, ``sum s^4`` and ``S^2`` with either clip.
    largest_square : float
        ``B^2``.
    norms : ndarray, (b,)
        Of the diagonal blocks.
    deficits : ndarray, (b,)
        ``n_c^2 - |K_cc|_F^2``, the trace of ``n_c K_cc - K_cc^2``, which is above the variance of one term.
    matrix_variance, matrix_trace : float
        Norm and trace of a matrix above that variance.
    diameter : float
        Largest scaled distance within a cluster.
    effective_dimension : float or None
        ``tr(K (K + noise I)^-1)`` where it was asked for.
    """

    source: str
    sizes: AnyArray
    tau_out: float
    variance: float
    square_sum: float
    fourth_sum: float
    clipped: float
    theory_clipped: float
    largest_square: float
    norms: Array
    deficits: Array
    matrix_variance: float
    matrix_trace: float
    diameter: float
    effective_dimension: float | None = None

    @property
    def pairs(self) -> int:
        """Unordered in-cluster pairs."""
        return sum(int(size) * (int(size) - 1) // 2 for size in self.sizes)


def _matrix_terms(sizes: AnyArray, norms: Array, deficits: Array) -> tuple[float, float]:
    """Norm and trace of a matrix above ``E (C_t - K)^2`` (S8), from upper bounds of norms and deficits.

    ``(C_t)_cc^2 <= n_c (C_t)_cc``, so ``n_c K_cc - K_cc^2`` is above the variance. Its norm is at most ``x (n_c -
    x)`` for some eigenvalue x up to ``|K_cc|``, and at most its trace. Where the norm is only bounded by v, the
    matrix is raised along its leading eigenvector until its norm is v; that adds at most v to the trace.
    """
    n = sizes.astype(np.float64)
    x = np.minimum(norms, 0.5 * n)
    v = float(np.minimum(x * (n - x) * SLACK, deficits).max())
    return v, float(deficits.sum()) + v


def linear_inputs(geometry: ClusterGeometry, kernel: Kernel) -> BoundInputs:
    """Inputs from sums over rows; every one a true upper bound.

    For the rbf kernel ``(1 - exp(-s))^2`` is a concave function of ``s^2``, so by Jensen's inequality (S14) ``V_c <=
    N_c (1 - exp(-m))^2 / 2``, with m the root mean square of s over the N_c pairs. For any of our kernels, convex and
    decreasing in s, the variance of a cosine is at most ``g(w) = w (3 - 2 w) / 2`` (from w = 3/4 on, 9/16) with ``w =
    1 - k(s)``, concave in s, so ``V_c <= N_c g(1 - k(mean s))``; and ``sum k^2 >= n_c^2 k(mean s)^2``.
    """
    n = geometry.sizes.astype(np.float64)
    pairs = np.maximum(geometry.pairs, 1.0)
    w = np.minimum(1.0 - kernel_values(kernel, geometry.distance_sums / pairs) + _ROUNDING, 0.75)
    variance = geometry.pairs * 0.5 * w * (3.0 - 2.0 * w)
    if kernel.name == "rbf":
        root_mean = np.sqrt(geometry.square_sums / pairs)
        variance = np.minimum(variance, geometry.pairs * 0.5 * np.expm1(-root_mean) ** 2)
    deficits = n**2 * (1.0 - kernel_values(kernel, geometry.distance_sums / n**2) ** 2 + _ROUNDING)
    deficits = np.minimum(deficits * SLACK, n**2 - n)  # the diagonal is one
    v, trace = _matrix_terms(geometry.sizes, geometry.norms, deficits)
    return BoundInputs(
        source="linear",
        sizes=geometry.sizes,
        tau_out=geometry.off_cluster_norm(kernel),
        variance=float(variance.sum()) * SLACK,
        square_sum=float(geometry.square_sums.sum()),
        fourth_sum=float((geometry.square_sums * (2.0 * geometry.radii) ** 4).sum()),
        clipped=float(np.minimum(geometry.square_sums, geometry.pairs * CLIP**2).sum()),
        theory_clipped=float(np.minimum(geometry.square_sums, geometry.pairs * THEORY_CLIP**2).sum()),
        # C_t and K are positive semi-definite, so |C_t - K|_F^2 <= |C_t|_F^2 + |K|_F^2; and |cos - k| <= 2.
        largest_square=float(np.minimum(n**2 + geometry.kernel_squares, 4.0 * geometry.pairs).sum()),
        norms=geometry.norms,
        deficits=deficits,
        matrix_variance=v,
        matrix_trace=trace,
        diameter=2.0 * float(geometry.radii.max()),
    )


def exact_inputs(
    x: AnyArray, labels: AnyArray, lengthscale: Array, kernel: Kernel, *, noise_variance: float | None = None
) -> BoundInputs:
    """Inputs from all pairs of rows: memory n^2, time n^3."""
    z = x.astype(np.float64) / lengthscale
    s = cdist(z, z, "sqeuclidean")  # by differences: the product form would lose digits of close rows far from the mean
    k = kernel_values(kernel, s)
    sizes = np.bincount(labels)
    inside = labels[:, None] == labels[None, :]
    off = np.where(inside, 0.0, k)
    tau_out = float(np.abs(np.linalg.eigvalsh(off)[[0, -1]]).max()) if len(sizes) > 1 else 0.0

    norms, deficits, largest_v = [], [], 0.0
    sums = np.zeros(6)
    for c, size in enumerate(sizes):
        rows = np.flatnonzero(labels == c)
        block, distance = k[np.ix_(rows, rows)], s[np.ix_(rows, rows)]
        eigenvalues = np.linalg.eigvalsh(block)
        norms.append(min(float(eigenvalues[-1]), float(size)))
        squares = float((block * block).sum())
        deficits.append(float(((1.0 - block) * (1.0 + block)).sum()) + size**2 * _ROUNDING)
        # The eigenvalues are off by about n eps, the product by n times that.
        v = float((eigenvalues * (size - eigenvalues)).max()) + size**2 * 100.0 * _ROUNDING
        largest_v = max(largest_v, min(v, deficits[-1]))
        if kernel.name == "rbf":
            cosine_variance = 0.5 * np.expm1(-distance) ** 2
        else:
            cosine_variance = np.maximum(0.5 * (1.0 + kernel_values(kernel, 4.0 * distance)) - block * block, 0.0)
        sums += (
            float(cosine_variance.sum()),
            float((distance * distance).sum()),
            float((np.minimum(distance, CLIP) ** 2).sum()),
            float((np.minimum(distance, THEORY_CLIP) ** 2).sum()),
            min(float(size) ** 2 + squares, float(((1.0 + block) ** 2).sum()) - 4.0 * size),
            float((distance**4).sum()),
        )
    dimension = None
    if noise_variance is not None:
        values = np.maximum(np.linalg.eigvalsh(k), 0.0)
        dimension = float((values / (values + noise_variance)).sum()) * SLACK
    return BoundInputs(
        source="exact",
        sizes=sizes,
        tau_out=tau_out * SLACK,
        variance=float(sums[0]) * SLACK,
        square_sum=float(sums[1]) * SLACK,
        fourth_sum=float(sums[5]) * SLACK,
        clipped=float(sums[2]) * SLACK,
        theory_clipped=float(sums[3]) * SLACK,
        largest_square=float(sums[4]) * SLACK,
        norms=np.array(norms) * SLACK,
        deficits=np.array(deficits) * SLACK,
        matrix_variance=largest_v * SLACK,
        matrix_trace=float(np.sum(deficits)) * SLACK,
        diameter=float(np.sqrt(max(s[inside].max(), 0.0))) * SLACK,
        effective_dimension=dimension,
    )


def assumed_inputs(n_clusters: int, bound: float) -> BoundInputs:
    """Inputs under the corrected Conditions 1 to 3, without data: the caps (S10), and ``tau_out`` half the bound."""
    sizes = condition_sizes(min(n_clusters, 200))  # more clusters would be empty
    i = np.arange(1, len(sizes) + 1)
    variance, root = condition_caps()
    band = np.where(i == 1, 0.0, -np.expm1(0.5 * np.log1p(-(2.0 ** (1.0 - np.maximum(i, 2))))))  # 1 - k^2 at most
    deficits = sizes * (sizes - 1.0) * band
    v, trace = _matrix_terms(sizes, sizes, deficits)
    return BoundInputs(
        source="assumed",
        sizes=sizes,
        tau_out=0.5 * bound,
        variance=variance,
        square_sum=root**2,
        fourth_sum=float("inf"),
        clipped=root**2,
        theory_clipped=root**2,
        largest_square=float((2.0 * sizes**2).sum()),
        norms=sizes,
        deficits=deficits,
        matrix_variance=v,
        matrix_trace=trace,
        diameter=float("inf"),
    )


def box_inputs(low: BoundInputs, high: BoundInputs) -> BoundInputs:
    """Inputs for any one set of length-scales between two, from the inputs at both ends.

    Kernel values grow with every length-scale. So the sums of distances, V and the deficits are largest at the lower
    end; ``tau_out``, the norms and ``B`` at the upper end.
    """
    v, trace = _matrix_terms(low.sizes, high.norms, low.deficits)
    return replace(
        low,
        tau_out=high.tau_out,
        largest_square=high.largest_square,
        norms=high.norms,
        matrix_variance=v,
        matrix_trace=trace,
        effective_dimension=None,
    )
