"""The command line of the experiments: ``python -m experiments COMMAND``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import demo
from experiments.benchmarks.accuracy import ACCURACY
from experiments.benchmarks.active import ACTIVE
from experiments.benchmarks.bayes_opt import BAYES_OPT
from experiments.benchmarks.cluster_costs import CLUSTER_COSTS
from experiments.benchmarks.dask_scaling import DASK
from experiments.benchmarks.efficiency import EFFICIENCY
from experiments.benchmarks.flights import FLIGHTS
from experiments.benchmarks.large_certificates import LARGE_CERTIFICATES
from experiments.benchmarks.prediction import PREDICTION
from experiments.benchmarks.scale import SCALE
from experiments.benchmarks.speed import SPEED
from experiments.benchmarks.starts import STARTS
from experiments.benchmarks.tightness import TIGHTNESS
from experiments.benchmarks.trees import TREES
from experiments.benchmarks.variants import VARIANTS_OF_PRISM
from experiments.comparison import BENCH
from experiments.machine import ROOT, format_bytes
from experiments.page import render
from experiments.paper import REPRODUCE
from experiments.paper.spaces import SPACES
from experiments.plan import Parser, run, say, write_outputs
from experiments.results import RESULTS, Study
from experiments.robustness import fuzz, soak
from prismgp.exceptions import DataError, PrismGPError

__all__ = ["EXPERIMENTS", "PUBLISHED_FIGURES", "PUBLISHED_TABLES", "main"]

_ALL = (
    REPRODUCE,
    SPACES,
    BENCH,
    ACCURACY,
    EFFICIENCY,
    VARIANTS_OF_PRISM,
    TIGHTNESS,
    SPEED,
    PREDICTION,
    SCALE,
    FLIGHTS,
    DASK,
    CLUSTER_COSTS,
    ACTIVE,
    BAYES_OPT,
    TREES,
    STARTS,
    LARGE_CERTIFICATES,
)
EXPERIMENTS = {each.kind: each for each in _ALL}
PAGES = {each.kind: each.page for each in _ALL if each.page is not None}
# Those that README and documentation show; all others are made by the commands that measure.
# What the documentation shows; the other tables are written for studies that are named.
PUBLISHED_TABLES = (
    "abalone.md",
    "accuracy.md",
    "active.md",
    "bayes-opt.md",
    "bench.md",
    "cluster-costs.md",
    "certify-large.md",
    "efficiency.md",
    *(f"{name}-simulated.md" for name in ("gas10k", "gas500k", "gas4m")),
    "prediction.md",
    "spaces.md",
    "tightness.md",
    "trees.md",
    "variants.md",
)
PUBLISHED_FIGURES = (
    "accuracy.png",
    "active.png",
    "bayes-opt.png",
    "efficiency.png",
    "spaces-trade.png",
    "tightness.png",
    *(f"{name}-error_seconds.png" for name in ("abalone", "gas10k-simulated", "gas500k-simulated", "gas4m-simulated")),
    *(f"{name}-embedding.png" for name in ("abalone", "gas10k-simulated")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _use_shared_data()
    try:
        args = _parser().parse_args(words)
        args.command = f"python -m experiments {shlex.join(words)}"
        return int(args.run(args))
    except SystemExit as leaving:  # of the parser
        return int(leaving.code or 0)
    except (PrismGPError, OSError) as error:
        say(f"error: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say("stopped; what is finished is kept, the same command continues")
        return 130


def _use_shared_data() -> None:
    """Data sets beside the checkout, where no other folder is named."""
    folder = ROOT.parent / "shared" / "data"
    if not os.environ.get("PRISMGP_DATA") and folder.is_dir():
        os.environ["PRISMGP_DATA"] = str(folder)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments",
        description="The paper's experiments, comparisons and benchmarks. A command that was stopped continues where "
        "it was. Results go to runs/ unless --results names another folder.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for experiment in _ALL:
        command = commands.add_parser(experiment.kind, help=experiment.summary, description=experiment.summary)
        experiment.add_options(command)
        command.set_defaults(run=lambda args, experiment=experiment: run(experiment, args))
    command = commands.add_parser("demo", help="from a CSV file to a report, on a real table; under three minutes")
    demo.add_options(command)
    command.set_defaults(run=demo.run)

    command = commands.add_parser("soak", help="check many random small problems on all cores; stores what fails")
    soak.add_options(command)
    command.set_defaults(run=soak.run)
    command = commands.add_parser("fuzz", help="read mutated model files, checkpoints and tables; stores what fails")
    fuzz.add_options(command)
    command.set_defaults(run=fuzz.run)

    command = commands.add_parser("tables", help="write the published tables and figures from stored results")
    command.add_argument("studies", nargs="*", metavar="STUDY", help="default: all in the folder")
    _add_folder(command)
    command.set_defaults(run=write_tables)
    command = commands.add_parser("compact", help="leave out stored results that newer ones have replaced")
    command.add_argument("studies", nargs="*", metavar="STUDY", help="default: all in the folder")
    _add_folder(command)
    command.set_defaults(run=compact_studies)
    command = commands.add_parser("report", help="write the HTML page of a study, also while it goes on")
    command.add_argument("study", metavar="STUDY", help="for instance abalone or bench")
    _add_folder(command)
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: STUDY.html beside the results")
    command.set_defaults(run=write_report)
    return parser


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER", help="of the studies (default: experiments/results)"
    )


def write_tables(args: argparse.Namespace) -> int:
    """``tables``: the tables and figures that are published, and all tables of studies that are named."""
    names = args.studies or sorted(path.stem for path in args.results.glob("*.jsonl"))
    for name in names:
        study = Study.read(args.results, name)
        experiment = EXPERIMENTS[_kind_of(study, EXPERIMENTS)]
        tables = [f"{name}.md"] if args.studies else PUBLISHED_TABLES
        for path in write_outputs(experiment, study, only=[*tables, *PUBLISHED_FIGURES]):
            print(f"wrote {path}")
    return 0


def compact_studies(args: argparse.Namespace) -> int:
    """``compact``: rewrite files of results, one line for each result."""
    for name in args.studies or sorted(path.stem for path in args.results.glob("*.jsonl")):
        study = Study.read(args.results, name)
        print(f"{study.path}: {format_bytes(study.compact())} saved")
    return 0


def write_report(args: argparse.Namespace) -> int:
    """``report``: the page of a study."""
    study = Study.read(args.results, args.study)
    make = PAGES[_kind_of(study, PAGES)]
    output = args.output or study.folder / f"{study.name}.html"
    if output.exists() and output.samefile(study.path):
        raise DataError(f"{output}: the page would replace the results")
    if not output.parent.is_dir():
        raise DataError(f"{output}: the folder {str(output.parent)!r} does not exist")
    page = make(study)
    render(page, output)
    print(f"wrote {output}: {page.title}")
    return 0


def _kind_of(study: Study, known: Sequence[str] | dict[str, object]) -> str:
    kind = study.about.get("kind")
    if kind not in known:
        raise DataError(f"{study.path}: this command knows {', '.join(known)}, not {kind!r}")
    return str(kind)


if __name__ == "__main__":
    sys.exit(main())
