"""How tight certificates are, and what they cost: against the exact GP itself, on real data.

python benchmarks/tightness.py [--datasets abalone,elevators,kin40k] [--threads 2] [--tables]

An SSGP (p = 64) is fitted to the first split of each data set. The exact GP with its parameters is computed densely:
the truth. Its Cholesky factorisation alone is timed, and the whole with its predictions, on the same threads as the
certificates that are then made with growing budgets: of everything, and of predictions alone. What is short is done
many times, certificate and factorisation in turn, and the least times taken: what else goes on only adds to them.
Writes results/tightness_DATASET.json, and from all that are there tightness.md and tightness.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from _common import RESULTS, load_split, write_result
from _report import table

from prismgp import SSGPRegressor, certify
from prismgp.core.kernels import get_kernel, squared_distance

DATASETS = ("abalone", "elevators", "kin40k")
P = 64
BLOCK = 3_000
# Rank, products; None: the defaults.
BUDGETS: dict[str, list[tuple[int | None, int | None]]] = {
    "abalone": [(50, 4), (100, 4), (150, 4), (220, 4), (400, 8), (None, None)],
    "elevators": [(200, 8), (400, 8), (600, 8), (800, 8), (1200, 10), (None, None)],
    "kin40k": [(1000, 20), (2000, 20), (3000, 20), (None, None)],
}
COLOURS = {"abalone": "#0072B2", "elevators": "#D55E00", "kin40k": "#009E73"}


class Truth:
    """The exact GP at the parameters of a model, densely, in the data's units."""

    def __init__(
        self, model: SSGPRegressor, x: np.ndarray, y: np.ndarray, test: np.ndarray, device: str = "cpu"
    ) -> None:
        s, params = model._standardiser, model._params
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
        lower = factorised(matrix)
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


def factorised(matrix: torch.Tensor) -> torch.Tensor:
    """The Cholesky factor, in the lower triangle of the matrix: by blocks, because two of 10 GB do not fit."""
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


def measure(dataset: str) -> dict[str, Any]:
    x, y, test, _ = load_split(dataset, 0)
    # The first fit and the first certificate of a process pay for loading things.
    certify(SSGPRegressor(8, random_state=0).fit(x[:500], y[:500]), x[:500], y[:500], test[:50], random_state=0)
    began = time.perf_counter()
    model = SSGPRegressor(P, random_state=0).fit(x, y)
    fit_seconds = time.perf_counter() - began
    began = time.perf_counter()
    truth = Truth(model, x, y, test)
    whole_seconds = time.perf_counter() - began
    print(
        f"{dataset}: fit {fit_seconds:.1f} s, Cholesky of the exact GP {truth.cholesky_seconds:.2f} s, "
        f"all of it {whole_seconds:.2f} s",
        flush=True,
    )
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
            **compared("mean", found.mean, truth.mean, truth.noise_std),
            **compared("std", found.std, truth.std, truth.noise_std),
            "holds": found.holds,
            "probability": found.probability,
        }
        if found.log_evidence is not None:
            row["evidence_width_per_row"] = found.log_evidence.width / len(x)
            row["evidence_contained"] = bool(found.log_evidence.contains(truth.log_evidence))
        rows.append(row)
        print(line(row, fit_seconds), flush=True)
    return {
        "dataset": dataset,
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
        "device": "cpu",
        "jobs": 1,
    }


def side_by_side(
    work: Callable[[], Any], truth: Truth, most: int = 40, enough: float = 10.0
) -> tuple[Any, float, float]:
    """What the work gives, its least time, and that of the factorisation, done in turn with what is short."""
    seconds, beside = [], []
    while len(seconds) < most and sum(seconds) < enough:
        if truth.matrix is not None:
            began = time.perf_counter()
            factorised(truth.matrix)
            beside.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return found, min(seconds), min(beside, default=truth.cholesky_seconds)


def compared(what: str, found: Any, truth: np.ndarray, noise: float) -> dict[str, Any]:
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


def line(row: dict[str, Any], fit: float) -> str:
    evidence = f", evidence {row['evidence_width_per_row']:.2g} per row" if "evidence_contained" in row else ""
    return (
        f"  rank {row['rank']}, {row['products']} products, {row['parts']}: {row['seconds']:.2f} s "
        f"({row['seconds'] / fit:.1f} fits, {in_cholesky(row):.2f} Cholesky), "
        f"mean +-{row['mean_half_width']:.2g}, std +-{row['std_half_width']:.2g} noise std{evidence}"
    )


def in_cholesky(row: dict[str, Any]) -> float:
    return float(row["seconds"] / row["cholesky_seconds"])


def tables(results: list[dict[str, Any]]) -> None:
    """Markdown and figure of what is stored."""
    about = (
        f"SSGP, p = {P}, first split, defaults otherwise; differences are in units of the noise std, the largest "
        "over all test points. Half-width: half of the widest interval, that is how well the exact value is known at "
        "every point; largest difference: what the certificate says of it, at least and at most. "
        "Command: `python benchmarks/tightness.py`."
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
    for result in results:
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
        lines += table(header, rows)
    (RESULTS / "tightness.md").write_text("\n".join(lines))
    figure(results)


def differences(row: dict[str, Any], what: str) -> tuple[str, str, str]:
    """Half-width, what is said of the largest difference, and its true value."""
    said = f"{row[f'{what}_at_least']:.4g} to {row[f'{what}_certified']:.4g}"
    return f"{row[f'{what}_half_width']:.3g}", said, f"{row[f'{what}_true']:.4g}"


def figure(results: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.9), sharey=True, layout="constrained")
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
    fig.supxlabel(
        "solid: predictions alone; dashed: everything; stars: default budget; dotted: true largest difference; "
        "grey: 1% of the noise, one Cholesky",
        fontsize=8,
    )
    fig.savefig(RESULTS / "tightness.png", dpi=150)
    plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tables", action="store_true", help="only make table and figure from what is stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.tables:
        for dataset in options.datasets.split(","):
            write_result(f"tightness_{dataset}", measure(dataset))
    paths = [RESULTS / f"tightness_{dataset}.json" for dataset in DATASETS]
    tables([json.loads(path.read_text()) for path in paths if path.exists()])


if __name__ == "__main__":
    main()
