"""Certificates of more rows than one Cholesky factorisation can take: how well predictions are known, and at what cost.

An SSGP (p = 64) is fitted to 100,000 rows, for which there is no exact GP to compare with; its predictions are
certified with the defaults for a tolerance of 5% of the noise. The same is done on 36,000 rows, where the exact GP is
computed densely and must be inside all intervals.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from experiments.benchmarks.suite import check_data, origin
from experiments.benchmarks.tightness import Truth
from experiments.comparison.data import load
from experiments.jobs import Job
from experiments.machine import format_bytes, peak_bytes, reset_peak
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names
from experiments.results import Record, Study
from prismgp import SSGPRegressor, certify

__all__ = ["LARGE_CERTIFICATES"]

# Training rows, and whether the exact GP is computed too.
DATASETS = {"beijing": (100_000, False), "flights": (100_000, False), "kin40k": (36_000, True)}
P = 64
TOLERANCE = 0.05
TEST_ROWS = 2_000
MEMORY = {False: 6 * 2**30, True: 14 * 2**30}
INTRODUCTION = (
    f"Predictions of an SSGP, p = {P}, at {TEST_ROWS:,} held-out rows: how well mean and std of the exact GP with its "
    f'parameters are known, in units of the noise std. `certify(..., parts="predictions", tolerance={TOLERANCE})`, '
    "other options as they are by default. Made by `python -m experiments certify-large`, with `--device cuda` on a "
    "GPU. Peak memory is that of the whole process while it certifies, rows and libraries included, and on a GPU that "
    "of the device."
)


def measure(order: Record) -> Record:
    """Fit, certify, and compare where the exact GP can be computed."""
    name = order["dataset"]
    rows, compare = DATASETS[name]
    data, rng = load(name, 0), np.random.default_rng(0)
    X, y = np.ascontiguousarray(data.X, dtype=np.float64), data.y.to_numpy(dtype=np.float64)
    train = rng.permutation(np.flatnonzero(~data.test))[:rows]
    test = X[rng.permutation(np.flatnonzero(data.test))[:TEST_ROWS]]
    X, y = X[train], y[train]
    device = order["device"]
    model = SSGPRegressor(P, device=device, random_state=0).fit(X, y)
    reset_peak()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began, processor = time.perf_counter(), time.process_time()
    found = certify(model, X, y, test, parts="predictions", tolerance=TOLERANCE, random_state=0)
    seconds = {"certify_seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - processor}
    noise = float(model.noise_variance_) ** 0.5
    assert found.mean is not None
    assert found.std is not None
    record: Record = {
        "rows": len(y),
        "inputs": X.shape[1],
        "noise_share": float(model.noise_variance_ / model.signal_variance_),
        **found.spent,
        **seconds,
        "holds": found.holds,
        "mean_half_width": float(np.max(found.mean.width)) / 2 / noise,
        "std_half_width": float(np.max(found.std.width)) / 2 / noise,
        "certify_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else peak_bytes(),
    }
    if compare:
        truth = Truth(model, X, y, test, device)
        record["contained"] = bool(np.all(found.mean.contains(truth.mean)) and np.all(found.std.contains(truth.std)))
    return record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--datasets", type=parse_names, default=list(DATASETS), metavar="A,B", help=",".join(DATASETS))
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each data set."""
    names = known_names(args.datasets, DATASETS, "--datasets")
    if not args.list:
        check_data()
    jobs = []
    for name in names:
        order = {"dataset": name, "device": args.device}
        jobs.append(Job(f"{name}-{args.device}", f"{__name__}:measure", order, MEMORY[DATASETS[name][1]]))
    return Plan("certify-large", jobs)


def describe(result: Record) -> str:
    """A few words about a result."""
    return (
        f"mean +-{result['mean_half_width']:.2g}, std +-{result['std_half_width']:.2g} noise std, rank "
        f"{result['rank']:,}, {result['products']} products, {result['certify_seconds']:.0f} s"
    )


def markdown(study: Study) -> str:
    """One line for each data set."""
    rows, found = [], [each for each in study.records.values() if "failed" not in each]
    found.sort(key=lambda each: (each["device"], list(DATASETS).index(each["dataset"])))
    for each in found:
        inside = {True: "yes", False: "NO", None: "not computed"}[each.get("contained")]
        machine = each["machine"]
        rows.append(
            [
                each["dataset"],
                machine["gpu"] if each["device"] == "cuda" else f"{machine['threads']} thread(s)",
                f"{each['rows']:,}",
                f"{each['noise_share']:.2g}",
                f"{each['rank']:,}",
                str(each["products"]),
                f"{each['certify_seconds']:.0f}",
                format_bytes(each["certify_bytes"]),
                f"{each['mean_half_width']:.3g}",
                f"{each['std_half_width']:.3g}",
                inside,
            ]
        )
    header = ["data set", "on", "rows", "noise / signal variance", "rank", "products", "s", "peak memory"]
    header += ["mean: half-width", "std: half-width", "exact GP inside"]
    lines = ["# Certificates of many rows", "", INTRODUCTION, "", markdown_table(header, rows), ""]
    return "\n".join([*lines, "## Made with", "", *origin(found)])


def complain(study: Study) -> list[str]:
    """Intervals that do not hold what they promise."""
    wrong = [each["dataset"] for each in study.records.values() if each.get("contained") is False]
    return [f"{name}: the exact GP is outside of a certified interval" for name in wrong]


LARGE_CERTIFICATES = Experiment(
    kind="certify-large",
    summary="certificates of 100,000 rows: how well predictions are known, and at what cost",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    complain=complain,
)
