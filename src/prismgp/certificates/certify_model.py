"""`prismgp.certify`: certificates of fitted models, and of ensembles from those of their members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import Array, RandomState
from prismgp._validate import check_choice, check_number
from prismgp.certificates.certificate import Certificate, Interval
from prismgp.certificates.certify_problem import certify_problem
from prismgp.certificates.models import REFERENCES, Certifiable, problems_of, spectral_part
from prismgp.certificates.problem import PARTS, Effort, Findings, Problem
from prismgp.exceptions import DataError
from prismgp.neighbors import NeighborModel
from prismgp.prism import Mixture

_PREDICTIONS = PARTS[0]
_ASSUMPTIONS = (
    "the exact GP has the model's kernel, parameters, noise and constant mean; nothing is said of other parameters",
    "rounding follows the usual model of floating point; its bounds are included in the intervals",
)


def certify(
    model: Certifiable,
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
    sample_weight: Any = None,
    noise_variance: Any = None,
) -> Certificate:
    """Bound how far a fitted model is from the exact GP it approximates.

    Parameters
    ----------
    model : SSGPRegressor, PrismGPRegressor or NeighborGPRegressor
        Fitted, with any frequencies: nothing is assumed of how they were drawn or learned.
    X, y : array-like
        The rows the model was fitted on, in any order; or a source, which holds both. They are held in memory.
    X_test : array-like, (m, d), or source, optional
        Where to certify predictions.
    rank : int, optional
        Columns of the pivoted Cholesky factor; O(n rank^2) time, O(n rank) memory. None: as many as it takes for what
        they leave to be small against noise and tolerance, between ``3.5 sqrt(n)`` and 3,000, fewer beyond 55,000 rows;
        up to 2,500 rows, and where nothing random is used, from n.
    products : int, optional
        Products with the exact kernel matrix, at most; O(n^2) time each, no matrix is held. None: from n; zero
        beyond some 400,000 rows.
    seconds : float, optional
        Time after which no further product is started, except one that checks the others. The pivoted Cholesky, and
        what follows from it in time linear in n, is computed in any case.
    delta : float, default 0.01
        Probability with which any of the random bounds may fail; 0: bounds without randomness only.
    tolerance : float, default 0.01
        Stop when the mean is known to this share of the noise standard deviation.
    reference : {"auto", "full", "gated"}, default "auto"
        For kernels with gates: whether the exact GP has the gates too, which is the limit of more frequencies, or
        the kernel without. "auto": gated for PrismGPRegressor, full for SSGPRegressor.
    parts : {"predictions", "evidence", "kernel"}, or several of them, optional
        What to certify: mean and variance at ``X_test``, the log evidence, the norms of ``K - K'``. None: all of it,
        or for a NeighborGPRegressor, which has predictions alone to compare, these.
        Predictions alone usually take 0.5 to 0.85 of the time.
    random_state : int, RandomState or None, default None
    sample_weight, noise_variance : array-like, (n,), optional
        Those of the fit. The exact GP has the same noise at every row.

    Returns
    -------
    Certificate

    Notes
    -----
    More rank adds pivots to those of a smaller rank (up to 50,000 rows), so the bounds without randomness from the rank
    alone shrink with it, up to rounding. More products shrink the bound on the means, which is that of the best of all
    steps; the widths of the others, and of random bounds, may grow a little from one step to the next.

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
    if isinstance(model, type) or not hasattr(model, "current_model"):
        raise DataError(f"certify needs a fitted model of this library, not {type(model).__name__}")
    check_is_fitted(model)
    check_number("certify", "rank", rank, low=1, integer=True, optional=True)
    check_number("certify", "products", products, low=0, integer=True, optional=True)
    check_number("certify", "seconds", seconds, low=0, optional=True)
    check_number("certify", "tolerance", tolerance, low=0)
    parts = _check_parts(_default_parts(model, parts), X_test)
    check_choice("certify", "reference", reference, REFERENCES)
    if not isinstance(delta, (int, float)) or not 0.0 <= delta < 1.0:
        raise DataError(f"certify: delta={delta!r} must be at least 0 and below 1")
    with limit_blas_threads():
        noise = sample_weight, noise_variance
        problems = problems_of(model, X, y, X_test, reference=reference, noise=noise)
        seed, count = int(Streams(random_state).generator("certificate").integers(2**31)), len(problems)
        shares = {"seconds": None if seconds is None else seconds / count, "delta": delta / count}
        common: dict[str, Any] = {"rank": rank, "products": products, "tolerance": tolerance, "parts": parts, **shares}
        found = [
            certify_problem(problem, Effort.auto(problem.n, seed=seed + k, **common))
            for k, problem in enumerate(problems)
        ]
    certificates = [_certificate(model, problem, each) for problem, each in zip(problems, found, strict=True)]
    mixture = spectral_part(model.model_.predictor)
    return _ensemble(model, mixture, problems, found, certificates) if isinstance(mixture, Mixture) else certificates[0]


