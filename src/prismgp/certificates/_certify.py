"""prismgp.certify: a fitted model against the exact GP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from prismgp._random import Streams
from prismgp._system import limit_blas_threads
from prismgp._types import Array, RandomState
from prismgp._validate import check_choice, check_number
from prismgp.certificates._certificate import Certificate
from prismgp.certificates._effort import PARTS, Effort, Findings
from prismgp.certificates._interval import Interval
from prismgp.certificates._member import certify_problem
from prismgp.certificates._models import REFERENCES, Member, members_of
from prismgp.certificates._paper_bounds import paper_bounds
from prismgp.estimators import GPRegressor
from prismgp.exceptions import DataError
from prismgp.prism import Mixture

__all__ = ["certify"]

_ASSUMPTIONS = (
    "the exact GP has the model's kernel, parameters, noise and constant mean; nothing is said of other parameters",
    "rounding follows the usual model of floating point; its bounds are included in the intervals",
)


def certify(
    model: GPRegressor,
    X: Any,
    y: Any = None,
    X_test: Any = None,
    *,
    rank: int | None = None,
    products: int | None = None,
    seconds: float | None = None,
    delta: float = 0.01,
    tolerance: float = 0.01,
    reference: str = "auto",
    parts: str | Sequence[str] | None = None,
    random_state: RandomState = None,
) -> Certificate:
    """Bound how far a fitted model is from the exact GP it approximates.

    Parameters
    ----------
    model : SSGPRegressor or PrismGPRegressor
        Fitted, with any frequencies: nothing is assumed of how they were drawn or learned.
    X, y : array-like
        The rows the model was fitted on, in any order; or a source, which holds both. They are held in memory.
    X_test : array-like, (m, d), or source, optional
        Where to certify predictions.
    rank : int, optional
        Columns of the pivoted Cholesky factor; O(n rank^2) time, O(n rank) memory. None: from n.
    products : int, optional
        Products with the exact kernel matrix, at most; O(n^2) time each, no matrix is held. None: from n; zero
        beyond some 400,000 rows.
    seconds : float, optional
        Time after which no further product is begun, but for one that checks those made. The pivoted Cholesky, and
        what follows from it in time linear in n, is made in any case.
    delta : float, default 0.01
        Probability with which any of the random bounds may fail; 0: bounds without randomness only.
    tolerance : float, default 0.01
        Stop when the mean is known to this share of the noise standard deviation.
    reference : {"auto", "full", "gated"}, default "auto"
        For kernels with gates: whether the exact GP has the gates too, which is what more frequencies would lead
        to, or the kernel without. "auto": gated for PrismGPRegressor, full for SSGPRegressor.
    parts : {"predictions", "evidence", "kernel"}, or several of them, optional
        What to certify: mean and variance at ``X_test``, the log evidence, the norms of ``K - K'``. None: all of it.
        Predictions alone usually take 0.5 to 0.85 of the time.
    random_state : int, RandomState or None, default None

    Returns
    -------
    Certificate

    Notes
    -----
    More rank adds pivots to those of a smaller rank (up to 50,000 rows), so the bounds without randomness from the rank
    alone shrink with it, but for rounding. More products shrink the bound on the means, that of the best of all steps;
    the widths of the others, and of random bounds, may grow a little from one step to the next.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SSGPRegressor, certify
    >>> X = np.linspace(0, 6, 80)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.cos(40 * X[:, 0])
    >>> model = SSGPRegressor(n_frequencies=16, random_state=0).fit(X, y)
    >>> certificate = certify(model, X, y, [[1.5]], random_state=0)
    >>> bool(certificate.holds), bool(certificate.mean.width[0] < 1e-3)
    (True, True)
    """
    if not isinstance(model, GPRegressor):
        raise DataError(f"certify needs a fitted model of this library, not {type(model).__name__}")
    check_is_fitted(model)
    for name, value, low in (("rank", rank, 1), ("products", products, 0)):
        if value is not None:
            check_number("certify", name, value, low=low, integer=True)
    if seconds is not None:
        check_number("certify", "seconds", seconds, low=0)
    check_number("certify", "tolerance", tolerance, low=0)
    parts = _checked_parts(parts, X_test)
    check_choice("certify", "reference", reference, REFERENCES)
    if not isinstance(delta, (int, float)) or not 0.0 <= delta < 1.0:
        raise DataError(f"certify: delta={delta!r} must be at least 0 and below 1")
    with limit_blas_threads():
        members = members_of(model, X, y, X_test, reference=reference)
        seed = int(Streams(random_state).generator("certificate").integers(2**31))
        share = None if seconds is None else seconds / len(members)
        found = []
        for k, member in enumerate(members):
            effort = Effort.auto(
                member.problem.n,
                rank=rank,
                products=products,
                seconds=share,
                delta=delta / len(members),
                tolerance=tolerance,
                seed=seed + k,
                parts=parts,
            )
            found.append(certify_problem(member.problem, effort))
    certificates = [_certificate(model, member, each) for member, each in zip(members, found, strict=True)]
    if len(certificates) == 1 and not _is_mixture(model):
        return certificates[0]
    return _ensemble(model, members, found, certificates)


def _is_mixture(model: GPRegressor) -> bool:
    return isinstance(model.model_.predictor, Mixture)


def _checked_parts(parts: str | Sequence[str] | None, X_test: Any) -> tuple[str, ...]:
    given = [parts] if isinstance(parts, str) else PARTS if parts is None else parts
    chosen = tuple(each for each in PARTS if isinstance(given, Sequence) and each in given)
    if not chosen or len(chosen) != len(given):
        raise DataError(f"certify: parts={parts!r} must be one or several of {', '.join(map(repr, PARTS))}")
    if parts is not None and ("predictions" in chosen) != (X_test is not None):
        what = "without X_test there are none" if X_test is None else "X_test is for them alone"
        raise DataError(f"certify: parts={parts!r} and predictions: {what}")
    return chosen


def _certificate(model: GPRegressor, member: Member, found: Findings) -> Certificate:
    """In the data's units."""
    scale, shift = model.model_.standardiser.y_scale, model.model_.standardiser.y_shift
    problem = member.problem
    evidence = found.log_evidence and found.log_evidence.scaled(1.0, -problem.n * float(np.log(scale).sum()))
    intervals = [each for each in (found.spectral, found.frobenius, found.log_evidence, found.variance) if each]
    return Certificate(
        name=f"{type(model).__name__}, {problem.name}" if _is_mixture(model) else type(model).__name__,
        statement=problem.statement,
        rows=problem.n,
        kernel_error=found.spectral,
        kernel_error_frobenius=found.frobenius,
        log_evidence=evidence,
        mean=_shaped(model, found.mean, scale, shift),
        variance=_shaped(model, found.variance, scale**2, 0.0),
        noise_variance=None if problem.test is None else _column(model, problem.test.noise * scale**2),
        probability=max(0.0, 1.0 - sum(1.0 - each.probability for each in intervals)),
        holds=not found.reason,
        reason=found.reason,
        assumptions=_ASSUMPTIONS,
        spent=found.spent,
        paper_bounds=paper_bounds(found, found.spectral, problem) if found.spectral is not None else {},
    )


