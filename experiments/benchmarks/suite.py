"""What benchmarks of accuracy share: which runs there are, how one is made, closing tables.

A suite says which runs it wants. The key of a run is ``DATASET-SPLIT-MODEL-pP``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from experiments.internals import check_memory, compute_device, required_bytes, without_neighbours
from experiments.jobs import Job
from experiments.plan import Plan, add_run_options, known_names, parse_names, parse_numbers, parse_splits
from experiments.results import Record, Study
from experiments.scores import score
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.datasets import data_folder, load_abalone, load_uci, make_gas_sensor
from prismgp.exceptions import DataError
from prismgp.metrics import coverage

__all__ = [
    "DATASETS",
    "EXACT_LIMIT",
    "EXACT_ROWS",
    "MODELS",
    "SIMULATED",
    "VARIANTS",
    "Run",
    "Suite",
    "check_data",
    "closing",
    "describe",
    "load_split",
    "origin",
    "select_failed",
    "select_finished",
]

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
SIMULATED = {"gas10k": 8_000}  # the gas sensor array; in no suite unless it asks for it
_ROWS = DATASETS | SIMULATED
MODELS = {
    "exact": "exact GP",
    "ssgp": "SSGP",
    "paper": "PrismGP, paper's recipe",
    "prism": "PrismGP",
    "prism1": "PrismGP, one member",
}
# One member each, with one thing changed; variants.py says what the names mean.
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
LEVELS = (10, 25, 50, 75, 90, 95, 99)  # per cent, of central intervals whose coverage is measured
_NOMINAL_BYTES = 2**30  # memory set aside for a run that is not an exact GP


@dataclass(frozen=True)
class Run:
    """One fit: a data set, a split, a model, and its frequencies (None for the exact GP)."""

    dataset: str
    split: int
    model: str
    p: int | None

    @property
    def key(self) -> str:
        return f"{self.dataset}-{self.split}-{self.model}" + (f"-p{self.p}" if self.p else "")

    @property
    def cost(self) -> float:
        """Rough count of operations: good enough to put the short runs first."""
        n = _ROWS[self.dataset]
        if self.p is None:
            return 150.0 * min(n, EXACT_ROWS) ** 3 + n**3
        members = {"ssgp": 1, "prism": 40}.get(self.model, 10)
        return 5_000.0 * members * n * (2 * self.p) ** 2

    @property
    def memory(self) -> int:
        """Bytes it may need at its peak."""
        return max(_NOMINAL_BYTES, required_bytes(_ROWS[self.dataset]) if self.p is None else 0)


@dataclass(frozen=True)
class Suite:
    """Which runs a benchmark wants when it is not told otherwise."""

    name: str
    models: tuple[str, ...]
    splits: Callable[[str], Iterable[int]]  # of a data set
    frequencies: Callable[[int], Iterable[int]]  # of a split
    datasets: tuple[str, ...] = tuple(DATASETS)

    def runs(
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

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare what a plan depends on."""
        what = parser.add_argument_group("which runs")
        what.add_argument("--datasets", type=parse_names, metavar="A,B", help=f"default: {','.join(self.datasets)}")
        what.add_argument(
            "--splits", type=parse_splits, help="3: the first three; 0-2 or 1,4: these; default: the suite's"
        )
        what.add_argument("--models", type=parse_names, metavar="A,B", help=f"default: {','.join(self.models)}")
        what.add_argument("-p", "--p", type=parse_numbers, help="frequencies, as in 16,32; default: the suite's")
        what.add_argument(
            "--shortest-first", action=argparse.BooleanOptionalAction, default=True, help="otherwise the longest"
        )
        add_run_options(parser)

    def make_plan(self, args: argparse.Namespace) -> Plan:
        """The plan that the options ask for."""
        datasets = None if args.datasets is None else known_names(args.datasets, _ROWS, "--datasets")
        models = None if args.models is None else known_names(args.models, MODELS, "--models")
        if not args.list:
            check_data()
        runs = self.runs(datasets, args.splits, models, args.p)
        runs.sort(key=lambda run: run.cost, reverse=not args.shortest_first)
        device = compute_device(args.device).type
        function = "experiments.benchmarks.suite:measure"
        orders = [{**asdict(run), "device": device, "seed": run.split} for run in runs]
        jobs = [Job(run.key, function, order, run.memory) for run, order in zip(runs, orders, strict=True)]
        return Plan(self.name, jobs)


def check_data() -> None:
    """Raise an error with the remedy where there are no data sets."""
    if data_folder() is None:
        raise DataError("the data sets are absent: set PRISMGP_DATA to the folder that holds them")


