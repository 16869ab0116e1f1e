"""Bayesian optimisation with BoTorch: PrismGP's models against SingleTaskGP, with the same acquisition function.

All loops maximise a function on the unit cube by log expected improvement, from the same initial designs. Models are
fitted again after every few evaluations and conditioned on the others.

small   200 evaluations of Hartmann-6, Ackley-10 and Hartmann-6 among 20 inputs, without noise
large   30 evaluations after 50,000 rows are known, with noise, of Hartmann-6 among 20 inputs
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from experiments.jobs import Job
from experiments.page import PALETTE, best_cells, drawing, drawing_style, markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_splits
from experiments.results import Record, Study
from prismgp import ExactGPRegressor, NeighborGPRegressor, SSGPRegressor

__all__ = ["BAYES_OPT"]

FUNCTIONS = {"hartmann6": 6, "ackley10": 10, "hartmann20": 20}  # inputs
TITLES = {"hartmann6": "Hartmann, 6 inputs", "ackley10": "Ackley, 10 inputs", "hartmann20": "Hartmann, 6 of 20 inputs"}
MODELS = {
    "singletask": "SingleTaskGP",
    "exact": "PrismModel(ExactGPRegressor)",
    "ssgp": "PrismModel(SSGPRegressor), p = 128",
}
LARGE, LARGE_ROWS, LARGE_NOISE, LARGE_EVALUATIONS = "large", 50_000, 0.05, 30
LARGE_MODELS = {
    "singletask": "SingleTaskGP, all rows",
    "singletask-part": "SingleTaskGP, 1,000 of the rows",
    "ssgp": "PrismModel(SSGPRegressor), p = 128, all rows",
    "neighbors": "PrismModel(NeighborGPRegressor), all rows",
}
PART = 1_000
P = 128
EVALUATIONS, INITIAL, REFIT_EVERY = 200, 20, 5
SEEDS = 10
RESTARTS, RAW_SAMPLES, STEPS = 4, 128, 60
SHOWN = (50, 100, 200)  # evaluations
LEAST_SHOWN = 1e-6  # regret in the figure
STYLES = {
    "singletask": {"color": PALETTE["black"]},
    "exact": {"color": PALETTE["blue"]},
    "ssgp": {"color": PALETTE["vermillion"]},
}


# -- one loop --------------------------------------------------------------------------------------


def objective(name: str) -> tuple[Callable[[torch.Tensor], torch.Tensor], float]:
    """A function of points of the unit cube, (n, d), to be maximised, and its maximum."""
    from botorch.test_functions import Ackley, Hartmann

    inner = Ackley(10, negate=True) if name == "ackley10" else Hartmann(6, negate=True)
    low, high = inner.bounds.double()

    def function(x: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = inner(low + (high - low) * x[:, : len(low)])
        return values

    return function, float(inner.optimal_value)


def draw_initial(n: int, d: int, seed: int) -> torch.Tensor:
    """Scrambled Sobol points, (n, d)."""
    return torch.quasirandom.SobolEngine(d, scramble=True, seed=seed).draw(n, dtype=torch.float64)


def fit_model(name: str, x: torch.Tensor, y: torch.Tensor, seed: int) -> Any:
    """A BoTorch model of the rows."""
    if name.startswith("singletask"):
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        model = SingleTaskGP(x, y[:, None])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model
    from prismgp.botorch import PrismModel

    regressors = {
        "exact": ExactGPRegressor(),
        "ssgp": SSGPRegressor(P, max_iter=50, random_state=seed),
        "neighbors": NeighborGPRegressor(random_state=seed),
    }
    return PrismModel(regressors[name].fit(x.numpy(), y.numpy()))


def propose(model: Any, d: int, best: float) -> torch.Tensor:
    """The point of the largest log expected improvement, (1, d)."""
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf

    cube = torch.stack([torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)])
    point, _ = optimize_acqf(
        LogExpectedImprovement(model, best_f=best),
        bounds=cube,
        q=1,
        num_restarts=RESTARTS,
        raw_samples=RAW_SAMPLES,
        options={"maxiter": STEPS},
    )
    return point.detach()


def small(order: Record) -> Record:
    """Optimise without noise; the best value after every evaluation."""
    name, d, seed = order["function"], FUNCTIONS[order["function"]], order["seed"]
    function, largest = objective(name)
    torch.manual_seed(seed)
    x = draw_initial(INITIAL, d, seed)
    y = function(x)
    seconds = {"fit": 0.0, "acquisition": 0.0}
    model = None
    while len(y) < EVALUATIONS:
        began = time.perf_counter()
        if model is None or (len(y) - INITIAL) % REFIT_EVERY == 0:
            model = fit_model(order["model"], x, y, seed)
        else:
            model = model.condition_on_observations(x[-1:], y[-1:, None])
        middle = time.perf_counter()
        point = propose(model, d, float(y.max()))
        seconds["fit"] += middle - began
        seconds["acquisition"] += time.perf_counter() - middle
        x, y = torch.cat([x, point]), torch.cat([y, function(point)])
    regret = (largest - y.cummax(0).values).tolist()
    regret = [float(f"{value:.3g}") for value in regret]  # digits that are shown; there are hundreds of such lists
    return {"regret": regret, "fit_seconds": seconds["fit"], "acquisition_seconds": seconds["acquisition"]}


def large(order: Record) -> Record:
    """Optimise with noise after many rows are known; fitted once, then conditioned."""
    name, seed = "hartmann20", order["seed"]
    d = FUNCTIONS[name]
    function, largest = objective(name)
    torch.manual_seed(seed)
    rows = LARGE_ROWS + LARGE_EVALUATIONS
    noise = LARGE_NOISE * torch.as_tensor(np.random.default_rng(seed).standard_normal(rows))
    x = draw_initial(LARGE_ROWS, d, seed)
    truth = function(x)
    y = truth + noise[:LARGE_ROWS]
    if order["model"] == "singletask-part":  # half of them the best, half any
        ranked, half = y.argsort(descending=True), PART // 2
        known = torch.cat([ranked[:half], ranked[half:][torch.randperm(LARGE_ROWS - half)[:half]]])
        x, truth, y = x[known], truth[known], y[known]
    began = time.perf_counter()
    model = fit_model(order["model"], x, y, seed)
    fitted = time.perf_counter()
    before = largest - float(truth.max())
    reported = []
    for k in range(LARGE_EVALUATIONS):
        top = x[y.topk(100).indices]
        best = float(model.posterior(top).mean.detach().max())
        point = propose(model, d, best)
        value = function(point)
        x, truth = torch.cat([x, point]), torch.cat([truth, value])
        y = torch.cat([y, value + noise[LARGE_ROWS + k]])
        model = model.condition_on_observations(point, y[-1:, None])
        # The row that would be reported: the one of the largest predicted mean among the best measured.
        top = y.topk(100).indices
        chosen = top[model.posterior(x[top]).mean[:, 0].argmax()]
        reported.append(largest - float(truth[chosen]))
    return {
        "regret": (largest - truth[-LARGE_EVALUATIONS:].cummax(0).values).tolist(),  # of the new rows
        "reported": reported,
        "regret_before": before,
        "fit_seconds": fitted - began,
        "acquisition_seconds": time.perf_counter() - fitted,
    }


# -- plan and tables -------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    names = [*FUNCTIONS, LARGE]
    parser.add_argument("--cases", type=parse_names, default=names, metavar="A,B", help=f"default: {','.join(names)}")
    parser.add_argument(
        "--seeds", type=parse_splits, default=list(range(SEEDS)), metavar="N", help=f"default: the first {SEEDS}"
    )
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """A job for each case, model and seed; the longest first."""
    cases = known_names(args.cases, [*FUNCTIONS, LARGE], "--cases")
    jobs, skipped = [], {}
    for case in sorted(cases, key=lambda name: name != LARGE):
        for seed in args.seeds:
            for model in LARGE_MODELS if case == LARGE else MODELS:
                key = f"{case}-{model}-{seed}"
                order = {"case": case, "model": model, "seed": seed, "device": args.device}
                if case == LARGE and model == "singletask":
                    size = 8 * LARGE_ROWS**2 / 2**30
                    why = f"one kernel matrix of {LARGE_ROWS:,} rows takes {size:.0f} GiB, its factor 4e13 operations"
                    skipped[key] = {"skipped": why}
                elif case == LARGE:
                    jobs.append(Job(key, f"{__name__}:large", order, 3 * 2**30))
                else:
                    jobs.append(Job(key, f"{__name__}:small", {**order, "function": case}, 2**30))
    return Plan("bayes-opt", jobs, skipped=skipped)


def describe(result: Record) -> str:
    """A few words about a result."""
    return f"regret {result['regret'][-1]:.3g}, {seconds_of(result):.0f} s"


def seconds_of(result: Record) -> float:
    """Seconds of a loop without evaluations of the function."""
    return float(result["fit_seconds"] + result["acquisition_seconds"])


def results(study: Study, case: str, model: str) -> list[Record]:
    """The finished loops of a case and model."""
    found = (each for each in study.records.values() if "failed" not in each)
    return [each for each in found if each["case"] == case and each["model"] == model]


def _quartiles(values: list[float]) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _table(found: dict[str, list[Record]], labels: dict[str, str], columns: dict[str, Any], absent: Any) -> str:
    """A line for each model, medians and quartiles of every column over seeds, the least median in bold."""
    medians: dict[int, list[float | None]] = {2 + k: [] for k in range(len(columns) + 1)}
    rows = []
    for model, label in labels.items():
        done = found[model]
        values = [[take(each) for each in done] for take in (*columns.values(), seconds_of)]
        cells = [absent(model), *[""] * len(columns)]
        if done:
            cells = [*map(_quartiles, values[:-1]), f"{np.median(values[-1]):.0f}"]
        rows.append([label, str(len(done)), *cells])
        for k, each in enumerate(values):
            medians[2 + k].append(float(f"{np.median(each):.3g}") if done else None)
    for row, column in best_cells(medians):
        rows[row][column] = f"**{rows[row][column]}**"
    return markdown_table(["model", "seeds", *columns, "seconds"], rows)


def markdown(study: Study) -> str:
    """A table for each case."""
    lines = [
        "# Bayesian optimisation",
        "",
        (
            "Regret, that is the maximum less the best value found: median and quartiles over seeds. Log expected "
            f"improvement by `optimize_acqf` with {RESTARTS} restarts, the same {INITIAL} initial points for all "
            f"models; fitted after every {REFIT_EVERY} evaluations and conditioned on the others. Seconds are those "
            "of fits and acquisition in one loop, a process with one thread. Made by "
            "`python -m experiments bayes-opt --threads 1`."
        ),
    ]
    after = {f"after {n}": lambda each, n=n: each["regret"][n - 1] for n in SHOWN}
    for case, title in TITLES.items():
        found = {model: results(study, case, model) for model in MODELS}
        lines += ["", f"## {title}", "", _table(found, MODELS, after, lambda _: "not run")]
    found = {model: results(study, LARGE, model) for model in LARGE_MODELS}
    columns = {f"after {n}": lambda each, n=n: each["regret"][n - 1] for n in (1, 10, LARGE_EVALUATIONS)}
    columns["of the row reported"] = lambda each: each["reported"][-1]
    known = [each["regret_before"] for each in found["ssgp"]]
    lines += [
        "",
        f"## {LARGE_ROWS:,} rows to begin with",
        "",
        (
            f"Hartmann, 6 of 20 inputs, measured with noise of standard deviation {LARGE_NOISE}. Fitted once, then "
            "conditioned on every evaluation. Regret of the best new row and, after the last, of the row that would be "
            "reported: that of the largest predicted mean among the 100 best measured. The best row known before has a "
            f"regret of {_quartiles(known) if known else 'not run'}, but noise hides which it is."
        ),
        "",
        _table(found, LARGE_MODELS, columns, lambda model: _why(study, model)),
        "",
        "![Regret against evaluations](bayes-opt.png)",
        "",
    ]
    return "\n".join(lines)


def _why(study: Study, model: str) -> str:
    left_out = study.about.get("skipped", {}).get(f"{LARGE}-{model}-0")
    return str(left_out["skipped"]) if left_out else "not run"


def figures(study: Study) -> dict[str, Callable[[], Any]]:
    """Regret against evaluations."""

    def make() -> Any:
        with drawing_style():
            figure = drawing(9, 3.2)
            axes = figure.subplots(1, len(TITLES))
            for axis, (case, title) in zip(axes, TITLES.items(), strict=True):
                for model, label in MODELS.items():
                    found = [each["regret"] for each in results(study, case, model)]
                    if found:
                        low, middle, high = np.quantile(np.maximum(found, LEAST_SHOWN), [0.25, 0.5, 0.75], axis=0)
                        number = np.arange(1, len(middle) + 1)
                        axis.plot(number, middle, lw=1.5, label=label, **STYLES[model])
                        axis.fill_between(number, low, high, alpha=0.15, lw=0, **STYLES[model])
                axis.set_yscale("log")
                axis.set_xlabel("evaluations")
                axis.set_title(title)
                axis.grid(color="#dddddd", lw=0.6)
            axes[0].set_ylabel("regret")
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(MODELS), frameon=False)
            return figure

    return {"": make}


BAYES_OPT = Experiment(
    kind="bayes-opt",
    summary="Bayesian optimisation with BoTorch, against SingleTaskGP",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
    figures=figures,
)
