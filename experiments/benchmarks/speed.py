"""Speed of the parts: evidence and gradient of the SSGP, training steps of PrismGP, whole fits.

ratio     one evidence-and-gradient evaluation (n = 500,000, d = 18, p = 64) over the bare torch products,
          cos and sin of the same operation count, both measured in turns
scaling   exponent of its time in n, from 100,000 to 2,000,000 rows
memory    peak memory of a process above its data during a whole fit, for growing n
step      a training step of PrismGP's four members against four times the bare minimum of one, in turns: network
          forward, backward and update by Adam, and the Gram product of the gated features with its gradient
member    fit of one member, p = 32, on kin40k
ensemble  the default fit, p = 32, against the exact GP, on the same 10,000 rows of kin40k
start     processor time of commands on a small model and a few rows, and of importing torch alone, in turns
"""

from __future__ import annotations

import argparse
import copy
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from scipy.stats import trim_mean

from experiments.benchmarks.suite import load_split
from experiments.internals import (
    ArraySource,
    Chunks,
    Member,
    MemberSettings,
    MemberTraining,
    NetworkSizes,
    RevisedMap,
    SpectralEvidence,
    Streams,
    auto_chunk_rows,
    default_start,
    draw_frequencies,
    evaluate_evidence,
    fit_standardiser,
    get_kernel,
    hash_inputs,
    held_out_rows,
    open_rows,
    torch_generator,
)
from experiments.jobs import Job
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, known_names, parse_names
from experiments.results import Record, Study
from experiments.scores import score
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = ["SPEED"]

D, P, PRISM_P = 18, 64, 32
REPEATS, ROUNDS = 9, 80
MEMORY_ROWS = (100_000, 500_000, 2_000_000)
PARTS = ("ratio", "scaling", "memory", "step", "member", "ensemble", "start")


# -- evidence and gradient -------------------------------------------------------------------------


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
        fit_standardiser(source, normalize=True),
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
        return evaluate_evidence(objective, start)

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


