"""``sample_size``: from data and a target to the number of frequencies, by every formula that applies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_choice, check_number
from prismgp.complexity import formulas, inputs
from prismgp.complexity.geometry import cluster_geometry
from prismgp.complexity.inputs import BoundInputs
from prismgp.complexity.records import SampleBound, SampleSizes, describe_delta
from prismgp.core.kernels import FREQUENCY_KINDS, Kernel, get_kernel
from prismgp.exceptions import DataError

_EXACT_ROWS = 2000
_FIXED = "length-scales and partition are fixed before the frequencies are drawn"
_INDEPENDENT = "frequencies are drawn independently from the kernel's spectral law, not learned, and not from the data"
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
        Draws among which the data may choose: ``SSGPRegressor`` with ``optimize=True`` tries 4 to 12, the more the
        fewer frequencies there are, and one more for each restart.
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

    Notes
    -----
    Formulas S1 to S16 and their proofs are in the documentation, "Choosing the number of frequencies". Cost: linear in
    n, memory of one chunk of rows; with exact inputs ``n^3`` and ``n^2``.

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
    for name, value in (("bound", bound), ("delta", delta), ("relative_error", relative_error)):
        check_number("sample_size", name, value, low=0, strict=True)
    check_number("sample_size", "noise_variance", noise_variance, low=0, strict=True, optional=True)
    check_number("sample_size", "n_draws", n_draws, low=1, integer=True)
    for name, count in (("n", n), ("n_clusters", n_clusters)):
        check_number("sample_size", name, count, low=1, integer=True, optional=True)
    if delta >= 1.0:
        raise DataError(f"sample_size: delta={delta!r} must be a number above 0 and below 1")
    check_choice("sample_size", "frequencies", frequencies, FREQUENCY_KINDS)
    k = get_kernel(kernel)
    if exact_inputs not in ("auto", True, False):
        raise DataError(f'exact_inputs={exact_inputs!r} must be "auto", True or False')
    target = _Target(float(bound), float(delta) / n_draws, float(delta), int(n_draws), k, frequencies)
    if X is None:
        if n is None:
            raise DataError("pass X, or n, the number of rows")
        if labels is not None or lengthscale is not None:
            raise DataError(
                "labels and lengthscale need X; without it the number is for data that satisfy Conditions 1 to 3"
            )
        return _without_data(target, int(n), n_clusters)

    x = inputs.check_data(X)
    if n is not None and n != len(x):
        raise DataError(f"n={n} but X has {len(x)} rows; pass one of them")
    if lengthscale is None:
        raise DataError("lengthscale is required with X: pass the kernel's length-scales, in the units of X")
    low = inputs.check_lengthscale("lengthscale", lengthscale, x)
    high = None if lengthscale_high is None else inputs.check_lengthscale("lengthscale_high", lengthscale_high, x)
    if high is not None and np.any(high < low):
        raise DataError(
            "lengthscale_high is below lengthscale for some input; pass the larger ones as lengthscale_high"
        )
    widest = low if high is None else high
    parts = inputs.partition_rows(x, X, labels, widest, k, target.bound, n_clusters, random_state)
    dense = len(x) <= _EXACT_ROWS if exact_inputs == "auto" else bool(exact_inputs)

    def measure(labels: AnyArray, noise: float | None = None) -> BoundInputs:
        def at(lengthscale: Array) -> BoundInputs:
            if dense:
                return inputs.exact_inputs(x, labels, lengthscale, k, noise_variance=noise)
            return inputs.linear_inputs(cluster_geometry(x, labels, lengthscale, k), k)

        return at(low) if high is None else inputs.box_inputs(at(low), at(high))

    where = "the given length-scales" if high is None else "any one set of length-scales in the box"
    masked, whole = measure(parts), measure(np.zeros(len(x), dtype=np.int64), noise_variance)
    bounds = [*_one_setting(target, masked, "masked", where), *_one_setting(target, whole, "plain", where)]
    at_once = (
        *_collect_simultaneous(target, masked, x.shape[1], "masked", bounded=high is not None),
        *_collect_simultaneous(target, whole, x.shape[1], "plain", bounded=True),
    )
    relative = None
    if noise_variance is not None:
        relative = _relative_error(target, whole, float(noise_variance), float(relative_error), where)
    return _collect(target, x.shape, len(masked.sizes), masked, bounds, at_once, relative, parts)


@dataclass(frozen=True)
class _Target:
    """What all bounds of one call share."""

    bound: float
    delta: float  # of one draw
    delta_all: float  # of all draws together
    n_draws: int
    kernel: Kernel
    frequencies: str

    def record(
        self,
        name: str,
        formula: str,
        estimator: str,
        compute: Callable[[], int | None],
        *,
        parameters: str,
        rbf_only: bool = False,
        room: float = math.inf,
        statement: str | None = None,
        assumptions: tuple[str, ...] = (_FIXED,),
        missing: str = "",
    ) -> SampleBound:
        """A record whose p is computed only where every assumption that can be checked holds.

        ``missing`` is an assumption that fails.
        """
        reason = missing
        if self.frequencies != "iid":
            reason = f"proved for independent frequencies only, not for frequencies={self.frequencies!r}"
        elif rbf_only and self.kernel.name != "rbf":
            reason = "derived for the rbf kernel only"
        elif not missing and room <= 0:
            off = f"{self.bound - room:.4g}"
            reason = f"clusters overlap: the off-cluster norm is up to {off}, not below the bound {self.bound:g}"
        p = None if reason else compute()
        if not reason and (p is None or p > formulas.MOST_FREQUENCIES):
            p, reason = None, "no usable number of frequencies brings this bound below the target"
        return SampleBound(
            name=name,
            formula=formula,
            p=p,
            estimator=estimator,
            statement=statement or f"|K - K'| <= {self.bound:g}",
            parameters=parameters,
            kernel="rbf" if rbf_only else "any stationary kernel",
            frequencies="iid" if self.n_draws == 1 else f"iid, any one of {self.n_draws} draws",
            probability=1.0 - self.delta * self.n_draws,
            assumptions=(_INDEPENDENT, *assumptions),
            holds=p is not None,
            reason=reason,
        )


def _without_data(target: _Target, n: int, n_clusters: int | None) -> SampleSizes:
    """Numbers for data that satisfy the conditions."""
    b = int(n_clusters or formulas.implied_clusters(n))
    if b > n:
        raise DataError(f"n_clusters={b} is above n={n}; clusters have at least one row")
    found = inputs.assumed_inputs(b, target.bound)
    capacity = int(found.sizes.sum())
    missing = f"{b} clusters of at most 2^(i/2) rows hold {capacity} rows, not {n}" if capacity < n else ""
    where = "length-scales that satisfy the conditions"
    family = _one_setting(target, found, "masked", where, assumptions=(_FIXED, *_CONDITIONS), missing=missing)
    # Without data the plain kernel matrix has norm at most n, and a variance of at most n / 2 each way.
    v, size = 0.25 * float(n) ** 2, float(n)
    plain = target.record(
        "matrix_bernstein",
        "S8",
        "plain",
        lambda: formulas.matrix_bernstein(v, size**2 - size + v, size, target.bound, target.delta),
        parameters="any one set of length-scales",
        assumptions=("length-scales are fixed before the frequencies are drawn",),
    )
    return _collect(target, (n, None), b, found, [*family, plain], (), None, None)


def _one_setting(
    target: _Target, known: BoundInputs, estimator: str, where: str, **conditions: Any
) -> list[SampleBound]:
    """Every bound for one set of length-scales; each is valid alone."""
    room, delta = target.bound - known.tau_out, target.delta
    v, largest, norm = known.variance, math.sqrt(known.largest_square), math.sqrt(known.square_sum)
    clipped, theory_clipped = math.sqrt(known.clipped), math.sqrt(known.theory_clipped)
    matrix = known.matrix_variance, known.matrix_trace, float(known.sizes.max())
    # Name, tag, whether it is proved for the rbf kernel only, p.
    family: list[tuple[str, str, bool, Callable[[], int]]] = [
        ("markov", "S2", False, lambda: formulas.markov(v, room, delta)),
        ("bern_bounded", "S3", False, lambda: formulas.bernstein_bounded(v, largest, room, delta)),
        ("bennett", "S4", False, lambda: formulas.bennett(v, largest, room, delta)),
        ("bern_tight", "S5", True, lambda: formulas.bernstein_tight(v, theory_clipped, room, delta)),
        ("chernoff", "S6", True, lambda: formulas.chernoff(v, clipped, room, delta)),
        ("union_tight", "S7", True, lambda: formulas.union_tight(norm, known.pairs, room, delta)),
        ("matrix_bernstein", "S8", False, lambda: formulas.matrix_bernstein(*matrix, room, delta)),
    ]
    assumed = known.source == "assumed"  # the conditions themselves are for the rbf kernel only
    common: dict[str, Any] = {"parameters": where, "room": room, **conditions}
    return [
        target.record(name, tag, estimator, compute, rbf_only=rbf_only or assumed, **common)
        for name, tag, rbf_only, compute in family
    ]


def _collect_simultaneous(
    target: _Target, known: BoundInputs, d: int, estimator: str, *, bounded: bool
) -> list[SampleBound]:
    """The bounds that hold for all length-scales of a set at once; ``bounded``: the set has an upper end."""
    room, largest, delta = target.bound - known.tau_out, int(known.sizes.max()), target.delta
    norm, fourth_norm = math.sqrt(known.square_sum), math.sqrt(known.fourth_sum)
    which = "of the box at once" if estimator == "masked" else "from the given ones up"
    common: dict[str, Any] = {
        "parameters": f"all length-scales {which}",
        "rbf_only": True,
        "room": room,
        "assumptions": ("the lower length-scales and the partition are fixed before the frequencies are drawn",),
        "missing": "" if bounded else "needs lengthscale_high: for large length-scales the mask fails",
    }
    family: list[tuple[str, str, Callable[[], int | None]]] = [
        ("uniform_net", "S15", lambda: formulas.uniform_net(d, known.diameter, largest, room, delta)),
        ("uniform_expansion", "S16", lambda: formulas.uniform_expansion(d, norm, fourth_norm, room, delta)),
    ]
    return [target.record(name, tag, estimator, compute, **common) for name, tag, compute in family]


def _relative_error(target: _Target, known: BoundInputs, noise: float, error: float, where: str) -> SampleBound:
    """The number for ``(1 - D) Q <= Q' <= (1 + D) Q``."""
    n, norm = int(known.sizes.sum()), float(known.norms[0])
    share = norm / (norm + noise)
    # Eigenvalues have mean 1 and x / (x + noise) is concave; the share is added as in S8, since it is a bound too.
    dimension = n / (1.0 + noise) + share if known.effective_dimension is None else known.effective_dimension
    return target.record(
        "relative",
        "S9",
        "plain",
        lambda: formulas.relative(n, noise, share, dimension, error, target.delta),
        parameters=where,
        statement=f"(1 - {error:g}) Q <= Q' <= (1 + {error:g}) Q, Q = K + {noise:g} I",
    )


