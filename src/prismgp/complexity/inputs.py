"""Inputs of the formulas: checked arguments, a partition, and upper bounds of sums and norms.

The bounds are computed from sums over rows in linear time, exactly from all pairs, or follow from the conditions.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from prismgp._system import Streams
from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_inputs
from prismgp.complexity.formulas import CLIP, THEORY_CLIP, condition_caps, condition_sizes
from prismgp.complexity.geometry import SLACK, ClusterGeometry, cluster_geometry, kernel_values
from prismgp.core.kernels import Kernel
from prismgp.exceptions import DataError

_ROUNDING = 1e-15  # of a difference of kernel values
_SAMPLE = 4096  # rows on which partitions are sought and compared
_CHUNK = 65536  # rows whose cluster is found at a time
_FARTHEST = 1e30  # eighth powers of scaled inputs, summed over pairs, stay finite


def check_data(X: Any) -> AnyArray:
    """X as a finite float array (n, d)."""
    return check_inputs(BaseEstimator(), X, reset=True)


def check_lengthscale(name: str, value: Any, x: AnyArray) -> Array:
    """Length-scales of the d inputs, in the units of X: one number, or d."""
    try:
        scales = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}={value!r} must be a number or one number for each input") from error
    d = x.shape[1]
    if scales.ndim > 1 or (scales.ndim == 1 and scales.shape != (d,)):
        raise DataError(f"{name} has shape {scales.shape}; X has {d} inputs: pass one number or {d}")
    if not np.all(np.isfinite(scales) & (scales > 0)):
        raise DataError(f"{name} must be finite and above 0; its smallest value is {float(np.min(scales)):g}")
    scales = np.broadcast_to(scales, (d,)).copy()
    farthest = float(np.abs(x).max(axis=0).astype(np.float64) @ np.ones(d) / float(scales.min()))
    if farthest > _FARTHEST:
        raise DataError(f"inputs reach {farthest:.3g} times {name}; rescale X or pass a larger {name}")
    return scales


@dataclass(frozen=True)
class BoundInputs:
    """Upper bounds, all of them, of what the formulas need; b clusters."""

    source: str  # "exact", "linear" or "assumed"
    sizes: AnyArray  # (b,)
    tau_out: float  # norm of the off-cluster part of the kernel matrix
    variance: float  # V
    square_sum: float  # sum s^2
    fourth_sum: float  # sum s^4
    clipped: float  # S^2 with either clip
    theory_clipped: float
    largest_square: float  # B^2
    norms: Array  # of the diagonal blocks, (b,)
    deficits: Array  # n_c^2 - |K_cc|_F^2, the trace of n_c K_cc - K_cc^2, which is above the variance of one term, (b,)
    matrix_variance: float  # norm and trace of a matrix above that variance
    matrix_trace: float
    diameter: float  # largest scaled distance within a cluster
    effective_dimension: float | None = None  # tr(K (K + noise I)^-1) where it was asked for

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


def partition_rows(
    x: AnyArray,
    original: Any,
    labels: Any,
    lengthscale: Array,
    kernel: Kernel,
    bound: float,
    n_clusters: int | None,
    random_state: RandomState,
) -> AnyArray:
    """Cluster indices 0 to b - 1: from labels (n,), from a fitted clusterer with ``predict``, or by k-means.

    ``original`` is X as it was passed, for the clusterer.
    """
    if labels is None:
        return _find_partition(x, lengthscale, kernel, bound, n_clusters, random_state)
    if hasattr(labels, "predict"):
        labels = labels.predict(original)
    found = np.asarray(labels)
    if found.shape != (len(x),):
        raise DataError(f"labels has shape {found.shape}; X has {len(x)} rows: pass one label for each row")
    if found.dtype.kind == "f" and not np.all(np.isfinite(found)):
        raise DataError("labels holds NaN or infinity; give every row a label")
    return np.asarray(np.unique(found, return_inverse=True)[1], dtype=np.int64)


def _find_partition(
    x: AnyArray, lengthscale: Array, kernel: Kernel, bound: float, n_clusters: int | None, random_state: RandomState
) -> AnyArray:
    """Clusters by k-means in the kernel's metric: ``n_clusters``, or as many as promise the fewest frequencies.

    Numbers of clusters up to ``2 log2 n`` are compared on a random sample of the rows, by ``V / (bound -
    tau_out)^2``; where no partition leaves room, by ``tau_out``. One cluster, which masks nothing, takes part.
    """
    from sklearn.cluster import KMeans  # here, as it is heavy to import and needed only without labels

    n = len(x)
    streams = Streams(random_state)
    rng = streams.generator("partition")
    rows = np.sort(rng.choice(n, _SAMPLE, replace=False)) if n > _SAMPLE else np.arange(n)
    sample = x[rows].astype(np.float64) / lengthscale
    distinct, growth = len(np.unique(sample, axis=0)), n / len(rows)
    if n_clusters is not None:
        counts = [min(n_clusters, distinct)]
    else:
        most = min(distinct, max(2, math.ceil(2.0 * math.log2(max(n, 2)))))
        counts = sorted({1, *(k for k in (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48) if k < most), most})

    def score(model: KMeans) -> tuple[bool, float]:
        labels = np.unique(model.labels_, return_inverse=True)[1]
        found = linear_inputs(cluster_geometry(sample, labels, np.ones(x.shape[1]), kernel), kernel)
        room = bound - found.tau_out * growth
        return room <= 0, found.variance * (growth / room) ** 2 if room > 0 else found.tau_out

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [KMeans(count, n_init=4, random_state=streams.seed).fit(sample) for count in counts]
    best = models[0] if len(models) == 1 else min(models, key=score)
    parts = [best.predict(x[i : i + _CHUNK].astype(np.float64) / lengthscale) for i in range(0, n, _CHUNK)]
    return np.asarray(np.unique(np.concatenate(parts), return_inverse=True)[1], dtype=np.int64)
