"""The command line of a suite: plans its runs, has them carried out several at a time, and makes its tables.

A run whose file is there is not repeated, so a plan can be stopped at any time, continued on another machine,
and extended.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from _common import RESULTS, ROOT, data_folder
from _runs import DATASETS, MODELS, Run, Suite, job_of, store_of, stored

from experiments.lab._jobs import Limits, carry_out
from prismgp._memory import available_bytes
from prismgp._validate import compute_device
from prismgp.cli.common import splits
from prismgp.exceptions import PrismGPError

_MEMORY_SHARE = 0.6  # of the memory, for runs in flight together; a larger run gets the machine to itself


def describe(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"failed: {result['failed']}"
    mixture = f", mixture {result['nlpd_mixture']:.4f}" if "nlpd_mixture" in result else ""
    return (
        f"rmse {result['rmse']:.4f}, nlpd {result['nlpd']:.4f}{mixture}, cover {100 * result['coverage']:.1f}%, "
        f"fit {result['fit_seconds']:.1f} s"
    )


# -- command line --------------------------------------------------------------------------------


def names_from(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of lists of known names."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
        return names

    return parse


def parse_frequencies(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers of frequencies, as in 16,32")
    return [int(part) for part in text.split(",")]


def parser_of(suite: Suite, summary: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=summary)
    what = parser.add_argument_group("which runs")
    what.add_argument("--datasets", type=names_from(DATASETS), help="default: all")
    what.add_argument("--splits", type=splits, help="3: the first three; 0-2 or 1,4: these; default: the plan's")
    what.add_argument("--models", type=names_from(MODELS), help=f"default: {','.join(suite.models)}")
    what.add_argument("-p", "--p", type=parse_frequencies, help="frequencies, as in 16,32; default: the plan's")
    what.add_argument("--force", action="store_true", help="repeat runs whose result is stored")
    how = parser.add_argument_group("how")
    how.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    how.add_argument("--jobs", type=int, default=1, help="runs at a time")
    how.add_argument("--threads", type=int, help="of each run; default: the cores shared out")
    how.add_argument("--limit-seconds", type=float, default=float("inf"), help="start no run after this time")
    how.add_argument(
        "--shortest-first", action=argparse.BooleanOptionalAction, default=True, help="otherwise the longest"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--results", type=Path, default=RESULTS, help="folder of run files, tables and figures")
    only = out.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="show the plan and what is done of it, run nothing")
    only.add_argument("--tables", action="store_true", help="only write tables and figures from the stored runs")
    return parser


def show(runs: list[Run], results: Path, suite: str) -> None:
    found = stored(results, suite, runs)
    for run in runs:
        print(f"{run.name:30s} {describe(found[run]) if run in found else 'to do'}")
    print(f"{len(runs)} runs, {len(runs) - len(found)} to do")


def main(suite: Suite, tables: Callable[[Path], list[Path]], summary: str) -> int:
    """The command line of a suite; returns the exit status."""
    parser = parser_of(suite, summary)
    args = parser.parse_args()
    if args.jobs < 1 or (args.threads is not None and args.threads < 1):
        parser.error("--jobs and --threads must be at least 1")
    results = args.results.resolve()
    runs = suite.plan(args.datasets, args.splits, args.models, args.p)
    runs.sort(key=lambda run: run.cost, reverse=not args.shortest_first)
    left = []
    try:
        if args.list:
            show(runs, results, suite.name)
            return 0
        if not args.tables:
            if data_folder() is None:
                parser.error("the data sets are absent: set PRISMGP_DATA to the folder that holds them")
            device = compute_device(args.device).type
            memory = _MEMORY_SHARE * available_bytes(torch.device(device))
            limits = Limits(args.jobs, args.threads, seconds=args.limit_seconds, memory=memory)
            print(f"runs: {len(runs)}; device: {device}; at a time: {args.jobs}; threads of each: {limits.job_threads}")
            # The processes of the runs import this folder's modules too.
            os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
            jobs = [job_of(suite.name, run, device, args.jobs) for run in runs]
            left = carry_out(store_of(results, suite.name), jobs, limits, describe=describe, force=args.force)
        for path in tables(results):
            print(f"written: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    except PrismGPError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("\nstopped; what is finished is stored, the same command continues")
        return 130
    if left:
        print(f"{len(left)} runs failed or were not begun: {', '.join(job.key for job in left)}")
    return 1 if left else 0
