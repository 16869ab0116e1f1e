"""Files, arrays, clusters and a GPU: the same fit; and a GPU whose memory really runs out. Skipped without one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.data import from_csv, from_parquet
from prismgp.datasets import make_gas_sensor
from prismgp.exceptions import PrismGPWarning

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

ROWS, P = 20_000, 64
EVIDENCE = {"float64": 1e-8, "float32": 1e-4}  # relative
PREDICTION = {"float64": 1e-6, "float32": 1e-3}
FIXED = {"lengthscale": 3.0, "signal_variance": 1.0, "noise_variance": 0.1, "mean": 0.0, "optimize": False}
# An optimiser multiplies the last digit of a sum: fits part, and end in optima of their own that must be as good: nats
# per row (here .006 apart).
LEARNED = {**FIXED, "optimize": True, "max_iter": 500}
AS_GOOD = 0.02


@pytest.fixture(scope="module")
def gas(tmp_path_factory):
    """The simulated array as a table, in memory and as files."""
    data = make_gas_sensor(ROWS, random_state=0)
    frame = data.X.assign(target=data.y.to_numpy()).astype("float64")  # single precision has other digits as text
    folder = tmp_path_factory.mktemp("gas")
    frame.to_parquet(folder / "rows.parquet", row_group_size=3_000, index=False)
    frame.to_csv(folder / "rows.csv", index=False)
    return frame.drop(columns="target"), frame["target"], folder


@pytest.fixture(autouse=True)
def streaming(monkeypatch):
    """Files are read pass by pass, however small."""
    monkeypatch.setattr("prismgp.data.sources.KEPT_BYTES", 0)


def same(found, expected, x, evidence, prediction):
    assert found.log_evidence_ == pytest.approx(expected.log_evidence_, rel=evidence)
    scale = np.std(expected.predict(x))
    for a, b in zip(found.predict(x, return_std=True), expected.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=prediction * scale)


@pytest.mark.parametrize("form", ["array", "parquet", "csv"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_ssgp(gas, form, dtype, learned):
    x, y, folder = gas
    options = LEARNED if learned else FIXED
    rows = {
        "array": (x, y),
        "parquet": (from_parquet(folder / "rows.parquet", "target"),),
        "csv": (from_csv(folder / "rows.csv", "target"),),
    }[form]
    expected = SSGPRegressor(P, dtype=dtype, random_state=0, **options).fit(x, y)
    found = SSGPRegressor(P, dtype=dtype, device="cuda", random_state=0, **options).fit(*rows)
    if learned:  # rounding decides which optimum is found, and that of the GPU may be the better one
        assert found.log_evidence_ > expected.log_evidence_ - AS_GOOD * ROWS
    else:
        same(found, expected, x, EVIDENCE[dtype], PREDICTION[dtype])


def test_prism_reads_files(gas):
    x, y, folder = gas
    options = {"n_members": 1, "max_steps": 50, "max_iter": 10, "device": "cuda", "random_state": 0}
    array = PrismGPRegressor(16, **options).fit(x, y)
    files = PrismGPRegressor(16, **options).fit(from_parquet(folder / "rows.parquet", "target"))
    assert files.log_evidence_ == array.log_evidence_
    np.testing.assert_array_equal(files.predict(x), array.predict(x))


def test_workers_with_a_gpu(gas):
    distributed = pytest.importorskip("distributed", reason="dask and distributed are not installed")
    x, y, folder = gas
    expected = SSGPRegressor(P, random_state=0, **FIXED).fit(x, y)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        source = from_parquet(folder / "rows.parquet", "target", client=client)
        same(SSGPRegressor(P, device="cuda", random_state=0, **FIXED).fit(source), expected, x, 1e-8, 1e-6)


def test_memory_that_runs_out(gas):
    x, y, _ = gas
    x, y = np.tile(x.to_numpy(), (20, 1)), np.tile(y.to_numpy(), 20)  # a chunk of them takes more than there will be
    p, n = 256, len(y)
    expected = SSGPRegressor(p, device="cuda", random_state=0, chunk_size=10_000, **FIXED).fit(x, y)
    torch.cuda.empty_cache()
    whole = n * 2 * p * 8  # bytes of the features alone, were all rows one chunk
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 0.7 * whole) / total)
    try:
        with pytest.warns(PrismGPWarning, match="out of memory"):
            short = SSGPRegressor(p, device="cuda", random_state=0, chunk_size=n, **FIXED).fit(x, y)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert short.log_evidence_ == pytest.approx(expected.log_evidence_, rel=1e-10)
    np.testing.assert_allclose(short.predict(x[:100]), expected.predict(x[:100]), rtol=1e-7)
