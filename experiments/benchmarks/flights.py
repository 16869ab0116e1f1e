"""Three million flights: our fits against GPyTorch's SVGP and against xGPR, side by side in one job.

All get the same 90% of the rows, standardised, in float32, on the same cores or the same GPU. SVGP has inducing points
started at training rows, ARD RBF kernel, batches of 4,096 and Adam at 0.01. ``--default`` adds PrismGPRegressor as it
comes, with 32 frequencies; ``--xgpr`` xGPR as the comparison has it, with so many features, in float64, which is what
its reader of arrays wants. Memory is the peak of a part: of main memory above what there was before it, and of the
GPU's. On a GPU the time of our fit is also set against what operations and memory traffic allow.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from experiments.comparison.entries import LIBRARIES
from experiments.comparison.peers import explain_absence
from experiments.internals import (
    ArraySource,
    Chunks,
    SpectralEvidence,
    auto_chunk_rows,
    default_start,
    evaluate_evidence,
    fit_standardiser,
)
from experiments.jobs import Job
from experiments.machine import peak_bytes, reset_peak
from experiments.page import markdown_table
from experiments.plan import Experiment, Plan, add_run_options, positive, say
from experiments.results import Record, Study
from experiments.scores import score
from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.datasets import data_folder
from prismgp.exceptions import DataError

__all__ = ["FLIGHTS"]

P, DEFAULT_P = 64, 32
FILE = "flights.parquet"
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def load() -> Rows:
    folder = data_folder()
    assert folder is not None
    frame = pq.read_table(folder / FILE).to_pandas()
    y = frame.pop("delay").to_numpy(np.float32)
    x = frame.to_numpy(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: len(y) // 10], order[len(y) // 10 :]
    return x[train], y[train], x[test], y[test]


class Memory:
    """The peak of what follows."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._before = reset_peak()
        if self._cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def __call__(self) -> dict[str, int | None]:
        gpu = int(torch.cuda.max_memory_allocated()) if self._cuda else None
        return {"peak_bytes": peak_bytes() - self._before, "gpu_peak_bytes": gpu}


def ours(rows: Rows, device: str, dtype: str) -> Record:
    x, y, x_test, y_test = rows
    model = SSGPRegressor(P, dtype=dtype, device=device, random_state=0)
    memory = Memory(device)
    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began
    peak = memory()
    mean, std = model.predict(x_test, return_std=True)
    stages = model.fit_status_["stages"]
    phases: dict[str, float] = {}
    for stage in stages:
        phases[stage["method"]] = phases.get(stage["method"], 0.0) + stage["seconds"]
    phases["reading, checking, standardising, posterior"] = seconds - sum(phases.values())
    found = score(y_test, mean, std, float(y.std()))
    full_passes = sum(stage["evaluations"] for stage in stages if stage["rows"] == len(y))
    return {"seconds": seconds, **peak, "phases": phases, "full_evaluations": full_passes, **found}


def default_model(rows: Rows, device: str) -> Record:
    x, y, x_test, y_test = rows
    model = PrismGPRegressor(DEFAULT_P, dtype="float32", device=device, random_state=0)
    memory = Memory(device)
    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began
    peak = memory()
    mean, std = model.predict(x_test, return_std=True)
    scale = float(y.std(dtype=np.float64))
    found = score(y_test, mean, std, scale)
    found["nlpd_mixture"] = float(-np.mean(model.log_density(x_test, y_test)) - np.log(scale))
    return {"seconds": seconds, **peak, "weights": model.fit_status_["weights"], **found}


def xgpr(rows: Rows, device: str, features: int) -> Record:
    from experiments.comparison.peers.xgpr_features import fit_xgpr  # the xgpr extra

    x, y, x_test, y_test = (each.astype(np.float64) for each in rows)
    shift, scale, mean_y, std_y = x.mean(0), x.std(0), y.mean(), y.std()
    x, x_test = ((each - shift) / scale for each in (x, x_test))
    y, y_test = ((each - mean_y) / std_y for each in (y, y_test))
    memory = Memory("cpu")
    began = time.perf_counter()
    fitted = fit_xgpr(x, y, seed=0, features=features, device=device)
    seconds = time.perf_counter() - began
    peak = memory()
    if device == "cuda":
        import cupy  # comes with xGPR on a GPU

        peak["gpu_peak_bytes"] = int(cupy.get_default_memory_pool().total_bytes())
    mean, std = fitted.predict(x_test)
    found = {"seconds": seconds, **peak, "features": features, **score(y_test, mean, std, 1.0)}
    found["std_corrected"] = score(y_test, *fitted.variants(mean, std)["corrected"], 1.0)
    return found


