"""recipe="released": its loss, and that its predictions are the posterior of its features."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prismgp
from prismgp._system import Streams
from prismgp.exceptions import DataError, ModelFileError
from prismgp.prism import fit as recipes
from prismgp.prism.released import ReleasedModel, ReleasedSettings
from tests.model.test_io import rewritten
from tests.prism.small import assert_same_predictions, data, model

SETTINGS = ReleasedSettings(5, 3, 2, 4, "reconstruction", 32, 10)


def test_loss_has_no_determinant(rng):  # T2
    net = ReleasedModel(3, 2, SETTINGS, Streams(0)).double()
    with torch.no_grad():
        net.log_noise_std.copy_(torch.tensor([-0.3, 0.2]))
        net.mean.copy_(torch.tensor([0.5, -1.0]))
    phi, y = rng.normal(size=(20, 10)), rng.normal(size=(20, 2))
    expected = 0.0
    for k, v in enumerate((-0.3, 0.2)):
        centred = y[:, k] - (0.5, -1.0)[k]
        weights = np.linalg.solve(phi.T @ phi + np.exp(2 * v) * np.eye(10), phi.T @ centred)
        squares = ((centred - phi @ weights) ** 2).sum()
        expected += 10 * np.log(2 * np.pi) + 20 * v + 0.5 * np.exp(-2 * v) * squares
    found = float(net.negative_fit(torch.as_tensor(phi), torch.as_tensor(y)).detach())
    assert found == pytest.approx(expected, rel=1e-6)
    assert 0.0 <= float(net.frequencies.min()) <= float(net.frequencies.max()) < 1.0  # uniform, not normal


@pytest.mark.parametrize("output", ["reconstruction", "latent"])
def test_predictions_are_the_posterior_of_the_features(output):
    x, y = data(80)
    fit = model(recipe="released", output=output).fit(x, y)
    (expert,) = fit.model_.predictor.experts
    s = fit.model_.standardiser
    rows = torch.as_tensor((x - s.x_shift) / s.x_scale)
    seen = expert.map.reconfigure(rows).numpy()
    assert seen.shape[1] == (2 if output == "latent" else x.shape[1])
    angle = (seen / expert.params.lengthscale) @ fit.frequencies_.T
    phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / 2.0
    noise, centred = expert.params.noise[0], (y - s.y_shift) / s.y_scale - expert.params.mean[0]
    matrix = phi.T @ phi + noise * np.eye(8)
    mean = phi @ np.linalg.solve(matrix, phi.T @ centred) + expert.params.mean[0]
    variance = noise * (1 + np.einsum("ij,ij->i", phi, np.linalg.solve(matrix, phi.T).T))
    got, std = fit.predict(x, return_std=True)
    np.testing.assert_allclose(got, mean * s.y_scale + s.y_shift, rtol=1e-6)
    np.testing.assert_allclose(std, np.sqrt(variance) * s.y_scale, rtol=1e-6)
    assert fit.signal_variance_ == pytest.approx(float(np.squeeze(s.y_scale)) ** 2)  # fixed at one, in its units


def test_the_noise_is_learned_and_the_last_state_kept():
    x, y = data(80)
    fit = model(recipe="released", max_steps=7, batch_size=20).fit(x, y)
    assert fit.n_iter_ == 7
    assert fit.history_["step"] == [4, 7]  # four batches are a pass
    assert fit.fit_status_["message"] == "all 7 steps taken"
    assert fit.model_.predictor.leader.params.log_noise[0] != 0.0


def test_steps_are_passes(monkeypatch):
    x, y = data(50)
    monkeypatch.setattr(recipes, "PASSES", 3)
    assert model(recipe="released", batch_size=20, max_steps=None).fit(x, y).n_iter_ == 9


def test_seeds_files_and_several_outputs(tmp_path):
    x, y = data(60, q=2)
    first, second = (model(recipe="released").fit(x, y) for _ in range(2))
    assert_same_predictions(first, second, x)
    first.save(tmp_path / "m")
    assert_same_predictions(prismgp.load(tmp_path / "m"), first, x)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


HOSTILE = {
    "no network": (lambda t: t.pop("e0.map.vae.encoder.mean_weight"), "released recipe"),
    "shape": (lambda t: t.update({"e0.map.vae.decoder.mean_bias": zeros(1)}), "shape"),
    "variance": (lambda t: t["e0.map.vae.encoder.hidden_var"].fill_(-1.0), "variance"),
    "greedy": (
        lambda t: t.update({"e0.map.vae.encoder.mean_weight": zeros(1, 10**12, 0)}),
        "empty|shape|up",
    ),
}


@pytest.fixture(scope="module")
def file_bytes(tmp_path_factory):
    path = tmp_path_factory.mktemp("released") / "m"
    model(recipe="released").fit(*data(60)).save(path)
    return path.read_bytes()


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files(file_bytes, tmp_path, case):
    tensors, message = HOSTILE[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes, None, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(tmp_path / "m")


def test_a_certificate_is_about_the_gaussian_kernel():
    """The released frequencies are not those of any kernel here, and the certificate shows the distance."""
    x, y = data(60)
    (found,) = model(recipe="released").fit(x, y).certify(x, y).members
    assert found.kernel_error.lower > 1.0


def test_parameters_it_does_not_have():
    x, y = data(40)
    with pytest.raises(DataError, match="kernel='matern32' must be \"rbf\""):
        model(recipe="released", kernel="matern32").fit(x, y)
    with pytest.raises(DataError, match="which has one layer"):
        model(recipe="released", hidden=(8, 8)).fit(x, y)
