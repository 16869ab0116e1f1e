"""What must hold for every model, whatever the rows are."""

from __future__ import annotations

import copy
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import prismgp
from experiments.internals import Array
from experiments.robustness.problems import Problem
from prismgp.exceptions import PrismGPWarning

__all__ = ["INVARIANTS", "check_problem"]

_FAR = 1e3  # times the spread of a column, for points where no data are


class _ViolatedError(Exception):
    """An invariant does not hold."""


def check_problem(problem: Problem) -> list[str]:
    """Fit, and check all invariants; what is violated, empty if nothing is. Every error and warning counts."""
    complaints: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrismGPWarning)  # what users are told is no mistake
        try:
            problem.model.fit(problem.X, problem.y, **problem.fit_options)
        except Exception:  # noqa: BLE001  whatever it is, it is what is looked for
            return [f"fit: {_last_lines()}"]
        for name, check in INVARIANTS.items():
            try:
                check(problem)
            except _ViolatedError as error:
                complaints.append(f"{name}: {error}")
            except Exception:  # noqa: BLE001  the same
                complaints.append(f"{name}: {_last_lines()}")
    return complaints


def _last_lines() -> str:
    return " | ".join(traceback.format_exc().strip().splitlines()[-5:])


def _demand(condition: Any, text: str) -> None:
    if not np.all(condition):
        raise _ViolatedError(text)


def _scale(problem: Problem) -> Any:
    """The spread of each target, or its size where it is constant."""
    y = np.asarray(problem.y).reshape(len(problem.y), -1)
    spread = np.maximum(y.std(axis=0), 1e-12 * np.abs(y).max(axis=0))
    return np.where(spread > 0, spread, 1.0).reshape(-1 if np.ndim(problem.y) > 1 else ())


def _close(problem: Problem, found: Any, expected: Any, what: str, loosen: float = 1.0) -> None:
    room = loosen * problem.tolerance * (_scale(problem) + np.abs(expected))
    apart = np.abs(np.asarray(found) - np.asarray(expected)) / room
    _demand(apart <= 1.0, f"{what} differ by {float(np.max(apart)):.3g} times the tolerance")


def _points(problem: Problem) -> list[Any]:
    """Training rows, new rows, and rows far away."""
    if isinstance(problem.X, pd.DataFrame):
        return [problem.X, problem.new]
    spread = np.abs(problem.X).max(axis=0) + problem.X.std(axis=0)
    return [problem.X, problem.new, problem.new + _FAR * np.where(spread > 0, spread, 1.0)]


def _predictions(problem: Problem) -> None:
    """Finite; with noise at least as uncertain as without."""
    for x in _points(problem):
        mean, std = problem.model.predict(x, return_std=True)
        _, latent = problem.model.predict(x, return_std=True, include_noise=False)
        _demand(np.isfinite(mean), "a mean is not finite")
        _demand(np.isfinite(std) & (std > 0), "a standard deviation is not a positive number")
        _demand(np.isfinite(latent) & (latent >= 0), "a standard deviation without noise is negative or not finite")
        _demand(latent <= std * (1 + 1e-6), "noise makes a prediction more certain")
        _demand(np.shape(mean) == np.shape(std), "mean and standard deviation differ in shape")


def _intervals(problem: Problem) -> None:
    """Ordered, nested, and as the quantiles say."""
    x = problem.new
    wide, narrow = (np.asarray(problem.model.predict_interval(x, level)) for level in (0.95, 0.5))
    _demand(np.isfinite(wide), "an end of an interval is not finite")
    _demand(wide[..., 0] < wide[..., 1], "an interval is empty")
    slack = 1e-9 * np.abs(wide)
    inside = (wide[..., 0] <= narrow[..., 0] + slack[..., 0]) & (narrow[..., 1] <= wide[..., 1] + slack[..., 1])
    _demand(inside, "an interval of 50% is not inside of that of 95%")
    quantiles = np.asarray(problem.model.predict_quantiles(x, [0.025, 0.25, 0.5, 0.75, 0.975]))
    _demand(np.isfinite(quantiles), "a quantile is not finite")
    _demand(np.diff(quantiles, axis=-1) >= -1e-9 * np.abs(quantiles[..., 1:]), "quantiles are not ordered")


def _densities(problem: Problem) -> None:
    density = problem.model.log_density(problem.X, problem.y)
    _demand(np.isfinite(density), "a log density is not finite")
    _demand(np.isfinite(problem.model.log_evidence_), "the log evidence is not finite")


def _samples(problem: Problem) -> None:
    draws = problem.model.sample_y(problem.new[:5], 3, random_state=0)
    _demand(np.isfinite(draws), "a draw is not finite")


def _parts(problem: Problem) -> None:
    """The prediction of a row does not depend on the rows beside it."""
    x = problem.new
    mean, std = problem.model.predict(x, return_std=True)
    for part in (slice(0, 1), slice(3, 10)):
        own_mean, own_std = problem.model.predict(x[part], return_std=True)
        _close(problem, own_mean, mean[part], "means of parts")
        _close(problem, own_std, std[part], "standard deviations of parts")


def _files(problem: Problem) -> None:
    """A model that is saved and loaded predicts the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.prism"
        problem.model.save(path)
        loaded = prismgp.load(path, device=problem.about["device"])
        both = zip(_both(loaded, problem.new), _both(problem.model, problem.new), strict=True)
        _demand([np.array_equal(found, expected) for found, expected in both], "a loaded model predicts otherwise")


def _repetition(problem: Problem) -> None:
    """The same seed gives the same bits; on one problem in eight, as it takes another fit."""
    if problem.seed % 8 or problem.about["device"] != "cpu":
        return
    again = copy.deepcopy(problem.model).fit(problem.X, problem.y, **problem.fit_options)
    both = zip(_both(again, problem.new), _both(problem.model, problem.new), strict=True)
    _demand([np.array_equal(found, expected) for found, expected in both], "the same fit gives another model")


def _order(problem: Problem) -> None:
    """Without optimisation, the order of the rows makes no difference to an exact GP and to an SSGP."""
    model = problem.model
    if model.optimize or problem.name not in ("exact", "ssgp"):
        return
    order = np.random.default_rng(problem.seed).permutation(len(problem.y))
    X = problem.X.iloc[order] if isinstance(problem.X, pd.DataFrame) else problem.X[order]
    noise = {name: values[order] for name, values in problem.fit_options.items()}
    points = problem.new
    if isinstance(problem.X, pd.DataFrame):
        X, points = X.reset_index(drop=True), problem.X
        # Unknown cells are averaged over a choice of rows, and effects of categories are out of fold: by the order.
        if problem.X.isna().to_numpy().any() or any(problem.X[name].nunique() > 30 for name in problem.X):
            return
    other = copy.deepcopy(model).fit(X, problem.y[order], **noise)
    for found, expected, what in zip(_both(other, points), _both(model, points), ("means", "stds"), strict=True):
        _close(problem, found, expected, f"{what} after a permutation of the rows", loosen=100.0)


def _both(model: Any, x: Any) -> tuple[Array, Array]:
    mean, std = model.predict(x, return_std=True)
    return mean, std


INVARIANTS: dict[str, Callable[[Problem], None]] = {
    "predictions": _predictions,
    "intervals": _intervals,
    "densities": _densities,
    "samples": _samples,
    "parts": _parts,
    "files": _files,
    "repetition": _repetition,
    "order": _order,
}
