"""Theorem 2 on data that satisfy its conditions: true for the masked kernel matrix, false for the plain one.

    python examples/masked_kernel.py --out masked_kernel

Data are drawn from Conditions 1 to 3 (clusters of sizes 2^(i/2), centres just far enough apart), frequencies
independently. With the printed number of frequencies, the kernel matrix with the entries between clusters set to zero
is far inside the bound, and the plain one far outside. With twice the length-scales the clusters overlap, and the
mask fails. Prints two tables and writes ``masked_kernel.png``. ``--quick`` is a small version.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse.linalg import eigsh
from scipy.spatial.distance import cdist

from prismgp import check_conditions, sample_size

DELTA = 0.1
MASKED, PLAIN, LIMIT = "#3f7fbf", "#e07b39", "#222222"
FACTORS = np.geomspace(0.25, 4.0, 17)


@dataclass(frozen=True)
class Setting:
    """One size of the experiment."""

    clusters: int
    inputs: int
    bounds: tuple[float, ...]
    draws: int


FULL = Setting(18, 1024, (5.0, 20.0, 40.0), 20)
QUICK = Setting(12, 256, (2.0, 5.0, 10.0), 5)


def condition_data(n_clusters: int, d: int, bound: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels from Conditions 1 to 3, for length-scales of 1 and the widths of the corrected Lemma 3."""
    sizes = [max(1, round(2 ** (i / 2))) for i in range(1, n_clusters + 1)]
    n = sum(sizes)
    a = -np.log2(1.0 - (bound / n) ** 4)

    def band(i: int) -> float:
        return 4.0 * np.log(n / bound) if i == 1 else -np.log1p(-(2.0 ** -(a + i - 1)))

    apart = 1.0001 * np.sqrt(6.0 * np.log(n / bound))
    rng = np.random.default_rng(seed)
    rows = []
    for i, size in enumerate(sizes, start=1):
        centre = np.zeros(d)
        centre[(i - 1) % d] = apart / np.sqrt(2.0)
        gamma = np.sqrt((band(i) + band(i + 1)) / (8.0 * d))
        rows.append(centre + gamma * rng.standard_normal((size, d)))
    return np.concatenate(rows), np.repeat(np.arange(n_clusters), sizes)


def norm(matrix: np.ndarray) -> float:
    """The largest absolute eigenvalue."""
    start = np.random.default_rng(0).standard_normal(len(matrix))
    return float(abs(eigsh(matrix, k=1, which="LM", return_eigenvectors=False, tol=1e-5, v0=start)[0]))


def errors(s: np.ndarray, angle: np.ndarray, inside: np.ndarray, factor: float = 1.0) -> tuple[float, float]:
    """|K - K'| of the masked and of the plain matrix, with the length-scales multiplied by a factor."""
    k = np.exp(-0.5 * s / factor**2)
    features = np.concatenate([np.cos(angle / factor), np.sin(angle / factor)], axis=1) / np.sqrt(angle.shape[1])
    error = k - features @ features.T
    return norm(np.where(inside, error, k)), norm(error)


def run(setting: Setting) -> dict[float, dict]:
    """All draws for every bound. Data and frequencies have seeds of their own."""
    found = {}
    for bound in setting.bounds:
        x, labels = condition_data(setting.clusters, setting.inputs, bound, 10)
        s, inside = cdist(x, x, "sqeuclidean"), labels[:, None] == labels[None, :]
        sizes = sample_size(bound=bound, delta=DELTA, X=x, labels=labels, lengthscale=1.0)
        p = sizes.printed.p
        angles = [
            x @ np.random.default_rng(100 + i).standard_normal((p, setting.inputs)).T for i in range(setting.draws)
        ]
        found[bound] = {
            "sizes": sizes,
            "conditions": check_conditions(x, lengthscale=1.0, bound=bound, labels=labels),
            "draws": np.array([errors(s, angle, inside) for angle in angles]),
            "wide": np.array([errors(s, angle, inside, 2.0)[0] for angle in angles[:3]]),
            "scaled": np.array([errors(s, angles[0], inside, factor) for factor in FACTORS]),
        }
        print(f"bound {bound:g}: {len(x)} rows, {setting.clusters} clusters, {setting.draws} draws of {p} frequencies")
    return found


