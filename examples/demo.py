"""The full GP, the sparse spectrum GP and the revised one side by side, on a real and a simulated data set.

    python examples/demo.py --out demo

Prints a table and writes ``report.html`` and ``overview.png`` into the folder.
The real data set is scikit-learn's diabetes data; the simulated one imitates a gas sensor and says so.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import sklearn
import torch
from scipy import stats
from sklearn.datasets import load_diabetes
from tqdm import tqdm

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.report import Figure, Page, Table, drawn, render

FREQUENCIES = (16, 32, 64)
PRISM_FREQUENCIES = 32
COLOURS = {"exact": "#222222", 16: "#e07b39", 32: "#3f7fbf", 64: "#4c9f70", "prism": "#8b3fa0"}


def simulated_sensor(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A simulated gas sensor: concentration from resistance under heater cycle, humidity and temperature."""
    gas = rng.uniform(0, 20, n)
    heater, humidity, temperature, flow = rng.uniform(size=(4, n))
    cycle = np.sin(2 * np.pi * heater)
    response = (1 + gas) ** (0.6 + 0.1 * cycle) * (1 - 0.3 * humidity) * np.exp(0.3 * temperature)
    resistance = np.log(response) + 0.02 * rng.standard_normal(n)
    second = np.log1p(gas) * (1 + 0.2 * cycle) + 0.4 * humidity + 0.05 * rng.standard_normal(n)
    return np.column_stack([resistance, second, heater, humidity, temperature, flow]), gas


def data_sets() -> dict[str, tuple[np.ndarray, ...]]:
    """Training and test rows of each data set."""
    rng = np.random.default_rng(0)
    sets = {}
    for name, (x, y) in {
        "diabetes": load_diabetes(return_X_y=True),
        "gas sensor (simulated)": simulated_sensor(2400, rng),
    }.items():
        order = rng.permutation(len(y))
        test, train = order[: len(y) // 4], order[len(y) // 4 :]
        sets[name] = (x[train], y[train], x[test], y[test])
    return sets


def run() -> list[dict[str, Any]]:
    """Fit every model on every data set."""
    results = []
    models: list[tuple[Any, Any]] = [("exact", ExactGPRegressor(random_state=0))]
    models += [(p, SSGPRegressor(p, random_state=0)) for p in FREQUENCIES]
    watched = sys.stderr.isatty()
    # The one model that takes a minute shows a bar of its own.
    models.append(("prism", PrismGPRegressor(PRISM_FREQUENCIES, random_state=0, verbose=int(watched))))
    sets = data_sets()
    with tqdm(total=len(sets) * len(models), desc="fitting", disable=not watched) as bar:
        for name, (x, y, x_test, y_test) in sets.items():
            for label, model in models:
                began = time.perf_counter()
                model.fit(x, y)
                seconds = time.perf_counter() - began
                mean, std = model.predict(x_test, return_std=True)
                z = (y_test - mean) / std
                results.append(
                    {
                        "data": name,
                        "rows": len(y),
                        "model": label,
                        "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2))),
                        "nlpd": float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi))),
                        "coverage": float(np.mean(np.abs(z) < stats.norm.ppf(0.975))),
                        "seconds": seconds,
                        "z": z,
                    }
                )
                bar.update()
    return results


def model_name(label: Any) -> str:
    names = {"exact": "full GP", "prism": f"PrismGP, p = {PRISM_FREQUENCIES}"}
    return names.get(label, f"SSGP, p = {label}")


def table(results: list[dict[str, Any]]) -> Table:
    rows = [
        [
            f"{r['data']}: {model_name(r['model'])}",
            f"{r['rows']:,}",
            f"{r['rmse']:.3f}",
            f"{r['nlpd']:.3f}",
            f"{100 * r['coverage']:.1f}%",
            f"{r['seconds']:.1f}",
        ]
        for r in results
    ]
    header = ["Data and model", "rows", "RMSE", "NLPD", "95% intervals cover", "fit, s"]
    return Table("Accuracy, calibration and time", header, rows)


