"""Exported models against predict: the module itself, by torch.export without this library, and by ONNX."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClusterMixin

from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError
from prismgp.model import export
from prismgp.prism import LocalMixture
from tests.prism import small

ROWS = {"x": {0: torch.export.Dim.DYNAMIC}}
EXPORTED = 1e-6  # of the target's standard deviation, as the documentation says
MODELS = {
    "ssgp": lambda: SSGPRegressor(8, max_iter=3, random_state=0),
    "ssgp two": lambda: SSGPRegressor(8, max_iter=3, random_state=0),
    "ssgp float32": lambda: SSGPRegressor(8, max_iter=3, random_state=0, dtype="float32"),
    "ssgp soft": lambda: SSGPRegressor(8, gating="soft", n_components=3, max_iter=3, random_state=0),
    "ssgp hard": lambda: SSGPRegressor(8, gating="hard", n_components=3, max_iter=3, random_state=0),
    "exact": lambda: ExactGPRegressor(max_iter=3),
    "exact matern two": lambda: ExactGPRegressor(kernel="matern32", max_iter=3),
    "prism": lambda: small.model(),
    "prism float32": lambda: small.model(dtype="float32"),
    "prism hard": lambda: small.model(gating="hard", n_members=1),
    "prism paper": lambda: PrismGPRegressor(4, recipe="paper", max_steps=5, max_iter=3, random_state=0, local="never"),
    "prism local": lambda: small.model(local="always", n_neighbors=4, n_members=1),
    "neighbors": lambda: NeighborGPRegressor(n_neighbors=4, max_iter=3),
}
# Exporting takes seconds a model: these have every kind of step that the others have.
TRACED = ["ssgp float32", "ssgp soft", "ssgp hard", "exact matern two", "prism", "prism local", "neighbors"]
ONNX = [
    *("exact matern two", "prism"),  # the others are the same programs, of which the tests above run all
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ssgp soft", "ssgp hard", "neighbors")),
]
IGNORED = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def fits():
    known = {}

    def fit(name):
        if name not in known:
            x, y = small.data(200, q=2 if "two" in name else None)
            x[7] = x[3]  # equal rows, as neighbours too
            known[name] = MODELS[name]().fit(x, y)
            if name == "prism local":
                whole = known[name].model_
                near = tuple(replace(each, gp=replace(each.gp, degrees=5.0)) for each in whole.predictor.near)
                known[name].model_ = replace(whole, predictor=replace(whole.predictor, near=near))
        return known[name], small.data(1_000, seed=3)[0] * 1.2

    return fit


@pytest.fixture(scope="module")
def exported(fits):
    """What torch.export makes of a fit, by name."""

    @cache
    def export(name):
        model, x = fits(name)
        return torch.export.export(model.to_torch(), (torch.as_tensor(x[:20]),), dynamic_shapes=ROWS)

    return export


def assert_predicts(found, model, x, tolerance=EXPORTED):
    scale = model.model_.standardiser.y_scale
    for got, expected in zip(found, model.predict(x, return_std=True), strict=True):
        got = np.asarray(got)
        assert got.shape == expected.shape
        assert got.dtype == np.float64
        assert (np.abs(got - expected) / scale).max() < tolerance


@pytest.mark.parametrize("name", MODELS)
def test_module_equals_predict(fits, name):
    model, x = fits(name)
    module = model.to_torch()
    assert_predicts(module(torch.as_tensor(x)), model, x, 1e-9)
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.slow
@IGNORED
@pytest.mark.parametrize("name", TRACED)
def test_exported_program_equals_predict(fits, exported, name):
    model, x = fits(name)
    module = exported(name).module()
    for rows in (x, x[:1]):
        assert_predicts(module(torch.as_tensor(rows)), model, rows)


@pytest.mark.slow
@IGNORED
@pytest.mark.parametrize("name", ONNX)
def test_onnx_equals_predict(fits, name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = fits(name)
    path, example = tmp_path / "model.onnx", (torch.as_tensor(x[:20]),)
    torch.onnx.export(model.to_torch(), example, path, dynamo=True, dynamic_shapes=ROWS, verbose=False)
    session = onnxruntime.InferenceSession(path)
    for rows in (x, x[:1]):
        assert_predicts(session.run(None, {"x": rows}), model, rows)


_WITHOUT = """
import sys
sys.modules["prismgp"] = None  # importing it is an error
import numpy as np, torch
folder = sys.argv[1]
x = torch.as_tensor(np.load(f"{folder}/x.npy"))
for name in sys.argv[2:]:
    mean, std = torch.export.load(f"{folder}/{name}.pt2").module()(x)
    np.save(f"{folder}/{name}.npy", np.stack([mean, std]))
"""


@pytest.mark.slow
@IGNORED
def test_saved_programs_run_without_this_library(fits, exported, tmp_path):
    names = ["ssgp hard", "prism"]
    for name in names:
        torch.export.save(exported(name), tmp_path / f"{name}.pt2")
    x = fits("prism")[1]
    np.save(tmp_path / "x.npy", x)
    subprocess.run([sys.executable, "-c", _WITHOUT, tmp_path, *names], check=True, env={"PYTHONPATH": ""})
    for name in names:
        assert_predicts(np.load(tmp_path / f"{name}.npy"), fits(name)[0], x)


def test_module_is_a_copy_with_its_tensors_as_buffers(fits):
    model, x = fits("prism")
    module = model.to_torch()
    before = model.predict(x)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.mul_(2.0)
    np.testing.assert_array_equal(model.predict(x), before)
    assert (np.abs(module(torch.as_tensor(x))[0].numpy() - before) > 0.1).any()
    assert "predictor.experts.0.posterior.inverse_root" in module.state_dict()
    model.to_torch().load_state_dict(module.state_dict())


@IGNORED
def test_models_that_cannot_be_exported(fits, monkeypatch):
    class Halves(ClusterMixin, BaseEstimator):
        def fit(self, x, y=None):
            self.fitted_ = True
            return self

        def predict(self, x):
            return (np.asarray(x)[:, 0] > 3).astype(int)

    x, y = small.data(60)
    model = SSGPRegressor(4, gating="hard", partition=Halves().fit(x), max_iter=2, random_state=0).fit(x, y)
    with pytest.raises(DataError, match="clusterer of yours, whose code cannot be exported"):
        model.to_torch()
    monkeypatch.setattr(export, "MOST_NEIGHBOR_ROWS", 100)
    model = fits("prism local")[0]
    assert isinstance(model.model_.predictor, LocalMixture)
    with pytest.raises(DataError, match=r"among 200 rows.*at most 100 can be exported"):
        model.to_torch()