def time_call(function: Callable[[], object], device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def ratio(order: Record) -> Record:
    """Seconds of an evaluation and of the bare operations, for both precisions."""
    device, rows = order["device"], []
    for dtype in ("float32", "float64"):
        ours, theirs = (make(500_000, dtype, torch.device(device)) for make in (evidence, bare))
        pairs = [(time_call(ours, device), time_call(theirs, device)) for _ in range(REPEATS + 1)][1:]
        mine, base = (float(np.median(column)) for column in zip(*pairs, strict=True))
        middle = float(np.median([a / b for a, b in pairs]))
        rows.append({"dtype": dtype, "seconds": mine, "bare_seconds": base, "ratio": middle})
    return {"d": D, "p": P, "ratios": rows}


def scaling(order: Record) -> Record:
    """The exponent of the time of an evaluation in the number of rows."""
    device, sizes = order["device"], [100_000, 200_000, 500_000, 1_000_000, 2_000_000]
    runs = [evidence(n, "float32", torch.device(device)) for n in sizes]
    rounds = [[time_call(run, device) for run in runs] for _ in range(6)][1:]
    seconds = np.median(rounds, axis=0)
    exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
    return {"d": D, "p": P, "rows": sizes, "seconds": seconds.tolist(), "exponent": exponent}


def memory(order: Record) -> Record:
    """The peak of this process above data and libraries during a fit."""
    x, y = make_rows(order["rows"], "float32")
    # Resident now, against the highest ever: what the libraries load on first use counts as ours.
    base = process_status("VmRSS")
    SSGPRegressor(P, dtype="float32", random_state=0, max_iter=30).fit(x, y[:, 0])
    return {"d": D, "p": P, "peak_above_data_mb": process_status("VmHWM") - base}


def process_status(name: str) -> float:
    """An entry of the process's memory statistics, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


# -- PrismGP ---------------------------------------------------------------------------------------


def step(order: Record) -> Record:
    """Mean milliseconds of a training step and of the bare minimum, both for one member of four, and their ratio."""
    device = order["device"]
    x, y, _, _ = load_split("kin40k", 0)
    source = ArraySource(x, y[:, None])
    s = fit_standardiser(source, normalize=True)
    streams = Streams(0)
    d = x.shape[1]
    members = []
    for number, (noise, dropout) in enumerate((("input", 0.0), ("constant", 0.0), ("input", 0.05), ("input", 0.0))):
        own = Streams(number)
        sizes = NetworkSizes(d, 1, PRISM_P, 8, (128, 128), 8, "soft", noise)
        drawn = draw_frequencies(get_kernel("rbf"), PRISM_P, 8 + d, "orthogonal", own.generator("frequencies"))
        network = RevisedMap(sizes, default_start(d, 1), drawn, torch_generator(own, "network")).to(device)
        members.append(Member(network, drawn, dropout, own))
    held_out = held_out_rows(hash_inputs(source), 0.1, 10_000, streams.generator("held-out"))
    settings = MemberSettings(8.0, 1.2, 1e-3, 504, 1_000, 1_000, None, True)
    step_rows = len(members) * settings.batch_size
    rows = open_rows(source, s, held_out, torch.device(device), step_rows=step_rows)
    loop = MemberTraining(members, rows, settings)
    batch = rows.read(rows.draw(settings.batch_size, streams.generator("batch"))).x

    member = members[0].network
    update = torch.optim.AdamW(copy.deepcopy(member).parameters(), lr=1e-3, fused=True)
    twin = update.param_groups[0]["params"]

    def bare() -> None:
        for _ in members:
            phi = member(batch).features()
            gram = phi.T @ phi
            member.zero_grad(set_to_none=True)
            gram.backward(gram.detach())
            for own, trained in zip(twin, member.parameters(), strict=True):
                own.grad = trained.grad  # the member itself must stay as it is
            update.step()

    number = iter(range(1, 10_000))
    for _ in range(8):
        loop.step(next(number))
        bare()
    pairs = [(time_call(lambda: loop.step(next(number)), device), time_call(bare, device)) for _ in range(ROUNDS)]
    # Trimmed means, not medians: one step in eight is longer and must count; the extremes are the machine's.
    ours, least = (1e3 * float(trim_mean([pair[k] for pair in pairs], 0.1)) / len(members) for k in (0, 1))
    return {"step_ms": ours, "bare_ms": least, "ratio": ours / least, "batch": settings.batch_size, "p": PRISM_P}


def member(order: Record) -> Record:
    """Seconds of one member on kin40k, and its accuracy."""
    device = order["device"]
    x, y, x_test, y_test = load_split("kin40k", 0)
    model = PrismGPRegressor(PRISM_P, n_members=1, device=device, random_state=0)
    seconds = time_call(lambda: model.fit(x, y), device)
    found = score(y_test, *model.predict(x_test, return_std=True), float(y.std()))
    return {"rows": len(y), "seconds": seconds, "steps": model.n_iter_, **found}


def ensemble(order: Record) -> Record:
    """Seconds of the default fit and of the exact GP on the same rows of kin40k."""
    device = order["device"]
    x, y, x_test, y_test = load_split("kin40k", 0)
    some = np.random.default_rng(0).choice(len(y), 10_000, replace=False)
    found: Record = {"rows": len(some)}
    for name, model in (
        ("prism", PrismGPRegressor(PRISM_P, device=device, random_state=0)),
        ("exact", ExactGPRegressor(device=device, random_state=0)),
    ):
        seconds = time_call(lambda model=model: model.fit(x[some], y[some]), device)
        scores = score(y_test, *model.predict(x_test, return_std=True), float(y[some].std()))
        found[name] = {"seconds": seconds, **scores}
    found["ratio"] = found["prism"]["seconds"] / found["exact"]["seconds"]
    return found


# -- the command line ------------------------------------------------------------------------------


def start(order: Record) -> Record:  # noqa: ARG001
    """Processor seconds of processes of their own, medians."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((300, 4)), columns=list("abcd")).assign(e=rng.choice(["u", "v"], 300))
    with TemporaryDirectory() as folder:
        table.head(5).to_csv(f"{folder}/rows.csv", index=False)
        SSGPRegressor(16, max_iter=5, random_state=0).fit(table, np.sin(table["a"])).save(f"{folder}/model.prism")
        predict = ["predict", f"{folder}/model.prism", f"{folder}/rows.csv", "-o", f"{folder}/out.csv", "-q"]
        commands = {
            "import torch": ["-c", "import torch"],
            "info": ["-m", "prismgp", "info", f"{folder}/model.prism"],
            "predict": ["-m", "prismgp", *predict],
        }
        rounds = [{name: processor_seconds(each) for name, each in commands.items()} for _ in range(REPEATS + 1)][1:]
    return {name: float(np.median([each[name] for each in rounds])) for name in commands}


def processor_seconds(arguments: list[str]) -> float:
    """User and system time of Python with these arguments, on one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# -- plan and tables -------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument(
        "--parts", type=parse_names, default=list(PARTS), metavar="A,B", help=f"default: {','.join(PARTS)}"
    )
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job for each part; those of memory, one for each number of rows, and of the start are for the CPU alone."""
    jobs = []
    for part in known_names(args.parts, PARTS, "--parts"):
        orders = [{"part": part, "device": args.device}]
        if part == "memory":
            orders = [{**orders[0], "rows": n} for n in MEMORY_ROWS]
        if part in ("memory", "start") and args.device != "cpu":
            orders = []
        for order in orders:
            size = f"-{order['rows']}" if "rows" in order else ""
            jobs.append(Job(f"{part}-{args.device}{size}", f"{__name__}:{part}", order, 2 * 2**30))
    return Plan("speed", jobs)


def describe(result: Record) -> str:
    """A few words about a result."""
    part = result["part"]
    if part == "ratio":
        return ", ".join(f"{row['dtype']} {row['ratio']:.2f} times the bare operations" for row in result["ratios"])
    if part == "scaling":
        return f"exponent {result['exponent']:.3f}"
    if part == "memory":
        return f"{result['peak_above_data_mb']:.0f} MB above {result['rows']:,} rows"
    if part == "step":
        return f"{result['step_ms']:.1f} ms for each member, {result['ratio']:.2f} times the bare minimum"
    if part == "member":
        return f"{result['seconds']:.1f} s, RMSE {result['rmse']:.4f}, NLPD {result['nlpd']:.4f}"
    if part == "start":
        return ", ".join(f"{name} {result[name]:.2f} s" for name in ("import torch", "info", "predict"))
    times = (f"{name} {result[name]['seconds']:.1f} s" for name in ("prism", "exact"))
    return f"{', '.join(times)}, ratio {result['ratio']:.2f}"


def _place(result: Record) -> tuple[int, str, int]:
    rows = result["rows"] if result["part"] == "memory" else 0
    return PARTS.index(result["part"]), result["device"], rows


def markdown(study: Study) -> str:
    """One line for each measurement."""
    rows = [
        [result["part"], result["device"], describe(result), result["commit"] or "not recorded"]
        for result in sorted(study.records.values(), key=_place)
        if "failed" not in result
    ]
    return f"# Speed of the parts\n\n{markdown_table(['part', 'device', 'measured', 'commit'], rows)}\n"


SPEED = Experiment(
    kind="speed",
    summary="speed and memory of evidence, training steps and fits",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