def draw_fit(axis: Any) -> None:
    """A one-dimensional example: data with a gap, mean, and 95% band."""
    rng = np.random.default_rng(3)
    x = np.sort(np.concatenate([rng.uniform(-5, -0.5, 60), rng.uniform(1.8, 5, 50)]))
    y = np.sin(1.5 * x) + 0.3 * x + 0.2 * rng.standard_normal(len(x))
    grid = np.linspace(-6, 6, 400)
    axis.plot(x, y, ".", color="#888888", markersize=4, label="data")
    for label, model in (("exact", ExactGPRegressor()), (32, SSGPRegressor(32, random_state=0))):
        mean, std = model.fit(x[:, None], y).predict(grid[:, None], return_std=True)
        axis.plot(grid, mean, color=COLOURS[label], lw=1.4, label=model_name(label))
        style = {"ls": "--", "lw": 0.8, "color": COLOURS[label]}
        if label == "exact":
            axis.plot(grid, mean - 1.96 * std, **style)
            axis.plot(grid, mean + 1.96 * std, **style)
        else:
            axis.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, color=COLOURS[label], alpha=0.2, lw=0)
    axis.set(title="Mean and 95% interval of a new observation", xlabel="x", ylabel="y", ylim=(-4.5, 4.5))
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def draw_error(axis: Any, results: list[dict[str, Any]]) -> None:
    """RMSE over that of the full GP, against the number of frequencies."""
    names = list(dict.fromkeys(r["data"] for r in results))
    for name, marker in zip(names, ("o", "s"), strict=True):
        of = {r["model"]: r["rmse"] for r in results if r["data"] == name}
        (line,) = axis.plot(
            FREQUENCIES, [of[p] / of["exact"] for p in FREQUENCIES], marker=marker, label=f"SSGP, {name}"
        )
        point = [of["prism"] / of["exact"]]
        axis.plot([PRISM_FREQUENCIES], point, "*", markersize=13, color=line.get_color(), label=f"PrismGP, {name}")
    axis.axhline(1.0, color=COLOURS["exact"], lw=1, ls="--", label="full GP")
    axis.set_xscale("log", base=2)
    axis.set_xticks(FREQUENCIES, [str(p) for p in FREQUENCIES])
    axis.set(title="Error against spectral frequencies", xlabel="frequencies p", ylabel="RMSE / RMSE of the full GP")
    axis.legend(frameon=False, fontsize=8)


def draw_calibration(axis: Any, results: list[dict[str, Any]]) -> None:
    """Observed against expected coverage of central intervals."""
    levels = np.linspace(0.02, 0.98, 49)
    axis.plot([0, 1], [0, 1], color="#bbbbbb", lw=1)
    for r in results:
        if r["data"].startswith("gas"):
            observed = [np.mean(np.abs(r["z"]) < stats.norm.ppf(0.5 + level / 2)) for level in levels]
            axis.plot(levels, observed, color=COLOURS[r["model"]], lw=1.4, label=model_name(r["model"]))
    axis.set(title="Calibration, simulated gas sensor", xlabel="expected coverage", ylabel="observed coverage")
    axis.set_aspect("equal")
    axis.legend(frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    results = run()
    content = table(results)
    widths = [max(len(row[k]) for row in [content.header, *content.rows]) for k in range(len(content.header))]
    for row in [content.header, *content.rows]:
        cells = [
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells))

    overview, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained", width_ratios=(1.5, 1.1, 1))
    draw_fit(axes[0])
    draw_error(axes[1], results)
    draw_calibration(axes[2], results)
    overview.savefig(out / "overview.png", dpi=110)
    plt.close(overview)

    page = Page(
        title="PrismGP demo",
        summary="The full GP, the sparse spectrum GP with 16, 32 and 64 spectral frequencies, and the revised one "
        "(PrismGP) with 32, on a real data set (diabetes, from scikit-learn) and a simulated gas sensor. "
        "A quarter of the rows is held out.",
        tables=[content],
        figures=[
            Figure(
                drawn(draw_fit),
                "A sparse spectrum GP with 32 frequencies (blue, band) and the full GP (black, dashed) on data with a "
                "gap. Both are less sure where there is no data; the sparse one less so, because few frequencies "
                "leave fewer functions to choose from.",
                "Two similar curves through noisy points. In the gap the full GP's band is the wider one.",
            ),
            Figure(
                drawn(lambda axis: draw_error(axis, results)),
                "Test error relative to the full GP.",
                "RMSE ratio of the sparse spectrum GP against 16, 32 and 64 frequencies and of PrismGP with 32, for "
                "two data sets.",
            ),
            Figure(
                drawn(lambda axis: draw_calibration(axis, results), (7.5, 4.6)),
                "Share of held-out values inside central intervals, against what the intervals claim.",
                "Calibration curves close to the diagonal.",
            ),
        ],
        made_by={
            "command": "python examples/demo.py --out demo",
            "prismgp": prismgp.__version__,
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}, "
            f"scikit-learn {sklearn.__version__}, numpy {np.__version__}",
            "seeds": "0 for splits and models, 3 for the one-dimensional example",
            "threads": str(torch.get_num_threads()),
            "time": f"{time.perf_counter() - began:.0f} s",
        },
    )
    render(page, out / "report.html")
    print(f"\nReport: {out / 'report.html'}   picture: {out / 'overview.png'}")


if __name__ == "__main__":
    main()
