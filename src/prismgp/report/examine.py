"""The numbers of a report about a fitted model on given rows; nothing is drawn or written here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from prismgp._types import AnyArray, Array
from prismgp._validate import check_output
from prismgp.certificates import Certificate, certify
from prismgp.core.models import normal_quantile
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.metrics import coverage, rmse
from prismgp.plots import (
    CalibrationDisplay,
    HistoryDisplay,
    InputTable,
    PartialDependenceDisplay,
    RelevanceDisplay,
    ResidualsDisplay,
    sample_rows,
)

__all__ = ["Examination", "Group", "Measure", "certify_quickly", "examine"]

LEVEL = 0.95
SHOWN_CURVES = 6  # columns with a curve of partial dependence
CERTIFIED_ROWS = 200
_PERMUTED_CELLS = 20_000  # rows times columns: permutations cost a prediction of all rows for each column
_MOST_PERMUTED, _LEAST_PERMUTED = 1_000, 200
_REPEATS = 2
_BINS, _CATEGORIES = 5, 12
_SMALLEST_GROUP, _SMALLEST_SHARE = 30, 0.02


class Measure(NamedTuple):
    """One score of the predictions."""

    name: str
    value: float
    error: float  # standard error of the value, over the rows
    constant: float  # of a model that always predicts mean and standard deviation of the rows, as a normal distribution
    with_std: bool  # whether it is about error bars


class Group(NamedTuple):
    """Rows whose cells in one column are alike."""

    column: str
    cells: str  # which cells these are
    rows: int
    rmse: float
    bias: float  # mean of observed minus predicted
    coverage: float  # of the 95% intervals


@dataclass(frozen=True)
class Examination:
    """Everything that is computed about a model on n rows.

    Attributes
    ----------
    estimator : fitted regressor
    target : str
    table : InputTable
    numbers : ndarray of int, (n,)
        Row numbers in the user's table.
    y, mean, std, lower, upper : ndarray, (n,)
        Observations, predictions, and the ends of the 95% intervals.
    measures : list of Measure
    by_certainty : list of (float, float)
        Shares of the rows, those with the smallest std first, and their RMSE.
    groups : list of Group
        Those with the largest RMSE first.
    n_groups : int
        Of how many these are.
    surprising, uncertain : ndarray of int
        Positions of the rows with the largest errors in units of std, and of those with the largest std.
    calibration, residuals, relevance, dependence, history
        The displays, with their numbers; ``history`` is None where the model has none.
    certificate : Certificate or None
    """

    estimator: Any
    target: str
    table: InputTable
    numbers: AnyArray
    y: Array
    mean: Array
    std: Array
    lower: Array
    upper: Array
    measures: list[Measure]
    by_certainty: list[tuple[float, float]]
    groups: list[Group]
    n_groups: int
    surprising: AnyArray
    uncertain: AnyArray
    calibration: CalibrationDisplay
    residuals: ResidualsDisplay
    relevance: RelevanceDisplay
    dependence: PartialDependenceDisplay
    history: HistoryDisplay | None
    certificate: Certificate | None = None

    @property
    def relevant(self) -> list[int]:
        """Columns, the most relevant first."""
        return [int(k) for k in self.relevance.order]


def examine(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    target: str = "target",
    output: int = 0,
    numbers: AnyArray | None = None,
    training: Sequence[Any] | None = None,
    seconds: float = 20.0,
    shown: int = 10,
    random_state: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Examination:
    """Predict rows that the fit has not seen, and compute all that a report shows.

    Parameters
    ----------
    estimator : fitted regressor of this library
    X : array-like or frame, (n, d)
    y : array-like, (n,) or (n, q)
        All targets of the model.
    target : str
        Name of the target that the report is about.
    output : int, default 0
        Which column of y that is.
    numbers : ndarray of int, (n,), optional
        Row numbers in the user's table; None: from 1 on.
    training : sequence, optional
        Rows and targets of the fit, and their weights and known noise variances if it had them, for a certificate;
        None: no certificate.
    seconds : float, default 20
        Time for the products of the certificate.
    shown : int, default 10
        Rows and groups in the lists.
    random_state : int, default 0
    progress : callable
        Told what is done next.

    Returns
    -------
    Examination
    """
    targets = np.asarray(y, dtype=np.float64)
    n, q = len(targets), estimator.model_.n_outputs
    check_output("examine", output, q)
    if n < 2:
        raise DataError(f"{n} row with a target; a report needs at least 2")
    if targets.size != n * q:
        raise DataError(f"y is {targets.shape}, but the model has {q} targets: give all of them, and output= for one")
    targets = targets.reshape((n,) if estimator.model_.target_ndim == 1 else (n, q))  # as the model takes them
    observed = targets.reshape(n, q)[:, output]
    table = InputTable(estimator, X)
    progress(f"predicting {n:,} rows")
    mean, std = (
        np.asarray(each, dtype=np.float64).reshape(n, q)[:, output]
        for each in estimator.predict(table.rows, return_std=True)
    )
    log_density = estimator.log_density(table.rows, targets, output=output)
    ends = np.asarray(estimator.predict_interval(table.rows, LEVEL), dtype=np.float64)
    lower, upper = ends.reshape(n, q, 2)[:, output].T
    of_output: dict[str, Any] = {"output": output, "plot": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrismGPWarning)  # of unseen categories; said once, above
        calibration = CalibrationDisplay.from_estimator(estimator, table.rows, targets, **of_output)
        rows = max(_LEAST_PERMUTED, min(_MOST_PERMUTED, _PERMUTED_CELLS // len(table.names)))
        progress(f"permuting {len(table.names):,} columns of {min(rows, n):,} rows")
        relevance = RelevanceDisplay.from_estimator(
            estimator, table.rows, targets, n_repeats=_REPEATS, max_rows=rows, random_state=random_state, **of_output
        )
        known = [int(k) for k in relevance.order if table.cells(int(k)).notna().any()][:SHOWN_CURVES]
        progress(f"varying {len(known)} columns")
        dependence = PartialDependenceDisplay.from_estimator(
            estimator, table.rows, features=known, random_state=random_state, target=target, **of_output
        )
    residual = observed - mean
    groups = find_groups(table, observed, mean, lower, upper)
    certificate = None
    if training is not None:
        progress("bounding the distance from the exact GP")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrismGPWarning)
            certificate = certify_quickly(estimator, training, table, seconds=seconds, random_state=random_state)
            certificate = certificate.of_output(output)
    return Examination(
        estimator,
        target,
        table,
        np.arange(1, n + 1) if numbers is None else numbers,
        observed,
        mean,
        std,
        lower,
        upper,
        measure(observed, mean, log_density, lower, upper),
        _by_certainty(observed, mean, std),
        groups[:shown],
        len(groups),
        np.argsort(-np.abs(residual) / std, kind="stable")[:shown],
        np.argsort(-std, kind="stable")[:shown],
        calibration,
        ResidualsDisplay(std, residual),
        relevance,
        dependence,
        HistoryDisplay.from_estimator(estimator, plot=False) if _has_history(estimator) else None,
        certificate,
    )


def measure(y: Array, mean: Array, log_density: Array, lower: Array, upper: Array) -> list[Measure]:
    """Score predictions, their means alone and with their error bars, beside those of a constant."""
    n, spread = len(y), float(y.std())
    off, half = np.abs(y - y.mean()), normal_quantile(0.5 + LEVEL / 2) * spread

    def standard_error(values: AnyArray) -> float:
        return float(values.std(ddof=1) / np.sqrt(n))

    def average(values: AnyArray) -> tuple[float, float]:
        return float(values.mean()), standard_error(values)

    square, square_error = average(np.square(y - mean))
    root = rmse(y, mean)
    covered, covered_error = coverage(y, lower, upper), standard_error((lower <= y) & (y <= upper))
    explained = 1.0 - square / spread**2 if spread else float("nan")
    # A constant normal distribution has the entropy of its own variance.
    entropy = 0.5 * float(np.log(2 * np.pi * spread**2)) + 0.5 if spread else -float("inf")
    return [
        Measure("RMSE", root, square_error / (2 * root) if root else 0.0, spread, False),
        Measure("Mean absolute error", *average(np.abs(y - mean)), float(off.mean()), False),
        Measure("Explained variance", explained, square_error / spread**2 if spread else 0.0, 0.0, False),
        Measure("NLPD", *average(-log_density), entropy, True),
        Measure("95% intervals cover", covered, covered_error, coverage(off, np.zeros(n), np.full(n, half)), True),
        Measure("95% intervals, mean width", *average(upper - lower), 2 * half, True),
    ]


def _by_certainty(y: Array, mean: Array, std: Array) -> list[tuple[float, float]]:
    """Compute the RMSE of the rows with the smallest std, for several shares of all rows."""
    order = np.argsort(std, kind="stable")
    found = []
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        rows = order[: max(1, round(share * len(order)))]
        found.append((share, rmse(y[rows], mean[rows])))
    return found


def find_groups(table: InputTable, y: Array, mean: Array, lower: Array, upper: Array) -> list[Group]:
    """Group rows by the cells of one column: fifths of a scale, or a category; the largest RMSE first."""
    found = []
    least = max(_SMALLEST_GROUP, int(np.ceil(_SMALLEST_SHARE * len(y))))
    for column, name in enumerate(table.names):
        for cells, rows in _split(table, column):
            if least <= len(rows) < len(y):
                root, bias = rmse(y[rows], mean[rows]), float(np.mean(y[rows] - mean[rows]))
                found.append(Group(name, cells, len(rows), root, bias, coverage(y[rows], lower[rows], upper[rows])))
    return sorted(found, key=lambda group: -group.rmse)


def _split(table: InputTable, column: int) -> list[tuple[str, AnyArray]]:
    """Groups of rows by their cells in a column, with a description of the cells."""
    cells, scale = table.cells(column), table.scale(column)
    missing = np.flatnonzero(cells.isna().to_numpy())
    groups: list[tuple[str, AnyArray]] = [("missing", missing)] if len(missing) else []
    if scale is None:
        codes, values = pd.factorize(cells)
        frequent = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(values)), kind="stable")[:_CATEGORIES]
        return groups + [(format_cell(values[code]), np.flatnonzero(codes == code)) for code in frequent]
    known = np.flatnonzero(~pd.isna(scale))
    ranked = np.sort(scale[known])
    places = np.linspace(0, len(ranked) - 1, _BINS + 1).round().astype(int)
    edges = np.unique(ranked[places]) if len(ranked) else ranked
    for low, high in pairwise(edges):
        last = high == edges[-1]
        chosen = known[(scale[known] >= low) & ((scale[known] <= high) if last else (scale[known] < high))]
        groups.append((f"{format_cell(low)} to {format_cell(high)}", chosen))
    return groups


def _has_history(estimator: Any) -> bool:
    return any(len(values) > 1 for values in estimator.history_.values())


def certify_quickly(
    estimator: Any, training: Sequence[Any], table: InputTable, *, seconds: float, random_state: int = 0
) -> Certificate:
    """Bound the distance from the exact GP at up to 200 of the rows; `prismgp.certify` has no limit."""
    rows = sample_rows(len(table), CERTIFIED_ROWS, np.random.default_rng(random_state))
    options: dict[str, Any] = {"parts": "predictions", "seconds": seconds, "random_state": random_state}
    names = ("X", "y", "sample_weight", "noise_variance")
    return certify(estimator, X_test=table.take(rows), **dict(zip(names, training, strict=False)), **options)


# -- cells as text ---------------------------------------------------------------------------------


def format_cell(value: Any) -> str:
    """Format a cell of the user's table in few characters."""
    if value is None or value is pd.NaT or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "missing"
    if isinstance(value, np.datetime64 | pd.Timestamp):
        return str(pd.Timestamp(value)).removesuffix(" 00:00:00")
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        text = " ".join(str(value).split())
        return text if len(text) <= 40 else f"{text[:39]}…"
    return f"{float(value):.6g}"
