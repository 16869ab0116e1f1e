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

from experiments.machine import ROOT

pytest.importorskip("resource")

_SCRIPT = """
import json, sys
import torch
import prismgp.data.sources
from experiments.machine import peak_bytes, reset_peak
from prismgp import SSGPRegressor
from prismgp.cli import main
from prismgp.data import from_parquet

torch.set_num_threads(1)
prismgp.data.sources.KEPT_BYTES = 0
*paths, model_path, out = sys.argv[1:]
peaks = []

def peak():
    peaks.append(peak_bytes())
    reset_peak()

for path in paths:
    source = from_parquet(path, "y")
    model = SSGPRegressor(4, random_state=0, lengthscale=1.0, noise_variance=0.1, optimize=False).fit(source)
    peak()
    model.save(model_path)
    assert main(["predict", model_path, path, "-o", out, "-q"]) == 0
    peak()
print(json.dumps(peaks))
"""


def make_file(rows: int, folder: Path) -> Path:
    path = folder / f"{rows}.parquet"
    writer = None
    for seed in range(rows // 100_000):
        x = np.random.default_rng(seed).uniform(-2, 2, (100_000, 12))
        table = pa.table({**{f"x{k}": x[:, k] for k in range(12)}, "y": np.sin(x[:, 0])})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False, compression="none")
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path


@pytest.mark.slow
def test_a_fit_and_predictions_stream(tmp_path: Path) -> None:
    """600,000 rows more are 60 MiB more as an array of inputs and targets, and more with the output."""
    paths = [make_file(rows, tmp_path) for rows in (200_000, 800_000)]
    command = [sys.executable, "-c", _SCRIPT, *paths, tmp_path / "m.prism", tmp_path / "out.parquet"]
    done = subprocess.run([str(each) for each in command], cwd=ROOT, capture_output=True, text=True, check=True)
    peaks = json.loads(done.stdout)  # of a fit and of predictions, with few rows and with many
    small, large = peaks[:2], peaks[2:]
    grown = [(after - before) / 2**20 for before, after in zip(small, large, strict=True)]
    assert max(grown) < 40, (small, large)
    assert large[-1] < 700 * 2**20
