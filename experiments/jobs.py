"""The job runner: each job in a process of its own, several at a time, with limits on time and memory.

What is finished is stored at once, so an interrupted plan continues where it stopped. A process of its own gives
every job its own peak of memory and its own threads, and a crash takes no other job along:

    python -m experiments.jobs ORDER.json

calls the function that the order names and writes what it returns to a file, which the runner stores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO

from tqdm import tqdm

from experiments.machine import ROOT, code_version, peak_bytes, provenance, usable_cores
from experiments.results import Record, Study

__all__ = ["Job", "Limits", "Running", "carry_out", "perform", "start"]

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10.0  # for a job to end when asked to
_WATCH_SECONDS = 0.5
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Attributes
    ----------
    key : str
        Names the result.
    function : str
        ``module:name``; called with the order in a process of its own, returns what is to be stored.
    order : dict
        Plain data; stored with the result.
    memory : int
        Bytes it may need at its peak.
    """

    key: str
    function: str
    order: Record
    memory: int = 2**30


@dataclass(frozen=True)
class Limits:
    """How a plan is carried out.

    Attributes
    ----------
    at_a_time : int
    threads : int or None
        Of each job. None: the cores are divided equally.
    job_seconds : float
        A job that takes longer is stopped, and stored as such.
    seconds : float
        No job begins after this time.
    memory : float
        Bytes of the jobs in flight together; a larger job gets the machine to itself.
    """

    at_a_time: int = 1
    threads: int | None = None
    job_seconds: float = float("inf")
    seconds: float = float("inf")
    memory: float = float("inf")

    @property
    def job_threads(self) -> int:
        """Threads of each job."""
        return self.threads or max(1, usable_cores() // self.at_a_time)


@dataclass
class Running:
    """A job in its process."""

    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]  # a file: a full pipe would stop the job
    result: Path
    began: float

    def last_lines(self, count: int = 12) -> list[str]:
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip().splitlines()[-count:]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def carry_out(
    study: Study,
    jobs: Sequence[Job],
    limits: Limits | None = None,
    *,
    describe: Callable[[Record], str] = lambda _: "done",
    retry: bool = False,
    force: bool = False,
    stale: bool = False,
    digest: Callable[[Record], str | None] = lambda _: None,
    show: bool = True,
) -> list[Job]:
    """Carry out the jobs whose results are not stored; returns those that have none at the end.

    A job that fails or takes too long is stored with "failed", its message, and with the commit and the digest that
    results have, and the others go on. An interrupt (Ctrl-C, or a request to terminate) stops the jobs in flight; what
    is finished stays, and the same call continues.

    Parameters
    ----------
    study : Study
    jobs : sequence of Job
    limits : Limits
    describe : callable
        A few words about a result, for the line that reports it.
    retry : bool
        Try again also what ran out of time before; what failed is tried again anyway.
    force : bool
        Repeat everything.
    stale : bool
        Repeat results whose parts of the source have changed since.
    digest : callable
        Of the parts of the source that a result depends on; stored with it as "parts".
    show : bool
        A progress bar, and a line for each job, on stderr.
    """
    limits = limits or Limits()
    queue: list[Job] = []
    unfinished: list[Job] = []
    running: list[Running] = []
    # In a log, where a bar would be written again and again, the lines alone.
    with (
        tempfile.TemporaryDirectory(prefix="prismgp-") as folder,
        tqdm(total=len(jobs), unit="job", disable=None if show else True, dynamic_ncols=True) as bar,
        _termination_interrupts(),
    ):

        def report(job: Job, result: Record, note: str = "") -> None:
            if "failed" in result:
                text = result["failed"] if result.get("timed_out") else f"FAILED: {result['failed']}"
            else:
                text = describe(result)
            if show:
                bar.write(f"{job.key}: {note}{text}", file=sys.stderr)
            bar.update()

        for job in jobs:
            found = None if force else study.get(job.key)
            if (
                found is None
                or ("failed" in found and (retry or not found.get("timed_out")))
                or (stale and found.get("parts") != digest(found))
            ):
                queue.append(job)
            else:
                report(job, found, "kept, ")
        began = time.perf_counter()
        try:
            while queue or running:
                late = time.perf_counter() - began > limits.seconds
                while queue and not late and (next_job := _next(queue, running, limits)):
                    queue.remove(next_job)
                    running.append(start(next_job, limits, Path(folder)))
                    bar.set_postfix_str(", ".join(item.job.key for item in running))
                if not running:
                    break
                time.sleep(_POLL_SECONDS)
                for item in list(running):
                    if (result := _collect(study, item, limits, digest)) is not None:
                        running.remove(item)
                        report(item.job, result)
                        if "failed" in result:
                            unfinished.append(item.job)
        finally:
            for item in running:  # only where something has interrupted the plan
                item.stop()
                item.log.close()
    return unfinished + queue


