"""How tight certificates are, and what they cost: against the exact GP itself, on real data.

An SSGP (p = 64) is fitted to the first split of each data set. The exact GP with its parameters is computed densely.
Its Cholesky factorisation alone is timed, and the whole with its predictions, on the same threads as the certificates
that are then made with growing budgets: of everything, and of predictions alone. What is short is done many times,
certificate and factorisation in turn, and the least times are taken: other work on the machine only adds to them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.suite import check_data, load_split
from experiments.internals import get_kernel, squared_distance, unpack_exact
from experiments.jobs import Job
from experiments.page import PALETTE, drawing, drawing_style, markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names
from experiments.results import Record, Study
from prismgp import SSGPRegressor, certify

__all__ = ["TIGHTNESS"]

DATASETS = ("abalone", "elevators", "kin40k")
P = 64
BLOCK = 3_000
# Rank, products; None: the defaults.
BUDGETS: dict[str, list[tuple[int | None, int | None]]] = {
    "abalone": [(50, 4), (100, 4), (150, 4), (220, 4), (400, 8), (None, None)],
    "elevators": [(200, 8), (400, 8), (600, 8), (800, 8), (1200, 10), (None, None)],
    "kin40k": [(1000, 20), (2000, 20), (3000, 20), (None, None)],
}
COLOURS = {"abalone": PALETTE["blue"], "elevators": PALETTE["vermillion"], "kin40k": PALETTE["green"]}


class Truth:
    """The exact GP at the parameters of a model, computed densely, in the data's units."""

    def __init__(
        self, model: SSGPRegressor, x: np.ndarray, y: np.ndarray, test: np.ndarray, device: str = "cpu"
    ) -> None:
        s, params = unpack_exact(model)
        lengthscale = torch.as_tensor(params.lengthscale)
        points, there = (torch.as_tensor((each - s.x_shift) / s.x_scale) / lengthscale for each in (x, test))
        kernel = get_kernel(model.kernel)
        signal, noise, scale = float(params.signal[0]), float(params.noise[0]), float(s.y_scale[0])
        target = (torch.as_tensor((y - s.y_shift[0]) / scale) - float(params.mean[0])).to(device)
        points, there = points.to(device), there.to(device)
        # In place, block by block: at 36,000 rows one matrix takes 10 GB.
        matrix = torch.empty(len(x), len(x), dtype=torch.float64, device=device)
        for i in range(0, len(x), 2048):
            matrix[i : i + 2048] = signal * kernel.value(squared_distance(points[i : i + 2048], points))
        matrix.diagonal().fill_(signal + noise)
        self.matrix = matrix if len(x) <= 2 * BLOCK else None
        began = time.perf_counter()
        lower = factorise(matrix)
        self.cholesky_seconds = time.perf_counter() - began
        half = torch.linalg.solve_triangular(lower, target[:, None], upper=False)
        means, variances = [], []
        for i in range(0, len(test), 1024):
            cross = signal * kernel.value(squared_distance(points, there[i : i + 1024]))
            solved = torch.linalg.solve_triangular(lower, cross, upper=False)
            means.append((solved.T @ half)[:, 0])
            variances.append(signal - solved.square().sum(0))
        self.mean = (torch.cat(means) + float(params.mean[0])).cpu().numpy() * scale + float(s.y_shift[0])
        self.std = np.sqrt((torch.cat(variances).clamp_min(0.0) + noise).cpu().numpy()) * scale
        n = len(x)
        logdet = 2.0 * float(lower.diagonal().log().sum())
        density = -0.5 * (n * np.log(2 * np.pi) + logdet + float(half.square().sum()))
        self.log_evidence = density - n * np.log(scale)
        self.noise_std = noise**0.5 * scale


def factorise(matrix: torch.Tensor) -> torch.Tensor:
    """Compute the Cholesky factor in the lower triangle of the matrix: by blocks, because two of 10 GB do not fit."""
    n = len(matrix)
    if n <= 2 * BLOCK:
        return torch.linalg.cholesky(matrix)
    for i in range(0, n, BLOCK):
        j = min(i + BLOCK, n)
        matrix[i:j, i:j] = torch.linalg.cholesky(matrix[i:j, i:j])
        if j < n:
            solved = torch.linalg.solve_triangular(matrix[i:j, i:j], matrix[j:, i:j].T, upper=False).T
            matrix[j:, i:j] = solved
            for k in range(j, n, BLOCK):
                matrix[k:, k : k + BLOCK].addmm_(solved[k - j :], solved[k - j : k - j + BLOCK].T, alpha=-1.0)
    return matrix


