"""What the benchmarks share: data, timing, provenance, output."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import prismgp

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def data_folder() -> Path | None:
    """Where the real data sets are: $PRISMGP_DATA, or a folder ``shared/data`` beside the repository."""
    folder = Path(os.environ.get("PRISMGP_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def load_split(name: str, split: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test rows of a data set: X, y, X_test, y_test."""
    folder = data_folder()
    if folder is None:
        raise SystemExit("the data sets are absent: set PRISMGP_DATA to the folder that holds them")
    if name == "abalone":
        frame = pd.read_csv(folder / "abalone" / "abalone.data", header=None)
        frame = pd.concat([pd.get_dummies(frame[0], dtype=float), frame.iloc[:, 1:].astype(float)], axis=1)
        table = frame.to_numpy()
        test = np.ones(len(table), dtype=bool)
        test[np.random.default_rng(split).permutation(len(table))[:3000]] = False
    else:
        table = pd.read_csv(folder / "uci" / name / "data.csv.gz", header=None).to_numpy(dtype=float)
        masks = pd.read_csv(folder / "uci" / name / "test_mask.csv.gz", header=None).to_numpy()
        test = masks[:, split].astype(bool)
    return table[~test, :-1], table[~test, -1], table[test, :-1], table[test, -1]


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray, scale: float) -> dict[str, float]:
    """RMSE and mean negative log density in units of the training target's std, and 95% coverage."""
    z = (y - mean) / std
    return {
        "rmse": float(np.sqrt(np.mean((y - mean) ** 2)) / scale),
        "nlpd": float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)) - np.log(scale)),
        "coverage": float(np.mean(np.abs(z) < 1.959964)),
    }


def provenance() -> dict[str, Any]:
    """Versions, machine and commit of a run."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    about = {"prismgp": prismgp.__version__, "commit": commit or None, "source": source_digest()}
    return {**about, "machine": machine, "versions": versions}


def source_digest() -> str:
    """A digest of the package's source: a commit says little where files have changed since, or git is absent."""
    folder = Path(prismgp.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Store a result with its provenance as JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**provenance(), **result}, indent=1) + "\n")
    return path
