"""One fit of one entry, measured; runs in a process of its own."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from experiments.comparison.data import load, prepare
from experiments.comparison.entries import ENTRIES
from experiments.comparison.peers import fit_function, library_version
from experiments.internals import Array
from experiments.machine import peak_bytes, reset_peak
from experiments.scores import recalibrated_nlpd, score

__all__ = ["measure"]

_FIT_SHARE = 0.75  # of the seconds of a job, for a fit that ends by itself; the rest for prediction
_LEAST_STD = 1e-9


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Load, fit, predict, score.

    Parameters
    ----------
    order : dict
        "dataset", "split", "entry", "quick", "memory" (bytes), "limit_seconds" (None: no limit), "device" (that of
        the entry, if it can use one).
    """
    entry, seed, quick = ENTRIES[order["entry"]], int(order["split"]), bool(order["quick"])
    rows = prepare(load(order["dataset"], seed), seed=seed, quick=quick)
    n, d = rows.X.shape
    used = entry.rows(n, d, order["memory"])
    X, y = rows.X, rows.y
    if used < n:
        some = np.random.default_rng([seed, 2]).permutation(n)[:used]
        X, y = X[some], y[some]
    settings = {**entry.settings, **(entry.quick if quick else {})}
    timed = {"seconds": _FIT_SHARE * order["limit_seconds"] if order["limit_seconds"] else 1e9} if entry.timed else {}
    if order["device"] != "cpu":
        settings["device"] = order["device"]
        torch.zeros(1, device=order["device"])  # loading the GPU's libraries is no part of the fit, either
    fit = fit_function(entry.fit)  # imports the library, which is no part of the fit
    before, loaded = peak_bytes(), reset_peak()

    began = time.perf_counter()
    fitted = fit(X, y, seed=seed, **settings, **timed)
    fit_seconds = time.perf_counter() - began
    fit_peak = peak_bytes()
    began = time.perf_counter()
    mean, std = fitted.predict(rows.X_test)
    predict_seconds = time.perf_counter() - began

    result: dict[str, Any] = {
        "label": entry.label,
        "library": entry.library.name,
        "library_version": library_version(entry.library),
        "rows": n,
        "rows_used": used,
        "inputs": d,
        "test_rows": len(rows.y_test),
        "settings": {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        "threads": torch.get_num_threads(),
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
        "peak_bytes": max(before, peak_bytes()),
        "fit_peak_bytes": max(0, fit_peak - loaded),
        "facts": fitted.facts,
        **_scores(rows.y_test, mean, std),
    }
    density = getattr(fitted, "log_density", None)
    if density is not None:  # of the predictive distribution itself, which need not be normal
        result["nlpd_own"] = float(-np.mean(density(rows.X_test, rows.y_test)))
    if entry.shaped:  # what it has learned from its training rows is not replaced
        result["nlpd_shaped"] = result["nlpd_own"]
    variants = getattr(fitted, "variants", None)
    if variants is not None:
        found = {name: _scores(rows.y_test, *each) for name, each in variants(mean, std).items()}
        result["also"] = {name: {**each, "label": entry.also[name]} for name, each in found.items()}
    return result


def _scores(y: Array, mean: Array, std: Array) -> dict[str, Any]:
    mean, std = np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64)
    bad = int((~np.isfinite(mean) | ~np.isfinite(std)).sum())
    if bad:
        raise ArithmeticError(f"{bad:,} of {len(y):,} predictions are not finite")
    std = np.maximum(std, _LEAST_STD)
    return {**score(y, mean, std, 1.0), "nlpd_shaped": recalibrated_nlpd(y, mean, std)}