def _next(queue: list[Job], running: list[Running], limits: Limits) -> Job | None:
    """The first job there is room for."""
    if len(running) >= limits.at_a_time:
        return None
    taken = sum(item.job.memory for item in running)
    return next((job for job in queue if not running or taken + job.memory <= limits.memory), None)


def start(job: Job, limits: Limits, folder: Path) -> Running:
    """Begin a job in a process of its own; it writes its result to the folder."""
    order, result = folder / f"{job.key}.order.json", folder / f"{job.key}.result.json"
    content = {"function": job.function, "order": job.order, "result": str(result), "parent": os.getpid()}
    order.write_text(json.dumps(content), encoding="utf-8")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the job has ended
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.jobs", str(order)],
        env={**os.environ, **dict.fromkeys(_THREADS, str(limits.job_threads)), "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C in a terminal reaches the plan alone, which then stops its jobs
    )
    return Running(job, process, log, result, time.perf_counter())


def _collect(study: Study, item: Running, limits: Limits, digest: Callable[[Record], str | None]) -> Record | None:
    """Store the result of a job that has ended; None while it runs."""
    late = time.perf_counter() - item.began > limits.job_seconds
    if item.process.poll() is None and not late:
        return None
    if late:
        item.stop()
    status, lines = item.process.returncode, item.last_lines()
    item.log.close()
    if status == 0 and item.result.exists():
        result: Record = json.loads(item.result.read_text(encoding="utf-8"))
        study.put(item.job.key, {**result, "parts": digest(result)})
        return result
    reason = lines[-1] if lines else f"exit status {status}"
    if late:
        reason = f"timed out after {limits.job_seconds:g} s"
    failure = {"failed": reason, "timed_out": late, "exit_status": status, "log": lines}
    result = {**code_version(), **item.job.order, **failure}
    before, parts = study.get(item.job.key), digest(result)
    # A repetition that fails does not replace a result, unless that was made by other code.
    if before is None or "failed" in before or before.get("parts") != parts:
        study.put(item.job.key, {**result, "parts": parts})
    return result


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """A request to terminate ends the plan as Ctrl-C does, and leaves no job behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: nothing to arrange
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- in the process of a job -----------------------------------------------------------------------


def _end_with(parent: int) -> None:
    """Leave when the plan that began this process is gone: the job would be begun again beside this one."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def perform(function: str, order: Record) -> Record:
    """Call the function of a job; what it returns, with the order and with what it was made with."""
    module, _, name = function.partition(":")
    work = getattr(import_module(module), name)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work(order)
    messages = sorted({f"{warning.category.__name__}: {warning.message}" for warning in caught})
    about = {"job_seconds": time.perf_counter() - began, "peak_bytes": peak_bytes(), "warnings": messages}
    return {**provenance(), **order, **about, **result}


def _main(path: str) -> None:
    order = json.loads(Path(path).read_text(encoding="utf-8"))
    _end_with(order["parent"])
    text = json.dumps(perform(order["function"], order["order"]), allow_nan=False)
    target = Path(order["result"])
    target.with_suffix(".part").write_text(text, encoding="utf-8")
    target.with_suffix(".part").replace(target)


if __name__ == "__main__":
    _main(sys.argv[1])
