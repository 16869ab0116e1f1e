"""Does the SSGP find a good optimum from every seed? Same rows, other frequencies and subsamples.

Every data set at every p is fitted with several seeds, which draw the frequencies and the subsamples that the fit
starts from. Larger data sets are reduced to a random part. Beside the real ones are simulations: functions of many
inputs with little noise, inputs with long tails, and a table of numbers and categories.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.benchmarks.suite import check_data, origin
from experiments.comparison.data import load as load_dataset
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_numbers, positive
from experiments.results import Record, Study
from prismgp import SSGPRegressor, metrics
from prismgp.datasets import data_folder
from prismgp.exceptions import DataError

__all__ = ["STARTS"]

FREQUENCIES = (16, 32, 64, 128, 256)
SEEDS = 5
MOST_ROWS = 50_000  # for training
LIMIT = 1.15  # an RMSE above this multiple of the median of its data set and p is a fit that got stuck
TEST_SHARE = 0.1
TARGETS = {"housing": "median_house_value", "diamonds": "price", "taxis": "fare"}
LEAKS = {"taxis": ["total"]}  # columns that hold the target
INTRODUCTION = (
    f"The SSGP with {SEEDS} seeds on the same rows: they draw frequencies and subsamples. RMSE on held-out rows, in "
    "units of the training target's standard deviation; log evidence per row in the same units; times are of the "
    "processor, for one fit. Made by `python -m experiments ssgp-starts`."
)


class Rows(NamedTuple):
    """Training and test rows of one data set."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray


