"""``prismgp reproduce``: the paper's experiments."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from experiments.lab import Limits
from experiments.report import check_installed
from prismgp._validate import DEVICES
from prismgp.cli import common
from prismgp.cli.common import Parser, Subparsers, say
from prismgp.exceptions import DataError

__all__ = ["add_parser", "run"]

_NAMES = ("abalone", "gas10k", "gas500k", "gas4m")
_UNFINISHED = 1


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "reproduce",
        help="repeat the paper's experiments",
        description="Repeat an experiment of the paper: the full GP, the sparse spectrum GP and the revised ones, over "
        "several runs, with tables, figures and a page in the folder of the run. One that was stopped goes on where "
        "it was. Exit code 1 when jobs have failed.",
    )
    parser.add_argument("name", metavar="NAME", choices=_NAMES, help=", ".join(_NAMES))
    parser.add_argument("--quick", action="store_true", help="one run, p = 16 and 32, fewer steps and rows: minutes")
    parser.add_argument(
        "--simulated", action="store_true", help="simulate the gas sensor array; everything is labelled so"
    )
    parser.add_argument("--runs", type=common.positive, metavar="N", help="default: 5")
    parser.add_argument(
        "--frequencies", type=common.columns, metavar="P,P,...", help="default: 16,32,64, and 128 on gas10k and gas500k"
    )
    parser.add_argument(
        "--models",
        type=common.columns,
        metavar="A,B,...",
        help="of exact, ssgp, paper, prism1, prism, embedding, certificate (default: all the experiment has)",
    )
    parser.add_argument("--rows", type=common.positive, metavar="N", help="a sample of so many rows, before the split")
    parser.add_argument("--jobs", type=common.positive, default=1, metavar="N", help="at a time (default: %(default)s)")
    parser.add_argument("--threads", type=common.positive, metavar="N", help="of a job (default: the cores shared out)")
    parser.add_argument("--job-seconds", type=common.not_negative, metavar="S", help="stop a job that takes longer")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    parser.add_argument(
        "-o", "--output", metavar="RUN", help="folder of the run (default: runs/NAME[-simulated][-quick])"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out what is missing, then write tables, figures and the page."""
    check_installed("jinja2", "matplotlib")
    from experiments.lab import reproduce

    plan = reproduce.make_plan(
        args.name,
        simulated=args.simulated,
        quick=args.quick,
        rows=args.rows,
        frequencies=_frequencies(args.frequencies),
        models=args.models,
        runs=args.runs,
        device=args.device,
    )
    limits = Limits(args.jobs, args.threads, args.job_seconds or float("inf"))
    ending = "-simulated" * args.simulated + "-quick" * args.quick
    folder = Path(args.output) if args.output is not None else Path("runs") / f"{args.name}{ending}"
    found, unfinished = reproduce.carry_out_plan(plan, folder, limits, command=_command(args), show=not args.quiet)
    paths = reproduce.write_outputs(found)
    if not args.quiet:
        say((folder / "table.md").read_text(encoding="utf-8"))
        say(f"Report: {paths[-1]}   tables and figures: {folder}")
    for job in unfinished:
        common.complain(f"{job.key} has no result; the same command tries it again")
    return _UNFINISHED if unfinished else 0


def _frequencies(names: list[str] | None) -> list[int] | None:
    if names is None:
        return None
    try:
        return [common.positive(name) for name in names]
    except argparse.ArgumentTypeError as error:
        raise DataError(f"--frequencies: {error}") from None


def _command(args: argparse.Namespace) -> str:
    words = ["prismgp", "reproduce", args.name]
    for name in ("quick", "simulated"):
        words += [f"--{name}"] if getattr(args, name) else []
    for name in ("runs", "rows", "jobs", "threads", "job_seconds"):
        value = getattr(args, name)
        if value is not None and (name, value) != ("jobs", 1):
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    for name in ("frequencies", "models"):
        words += [f"--{name}", ",".join(getattr(args, name))] if getattr(args, name) else []
    words += ["--device", args.device] if args.device != "cpu" else []
    words += ["-o", args.output] if args.output is not None else []
    return shlex.join(words)
