"""Evidence and gradient on a local Dask cluster, with one worker and with two, in turns on the same machine.

An evaluation is what an iteration of the optimiser costs: a pass for the statistics, a pass for the gradient, p = 64,
float64, rows read from Parquet on every pass. Also measured: processor time for a row on one core without Dask, and the
bytes that come back. Two workers can only be faster where two cores are free: each cluster is started for its turn and
closed after it, because idle workers still use some time.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from experiments.internals import (
    GAS_TARGET as TARGET,
)
from experiments.internals import (
    Chunks,
    Source,
    SpectralEvidence,
    auto_chunk_rows,
    default_start,
    fit_standardiser,
    watch_traffic,
)
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, positive
from experiments.results import Record, Study
from experiments.simulated import write_gas_sensor
from prismgp.data import from_parquet

__all__ = ["DASK"]

P = 64
WORKERS = (1, 2)
IN_A_TURN = 3  # evaluations


class Evaluation:
    """One evaluation after the other, each at other parameters: those of the last ones are cached."""

    def __init__(self, source: Source) -> None:
        d, q = source.n_inputs, source.n_outputs
        place = {"dtype": torch.float64, "device": torch.device("cpu")}
        chunks = Chunks(
            source,
            fit_standardiser(source, normalize=True),
            rows=auto_chunk_rows(P, d, q, **place),
            **place,
        )
        self._evidence = SpectralEvidence(chunks, np.random.default_rng(1).standard_normal((P, d)))
        self._params = default_start(d, q)

    def __call__(self) -> float:
        self._params = self._params.unpack(self._params.pack() + 1e-3)
        return self._evidence.value_and_gradient(self._params)[0]


def measure(order: Record) -> Record:
    """Write the rows, then measure one worker and two in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gas"
        write_gas_sensor(path, order["rows"], n_files=4, row_group_rows=65_536)
        return compare_workers(path, order["rows"], order["repeats"])


def compare_workers(path: Path, rows: int, repeats: int) -> Record:
    """Seconds of an evaluation with each number of workers."""
    from distributed import Client, LocalCluster  # the dask extra

    alone = Evaluation(from_parquet(path, TARGET))
    alone()
    began = time.process_time()
    expected = [alone() for _ in range(IN_A_TURN)]
    processor = (time.process_time() - began) / IN_A_TURN
    came: list[int] = []
    watch_traffic(lambda back: came.append(len(pickle.dumps(back))))
    seconds: dict[int, list[float]] = {k: [] for k in WORKERS}
    for _ in range(repeats):
        for k in WORKERS:
            with (
                LocalCluster(n_workers=k, threads_per_worker=1, dashboard_address=":0") as cluster,
                Client(cluster, set_as_default=False) as client,
            ):
                source = from_parquet(path, TARGET, client=client)
                evaluation = Evaluation(source)
                evaluation()  # workers import, caches fill
                came.clear()
                for value in expected:
                    began = time.perf_counter()
                    found = evaluation()
                    seconds[k].append(time.perf_counter() - began)
                    assert abs(found / value - 1) < 1e-8
    medians = {k: statistics.median(times) for k, times in seconds.items()}
    return {
        "frequencies": P,
        "shards": source.n_shards,
        "evaluations": repeats * IN_A_TURN,
        "all_seconds": {str(k): times for k, times in seconds.items()},
        "processor_us_per_row": 1e6 * processor / rows,
        "seconds_per_evaluation": {str(k): value for k, value in medians.items()},
        "ratio_of_one_worker_to_two": medians[1] / medians[2],
        "largest_bytes_to_driver_per_pass": max(came),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--rows", type=positive, default=1_000_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="default: %(default)s")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job."""
    order = {"rows": args.rows, "repeats": args.repeats, "device": "cpu"}
    return Plan("dask", [Job(f"rows-{args.rows}", f"{__name__}:measure", order)])


def describe(result: Record) -> str:
    """A few words about a result."""
    one, two = (result["seconds_per_evaluation"][name] for name in ("1", "2"))
    return f"one worker {one:.1f} s, two workers {two:.1f} s an evaluation, ratio {one / two:.2f}"


def markdown(study: Study) -> str:
    """One line for each number of rows."""
    rows = [
        [
            f"{result['rows']:,}",
            f"{result['processor_us_per_row']:.1f}",
            *(f"{result['seconds_per_evaluation'][name]:.1f}" for name in ("1", "2")),
            f"{result['ratio_of_one_worker_to_two']:.2f}",
            f"{result['largest_bytes_to_driver_per_pass']:,}",
        ]
        for result in study.records.values()
        if "failed" not in result
    ]
    header = ["rows", "µs per row, one core", "one worker, s", "two workers, s", "ratio", "bytes to the driver, a pass"]
    return f"# Evidence and gradient on a Dask cluster\n\n{markdown_table(header, rows)}\n"


DASK = Experiment(
    kind="dask",
    summary="time of an evaluation on a Dask cluster with one worker and with two",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