def _shaped(model: GPRegressor, interval: Interval | None, factor: Any, shift: Any) -> Interval | None:
    if interval is None:
        return None
    scaled = interval.scaled(factor, shift)

    def shape(each: Interval) -> Interval:
        lower, upper, ours = (_column(model, value) for value in (each.lower, each.upper, each.ours))
        certain = None if each.certain is None else shape(each.certain)
        return Interval(lower, upper, each.probability, each.method, ours, certain)

    return shape(scaled)


def _column(model: GPRegressor, values: Array) -> Any:
    return values[:, 0] if model.model_.target_ndim == 1 else values


def _ensemble(
    model: GPRegressor, members: list[Member], found: list[Findings], certificates: list[Certificate]
) -> Certificate:
    """The mixture with every member replaced by its exact GP."""
    mean = variance = noise = None
    failing = [each for each in certificates if not each.holds]
    if members[0].problem.test is not None:
        mean, variance, noise = _mixed(model, members, found)
    spent = {key: sum(each.spent[key] for each in certificates) for key in ("products", "seconds")}
    return Certificate(
        name=type(model).__name__,
        statement=_together([each.statement for each in certificates]),
        rows=certificates[0].rows,
        kernel_error=None,
        kernel_error_frobenius=None,
        log_evidence=None,
        mean=mean,
        variance=variance,
        noise_variance=noise,
        probability=max(0.0, 1.0 - sum(1.0 - each.probability for each in certificates)),
        holds=not failing,
        reason="; ".join(f"{each.name}: {each.reason}" for each in failing),
        assumptions=(*_ASSUMPTIONS, "weights and temperature of the ensemble are the model's"),
        spent={"rank": max(each.spent["rank"] for each in certificates), **spent},
        members=tuple(certificates),
    )


