"""Memory does not grow with the rows of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("resource")

_SCRIPT = """
import json, sys
import torch
import prismgp.data._source as source_module
from prismgp import SSGPRegressor
from prismgp.cli import main
from prismgp._system import peak_bytes
from prismgp.data import from_parquet

torch.set_num_threads(1)
source_module._KEPT_BYTES = 0
path, model_path, out = sys.argv[1:]
peaks = []

def peak():
    peaks.append(peak_bytes())

source = from_parquet(path, "y")
model = SSGPRegressor(4, random_state=0, lengthscale=1.0, noise_variance=0.1, optimize=False).fit(source)
peak()
model.save(model_path)
assert main(["predict", model_path, path, "-o", out, "-q"]) == 0
peak()
print(json.dumps(peaks))
"""


def peaks(rows: int, folder: Path) -> list[int]:
    """Of a fit, and after predictions by the command line."""
    path = folder / f"{rows}.parquet"
    writer = None
    for seed in range(rows // 100_000):
        x = np.random.default_rng(seed).uniform(-2, 2, (100_000, 12))
        table = pa.table({**{f"x{k}": x[:, k] for k in range(12)}, "y": np.sin(x[:, 0])})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    command = [sys.executable, "-c", _SCRIPT, str(path), str(folder / "m.prism"), str(folder / "out.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    path.unlink()
    return [int(peak) for peak in json.loads(done.stdout)]


def test_a_fit_and_predictions_stream(tmp_path: Path) -> None:
    """600,000 rows more are 60 MiB more as an array of inputs and targets, and more with the output."""
    small, large = peaks(200_000, tmp_path), peaks(800_000, tmp_path)
    grown = [(after - before) / 2**20 for before, after in zip(small, large, strict=True)]
    assert max(grown) < 40, (small, large)
    assert large[-1] < 700 * 2**20
