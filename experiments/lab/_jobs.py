"""Carries out what is not finished of a plan, several jobs at a time, and survives being stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from experiments.lab._folder import Store, write_json
from experiments.lab._provenance import usable_cores

__all__ = ["Job", "Limits", "carry_out"]

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 10.0  # for a job to end when asked to


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
    order: dict[str, Any]
    memory: int = 2**30


@dataclass(frozen=True)
class Limits:
    """How a plan is carried out.

    Attributes
    ----------
    at_a_time : int
    threads : int or None
        Of each job. None: the cores shared out.
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
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]  # a file: a full pipe would stop the job
    order: Path
    began: float

    def said(self, lines: int = 12) -> list[str]:
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip().splitlines()[-lines:]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.log.close()
        self.order.unlink(missing_ok=True)


def carry_out(
    store: Store,
    jobs: Sequence[Job],
    limits: Limits | None = None,
    *,
    describe: Callable[[dict[str, Any]], str] = lambda _: "done",
    retry: bool = True,
    force: bool = False,
    show: bool = True,
) -> list[Job]:
    """Carry out the jobs whose results are not stored; returns those that have none at the end.

    A job that fails or takes too long is stored with "failed", its message, and the others go on. An interrupt
    (Ctrl-C, or a request to terminate) stops the jobs in flight; what is finished stays, and the same call continues.

    Parameters
    ----------
    store : Store
    jobs : sequence of Job
    limits : Limits
    describe : callable
        A few words about a result, for the line that reports it.
    retry : bool
        Try again what failed before.
    force : bool
        Repeat everything.
    show : bool
        A progress bar, and a line for each job, on stderr.
    """
    limits = limits or Limits()
    queue, unfinished = [], []
    # In a log, where a bar would be written again and again, the lines alone.
    with tqdm(total=len(jobs), unit="job", disable=None if show else True, dynamic_ncols=True) as bar:

        def report(job: Job, result: dict[str, Any] | None, note: str = "") -> None:
            if result is None or "failed" in result:
                why = "no result" if result is None else result["failed"]
                text = why if result is not None and result.get("timed_out") else f"FAILED: {why}"
            else:
                text = describe(result)
            if show:
                bar.write(f"{job.key}: {note}{text}", file=sys.stderr)
            bar.update()

        for job in jobs:
            found = None if force else store.get(job.key)
            if found is None or ("failed" in found and retry):
                queue.append(job)
            else:
                report(job, found, "kept, ")
        began = time.perf_counter()
        running: list[_Running] = []
        with _termination_interrupts():
            try:
                while queue or running:
                    late = time.perf_counter() - began > limits.seconds
                    while queue and not late and (next_job := _next(queue, running, limits)):
                        queue.remove(next_job)
                        running.append(_start(store, next_job, limits))
                        bar.set_postfix_str(", ".join(item.job.key for item in running))
                    if not running:
                        break
                    time.sleep(_POLL_SECONDS)
                    for item in list(running):
                        if (result := _ended(store, item, limits)) is not None:
                            running.remove(item)
                            report(item.job, result)
                            if "failed" in result:
                                unfinished.append(item.job)
            finally:
                for item in running:  # only where something has interrupted the plan
                    item.stop()
                    item.close()
    return unfinished + queue


def _next(queue: list[Job], running: list[_Running], limits: Limits) -> Job | None:
    """The first job there is room for."""
    if len(running) >= limits.at_a_time:
        return None
    taken = sum(item.job.memory for item in running)
    return next((job for job in queue if not running or taken + job.memory <= limits.memory), None)


def _start(store: Store, job: Job, limits: Limits) -> _Running:
    handle, name = tempfile.mkstemp(prefix="prismgp-", suffix=".json")
    os.close(handle)
    order = Path(name)
    write_json(order, {"function": job.function, "order": job.order, "store": str(store.folder), "key": job.key})
    threads = str(limits.job_threads)
    log = tempfile.TemporaryFile()  # noqa: SIM115  closed when the job has ended
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.lab._worker", name],
        env={**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C in a terminal reaches the plan alone, which then stops its jobs
    )
    return _Running(job, process, log, order, time.perf_counter())


def _ended(store: Store, item: _Running, limits: Limits) -> dict[str, Any] | None:
    """The result of a job that has ended, None while it runs."""
    late = time.perf_counter() - item.began > limits.job_seconds
    if item.process.poll() is None and not late:
        return None
    if late:
        item.stop()
    result = store.get(item.job.key) if item.process.returncode == 0 else None
    if result is None:
        said = item.said()
        status = item.process.returncode
        reason = (
            f"timed out after {limits.job_seconds:g} s" if late else (said[-1] if said else f"exit status {status}")
        )
        result = {**item.job.order, "failed": reason, "timed_out": late, "exit_status": status, "log": said}
        before = store.get(item.job.key)
        if before is None or "failed" in before:  # what was measured once is not lost to a repetition that fails
            store.put(item.job.key, json.loads(json.dumps(result)))
    item.close()
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