def measure(order: Record) -> Record:
    """Fit, compute the exact GP densely, certify with growing budgets."""
    dataset = order["dataset"]
    x, y, test, _ = load_split(dataset, 0)
    # The first fit and the first certificate of a process pay for loading things.
    certify(SSGPRegressor(8, random_state=0).fit(x[:500], y[:500]), x[:500], y[:500], test[:50], random_state=0)
    began = time.perf_counter()
    model = SSGPRegressor(P, random_state=0).fit(x, y)
    fit_seconds = time.perf_counter() - began
    began = time.perf_counter()
    truth = Truth(model, x, y, test)
    whole_seconds = time.perf_counter() - began
    mean, std = model.predict(test, return_std=True)
    rows = []
    for (rank, products), parts in itertools.product(BUDGETS[dataset], (None, "predictions")):
        options = {"rank": rank, "products": products, "parts": parts, "random_state": 0}
        found, seconds, beside = side_by_side(lambda options=options: certify(model, x, y, test, **options), truth)
        row = {
            "asked": [rank, products],
            "parts": parts or "everything",
            **found.spent,
            "seconds": seconds,
            "cholesky_seconds": beside,
            **compare("mean", found.mean, truth.mean, truth.noise_std),
            **compare("std", found.std, truth.std, truth.noise_std),
            "holds": found.holds,
            "probability": found.probability,
        }
        if found.log_evidence is not None:
            row["evidence_width_per_row"] = found.log_evidence.width / len(x)
            row["evidence_contained"] = bool(found.log_evidence.contains(truth.log_evidence))
        rows.append(row)
    return {
        "rows": len(x),
        "inputs": x.shape[1],
        "test_points": len(test),
        "p": P,
        "noise_share": float(model.noise_variance_ / model.signal_variance_),
        "fit_seconds": fit_seconds,
        "cholesky_seconds": median(row["cholesky_seconds"] for row in rows),
        "exact_seconds": whole_seconds,
        "true_difference": {
            "mean": float(np.max(np.abs(mean - truth.mean)) / truth.noise_std),
            "std": float(np.max(np.abs(std - truth.std)) / truth.noise_std),
        },
        "budgets": rows,
    }


def side_by_side(
    work: Callable[[], Any], truth: Truth, most: int = 40, enough: float = 10.0
) -> tuple[Any, float, float]:
    """The result of the work, its least time, and that of the factorisation; both are repeated in turn if short."""
    seconds, beside = [], []
    while len(seconds) < most and sum(seconds) < enough:
        if truth.matrix is not None:
            began = time.perf_counter()
            factorise(truth.matrix)
            beside.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return found, min(seconds), min(beside, default=truth.cholesky_seconds)


def compare(what: str, found: Any, truth: np.ndarray, noise: float) -> dict[str, Any]:
    """In units of the noise std: half of the widest interval, the certified difference and the true one."""
    # The truth is computed in float64 too; it may be off by its own rounding.
    slack = 1e-7 * noise
    inside = (found.lower - slack <= truth) & (truth <= found.upper + slack)
    return {
        f"{what}_half_width": float(np.max(found.width)) / 2 / noise,
        f"{what}_at_least": float(np.max(found.difference_at_least)) / noise,
        f"{what}_certified": float(np.max(found.difference)) / noise,
        f"{what}_true": float(np.max(np.abs(found.ours - truth))) / noise,
        f"{what}_contained": bool(inside.all()),
    }


def in_cholesky(row: dict[str, Any]) -> float:
    return float(row["seconds"] / row["cholesky_seconds"])


# -- tables and figure -----------------------------------------------------------------------------


def select_finished(study: Study) -> list[Record]:
    """Results in the order of the data sets."""
    found = [study.get(name) for name in DATASETS]
    return [result for result in found if result is not None and "failed" not in result]


