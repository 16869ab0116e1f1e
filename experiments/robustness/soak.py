"""``soak``: many random small problems, on all cores; each failure is stored with its seed."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from experiments.machine import Lock, provenance, usable_cores
from experiments.plan import positive, positive_number, say
from experiments.results import RUNS, Record, Study

__all__ = ["add_options", "run"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SAY_SECONDS = 20.0
_END_SECONDS = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--problems", type=positive, default=10_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="of the first problem (default: 0)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="repeat one problem here, and say all about it")
    parser.add_argument("--jobs", type=positive, default=usable_cores(), metavar="N", help="processes (default: cores)")
    parser.add_argument(
        "--problem-seconds", type=positive_number, default=120.0, metavar="S", help="longer is a failure (default: 120)"
    )
    parser.add_argument(
        "--limit-seconds", type=positive_number, default=float("inf"), metavar="S", help="begin no problem after it"
    )
    parser.add_argument("--device", help="default: all that are at hand, by turns")
    parser.add_argument(
        "-o", "--results", type=Path, default=RUNS, metavar="FOLDER", help="failures go to soak.jsonl in it"
    )


def run(args: argparse.Namespace) -> int:
    """Check the problems; 1 if any fails."""
    if args.seed is not None:
        return _repeat(args.seed, args.device)
    args.results.mkdir(parents=True, exist_ok=True)
    study = Study(args.results, "soak")
    with Lock(study.path):
        return _soak(args, study)


def _repeat(seed: int, device: str | None) -> int:
    from experiments.robustness.invariants import check_problem
    from experiments.robustness.problems import make_problem

    problem = make_problem(seed, device)
    print(f"{problem.model!r}\n{problem.about}")
    complaints = check_problem(problem)
    for each in complaints:
        print(each)
    print("nothing is violated" if not complaints else f"{len(complaints)} violated")
    return 1 if complaints else 0


def _soak(args: argparse.Namespace, study: Study) -> int:
    began = said = time.perf_counter()
    seeds = range(args.first_seed, args.first_seed + args.problems)
    done, failed, names, spent = 0, [], Counter[str](), Counter[str]()
    for seed, result in run_problems(seeds, args):
        done += 1
        names[result["name"]] += 1
        spent[result["name"]] += result["seconds"]
        if result["complaints"]:
            failed.append(seed)
            study.put(f"seed-{seed}", {**provenance(), "command": f"{args.command} --seed {seed}", **result})
            say(f"seed {seed} ({result['name']}): {result['complaints'][0]:.300}")
        if time.perf_counter() - said > _SAY_SECONDS:
            said = time.perf_counter()
            say(f"{done:,} of {len(seeds):,} problems in {said - began:.0f} s, {len(failed)} failed")
    seconds = time.perf_counter() - began
    summary: Record = {"problems": done, "failed": failed, "seconds": seconds, "estimators": dict(names)}
    study.put("summary", {**provenance(), "command": args.command, "first_seed": args.first_seed, **summary})
    for name, count in sorted(names.items()):
        print(f"{name:10} {count:7,} problems, {spent[name] / count:6.2f} s each")
    print(f"{done:,} problems in {seconds:.0f} s by {args.jobs} processes, {len(failed)} failed")
    if failed:
        print(f"stored in {study.path}; repeat one with python -m experiments soak --seed {failed[0]}")
    return 1 if failed or done < len(seeds) else 0


# -- processes -------------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    seed: int | None = None
    began: float = 0.0

    @classmethod
    def start(cls, device: str | None) -> _Worker:
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, device), daemon=True)
        process.start()
        theirs.close()
        return cls(process, pipe)

    def give(self, seed: int) -> None:
        self.seed, self.began = seed, time.perf_counter()
        self.pipe.send(seed)

    def end(self) -> None:
        self.pipe.close()  # which tells it that there are no more
        self.process.join(0 if self.seed is not None else _END_SECONDS)
        self.process.kill()
        self.process.join()


def _work(pipe: Connection, device: str | None) -> None:
    """In a process of its own: problems by their seeds, until there are no more."""
    import torch

    from experiments.robustness.invariants import check_problem
    from experiments.robustness.problems import make_problem

    torch.set_num_threads(1)
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        began = time.perf_counter()
        problem = make_problem(seed, device)
        complaints = check_problem(problem)
        seconds = time.perf_counter() - began
        pipe.send({"name": problem.name, "about": problem.about, "complaints": complaints, "seconds": seconds})


def run_problems(seeds: Sequence[int], args: argparse.Namespace) -> Iterator[tuple[int, Record]]:
    """Seeds and what came of them, as they are done; a process that crashes or hangs fails its problem alone."""
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    left = iter(seeds)
    began = time.perf_counter()
    workers = [_Worker.start(args.device) for _ in range(min(args.jobs, len(seeds)))]

    def feed(worker: _Worker) -> None:
        seed = next(left, None) if time.perf_counter() - began < args.limit_seconds else None
        worker.seed = None
        if seed is not None:
            worker.give(seed)

    try:
        for worker in workers:
            feed(worker)
        while busy := [worker for worker in workers if worker.seed is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for index, worker in enumerate(workers):
                seed, late = worker.seed, time.perf_counter() - worker.began > args.problem_seconds
                if seed is None or not (late or worker.pipe in ready):
                    continue
                try:
                    result = None if worker.pipe not in ready else worker.pipe.recv()
                except EOFError:
                    worker.process.join()
                    result = _lost(worker, f"the process ended with code {worker.process.exitcode}")
                if result is None:
                    result = _lost(worker, f"no end after {args.problem_seconds:g} s")
                if "lost" in result:
                    worker.end()
                    worker = workers[index] = _Worker.start(args.device)
                feed(worker)
                yield seed, result
    finally:
        for worker in workers:
            worker.end()


def _lost(worker: _Worker, why: str) -> Record:
    return {"name": "?", "complaints": [why], "seconds": time.perf_counter() - worker.began, "lost": True}
