"""``prismgp bench``: PrismGP and its peers side by side."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from prismgp._memory import available_bytes, format_bytes
from prismgp.cli import common
from prismgp.cli.common import Parser, Subparsers, complain, say
from prismgp.exceptions import DataError, PrismGPError

if TYPE_CHECKING:
    from experiments.lab import RunFolder
    from experiments.lab.bench import Entry, Plan

__all__ = ["add_parser", "run"]

_MEMORY_SHARE = 0.8  # of what is free, for the jobs in flight together
_QUICK_DATASETS = ["simulated"]  # needs no file and no network


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "bench",
        help="compare with other libraries",
        description="Fit PrismGP and other Gaussian process libraries to the same data sets, one process for "
        "each fit, and write tables, figures and a page. What was stopped goes on with the same command.",
    )
    what = parser.add_argument_group("what is compared")
    what.add_argument("--datasets", type=_names, metavar="A,B", help="default: all; 'simulated' needs no data files")
    what.add_argument(
        "--peers", type=_names, metavar="A,B", help="entries or libraries, see --list; default: all that are installed"
    )
    what.add_argument(
        "--splits", type=common.splits, metavar="N", help="3: the first three; 0-2 or 1,4: these; default: by data set"
    )
    what.add_argument("--quick", action="store_true", help="few rows and steps: tries the machinery, compares nothing")
    what.add_argument("--list", action="store_true", help="show the plan and what is done of it, run nothing")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=common.positive, default=1, metavar="N", help="fits at a time (default: 1)")
    how.add_argument("--threads", type=common.positive, metavar="N", help="of each fit (default: the cores shared out)")
    how.add_argument(
        "--job-seconds",
        type=common.above_zero,
        default=1_800.0,
        metavar="S",
        help="stop a fit after S s (default: 1800)",
    )
    how.add_argument(
        "--memory",
        type=common.above_zero,
        default=8.0,
        metavar="GIB",
        help="of a fit; who needs more gets fewer rows (default: 8)",
    )
    how.add_argument("--retry", action="store_true", help="try again what failed or ran out of time")
    parser.add_argument(
        "-o", "--output", metavar="RUN", help="folder of the run (default: runs/bench, or runs/bench-quick)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar and no summary")
    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _known(names: list[str], known: Iterable[str], what: str) -> list[str]:
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise DataError(f"{what}: {', '.join(unknown)} unknown; choose from {', '.join(known)}")
    if not names:
        raise DataError(f"{what}: nothing given; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


def run(args: argparse.Namespace) -> int:
    """Plan, carry out, write tables and figures."""
    from experiments.lab import Limits, RunFolder, carry_out
    from experiments.lab.bench import (
        AGREEMENT,
        DATASETS,
        Options,
        known_names,
        make_plan,
        outcome,
        remember,
        select,
    )

    default = _QUICK_DATASETS if args.quick else [name for name, shape in DATASETS.items() if shape.default]
    datasets = default if args.datasets is None else _known(args.datasets, DATASETS, "--datasets")
    peers = None if args.peers is None else _known(args.peers, known_names(), "--peers")
    threads = Limits(args.jobs, args.threads).job_threads
    options = Options(args.quick, threads, args.job_seconds, args.memory)
    folder = Path(args.output if args.output is not None else "runs/bench-quick" if args.quick else "runs/bench")
    entries, absent = select(peers)
    if args.list:
        return _list(folder, make_plan(datasets, entries, options, splits=args.splits, absent=absent), entries, absent)
    tell: Callable[[str], None] = (lambda _: None) if args.quiet else (lambda line: say(line, error=True))
    for reason in dict.fromkeys(why for _, why in absent):
        tell(f"left out: {reason}")
    datasets = _available(datasets, args.splits, tell)
    plan = make_plan(datasets, entries, options, splits=args.splits, absent=absent)
    command = f"prismgp {shlex.join(sys.argv[1:])}" if len(sys.argv) > 1 and sys.argv[1] == "bench" else "prismgp bench"
    found = RunFolder.open(folder, kind="bench", name="bench", command=command, options=asdict(options))
    remember(found, plan, at_a_time=args.jobs)
    memory = _MEMORY_SHARE * available_bytes(torch.device("cpu"))
    limits = Limits(args.jobs, threads, options.job_seconds, memory=memory)
    tell(
        f"{len(plan.jobs)} jobs, {args.jobs} at a time, {threads} threads each, at most {options.job_seconds:g} s each"
    )
    try:
        carry_out(found.results, plan.jobs, limits, describe=outcome, retry=args.retry, show=not args.quiet)
    except KeyboardInterrupt:
        _write(found, tell)
        tell("stopped; what is finished is kept, the same command continues")
        raise
    results = found.results.all()
    _write(found, tell)
    failed = [job.key for job in plan.jobs if _broken(results.get(job.key))]
    if failed:
        complain(f"{len(failed)} jobs failed: {', '.join(failed)}; --retry tries them again")
    wrong = _disagreements(results.get(AGREEMENT))
    return 1 if failed or wrong else 0


def _broken(result: dict[str, object] | None) -> bool:
    """A job that ran out of time has an outcome; one that failed has none."""
    return result is None or ("failed" in result and not result.get("timed_out"))


def _disagreements(found: dict[str, object] | None) -> list[str]:
    from experiments.lab.bench._agreement import disagreements

    lines = [] if found is None else disagreements(found)
    for line in lines:
        complain(f"DISAGREEMENT: {line}")
    return lines


def _available(datasets: list[str], splits: list[int] | None, tell: Callable[[str], None]) -> list[str]:
    """The data sets that can be loaded; downloads happen here, once, and not in every job."""
    from experiments.lab.bench._data import load

    there, reasons = [], []
    for name in datasets:
        try:
            for split in splits or [0]:
                load(name, split)
        except (PrismGPError, OSError) as error:
            reasons.append(f"{name}: {error}")
        else:
            there.append(name)
    if not there:
        raise DataError(
            f"no data set is available ({reasons[0]}); set PRISMGP_DATA to a folder that holds them, or try "
            "--datasets simulated"
        )
    for reason in reasons:
        tell(f"left out: {common.one_line(reason)}")
    return there


def _write(found: RunFolder, tell: Callable[[str], None]) -> None:
    from experiments.lab.bench import write_outputs

    try:
        written = write_outputs(found)
    except DataError as error:  # without the report extra there are tables all the same
        tell(f"figures and page are left out: {error}")
        written = [found.folder / "table.md", found.folder / "summary.json"]
    tell("wrote " + ", ".join(str(path) for path in written if path.suffix != ".svg"))


def _list(folder: Path, plan: Plan, entries: list[Entry], absent: list[tuple[Entry, str]]) -> int:
    """The plan for people: entries, then jobs."""
    from experiments.lab import Store
    from experiments.lab.bench import outcome

    store = Store(folder / "results")
    say("Entries")
    rows = [(entry.name, f"{entry.label} ({entry.library.name}){_limit(entry)}") for entry in entries]
    common.print_rows([*rows, *((entry.name, f"left out: {why}") for entry, why in absent)])
    say()
    say("Jobs")
    done = {job.key: store.get(job.key) for job in plan.jobs}
    states = [(key, "to do" if found is None else outcome(found)) for key, found in done.items()]
    states += [(key, f"left out: {each['skipped']}") for key, each in plan.skipped.items()]
    common.print_rows([(key, common.one_line(text)) for key, text in states])
    say()
    left = sum(found is None for found in done.values())
    peak = max(job.memory for job in plan.jobs)
    say(f"{len(done)} jobs, {left} to do, {len(plan.skipped)} left out; up to {format_bytes(peak)} in one job")
    return 0


def _limit(entry: Entry) -> str:
    if entry.max_rows is None:
        return ""
    return f", at most {entry.max_rows:,} rows{', of more a subsample' if entry.subsample else ''}"
