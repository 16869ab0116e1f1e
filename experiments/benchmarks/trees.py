"""Tables as they come: ``prismgp fit`` without options against gradient-boosted trees, on the same held-out rows.

The tables have text, dates, missing cells and categories with hundreds of levels. PrismGP is the command line with its
defaults and ``--holdout 0.2``; the trees are scikit-learn's HistGradientBoostingRegressor with its defaults, native
categories, and times as seconds. Trees have no density: theirs is normal, with the one standard deviation that suits
the held-out rows best, so that their NLPD is a lower bound.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.benchmarks.suite import check_data, origin
from experiments.internals import AnyArray, split_rows
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_splits
from experiments.results import Record, Study
from prismgp.cli import main
from prismgp.datasets import data_folder
from prismgp.exceptions import DataError
from prismgp.metrics import rmse

__all__ = ["TREES"]

HOLDOUT = 0.2
INTRODUCTION = (
    f"`prismgp fit TABLE -t TARGET -o MODEL --holdout {HOLDOUT}`, and scikit-learn's `HistGradientBoostingRegressor` "
    "with native categories on the same rows, both with their defaults; taxis without the column `total`. The NLPD of "
    "the trees is that of a normal distribution with the standard deviation that suits the held-out rows best. Made by "
    "`python -m experiments trees`."
)


@dataclass(frozen=True)
class Table:
    """A file in the folder ``tables`` of the data sets, and what is learned from it."""

    file: str
    target: str
    exclude: tuple[str, ...] = ()


TABLES = {
    "housing": Table("housing.csv.gz", "median_house_value"),
    "diamonds": Table("diamonds.csv.gz", "price"),
    "taxis": Table("taxis.csv.gz", "fare", exclude=("total",)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    what = parser.add_argument_group("which runs")
    what.add_argument("--tables", type=parse_names, default=list(TABLES), metavar="A,B", help=",".join(TABLES))
    what.add_argument(
        "--seeds",
        type=parse_splits,
        default=[0],
        help="of fit and held-out rows: 3: the first three; 0-2 or 1,4: these",
    )
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each table and seed."""
    names = known_names(args.tables, TABLES, "--tables")
    if not args.list:
        check_data()
        for name in names:
            if not find(TABLES[name]).is_file():
                raise DataError(f"{find(TABLES[name])}: there is no such file")
    orders = [{"table": name, "seed": seed, "device": args.device} for name in names for seed in args.seeds]
    return Plan("trees", [Job(f"{each['table']}-{each['seed']}", f"{__name__}:measure", each) for each in orders])


def find(table: Table) -> Path:
    """Where the file is, or should be."""
    folder = data_folder()
    assert folder is not None
    return folder / "tables" / table.file


# -- one run ---------------------------------------------------------------------------------------


def measure(order: Record) -> Record:
    """Fit both, and score them on the same rows."""
    table = TABLES[order["table"]]
    summary = fit_by_command(find(table), table, order["seed"], order["device"])
    trees = fit_trees(find(table), table, order["seed"])
    ours = summary["holdout"]
    # The same rows have the same spread around the mean of the others.
    if not math.isclose(ours["rmse_of_mean"], trees.pop("rmse_of_mean"), rel_tol=1e-9):
        raise RuntimeError("the trees were scored on other rows")
    return {
        "rows": summary["rows"],
        "test_rows": ours["rows"],
        "prismgp_scores": {
            **{name: ours[name] for name in ("rmse", "nlpd", "coverage")},
            "seconds": summary["seconds"],
        },
        "trees": trees,
        "rmse_ratio": ours["rmse"] / trees["rmse"],
    }


def fit_by_command(path: Path, table: Table, seed: int, device: str) -> Record:
    """The summary of ``prismgp fit``."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        options = ["--exclude", ",".join(table.exclude)] if table.exclude else []
        options += ["--holdout", str(HOLDOUT), "--seed", str(seed), "--device", device, "--json", "--quiet"]
        code = main(["fit", str(path), "-t", table.target, "-o", f"{folder}/m.prism", *options])
    if code:
        raise RuntimeError(f"prismgp fit ended with code {code}")
    return dict(json.loads(printed.getvalue()))


def fit_trees(path: Path, table: Table, seed: int) -> Record:
    """Scores of trees with native categories on the rows that the command holds out."""
    frame = pd.read_csv(path).drop(columns=list(table.exclude)).dropna(subset=table.target)
    y = frame.pop(table.target).to_numpy(np.float64)
    train, test, _ = split_rows(argparse.Namespace(holdout=HOLDOUT, conformal=None, seed=seed), len(frame))
    x = frame.apply(native)
    model = HistGradientBoostingRegressor(random_state=seed).fit(x.iloc[train], y[train])
    error = rmse(y[test], model.predict(x.iloc[test]))
    nlpd = 0.5 * math.log(2 * math.pi * error**2) + 0.5
    return {"rmse": error, "nlpd": nlpd, "rmse_of_mean": rmse(y[test], np.full(len(test), y[train].mean()))}


def native(column: pd.Series) -> pd.Series:
    """A column as trees take it: numbers, seconds, or categories."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    with contextlib.suppress(ValueError):
        times: AnyArray = pd.to_datetime(column, format="ISO8601").to_numpy()
        return pd.Series(times.astype("datetime64[s]").astype(np.float64), column.index)
    return column.astype("category")


# -- tables ----------------------------------------------------------------------------------------


def describe(result: Record) -> str:
    """A few words about a result."""
    ours, trees = result["prismgp_scores"], result["trees"]
    return (
        f"RMSE {ours['rmse']:.5g} against {trees['rmse']:.5g} ({result['rmse_ratio'] - 1:+.1%}), "
        f"NLPD {ours['nlpd']:.3f} against {trees['nlpd']:.3f}, fit {ours['seconds']:.0f} s"
    )


def markdown(study: Study) -> str:
    """One line for each table and seed."""
    done = {key: result for key, result in study.records.items() if "failed" not in result}
    rows = []
    for key, result in done.items():
        ours, trees = result["prismgp_scores"], result["trees"]
        pairs = [(ours[name], trees[name]) for name in ("rmse", "nlpd")]
        cells = [
            text
            for (own, other), digits in zip(pairs, (".5g", ".3f"), strict=True)
            for text in (
                f"**{own:{digits}}**" if own < other else f"{own:{digits}}",
                f"**{other:{digits}}**" if other < own else f"{other:{digits}}",
            )
        ]
        change = f"{result['rmse_ratio'] - 1:+.1%}"
        sizes = [f"{result['rows']:,}", f"{result['test_rows']:,}"]
        rows.append([key, *sizes, *cells[:2], change, *cells[2:], f"{ours['coverage']:.1%}", f"{ours['seconds']:.0f}"])
    header = ["table and seed", "rows", "held out", "RMSE", "RMSE of trees", "difference", "NLPD", "NLPD of trees"]
    header += ["95% intervals cover", "fit, s"]
    lines = [
        "# Tables as they come, against trees",
        "",
        INTRODUCTION,
        "",
        markdown_table(header, rows),
        "",
        "## Made with",
        "",
        *origin(done.values()),
    ]
    return "\n".join(lines)


TREES = Experiment(
    kind="trees",
    summary="prismgp fit on tables with text, dates and missing cells, against gradient-boosted trees",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
