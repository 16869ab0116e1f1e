"""Which jobs a comparison has, which of them have no place, and what has become of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.lab._folder import RunFolder, read_json, write_json
from experiments.lab._jobs import Job
from experiments.lab.bench._data import DATASETS
from experiments.lab.bench._entries import Entry
from prismgp._memory import format_bytes

__all__ = ["AGREEMENT", "Options", "Plan", "make_plan", "outcome", "read_plan", "remember"]

AGREEMENT = "agreement"  # the key of the check that comes before all fits
_MEASURE = "experiments.lab.bench._measure:measure"
_CHECK = "experiments.lab.bench._agreement:check"
_NOMINAL = 2**30  # memory set aside for the libraries and the data of a job


@dataclass(frozen=True)
class Options:
    """What changes the results, so that a run keeps to it.

    Attributes
    ----------
    quick : bool
        Few rows and few steps: tries the machinery, compares nothing.
    threads : int
        Of each job.
    job_seconds : float
        A job that takes longer is stopped.
    memory_gib : float
        What a job may use; entries that need more get fewer rows.
    """

    quick: bool = False
    threads: int = 1
    job_seconds: float = 1_800.0
    memory_gib: float = 8.0

    @property
    def memory(self) -> float:
        """Bytes that a job may use."""
        return self.memory_gib * 2**30


@dataclass(frozen=True)
class Plan:
    """Jobs to do, in order, and those that are left out with the reason, by key."""

    jobs: list[Job]
    skipped: dict[str, dict[str, Any]]


def make_plan(
    datasets: Sequence[str],
    entries: Sequence[Entry],
    options: Options,
    *,
    splits: Sequence[int] | None = None,
    absent: Sequence[tuple[Entry, str]] = (),
) -> Plan:
    """All jobs, the small data sets first, every entry on a split before the next split.

    Parameters
    ----------
    datasets : sequence of str
        Names in `DATASETS`.
    entries : sequence of Entry
    options : Options
    splits : sequence of int or None
        None: as many as the data set's own number says, one for a quick run.
    absent : sequence of pairs
        Entries whose library is not there, and why.
    """
    jobs = [Job(AGREEMENT, _CHECK, {"seed": 0})]
    skipped: dict[str, dict[str, Any]] = {}
    for dataset in sorted(datasets, key=list(DATASETS).index):
        shape = DATASETS[dataset]
        chosen = splits if splits is not None else range(1 if options.quick else shape.splits)
        for split in chosen:
            for entry, why in absent:
                skipped[_key(dataset, split, entry)] = _skip(dataset, split, entry, why)
            for entry in entries:
                why_not = None if options.quick else entry.refusal(shape.rows, shape.inputs, options.memory)
                if why_not is not None:
                    skipped[_key(dataset, split, entry)] = _skip(dataset, split, entry, why_not)
                    continue
                order = {
                    "dataset": dataset,
                    "split": split,
                    "entry": entry.name,
                    "quick": options.quick,
                    "memory": options.memory,
                    "limit_seconds": options.job_seconds,
                }
                rows = entry.rows(shape.rows, shape.inputs, options.memory)
                memory = int(_NOMINAL + 24 * shape.rows * shape.inputs + entry.memory(rows, shape.inputs))
                jobs.append(Job(_key(dataset, split, entry), _MEASURE, order, _NOMINAL if options.quick else memory))
    return Plan(jobs, skipped)


def _key(dataset: str, split: int, entry: Entry) -> str:
    return f"{dataset}-s{split}-{entry.name}"


def _skip(dataset: str, split: int, entry: Entry, why: str) -> dict[str, Any]:
    return {"dataset": dataset, "split": split, "entry": entry.name, "skipped": why}


def remember(run: RunFolder, plan: Plan, **about: Any) -> None:
    """Add what is planned to ``plan.json``: a later call may ask for more data sets or entries."""
    before = read_plan(run)
    jobs = {job.key: job.order for job in plan.jobs}
    skipped = {key: each for key, each in {**before.get("skipped", {}), **plan.skipped}.items() if key not in jobs}
    write_json(
        run.folder / "plan.json", {**before, **about, "jobs": {**before.get("jobs", {}), **jobs}, "skipped": skipped}
    )


def read_plan(run: RunFolder) -> dict[str, Any]:
    """What has been planned so far; empty where nothing has."""
    path = run.folder / "plan.json"
    return read_json(path) if path.exists() else {}


def outcome(result: dict[str, Any]) -> str:
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
