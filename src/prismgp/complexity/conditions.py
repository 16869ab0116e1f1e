"""Conditions 1 to 3 of the paper, measured on data: as printed, and as corrected.

With n rows, b clusters numbered by size, ``2^-a = 1 - (bound / n)^4`` and U(i), L(i) of Lemma 3
(``formulas.band_limits``):

========================= ================================== =============================================
condition                 as printed                         as corrected
========================= ================================== =============================================
1, number of clusters     ``b = O(log n)``: ``b <= 2 log2 n`` not needed
1, width of cluster i     ``gamma_i^2 = (U + L) / (4 d)``,   root mean square of s over its pairs
                          covariance ``gamma^2 Theta^-1``    at most ``U(i) / 2``
2, size of cluster i      ``2^(i/2)``                        at most that
3, separation             ``D^2 > 6 log(n / bound)``         ``D - R_c - R_e >= sqrt(2 log(2 n / bound))``
========================= ================================== =============================================

What the corrected theorem uses is less than the corrected conditions, and decides ``holds``:

- (S17) ``V <= .3087`` and ``S_F <= .8846`` (the caps S10), and ``tau_out <= bound / 2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_number
from prismgp.complexity.formulas import band_limits, condition_caps
from prismgp.complexity.geometry import ClusterGeometry, cluster_geometry
from prismgp.complexity.inputs import check_data, check_lengthscale, partition_rows
from prismgp.complexity.records import ClusterRow, ConditionCheck, ConditionReport
from prismgp.core.kernels import Kernel, get_kernel
from prismgp.exceptions import DataError

_HALVINGS = 40


def check_conditions(
    X: Any,
    *,
    lengthscale: Any,
    bound: float,
    labels: Any = None,
    n_clusters: int | None = None,
    random_state: RandomState = 0,
) -> ConditionReport:
    """How far Conditions 1 to 3 of the paper hold for data, a partition and length-scales.

    The conditions ask for few, compact and well separated clusters of growing sizes; under them few frequencies
    suffice. They are measured as printed and as corrected, for the rbf kernel, with a margin each: at least 1 where
    the condition holds.

    Parameters
    ----------
    X : array-like, (n, d)
        Inputs, or their latent image.
    lengthscale : float or array-like, (d,)
        In the units of X.
    bound : float
        Target for ``|K - K'|``, below n; in units of the signal variance.
    labels : array-like, (n,), or a fitted clusterer, optional
        The partition; every distinct label is a cluster. None: k-means in the kernel's metric. A clusterer is asked
        to ``predict`` the rows of X.
    n_clusters : int, optional
        Clusters to look for when there are no labels; None: up to ``2 log2 n``, the number that promises fewest
        frequencies.
    random_state : int, RandomState or None, default 0
        For the partition.

    Returns
    -------
    ConditionReport

    Raises
    ------
    DataError
        An argument is of the wrong shape or out of range.

    Notes
    -----
    Time is linear in n, memory that of one chunk of rows. The corrected conditions are sufficient, not necessary:
    :func:`prismgp.sample_size` gives a number for any partition that leaves room.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import check_conditions
    >>> rng = np.random.default_rng(0)
    >>> sizes = [1, 2, 3, 4, 6, 8]
    >>> labels = np.repeat(np.arange(6), sizes)
    >>> X = 9.0 * np.eye(6)[labels] + 0.02 * rng.standard_normal((24, 6))
    >>> report = check_conditions(X, lengthscale=1.0, bound=1.0, labels=labels)
    >>> report.holds, report.holds_printed
    (True, True)
    >>> check_conditions(X, lengthscale=5.0, bound=1.0, labels=labels).holds
    False
    """
    x = check_data(X)
    n, d = x.shape
    check_number("check_conditions", "bound", bound, low=0, strict=True)
    if bound >= n:
        raise DataError(f"bound={bound:g} is not below n={n}; |K - K'| never exceeds n, so pass a smaller bound")
    check_number("check_conditions", "n_clusters", n_clusters, low=1, integer=True, optional=True)
    scales, bound, kernel = check_lengthscale("lengthscale", lengthscale, x), float(bound), get_kernel("rbf")
    parts = partition_rows(x, X, labels, scales, kernel, bound, n_clusters, random_state)
    geometry = cluster_geometry(x, parts, scales, kernel)
    clusters = _measure(geometry, bound, scales)
    printed, corrected, enough = _checks(clusters, geometry, kernel, bound)
    low, high = _corrected_range(geometry, kernel, bound)
    return ConditionReport(
        n=n,
        d=d,
        bound=bound,
        n_clusters=len(clusters),
        partition_found=labels is None,
        lengthscale=scales,
        printed=printed,
        corrected=corrected,
        sufficient=enough,
        clusters=clusters,
        box=None if low > high else (low * scales, high * scales),
        box_factors=None if low > high else (low, high),
        # Printed widths grow with the length-scales, because the printed covariance has Theta inverted: there is no
        # lower end.
        printed_factor=min(check.margin for check in printed if check.name in ("1 widths", "3 separation")),
        labels=parts,
    )


def _measure(geometry: ClusterGeometry, bound: float, scales: Array) -> tuple[ClusterRow, ...]:
    """What the conditions compare, by cluster, in the order of their sizes."""
    order = np.argsort(geometry.sizes, kind="stable")
    index = np.arange(1.0, len(order) + 1.0)
    upper, lower = band_limits(int(geometry.sizes.sum()), bound, index)
    distances, radii = geometry.centre_distances()[np.ix_(order, order)], geometry.radii[order]
    np.fill_diagonal(distances, np.inf)
    columns = (
        2.0 ** (index / 2.0),
        # Printed: covariance gamma^2 Theta^-1, so gamma^2 is the variance of scaled x times Theta^2.
        np.sqrt((geometry.variances[order] * scales**4).mean(1)),
        np.sqrt((upper + lower) / (4.0 * len(scales))),
        np.sqrt(geometry.square_sums / np.maximum(geometry.pairs, 1.0))[order],
        0.5 * upper,
        distances.min(1),
        np.maximum(distances - radii[:, None] - radii[None, :], 0.0).min(1),
    )
    cells = np.stack(columns, 1).tolist()
    return tuple(
        ClusterRow(i, int(geometry.sizes[c]), *row) for i, (c, row) in enumerate(zip(order, cells, strict=True), 1)
    )


def _variance(geometry: ClusterGeometry, scale: float = 1.0) -> float:
    """V from above (S14), with the length-scales multiplied by ``scale``."""
    spread = np.sqrt(geometry.square_sums / np.maximum(geometry.pairs, 1.0)) / scale**2
    return float((geometry.pairs * 0.5 * np.expm1(-spread) ** 2).sum())


def _ratios(top: AnyArray | float, bottom: AnyArray | float) -> Array:
    """Elementwise, infinite where the lower part vanishes."""
    high, low = np.broadcast_arrays(np.asarray(top, dtype=float), np.asarray(bottom, dtype=float))
    return np.asarray(np.divide(high, low, out=np.full(high.shape, np.inf), where=low > 0.0))


def _checks(
    clusters: Sequence[ClusterRow], geometry: ClusterGeometry, kernel: Kernel, bound: float
) -> tuple[tuple[ConditionCheck, ...], ...]:
    """Printed conditions, corrected ones, and what the corrected theorem uses."""
    n, b = int(geometry.sizes.sum()), len(clusters)
    values = np.array([astuple(row) for row in clusters], dtype=float)[:, 1:].T
    sizes, expected, widths, width_limits, spreads, spread_limits, nearest, gaps = values
    rounded = np.maximum(1.0, np.rint(expected))
    spreads = np.where(sizes > 1, spreads, 0.0)
    apart, gap = math.sqrt(6.0 * math.log(n / bound)), math.sqrt(2.0 * math.log(2.0 * n / bound))
    cap_variance, cap_norm = condition_caps()

    def check(name: str, measured: float, limit: float, margin: float, meaning: str) -> ConditionCheck:
        return ConditionCheck(name, measured, limit, margin, margin >= 1.0, meaning)

    def check_worst(name: str, values: Array, limits: Array | float, margins: Array, meaning: str) -> ConditionCheck:
        i = int(margins.argmin())
        limit = np.broadcast_to(limits, values.shape)[i]
        return check(name, float(values[i]), float(limit), float(margins[i]), f"{meaning} (worst: cluster {i + 1})")

    def at_most(name: str, measured: float, limit: float, meaning: str) -> ConditionCheck:
        return check(name, measured, limit, float(_ratios(limit, measured)), meaning)

    # Printed sizes are equalities; the margin is the smaller of both ratios, and rounding to whole rows is allowed.
    equal = np.minimum(sizes / rounded, rounded / sizes)
    centres, balls = "distance of centres, at least the threshold", "gap between clusters, at least the threshold"
    spread = "rms of squared distances, at most U(i)/2"
    printed = (
        at_most("1 clusters", float(b), 2.0 * math.log2(n), "number of clusters, at most 2 log2 n"),
        check_worst("1 widths", widths, width_limits, _ratios(width_limits, widths), "width, at most gamma_i"),
        check_worst("2 sizes", sizes, rounded, equal, "size, equal to 2^(i/2)"),
        check_worst("3 separation", nearest, apart, _ratios(nearest, apart), centres),
    )
    corrected = (
        check_worst("1 widths", spreads, spread_limits, _ratios(spread_limits, spreads), spread),
        check_worst("2 sizes", sizes, rounded, _ratios(rounded, sizes), "size, at most 2^(i/2)"),
        check_worst("3 separation", gaps, gap, _ratios(gaps, gap), balls),
    )
    norm, tau_out = math.sqrt(float(geometry.square_sums.sum())), geometry.off_cluster_norm(kernel)
    enough = (
        at_most("in-cluster V", _variance(geometry), cap_variance, "variance, at most the cap"),
        at_most("in-cluster S_F", norm, cap_norm, "squared distances, at most the cap"),
        at_most("off-cluster norm", tau_out, 0.5 * bound, "at most half the bound"),
    )
    return printed, corrected, enough


def _corrected_range(geometry: ClusterGeometry, kernel: Kernel, bound: float) -> tuple[float, float]:
    """Factors on the length-scales between which S17 holds: V and S_F fall with the factor, ``tau_out`` grows."""
    cap_variance, cap_norm = condition_caps()
    low = math.sqrt(math.sqrt(float(geometry.square_sums.sum())) / cap_norm)
    if low > 0.0 and _variance(geometry, low) > cap_variance:
        low = _bracket(lambda scale: _variance(geometry, scale) <= cap_variance, low, 1e3 * low)[1]

    def is_separated(scale: float) -> bool:
        return geometry.off_cluster_norm(kernel, scale) <= 0.5 * bound

    start = max(low, 1e-9)
    if is_separated(1e9 * start):
        return low, math.inf
    if not is_separated(start):
        return low, 0.0
    return low, _bracket(lambda scale: not is_separated(scale), start, 1e9 * start)[0]


def _bracket(true_above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two numbers around the point where a statement becomes true: false at the first, true at the second."""
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return low, high
