"""Time and memory of fit and predict against the number of rows, streamed from Parquet files.

    python -m experiments scale --rows 100000,1000000,10000000
    python -m experiments scale --rows 10000000 --fit-rows 200000 --steps 100
    python -m experiments scale --rows 100000 --fit-rows 10000000

The second command measures predictions alone, of models whose fits are short and say nothing; the third fits alone.

The simulated gas array, 18 inputs, is written to a folder once. Every fit runs in a process of its own, from the files,
and so does every prediction, through the command line; the peak of memory is that of the process less what the
libraries take. "Waiting" is the time a pass stood still because the next rows were not there yet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.internals import GAS_TARGET, time_waiting
from experiments.jobs import Job
from experiments.machine import peak_bytes
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names, parse_numbers, positive
from experiments.results import Record, Study
from experiments.simulated import write_gas_sensor
from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.data import from_parquet

__all__ = ["SCALE"]

P = 64
ROWS = (100_000, 1_000_000, 10_000_000)
ROWS_PER_FILE = 1_000_000
MODELS = {"ssgp": "SSGP", "prism": "PrismGP"}


# -- jobs ------------------------------------------------------------------------------------------


def write_rows(order: Record) -> Record:
    """Write the files with n rows if they are not there."""
    path, began = Path(order["path"]), time.perf_counter()
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.part")
        write_gas_sensor(unfinished, order["rows"], n_files=max(1, order["rows"] // ROWS_PER_FILE))
        unfinished.replace(path)
    return {"seconds": time.perf_counter() - began}


class Waiting:
    """Counts the seconds a consumer of blocks waits for them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, prefetched: Any) -> Any:
        def count_waiting(blocks: Iterator[Any], *args: Any) -> Iterator[Any]:
            items = prefetched(blocks, *args)
            while True:
                began = time.perf_counter()
                item = next(items, None)
                self.seconds += time.perf_counter() - began
                if item is None:
                    return
                yield item

        return count_waiting


def measure(order: Record) -> Record:
    """Fit from files, save, and predict through the command line."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.prism"
        return {"p": P, "fit": fit(order, file), "predict": predict(order, file)}


def fit(order: Record, file: Path) -> Record:
    """Time, memory and phases of a fit."""
    waiting = Waiting()
    time_waiting(waiting.watch)
    common = {"random_state": 0, "device": order["device"], "dtype": order["dtype"]}
    if order["model"] == "prism":
        common["max_steps"] = order["steps"]
    model = SSGPRegressor(P, **common) if order["model"] == "ssgp" else PrismGPRegressor(P, **common)
    rng = np.random.default_rng(0)  # libraries load what they need on first use
    model.__class__(4, device=order["device"], random_state=0).fit(
        rng.standard_normal((60, 2)), rng.standard_normal(60)
    )
    before = peak_bytes()
    began = time.perf_counter()
    source = from_parquet(order["fit_path"], target=GAS_TARGET)
    model.fit(source)
    if order["device"] == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    phases: dict[str, float] = {}
    for stage in model.fit_status_["stages"]:
        phases[stage["method"]] = phases.get(stage["method"], 0.0) + stage["seconds"]
    if order["model"] == "prism":
        phases["networks"] = float(max(model.history_["seconds"]))  # members are trained together
    phases["statistics of columns, sampling, passes over all rows at the end"] = seconds - sum(phases.values())
    model.save(file)
    return {
        "rows": source.n_rows,
        "seconds": seconds,
        "phases": phases,
        "waiting_seconds": waiting.seconds,
        "peak_bytes_above_libraries": peak_bytes() - before,
        "gpu_peak_bytes": torch.cuda.max_memory_allocated() if order["device"] == "cuda" else None,
        "evaluations_on_all_rows": sum(
            stage["evaluations"] for stage in model.fit_status_["stages"] if stage["rows"] == source.n_rows
        ),
        "log_evidence_per_row": model.log_evidence_ / source.n_rows,
    }


# The command as a user starts it: with nothing loaded that this file needs.
PREDICT = """
import sys, time
began = time.perf_counter()
from prismgp.cli import main
code = main(sys.argv[1:])
seconds = time.perf_counter() - began
from pathlib import Path
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(code, seconds, 1024 * int(peak.split()[1]))
"""


def predict(order: Record, file: Path) -> Record:
    """Time and memory of the command."""
    out = file.with_suffix(".parquet")
    words = ["predict", str(file), order["path"], "-o", str(out), "-q", "--device", order["device"]]
    done = subprocess.run([sys.executable, "-c", PREDICT, *words], stdout=subprocess.PIPE, text=True, check=True)
    code, seconds, peak = done.stdout.splitlines()[-1].split()
    if code != "0":
        raise RuntimeError(f"prismgp predict ended with status {code}")
    return {"rows": order["rows"], "seconds": float(seconds), "peak_bytes_in_all": int(peak)}


# -- plan ------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--rows", type=parse_numbers, default=list(ROWS), metavar="N,N", help=f"default: {ROWS}")
    parser.add_argument("--models", type=parse_names, default=list(MODELS), metavar="A,B", help="default: ssgp,prism")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64", help="default: %(default)s")
    parser.add_argument(
        "--fit-rows", type=positive, metavar="N", help="of every fit (default: as many as are predicted)"
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="of PrismGP's networks (default: its own)")
    parser.add_argument("--folder", type=Path, help="of the files (default: scale-data in the folder of results)")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each model and number of rows; first of all the files are written."""
    folder = args.folder or args.results / "scale-data"
    path = {n: str(folder / f"gas-{n}") for n in [*args.rows, *([args.fit_rows] if args.fit_rows else [])]}
    writing = [Job(f"write-{n}", f"{__name__}:write_rows", {"rows": n, "path": path[n]}) for n in path]
    jobs = []
    for model in known_names(args.models, MODELS, "--models"):
        for n in args.rows:
            order = {"model": model, "rows": n, "fit_rows": args.fit_rows or n, "steps": args.steps}
            order |= {"device": args.device, "dtype": args.dtype, "path": path[n], "fit_path": path[order["fit_rows"]]}
            jobs.append(Job(key_of(order), f"{__name__}:measure", order))
    return Plan("scale", jobs, first=writing)


