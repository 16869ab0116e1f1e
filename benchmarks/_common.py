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
import torch

import prismgp
from prismgp.datasets import data_folder, load_abalone, load_uci
from prismgp.exceptions import DataError

__all__ = [
    "RESULTS",
    "ROOT",
    "data_folder",
    "load_split",
    "provenance",
    "scores",
    "source_digest",
    "write_result",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def load_split(name: str, split: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test rows of a data set: X, y, X_test, y_test."""
    try:
        data = load_abalone(split) if name == "abalone" else load_uci(name, split)
    except DataError as error:
        raise SystemExit(str(error)) from error
    X, y, test = np.ascontiguousarray(data.X), data.y.to_numpy(), data.test
    return X[~test], y[~test], X[test], y[test]


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