def _default_parts(model: Certifiable, parts: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Predictions alone for a neighbour GP."""
    if not isinstance(model.model_.predictor, NeighborModel):
        return parts
    if parts not in (None, _PREDICTIONS, [_PREDICTIONS], (_PREDICTIONS,)):
        raise DataError(
            f"certify: parts={parts!r}, but a {type(model).__name__} has no kernel matrix and no evidence that "
            'approximate those of the exact GP; certify its predictions: X_test=..., parts="predictions"'
        )
    return _PREDICTIONS


def _check_parts(parts: str | Sequence[str] | None, X_test: Any) -> tuple[str, ...]:
    given = [parts] if isinstance(parts, str) else PARTS if parts is None else parts
    chosen = tuple(each for each in PARTS if isinstance(given, Sequence) and each in given)
    if not chosen or len(chosen) != len(given):
        raise DataError(f"certify: parts={parts!r} must be one or several of {', '.join(map(repr, PARTS))}")
    if parts is not None and ("predictions" in chosen) != (X_test is not None):
        what = "they need X_test" if X_test is None else "X_test is for them alone"
        raise DataError(f"certify: parts={parts!r} and predictions: {what}")
    return chosen


def _certificate(model: Certifiable, problem: Problem, found: Findings) -> Certificate:
    """The certificate of one member, in the data's units."""
    name = type(model).__name__
    moved = -problem.n * float(np.log(model.model_.standardiser.y_scale).sum())
    intervals = [each for each in (found.spectral, found.frobenius, found.log_evidence, found.variance) if each]
    noise = None if problem.test is None else problem.test.noise
    mean, variance, noise = _to_data_units(model, found.mean, found.variance, noise)
    return Certificate(
        name=f"{name}, {problem.name}" if isinstance(spectral_part(model.model_.predictor), Mixture) else name,
        statement=problem.statement,
        rows=problem.n,
        kernel_error=found.spectral,
        kernel_error_frobenius=found.frobenius,
        log_evidence=found.log_evidence and found.log_evidence.map(lambda value: value + moved),
        mean=mean,
        variance=variance,
        noise_variance=noise,
        probability=max(0.0, 1.0 - sum(1.0 - each.probability for each in intervals)),
        holds=not found.reason,
        reason=found.reason,
        assumptions=_ASSUMPTIONS,
        spent=found.spent,
        paper_bounds=_paper_bounds(found, found.spectral, problem) if found.spectral is not None else {},
    )


def _to_data_units(
    model: Certifiable, mean: Interval | None, variance: Interval | None, noise: Array | None
) -> tuple[Interval | None, Interval | None, Array | None]:
    """Predictions in the model's units, (m, q), in those of the data, (m,) or (m, q); None where there are none."""
    scale, shift = model.model_.standardiser.y_scale, model.model_.standardiser.y_shift

    def as_target(values: Array) -> Array:
        return values[:, 0] if model.model_.target_ndim == 1 else values

    return (
        mean and mean.map(lambda values: as_target(values * scale + shift)),
        variance and variance.map(lambda values: as_target(values * scale**2)),
        None if noise is None else as_target(noise * scale**2),
    )


def _ensemble(
    model: Certifiable,
    mixture: Mixture,
    problems: list[Problem],
    found: list[Findings],
    certificates: list[Certificate],
) -> Certificate:
    """The mixture with every member replaced by its exact GP."""
    means = [each.mean for each in found if each.mean is not None]
    variances = [each.variance for each in found if each.variance is not None]
    noises = [problem.test.noise for problem in problems if problem.test is not None]
    mean = variance = noise = None
    if means:
        weights, temperature = np.array(mixture.weights, dtype=float), np.asarray(mixture.temperature)
        mean, variance = mix_intervals(weights, temperature, means, variances)
        noise = temperature * (weights[:, None, None] * np.stack(noises)).sum(0)
    mean, variance, noise = _to_data_units(model, mean, variance, noise)
    failing = [each for each in certificates if not each.holds]
    statements = [each.statement for each in certificates]
    same = statements[0].replace("inputs", "inputs as that member")
    what = same if len(set(statements)) == 1 else "its own exact GP, which the certificate of that member names"
    spent = {key: sum(each.spent[key] for each in certificates) for key in ("products", "seconds")}
    return Certificate(
        name=type(model).__name__,
        statement=f"the same mixture with every member replaced by {what}" + _without_neighbors(mixture, model),
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


def _without_neighbors(mixture: Mixture, model: Certifiable) -> str:
    if mixture is model.model_.predictor:
        return ""
    return "; the neighbours that the model adds to this mixture are left out, and nothing is said of them"


def mix_intervals(
    weights: Array, temperature: Array, means: list[Interval], variances: list[Interval]
) -> tuple[Interval, Interval]:
    """Moments of a mixture by interval arithmetic: ``m = sum w m_k``, ``v = T sum w (v_k + (m_k - m)^2)``.

    Means and variances are those of the k members, (m, q) each, with the models' own values; the temperature is (q,)
    or a number.
    """
    w = weights[:, None, None]

    def ends(members: list[Interval]) -> tuple[Array, Array]:
        return np.stack([each.lower for each in members]), np.stack([each.upper for each in members])

    own, spreads = (np.stack([each.ours for each in members]) for members in (means, variances))
    centre = (w * own).sum(0)
    own_variance = temperature * (w * (spreads + (own - centre) ** 2)).sum(0)
    if not all(each.finite for each in (*means, *variances)):  # nothing is known of a member, and so of the mixture
        return Interval.unknown(centre), Interval.unknown(own_variance, least=0.0)
    low, high = ends(means)
    lower, upper = (w * low).sum(0), (w * high).sum(0)
    # m_k - m = (1 - w_k) m_k - sum of the others.
    away_low = (1 - w) * low - (upper - w * high)
    away_high = (1 - w) * high - (lower - w * low)
    square_high = np.maximum(away_low**2, away_high**2)
    square_low = np.where((away_low < 0) & (away_high > 0), 0.0, np.minimum(away_low**2, away_high**2))

    def mix(members: list[Interval]) -> Interval:
        least, most = ends(members)
        least, most = (temperature * (w * each).sum(0) for each in (least + square_low, most + square_high))
        probability = 1.0 - sum(1.0 - each.probability for each in members)
        return Interval(least, most, probability, "members together", own_variance)

    variance = mix(variances)
    if variance.probability < 1.0:
        variance = variance.within(mix([each.certain or each for each in variances]), method=variance.method)
    return Interval(lower, upper, 1.0, "members together", centre), variance


def _paper_bounds(found: Findings, spectral: Interval, problem: Problem) -> dict[str, Any]:
    """The paper's own bounds (Theorems 3 and 4, Lemmas 7 to 12) as printed, beside the additive one that is true.

    The additive one is e(Theta) of the corrected Lemma 11, too: the evidences of two GPs at their own optima differ by
    at most the larger of its values at the two.

    At the certified kernel error; of several outputs or rows with noise of their own, the least noise counts. Each
    entry has a ``value``, whether it is ``valid``, and ``why``.
    """
    error, noise = float(spectral.upper), float(problem.ratio.min())
    if problem.weight is not None:
        noise /= float(problem.weight.max())
    c, largest = error / noise, found.largest
    above, below = math.log1p(c), abs(math.log1p(-c)) if c < 1.0 else math.inf

    def tau(largest: float) -> float:
        """Lemma 9's constant for a matrix with eigenvalues from zero to this."""
        ends = abs(math.log(noise)), abs(math.log(largest + noise)) if math.isfinite(largest) else 0.0
        return max(above, below) / min(ends) if min(ends) > 0.0 else math.inf

    def entry(value: float, why: str, *, proved: bool = False) -> dict[str, Any]:
        why = why if proved else f"heuristic: {why}"
        return {"value": value if math.isfinite(value) else None, "valid": proved and not found.reason, "why": why}

    variance = (
        "Theorem 3 says the variance is right to this factor plus this; true with the exact k_* in both variances, "
        "false for an SSGP, which approximates k_* too"
    )
    lemma_10 = "Lemma 10; false where eigenvalues plus noise lie on both sides of one"
    if holds_10 := c < 1.0 and noise >= 1.0:
        lemma_10 = "Lemma 10 for l in units of the signal variance; true, as the noise is at least one and c below one"
    theorem_4 = (
        "rho of Theorem 4, at the model's parameters; false. Its other constant needs the exact GP's own optimum"
    )
    additive = 0.5 * (len(problem.ratio) * problem.n * above + c * found.quadratic)
    formula = "corrected Lemma 10: |l - l'| <= 1/2 (n log(1 + c) + c y'Q^-1 y), c = lambda / noise"
    odds = f"lambda, the kernel error; probability {spectral.probability:.4g}"
    return {
        "closeness": entry(error, odds, proved=True),
        "mean_factor": entry(c, "Theorem 3 says the mean is right to this factor; false, even with the exact k_*"),
        "variance_factor": entry(c, variance),
        "evidence_factor": entry(max(tau(largest), c), lemma_10, proved=holds_10),
        "optimised_mean_factor": entry(max(tau(largest), tau(largest + error), c), f"{theorem_4}, which is unknown"),
        "evidence_difference": entry(additive, formula, proved=True),
    }
