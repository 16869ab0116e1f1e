"""The command line of the experiments: ``python -m experiments COMMAND``."""

from __future__ import annotations

import argparse
import os
import re
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
from experiments.benchmarks.frequencies import FREQUENCIES_OF_PRISM
from experiments.benchmarks.large_certificates import LARGE_CERTIFICATES
from experiments.benchmarks.prediction import PREDICTION
from experiments.benchmarks.scale import SCALE
from experiments.benchmarks.speed import SPEED
from experiments.benchmarks.starts import STARTS
from experiments.benchmarks.tightness import TIGHTNESS
from experiments.benchmarks.trees import TREES
from experiments.benchmarks.unseen import UNSEEN
from experiments.benchmarks.variants import VARIANTS_OF_PRISM
from experiments.comparison import BENCH
from experiments.machine import ROOT, atomic_path, format_bytes
from experiments.page import render
from experiments.paper import REPRODUCE, all_claims
from experiments.paper.spaces import SPACES
from experiments.parts import collect_stale, read_acknowledged, stale_table
from experiments.plan import Experiment, Parser, run, say, write_outputs
from experiments.results import RESULTS, Study
from experiments.robustness import fuzz, soak
from prismgp.exceptions import DataError, PrismGPError

__all__ = ["EXPERIMENTS", "PUBLISHED_FIGURES", "PUBLISHED_TABLES", "TABLES", "main", "published_tables"]

_ALL = (
    REPRODUCE,
    SPACES,
    BENCH,
    ACCURACY,
    EFFICIENCY,
    FREQUENCIES_OF_PRISM,
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
    UNSEEN,
    STARTS,
    LARGE_CERTIFICATES,
)
EXPERIMENTS = {each.kind: each for each in _ALL}
PAGES = {each.kind: each.page for each in _ALL if each.page is not None}
# What README and documentation show, in the order of the page; the commands that measure write all there is.
TABLES = "tables.md"
PUBLISHED_TABLES = (
    "accuracy",
    "efficiency",
    "frequencies",
    "variants",
    "trees",
    "unseen",
    "bench",
    "abalone",
    *(f"{name}-simulated" for name in ("gas10k", "gas500k", "gas4m")),
    "spaces",
    "tightness",
    "certify-large",
    "cluster-costs",
    "active",
    "bayes-opt",
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
    """``tables``: the published figures and the page of published tables, or those of studies that are named."""
    for name in args.studies or sorted(path.stem for path in args.results.glob("*.jsonl")):
        study = Study.read(args.results, name)
        tables = [f"{name}.md"] if args.studies else []
        for path in write_outputs(_experiment_of(study), study, only=[*tables, *PUBLISHED_FIGURES]):
            print(f"wrote {path}")
    if not args.studies:
        with atomic_path(args.results / TABLES) as temporary:
            temporary.write_text(published_tables(args.results), encoding="utf-8")
        print(f"wrote {args.results / TABLES}")
    return 0


def published_tables(folder: Path) -> str:
    """The tables that are published and have results in the folder, and which of these are stale: one page."""
    parts = ["# Tables\n\nMade from the results in this folder by `make tables`."]
    for name in PUBLISHED_TABLES:
        if (folder / f"{name}.jsonl").is_file():
            study = Study.read(folder, name)
            text = re.sub("^#", "##", _experiment_of(study).markdown(study), flags=re.MULTILINE)
            parts.append(f"{text.rstrip()}\n\n<!-- end of {name} -->")
    if (folder / "abalone.jsonl").is_file():
        parts.append(f"## All claims of the paper\n\n{all_claims(folder)}\n<!-- end of claims -->")
    stale = stale_table(collect_stale(folder), read_acknowledged())
    return "\n\n".join([*parts, f"## Results made by older code\n\n{stale}"])


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


def _experiment_of(study: Study) -> Experiment:
    return EXPERIMENTS[_kind_of(study, EXPERIMENTS)]


def _kind_of(study: Study, known: Sequence[str] | dict[str, object]) -> str:
    kind = study.about.get("kind")
    if kind not in known:
        raise DataError(f"{study.path}: this command knows {', '.join(known)}, not {kind!r}")
    return str(kind)


if __name__ == "__main__":
    sys.exit(main())
