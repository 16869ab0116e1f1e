"""Three million flights: our fits against some epochs of GPyTorch's SVGP and against xGPR, side by side in one run.

    python benchmarks/flights.py [--device cuda] [--repeats 3] [--inducing 512] [--epochs 1] [--default] [--xgpr 2048]

All get the same 90% of the rows, standardised, in float32, on the same cores or the same GPU. SVGP has
inducing points started at training rows, ARD RBF kernel, batches of 4,096 and Adam at 0.01. ``--default`` adds
PrismGPRegressor as it comes, with 32 frequencies; ``--xgpr`` xGPR as `prismgp bench` has it, with so many features, in
float64, which is what its reader of arrays wants. Memory is the peak of a part: of main memory above what there was
before it, and of the GPU's.
On a GPU the time of our fit is also set against what operations and memory traffic allow.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from _common import data_folder, scores, write_result

from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp._memory import peak_bytes, reset_peak
from prismgp.core.evidence import SpectralEvidence
from prismgp.core.parameters import default_start
from prismgp.data import ArraySource, Chunks, Standardiser, auto_chunk_rows

P = 64
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def load() -> Rows:
    folder = data_folder()
    if folder is None:
        raise SystemExit("the flights data is absent: set PRISMGP_DATA to the folder that holds flights.parquet")
    frame = pq.read_table(folder / "flights.parquet").to_pandas()
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


def ours(rows: Rows, device: str, dtype: str) -> dict[str, Any]:
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
    score = scores(y_test, mean, std, float(y.std()))
    shares = ", ".join(f"{name} {value:.2f} s" for name, value in phases.items())
    print(
        f"SSGP p={P} {dtype} {device}: {seconds:.1f} s, RMSE {score['rmse']:.4f}, NLPD {score['nlpd']:.4f} ({shares})"
    )
    full_passes = sum(stage["evaluations"] for stage in stages if stage["rows"] == len(y))
    return {"seconds": seconds, **peak, "phases": phases, "full_evaluations": full_passes, **score}


def default_model(rows: Rows, device: str) -> dict[str, Any]:
    x, y, x_test, y_test = rows
    model = PrismGPRegressor(32, dtype="float32", device=device, random_state=0)
    memory = Memory(device)
    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began
    peak = memory()
    mean, std = model.predict(x_test, return_std=True)
    scale = float(y.std(dtype=np.float64))
    score = scores(y_test, mean, std, scale)
    score["nlpd_mixture"] = float(-np.mean(model.log_density(x_test, y_test)) - np.log(scale))
    print(f"PrismGP p=32 {device}: {seconds:.1f} s, RMSE {score['rmse']:.4f}, NLPD {score['nlpd']:.4f}")
    return {"seconds": seconds, **peak, "weights": model.fit_status_["weights"], **score}


def xgpr(rows: Rows, device: str, features: int) -> dict[str, Any] | None:
    try:
        from experiments.lab.bench.peers.xgpr_features import fit_xgpr
    except ImportError:
        print("xGPR is not installed (pip install 'prismgp[xgpr]'): its part is skipped")
        return None
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
        import cupy

        peak["gpu_peak_bytes"] = int(cupy.get_default_memory_pool().total_bytes())
    mean, std = fitted.predict(x_test)
    found = {"seconds": seconds, **peak, "features": features, **scores(y_test, mean, std, 1.0)}
    found["std_corrected"] = scores(y_test, *fitted.variants(mean, std)["corrected"], 1.0)
    print(
        f"xGPR {features} features, {device}: {seconds:.1f} s, RMSE {found['rmse']:.4f}, NLPD {found['nlpd']:.4f}, "
        f"with the std that was meant {found['std_corrected']['nlpd']:.4f}",
        flush=True,
    )
    return found


def svgp_epochs(rows: Rows, device: str, m: int, epochs: int) -> dict[str, Any] | None:
    try:
        import gpytorch
    except ImportError:
        print("GPyTorch is not installed (pip install 'prismgp[compare]'): its part is skipped")
        return None
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
    score = scores(y_test, mean, std, std_y)
    what = f"SVGP m={m}, {epochs} epoch(s), {device}"
    print(f"{what}: {seconds:.1f} s, RMSE {score['rmse']:.4f}, NLPD {score['nlpd']:.4f}", flush=True)
    return {"seconds": seconds, **peak, "inducing": m, "epochs": epochs, **score}


def against_hardware(rows: Rows, dtype: str) -> dict[str, Any]:
    """One evidence-and-gradient evaluation on the GPU, over the larger of its arithmetic and its traffic.

    Ceilings are measured here: a large matrix product of the same precision, and a device copy.
    """
    x, y = rows[0], rows[1][:, None]
    device, kind = torch.device("cuda"), getattr(torch, dtype)
    source = ArraySource(x, y)
    chunk_rows = auto_chunk_rows(P, x.shape[1], 1, dtype=kind, device=device)
    chunks = Chunks(source, Standardiser.fit(source, normalize=True), rows=chunk_rows, dtype=kind, device=device)
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
        objective._kept.clear()
        objective.value_and_gradient(start)

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
    print(
        f"hardware {dtype}: evaluation on {n:,} rows {1e3 * seconds:.1f} ms; arithmetic alone "
        f"{1e3 * flops / flop_rate:.1f} ms at {flop_rate / 1e12:.0f} TFLOP/s, traffic alone "
        f"{1e3 * traffic / copy_rate:.1f} ms at {copy_rate / 1e12:.2f} TB/s, ratio {seconds / least:.2f}"
    )
    return {
        "seconds": seconds,
        "flops": flops,
        "bytes": traffic,
        "flop_rate": flop_rate,
        "copy_rate": copy_rate,
        "ratio": seconds / least,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-svgp", action="store_true")
    parser.add_argument("--inducing", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--default", action="store_true", help="also fit PrismGPRegressor")
    parser.add_argument("--xgpr", type=int, metavar="FEATURES", help="also fit xGPR")
    parser.add_argument("--name", help="of the result; default: flights_DEVICE")
    args = parser.parse_args()
    rows = load()
    result: dict[str, Any] = {"rows": len(rows[1]), "p": P, "device": args.device}
    if args.device == "cuda":
        ours(rows, args.device, "float32")  # the first use of a GPU loads its libraries
        result["ssgp_float64"] = ours(rows, args.device, "float64")
        result["hardware"] = {dtype: against_hardware(rows, dtype) for dtype in ("float32", "float64")}
    # Ours before and after theirs, so that a drift of the machine's speed hits both.
    runs = [ours(rows, args.device, "float32") for _ in range(args.repeats - 1)]
    svgp = None if args.no_svgp else svgp_epochs(rows, args.device, args.inducing, args.epochs)
    runs.append(ours(rows, args.device, "float32"))
    result |= {"ssgp": runs, "svgp_epoch": svgp}
    if args.default:
        result["default"] = default_model(rows, args.device)
    if args.xgpr:
        result["xgpr"] = xgpr(rows, args.device, args.xgpr)
    if svgp is not None:
        seconds = float(np.median([run["seconds"] for run in runs]))
        result["time_ratio"] = seconds / svgp["seconds"]
        result["rmse_ratio"] = runs[0]["rmse"] / svgp["rmse"]
        print(f"time {result['time_ratio']:.3f} of that of SVGP, RMSE {result['rmse_ratio']:.4f} of its")
    print(f"written to {write_result(args.name or f'flights_{args.device}', result)}")


if __name__ == "__main__":
    main()