def load_split(name: str, split: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test rows of a data set: X, y, X_test, y_test."""
    if name in SIMULATED:
        simulated, n = make_gas_sensor(10_000, split), SIMULATED[name]
        X, y = simulated.X.to_numpy(), simulated.y.to_numpy()
        return X[:n], y[:n], X[n:], y[n:]
    data = load_abalone(split) if name == "abalone" else load_uci(name, split)
    X, y, test = np.ascontiguousarray(data.X), data.y.to_numpy(), data.test
    return X[~test], y[~test], X[test], y[test]


def select_finished(study: Study, runs: Iterable[Run]) -> dict[Run, Record]:
    """The runs that have scores."""
    found = {run: study.get(run.key) for run in runs}
    return {run: result for run, result in found.items() if result is not None and "failed" not in result}


def select_failed(study: Study, runs: Iterable[Run]) -> dict[Run, str]:
    """The runs that were tried and have no scores, most often for want of memory, with the message."""
    found = {run: study.get(run.key) or {} for run in runs}
    return {run: result["failed"] for run, result in found.items() if "failed" in result}


def describe(result: Record) -> str:
    """A few words about a result."""
    mixture = f", mixture {result['nlpd_mixture']:.4f}" if "nlpd_mixture" in result else ""
    return (
        f"rmse {result['rmse']:.4f}, nlpd {result['nlpd']:.4f}{mixture}, cover {100 * result['coverage']:.1f}%, "
        f"fit {result['fit_seconds']:.1f} s"
    )


# -- one run, in a process of its own --------------------------------------------------------------


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
    own: dict[str, dict[str, Any]] = {"paper": {"recipe": "paper"}, "prism": {}, "prism1": {"n_members": 1}}
    own |= {name: {"n_members": 1, **VARIANTS["base"], **changed} for name, changed in VARIANTS.items()}
    return PrismGPRegressor(run.p, **own[run.model], **common).fit(x, y), {}


def warm_up(device: str) -> None:
    """Use the GPU once: that loads its libraries, which is no part of a fit."""
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
    found = score(y_test, mean, std, scale)
    if run.model not in ("exact", "ssgp"):
        # Of the model's own distribution, in the same units as the NLPD of the Gaussian.
        found["nlpd_mixture"] = float(-np.mean(model.log_density(x_test, y_test)) - np.log(scale))
        ends = model.predict_quantiles(x_test, [0.5 + half for c in LEVELS for half in (-c / 200, c / 200)])
        inside = [coverage(y_test, ends[:, 2 * k], ends[:, 2 * k + 1]) for k in range(len(LEVELS))]
        found["central_coverage"] = dict(zip(map(str, LEVELS), inside, strict=True))
        local = model.fit_status_.get("local", {})
        found |= {"weights": local.get("weights", {}), "degrees": local.get("degrees", {})}
        spectrum = without_neighbours(model)
        if spectrum is not None:
            alone = score(y_test, *spectrum.predict(x_test, return_std=True), scale)
            found["spectrum"] = {name: alone[name] for name in ("rmse", "nlpd", "coverage")}
    sizes = {"rows": len(y), "inputs": x.shape[1], "test_rows": len(y_test)}
    return {**sizes, **special, **found, **seconds}


# -- the end of every page -------------------------------------------------------------------------


def missing_list(plan: Iterable[Run], done: Iterable[Run], failed: dict[Run, str]) -> list[str]:
    """Every planned run without scores, the splits of one fit together."""
    groups: dict[tuple[str, str, int | None, str], list[int]] = {}
    for run in sorted(set(plan) - set(done), key=lambda run: (run.dataset, run.model, run.p or 0, run.split)):
        reason = f"failed, {failed[run]}" if run in failed else "not run"
        groups.setdefault((run.dataset, run.model, run.p, reason), []).append(run.split)
    lines = []
    for (dataset, model, p, reason), splits in groups.items():
        which = f"split{'s' if len(splits) > 1 else ''} {', '.join(map(str, splits))}"
        lines.append(f"- {dataset}, {MODELS[model]}{f', p = {p}' if p else ''}, {which}: {reason}")
    return [*(lines or ["None: every planned run is there."]), ""]


def origin(done: Iterable[dict[str, Any]]) -> list[str]:
    """What the runs were made with: each combination, and the number of its runs."""
    counts: dict[str, int] = {}
    for result in done:
        machine = result["machine"]
        where = f"{machine['gpu']}" if result["device"] == "cuda" else f"{machine['processor']} CPU"
        text = (
            f"prismgp {result['prismgp']}, commit {result['commit'] or 'not recorded'}, "
            f"source {result.get('source', 'not recorded')}, "
            f"torch {result['versions']['torch']}, {where}, {machine['threads']} threads, "
            f"{result['jobs']} at a time"
        )
        counts[text] = counts.get(text, 0) + 1
    return [*(f"- {text}: {count} runs" for text, count in sorted(counts.items())), ""]


def closing(
    plan: Iterable[Run], done: Iterable[Run], failed: dict[Run, str], *, made: Iterable[dict[str, Any]]
) -> list[str]:
    """The end of every page: what is missing, and what the runs were made with."""
    return ["## Missing runs", "", *missing_list(plan, done, failed), "## Made with", "", *origin(made)]
