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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array, RandomState
from prismgp.complexity.formulas import band_limits, condition_caps
from prismgp.complexity.geometry import ClusterGeometry, cluster_geometry
from prismgp.complexity.inputs import check_count, check_data, check_lengthscale, check_positive, partition_rows
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
    bound = check_positive("bound", bound)
    if bound >= n:
        raise DataError(f"bound={bound:g} is not below n={n}; |K - K'| never exceeds n, so pass a smaller bound")
    scales = check_lengthscale("lengthscale", lengthscale, x)
    kernel = get_kernel("rbf")
    count = None if n_clusters is None else check_count("n_clusters", n_clusters)
    parts = partition_rows(x, X, labels, scales, kernel, bound, count, random_state)
    geometry = cluster_geometry(x, parts, scales, kernel)
    measured = _measure(geometry, kernel, bound, n, d, scales)
    printed, corrected, enough = _checks(measured)
    low, high = _corrected_range(geometry, kernel, bound)
    return ConditionReport(
        n=n,
        d=d,
        bound=bound,
        n_clusters=len(geometry.sizes),
        partition_found=labels is None,
        lengthscale=scales,
        printed=printed,
        corrected=corrected,
        sufficient=enough,
        clusters=measured.rows,
        box=None if low > high else (low * scales, high * scales),
        box_factors=None if low > high else (low, high),
        printed_factor=_printed_factor(measured),
        labels=parts,
    )


@dataclass(frozen=True)
class _Measured:
    """Everything the checks compare; clusters in the order of their sizes."""

    n: int
    b: int
    sizes: Array
    expected: Array
    width_printed: Array
    limit_printed: Array
    spread: Array  # root mean square of s
    limit_spread: Array
    nearest: Array  # smallest centre distance of each cluster
    gap: Array  # and smallest distance of the balls
    separation: float
    corrected_gap: float
    variance: float
    norm: float
    tau_out: float
    bound: float

    @property
    def rows(self) -> tuple[ClusterRow, ...]:
        """One row for each cluster."""
        limits = (self.expected, self.width_printed, self.limit_printed, self.spread, self.limit_spread)
        columns = zip(*limits, self.nearest, self.gap, strict=True)
        return tuple(
            ClusterRow(i, int(size), *map(float, row))
            for i, size, row in zip(range(1, self.b + 1), self.sizes, columns, strict=True)
        )


def _measure(geometry: ClusterGeometry, kernel: Kernel, bound: float, n: int, d: int, scales: Array) -> _Measured:
    order = np.argsort(geometry.sizes, kind="stable")
    b = len(order)
    index = np.arange(1.0, b + 1.0)
    upper, lower = band_limits(n, bound, index)
    distances = geometry.centre_distances()[np.ix_(order, order)]
    radii = geometry.radii[order]
    np.fill_diagonal(distances, np.inf)
    gaps = np.maximum(distances - radii[:, None] - radii[None, :], 0.0)
    pairs = np.maximum(geometry.pairs, 1.0)
    return _Measured(
        n=n,
        b=b,
        sizes=geometry.sizes[order].astype(np.float64),
        expected=2.0 ** (index / 2.0),
        # Printed: covariance gamma^2 Theta^-1, so gamma^2 is the variance of scaled x times Theta^2.
        width_printed=np.sqrt((geometry.variances[order] * scales**4).mean(1)),
        limit_printed=np.sqrt((upper + lower) / (4.0 * d)),
        spread=np.sqrt(geometry.square_sums / pairs)[order],
        limit_spread=0.5 * upper,
        nearest=distances.min(1),
        gap=gaps.min(1),
        separation=math.sqrt(6.0 * math.log(n / bound)),
        corrected_gap=math.sqrt(2.0 * math.log(2.0 * n / bound)),
        variance=_variance(geometry, 1.0),
        norm=math.sqrt(float(geometry.square_sums.sum())),
        tau_out=geometry.off_cluster_norm(kernel),
        bound=bound,
    )


def _variance(geometry: ClusterGeometry, scale: float) -> float:
    """V from above (S14), with the length-scales multiplied by ``scale``."""
    spread = np.sqrt(geometry.square_sums / np.maximum(geometry.pairs, 1.0)) / scale**2
    return float((geometry.pairs * 0.5 * np.expm1(-spread) ** 2).sum())


