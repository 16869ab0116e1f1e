"""``prismgp fit --scheduler``."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import numpy as np
import pytest

from prismgp import load
from prismgp.cli import main

INPUTS = ["a", "b", "c"]


@pytest.mark.slow
def test_fit_with_a_scheduler(folder, frame, cluster, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("prismgp.data.dask.SHARD_ROWS", 150)  # two shards

    def fitted(name, *more):
        path = tmp_path / name
        argv = [
            "fit",
            folder / "part-1.parquet",
            "--model",
            "ssgp",
            "-t",
            "y",
            "-o",
            path,
            "-p",
            4,
            "--holdout",
            0.2,
            "--json",
            *more,
        ]
        assert main([str(each) for each in argv]) == 0
        return json.loads(capsys.readouterr().out), load(path)

    known = set(cluster.scheduler.clients)
    here, model = fitted("here.prism")
    there, other = fitted("there.prism", "--scheduler", cluster.scheduler_address)
    assert there["rows"] == here["rows"] == 224
    np.testing.assert_allclose(there["log_evidence"], here["log_evidence"], rtol=1e-8)
    for score in ("rmse", "nlpd", "coverage", "rmse_of_mean"):
        np.testing.assert_allclose(there["holdout"][score], here["holdout"][score], rtol=1e-6)
    np.testing.assert_allclose(other.predict(frame[INPUTS]), model.predict(frame[INPUTS]), atol=1e-6)
    gc.collect()
    assert set(cluster.scheduler.clients) <= known  # the connection went with the command


def test_a_wrong_address(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("prismgp.data.cluster.CONNECT_SECONDS", 1)
    argv = ["fit", str(folder), "-t", "y", "-o", str(tmp_path / "m.prism"), "--scheduler", "tcp://127.0.0.1:9"]
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("prismgp: error: no Dask scheduler answers at 'tcp://127.0.0.1:9'")
    assert not (tmp_path / "m.prism").exists()


@pytest.mark.slow
def test_nothing_of_dask_is_loaded_before_it_is_needed():
    code = "import sys, prismgp, prismgp.cli, prismgp.data; assert not {'dask', 'distributed'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
