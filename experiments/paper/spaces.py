"""Claims about the re-configured space, and what it costs to make the conditions of the corrected theorem hold.

- "space": K-means clusters before and after re-configuration in three samples of 10,000 rows (Figure 3), also with a
  latent space of two dimensions (Figures 2b and 2c), by their silhouettes, each in its own space.
- "output": an SSGP on the latent space against one on the reconstruction (appendix C), two stages as printed.
- "trade": a hard-gated recipe whose conditions hold on the training rows by construction. The rows are cut into cells
  by K-means, rows far from their centre go to a cell of their own; a cell is moved away from all others, which no
  in-cell kernel value notices and which makes those between cells vanish; length-scales are those at which the
  corrected conditions hold (S17), or a fraction of them. Signal and noise are chosen by the evidence. So what is left
  to the model are functions that hardly bend within a cell.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from experiments.internals import Array, unpack_exact
from experiments.jobs import Job
from experiments.page import PALETTE, drawing, drawing_style, markdown_table
from experiments.paper.data import check_available, load
from experiments.plan import Experiment, Plan, add_run_options, positive
from experiments.results import Record, Study
from prismgp import PrismGPRegressor, Reconfigurer, SSGPRegressor, certify, check_conditions, sample_size
from prismgp.datasets import make_gas_sensor

__all__ = ["SPACES", "measure_output", "measure_space", "measure_trade"]

CLUSTERS = 8
SAMPLES = 3
SAMPLE_ROWS, SCORED_ROWS = 10_000, 2_000
BOUND, DELTA = 1.0, 0.1  # |K - K'| <= 1 with probability .9
CELLS = (8, 32, 128)
FACTORS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)  # of the shortest length-scales at which the conditions hold
SIGNALS, NOISES = (1.0, 1e2, 1e4, 1e6), (0.1, 0.3, 0.5)  # of the target's variance
FAR = 3.0  # root mean square distances from its centre beyond which a row is a cell of its own
APART = 1e3  # between cells, in the units of the inputs
P = 32


def measure_space(order: Record) -> Record:
    """Silhouettes of K-means clusters of a sample, in the inputs and in re-configured ones."""
    x = make_gas_sensor(order["rows"], random_state=order["sample"]).X.to_numpy()
    x = (x - x.mean(0)) / x.std(0)
    steps = {} if order["steps"] is None else {"max_steps": order["steps"]}
    found = {"inputs": _silhouette(x)}
    for name, options in (
        ("latent, 4 columns", {}),
        ("latent, 2 columns", {"latent_dim": 2}),
        ("reconstruction", {"output": "reconstruction"}),
    ):
        coder = Reconfigurer(random_state=order["sample"], **steps, **options).fit(x)
        found[name] = _silhouette(coder.transform(x))
    return {"silhouettes": found}


def _silhouette(z: Array) -> float:
    labels = KMeans(CLUSTERS, n_init=4, random_state=0).fit_predict(z)
    chosen = np.random.default_rng(0).permutation(len(z))[:SCORED_ROWS]
    return float(silhouette_score(z[chosen], labels[chosen]))


def measure_output(order: Record) -> Record:
    """RMSE of the two stages as printed, with either output, on a split of abalone."""
    data = load({"experiment": "abalone", "simulated": False, "rows": None, "data": None, "run": order["run"]})
    steps = {} if order["steps"] is None else {"max_steps": order["steps"]}
    rmse = {}
    for output in ("latent", "reconstruction"):
        model = PrismGPRegressor(P, recipe="paper", output=output, random_state=order["run"], **steps).fit(*data.fit)
        rmse[output] = float(np.sqrt(np.mean((model.predict(data.x_test) - data.y_test) ** 2)) / data.scale)
    return {"rmse": rmse}


def measure_trade(order: Record) -> Record:
    """Error, conditions and sufficient p of the hard-gated recipe, for shorter and shorter length-scales."""
    data = load({"experiment": "abalone", "simulated": False, "rows": None, "data": None, "run": order["run"]})
    x, y = data.fit
    plain = SSGPRegressor(P, random_state=0).fit(x, y)
    standardiser, params = unpack_exact(plain)
    # In units of the plain SSGP's length-scales, in which distances mean what the kernel makes of them.
    unit = standardiser.x_scale * params.lengthscale
    z, labels, z_test = cut(x / unit, data.x_test / unit, order["cells"])
    report = check_conditions(z, lengthscale=1.0, bound=BOUND, labels=labels)
    assert report.box_factors is not None  # cells are as far apart as one likes
    rows = []
    for factor in FACTORS:
        scale = factor * report.box_factors[0] * (1.0 + 1e-9)
        there = check_conditions(z, lengthscale=scale, bound=BOUND, labels=labels)
        sizes = sample_size(bound=BOUND, delta=DELTA, X=z, labels=labels, lengthscale=scale)
        model = fit_by_evidence(z, y, labels, scale, order["run"])
        error = np.sqrt(np.mean((model.predict(z_test) - data.y_test) ** 2)) / data.scale
        row = {
            "factor": factor,
            "lengthscale": scale,
            "holds": there.holds,
            "p": sizes.corrected.p,
            "rmse": float(error),
            "noise_ratio": float(model.noise_variance_ / model.signal_variance_),
        }
        if factor == FACTORS[0]:  # where the conditions hold: the model with the frequencies that suffice, certified
            few = fit_by_evidence(z, y, labels, scale, order["run"], int(sizes.corrected))
            row["rmse_at_p"] = float(np.sqrt(np.mean((few.predict(z_test) - data.y_test) ** 2)) / data.scale)
            found = certify(few, z, y, random_state=0).kernel_error
            row["kernel_error"] = None if found is None else float(found.upper)
        rows.append(row)
    ssgp = np.sqrt(np.mean((plain.predict(data.x_test) - data.y_test) ** 2)) / data.scale
    return {"rows": rows, "cells_used": int(labels.max()) + 1, "ssgp_rmse": float(ssgp)}


def cut(x: Array, x_test: Array, cells: int) -> tuple[Array, Array, Array]:
    """Training rows relative to the centre of their cell, one more column keeping cells apart; labels; test rows.

    Training rows far from their centre are cells of their own; test rows are in the cell of the nearest centre.
    """
    means = KMeans(cells, n_init=4, random_state=0).fit(x)
    labels, centres = means.labels_.astype(np.int64), means.cluster_centers_
    away = np.linalg.norm(x - centres[labels], axis=1)
    spread = np.sqrt(np.bincount(labels, away**2) / np.bincount(labels))[labels]
    alone = (away > FAR * spread) & (np.bincount(labels)[labels] > 1)
    own = labels.copy()
    own[alone] = cells + np.arange(alone.sum())
    own = np.unique(own, return_inverse=True)[1]
    places = np.zeros(cells)
    places[labels[~alone]] = own[~alone]
    inside = np.where(alone[:, None], 0.0, x - centres[labels])
    nearest = means.predict(x_test)
    z = np.column_stack([inside, APART * own])
    return z, own, np.column_stack([x_test - centres[nearest], APART * places[nearest]])


def fit_by_evidence(z: Array, y: Array, labels: Array, lengthscale: float, run: int, p: int = P) -> SSGPRegressor:
    """The hard-gated SSGP at these length-scales, signal and noise variance the best of a grid by the evidence."""
    variance = float(np.var(y))
    fits = [
        SSGPRegressor(
            p,
            gating="hard",
            partition=labels,
            frequencies="iid",
            lengthscale=lengthscale,
            signal_variance=signal * variance,
            noise_variance=noise * variance,
            optimize=False,
            normalize=False,  # standardised, cells would be near each other again
            random_state=run,
        ).fit(z, y)
        for signal, noise in itertools.product(SIGNALS, NOISES)
    ]
    return max(fits, key=lambda fit: float(fit.log_evidence_))


# -- tables and the figure -------------------------------------------------------------------------


def _of_kind(study: Study, kind: str) -> list[Record]:
    return [each for each in study.records.values() if each.get("kind") == kind and "failed" not in each]


def markdown(study: Study) -> str:
    """Tables, one for each kind of measurement."""
    parts = ["# The re-configured space"]
    if spaces := _of_kind(study, "space"):
        names = list(spaces[0]["silhouettes"])
        rows = [[f"S{each['sample'] + 1}", *(f"{each['silhouettes'][name]:.3f}" for name in names)] for each in spaces]
        parts += [
            "Silhouettes of eight K-means clusters, each in its own space; the gas array, simulated.",
            markdown_table(["Sample", *names], rows),
        ]
    if outputs := _of_kind(study, "output"):
        values = {name: np.array([each["rmse"][name] for each in outputs]) for name in ("latent", "reconstruction")}
        difference = values["reconstruction"] - values["latent"]
        error = f" ± {difference.std(ddof=1) / np.sqrt(len(difference)):.4f}" if len(difference) > 1 else ""
        sentence = ", ".join(f"{name} {each.mean():.4f}" for name, each in values.items())
        parts.append(
            f"RMSE of the two stages as printed on abalone, p = {P}, {len(outputs)} runs: {sentence}; "
            f"reconstruction minus latent {difference.mean():+.4f}{error}."
        )
    if trades := _of_kind(study, "trade"):
        parts += [
            f"The hard-gated recipe on abalone, |K - K'| <= {BOUND:g} with probability {1 - DELTA:g}.",
            markdown_table(_TRADE_HEADER, _trade_rows(trades)),
        ]
    return "\n\n".join(parts) + "\n"


_TRADE_HEADER = [
    "Cells",
    "Runs",
    "Length-scales",
    "Conditions hold",
    "Sufficient p",
    f"RMSE, p = {P}",
    "with that p",
    "its kernel error",
    "SSGP",
    "Noise / signal",
]


def _trade_rows(trades: list[Record]) -> list[list[str]]:
    rows = []
    for cells in sorted({each["cells"] for each in trades}):
        group = [each for each in trades if each["cells"] == cells]
        for k, factor in enumerate(FACTORS):
            points = [each["rows"][k] for each in group]
            certified = [each["kernel_error"] for each in points if each.get("kernel_error") is not None]
            numbers = [each["p"] for each in points if each["p"] is not None]
            rows.append(
                [
                    str(cells),
                    str(len(group)),
                    f"{factor:g} x {np.mean([each['lengthscale'] / factor for each in points]):.3g}",
                    "yes" if all(each["holds"] for each in points) else "no",
                    f"{max(numbers):,}" if len(numbers) == len(points) else "none",
                    f"{np.mean([each['rmse'] for each in points]):.4f}",
                    f"{np.mean([each['rmse_at_p'] for each in points]):.4f}" if "rmse_at_p" in points[0] else "",
                    f"{max(certified):.3g}" if certified else "",
                    f"{np.mean([each['ssgp_rmse'] for each in group]):.4f}",
                    f"{np.median([each['noise_ratio'] for each in points]):.1g}",
                ]
            )
    return rows


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """Error against how far the conditions hold, and against the sufficient number of frequencies."""
    trades = _of_kind(study, "trade")
    return {"trade": lambda: _draw(trades)} if trades else {}


def _draw(trades: list[Record]) -> Any:
    with drawing_style():
        figure = drawing(9.0, 3.6)
        axes = figure.subplots(1, 2, sharey=True)
        colours = dict(zip(CELLS, (PALETTE["blue"], PALETTE["vermillion"], PALETTE["green"]), strict=True))
        for cells in sorted({each["cells"] for each in trades}):
            group = [each["rows"] for each in trades if each["cells"] == cells]
            error = [np.mean([rows[k]["rmse"] for rows in group]) for k in range(len(FACTORS))]
            numbers = [np.mean([rows[k]["p"] or np.nan for rows in group]) for k in range(len(FACTORS))]
            style = {"color": colours[cells], "marker": "o", "label": f"{cells} cells"}
            axes[0].plot(FACTORS, error, **style)
            axes[1].plot(numbers, error, **style)
        ssgp = np.mean([each["ssgp_rmse"] for each in trades])
        for axis in axes:
            axis.axhline(ssgp, color=PALETTE["black"], linestyle=":", label="SSGP without cells")
            axis.set(xscale="log")
        axes[0].axvspan(1.0, 1.3, color=PALETTE["sky"], alpha=0.3)
        axes[0].set(xlabel="length-scales, 1: the shortest at which the conditions hold", ylabel="RMSE, abalone")
        axes[1].set(xlabel="frequencies that suffice")
        axes[1].legend(frameon=False)
        return figure


# -- plan ------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--runs", type=positive, default=5, metavar="N", help="splits of abalone (default: 5)")
    parser.add_argument("--steps", type=positive, metavar="N", help="of the auto-encoders (default: theirs)")
    parser.add_argument(
        "--rows", type=positive, default=SAMPLE_ROWS, metavar="N", help="of each sample (default: 10000)"
    )
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each sample, split and number of cells."""
    if not args.list:
        check_available(gas=False, simulated=False)
    options = {"steps": args.steps, "rows": args.rows}
    jobs = [
        Job(f"trade-{cells}-run{run}", f"{__name__}:measure_trade", {"kind": "trade", "cells": cells, "run": run})
        for run, cells in itertools.product(range(args.runs), CELLS)
    ]
    jobs += [
        Job(f"space-{sample}", f"{__name__}:measure_space", {"kind": "space", "sample": sample, **options})
        for sample in range(SAMPLES)
    ]
    jobs += [
        Job(f"output-run{run}", f"{__name__}:measure_output", {"kind": "output", "run": run, **options})
        for run in range(args.runs)
    ]
    return Plan("spaces", jobs, options)


def _describe(result: Record) -> str:
    if result["kind"] == "trade":
        first = result["rows"][0]
        return f"conditions hold: {first['holds']}, p = {first['p']}, RMSE {first['rmse']:.4f}"
    values = result["silhouettes" if result["kind"] == "space" else "rmse"]
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())


SPACES = Experiment(
    kind="spaces",
    summary="claims about the re-configured space, and the price of the theorem's conditions",
    add_options=add_options,
    make_plan=make_plan,
    describe=_describe,
    markdown=markdown,
    figures=figures,
)
