"""Store what every estimator computes on small problems, and compare with what was stored.

For changes that must not move numbers:

    python tools/fingerprint.py store before.npz
    ... change the code ...
    python tools/fingerprint.py compare before.npz

Compared are predictions, evidences, draws, certificates, sample sizes and what the command line writes, with fixed
seeds on the CPU; bit for bit, with the largest relative difference where bits differ. The files are for one machine:
another processor rounds differently.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import prismgp
from prismgp.data import from_csv

Numbers = dict[str, np.ndarray]


def rows(n: int = 240, d: int = 3, q: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of the inputs with noise, in units far from standard ones."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, d)) * np.arange(1, d + 1) + 3.0
    smooth = np.sin(x[:, 0]) + 0.3 * x[:, 1] * np.cos(x[:, 2] / 2)
    y = 40.0 + 7.0 * np.stack([smooth + k * x[:, 0] for k in range(q)], 1) + rng.normal(size=(n, q))
    return x, y[:, 0] if q == 1 else y


def describe(model: prismgp.SSGPRegressor, x: np.ndarray, y: np.ndarray) -> Numbers:
    """Everything a regressor says about itself and about rows it has not seen."""
    new = x[:40] + 0.1
    mean, std = model.predict(new, return_std=True)
    _, cov = model.predict(new[:10], return_cov=True, include_noise=False)
    found = {
        "mean": mean,
        "std": std,
        "cov": cov,
        "draws": model.sample_y(new, n_samples=3, random_state=2),
        "log_density": model.log_density(new, y[:40]),
        "log_evidence": np.array(model.log_evidence_),
        "lengthscale": np.asarray(model.lengthscale_),
        "noise": np.asarray(model.noise_variance_),
        "signal": np.asarray(model.signal_variance_),
        "constant": np.asarray(model.mean_),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.prism"
        model.save(path)
        found["loaded"] = prismgp.load(path).predict(new)
    if hasattr(model, "partial_fit"):
        found["updated"] = model.partial_fit(new, y[:40]).predict(new)
    return found


def bound_intervals(model: prismgp.SSGPRegressor, x: np.ndarray, y: np.ndarray) -> Numbers:
    """The intervals of a certificate."""
    found = model.fit(x, y).certify(x, y, x[:20] + 0.1, rank=60, products=4, random_state=3)
    parts = {"kernel": found.kernel_error, "evidence": found.log_evidence, "mean": found.mean, "std": found.std}
    ends = [(name, part, end) for name, part in parts.items() if part is not None for end in ("lower", "upper")]
    return {f"{name} {end}": np.asarray(getattr(part, end)) for name, part, end in ends}


def command_line() -> Numbers:
    """What fit and predict write for a table with text in it."""
    x, y = rows()
    table = pd.DataFrame(x, columns=list("abc")).assign(kind=np.where(x[:, 0] > 3, "left", "right"), y=y)
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        table.to_csv(there / "rows.csv", index=False)
        for words in (
            "fit rows.csv --target y --model ssgp -p 8 --seed 0 -o model.prism",
            "predict model.prism rows.csv -o out.csv",
        ):
            command = [sys.executable, "-m", "prismgp", *words.split()]
            subprocess.run(command, cwd=there, check=True, capture_output=True)
        written = pd.read_csv(there / "out.csv")
        return {name: written[name].to_numpy() for name in ("mean", "std", "lower", "upper")}


def from_file() -> Numbers:
    """A fit to a file read in chunks."""
    x, y = rows()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        pd.DataFrame(x, columns=list("abc")).assign(y=y).to_csv(path, index=False)
        model = prismgp.SSGPRegressor(8, random_state=0, chunk_size=64).fit(from_csv(path, target="y"))
    return {"mean": model.predict(x[:30]), "log_evidence": np.array(model.log_evidence_)}


def guarantees() -> Numbers:
    """Sample sizes and conditions."""
    x, _ = rows()
    sizes = prismgp.sample_size(bound=5.0, delta=0.05, X=x, lengthscale=2.0)
    report = prismgp.check_conditions(x, lengthscale=2.0, bound=5.0, n_clusters=3)
    # As text, so that every figure of both counts; times are not among them.
    text = f"{sizes!r}\n{report!r}"
    return {"text": np.frombuffer(text.encode(), dtype=np.uint8)}


def cases() -> dict[str, Callable[[], Numbers]]:
    """Problems by name."""
    x, y = rows()
    both = rows(q=2)
    small = {"n_members": 2, "max_steps": 40, "hidden": 16, "batch_size": 64, "random_state": 0}
    labels = (x[:, 0] > 3).astype(int)
    models = {
        "exact": prismgp.ExactGPRegressor(random_state=0),
        "exact matern32": prismgp.ExactGPRegressor(kernel="matern32", n_restarts=1, random_state=0),
        "ssgp": prismgp.SSGPRegressor(16, random_state=0),
        "ssgp float32": prismgp.SSGPRegressor(16, dtype="float32", kernel="matern52", random_state=0),
        "ssgp learned": prismgp.SSGPRegressor(8, learn_frequencies=True, random_state=0),
        "ssgp hard": prismgp.SSGPRegressor(8, gating="hard", n_components=3, random_state=0),
        "ssgp soft": prismgp.SSGPRegressor(8, gating="soft", n_components=3, random_state=0),
        "ssgp fixed": prismgp.SSGPRegressor(8, optimize=False, lengthscale=2.0, random_state=0),
        "prism": prismgp.PrismGPRegressor(8, **small),
        "prism paper": prismgp.PrismGPRegressor(8, recipe="paper", max_steps=30, batch_size=64, random_state=0),
        "prism constant": prismgp.PrismGPRegressor(8, gating="none", noise_model="constant", dropout=0.1, **small),
    }
    found: dict[str, Callable[[], Numbers]] = {
        name: (lambda model=model: describe(model.fit(x, y), x, y)) for name, model in models.items()
    }
    partition = prismgp.SSGPRegressor(8, gating="hard", partition=labels, random_state=0)
    found["ssgp labels"] = lambda: {"mean": partition.fit(x, y).predict(x[:9])}
    for name in ("exact", "ssgp", "prism"):
        found[f"{name} two outputs"] = lambda name=name: describe(models[name].fit(*both), *both)
    for name in ("ssgp", "ssgp hard", "prism"):
        found[f"certificate {name}"] = lambda name=name: bound_intervals(models[name], x, y)
    vae = prismgp.Reconfigurer(2, 2, max_steps=30, random_state=0)
    found["reconfigurer"] = lambda: {"latent": vae.fit(x).transform(x)}
    features = prismgp.SpectralFeatures(6, random_state=0)
    found["features"] = lambda: {"phi": features.fit(x).transform(x)}
    found |= {"file": from_file, "command line": command_line, "guarantees": guarantees}
    return found


def compute(only: str) -> Numbers:
    """All numbers, by case and name."""
    torch.set_num_threads(1)
    found: Numbers = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", prismgp.exceptions.PrismGPWarning)
        for case, run in cases().items():
            if only in case:
                found |= {f"{case} / {name}": value for name, value in run().items()}
    return found


def compare(before: Numbers, after: Numbers) -> int:
    """Print what differs; the number of differences."""
    differences = 0
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            print(f"{name}: {'new' if old is None else 'missing'}")
        elif old.shape != new.shape:
            print(f"{name}: shape {old.shape} is now {new.shape}")
        elif old.tobytes() == new.tobytes():
            continue
        else:
            scale = max(float(np.abs(old).max()), 1e-300)
            print(f"{name}: largest difference {float(np.abs(new - old).max()) / scale:.2e} of the largest value")
        differences += 1
    print(f"{len(before)} arrays, {differences} differ")
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("store", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    found = compute(given.only)
    if given.action == "store":
        np.savez(given.file, **found)
        print(f"{len(found)} arrays stored in {given.file}")
        return 0
    with np.load(given.file) as stored:
        before = {name: stored[name] for name in stored.files if given.only in name.split(" / ")[0]}
    return int(compare(before, found) > 0)


if __name__ == "__main__":
    sys.exit(main())
