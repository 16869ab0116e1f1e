"""Predictions of model files alone: those of the estimators, without what only fits need."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError, ModelFileError
from prismgp.model import load_model
from tests.model.test_io import HOSTILE, rewritten

ROWS = 150
SMALL = {"max_steps": 20, "max_iter": 4, "random_state": 0}
MODELS = {
    "exact": lambda: ExactGPRegressor(max_iter=3),
    "ssgp": lambda: SSGPRegressor(16, max_iter=3, random_state=0),
    "single": lambda: SSGPRegressor(16, max_iter=3, dtype="float32", random_state=0),
    "chunks": lambda: SSGPRegressor(16, max_iter=3, chunk_size=17, random_state=0),
    "hard": lambda: SSGPRegressor(8, gating="hard", n_components=3, max_iter=3, random_state=0),
    "soft": lambda: SSGPRegressor(8, gating="soft", n_components=3, max_iter=3, random_state=0),
    "joint": lambda: PrismGPRegressor(4, n_members=2, **SMALL),
    "paper": lambda: PrismGPRegressor(4, recipe="paper", n_components=2, **SMALL),
}


def data(outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)) * [1.0, 10.0, 0.1] + 3.0
    y = np.stack([np.sin(x[:, 0] * k) + 0.1 * rng.normal(size=ROWS) for k in range(1, outputs + 1)], 1)
    return x, 5.0 * y


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", list(MODELS))
def test_those_of_the_estimator(tmp_path, kind, outputs):
    x, y = data(outputs)
    model = MODELS[kind]().fit(x, y[:, 0] if outputs == 1 else y)
    model.save(tmp_path / "m.prism")
    loaded, alone = prismgp.load(tmp_path / "m.prism"), load_model(tmp_path / "m.prism")
    assert (alone.n_rows, alone.n_inputs, alone.n_outputs, alone.target_ndim) == (ROWS, 3, outputs, outputs)
    assert alone.prediction_rows == (17 if kind == "chunks" else model.model_.prediction_rows)
    for include_noise in (True, False):
        expected = loaded.predict(x, return_std=True, include_noise=include_noise)
        for got, wanted in zip(alone.predict(x, include_noise=include_noise), expected, strict=True):
            np.testing.assert_array_equal(got, wanted.reshape(ROWS, outputs))


def test_names_and_devices(tmp_path):
    x, y = data(1)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    SSGPRegressor(4, max_iter=2, random_state=0).fit(frame, y[:, 0]).save(tmp_path / "m.prism")
    assert load_model(tmp_path / "m.prism", device="auto").feature_names == ["a", "b", "c"]
    for read in (load_model, prismgp.load):
        with pytest.raises(DataError, match="abacus"):
            read(tmp_path / "m.prism", device="abacus")


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The bytes of a model file."""
    x, y = data(1)
    path = tmp_path_factory.mktemp("file") / "m.prism"
    SSGPRegressor(5, max_iter=2, random_state=0, kernel="matern32").fit(x, y[:, 0]).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", list(HOSTILE))
def test_files_that_nobody_vouches_for(tmp_path, content, name):
    """Whatever is wrong with them is said of the file; what predictions do not use may be anything."""
    edit, tensors, _ = HOSTILE[name]
    (tmp_path / "m.prism").write_bytes(rewritten(content, edit, tensors=tensors))
    with suppress(ModelFileError):
        mean, std = load_model(tmp_path / "m.prism").predict(data(1)[0])
        assert np.isfinite(mean).all()
        assert (std > 0).all()


@pytest.mark.parametrize("written", [b"", b"not a model", None])
def test_files_that_are_none(tmp_path, written):
    if written is not None:
        (tmp_path / "m.prism").write_bytes(written)
    with pytest.raises(ModelFileError, match=r"m\.prism"):
        load_model(tmp_path / "m.prism")


@pytest.mark.slow
def test_the_command_loads_what_predictions_need(tmp_path):
    """scikit-learn, SciPy, pandas and SymPy take more memory, and more time, than the model and its rows."""
    x, y = data(1)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(kind=np.where(x[:, 0] > 0.0, "high", "low"))
    other = frame.copy()
    other.loc[3, "kind"], other.loc[4, "kind"], other.loc[5, "a"] = "unknown", None, None
    other.to_parquet(tmp_path / "d.parquet", index=False)
    other.to_csv(tmp_path / "d.csv", index=False)
    code = "import sys; from prismgp.cli import main\n"
    for name, model in (("s", MODELS["ssgp"]()), ("p", MODELS["joint"]().set_params(noise_shape="normal"))):
        model.fit(frame, y[:, 0]).save(tmp_path / f"{name}.prism")
        for kind in ("parquet", "csv"):
            argv = [
                "predict",
                tmp_path / f"{name}.prism",
                tmp_path / f"d.{kind}",
                "-o",
                tmp_path / f"{name}.{kind}",
                "-q",
            ]
            code += (
                f"code = main({[str(each) for each in argv]})\n"
                "heavy = {'sklearn', 'scipy', 'pandas', 'sympy', 'prismgp.estimators'}\n"
                "print(code, sorted(heavy & set(sys.modules)))\n"
            )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n" * 4, done.stderr
    for name in ("s", "p"):
        tables = pd.read_parquet(tmp_path / f"{name}.parquet"), pd.read_csv(tmp_path / f"{name}.csv")
        assert [len(each) for each in tables] == [ROWS, ROWS]
        np.testing.assert_array_equal(tables[0]["mean"], tables[1]["mean"])