def _ratio(top: AnyArray | float, bottom: AnyArray | float) -> float:
    """The smallest ratio, infinite where the lower part vanishes."""
    high, low = np.broadcast_arrays(np.asarray(top, dtype=float), np.asarray(bottom, dtype=float))
    found = np.full(high.shape, np.inf)
    np.divide(high, low, out=found, where=low > 0.0)
    return float(found.min())


def _checks(m: _Measured) -> tuple[tuple[ConditionCheck, ...], ...]:
    """Printed conditions, corrected ones, and what the corrected theorem uses."""
    most = 2.0 * math.log2(m.n)
    rounded = np.maximum(1.0, np.rint(m.expected))
    # Printed sizes are equalities; the margin is the smaller of both ratios, and rounding to whole rows is allowed.
    size_ratio = np.minimum(m.sizes / rounded, rounded / m.sizes)
    cap_variance, cap_norm = condition_caps()

    def check(name: str, measured: float, limit: float, margin: float, meaning: str) -> ConditionCheck:
        return ConditionCheck(name, measured, limit, margin, margin >= 1.0, meaning)

    def worst(name: str, values: Array, limits: Array, meaning: str, *, at_least: bool = False) -> ConditionCheck:
        ratios = np.array([_ratio(v, t) if at_least else _ratio(t, v) for v, t in zip(values, limits, strict=True)])
        i = int(ratios.argmin())
        return check(name, float(values[i]), float(limits[i]), float(ratios[i]), f"{meaning} (worst: cluster {i + 1})")

    apart, gap = np.full(m.b, m.separation), np.full(m.b, m.corrected_gap)
    several = m.sizes > 1
    printed = (
        check("1 clusters", float(m.b), most, most / m.b, "number of clusters, at most 2 log2 n"),
        worst("1 widths", m.width_printed, m.limit_printed, "width, at most gamma_i"),
        check(
            "2 sizes",
            float(m.sizes[int(size_ratio.argmin())]),
            float(rounded[int(size_ratio.argmin())]),
            float(size_ratio.min()),
            f"size, equal to 2^(i/2) (worst: cluster {int(size_ratio.argmin()) + 1})",
        ),
        worst("3 separation", m.nearest, apart, "distance of centres, at least the threshold", at_least=True),
    )
    corrected = (
        worst("1 widths", np.where(several, m.spread, 0.0), m.limit_spread, "rms of squared distances, at most U(i)/2"),
        worst("2 sizes", m.sizes, rounded, "size, at most 2^(i/2)"),
        worst("3 separation", m.gap, gap, "gap between clusters, at least the threshold", at_least=True),
    )
    enough = (
        check("in-cluster V", m.variance, cap_variance, _ratio(cap_variance, m.variance), "variance, at most the cap"),
        check("in-cluster S_F", m.norm, cap_norm, _ratio(cap_norm, m.norm), "squared distances, at most the cap"),
        check("off-cluster norm", m.tau_out, 0.5 * m.bound, _ratio(0.5 * m.bound, m.tau_out), "at most half the bound"),
    )
    return printed, corrected, enough


def _corrected_range(geometry: ClusterGeometry, kernel: Kernel, bound: float) -> tuple[float, float]:
    """Factors on the length-scales between which S17 holds: V and S_F fall with the factor, ``tau_out`` grows."""
    cap_variance, cap_norm = condition_caps()
    low = math.sqrt(math.sqrt(float(geometry.square_sums.sum())) / cap_norm)
    if low > 0.0 and _variance(geometry, low) > cap_variance:
        low = _bracket(lambda scale: _variance(geometry, scale) <= cap_variance, low, 1e3 * low)[1]

    def separated(scale: float) -> bool:
        return geometry.off_cluster_norm(kernel, scale) <= 0.5 * bound

    start = max(low, 1e-9)
    if separated(1e9 * start):
        return low, math.inf
    if not separated(start):
        return low, 0.0
    return low, _bracket(lambda scale: not separated(scale), start, 1e9 * start)[0]


def _bracket(true_above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two numbers around the point where a statement becomes true: false at the first, true at the second."""
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return low, high


def _printed_factor(m: _Measured) -> float:
    """The largest factor on the length-scales for which printed widths and separation hold.

    Printed widths grow with the length-scales, because the printed covariance has Theta inverted: there is no lower
    end.
    """
    return min(_ratio(m.limit_printed, m.width_printed), _ratio(m.nearest, m.separation))
