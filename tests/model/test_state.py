"""A model is the result of one fit: not of half of another, nor of arguments set later."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

import prismgp
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp._system import atomic_path
from prismgp.exceptions import DataError, PrismGPError

MODELS = [SSGPRegressor(4, random_state=0, optimize=False), ExactGPRegressor(optimize=False)]


def rows(n=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("model", MODELS, ids=["ssgp", "exact"])
def test_a_failed_refit_leaves_no_model(model, monkeypatch):
    x, y = rows()
    model.fit(x, y)

    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prismgp.data.StandardisedRows, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.fit(x * 100 + 7, y * 5)
    with pytest.raises(NotFittedError):
        model.predict(x)
    expected = type(model)(**model.get_params()).fit(x, y).predict(x)
    np.testing.assert_array_equal(model.fit(x, y).predict(x), expected)


@pytest.mark.parametrize("model", MODELS, ids=["ssgp", "exact"])
def test_files_hold_what_was_fitted(model, tmp_path):
    x, y = rows()
    expected = model.fit(x, y).predict(x)
    changed = {"kernel": "matern12"} | ({"n_frequencies": 9} if model._kind == "ssgp" else {})
    kept = {name: model.get_params()[name] for name in changed}
    model.set_params(**changed)
    model.save(tmp_path / "m")
    loaded = prismgp.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(x), expected)
    assert {name: loaded.get_params()[name] for name in kept} == kept
    model.set_params(**kept)


def test_array_arguments_survive(tmp_path):
    x, y = rows()
    SSGPRegressor(4, lengthscale=pd.Series([1.0, 2.0]), optimize=False).fit(x, y).save(tmp_path / "m")
    assert prismgp.load(tmp_path / "m").lengthscale == [1.0, 2.0]


def test_encoder_belongs_to_its_fit(tmp_path):
    x, y = rows()
    raw = pd.DataFrame({"a": x[:, 0], "c": np.where(x[:, 1] > 0, "u", "v")})
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(raw, y)
    assert model.table_encoder_.feature_names == ["a", "c=u", "c=v"]
    before = model.predict(raw)
    model.partial_fit(raw, y)  # raw columns, as at prediction
    assert model.fit_status_["rows"] == 120
    assert not np.array_equal(model.predict(raw), before)
    model.fit(x, y)
    assert not hasattr(model, "table_encoder_")
    model.save(tmp_path / "m")
    prismgp.load(tmp_path / "m")


def test_atomic_path_keeps_links_and_refuses_special_files(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), atomic_path(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("model", [SSGPRegressor(16, random_state=0), ExactGPRegressor()], ids=["ssgp", "exact"])
def test_targets_far_from_zero_without_centring(model):
    x, _ = rows(300)
    y = 1e5 + np.sin(x[:, 0]) + 0.05 * np.random.default_rng(1).normal(size=300)
    model.set_params(normalize=False).fit(x, y)
    assert np.sqrt(model.noise_variance_) == pytest.approx(0.05, rel=0.2)
    assert np.sqrt(np.mean((model.predict(x) - y) ** 2)) < 0.06


def test_odd_arrays():
    x, y = rows()
    packed = np.zeros(60, [("a", "i4"), ("x", "f8", (2,))])
    packed["x"] = x
    expected = SSGPRegressor(4, random_state=0, optimize=False).fit(x, y).predict(x)
    model = SSGPRegressor(4, random_state=0, optimize=False).fit(packed["x"], y)
    np.testing.assert_array_equal(model.predict(torch.tensor(x).to_sparse()), expected)
    model.fit(torch.tensor(x).bfloat16(), y)
    with pytest.raises(
        DataError, match=r"noise_variance holds 1e-30, which is out of range relative .*; give it in units"
    ):
        SSGPRegressor(4, noise_variance=1e-30, optimize=False).fit(x, y * 1e148)
    model.set_params(chunk_size=0)
    with pytest.raises(DataError, match="chunk_size=0"):
        model.predict(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_an_absent_device_is_not_the_files_fault(tmp_path):
    x, y = rows()
    SSGPRegressor(4, optimize=False).fit(x, y).save(tmp_path / "m")
    with pytest.raises(PrismGPError, match="no CUDA device"):
        prismgp.load(tmp_path / "m", device="cuda")


@pytest.mark.parametrize("model", MODELS, ids=["ssgp", "exact"])
def test_factors_are_not_kept_twice(model):
    x, y = rows()
    assert all(not factor.lower.numel() for factor in model.fit(x, y).model_.predictor.factors)


def test_arguments_of_another_fit_do_not_stop_predictions():
    x, y = rows()
    model = ExactGPRegressor(max_iter=3).fit(x, y)
    expected = model.predict(x)
    np.testing.assert_array_equal(model.set_params(max_iter=0).predict(x), expected)