def simulate_low_noise(rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """4,111 rows of 26 inputs: a smooth function of three directions and two inputs; noise of 3%."""
    x = rng.standard_normal((4_111, 26))
    z = x @ (rng.standard_normal((26, 3)) / np.sqrt(26))
    f = np.sin(1.5 * z[:, 0]) + z[:, 0] * z[:, 1] + np.cos(z[:, 2]) + 0.3 * x[:, 0] * x[:, 1]
    return x, f / f.std() + 0.03 * rng.standard_normal(len(x))


def simulate_linear(rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """The same size: a linear function, a square and a wave; noise of 3%. The exact GP's signal is at its bound."""
    x = rng.uniform(-1.0, 1.0, (4_111, 26))
    f = x @ rng.standard_normal(26) + 0.2 * (x @ rng.standard_normal(26)) ** 2 + 0.5 * np.sin(3.0 * x[:, 0])
    return x, f / f.std() + 0.03 * rng.standard_normal(len(x))


def simulate_heavy_tails(rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """4,111 rows of 8 log-normal inputs and a log-normal target: a few rows are far from all others."""
    x = rng.lognormal(size=(4_111, 8))
    log_y = np.log(x) @ (rng.standard_normal(8) / np.sqrt(8)) + 0.3 * np.sin(x[:, 0])
    return x, np.exp(1.2 * log_y + 0.1 * rng.standard_normal(len(x)))


def simulate_categories(rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """44,444 rows like diamonds: six numbers, three of them sizes that belong together, and three categories."""
    n = 44_444
    numbers = rng.lognormal(sigma=0.5, size=(n, 6))
    numbers[:, 1:3] = numbers[:, :1] ** (1 / 3) * rng.lognormal(sigma=0.02, size=(n, 2))
    levels, effects = rng.integers(20, size=(n, 3)), 0.2 * rng.standard_normal((3, 20))
    table = pd.DataFrame(numbers, columns=[f"number_{k}" for k in range(6)])
    for k in range(3):
        table[f"category_{k}"] = [f"level {level}" for level in levels[:, k]]
    log_price = 1.5 * np.log(numbers[:, 0]) + 0.1 * np.sin(3.0 * numbers[:, 3])
    log_price += effects[np.arange(3), levels].sum(1)
    return table, np.exp(log_price + 0.1 * rng.standard_normal(n))


SIMULATIONS: dict[str, Callable[[np.random.Generator], tuple[Any, np.ndarray]]] = {
    "low-noise": simulate_low_noise,
    "linear": simulate_linear,
    "heavy-tails": simulate_heavy_tails,
    "categories": simulate_categories,
}
REAL = (
    *("energy", "concrete", "airfoil", "abalone", "pumadyn32nm", "pol", "elevators", "kin40k", "keggdirected"),
    *("beijing", "flights"),
)
DATASETS = (*SIMULATIONS, *REAL, *TARGETS)
ONCE_STUCK = ("heavy-tails", "low-noise", "linear", "pol")  # from some seeds, with earlier code
FEW = 32  # frequencies, with which most fits got stuck
# Training rows, to estimate times.
SIZES = {"low-noise": 3_700, "linear": 3_700, "heavy-tails": 3_700, "categories": 40_000}
SIZES |= {"energy": 692, "concrete": 927, "airfoil": 1_353, "abalone": 3_000, "pumadyn32nm": 7_373, "pol": 13_500}
SIZES |= {"elevators": 14_940, "kin40k": 36_000, "keggdirected": 43_945, "beijing": 344_115, "flights": 2_698_944}
SIZES |= {"housing": 18_576, "diamonds": 48_546, "taxis": 5_790}


def load(name: str, most_rows: int = MOST_ROWS) -> Rows:
    """The rows of a data set, always the same ones; at most so many of either kind."""
    rng = np.random.default_rng(0)
    if name in REAL:
        data = load_dataset(name, 0)
        train, held_out = (np.flatnonzero(mask) for mask in (~data.test, data.test))
        X, y = np.ascontiguousarray(data.X), data.y.to_numpy()
        train, held_out = (rng.permutation(rows)[:most_rows] for rows in (train, held_out))
        return Rows(X[train], y[train], X[held_out], y[held_out])
    X, y = SIMULATIONS[name](rng) if name in SIMULATIONS else read_table(name)
    order = rng.permutation(len(y))
    cut = round(TEST_SHARE * len(y))
    held_out, train = order[:cut], order[cut : cut + most_rows]
    if isinstance(X, pd.DataFrame):
        return Rows(X.iloc[train], y[train], X.iloc[held_out], y[held_out])
    return Rows(X[train], y[train], X[held_out], y[held_out])


def read_table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Inputs and target of a table with text, categories and times."""
    folder = data_folder()
    path = None if folder is None else folder / "tables" / f"{name}.csv.gz"
    if path is None or not path.is_file():
        raise DataError(f"the table {name} is absent: it belongs into tables/{name}.csv.gz in the folder PRISMGP_DATA")
    table = pd.read_csv(path).dropna(subset=TARGETS[name])
    return table.drop(columns=[TARGETS[name], *LEAKS.get(name, [])]), table[TARGETS[name]].to_numpy(dtype=float)


def measure(order: Record) -> Record:
    """Fit with one seed, score on the held-out rows."""
    rows = load(order["dataset"], order["most_rows"])
    model = SSGPRegressor(order["p"], device=order["device"], random_state=order["seed"])
    began, processor = time.perf_counter(), time.process_time()
    model.fit(rows.X, rows.y)
    spent = {"fit_seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - processor}
    scale, n = float(rows.y.std()), len(rows.y)
    stages = model.fit_status_["stages"]
    return {
        "rows": n,
        "inputs": len(model.lengthscale_),
        "rmse": metrics.rmse(rows.y_test, model.predict(rows.X_test)) / scale,
        "evidence_per_row": float(model.log_evidence_) / n + float(np.log(scale)),
        **spent,
        "iterations": model.n_iter_,
        "evaluations": sum(stage["evaluations"] for stage in stages),
        "converged": stages[-1]["converged"],
        "message": stages[-1]["message"],
    }


# -- plan ------------------------------------------------------------------------------------------


def key(dataset: str, p: int, seed: int) -> str:
    return f"{dataset}-p{p}-{seed}"


def estimate_seconds(dataset: str, p: int, most_rows: int = MOST_ROWS) -> float:
    """About how long one thread takes for a job: libraries and data, a race on a subsample, a fit to all rows."""
    n = min(SIZES[dataset], most_rows)
    by_row = 2 * p * 3e-8 + (2 * p) ** 2 * 2.2e-10  # seconds of an evaluation
    return 5.0 + by_row * (100 * n + 160 * min(n, 8_192))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    what = parser.add_argument_group("which runs")
    what.add_argument("--datasets", type=parse_names, default=list(DATASETS), metavar="A,B", help=",".join(DATASETS))
    what.add_argument("-p", "--p", type=parse_numbers, default=list(FREQUENCIES), help="frequencies, as in 16,32")
    what.add_argument("--seeds", type=positive, default=SEEDS, metavar="N", help="default: %(default)s")
    rows = "training rows at most, of larger data sets a random part (default: %(default)s)"
    what.add_argument("--rows", type=positive, default=MOST_ROWS, metavar="N", help=rows)
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """A job for each fit: first what once got stuck, with few frequencies, then the short ones before the long ones.

    The seeds of a data set and p follow each other, so that a plan that is stopped has compared most of those it began.
    """
    datasets = known_names(args.datasets, DATASETS, "--datasets")
    if not args.list and set(datasets) - set(SIMULATIONS):
        check_data()
    groups = sorted(
        ((name, p) for name in datasets for p in args.p),
        key=lambda group: (group[0] not in ONCE_STUCK or group[1] > FEW, estimate_seconds(*group, args.rows)),
    )
    common = {"device": args.device, "most_rows": args.rows}
    jobs = [
        Job(key(name, p, seed), f"{__name__}:measure", {"dataset": name, "p": p, "seed": seed, **common})
        for name, p in groups
        for seed in range(args.seeds)
    ]
    if args.list:
        seconds = args.seeds * sum(estimate_seconds(*group, args.rows) for group in groups)
        print(f"about {seconds / 60:.0f} minutes of one core for all {len(jobs)} jobs")
    return Plan("ssgp-starts", jobs, options={"most_rows": args.rows})


def describe(result: Record) -> str:
    """A few words about a result."""
    return (
        f"rmse {result['rmse']:.4f}, evidence per row {result['evidence_per_row']:.4f}, {result['iterations']} "
        f"iterations, {result['fit_seconds']:.1f} s, {result['cpu_seconds']:.1f} s of the processor"
    )


# -- tables ----------------------------------------------------------------------------------------


def collect(study: Study) -> dict[tuple[str, int], list[Record]]:
    """Finished runs by data set and p."""
    found: dict[tuple[str, int], list[Record]] = {}
    for record in study.records.values():
        if "failed" not in record:
            found.setdefault((record["dataset"], record["p"]), []).append(record)
    return dict(sorted(found.items(), key=lambda item: (DATASETS.index(item[0][0]), item[0][1])))


def find_stuck(study: Study) -> list[tuple[Record, float]]:
    """Runs whose RMSE is above the limit, and by what it exceeds the median."""
    stuck = []
    for runs in collect(study).values():
        middle = median(run["rmse"] for run in runs)
        stuck += [(run, run["rmse"] / middle) for run in runs if run["rmse"] > LIMIT * middle]
    return stuck


def conclude(study: Study) -> str:
    """Whether the aim is met, as far as it has been measured."""
    found, stuck = collect(study), find_stuck(study)
    whole = {name.rpartition("-")[0] for name in study.about.get("planned", [])}
    whole -= {name.rpartition("-")[0] for name in missing_runs(study)}
    runs, planned = sum(map(len, found.values())), len(study.about.get("planned", []))
    worst, (name, p) = max((spread(each), group) for group, each in found.items())
    verdict = "MET" if not stuck and runs >= planned else "NOT MET" if stuck else "MET SO FAR"
    return (
        f"{verdict}: {len(stuck)} of {runs} runs above {LIMIT} times the median of their seeds, the worst {worst:.3f} "
        f"({name}, p = {p}); {runs} of {planned} runs done, all seeds of {len(whole)} data sets and p"
    )


def missing_runs(study: Study) -> list[str]:
    """Planned runs without a result."""
    return [name for name in study.about.get("planned", []) if "failed" in (study.get(name) or {"failed": ""})]


def spread(runs: list[Record]) -> float:
    """The largest RMSE of the seeds over their median."""
    errors = [run["rmse"] for run in runs]
    return float(max(errors) / median(errors))


def summary(found: dict[tuple[str, int], list[Record]]) -> str:
    """A line for each data set: median RMSE, worst over median, and median seconds, by p."""
    columns = sorted({p for _, p in found})
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for p in columns:
            runs = found.get((name, p), [])
            middle = [median(run[what] for run in runs) for what in ("rmse", "cpu_seconds")] if runs else []
            cells.append(f"{middle[0]:.4f}, {spread(runs):.3f}, {middle[1]:.0f} s" if runs else "")
        rows.append([name, *cells])
    return markdown_table(["data set", *(f"p = {p}" for p in columns)], rows)


def markdown(study: Study) -> str:
    """The verdict; a line for each data set, one for each p of it; the runs that got stuck; those that are missing."""
    rows, found = [], collect(study)
    for (name, p), runs in found.items():
        errors, evidences = ([run[what] for run in runs] for what in ("rmse", "evidence_per_row"))
        rows.append(
            [
                name,
                f"{runs[0]['rows']:,}",
                str(p),
                str(len(runs)),
                f"{median(errors):.4f}",
                f"{spread(runs):.3f}",
                f"{min(evidences):.4f} to {max(evidences):.4f}",
                f"{median(run['cpu_seconds'] for run in runs):.1f}",
                f"{max(run['cpu_seconds'] for run in runs):.1f}",
                f"{median(run['iterations'] for run in runs):.0f}",
                str(sum(not run["converged"] for run in runs)),
            ]
        )
    header = ["data set", "rows", "p", "seeds", "RMSE, median", "worst / median", "evidence per row"]
    header += ["seconds, median", "worst", "iterations", "at the iteration limit"]
    stuck = [
        f"- {run['dataset']}, p = {run['p']}, seed {run['seed']}: {run['rmse']:.4f}, {ratio:.3f} times the median"
        for run, ratio in find_stuck(study)
    ]
    absent = [f"- {name}" for name in missing_runs(study)]
    lines = ["# Starts of the SSGP", "", INTRODUCTION, "", f"**{conclude(study)}.**" if found else "No run yet.", ""]
    lines += ["Median RMSE, worst over median, and median time:", "", summary(found), ""]
    lines += [f"## Runs above {LIMIT} times the median", "", *(stuck or ["None."]), ""]
    lines += ["## All figures", "", markdown_table(header, rows), ""]
    lines += ["## Missing runs", "", *(absent or ["None: every planned run is there."]), ""]
    lines += ["## Made with", "", *origin(run for runs in found.values() for run in runs)]
    return "\n".join(lines)


def complain(study: Study) -> list[str]:
    """Runs that got stuck."""
    return [
        f"{run['dataset']}, p = {run['p']}, seed {run['seed']}: RMSE {ratio:.2f} times the median of the seeds"
        for run, ratio in find_stuck(study)
    ]


STARTS = Experiment(
    kind="ssgp-starts",
    summary="whether the SSGP finds a good optimum from every seed, on all data sets, and what it takes",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    complain=complain,
    conclude=lambda study: conclude(study) if collect(study) else None,
)