def svgp_epochs(rows: Rows, device: str, m: int, epochs: int) -> Record:
    import gpytorch  # the compare extra

    x, y, x_test, y_test = rows
    shift, scale = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    mean_y, std_y = float(y.mean(dtype=np.float64)), float(y.std(dtype=np.float64))

    def tensor(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    train_x, test_x = tensor((x - shift) / scale), tensor((x_test - shift) / scale)
    train_y = tensor((y - mean_y) / std_y)

    class SVGP(gpytorch.models.ApproximateGP):
        def __init__(self, inducing: torch.Tensor) -> None:
            q = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, q, learn_inducing_locations=True))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1]))

        def forward(self, inputs: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    memory = Memory(device)
    torch.manual_seed(0)
    model = SVGP(train_x[torch.randperm(len(train_x))[:m]].clone()).to(device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, len(train_y))
    optimiser = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    began = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.randperm(len(train_y)).split(4096):
            rows_of = batch.to(device)
            optimiser.zero_grad()
            loss = -objective(model(train_x[rows_of]), train_y[rows_of])
            loss.backward()
            optimiser.step()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    peak = memory()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(part)) for part in test_x.split(16_384)]
        mean = torch.cat([part.mean for part in parts]).cpu().numpy() * std_y + mean_y
        std = torch.cat([part.stddev for part in parts]).cpu().numpy() * std_y
    found = score(y_test, mean, std, std_y)
    return {"seconds": seconds, **peak, "inducing": m, "epochs": epochs, **found}


def against_hardware(rows: Rows, dtype: str) -> Record:
    """One evidence-and-gradient evaluation on the GPU, over the larger of its arithmetic and its traffic.

    Ceilings are measured here: a large matrix product of the same precision, and a device copy.
    """
    x, y = rows[0], rows[1][:, None]
    device, kind = torch.device("cuda"), getattr(torch, dtype)
    source = ArraySource(x, y)
    chunk_rows = auto_chunk_rows(P, x.shape[1], 1, dtype=kind, device=device)
    chunks = Chunks(source, fit_standardiser(source, normalize=True), rows=chunk_rows, dtype=kind, device=device)
    objective = SpectralEvidence(chunks, np.random.default_rng(0).standard_normal((P, x.shape[1])))
    start = default_start(x.shape[1], 1)

    def seconds_of(run: Any, repeats: int = 10) -> float:
        run()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / repeats

    def evaluate() -> None:
        evaluate_evidence(objective, start)

    seconds = seconds_of(evaluate)
    square = torch.randn(8192, 8192, dtype=kind, device=device)
    flop_rate = 2 * 8192**3 / seconds_of(lambda: square @ square)
    copy_rate = 2 * square.numel() * square.element_size() / seconds_of(lambda: square.clone())
    n, d = x.shape
    flops = n * (2 * 3 * d * P + 2 * 2 * (2 * P + 2) ** 2)
    # Per row: inputs read in both passes; phases, features and their gradient written once and read as often as used.
    numbers = 3 * (d + 1) + (2 * P + 2 * P + 2 * P) + (2 * P + 2 * P + 2 * P + 2 * P + 2 * P + 3 * P + P)
    traffic = n * numbers * square.element_size()
    least = max(flops / flop_rate, traffic / copy_rate)
    return {
        "seconds": seconds,
        "flops": flops,
        "bytes": traffic,
        "flop_rate": flop_rate,
        "copy_rate": copy_rate,
        "ratio": seconds / least,
    }


