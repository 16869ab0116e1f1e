"""Evidence and gradient on a local Dask cluster, with one worker and with two, in turns on the same machine.

    python benchmarks/dask_scaling.py [--rows 1000000] [--repeats 3] [--output FILE]

An evaluation is what an iteration of the optimiser costs: a pass for the statistics, a pass for the gradient, p = 64,
float64, rows read from Parquet on every pass. Also measured: processor time for a row on one core without Dask, and the
bytes that come back. Two workers can only be faster where two cores are free: each cluster is started for its turn and
closed after it, because idle workers are not quite idle.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import provenance, write_result
from distributed import Client, LocalCluster

from prismgp.core.evidence import SpectralEvidence
from prismgp.core.parameters import default_start
from prismgp.data import Chunks, Source, Standardiser, auto_chunk_rows, from_parquet
from prismgp.data.cluster import Cluster
from prismgp.datasets import write_gas_sensor

P, TARGET = 64, "CO (ppm)"
WORKERS = (1, 2)
IN_A_TURN = 3  # evaluations


class Evaluation:
    """One evaluation after the other, each at parameters of its own: statistics are kept for a repetition."""

    def __init__(self, source: Source) -> None:
        d, q = source.n_inputs, source.n_outputs
        place = {"dtype": torch.float64, "device": torch.device("cpu")}
        chunks = Chunks(
            source,
            Standardiser.fit(source, normalize=True),
            rows=auto_chunk_rows(P, d, q, **place),
            **place,
        )
        self._evidence = SpectralEvidence(chunks, np.random.default_rng(1).standard_normal((P, d)))
        self._params = default_start(d, q)

    def __call__(self) -> float:
        self._params = self._params.unpack(self._params.pack() + 1e-3)
        return self._evidence.value_and_gradient(self._params)[0]


def watch_traffic() -> list[int]:
    """Bytes that come back to this process, an entry for each pass."""
    came: list[int] = []
    gathered = Cluster.gather

    def watched(self: Cluster, tasks: list[Any]) -> list[Any]:
        back = gathered(self, tasks)
        came.append(len(pickle.dumps(back)))
        return back

    Cluster.gather = watched  # type: ignore[method-assign]
    return came


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/dask_scaling.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_gas_sensor(Path(folder) / "gas", args.rows, n_files=4, row_group_rows=65_536)
        result = measure(Path(folder) / "gas", args.rows, args.repeats)
    for name, value in result.items():
        print(f"{name:>32}: {value}")
    if args.output is None:
        print(f"wrote {write_result('dask_scaling', result)}")
    else:
        args.output.write_text(json.dumps({**provenance(), **result}, indent=1) + "\n")


def measure(path: Path, rows: int, repeats: int) -> dict[str, Any]:
    alone = Evaluation(from_parquet(path, TARGET))
    alone()
    began = time.process_time()
    expected = [alone() for _ in range(IN_A_TURN)]
    processor = (time.process_time() - began) / IN_A_TURN
    came = watch_traffic()
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
        "rows": rows,
        "frequencies": P,
        "shards": source.n_shards,  # type: ignore[attr-defined]
        "repeats": repeats * IN_A_TURN,
        "all_seconds": {str(k): times for k, times in seconds.items()},
        "processor_us_per_row": 1e6 * processor / rows,
        "seconds_per_evaluation": {str(k): value for k, value in medians.items()},
        "ratio_of_one_worker_to_two": medians[1] / medians[2],
        "largest_bytes_to_driver_per_pass": max(came),
    }


if __name__ == "__main__":
    main()
