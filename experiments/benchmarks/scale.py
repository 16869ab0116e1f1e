"""Time and memory of fit and predict against the number of rows, streamed from Parquet files.

    python benchmarks/scale.py [--rows 100000,1000000,10000000] [--models ssgp,prism] [--device cuda] [--folder DIR]
    python benchmarks/scale.py --rows 10000000 --fit-rows 200000 --steps 100 --name scale_cpu_predict

The second command measures predictions alone, of models whose fits are short; of them nothing is said.

The simulated gas array, 18 inputs, is written to a folder once. Every fit runs in a process of its own, from the files,
and so does every prediction, through the command line; the peak of memory is that of the process less what the
libraries take. "Waiting" is the time a pass stood still because the next rows were not there yet.
Results: results/scale_DEVICE.json, with the exponent of time over the sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import write_result

from prismgp._memory import peak_bytes
from prismgp.datasets import write_gas_sensor

P = 64
TARGET = "CO (ppm)"
ROWS_PER_FILE = 1_000_000


def write_rows(folder: Path, n: int) -> Path:
    """The files with n rows, written if they are not there."""
    path = folder / f"gas-{n}"
    if not path.exists():
        began = time.perf_counter()
        write_gas_sensor(path, n, n_files=max(1, n // ROWS_PER_FILE))
        print(f"wrote {n:,} rows in {time.perf_counter() - began:.0f} s", flush=True)
    return path


# -- one fit, in a process of its own ------------------------------------------------------------


class Waiting:
    """Counts the seconds a consumer of blocks waits for them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, prefetch: Any) -> Any:
        def watched(blocks: Iterator[Any], *args: Any) -> Iterator[Any]:
            items = prefetch(blocks, *args)
            while True:
                began = time.perf_counter()
                item = next(items, None)
                self.seconds += time.perf_counter() - began
                if item is None:
                    return
                yield item

        return watched


def fit(order: dict[str, Any]) -> dict[str, Any]:
    import prismgp.data.chunks as chunks
    from prismgp import PrismGPRegressor, SSGPRegressor
    from prismgp.data import from_parquet

    waiting = Waiting()
    chunks.prefetch = waiting.watch(chunks.prefetch)
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
    source = from_parquet(order["fit_path"], target=TARGET)
    model.fit(source)
    if order["device"] == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    phases: dict[str, float] = {}
    for stage in model.fit_status_["stages"]:
        phases[stage["method"]] = phases.get(stage["method"], 0.0) + stage["seconds"]
    if order["model"] == "prism":
        members = np.array(model.history_["member"])
        ends = np.array(model.history_["seconds"])
        phases["networks"] = float(sum(ends[members == k].max() for k in np.unique(members)))
    phases["statistics of columns, sampling, passes over all rows at the end"] = seconds - sum(phases.values())
    model.save(order["model_file"])
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
from prismgp._memory import peak_bytes
print(code, seconds, peak_bytes())
"""


def predict(order: dict[str, Any]) -> dict[str, Any]:
    out = Path(order["model_file"]).with_suffix(".parquet")
    words = ["predict", order["model_file"], order["path"], "-o", str(out), "-q", "--device", order["device"]]
    code, seconds, peak = python("-c", PREDICT, *words).split()
    if code != "0":
        raise SystemExit(int(code))
    out.unlink()
    return {"seconds": float(seconds), "peak_bytes_in_all": int(peak)}


def python(*words: str) -> str:
    """What a process of its own prints in its last line."""
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def exponent(results: list[dict[str, Any]], what: str) -> float | None:
    """Of the time over the rows, from the smallest size of at least 100,000 rows to the largest."""
    if len(results) < 2:
        return None
    rows, seconds = ([float(r[what][key]) for r in results] for key in ("rows", "seconds"))
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="100000,1000000,10000000")
    parser.add_argument("--models", default="ssgp,prism")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--fit-rows", type=int, help="of every fit; default: as many as are predicted")
    parser.add_argument("--steps", type=int, help="of PrismGP's networks; default: its own")
    parser.add_argument("--folder", type=Path, help="of the files; default: a temporary one")
    parser.add_argument("--name", help="of the result; default: scale_DEVICE")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        print(json.dumps(fit(json.loads(args.fit))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = {"p": P, "device": args.device, "dtype": args.dtype, "models": {}}
        for model in args.models.split(","):
            results = []
            for n in map(int, args.rows.split(",")):
                order = {
                    "model": model,
                    "path": str(write_rows(folder, n)),
                    "fit_path": str(write_rows(folder, args.fit_rows or n)),
                    "steps": args.steps,
                    "model_file": str(Path(temporary) / "model.prism"),
                    "device": args.device,
                    "dtype": args.dtype,
                }
                fitted = json.loads(python(__file__, "--fit", json.dumps(order)))
                result = {"fit": fitted, "predict": predict(order)}
                result["predict"]["rows"] = n
                results.append(result)
                f, p = result["fit"], result["predict"]
                print(
                    f"{model} {n:>10,} rows: fit {f['seconds']:.1f} s, {f['peak_bytes_above_libraries'] / 1e6:.0f} MB, "
                    f"waiting for rows {f['waiting_seconds'] / f['seconds']:.1%}; predict {p['seconds']:.1f} s, "
                    f"{p['peak_bytes_in_all'] / 1e6:.0f} MB in all",
                    flush=True,
                )
            exponents = {what: exponent(results, what) for what in ("fit", "predict")}
            print(f"{model}: exponents {exponents}")
            found["models"][model] = {"results": results, "exponents": exponents, "cores": os.cpu_count()}
    print(f"written: {write_result(args.name or f'scale_{args.device}', found)}")


if __name__ == "__main__":
    main()
