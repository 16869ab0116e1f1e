"""Single runs of the accuracy and the efficiency benchmark: what they are, how one is made, where it is stored.

A suite (``accuracy.py``, ``efficiency.py``) says which runs it wants, ``_plan.py`` carries them out, each in a
process of its own. Results lie in ``RESULTS/SUITE/DATASET-SPLIT-MODEL-pP.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import load_split, scores

from experiments.lab._folder import Store
from experiments.lab._jobs import Job
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp._validate import compute_device
from prismgp.core.exact import check_memory, required_bytes

# Training rows, to within one; they order the plan before any data is read.
DATASETS = {
    "abalone": 3_000,
    "elevators": 14_939,
    "pol": 13_500,
    "kin40k": 36_000,
    "keggdirected": 43_944,
    "pumadyn32nm": 7_372,
    "concrete": 927,
    "energy": 691,
    "airfoil": 1_352,
}
MODELS = {
    "exact": "exact GP",
    "ssgp": "SSGP",
    "paper": "PrismGP, paper's recipe",
    "prism": "PrismGP",
    "prism1": "PrismGP, one member",
}
# One member each, with one thing changed; what their names mean is said where the table is made (variants.py).
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {"noise_model": "input", "dropout": 0.0},
    "constant-noise": {"noise_model": "constant"},
    "dropout-05": {"dropout": 0.05},
    "dropout-10": {"dropout": 0.1},
    "no-gates": {"gating": "none"},
    "hard-gates": {"gating": "hard"},
    "no-elbo": {"elbo_weight": 0.0},
    "elbo-ten-times": {"elbo_weight": 0.01},
    "half-network": {"hidden": (64, 64)},
    "paper-network": {"hidden": 10, "latent_dim": 4},
    "half-batch": {"batch_size": 256},
}
MODELS |= {name: f"one member, {name}" for name in VARIANTS}
EXACT_ROWS = 8_000  # on which the exact GP learns its parameters when there are more than EXACT_LIMIT rows
# The evidence has local optima: from one start, the energy data ends in a poor one for some orders of the rows.
EXACT_RESTARTS = 4
EXACT_LIMIT = 9_000
_NOMINAL_BYTES = 2**30  # memory set aside for a run that is not an exact GP


@dataclass(frozen=True)
class Run:
    """One fit: a data set, a split, a model, and its frequencies (None for the exact GP)."""

    dataset: str
    split: int
    model: str
    p: int | None

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.split}-{self.model}" + (f"-p{self.p}" if self.p else "")

    @property
    def cost(self) -> float:
        """Rough count of operations: good enough to put the short runs first."""
        n = DATASETS[self.dataset]
        if self.p is None:
            return 150.0 * min(n, EXACT_ROWS) ** 3 + n**3
        members = {"ssgp": 1, "prism": 40}.get(self.model, 10)
        return 5_000.0 * members * n * (2 * self.p) ** 2

    @property
    def memory(self) -> int:
        """Bytes it may need at its peak."""
        return max(_NOMINAL_BYTES, required_bytes(DATASETS[self.dataset]) if self.p is None else 0)


@dataclass(frozen=True)
class Suite:
    """Which runs a benchmark wants when it is not told otherwise."""

    name: str
    models: tuple[str, ...]
    splits: Callable[[str], Iterable[int]]  # of a data set
    frequencies: Callable[[int], Iterable[int]]  # of a split
    datasets: tuple[str, ...] = tuple(DATASETS)

    def plan(
        self,
        datasets: Iterable[str] | None = None,
        splits: Iterable[int] | None = None,
        models: Iterable[str] | None = None,
        frequencies: Iterable[int] | None = None,
    ) -> list[Run]:
        """All runs, data set by data set; what is given replaces the suite's own choice."""
        runs = []
        for dataset in datasets or self.datasets:
            for split in splits or self.splits(dataset):
                for model in models or self.models:
                    choices = (None,) if model == "exact" else frequencies or self.frequencies(split)
                    runs += [Run(dataset, split, model, p) for p in choices]
        return list(dict.fromkeys(runs))


# -- storage -------------------------------------------------------------------------------------


def store_of(results: Path, suite: str) -> Store:
    return Store(results / suite)


def stored(results: Path, suite: str, runs: Iterable[Run]) -> dict[Run, dict[str, Any]]:
    """The runs that have a file."""
    store = store_of(results, suite)
    return {run: found for run in runs if (found := store.get(run.name)) is not None}


