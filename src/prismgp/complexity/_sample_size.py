"""``sample_size``: from data and a target to the number of frequencies, by every formula that applies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_choice
from prismgp.complexity import _samples as formulas
from prismgp.complexity._families import FIXED, Target, one_setting, relative_error_bound, simultaneous
from prismgp.complexity._geometry import cluster_geometry
from prismgp.complexity._inputs import BoundInputs, assumed_inputs, box_inputs, linear_inputs
from prismgp.complexity._inputs import exact_inputs as dense_inputs
from prismgp.complexity._partition import (
    check_count,
    check_data,
    check_lengthscale,
    check_positive,
    find_partition,
    resolve_labels,
)
from prismgp.complexity._records import SampleBound, SampleSizes
from prismgp.core.frequencies import FREQUENCY_KINDS
from prismgp.core.kernels import Kernel, get_kernel
from prismgp.exceptions import DataError

__all__ = ["sample_size"]

_EXACT_ROWS = 2000
_CONDITIONS = (
    "sizes at most 2^(i/2), in-cluster squared distances at most U(i)/2 (Conditions 1 and 2 as corrected)",
    "off-cluster kernel entries at most bound / (2 n) (Condition 3 as corrected)",
)


def sample_size(
    *,
    bound: float,
    delta: float,
    n: int | None = None,
    n_clusters: int | None = None,
    X: Any = None,
    labels: Any = None,
    lengthscale: Any = None,
    lengthscale_high: Any = None,
    kernel: str = "rbf",
    frequencies: str = "iid",
    n_draws: int = 1,
    noise_variance: float | None = None,
    relative_error: float = 0.5,
    exact_inputs: bool | str = "auto",
    random_state: RandomState = 0,
) -> SampleSizes:
    """How many frequencies bring the approximate kernel matrix K' within ``bound`` of the exact one, K.

    ``|K - K'|`` is the largest absolute eigenvalue, for a kernel of unit signal variance. Two approximations are
    judged: *plain*, every entry estimated by the frequencies, as in the paper's Theorem 2 and in ``SSGPRegressor``;
    and *masked*, entries between clusters set to zero, which is what the proof of Theorem 2 is about.

    Parameters
    ----------
    bound : float
        Target for ``|K - K'|``, in units of the signal variance.
    delta : float
        Allowed probability of missing it, in (0, 1).
    n : int, optional
        Number of rows, where there is no X. The corrected number then *assumes* Conditions 1 to 3.
    n_clusters : int, optional
        Number of clusters; None: with X, the number that promises fewest frequencies; without, what Condition 2
        implies for n.
    X : array-like, (n, d), optional
        Inputs, or their latent image. Everything is computed from them in linear time.
    labels : array-like, (n,), or a fitted clusterer, optional
        The partition; None: k-means in the kernel's metric. A clusterer is asked to ``predict`` the rows of X.
    lengthscale : float or array-like, (d,)
        In the units of X; required with X.
    lengthscale_high : float or array-like, (d,), optional
        With it, numbers hold for any one set of length-scales between the two, and those in ``simultaneous`` for all
        of them at once.
    kernel : {"rbf", "matern12", "matern32", "matern52"}
        Some formulas are proved for "rbf" only; each says so.
    frequencies : str, default "iid"
        How they are drawn. For any kind but "iid" nothing is proved, and no number is given.
    n_draws : int, default 1
        Draws among which the data may choose: ``SSGPRegressor`` with ``optimize=True`` races 4, and one more for each
        restart.
    noise_variance : float, optional
        In units of the signal variance; adds the number for a relative error.
    relative_error : float, default 0.5
        D in ``(1 - D) Q <= Q' <= (1 + D) Q``, ``Q = K + noise I``.
    exact_inputs : {"auto", True, False}
        Use all pairs of rows, for tighter numbers; "auto": up to 2,000 rows.
    random_state : int, RandomState or None, default 0
        For the partition. Frequencies must not share its stream.

    Returns
    -------
    SampleSizes
        ``.printed``, ``.corrected`` (masked), ``.plain``, ``.simultaneous``, ``.relative``; ``.bounds`` lists every
        formula.

    Raises
    ------
    DataError
        An argument is missing, of the wrong shape or out of range.

    Notes ----- Formulas S1 to S16 and their proofs are in the documentation, "Choosing the number of frequencies".
    Cost: linear in n, memory of one chunk of rows; with exact inputs ``n^3`` and ``n^2``.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import sample_size
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1, 2], 100)
    >>> X = 8.0 * np.eye(3)[labels] + 0.1 * rng.standard_normal((300, 3))
    >>> sizes = sample_size(bound=5.0, delta=0.05, X=X, labels=labels, lengthscale=1.0)
    >>> sizes.corrected.p, sizes.plain.p
    (41, 9042)
    """
    bound = check_positive("bound", bound)
    delta = check_positive("delta", delta, below=1.0)
    n_draws = check_count("n_draws", n_draws)
    check_choice("sample_size", "frequencies", frequencies, FREQUENCY_KINDS)
    k = get_kernel(kernel)
    if exact_inputs not in ("auto", True, False):
        raise DataError(f'exact_inputs={exact_inputs!r} must be "auto", True or False')
    if noise_variance is not None:
        noise_variance = check_positive("noise_variance", noise_variance)
    relative_error = check_positive("relative_error", relative_error)
    if n_clusters is not None:
        n_clusters = check_count("n_clusters", n_clusters)
    if X is None:
        return _without_data(bound, delta, n, n_clusters, labels, lengthscale, k, frequencies, n_draws)

    x = check_data(X)
    if n is not None and check_count("n", n) != len(x):
        raise DataError(f"n={n} but X has {len(x)} rows; pass one of them")
    if lengthscale is None:
        raise DataError("lengthscale is required with X: pass the kernel's length-scales, in the units of X")
    low = check_lengthscale("lengthscale", lengthscale, x)
    high = None if lengthscale_high is None else check_lengthscale("lengthscale_high", lengthscale_high, x)
    if high is not None and np.any(high < low):
        raise DataError(
            "lengthscale_high is below lengthscale for some input; pass the larger ones as lengthscale_high"
        )
    if labels is None:
        parts = find_partition(x, low if high is None else high, k, bound, n_clusters, random_state)
    else:
        parts = resolve_labels(labels, x, X)
    dense = len(x) <= _EXACT_ROWS if exact_inputs == "auto" else bool(exact_inputs)
    target = Target(
        bound,
        delta / n_draws,
        n_draws,
        k,
        frequencies,
        "the given length-scales" if high is None else "any one set of length-scales in the box",
    )
    masked = _inputs(x, parts, low, high, k, dense, None)
    whole = _inputs(x, np.zeros(len(x), dtype=np.int64), low, high, k, dense, noise_variance)
    d = x.shape[1]
    return _collect(
        target,
        delta,
        len(x),
        len(masked.sizes),
        masked,
        [*one_setting(target, masked, "masked", (FIXED,)), *one_setting(target, whole, "plain", (FIXED,))],
        (*simultaneous(target, masked, d, "masked", high is not None), *simultaneous(target, whole, d, "plain", True)),
        None if noise_variance is None else relative_error_bound(target, whole, noise_variance, relative_error),
        parts,
    )


def _without_data(
    bound: float,
    delta: float,
    n: int | None,
    n_clusters: int | None,
    labels: Any,
    lengthscale: Any,
    kernel: Kernel,
    frequencies: str,
    n_draws: int,
) -> SampleSizes:
    if n is None:
        raise DataError("pass X, or n, the number of rows")
    if labels is not None or lengthscale is not None:
        raise DataError(
            "labels and lengthscale need X; without it the number is for data that satisfy Conditions 1 to 3"
        )
    n = check_count("n", n)
    b = n_clusters or formulas.implied_clusters(n)
    if b > n:
        raise DataError(f"n_clusters={b} is above n={n}; clusters have at least one row")
    target = Target(bound, delta / n_draws, n_draws, kernel, frequencies, "length-scales that satisfy the conditions")
    inputs = assumed_inputs(b, bound)
    capacity = int(inputs.sizes.sum())
    missing = f"{b} clusters of at most 2^(i/2) rows hold {capacity} rows, not {n}" if capacity < n else ""
    family = one_setting(target, inputs, "masked", (FIXED, *_CONDITIONS), rbf_inputs=True, missing=missing)
    # Without data the plain kernel matrix has norm at most n, and a variance of at most n / 2 each way.
    v, size = 0.25 * float(n) ** 2, float(n)
    plain = target.record(
        "matrix_bernstein",
        "S8",
        "plain",
        lambda: formulas.matrix_bernstein(v, size**2 - size + v, size, bound, target.delta),
        rbf_only=False,
        parameters="any one set of length-scales",
        assumptions=("length-scales are fixed before the frequencies are drawn",),
    )
    return _collect(target, delta, n, b, inputs, [*family, plain], (), None, None)


def _inputs(
    x: AnyArray,
    labels: AnyArray,
    low: Array,
    high: Array | None,
    kernel: Kernel,
    dense: bool,
    noise_variance: float | None,
) -> BoundInputs:
    def at(lengthscale: Array) -> BoundInputs:
        if dense:
            return dense_inputs(x, labels, lengthscale, kernel, noise_variance=noise_variance)
        return linear_inputs(cluster_geometry(x, labels, lengthscale, kernel), kernel)

    return at(low) if high is None else box_inputs(at(low), at(high))


def _collect(
    target: Target,
    delta: float,
    n: int,
    b: int,
    masked: BoundInputs,
    bounds: list[SampleBound],
    at_once: tuple[SampleBound, ...],
    relative: SampleBound | None,
    labels: AnyArray | None,
) -> SampleSizes:
    def smallest(estimator: str) -> SampleBound:
        family = [record for record in bounds if record.estimator == estimator]
        return min(family, key=lambda record: math.inf if record.p is None else record.p)

    printed = SampleBound(
        name="printed",
        formula="S1",
        p=formulas.printed(n, b, target.bound, delta) if target.bound < n else None,
        estimator="plain",
        statement=f"|K - K'| <= {target.bound:g}",
        parameters="all length-scales, as claimed",
        kernel="rbf",
        frequencies="iid",
        probability=1.0 - 2.0 * delta,
        assumptions=("Conditions 1 to 3, as claimed",),
        holds=False,
        reason="printed, not valid for the plain kernel (a heuristic)",
    )
    return SampleSizes(
        bound=target.bound,
        delta=delta,
        n=n,
        n_clusters=b,
        n_draws=target.n_draws,
        kernel=target.kernel.name,
        frequencies=target.frequencies,
        inputs={
            "source": masked.source,
            "tau_out": masked.tau_out,
            "V": masked.variance,
            "S_F": math.sqrt(masked.square_sum),
            "B": math.sqrt(masked.largest_square),
            "sizes": [int(size) for size in masked.sizes],
            "norm": float(np.max(masked.norms)),
            "diameter": masked.diameter,
        },
        bounds=tuple(bounds),
        simultaneous=at_once,
        printed=printed,
        corrected=smallest("masked"),
        plain=smallest("plain"),
        relative=relative,
        labels=labels,
    )
