"""What the benchmarks share: data, timing, provenance, output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.lab import provenance, scores
from experiments.lab._folder import write_json
from prismgp.datasets import data_folder, load_abalone, load_uci
from prismgp.exceptions import DataError

__all__ = [
    "RESULTS",
    "ROOT",
    "data_folder",
    "load_split",
    "provenance",
    "scores",
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


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Store a result with its provenance as JSON."""
    path = RESULTS / f"{name}.json"
    write_json(path, {**provenance(), **result})
    return path
