"""Which jobs the comparison has, which entries are left out, and the outcome of a job in words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.comparison.data import DATASETS, load
from experiments.comparison.entries import Entry, select, selectable_names
from experiments.internals import compute_device
from experiments.jobs import Job
from experiments.machine import format_bytes
from experiments.plan import Plan, add_run_options, known_names, parse_names, parse_splits, positive_number, say
from experiments.results import Record
from prismgp.exceptions import DataError, PrismGPError

__all__ = ["AGREEMENT", "add_options", "describe", "make_plan", "plan_jobs"]

AGREEMENT = "agreement"  # the key of the check that comes before all fits
_JOB_SECONDS, _MEMORY_GIB = 420.0, 12.0
_NOMINAL = 2**30  # memory set aside for the libraries and the data of a job
_QUICK_DATASETS = ["simulated"]  # needs no file and no network


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--datasets", type=parse_names, metavar="A,B", help="default: all; 'simulated' needs no data files"
    )
    what.add_argument(
        "--peers",
        type=parse_names,
        metavar="A,B",
        help="entries (see --list), libraries, or 'main', those of the main table; default: all that are installed",
    )
    what.add_argument(
        "--splits", type=parse_splits, metavar="N", help="3: the first three; 0-2 or 1,4: these; default: by data set"
    )
    what.add_argument("--quick", action="store_true", help="few rows and steps: a test of the code, not a comparison")
    what.add_argument(
        "--memory",
        type=positive_number,
        default=_MEMORY_GIB,
        metavar="GIB",
        help=f"of a fit; an entry that needs more gets fewer rows (default: {_MEMORY_GIB:g})",
    )
    add_run_options(parser, job_seconds=_JOB_SECONDS)


def make_plan(args: argparse.Namespace) -> Plan:
    """The plan that the options ask for; data sets that are not available are left out with a line that says so."""
    default = _QUICK_DATASETS if args.quick else [name for name, shape in DATASETS.items() if shape.default]
    datasets = default if args.datasets is None else known_names(args.datasets, DATASETS, "--datasets")
    peers = None if args.peers is None else known_names(args.peers, selectable_names(), "--peers")
    entries, absent = select(peers)
    if not args.list:
        for reason in dict.fromkeys(why for _, why in absent) if not args.quiet else ():
            say(f"left out: {reason}")
        datasets = _find_available(datasets, args.splits, quiet=args.quiet)
    options = {
        "quick": args.quick,
        "threads": args.threads,
        "job_seconds": args.job_seconds,
        "memory_gib": args.memory,
    }
    device = compute_device(args.device).type
    return plan_jobs(datasets, entries, options, splits=args.splits, absent=absent, device=device)


def _find_available(datasets: list[str], splits: list[int] | None, *, quiet: bool) -> list[str]:
    """The data sets that can be loaded; downloads happen here, once, and not in every job."""
    available, reasons = [], []
    for name in datasets:
        try:
            for split in splits or [0]:
                load(name, split)
        except (PrismGPError, OSError) as error:
            reasons.append(f"{name}: {error}")
        else:
            available.append(name)
    if not available:
        raise DataError(
            f"no data set is available ({reasons[0]}); set PRISMGP_DATA to a folder that holds them, or try "
            "--datasets simulated"
        )
    for reason in reasons if not quiet else ():
        say(f"left out: {' '.join(reason.split())}")
    return available


def plan_jobs(
    datasets: Sequence[str],
    entries: Sequence[Entry],
    options: Record,
    *,
    splits: Sequence[int] | None = None,
    absent: Sequence[tuple[Entry, str]] = (),
    device: str = "cpu",
) -> Plan:
    """All jobs, the small data sets first, every entry on a split before the next split.

    Parameters
    ----------
    datasets : sequence of str
        Names in `DATASETS`.
    entries : sequence of Entry
    options : dict
        "quick" (few rows and few steps), "threads", "job_seconds" and "memory_gib" of each job.
    splits : sequence of int or None
        None: as many as the data set's own number says, one for a quick run.
    absent : sequence of pairs
        Entries whose library is not installed, and why.
    device : str
        Where entries are fitted that can use a GPU.
    """
    quick, memory = options["quick"], options["memory_gib"] * 2**30
    jobs = [Job(AGREEMENT, "experiments.comparison.agreement:check", {"seed": 0})]
    skipped: dict[str, Record] = {}
    for dataset in sorted(datasets, key=list(DATASETS).index):
        shape = DATASETS[dataset]
        for split in splits if splits is not None else range(1 if quick else shape.splits):
            reasons = {entry.name: why for entry, why in absent}
            for entry in entries:
                key = f"{dataset}-s{split}-{entry.name}"
                why_not = None if quick else entry.refusal(shape.rows, shape.inputs, memory)
                if why_not is not None:
                    reasons[entry.name] = why_not
                    continue
                order = {
                    "dataset": dataset,
                    "split": split,
                    "entry": entry.name,
                    "quick": quick,
                    "memory": memory,
                    "limit_seconds": options["job_seconds"],
                    "device": device if entry.gpu else "cpu",
                }
                rows = entry.rows(shape.rows, shape.inputs, memory)
                needed = _NOMINAL
                if not quick:
                    needed += int(24 * shape.rows * shape.inputs + entry.memory(rows, shape.inputs))
                jobs.append(Job(key, "experiments.comparison.measure:measure", order, needed))
            for name, why in reasons.items():
                skipped[f"{dataset}-s{split}-{name}"] = {
                    "dataset": dataset,
                    "split": split,
                    "entry": name,
                    "skipped": why,
                }
    return Plan("bench-quick" if quick else "bench", jobs, options, skipped)


def describe(result: Record) -> str:
    """A few words about a result."""
    if result.get("timed_out"):
        return f"timed out after {result['limit_seconds']:g} s"
    if "failed" in result:
        return f"failed: {result['failed']}"
    if "exact" in result:
        agree = sum(each["agrees"] for each in result["exact"].values())
        return f"{agree} of {len(result['exact'])} exact GPs agree"
    part = f", {result['rows_used']:,} of {result['rows']:,} rows" if result["rows_used"] < result["rows"] else ""
    return (
        f"rmse {result['rmse']:.4f}, nlpd {result['nlpd']:.4f}, covers {100 * result['coverage']:.1f}%, "
        f"fit {result['fit_seconds']:.1f} s, {format_bytes(result['fit_peak_bytes'])}{part}"
    )
