"""What the spectrum sees and what the neighbours add, on simulated data.

    python examples/near_and_far.py --out near_and_far

The function is a slow wave, with fine detail in two regions; there is a gap without data. The same PrismGP with 8
frequencies is fitted without neighbours and with them. Prints errors and coverage on new rows, with and without detail,
and the weights, and writes ``near_and_far.png``. ``--rows`` and ``--steps`` make it smaller.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from prismgp import PrismGPRegressor
from prismgp.metrics import coverage, rmse

NOISE = 0.1
ROUGH = ((1.0, 2.6), (7.2, 8.8))  # where the function has fine detail
GAP = (4.6, 6.0)  # where there are no rows
END = 10.0
ZOOM = (0.7, 2.9)
MODELS = (("never", "The spectrum alone", "#e07b39"), ("always", "With neighbours", "#3f7fbf"))
ROWS, TRUTH = "#888888", "#222222"


def truth(x: np.ndarray) -> np.ndarray:
    """A slow wave; in two regions also a fast one, with sharp crests and a rising frequency."""
    y = 1.1 * np.sin(0.75 * x) + 0.08 * x
    for low, high in ROUGH:
        t = (x - low) / (high - low)
        inside = (t > 0) & (t < 1)
        phase = 2.0 * np.pi * (7.0 * t + 4.0 * t**2)
        y = y + np.where(inside, 0.7 * np.sqrt(np.clip(t * (1.0 - t), 0.0, 1.0)) * np.arcsin(np.sin(phase)), 0.0)
    return y


def simulate(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs outside the gap, uniformly, and noisy values."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, END - (GAP[1] - GAP[0]), rows)
    x = np.where(x < GAP[0], x, x + GAP[1] - GAP[0])
    return x, truth(x) + NOISE * rng.standard_normal(rows)


def fit(x: np.ndarray, y: np.ndarray, local: str, steps: int) -> PrismGPRegressor:
    """A small PrismGP, the same for both but for the neighbours."""
    model = PrismGPRegressor(8, n_members=1, max_steps=steps, local=local, random_state=0)
    return model.fit(x[:, None], y)


def draw(axes: Any, model: PrismGPRegressor, ends: tuple[float, float], colour: str) -> None:
    """Truth, prediction and interval of new observations between two ends."""
    grid = np.linspace(*ends, 1_500)
    mean = model.predict(grid[:, None])
    lower, upper = model.predict_interval(grid[:, None], coverage=0.95).T
    axes.fill_between(grid, lower, upper, color=colour, alpha=0.25, linewidth=0, label="95% interval")
    axes.plot(grid, truth(grid), color=TRUTH, linewidth=0.9, label="true function")
    axes.plot(grid, mean, color=colour, linewidth=1.8, label="prediction")
    axes.set_xlim(*ends)


def draw_figure(models: dict[str, PrismGPRegressor], x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """All rows on the left, one of the regions of detail on the right."""
    layout = {"width_ratios": [1.7, 1.0]}
    figure, panels = plt.subplots(2, 2, figsize=(11.5, 6.0), sharey=True, layout="constrained", gridspec_kw=layout)
    for (local, title, colour), (whole, zoom) in zip(MODELS, panels, strict=True):
        for axes, ends in ((whole, (0.0, END)), (zoom, ZOOM)):
            axes.plot(x, y, ".", color=ROWS, markersize=2.6, alpha=0.5, markeredgewidth=0, label="data")
            draw(axes, models[local], ends, colour)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_axisbelow(True)
        whole.set_title(title, loc="left", fontsize=11)
        zoom.set_title("Enlarged: fine detail", loc="left", fontsize=11)
        zoom.set_xticks([1.0, 1.5, 2.0, 2.5])
        whole.axvspan(*GAP, color="#f3f3f3", linewidth=0, zorder=-1)
        whole.annotate("no data", (sum(GAP) / 2, 0.92), xycoords=("data", "axes fraction"), ha="center", fontsize=9)
        zoom.legend(frameon=False, loc="lower center", fontsize=9, ncols=2, markerscale=4)
    for axes in panels[-1]:
        axes.set_xlabel("input")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def print_table(models: dict[str, PrismGPRegressor], seed: int) -> None:
    """Errors on new rows, inside and outside the regions of detail."""
    x, y = simulate(4_000, seed)
    rough = np.any([(x > low) & (x < high) for low, high in ROUGH], axis=0)
    print("                           RMSE of new rows (noise included)     95% intervals cover")
    print("                           fine detail      elsewhere            fine detail   elsewhere")
    for local, title, _ in MODELS:
        mean = models[local].predict(x[:, None])
        lower, upper = models[local].predict_interval(x[:, None], coverage=0.95).T
        errors = [rmse(y[part], mean[part]) for part in (rough, ~rough)]
        shares = [coverage(y[part], lower[part], upper[part]) for part in (rough, ~rough)]
        print(f"{title:26} {errors[0]:.3f} {errors[1]:16.3f} {shares[0]:20.1%} {shares[1]:13.1%}")
    print("weights:", {name: round(w, 3) for name, w in models["always"].fit_status_["local"]["weights"].items()})


def main() -> None:
    """Fit, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("near_and_far"), help="folder for the figure")
    parser.add_argument("--rows", type=int, default=4_000, help="of the training (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of training the network (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    x, y = simulate(arguments.rows, 0)
    models = {local: fit(x, y, local, arguments.steps) for local, _, _ in MODELS}
    print_table(models, 1)
    path = arguments.out / "near_and_far.png"
    draw_figure(models, x, y, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
