"""Cost of the evidence and its gradient: against the bare operations, in the number of rows, and in memory.

    python benchmarks/speed.py [--device cuda] [--only ratio,scaling,memory]

ratio    one evidence-and-gradient evaluation (n = 500,000, d = 18, p = 64) over the bare torch products,
         cos and sin of the same operation count, both measured in turns
scaling  exponent of its time in n, from 100,000 to 2,000,000 rows
memory   peak memory of a process above its data during a whole fit, for growing n
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from _common import write_result

from prismgp.core.evidence import SpectralEvidence
from prismgp.core.parameters import default_start
from prismgp.data import ArraySource, Chunks, Standardiser, auto_chunk_rows

D, P = 18, 64


def make_rows(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows made block by block, so that making them needs no memory beyond their own."""
    rng = np.random.default_rng(0)
    x = np.empty((n, D), dtype=dtype)
    y = np.empty((n, 1), dtype=dtype)
    for start in range(0, n, 65_536):
        block = rng.standard_normal((min(65_536, n - start), D))
        x[start : start + 65_536] = block
        y[start : start + 65_536, 0] = np.sin(block[:, 0]) + 0.1 * rng.standard_normal(len(block))
    return x, y


def evidence(n: int, dtype: str, device: torch.device) -> Callable[[], object]:
    """Our evaluation, from the user's raw array."""
    source = ArraySource(*make_rows(n, dtype))
    torch_dtype = getattr(torch, dtype)
    chunks = Chunks(
        source,
        Standardiser.fit(source, normalize=True),
        rows=auto_chunk_rows(P, D, 1, dtype=torch_dtype, device=device),
        dtype=torch_dtype,
        device=device,
    )
    objective = SpectralEvidence(chunks, np.random.default_rng(1).standard_normal((P, D)))
    start = default_start(D, 1)
    if dtype == "float32":
        # At a ratio of signal to noise of one, as in noisy data, float32 products are good enough.
        start = replace(start, log_noise=start.log_signal)

    def run() -> object:
        objective._kept.clear()  # every run is a full evaluation
        return objective.value_and_gradient(start)

    return run


def bare(n: int, dtype: str, device: torch.device) -> Callable[[], None]:
    """The same products, cos and sin on tensors that are ready: the least any implementation does."""
    torch_dtype = getattr(torch, dtype)
    rows = auto_chunk_rows(P, D, 1, dtype=torch_dtype, device=device)
    x = torch.randn(n, D, dtype=torch_dtype, device=device)
    w = torch.randn(D, P, dtype=torch_dtype, device=device)
    m = torch.randn(2 * P, 2 * P, dtype=torch_dtype, device=device)
    psi, d_phi = (torch.empty(rows, 2 * P, dtype=torch_dtype, device=device) for _ in range(2))
    z = torch.empty(rows, P, dtype=torch_dtype, device=device)

    def features(chunk: torch.Tensor) -> torch.Tensor:
        k = len(chunk)
        torch.mm(chunk, w, out=z[:k])
        torch.cos(z[:k], out=psi[:k, :P])
        torch.sin(z[:k], out=psi[:k, P:])
        return psi[:k]

    def run() -> None:
        for chunk in x.split(rows):
            phi = features(chunk)
            phi.T @ phi
        for chunk in x.split(rows):
            torch.mm(features(chunk), m, out=d_phi[: len(chunk)])
            chunk.T @ z[: len(chunk)]

    return run


def timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def ratio(device: torch.device, repeats: int = 9) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    for dtype in ("float32", "float64"):
        ours, theirs = evidence(500_000, dtype, device), bare(500_000, dtype, device)
        pairs = [(timed(ours, device), timed(theirs, device)) for _ in range(repeats + 1)][1:]
        mine, base = (float(np.median(column)) for column in zip(*pairs, strict=True))
        middle = float(np.median([a / b for a, b in pairs]))
        results.append({"dtype": dtype, "seconds": mine, "bare_seconds": base, "ratio": middle})
        print(f"ratio   {dtype}: evidence and gradient {mine:.3f} s, bare {base:.3f} s, median ratio {middle:.2f}")
    return results


def scaling(device: torch.device) -> dict[str, object]:
    sizes = [100_000, 200_000, 500_000, 1_000_000, 2_000_000]
    runs = [evidence(n, "float32", device) for n in sizes]
    rounds = [[timed(run, device) for run in runs] for _ in range(6)][1:]
    seconds = np.median(rounds, axis=0)
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    times = ", ".join(f"{n:,}: {s:.3f} s" for n, s in zip(sizes, seconds, strict=True))
    print(f"scaling exponent {exponent:.3f} ({times})")
    return {"rows": sizes, "seconds": seconds.tolist(), "exponent": exponent}


def memory_of_fit(n: int) -> None:
    """Run in a process of its own: prints the peak above data and libraries, in MB."""
    from prismgp import SSGPRegressor

    x, y = make_rows(n, "float32")
    # Resident now, against the highest ever: what the libraries load on first use counts as ours.
    base = process_status("VmRSS")
    SSGPRegressor(P, dtype="float32", random_state=0, max_iter=30).fit(x, y[:, 0])
    print(process_status("VmHWM") - base)


def process_status(name: str) -> float:
    """An entry of the process's memory statistics, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def memory() -> list[dict[str, float]]:
    results = []
    for n in (100_000, 500_000, 2_000_000):
        command = [sys.executable, os.path.abspath(__file__), "--memory-of", str(n)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        results.append({"rows": n, "peak_above_data_mb": float(out)})
        print(f"memory  {n:,} rows ({n * (D + 1) * 4 / 1e6:.0f} MB of data): peak above the data {float(out):.0f} MB")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="ratio,scaling,memory")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        memory_of_fit(args.memory_of)
        return
    device = torch.device(args.device)
    parts = args.only.split(",")
    result: dict[str, object] = {"d": D, "p": P, "device": args.device}
    if "ratio" in parts:
        result["ratio"] = ratio(device)
    if "scaling" in parts:
        result["scaling"] = scaling(device)
    if "memory" in parts and device.type == "cpu":
        result["memory"] = memory()
    print(f"written to {write_result(f'speed_{device.type}', result)}")


if __name__ == "__main__":
    main()
