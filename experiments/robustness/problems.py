"""Random small regression problems: every one is valid, and most are unpleasant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.internals import AnyArray, Array
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = ["Problem", "devices", "make_problem"]

# How many of a hundred problems each estimator gets; those with networks take the longest.
_SHARES = {"exact": 30, "ssgp": 30, "gated": 10, "neighbors": 20, "prism": 7, "paper": 3}
_ROWS = (1, 2, 3, 5, 8, 13, 25, 40, 80, 150)
_KERNELS = ("rbf", "matern12", "matern32", "matern52")


@dataclass
class Problem:
    """Rows, an estimator for them, and rows to predict."""

    seed: int
    name: str
    model: Any
    X: Any  # an array, or a frame with text, dates and missing cells
    y: AnyArray
    fit_options: dict[str, AnyArray]  # weights or variances of the rows
    new: Any  # of the same columns as X
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """Of what may differ by rounding, relative to the spread of the target and the size of the prediction."""
        return 2e-2 if self.model.dtype == "float32" and self.name != "exact" else 1e-5


def devices() -> list[str]:
    """The devices at hand."""
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def make_problem(seed: int, device: str | None = None) -> Problem:
    """The problem of a seed, always the same; on a device of those at hand, by turns."""
    rng = np.random.default_rng([19, seed])
    here = devices()
    device = here[seed % len(here)] if device is None else device
    names, shares = list(_SHARES), np.array(list(_SHARES.values())) / 100
    name = str(rng.choice(names, p=shares))
    few = 25 if name in ("prism", "paper") and rng.uniform() < 0.3 else 0  # the networks' own path for few rows
    n = int(few or rng.choice(_ROWS[3:] if name in ("prism", "paper") else _ROWS))
    d, q = int(rng.integers(1, 8)), int(rng.choice([1, 1, 1, 2]))
    x = _inputs(rng, n + 20, d)
    y = _targets(rng, x, q)
    is_frame = rng.uniform() < 0.35
    table: Any = _frame(rng, x) if is_frame else x
    X, new = table[:n], table[n:]
    if is_frame:
        X, new = X.reset_index(drop=True), new.reset_index(drop=True)
    model = _estimator(rng, name, device, seed)
    options = _row_noise(rng, n, q, float(np.std(y[:n])) or 1.0)
    about = {"rows": n, "inputs": d, "outputs": q, "frame": is_frame, "noise": sorted(options), "device": device}
    return Problem(seed, name, model, X, y[:n, 0] if q == 1 else y[:n], options, new, about)


def _inputs(rng: np.random.Generator, n: int, d: int) -> Array:
    """Columns of all kinds of distributions and scales; duplicates, and columns that depend on others."""
    draw = (
        lambda: rng.normal(size=n),
        lambda: rng.uniform(size=n),
        lambda: rng.integers(0, 3, n).astype(float),
        lambda: np.clip(rng.standard_cauchy(n), -1e6, 1e6),
        lambda: np.exp(3 * rng.normal(size=n)),
        lambda: np.full(n, float(rng.normal())),
        lambda: np.sort(rng.normal(size=n)),
    )
    x = np.stack([draw[rng.choice(len(draw), p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1])]() for _ in range(d)], axis=1)
    if d > 1 and rng.uniform() < 0.3:
        x[:, -1] = x[:, :-1] @ rng.normal(size=d - 1) + rng.choice([0.0, 1e-9]) * rng.normal(size=n)
    if rng.uniform() < 0.3:
        x = x[rng.integers(0, max(1, n // 3), n)]
    if rng.uniform() < 0.4:
        x = x * 10.0 ** rng.uniform(-8, 8, d) + rng.choice([0.0, 1.0, 1e3]) * rng.normal(size=d)
    return np.ascontiguousarray(x)


def _targets(rng: np.random.Generator, x: Array, q: int) -> Array:
    spread = x.std(axis=0)
    z = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    base = (
        lambda: np.sin(2 * z[:, 0]) + z.sum(axis=1),
        lambda: (z[:, 0] > 0).astype(float),
        lambda: rng.normal(size=len(x)),
        lambda: np.zeros(len(x)),
        lambda: np.exp(np.clip(z[:, 0], -5, 5)),
    )
    columns = []
    for _ in range(q):
        y = base[rng.choice(len(base), p=[0.5, 0.15, 0.15, 0.05, 0.15])]()
        y = y + rng.choice([0.0, 1e-6, 0.1, 1.0]) * rng.normal(size=len(x))
        if rng.uniform() < 0.1:
            y[rng.integers(len(y))] += 1e3 * (np.std(y) or 1.0)
        columns.append(10.0 ** rng.uniform(-8, 8) * y + rng.choice([0.0, 1.0, 1e4]) if rng.uniform() < 0.4 else y)
    return np.stack(columns, axis=1)


def _frame(rng: np.random.Generator, x: Array) -> pd.DataFrame:
    """The columns with names, some of them as text, booleans or dates, and with missing cells."""
    frame = pd.DataFrame(x, columns=[f"c{k}" for k in range(x.shape[1])])
    for name in frame.columns:
        kind = rng.choice(["number", "text", "boolean", "date", "many"], p=[0.5, 0.2, 0.1, 0.1, 0.1])
        if kind == "text":
            frame[name] = rng.choice(["a", "b", "<c>", "=d", ""], len(frame))
        elif kind == "boolean":
            frame[name] = rng.uniform(size=len(frame)) < 0.5
        elif kind == "date":
            frame[name] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, len(frame)), unit="s")
        elif kind == "many":
            frame[name] = [f"k{each}" for each in rng.integers(0, 60, len(frame))]
        if rng.uniform() < 0.3:
            gone = rng.uniform(size=len(frame)) < rng.choice([0.05, 0.5])
            frame[name] = frame[name].astype(object).mask(gone) if kind == "boolean" else frame[name].mask(gone)
    return frame


def _row_noise(rng: np.random.Generator, n: int, q: int, scale: float) -> dict[str, AnyArray]:
    which = rng.choice(["none", "weights", "zeros", "extreme", "variances"], p=[0.6, 0.15, 0.1, 0.05, 0.1])
    if which == "variances" and q == 1:
        return {"noise_variance": scale**2 * rng.choice([0.0, 0.01, 1.0], n)}
    if which in ("none", "variances"):
        return {}
    weights = rng.uniform(0.5, 2.0, n)
    if which == "zeros":
        weights[rng.uniform(size=n) < 0.3] = 0.0
        weights[0] = 1.0
    if which == "extreme":
        weights = 10.0 ** rng.uniform(-6, 6, n)
    return {"sample_weight": weights}


def _estimator(rng: np.random.Generator, name: str, device: str, seed: int) -> Any:
    options: dict[str, Any] = {
        "kernel": str(rng.choice(_KERNELS)),
        "max_iter": int(rng.choice([1, 5, 20])),
        "n_restarts": int(rng.choice([0, 0, 0, 1])),
        "optimize": bool(rng.uniform() < 0.85),
        "device": device,
        "random_state": seed,
    }
    if name != "exact":
        options["dtype"] = str(rng.choice(["float64", "float64", "float32"]))
    p = int(rng.choice([1, 3, 16]))
    if name == "exact":
        return ExactGPRegressor(**options)
    if name == "ssgp":
        return SSGPRegressor(p, learn_frequencies=bool(rng.uniform() < 0.2), **options)
    if name == "gated":
        gating = str(rng.choice(["hard", "soft"]))
        return SSGPRegressor(p, gating=gating, n_components=int(rng.integers(1, 5)), **options)
    if name == "neighbors":
        return NeighborGPRegressor(n_neighbors=int(rng.choice([1, 4, 32])), **options)
    small = {"hidden": 8, "max_steps": 8, "batch_size": 32}
    recipe = "paper" if name == "paper" else "joint"
    own = {"n_components": 2} if recipe == "paper" else {"n_members": int(rng.integers(1, 3))}
    options["local"] = str(rng.choice(["auto", "never", "always"])) if recipe == "joint" else "never"
    return PrismGPRegressor(p, recipe=recipe, **small, **own, **options)