def _collect(
    target: _Target,
    shape: tuple[int, int | None],
    b: int,
    masked: BoundInputs,
    bounds: list[SampleBound],
    at_once: tuple[SampleBound, ...],
    relative: SampleBound | None,
    labels: AnyArray | None,
) -> SampleSizes:
    def find_smallest(estimator: str) -> SampleBound:
        family = [record for record in bounds if record.estimator == estimator]
        return min(family, key=lambda record: math.inf if record.p is None else record.p)

    n, d = shape
    reason, needs = "printed, not valid for the plain kernel (a heuristic)", "delta >= O(exp(b - sqrt d))"
    if d is not None:
        needs = describe_delta(formulas.least_delta(b, d))
    if (capacity := int(formulas.condition_sizes(b).sum())) < n:
        reason += f"; and {b} clusters of Condition 2 hold {capacity} rows, not {n}"
    printed = SampleBound(
        name="printed",
        formula="S1",
        p=formulas.printed(n, b, target.bound, target.delta_all) if target.bound < n else None,
        estimator="plain",
        statement=f"|K - K'| <= {target.bound:g}",
        parameters="all length-scales, as claimed",
        kernel="rbf",
        frequencies="iid",
        probability=1.0 - 2.0 * target.delta_all,
        assumptions=("Conditions 1 to 3, as claimed", needs),
        holds=False,
        reason=reason,
    )
    return SampleSizes(
        bound=target.bound,
        delta=target.delta_all,
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
        corrected=find_smallest("masked"),
        plain=find_smallest("plain"),
        relative=relative,
        labels=labels,
    )
