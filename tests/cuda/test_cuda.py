"""The same numbers on a GPU; skipped, saying so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.core.evidence import SpectralEvidence
from prismgp.core.kernels import default_start
from prismgp.core.statistics import SpectralStatistics
from prismgp.data import ArraySource, Chunks, fit_standardiser
from prismgp.prism import members

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

FIXED = {"lengthscale": 1.5, "signal_variance": 2.0, "noise_variance": 0.1, "mean": 0.2, "optimize": False}
FEW, MANY = 32, 200  # frequencies: their small matrices are factored on the CPU, and on the GPU


def rows(n=3000, d=4):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("p", [FEW, MANY])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 1e-4)])
def test_ssgp_agrees_with_the_cpu(dtype, tolerance, p):
    x, y = rows()
    cpu, gpu = (
        SSGPRegressor(p, device=device, dtype=dtype, random_state=0, chunk_size=700, **FIXED).fit(x, y)
        for device in ("cpu", "cuda")
    )
    assert gpu.model_.predictor.blocks[0].moments.is_cuda == (p == MANY)
    assert gpu.log_evidence_ == pytest.approx(cpu.log_evidence_, rel=tolerance)
    for a, b in zip(gpu.predict(x, return_std=True), cpu.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=100 * tolerance, atol=100 * tolerance)


def test_gradients_agree():
    x, y = rows(700)
    targets = np.column_stack([y, y**2])
    source = ArraySource(x, targets)
    standardiser = fit_standardiser(source, normalize=True)
    frequencies = np.random.default_rng(1).normal(size=(MANY, 4))
    params = default_start(4, 2)
    found = []
    for device in ("cpu", "cuda"):
        chunks = Chunks(source, standardiser, rows=300, dtype=torch.float64, device=torch.device(device))
        found.append(SpectralEvidence(chunks, frequencies).value_and_gradient(params))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-10)
    np.testing.assert_allclose(found[1][1].pack(), found[0][1].pack(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_statistics_of_two_devices_combine(first):
    second = "cuda" if first == "cpu" else "cpu"
    x, y = (torch.as_tensor(each) for each in rows(300))
    w = torch.as_tensor(np.random.default_rng(1).normal(size=(4, MANY)))

    def moments(start, end, device):
        pair = (x[start:end].to(device), y[start:end, None].to(device))
        return SpectralStatistics(w.to(device)).over([pair], rows=end - start, q=1)

    both = moments(0, 100, first).merge(moments(100, 300, second))
    assert both.moments.device.type == first
    whole = moments(0, 300, "cpu")
    torch.testing.assert_close(both.moments.cpu(), whole.moments)
    torch.testing.assert_close(both.without(moments(0, 100, second)).moments.cpu(), moments(100, 300, "cpu").moments)


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
        lambda device: SSGPRegressor(FEW, device=device, random_state=0),
        lambda device: SSGPRegressor(MANY, device=device, random_state=0, max_iter=20),
        lambda device: ExactGPRegressor(device=device, random_state=0),
    ):
        cpu, gpu = make("cpu").fit(x[:1200], y[:1200]), make("cuda").fit(x[:1200], y[:1200])
        assert gpu.log_evidence_ == pytest.approx(cpu.log_evidence_, abs=0.5)
        assert np.abs(gpu.predict(x) - cpu.predict(x)).max() < 0.05


@pytest.mark.parametrize("p", [16, MANY])
def test_same_seed_same_result(p):
    x, y = rows()
    first, second = (
        SSGPRegressor(p, max_iter=20, device="cuda", random_state=0).fit(x, y).predict(x) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: SSGPRegressor(16, random_state=0, **k),
        lambda **k: SSGPRegressor(MANY, random_state=0, **k),
        ExactGPRegressor,
    ],
)
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


@pytest.mark.parametrize("p", [16, MANY])
def test_partial_fit_and_draws_on_the_gpu(tmp_path, p):
    x, y = rows(600)
    model = SSGPRegressor(p, device="cuda", random_state=0, **FIXED).fit(x[:300], y[:300])
    model.save(tmp_path / "m.prism")
    loaded = prismgp.load(tmp_path / "m.prism")
    whole = SSGPRegressor(p, device="cpu", random_state=0, **FIXED).fit(x, y)
    for each in (model, loaded):
        each.partial_fit(x[300:], y[300:])
        np.testing.assert_allclose(each.predict(x), whole.predict(x), rtol=1e-8, atol=1e-8)
    # The device may change after the fit.
    np.testing.assert_allclose(
        model.set_params(device="cpu").partial_fit(x[:9], y[:9]).predict(x),
        loaded.partial_fit(x[:9], y[:9]).predict(x),
        rtol=1e-8,
        atol=1e-8,
    )
    # Draws are compared between models that centre the inputs alike: a shift rotates the features.
    gpu = SSGPRegressor(p, device="cuda", random_state=0, **FIXED).fit(x, y)
    np.testing.assert_allclose(
        gpu.sample_y(x, 2, random_state=0), whole.sample_y(x, 2, random_state=0), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("recipe", ["joint", "paper"])
@pytest.mark.parametrize("p", [8, MANY])
def test_prism_agrees_with_the_cpu(tmp_path, recipe, p):
    x, y = rows(400)
    settings = {"recipe": recipe, "n_members": 2, "max_steps": 25, "random_state": 0, "max_iter": 20}
    cpu, gpu = (PrismGPRegressor(p, device=device, **settings).fit(x, y) for device in ("cpu", "cuda"))
    # Trainings in float32 drift apart; predictions of one and the same model must not.
    assert gpu.score(x, y) == pytest.approx(cpu.score(x, y), abs=0.05)
    gpu.save(tmp_path / "m")
    moved = prismgp.load(tmp_path / "m", device="cpu")
    for a, b in zip(moved.predict(x, return_std=True), gpu.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)
    gpu.partial_fit(x[:50], y[:50])
    assert np.isfinite(gpu.log_density(x, y)).all()


def test_recorded_steps_are_those_taken_one_by_one(monkeypatch):
    x, y = rows(600)
    settings = {"n_members": 3, "max_steps": 40, "hidden": 16, "batch_size": 64, "local": "never", "max_iter": 3}
    replayed = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: replayed.append(graph) or replay(graph))
    recorded = PrismGPRegressor(8, device="cuda", random_state=0, **settings).fit(x, y)
    assert len(replayed) > 30  # all but the first of each kind
    assert len(set(map(id, replayed))) >= 2  # steps with and without an ELBO
    monkeypatch.setattr(members, "Replay", lambda: lambda function, inputs, _: function(inputs))
    taken = PrismGPRegressor(8, device="cuda", random_state=0, **settings).fit(x, y)
    for a, b in zip(recorded.predict(x, return_std=True), taken.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
