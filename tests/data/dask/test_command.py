"""``prismgp fit --scheduler`` and ``prismgp predict --scheduler``."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from prismgp import NeighborGPRegressor, SSGPRegressor, load
from prismgp.cli import main
from prismgp.data import from_csv, from_parquet
from prismgp.exceptions import PrismGPWarning

INPUTS = ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("small_shards")
def test_predict_with_a_scheduler(folder, frame, cluster, tmp_path, capsys):
    """The same table as without one, from several files and from text with categories, missing cells and all."""
    table = frame.assign(kind=np.where(frame.a > 0, "up", "down"))
    table.loc[::7, "b"] = np.nan
    table.loc[3, "kind"] = "sideways"
    text = tmp_path / "text"
    text.mkdir()
    for number in range(3):
        table[200 * number :][:200].to_csv(text / f"{number}.csv", index=False)
    spectral, near = SSGPRegressor(4, random_state=0, optimize=False), NeighborGPRegressor(8, optimize=False)
    parquet = from_parquet(folder, "y")
    for data, source, model in (
        (folder, parquet, spectral),
        (text, from_csv(text / "1.csv", "y"), spectral),
        (folder, parquet, near),
    ):
        model.fit(source).save(tmp_path / "m.prism")
        suffix = "csv" if data == text else "parquet"
        found = []
        for name, more in (("here", []), ("there", ["--scheduler", cluster.scheduler_address])):
            out = tmp_path / f"{name}.{suffix}"
            argv = ["predict", tmp_path / "m.prism", data, "-o", out, "--json", *more]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PrismGPWarning)  # a category that the fit did not see
                assert main([str(each) for each in argv]) == 0
            summary = json.loads(capsys.readouterr().out)
            rows = pd.read_parquet(out) if suffix == "parquet" else pd.read_csv(out)
            found.append((rows, summary.pop("scores"), {**summary, "seconds": 0, "output": ""}))
        (rows, scores, summary), (other_rows, other_scores, other_summary) = found
        pd.testing.assert_frame_equal(other_rows, rows, rtol=1e-9)  # chunks are cut elsewhere
        assert other_scores == pytest.approx(scores, rel=1e-9)
        assert other_summary == summary
        assert summary["rows"] == 600