def print_tables(found: dict[float, dict]) -> None:
    """The experiment, and how many frequencies are proved to do."""
    print("\n|K - K'| with the printed number of frequencies")
    print("  bound  printed p     masked mean (max)   hits       plain mean (min)   hits   masked, length-scales x 2")
    for bound, one in found.items():
        masked, plain = one["draws"].T
        inside, outside = (f"{np.sum(values <= bound)}/{len(values)}" for values in (masked, plain))
        print(
            f"  {bound:5g}  {one['sizes'].printed.p:9d}  {f'{masked.mean():.3f} ({masked.max():.3f})':>20}  {inside:>5}"
            f"  {f'{plain.mean():.1f} ({plain.min():.1f})':>21}  {outside:>5}  {one['wide'].mean():26.1f}"
        )
    print(f"\nFrequencies that are proved to reach the bound with probability {1 - DELTA:g}")
    print("  bound         masked                      plain   the corrected conditions hold for length-scales")
    for bound, one in found.items():
        masked, plain = (f"{r.p} ({r.name})" for r in (one["sizes"].corrected, one["sizes"].plain))
        low, high = one["conditions"].box_factors
        print(f"  {bound:5g}  {masked:>13}  {plain:>25}   {low:.2f} to {high:.2f} times the given ones")


def draw_figure(found: dict[float, dict], path: Path) -> None:
    """Every draw beside its bound, and one draw over the length-scales."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), layout="constrained")
    jitter = np.random.default_rng(0)
    for place, (bound, one) in enumerate(found.items()):
        for column, shift, colour in ((0, -0.16, MASKED), (1, 0.16, PLAIN)):
            values = one["draws"][:, column]
            across = place + shift + jitter.uniform(-0.06, 0.06, len(values))
            left.plot(across, values, "o", color=colour, alpha=0.7, markersize=5, markeredgewidth=0)
        left.plot([place - 0.36, place + 0.36], [bound, bound], color=LIMIT, linewidth=2)
        left.annotate(f"bound {bound:g}", (place + 0.38, bound), va="center", fontsize=9, color=LIMIT)
    left.set_yscale("log")
    left.set_xlim(-0.6, len(found) - 0.15)
    left.set_xticks(range(len(found)), [f"p = {one['sizes'].printed.p}" for one in found.values()])
    left.set_xlabel("printed number of frequencies")
    left.set_ylabel("$|K - K'|$")
    left.set_title("The printed p, draw by draw", loc="left", fontsize=11)
    left.plot([], [], "o", color=MASKED, label="masked: between clusters zero")
    left.plot([], [], "o", color=PLAIN, label="plain: all entries estimated")
    left.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.42), fontsize=9)

    bound = list(found)[len(found) // 2]
    one = found[bound]
    low, high = one["conditions"].box_factors
    right.axvspan(low, high, color=MASKED, alpha=0.12, linewidth=0, label="the corrected conditions hold")
    right.plot(FACTORS, one["scaled"][:, 0], color=MASKED, marker="o", markersize=4, label="masked")
    right.plot(FACTORS, one["scaled"][:, 1], color=PLAIN, marker="o", markersize=4, label="plain")
    right.axhline(bound, color=LIMIT, linewidth=2, label=f"bound {bound:g}")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    right.set_xlabel("factor on the length-scales")
    title = f"One draw of {one['sizes'].printed.p} frequencies: no bound for all length-scales"
    right.set_title(title, loc="left", fontsize=11)
    right.legend(frameon=False, loc="center left", bbox_to_anchor=(0.0, 0.48), fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("masked_kernel"), help="folder for the figure")
    parser.add_argument("--quick", action="store_true", help="fewer clusters, inputs and draws")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = run(QUICK if arguments.quick else FULL)
    print_tables(found)
    path = arguments.out / "masked_kernel.png"
    draw_figure(found, path)
    print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