def _together(statements: list[str]) -> str:
    same = statements[0].replace("inputs", "inputs as that member")
    what = same if len(set(statements)) == 1 else "its own exact GP, which the certificate of that member names"
    return f"the same mixture with every member replaced by {what}"


def _mixed(
    model: GPRegressor, members: list[Member], found: list[Findings]
) -> tuple[Interval | None, Interval | None, Any]:
    """Moments of the mixture by interval arithmetic: ``m = sum w m_k``, ``v = T sum w (v_k + (m_k - m)^2)``."""
    mixture = model.model_.predictor
    assert isinstance(mixture, Mixture)
    weights = np.array([member.weight for member in members])[:, None, None]
    scale, shift = model.model_.standardiser.y_scale, model.model_.standardiser.y_shift
    tests = [member.problem.test for member in members]
    own = [(test.mean, test.variance, test.noise) for test in tests if test is not None]
    ours, spreads, noises = (np.stack(each) for each in zip(*own, strict=True))

    def bounds(name: str, sure: bool) -> tuple[Array, Array]:
        each = [getattr(one, name) for one in found]
        chosen = [one.certain if sure and one.certain is not None else one for one in each]
        return np.stack([one.lower for one in chosen]), np.stack([one.upper for one in chosen])

    low, high = bounds("mean", False)
    lower, upper = (weights * low).sum(0), (weights * high).sum(0)
    centre = (weights * ours).sum(0)
    temperature = np.asarray(mixture.temperature)
    noise = _column(model, temperature * (weights * noises).sum(0) * scale**2)
    own_variance = temperature * (weights * (spreads + (ours - centre) ** 2)).sum(0)
    if any(each.reason for each in found):  # a member of which nothing is known, and nothing is of the whole
        most = np.full(centre.shape, np.inf)
        unknown = (
            Interval(-most, most, 1.0, "none", centre),
            Interval(np.zeros_like(most), most, 1.0, "none", own_variance),
        )
        return _shaped(model, unknown[0], scale, shift), _shaped(model, unknown[1], scale**2, 0.0), noise
    # m_k - m = (1 - w_k) m_k - sum of the others.
    away_low = (1 - weights) * low - (upper - weights * high)
    away_high = (1 - weights) * high - (lower - weights * low)
    square_high = np.maximum(away_low**2, away_high**2)
    square_low = np.where((away_low < 0) & (away_high > 0), 0.0, np.minimum(away_low**2, away_high**2))

    def variance(sure: bool) -> Interval:
        v_low, v_high = bounds("variance", sure)
        probability = 1.0 if sure else 1.0 - sum(1.0 - each.variance.probability for each in found if each.variance)
        return Interval(
            temperature * (weights * (v_low + square_low)).sum(0),
            temperature * (weights * (v_high + square_high)).sum(0),
            probability,
            "members together",
            own_variance,
        )

    mean = Interval(lower, upper, 1.0, "members together", centre)
    random = variance(False)
    whole = random if random.probability == 1.0 else random.within(variance(True), method="members together")
    return _shaped(model, mean, scale, shift), _shaped(model, whole, scale**2, 0.0), noise
