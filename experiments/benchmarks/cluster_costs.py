"""What the phases of a PrismGP fit cost on a Dask cluster: the constants of a cost model, and a check of it.

Every phase is done with 1, 2 and 4 local workers of one thread each on the same rows, and with one worker on a quarter
of them; ``cost_model.py`` fits its constants to these times. Then the phases are done once more with other rows, files
and workers, which the model has not seen, and it says how well it predicts them. Rows are simulated, 50 inputs in
32-bit Parquet, and read on every pass.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from experiments.benchmarks.cost_model import PASSES, QUERIES, TINY_SHARDS, describe_model, tables
from experiments.internals import (
    Expert,
    LeaveOneOut,
    MapStatistics,
    Member,
    MemberSettings,
    MemberTraining,
    Mixture,
    NetworkSizes,
    PointShards,
    RevisedMap,
    SpectralEvidence,
    StandardisedRows,
    Streams,
    default_start,
    draw_frequencies,
    fit_standardiser,
    get_kernel,
    hash_inputs,
    held_out_rows,
    open_rows,
    read_coordinates,
    torch_generator,
)
from experiments.jobs import Job
from experiments.plan import Experiment, Plan, add_run_options, positive
from experiments.results import Record, Study
from prismgp import SSGPRegressor
from prismgp.data import Source, collection_source, from_parquet

__all__ = ["CLUSTER_COSTS"]

D, P, LATENT, HIDDEN, BATCH = 50, 32, 8, (128, 128), 4_096
WORKERS = (1, 2, 4)
CHECK_WORKERS = 3
REPEATS = 2
NEIGHBORS = 32
STEPS, WARM_STEPS = 12, 3
SAMPLE, FEW_ROWS = 32_768, 1_024  # rows that the networks are trained on, and of other samples


def write_rows(folder: Path, rows: int, files: int) -> Path:
    """Rows in files of one row group each."""
    folder.mkdir()
    size = rows // files
    names = ["y", *(f"x{j}" for j in range(D))]
    for number in range(files):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((size, D), dtype=np.float32)
        y = np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.standard_normal(size, dtype=np.float32)
        table = pa.table(dict(zip(names, [y, *x.T], strict=True)))
        pq.write_table(table, folder / f"part-{number:03d}.parquet", row_group_size=size)
    return folder


class Phases:
    """The phases of a fit on rows of a folder, with the workers of a client; each returns its size."""

    def __init__(self, folder: Path, client: Any) -> None:
        self.folder, self.client = folder, client
        self.source = from_parquet(folder, "y", missing="error", client=client)
        standardiser = fit_standardiser(self.source, normalize=True)
        self.rows = StandardisedRows(self.source, standardiser)
        w = np.random.default_rng(1).standard_normal((P, D))
        self.evidence, self.params = SpectralEvidence(self.rows.chunks(P), w), default_start(D, 1)
        own = Streams(0)
        sizes = NetworkSizes(D, 1, P, LATENT, HIDDEN, 8, "soft", "input")
        drawn = draw_frequencies(get_kernel("rbf"), P, LATENT + D, "orthogonal", own.generator("frequencies"))
        network = RevisedMap(sizes, default_start(D, 1), drawn, torch_generator(own, "network"))
        self.member = Member(network, 0.0, own)
        self.network = copy.deepcopy(network).double().eval()
        self.parameters = sum(each.numel() for each in network.parameters())

    def count_tasks(self) -> None:
        """Tasks that do nothing."""
        import dask.array as da  # the dask extra

        ones = da.ones((TINY_SHARDS, 1), chunks=1)
        collection_source(ones).map(_nothing)

    def moments(self) -> None:
        """Read all rows, check them, add up their moments."""
        _ = from_parquet(self.folder, "y", missing="error", client=self.client).moments

    def evaluate(self) -> None:
        """Evidence and gradient on all rows, at parameters that are not cached: two passes."""
        self.params = self.params.unpack(self.params.pack() + 1e-3)
        self.evidence.value_and_gradient(self.params)

    def sample(self) -> None:
        """Read all rows for a few of them."""
        self.source.select_sample(FEW_ROWS, np.random.default_rng(0)).load()

    def make_training(self, *, in_memory: bool) -> MemberTraining:
        """Batches from a sample that the workers keep, or from memory."""
        kept = self.source.select_sample(SAMPLE, np.random.default_rng(0)).persist()
        held_out = held_out_rows(hash_inputs(kept), 0.1, 2_000, np.random.default_rng(0))
        source = kept.load() if in_memory else kept
        rows = open_rows(source, self.rows.standardiser, held_out, torch.device("cpu"), step_rows=BATCH)
        settings = MemberSettings(8.0, 1.2, 1e-3, BATCH, 1_000, 1_000, None, True)
        return MemberTraining([copy.deepcopy(self.member)], rows, settings)

    def add_statistics(self) -> None:
        """Posterior of a network: one pass."""
        work = MapStatistics(self.network, float(self.network.parameters_now().noise[0]))
        self.statistics = self.rows.chunks_of(8_192).reduce(work)

    def survey(self) -> None:
        """Predict all rows by the mixture, each left out, and keep coordinates and predictions on the workers."""
        expert = Expert.of("member", self.network, self.network.parameters_now(), self.statistics)
        mixture = Mixture.from_expert(expert)
        self.surveyed = self.rows.chunks_of(8_192).keep(LeaveOneOut(mixture))
        self.surveyed.reduce(_count, _add)

    def collect(self) -> None:
        """Bring what was surveyed to the driver."""
        self.collected = self.surveyed.load()

    def search_few(self) -> None:
        """Neighbours of some rows among all of them, by shards."""
        self._search(QUERIES["search_few"])

    def search_many(self) -> None:
        """The same for more of them."""
        self._search(QUERIES["search_many"])

    def _search(self, count: int) -> None:
        points, n = self.collected[0][0].coordinates, self.rows.n_rows
        shards = PointShards(self.surveyed, n, partial(read_coordinates, width=points.shape[1]))
        search = shards.search(torch.ones(points.shape[1], dtype=torch.float64))
        search.query(points[:count], NEIGHBORS, groups=torch.arange(n), own=torch.arange(count))


def _nothing(_source: Any) -> int:
    return 0


def _count(surveyed: Any, _first_row: int) -> int:
    return len(surveyed[1])


def _add(first: int, second: int) -> int:
    return first + second


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def count_evaluations(source: Source) -> int:
    """Evaluations of the evidence on all rows in the fit of an SSGP."""
    history = SSGPRegressor(P, random_state=0).fit(source).history_
    return sum(rows == source.n_rows for rows in history["rows"])


def measure_run(folder: Path, workers: int, repeats: int, *, fit: bool = False) -> Record:
    """Median seconds of each phase, with the sizes that they depend on; ``fit``: also count the evaluations of one."""
    from distributed import Client, LocalCluster  # the dask extra

    options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.wait_for_workers(workers)
        phases = Phases(folder, client)
        seconds = {}
        for name in ("count_tasks", *PASSES, "collect", *QUERIES):
            seconds[name] = _time(getattr(phases, name), repeats)
        for name, in_memory in (("step", False), ("step_in_memory", True)):
            seconds[name] = _time_steps(phases.make_training(in_memory=in_memory))
        peaks = client.run(_peak_bytes)
        evaluations = count_evaluations(phases.source) if fit else None
    return {
        "workers": workers,
        "rows": phases.rows.n_rows,
        "shards": phases.source.n_shards,
        "seconds": seconds,
        "collected_bytes": len(pickle.dumps(phases.collected)),
        "parameters": phases.parameters,
        "coordinates": phases.collected[0][0].coordinates.shape[1],
        "worker_peak_bytes": max(peaks.values()),
        "evaluations": evaluations,
    }


def _time(phase: Callable[[], None], repeats: int) -> float:
    phase()  # workers import, caches fill
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        phase()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _time_steps(training: MemberTraining) -> float:
    """Seconds of a step, with the rows it waits for, without checks."""
    for number in range(1, WARM_STEPS + 1):
        training.step(number)
    began = time.perf_counter()
    for number in range(WARM_STEPS + 1, WARM_STEPS + STEPS + 1):
        training.step(number)
    taken = time.perf_counter() - began
    training.rows.close()
    return taken / STEPS


def measure(order: Record) -> Record:
    """All runs: those that the model is fitted to, and the one that it must predict."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        rows, check = order["rows"], order["check_rows"]
        folder = write_rows(Path(temporary) / "fit", rows, 8)
        runs = [measure_run(folder, workers, order["repeats"]) for workers in WORKERS]
        few = write_rows(Path(temporary) / "few", rows // 4, 8)
        runs.append(measure_run(few, 1, order["repeats"]))
        other = write_rows(Path(temporary) / "check", check, 12)
        return {"runs": runs, "check": measure_run(other, CHECK_WORKERS, order["repeats"], fit=True)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--rows", type=positive, default=98_304, metavar="N", help="default: %(default)s")
    parser.add_argument("--check-rows", type=positive, default=180_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeats", type=positive, default=REPEATS, metavar="N", help="default: %(default)s")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job."""
    order = {"rows": args.rows, "check_rows": args.check_rows, "repeats": args.repeats, "device": "cpu"}
    return Plan("cluster-costs", [Job(f"rows-{args.rows}", f"{__name__}:measure", order)])


def markdown(study: Study) -> str:
    """The tables of the last result."""
    results = [result for result in study.records.values() if "failed" not in result]
    return "\n".join(tables(result) for result in results)


CLUSTER_COSTS = Experiment(
    kind="cluster-costs",
    summary="constants of the cost model of docs/scale.md, and how well it predicts another run",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe_model,
    markdown=markdown,
)
