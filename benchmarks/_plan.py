"""Carries out the runs of a suite, several at a time, and holds its command line.

A run whose file is there is not repeated, so a plan can be stopped at any time, continued on another machine,
and extended.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

import _runs
from _common import RESULTS, ROOT, data_folder
from _runs import DATASETS, MODELS, Run, Suite, stored
from prismgp._memory import available_bytes
from prismgp._validate import compute_device
from prismgp.exceptions import PrismGPError

_MEMORY_SHARE = 0.6  # of the memory, for runs in flight together; a larger run gets the machine to itself


class Options(NamedTuple):
    """How a plan is carried out."""

    suite: str
    results: Path
    device: str
    jobs: int
    threads: int
    force: bool
    limit_seconds: float


class Running(NamedTuple):
    run: Run
    process: subprocess.Popen[bytes]
    log: Any  # a temporary file: a full pipe would stop the run


def describe(result: dict[str, Any]) -> str:
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    mixture = f", mixture {result['nlpd_mixture']:.4f}" if "nlpd_mixture" in result else ""
    return (
        f"rmse {result['rmse']:.4f}, nlpd {result['nlpd']:.4f}{mixture}, cover {100 * result['coverage']:.1f}%, "
        f"fit {result['fit_seconds']:.1f} s"
    )


def start(run: Run, options: Options) -> Running:
    order = {
        "suite": options.suite,
        "run": asdict(run),
        "results": str(options.results),
        "device": options.device,
        "jobs": options.jobs,
    }
    log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the run has ended
    process = subprocess.Popen(
        [sys.executable, _runs.__file__, json.dumps(order)],
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
        stdout=log,
        stderr=log,
    )
    return Running(run, process, log)


def carry_out_all(runs: list[Run], options: Options) -> list[Run]:
    """Run what is not stored, with a line for each; returns the runs that failed."""
    began = time.perf_counter()
    memory = _MEMORY_SHARE * available_bytes(torch.device(options.device))
    count, width = 0, max((len(run.name) for run in runs), default=0)
    failed: list[Run] = []

    def report(run: Run, text: str) -> None:
        nonlocal count
        count += 1
        elapsed = time.perf_counter() - began
        clock = f"{int(elapsed) // 60}m{int(elapsed) % 60:02d}s"
        print(f"[{count:{len(str(len(runs)))}d}/{len(runs)} {clock:>7s}] {run.name:{width}s}  {text}", flush=True)

    queue = []
    for run in runs:
        found = stored(options.results, options.suite, run)
        # What did not fit into memory is tried again: this machine may have more.
        if found is not None and "skipped" not in found and not options.force:
            report(run, f"kept: {describe(found)}")
        else:
            queue.append(run)
    running: list[Running] = []
    try:
        while queue or running:
            late = time.perf_counter() - began > options.limit_seconds
            while queue and len(running) < options.jobs and not late:
                taken = sum(item.run.memory for item in running)
                fits = [run for run in queue if not running or taken + run.memory <= memory]
                if not fits:
                    break
                queue.remove(fits[0])
                running.append(start(fits[0], options))
            if not running:
                break
            time.sleep(0.1)
            for item in [item for item in running if item.process.poll() is not None]:
                running.remove(item)
                item.log.seek(0)
                said = item.log.read().decode(errors="replace").strip().splitlines()
                item.log.close()
                result = stored(options.results, options.suite, item.run) if item.process.returncode == 0 else None
                if result is None:
                    failed.append(item.run)
                    report(item.run, f"FAILED with exit status {item.process.returncode}")
                    print("\n".join(f"    {line}" for line in said[-12:]), flush=True)
                else:
                    report(item.run, describe(result))
    finally:
        for item in running:  # only where something has interrupted the plan
            item.process.terminate()
    if queue:
        print(f"{len(queue)} of {len(runs)} runs were not started: the limit of {options.limit_seconds:g} s has passed")
    return failed


# -- command line --------------------------------------------------------------------------------


def parse_splits(text: str) -> list[int]:
    """``3``: the first three; ``0-2`` or ``1,4``: these."""
    if text.isdigit() and int(text) > 0:
        return list(range(int(text)))
    between = re.fullmatch(r"(\d+)-(\d+)", text)
    if between and int(between[1]) <= int(between[2]):
        return list(range(int(between[1]), int(between[2]) + 1))
    if re.fullmatch(r"\d+(,\d+)+", text):
        return [int(part) for part in text.split(",")]
    raise argparse.ArgumentTypeError(f"{text!r}: give a number of splits (3), a range (0-2) or a list (1,4)")


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


def default_threads(jobs: int) -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() else max(1, (os.cpu_count() or 1) // jobs)


def parser_of(suite: Suite, summary: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=summary)
    what = parser.add_argument_group("which runs")
    what.add_argument("--datasets", type=names_from(DATASETS), help="default: all")
    what.add_argument("--splits", type=parse_splits, help="3: the first three; 0-2 or 1,4: these; default: the plan's")
    what.add_argument("--models", type=names_from(MODELS), help=f"default: {','.join(suite.models)}")
    what.add_argument("-p", "--p", type=parse_frequencies, help="frequencies, as in 16,32; default: the plan's")
    what.add_argument("--force", action="store_true", help="repeat runs whose result is stored")
    how = parser.add_argument_group("how")
    how.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu")
    how.add_argument("--jobs", type=int, default=1, help="runs at a time")
    how.add_argument("--threads", type=int, help="of each run; default: OMP_NUM_THREADS, or the cores shared out")
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
    left = 0
    for run in runs:
        found = stored(results, suite, run)
        left += found is None
        print(f"{run.name:30s} {'to do' if found is None else describe(found)}")
    print(f"{len(runs)} runs, {left} to do")


def interrupt(*_: object) -> None:
    """A termination request ends the plan as Ctrl-C does, and leaves no run behind."""
    raise KeyboardInterrupt


def main(suite: Suite, tables: Callable[[Path], list[Path]], summary: str) -> int:
    """The command line of a suite; returns the exit status."""
    parser = parser_of(suite, summary)
    args = parser.parse_args()
    if args.jobs < 1 or (args.threads is not None and args.threads < 1):
        parser.error("--jobs and --threads must be at least 1")
    results = args.results.resolve()
    runs = suite.plan(args.datasets, args.splits, args.models, args.p)
    runs.sort(key=lambda run: run.cost, reverse=not args.shortest_first)
    if args.list:
        show(runs, results, suite.name)
        return 0
    failed: list[Run] = []
    if not args.tables:
        if data_folder() is None:
            raise SystemExit("the data sets are absent: set PRISMGP_DATA to the folder that holds them")
        try:
            device = compute_device(args.device).type
        except PrismGPError as error:
            parser.error(str(error))
        threads = args.threads or default_threads(args.jobs)
        print(f"runs: {len(runs)}; device: {device}; at a time: {args.jobs}; threads of each: {threads}")
        options = Options(suite.name, results, device, args.jobs, threads, args.force, args.limit_seconds)
        signal.signal(signal.SIGTERM, interrupt)
        try:
            failed = carry_out_all(runs, options)
        except KeyboardInterrupt:
            print("\nstopped; what is finished is stored, the same command continues")
            return 130
    for path in tables(results):
        print(f"written: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    if failed:
        print(f"{len(failed)} runs failed: {', '.join(run.name for run in failed)}")
    return 1 if failed else 0