def finished(results: Path, suite: str, runs: Iterable[Run]) -> dict[Run, dict[str, Any]]:
    """The runs that have scores."""
    return {run: found for run, found in stored(results, suite, runs).items() if "failed" not in found}


def failed(results: Path, suite: str, runs: Iterable[Run]) -> dict[Run, str]:
    """The runs that were tried and have none, most often for want of memory, with the message."""
    return {run: found["failed"] for run, found in stored(results, suite, runs).items() if "failed" in found}


# -- one run, in a process of its own ------------------------------------------------------------


def fit_exact(x: np.ndarray, y: np.ndarray, common: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The exact GP; for many rows the parameters come from some of them, the posterior from all."""
    if len(y) <= EXACT_LIMIT:
        return ExactGPRegressor(n_restarts=EXACT_RESTARTS, **common).fit(x, y), {}
    device = compute_device(common["device"])
    check_memory(len(y), 1, device)  # before the minutes of learning
    some = np.random.default_rng(common["random_state"]).choice(len(y), EXACT_ROWS, replace=False)
    small = ExactGPRegressor(n_restarts=EXACT_RESTARTS, **common).fit(x[some], y[some])
    names = ("lengthscale", "signal_variance", "noise_variance", "mean")
    known = {name: getattr(small, f"{name}_") for name in names}
    del small
    if device.type == "cuda":
        torch.cuda.empty_cache()  # kept blocks would count as taken when the next fit looks for memory
    return ExactGPRegressor(optimize=False, **known, **common).fit(x, y), {"exact_rows": EXACT_ROWS}


def fit(run: Run, x: np.ndarray, y: np.ndarray, device: str) -> tuple[Any, dict[str, Any]]:
    """The fitted model, and what is special about the fit."""
    common: dict[str, Any] = {"device": device, "random_state": run.split}
    if run.p is None:
        return fit_exact(x, y, common)
    if run.model == "ssgp":
        return SSGPRegressor(run.p, **common).fit(x, y), {}
    from prismgp import PrismGPRegressor  # here, so that the other models run where it is absent

    own: dict[str, dict[str, Any]] = {"paper": {"recipe": "paper"}, "prism": {}, "prism1": {"n_members": 1}}
    own |= {name: {"n_members": 1, **VARIANTS["base"], **changed} for name, changed in VARIANTS.items()}
    return PrismGPRegressor(run.p, **own[run.model], **common).fit(x, y), {}


def warm_up(device: str) -> None:
    """The first use of a GPU loads its libraries; that is no part of a fit."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 2)), rng.standard_normal(64)
    for model in (ExactGPRegressor(device=device, max_iter=2), SSGPRegressor(4, device=device, max_iter=2)):
        model.fit(x, y).predict(x, return_std=True)


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Fit, predict the test rows, score."""
    run, device = Run(*(order[name] for name in ("dataset", "split", "model", "p"))), order["device"]
    x, y, x_test, y_test = load_split(run.dataset, run.split)
    if device == "cuda":
        warm_up(device)
    began = time.perf_counter()
    model, special = fit(run, x, y, device)
    if device == "cuda":
        torch.cuda.synchronize()
    fitted = time.perf_counter()
    mean, std = model.predict(x_test, return_std=True)
    seconds = {"fit_seconds": fitted - began, "predict_seconds": time.perf_counter() - fitted}
    scale = float(y.std())
    score = scores(y_test, mean, std, scale)
    if run.model not in ("exact", "ssgp"):
        # Of the mixture of the members itself, in the same units as the NLPD of the Gaussian.
        score["nlpd_mixture"] = float(-np.mean(model.log_density(x_test, y_test)) - np.log(scale))
    sizes = {"rows": len(y), "inputs": x.shape[1], "test_rows": len(y_test)}
    return {**sizes, **special, **score, **seconds}


def command_of(suite: str, run: Run, device: str) -> str:
    """What repeats one run alone, from the repository's root."""
    frequencies = f" --p {run.p}" if run.p else ""
    chosen = f"--datasets {run.dataset} --splits {run.split}-{run.split} --models {run.model}{frequencies}"
    return f"python benchmarks/{suite}.py {chosen} --device {device} --force"


def job_of(suite: str, run: Run, device: str, at_a_time: int) -> Job:
    about = {"command": command_of(suite, run, device), "jobs": at_a_time, "seed": run.split, "device": device}
    return Job(run.name, f"{__name__}:measure", {**about, **asdict(run)}, run.memory)
