"""Names of devices, those that are there and those that are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismgp
from prismgp import SSGPRegressor
from prismgp._system import compute_device, is_device
from prismgp.exceptions import DataError, PrismGPError, PrismGPWarning


@pytest.mark.parametrize("name", ["cpu", "cuda", "auto", "cuda:0", "cuda:17"])
def test_names(name):
    assert is_device(name)


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1 ", "cpu:0", "CUDA", 1, None, "cuda:99999"]
)
def test_other_names(name):
    assert not is_device(name)
    with pytest.raises(DataError, match="is unknown; choose one of 'cpu', 'cuda', 'auto', or a numbered GPU"):
        compute_device(name)
    with pytest.raises(DataError, match="SSGPRegressor: device="):
        SSGPRegressor(2, device=name).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])


@pytest.mark.parametrize(("count", "there"), [(1, 'only "cuda:0"'), (3, 'only "cuda:0" to "cuda:2"')])
def test_numbered_gpus(monkeypatch, count, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert compute_device("cuda:0") == torch.device("cuda:0")
    assert compute_device("cuda").index is None
    with pytest.raises(PrismGPError, match=f'device="cuda:3" was asked for, but this machine has {there}'):
        compute_device("cuda:3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_model_of_a_gpu_that_is_not_here(tmp_path):
    x = np.linspace(0, 1, 20)[:, None]
    model = SSGPRegressor(2, max_iter=2, random_state=0).fit(x, x[:, 0])
    model.set_params(device="cuda:1").save(tmp_path / "m")
    with pytest.warns(PrismGPWarning, match="saved on a GPU and there is none here: it runs on the CPU"):
        assert prismgp.load(tmp_path / "m").device == "cpu"
    with pytest.raises(PrismGPError, match="no CUDA device is available"):
        prismgp.load(tmp_path / "m", device="cuda:1")
