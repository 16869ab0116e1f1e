"""Rows predicted per second, mean and std, against bare products of the same sizes.

The bare operations of a model are the least that its prediction must compute, on tensors that are ready: products of
rows with matrices, cosines and sines, and for neighbours the products that give all distances and the factorisations of
small matrices. What comes on top is units, gates, the choice of neighbours, and copies. Both are measured in turns.

Models are trained for a few steps: predictions cost the same whatever the parameters are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.speed import time_call
from experiments.benchmarks.suite import check_data, load_split, origin
from experiments.internals import Products, list_products
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names
from experiments.results import Record, Study
from prismgp import NeighborGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = ["PREDICTION"]

DATASET = "kin40k"
ROWS = {"cpu": 32_768, "cuda": 524_288}  # to predict
REPEATS = 5
SHORT: dict[str, Any] = {"max_iter": 5, "random_state": 0}
MODELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "ssgp": ("SSGP, p = 64", lambda **common: SSGPRegressor(64, **common)),
    "spectral": (
        "PrismGP, p = 32, without neighbours",
        lambda **common: PrismGPRegressor(32, max_steps=100, local="never", **common),
    ),
    "neighbors": ("neighbour GP, k = 32", lambda **common: NeighborGPRegressor(**common)),
    "prism": (
        "PrismGP, p = 32, with neighbours",
        lambda **common: PrismGPRegressor(32, max_steps=100, local="always", **common),
    ),
}
_BLOCK = {"cpu": 2**23, "cuda": 2**27}  # numbers of a block of distances
INTRODUCTION = (
    f"Rows per second, mean and std, of models of {DATASET} (36,000 rows, 8 inputs), and of bare products of the same "
    f"sizes. Made by `python -m experiments prediction`, with `--device cuda` on a GPU."
)


def measure(order: Record) -> Record:
    """Fit in a few steps, then predict and multiply in turns."""
    device = order["device"]
    x, y, test, _ = load_split(DATASET, 0)
    model = MODELS[order["model"]][1](device=device, **SHORT).fit(x, y)
    rows = np.resize(test, (ROWS[device], test.shape[1]))
    products = list_products(model)
    bare = make_bare(products, model.model_.to_model(rows))
    pairs = [
        (time_call(lambda: model.predict(rows, return_std=True), device), time_call(bare, device))
        for _ in range(REPEATS + 1)
    ][1:]
    ours, least = (len(rows) / float(np.median(column)) for column in zip(*pairs, strict=True))
    return {
        "rows": len(rows),
        "experts": len(products.spectral),
        "widths": [sizes[-1][0] for sizes in products.spectral],
        "rows_per_second": ours,
        "bare_rows_per_second": least,
        "ratio": float(np.median([a / b for a, b in pairs])),
    }


def make_bare(products: Products, x: torch.Tensor) -> Callable[[], None]:
    """The operations alone, on as many rows at a time as the model predicts."""
    step, device = min(products.chunk_rows, len(x)), x.device
    chains = [_spectral_chain(sizes, step, device) for sizes in products.spectral]
    chains += [_neighbor_chain(*sizes, step, device) for sizes in products.near]

    def run() -> None:
        for start in range(0, len(x), step):
            count = min(step, len(x) - start)
            for chain in chains:
                chain(count)

    return run


def _spectral_chain(
    sizes: list[tuple[int, int, torch.dtype, bool]], step: int, device: torch.device
) -> Callable[[int], None]:
    """Products of rows with matrices, one after the other; after some, cosine and sine."""
    made = []
    for fan_in, fan_out, dtype, trigonometric in sizes:
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        rows, matrix = torch.randn(step, fan_in, **place), torch.randn(fan_in, fan_out, **place)
        out, waves = torch.empty(step, fan_out, **place), torch.empty(2, step, fan_out, **place)
        made.append((rows, matrix, out, waves if trigonometric else None))

    def run(count: int) -> None:
        for rows, matrix, out, waves in made:
            torch.mm(rows[:count], matrix, out=out[:count])
            if waves is not None:
                torch.cos(out[:count], out=waves[0, :count])
                torch.sin(out[:count], out=waves[1, :count])

    return run


def _neighbor_chain(n: int, d: int, k: int, step: int, device: torch.device) -> Callable[[int], None]:
    """All distances, as a search by products computes them, and the systems of k neighbours of every row."""
    block = max(1, _BLOCK[device.type] // n)
    dtype = torch.float64 if device.type == "cuda" else torch.float32
    rows, points = torch.randn(step, d, dtype=dtype, device=device), torch.randn(d, n, dtype=dtype, device=device)
    keys = torch.empty(min(block, step), n, dtype=dtype, device=device)
    some = min(step, block * 8)
    near = torch.randn(some, k, d, dtype=torch.float64, device=device)
    right = torch.randn(some, k, 1, dtype=torch.float64, device=device)
    eye = torch.eye(k, dtype=torch.float64, device=device).mul_(1e3)

    def run(count: int) -> None:
        for start in range(0, count, block):
            own = rows[start : min(start + block, count)]
            torch.mm(own, points, out=keys[: len(own)])
        for start in range(0, count, some):
            own = near[: min(some, count - start)]
            lower, _ = torch.linalg.cholesky_ex(torch.bmm(own, own.mT).exp_().clamp_(max=1.0).add_(eye))
            torch.cholesky_solve(right[: len(own)], lower)

    return run


# -- plan and table --------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--models", type=parse_names, default=list(MODELS), metavar="A,B", help=",".join(MODELS))
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each model; those of another device are kept beside them."""
    names = known_names(args.models, MODELS, "--models")
    if not args.list:
        check_data()
    orders = [{"model": name, "device": args.device} for name in names]
    jobs = [Job(f"{each['model']}-{each['device']}", f"{__name__}:measure", each, 2 * 2**30) for each in orders]
    return Plan("prediction", jobs)


def describe(result: Record) -> str:
    """A few words about a result."""
    return f"{result['rows_per_second']:,.0f} rows per second, {result['ratio']:.2f} times the bare products"


def markdown(study: Study) -> str:
    """One line for each model and device."""
    found = [each for each in study.records.values() if "failed" not in each]
    found.sort(key=lambda each: (each["device"], list(MODELS).index(each["model"])))
    rows = []
    for each in found:
        machine = each["machine"]
        place = machine["gpu"] if each["device"] == "cuda" else f"{machine['threads']} thread(s)"
        speeds = [f"{each[name]:,.0f}" for name in ("rows_per_second", "bare_rows_per_second")]
        rows.append([MODELS[each["model"]][0], place, *speeds, f"{each['ratio']:.2f}"])
    header = ["model", "on", "rows per second", "bare products", "time / bare"]
    lines = ["# Rows predicted per second", "", INTRODUCTION, "", markdown_table(header, rows), ""]
    return "\n".join([*lines, "## Made with", "", *origin(found)])


PREDICTION = Experiment(
    kind="prediction",
    summary="rows predicted per second, against bare products of the same sizes",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