def key_of(order: Record) -> str:
    """The key of a measurement; settings that are the default are left out."""
    parts = [order["model"], str(order["rows"]), order["device"], order["dtype"]]
    parts += [f"fit{order['fit_rows']}"] if order["fit_rows"] != order["rows"] else []
    parts += [f"steps{order['steps']}"] if order["steps"] else []
    return "-".join(parts)


def describe(result: Record) -> str:
    """A few words about a result."""
    if "fit" not in result:
        return f"files written, {result['seconds']:.0f} s"
    f, p = result["fit"], result["predict"]
    return (
        f"fit {f['seconds']:.1f} s, {f['peak_bytes_above_libraries'] / 1e6:.0f} MB, waiting for rows "
        f"{f['waiting_seconds'] / f['seconds']:.1%}; predict {p['seconds']:.1f} s, {p['peak_bytes_in_all'] / 1e6:.0f} "
        "MB in all"
    )


# -- tables ----------------------------------------------------------------------------------------


def exponent(results: list[Record], what: str) -> str:
    """Of the time over the rows; predictions are those of as many rows as were fitted."""
    if what == "predict":
        results = [result for result in results if result["fit_rows"] == result["rows"]]
    if len(results) < 2:
        return ""
    rows, seconds = ([float(result[what][key]) for result in results] for key in ("rows", "seconds"))
    return f"{float(np.polyfit(np.log(rows), np.log(seconds), 1)[0]):.2f}"


def markdown(study: Study) -> str:
    """A line for each measurement, and exponents of time over rows."""
    found = [result for result in study.records.values() if "fit" in result]
    found.sort(key=lambda r: (r["device"], r["dtype"], r["fit_rows"] != r["rows"], r["model"] != "ssgp", r["rows"]))
    rows, groups = [], {}
    for result in found:
        f, p, machine = result["fit"], result["predict"], result["machine"]
        where = machine["gpu"] if result["device"] == "cuda" else f"{machine['cores']} cores"
        name = MODELS[result["model"]] + (f", {result['steps']} steps" if result["steps"] else "")
        sizes = [f"{f['rows']:,}", f"{p['rows']:,}"]
        networks = f"{f['phases']['networks']:,.1f}" if "networks" in f["phases"] else ""
        rows.append(
            [
                f"{where}, {result['dtype']}",
                name,
                *sizes,
                f"{f['seconds']:,.1f}",
                f"{f['waiting_seconds'] / f['seconds']:.1%}",
                networks,
                f"{f['peak_bytes_above_libraries'] / 1e6:,.0f}",
                f"{p['seconds']:,.1f}",
                f"{p['peak_bytes_in_all'] / 1e6:,.0f}",
            ]
        )
        if result["fit_rows"] >= result["rows"]:
            groups.setdefault((f"{where}, {result['dtype']}", name), []).append(result)
    header = ["device", "model", "rows of the fit", "rows predicted", "fit, s", "waiting", "networks, s"]
    header += ["fit memory above libraries, MB", "predict, s", "predict memory in all, MB"]
    powers = [[*key, exponent(each, "fit"), exponent(each, "predict")] for key, each in groups.items() if len(each) > 1]
    return "\n".join(
        [
            "# Time and memory against the number of rows",
            "",
            f"The simulated gas array, 18 inputs, {P} frequencies, streamed from Parquet files.",
            "",
            markdown_table(header, rows),
            "",
            "Exponents of time over rows:",
            "",
            markdown_table(["device", "model", "fit", "predict"], powers),
            "",
        ]
    )


SCALE = Experiment(
    kind="scale",
    summary="time and memory of fit and predict against the number of rows",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
