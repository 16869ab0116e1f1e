"""The same numbers on a GPU; skipped, saying so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

FIXED = {"lengthscale": 1.5, "signal_variance": 2.0, "noise_variance": 0.1, "mean": 0.2, "optimize": False}


def rows(n=3000, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-4)])
def test_ssgp_agrees_with_the_cpu(dtype, tolerance):
    x, y = rows()
    cpu, gpu = (
        SSGPRegressor(32, device=device, dtype=dtype, random_state=0, chunk_size=700, **FIXED).fit(x, y)
        for device in ("cpu", "cuda")
    )
    assert gpu.log_evidence_ == pytest.approx(cpu.log_evidence_, rel=tolerance)
    for a, b in zip(gpu.predict(x, return_std=True), cpu.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=100 * tolerance, atol=100 * tolerance)


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-4)])
def test_gates_agree_with_the_cpu(tmp_path, kind, dtype, tolerance):
    x, y = rows()
    options = {"gating": kind, "n_components": 4, "dtype": dtype, "random_state": 0, "chunk_size": 700, **FIXED}
    cpu, gpu = (SSGPRegressor(16, device=device, **options).fit(x, y) for device in ("cpu", "cuda"))
    assert gpu.log_evidence_ == pytest.approx(cpu.log_evidence_, rel=tolerance)
    for a, b in zip(gpu.predict(x, return_std=True), cpu.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=100 * tolerance, atol=100 * tolerance)
    a, b = (model.predict(x[:50], return_cov=True)[1] for model in (gpu, cpu))
    np.testing.assert_allclose(a, b, rtol=100 * tolerance, atol=100 * tolerance)
    gpu.save(tmp_path / "m.prism")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "m.prism").predict(x), gpu.predict(x))
    learned = SSGPRegressor(16, device="cuda", gating=kind, n_components=4, dtype=dtype, random_state=0)
    assert learned.fit(x, y).log_evidence_ > gpu.log_evidence_
    np.testing.assert_array_equal(learned.sample_y(x, random_state=0), learned.sample_y(x, random_state=0))
    assert gpu.partial_fit(x[:9], y[:9]).fit_status_["rows"] == len(x) + 9


def test_learned_fits_agree():
    x, y = rows()
    for make in (
        lambda device: SSGPRegressor(32, device=device, random_state=0),
        lambda device: ExactGPRegressor(device=device, random_state=0),
    ):
        cpu, gpu = make("cpu").fit(x[:1200], y[:1200]), make("cuda").fit(x[:1200], y[:1200])
        assert gpu.log_evidence_ == pytest.approx(cpu.log_evidence_, abs=0.5)
        assert np.abs(gpu.predict(x) - cpu.predict(x)).max() < 0.05


def test_same_seed_same_result():
    x, y = rows()
    first, second = (SSGPRegressor(16, device="cuda", random_state=0).fit(x, y).predict(x) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("make", [lambda **k: SSGPRegressor(16, random_state=0, **k), ExactGPRegressor])
def test_model_files_move_between_devices(tmp_path, make):
    x, y = rows(500)
    for source, target in (("cpu", "cuda"), ("cuda", "cpu")):
        model = make(device=source, **FIXED).fit(x, y)
        model.save(tmp_path / "m.prism")
        moved = prismgp.load(tmp_path / "m.prism", device=target)
        assert moved.device == target
        for a, b in zip(moved.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        same = prismgp.load(tmp_path / "m.prism")
        np.testing.assert_array_equal(same.predict(x), model.predict(x))


def test_partial_fit_and_draws_on_the_gpu():
    x, y = rows(600)
    model = (
        SSGPRegressor(16, device="cuda", random_state=0, **FIXED).fit(x[:300], y[:300]).partial_fit(x[300:], y[300:])
    )
    whole = SSGPRegressor(16, device="cpu", random_state=0, **FIXED).fit(x, y)
    np.testing.assert_allclose(model.predict(x), whole.predict(x), rtol=1e-8, atol=1e-8)
    # Draws are compared between models that centre the inputs alike: a shift rotates the features.
    gpu = SSGPRegressor(16, device="cuda", random_state=0, **FIXED).fit(x, y)
    np.testing.assert_allclose(
        gpu.sample_y(x, 2, random_state=0), whole.sample_y(x, 2, random_state=0), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("recipe", ["joint", "paper"])
def test_prism_agrees_with_the_cpu(tmp_path, recipe):
    x, y = rows(400)
    settings = {"recipe": recipe, "n_members": 2, "max_steps": 25, "random_state": 0, "max_iter": 20}
    cpu, gpu = (PrismGPRegressor(8, device=device, **settings).fit(x, y) for device in ("cpu", "cuda"))
    # Trainings in float32 drift apart; predictions of one and the same model must not.
    assert gpu.score(x, y) == pytest.approx(cpu.score(x, y), abs=0.05)
    gpu.save(tmp_path / "m")
    moved = prismgp.load(tmp_path / "m", device="cpu")
    for a, b in zip(moved.predict(x, return_std=True), gpu.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)
    gpu.partial_fit(x[:50], y[:50])
    assert np.isfinite(gpu.log_density(x, y)).all()
