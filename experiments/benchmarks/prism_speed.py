"""Speed of the revised SSGP: time per step, one member on kin40k, and the ensemble against the exact GP.

python benchmarks/prism_speed.py [--parts step,member,ensemble] [--device cpu]

step      a training step against the bare minimum, alternating in one run: network forward, backward and update
          by Adam, and the Gram product of the gated features with its gradient
member    fit of one member, p = 32, on kin40k
ensemble  the default fit, p = 32, against the exact GP, on the same 10,000 rows of kin40k
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _common import load_split, scores, write_result
from scipy.stats import trim_mean

from prismgp import ExactGPRegressor, PrismGPRegressor
from prismgp._random import Streams
from prismgp.core.frequencies import draw_frequencies
from prismgp.core.kernels import get_kernel
from prismgp.core.parameters import default_start
from prismgp.data import ArraySource, Standardiser
from prismgp.prism import MemberSettings, MemberTraining, NetworkSizes, RevisedMap, TrainingRows, held_out_rows
from prismgp.vae import Rows, torch_generator

P = 32
ROUNDS = 80


def timed(function: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def step(device: str) -> dict[str, Any]:
    """Mean milliseconds of a step and of the bare minimum, and their ratio."""
    x, y, _, _ = load_split("kin40k", 0)
    source = ArraySource(x, y[:, None])
    s = Standardiser.fit(source, normalize=True)
    streams = Streams(0)
    d = x.shape[1]
    sizes = NetworkSizes(d, 1, P, 8, (128, 128), 8, "soft", "input")
    drawn = draw_frequencies(get_kernel("rbf"), P, 8 + d, "orthogonal", streams.generator("frequencies"))
    member = RevisedMap(sizes, default_start(d, 1), drawn, torch_generator(streams, "network")).to(device)
    place: dict[str, Any] = {"dtype": torch.float32, "device": torch.device(device)}
    rows = TrainingRows(
        Rows(source.x, s.x_shift, s.x_scale, **place),
        Rows(source.y, s.y_shift, s.y_scale, **place),
        held_out_rows(x, 0.1, 10_000, streams.generator("held-out")),
    )
    settings = MemberSettings(8.0, 1.2, 1e-3, 0.0, 512, 1_000, None, True)
    loop = MemberTraining(member, rows, settings, streams)
    batch = rows.x[rows.draw(settings.batch_size, streams.generator("batch"))]

    update = torch.optim.AdamW(copy.deepcopy(member).parameters(), lr=1e-3, fused=True)
    twin = update.param_groups[0]["params"]

    def bare() -> None:
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
    pairs = [(timed(lambda: loop.step(next(number)), device), timed(bare, device)) for _ in range(ROUNDS)]
    # Trimmed means, not medians: one step in four is longer and must count; the extremes are the machine's.
    ours, least = (1e3 * float(trim_mean([pair[k] for pair in pairs], 0.1)) for k in (0, 1))
    print(f"step {ours:.1f} ms, network and Gram product {least:.1f} ms, ratio {ours / least:.2f}", flush=True)
    return {"step_ms": ours, "bare_ms": least, "ratio": ours / least, "batch": settings.batch_size, "p": P}


def member(device: str) -> dict[str, Any]:
    """Seconds of one member on kin40k, and its accuracy."""
    x, y, x_test, y_test = load_split("kin40k", 0)
    model = PrismGPRegressor(P, n_members=1, device=device, random_state=0)
    seconds = timed(lambda: model.fit(x, y), device)
    score = scores(y_test, *model.predict(x_test, return_std=True), float(y.std()))
    print(f"one member on kin40k: {seconds:.1f} s, rmse {score['rmse']:.4f}, nlpd {score['nlpd']:.4f}", flush=True)
    return {"rows": len(y), "seconds": seconds, "steps": model.n_iter_, **score}


def ensemble(device: str) -> dict[str, Any]:
    """Seconds of the default fit and of the exact GP on the same rows."""
    x, y, x_test, y_test = load_split("kin40k", 0)
    some = np.random.default_rng(0).choice(len(y), 10_000, replace=False)
    found: dict[str, Any] = {"rows": len(some)}
    for name, model in (
        ("prism", PrismGPRegressor(P, device=device, random_state=0)),
        ("exact", ExactGPRegressor(device=device, random_state=0)),
    ):
        seconds = timed(lambda model=model: model.fit(x[some], y[some]), device)
        score = scores(y_test, *model.predict(x_test, return_std=True), float(y[some].std()))
        found[name] = {"seconds": seconds, **score}
        print(
            f"{name} on {len(some):,} rows: {seconds:.1f} s, rmse {score['rmse']:.4f}, nlpd {score['nlpd']:.4f}",
            flush=True,
        )
    found["ratio"] = found["prism"]["seconds"] / found["exact"]["seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="step,member,ensemble")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    parts = {"step": step, "member": member, "ensemble": ensemble}
    # By part, so that a long one does not lose the others.
    for name in args.parts.split(","):
        write_result(f"prism_{name}_{args.device}", {"device": args.device, **parts[name](args.device)})


if __name__ == "__main__":
    main()
