"""The planner: what a study consists of, and the command line that every study shares.

An :class:`Experiment` turns options into a :class:`Plan`, which is a list of jobs and of what is left out. `run` lists
it or carries out what is missing, and `write_outputs` makes tables, figures and the page from what is stored.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from experiments.internals import DEVICES, compute_device
from experiments.jobs import Job, Limits, carry_out
from experiments.machine import Lock, atomic_path, available_bytes, format_bytes
from experiments.page import Page, render, save_png
from experiments.parts import digest_of
from experiments.results import RUNS, Record, Study
from prismgp.exceptions import DataError

__all__ = [
    "Experiment",
    "Parser",
    "Plan",
    "add_run_options",
    "known_names",
    "parse_names",
    "parse_numbers",
    "parse_splits",
    "positive",
    "positive_number",
    "run",
    "write_outputs",
]

_MEMORY_SHARE = 0.7  # of what is free, for the jobs in flight together


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes
    ----------
    study : str
        Names the file of the results.
    jobs : list of Job
        In the order in which they begin.
    options : dict
        What every result depends on; results with other options do not mix.
    skipped : dict
        What is left out, by key, with the reason as "skipped".
    first : list of Job
        Jobs that must succeed before the others begin.
    """

    study: str
    jobs: list[Job]
    options: Record = field(default_factory=dict)
    skipped: dict[str, Record] = field(default_factory=dict)
    first: list[Job] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """A kind of study.

    Attributes
    ----------
    kind : str
        The subcommand, stored with the results.
    summary : str
        For ``--help``.
    add_options : callable
        Declares what the plan depends on.
    make_plan : callable
        From parsed arguments; raises DataError where data are absent, unless ``list`` is among them.
    describe : callable
        A few words about a result.
    markdown : callable
        The tables of a study.
    figures : callable
        The figures of a study: name to a function that gives the matplotlib figure.
    page : callable or None
        The HTML page of a study.
    complain : callable
        Sentences about results that must not stand as they are.
    conclude : callable
        A sentence about the study as a whole, or None.
    """

    kind: str
    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    make_plan: Callable[[argparse.Namespace], Plan]
    describe: Callable[[Record], str]
    markdown: Callable[[Study], str]
    figures: Callable[[Study], dict[str, Callable[[], Any]]] = lambda _: {}
    page: Callable[[Study], Page] | None = None
    complain: Callable[[Study], list[str]] = lambda _: []
    conclude: Callable[[Study], str | None] = lambda _: None


# -- carrying out ----------------------------------------------------------------------------------


def run(experiment: Experiment, args: argparse.Namespace) -> int:
    """List the plan, or carry out what is missing of it and write the outputs; the exit status."""
    limits = limits_of(args)
    args.threads = limits.job_threads
    plan = experiment.make_plan(args)
    if args.list:
        _print_plan(Study(args.results, plan.study), plan, experiment)
        return 0
    args.results.mkdir(parents=True, exist_ok=True)
    with Lock(Study(args.results, plan.study).path):
        return _run_plan(experiment, plan, limits, args)