def measure(order: Record) -> Record:
    """Fit all models in turn."""
    rows, device = load(), order["device"]
    result: Record = {"rows": len(rows[1]), "p": P}
    if device == "cuda":
        ours(rows, device, "float32")  # the first use of a GPU loads its libraries
        result["ssgp_float64"] = ours(rows, device, "float64")
        result["hardware"] = {dtype: against_hardware(rows, dtype) for dtype in ("float32", "float64")}
    # Ours before and after theirs, so that a drift of the machine's speed affects both.
    runs = [ours(rows, device, "float32") for _ in range(order["repeats"] - 1)]
    svgp = svgp_epochs(rows, device, order["inducing"], order["epochs"]) if order["inducing"] else None
    runs.append(ours(rows, device, "float32"))
    result |= {"ssgp": runs, "svgp_epoch": svgp}
    if order["default"]:
        result["default"] = default_model(rows, device)
    if order["xgpr"]:
        result["xgpr"] = xgpr(rows, device, order["xgpr"])
    if svgp is not None:
        result["time_ratio"] = float(np.median([run["seconds"] for run in runs])) / svgp["seconds"]
        result["rmse_ratio"] = runs[0]["rmse"] / svgp["rmse"]
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on."""
    parser.add_argument("--repeats", type=positive, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--no-svgp", action="store_true", help="without GPyTorch")
    parser.add_argument("--inducing", type=positive, default=512, metavar="M", help="default: %(default)s")
    parser.add_argument("--epochs", type=positive, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--default", action="store_true", help="also fit PrismGPRegressor")
    parser.add_argument("--xgpr", type=positive, metavar="FEATURES", help="also fit xGPR")
    parser.add_argument("--name", help="of the result (default: the device)")
    add_run_options(parser)


def make_plan(args: argparse.Namespace) -> Plan:
    """One job; libraries that are not installed are left out with a line that says so."""
    absent = {name: explain_absence(LIBRARIES[name]) for name in ("gpytorch", "xgpr")}
    wanted = {"gpytorch": not args.no_svgp, "xgpr": bool(args.xgpr)}
    if not args.list:
        folder = data_folder()
        if folder is None or not (folder / FILE).is_file():
            raise DataError(f"the flights data are absent: set PRISMGP_DATA to the folder that holds {FILE}")
        for name, why in absent.items():
            if why is not None and wanted[name]:
                say(f"left out: {why}")
    order = {
        "device": args.device,
        "repeats": args.repeats,
        "inducing": args.inducing if wanted["gpytorch"] and absent["gpytorch"] is None else None,
        "epochs": args.epochs,
        "default": args.default,
        "xgpr": args.xgpr if absent["xgpr"] is None else None,
    }
    return Plan("flights", [Job(args.name or args.device, f"{__name__}:measure", order, 8 * 2**30)])


def describe(result: Record) -> str:
    """A few words about a result."""
    return "; ".join(f"{name} {each['seconds']:.1f} s, RMSE {each['rmse']:.4f}" for name, each in _parts(result))


def _parts(result: Record) -> list[tuple[str, Record]]:
    """Every model that was fitted; of our repeated fits the first, with the median of their times."""
    seconds = float(np.median([run["seconds"] for run in result["ssgp"]]))
    found = [(f"`SSGPRegressor`, p = {P}", {**result["ssgp"][0], "seconds": seconds})]
    if result.get("default"):
        found.append((f"`PrismGPRegressor`, p = {DEFAULT_P}", result["default"]))
    if svgp := result.get("svgp_epoch"):
        m, epochs = svgp.get("inducing", 512), svgp.get("epochs", 1)
        found.append((f"GPyTorch SVGP, {m:,} inducing points, {epochs} epoch{'s' if epochs > 1 else ''}", svgp))
    if other := result.get("xgpr"):
        found.append((f"xGPR, {other['features']:,} features, std as returned", other))
        found.append((f"xGPR, {other['features']:,} features, std corrected", {**other, **other["std_corrected"]}))
    return found


def markdown(study: Study) -> str:
    """One line for each model and run."""
    rows = []
    for key, result in study.records.items():
        machine = result["machine"]
        where = machine["gpu"] if result["device"] == "cuda" else f"{machine['cores']} cores"
        for name, each in _parts(result) if "failed" not in result else ():
            scores = [f"{each['rmse']:.4f}", f"{each['nlpd']:.4f}", f"{each['coverage']:.1%}"]
            memory = [f"{each[peak] / 1e6:,.0f}" if each.get(peak) else "" for peak in ("peak_bytes", "gpu_peak_bytes")]
            rows.append([key, name, where, f"{each['seconds']:.1f}", *scores, *memory])
    header = ["run", "model", "device", "fit, s", "RMSE", "NLPD", "95% intervals cover", "memory, MB", "GPU memory, MB"]
    return f"# Three million flights\n\nRows for training: 2,698,944.\n\n{markdown_table(header, rows)}\n"


FLIGHTS = Experiment(
    kind="flights",
    summary="2.7 million flights: our fits, GPyTorch's SVGP and xGPR",
    add_options=add_options,
    make_plan=make_plan,
    describe=describe,
    markdown=markdown,
)