def markdown(study: Study) -> str:
    """A table for each data set."""
    about = (
        f"SSGP, p = {P}, first split, defaults otherwise; differences are in units of the noise std, the largest "
        "over all test points. Half-width: half of the widest interval, that is how well the exact value is known at "
        "every point; largest difference: what the certificate says of it, at least and at most. "
        "Command: `python -m experiments tightness`."
    )
    lines = ["# Tightness of certificates", "", about, ""]
    header = [
        "rank",
        "products",
        "certified",
        "s",
        "fits",
        "Cholesky",
        "mean: half-width",
        "largest difference",
        "true",
    ]
    header += ["std: half-width", "largest difference", "true"]
    header += ["evidence width per row", "exact value inside"]
    for result in select_finished(study):
        size = f"{result['rows']:,} rows, {result['inputs']} inputs, {result['test_points']:,} test points"
        whole = f", the exact GP with all its predictions {result['exact_seconds']:.2f} s"
        about = (
            f"Fit {result['fit_seconds']:.1f} s; one Cholesky factorisation {result['cholesky_seconds']:.2f} s{whole}; "
            f"{result['machine']['threads']} threads. Noise variance over signal variance {result['noise_share']:.2g}."
        )
        lines += [f"## {result['dataset']}: {size}", "", about, ""]
        rows = []
        for row in result["budgets"]:
            inside = row["mean_contained"] and row["std_contained"] and row.get("evidence_contained", True)
            rows.append(
                [
                    f"{row['rank']:,}",
                    str(row["products"]),
                    row["parts"],
                    f"{row['seconds']:.3g}",
                    f"{row['seconds'] / result['fit_seconds']:.2g}",
                    f"{in_cholesky(row):.2f}",
                    *differences(row, "mean"),
                    *differences(row, "std"),
                    f"{row['evidence_width_per_row']:.2g}" if "evidence_contained" in row else "",
                    "yes" if inside else "NO",
                ]
            )
        lines += [markdown_table(header, rows), ""]
    return "\n".join(lines)


def differences(row: dict[str, Any], what: str) -> tuple[str, str, str]:
    """Half-width, what is said of the largest difference, and its true value."""
    said = f"{row[f'{what}_at_least']:.4g} to {row[f'{what}_certified']:.4g}"
    return f"{row[f'{what}_half_width']:.3g}", said, f"{row[f'{what}_true']:.4g}"


def draw(results: list[Record]) -> Any:
    """Half-width of the widest interval against time."""
    figure = drawing(9.5, 3.9)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, what in zip(axes, ("mean", "std"), strict=True):
        for result in results:
            colour = COLOURS[result["dataset"]]
            for parts, style in (("predictions", "o-"), ("everything", "--")):
                rows = [row for row in result["budgets"] if row["parts"] == parts]
                times, widths = [in_cholesky(row) for row in rows], [row[f"{what}_half_width"] for row in rows]
                label = f"{result['dataset']}, n = {result['rows']:,}" if parts == "predictions" else None
                axis.plot(times[:-1], widths[:-1], style, color=colour, label=label, linewidth=1.2)
                axis.plot(times[-1], widths[-1], "*", color=colour, markersize=13, markeredgecolor="white")
            axis.axhline(result["true_difference"][what], color=colour, linewidth=0.8, linestyle=":")
        axis.axhline(0.01, color="#888888", linewidth=1)
        axis.axvline(1.0, color="#888888", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="time, in Cholesky factorisations of the exact GP")
        axis.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
        axis.set_xticks([], minor=True)
        axis.set_title(f"Exact GP's {what}: known to ± ...", fontsize=11)
    axes[0].set_ylabel("half of the widest interval, noise std")
    axes[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(
        "solid: predictions alone; dashed: everything; stars: default budget; dotted: true largest difference; "
        "grey: 1% of the noise, one Cholesky",
        fontsize=8,
    )
    return figure


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """The figure of the README."""

    def make() -> Any:
        with drawing_style():
            return draw(select_finished(study))

    return {"": make}


# -- plan ------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--datasets", type=parse_names, metavar="A,B", help=f"default: {','.join(DATASETS)}")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each data set."""
    datasets = DATASETS if args.datasets is None else known_names(args.datasets, DATASETS, "--datasets")
    if not args.list:
        check_data()
    jobs = [Job(name, f"{__name__}:measure", {"dataset": name, "device": "cpu"}, 12 * 2**30) for name in datasets]
    return Plan("tightness", jobs)


def describe(result: Record) -> str:
    """A few words about a result."""
    last = result["budgets"][-1]
    return (
        f"fit {result['fit_seconds']:.1f} s, Cholesky {result['cholesky_seconds']:.2f} s; predictions certified in "
        f"{in_cholesky(last):.2f} Cholesky: mean +-{last['mean_half_width']:.2g}, std +-{last['std_half_width']:.2g} "
        "noise std"
    )


TIGHTNESS = Experiment(
    kind="tightness",
    summary="how tight certificates are and what they cost, against the exact GP",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
)