def _run_plan(experiment: Experiment, plan: Plan, limits: Limits, args: argparse.Namespace) -> int:
    """Carry out what is missing of a plan whose results nobody else writes, and write the outputs."""
    study = Study(args.results, plan.study)
    keys = [job.key for job in plan.jobs]
    study.begin(kind=experiment.kind, options=plan.options, command=args.command, planned=keys, skipped=plan.skipped)
    if not args.quiet:
        say(f"{len(keys)} jobs, {limits.at_a_time} at a time, {limits.job_threads} threads each")
    how: dict[str, Any] = {"describe": experiment.describe, "retry": args.retry, "force": args.force}
    how |= {"stale": args.stale, "digest": partial(digest_of, experiment.kind), "show": not args.quiet}
    first, jobs = (
        [replace(job, order={**job.order, "jobs": args.jobs}) for job in part] for part in (plan.first, plan.jobs)
    )
    missing = carry_out(study, first, limits, **how)
    missing = [*missing, *jobs] if missing else carry_out(study, jobs, limits, **how)
    if study.records:
        for path in write_outputs(experiment, study):
            if not args.quiet:
                say(f"wrote {path}")
    broken = [job.key for job in missing if not (study.get(job.key) or {}).get("timed_out")]
    if broken:
        say(f"{len(broken)} jobs have no result: {', '.join(broken)}; the same command tries them again")
    complaints = experiment.complain(study)
    for line in complaints:
        say(line)
    if (conclusion := experiment.conclude(study)) is not None:
        say(conclusion)
    return 1 if broken or complaints else 0


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits that the shared options ask for."""
    memory = _MEMORY_SHARE * available_bytes(torch.device("cpu"))
    if compute_device(args.device).type == "cuda":
        memory = min(memory, _MEMORY_SHARE * available_bytes(torch.device("cuda")))
    return Limits(args.jobs, args.threads, args.job_seconds, args.limit_seconds, memory)


def _print_plan(study: Study, plan: Plan, experiment: Experiment) -> None:
    states = []
    for job in plan.jobs:
        found = study.get(job.key)
        failed = None if found is None else found.get("failed")
        if found is None:
            states.append((job.key, "to do"))
        else:
            states.append((job.key, experiment.describe(found) if failed is None else f"failed: {failed}"))
    states += [(key, f"left out: {each['skipped']}") for key, each in plan.skipped.items()]
    width = max((len(key) for key, _ in states), default=0)
    for key, text in states:
        print(f"{key:{width}}  {' '.join(text.split())}")
    left = sum(study.get(job.key) is None for job in plan.jobs)
    peak = max((job.memory for job in plan.jobs), default=0)
    print(
        f"{len(plan.jobs)} jobs, {left} to do, {len(plan.skipped)} left out; up to {format_bytes(peak)} in one job; "
        f"results: {study.path}"
    )


def write_outputs(experiment: Experiment, study: Study, only: Iterable[str] | None = None) -> list[Path]:
    """``STUDY.md``, ``STUDY-FIGURE.png`` and ``STUDY.html`` from what is finished; the files that were written.

    Parameters
    ----------
    experiment : Experiment
    study : Study
    only : iterable of str, optional
        Names of files; None: all.
    """
    wanted = None if only is None else set(only)
    files: dict[str, Callable[[Path], object]] = {f"{study.name}.md": lambda path: _write(path, experiment.markdown)}

    def _write(path: Path, make: Callable[[Study], str]) -> None:
        with atomic_path(path) as temporary:
            temporary.write_text(make(study), encoding="utf-8")

    for name, make in experiment.figures(study).items():
        file = f"{study.name}-{name}.png" if name else f"{study.name}.png"
        files[file] = lambda path, make=make: save_png(make(), path)
    if experiment.page is not None:
        page = experiment.page
        files[f"{study.name}.html"] = lambda path: render(page(study), path)
    written = []
    for file, write in files.items():
        if wanted is None or file in wanted:
            write(study.folder / file)
            written.append(study.folder / file)
    return written


# -- the command line ------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and that knows no abbreviations."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        say(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(2)


def say(text: str) -> None:
    """A line on stderr: stdout is for tables and lists."""
    print(f"experiments: {text}", file=sys.stderr, flush=True)


def add_run_options(parser: argparse.ArgumentParser, *, job_seconds: float = float("inf")) -> None:
    """The options of every command that measures something."""
    how = parser.add_argument_group("how")
    how.add_argument("--list", action="store_true", help="show the plan and what is done of it, run nothing")
    how.add_argument("--force", action="store_true", help="repeat what is stored")
    how.add_argument("--stale", action="store_true", help="repeat what was made by code that has changed since")
    how.add_argument("--retry", action="store_true", help="try again what ran out of time")
    how.add_argument("--jobs", type=positive, default=1, metavar="N", help="jobs at a time (default: 1)")
    how.add_argument("--threads", type=positive, metavar="N", help="of each job (default: the cores divided equally)")
    limit = "none" if job_seconds == float("inf") else f"{job_seconds:g}"
    how.add_argument(
        "--job-seconds",
        type=positive_number,
        default=job_seconds,
        metavar="S",
        help=f"stop a job that takes longer (default: {limit})",
    )
    how.add_argument(
        "--limit-seconds", type=positive_number, default=float("inf"), metavar="S", help="begin no job after this time"
    )
    how.add_argument("--device", choices=DEVICES, default="cpu", help="default: %(default)s")
    how.add_argument(
        "-o",
        "--results",
        type=Path,
        default=RUNS,
        metavar="FOLDER",
        help="of results, tables and figures (default: runs); experiments/results holds the published ones",
    )
    how.add_argument("-q", "--quiet", action="store_true", help="no progress and no summary")


def _number(kind: type, accepts: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


positive = _number(int, lambda value: value >= 1, "a whole number of at least 1")
positive_number = _number(float, lambda value: 0 < value < float("inf"), "a number above 0")


def parse_names(text: str) -> list[str]:
    """``a,b`` as a list."""
    return [name for name in text.split(",") if name]


def parse_numbers(text: str) -> list[int]:
    """``16,32`` as a list."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers, as in 16,32")
    return [int(part) for part in text.split(",")]


def parse_splits(text: str) -> list[int]:
    """``3``: the first three; ``0-2`` or ``1,4``: these."""
    if re.fullmatch(r"[1-9]\d{0,2}", text):
        return list(range(int(text)))
    between = re.fullmatch(r"(\d{1,3})-(\d{1,3})", text)
    if between and int(between[1]) <= int(between[2]):
        return list(range(int(between[1]), int(between[2]) + 1))
    if re.fullmatch(r"\d{1,3}(,\d{1,3})+", text):
        return sorted({int(part) for part in text.split(",")})
    raise argparse.ArgumentTypeError(f"{text!r}: give a number of splits (3), a range (0-2) or a list (1,4)")


def known_names(names: Sequence[str], known: Iterable[str], what: str) -> list[str]:
    """The names without repetitions; an error for those that are unknown."""
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise DataError(f"{what}: {', '.join(unknown)} unknown; choose from {', '.join(known)}")
    if not names:
        raise DataError(f"{what}: nothing given; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))
