"""The released baseline: its loss, its posterior, and the rows it gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.paper.data import RunData
from experiments.paper.released import ReleasedSSGP, preprocess


def rows(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return x, np.sin(x[:, 0]) + 0.3 * rng.normal(size=n)


def test_only_scales_and_mean_are_learned() -> None:
    x, y = rows()
    model = ReleasedSSGP(4, batch_size=20, random_state=0, passes=2)
    seen = []
    model.callback = seen.append
    model.fit(x, y)
    assert [event.iteration for event in seen] == [0, 3, 6, 6]
    assert [event.final for event in seen] == [False, False, False, True]
    assert float(model.frequencies.min()) >= 0.0
    assert float(model.frequencies.max()) < 1.0
    assert float(model.mean.detach()) != 0.0
    # The posterior with noise one, in numpy.
    angle = x / np.exp(0.5 * model.log_square_scale.detach().numpy()) @ model.frequencies.numpy()
    phi = np.concatenate([np.cos(angle), np.sin(angle)], 1) / 2.0
    matrix, mean = phi.T @ phi + np.eye(8), float(model.mean.detach())
    expected = phi @ np.linalg.solve(matrix, phi.T @ (y - mean)) + mean
    found, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    variance = 1 + np.einsum("ij,ij->i", phi, np.linalg.solve(matrix, phi.T).T)
    np.testing.assert_allclose(std, np.sqrt(variance), atol=1e-4)


def test_loss_is_that_of_the_released_recipe() -> None:
    """With a noise of one, up to its constant."""
    from prismgp._system import Streams
    from prismgp.prism.released import ReleasedModel, ReleasedSettings

    x, y = (torch.as_tensor(each).float() for each in rows(30))
    model = ReleasedSSGP(4, batch_size=20, random_state=0, passes=1).fit(x.numpy(), y.numpy())
    other = ReleasedModel(3, 1, ReleasedSettings(4, 2, 2, 4, "reconstruction", 20, 1), Streams(0))
    with torch.no_grad():
        other.mean.copy_(model.mean)
    found = model._loss(x, y[:, None])
    expected = other.negative_fit(model._features(x), y[:, None]) - 15.0 * np.log(2 * np.pi)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize("target", [True, False])
def test_rows_as_the_scripts_prepare_them(target: bool) -> None:
    x, y = rows()
    x[:, 2] = 5.0  # never varies
    data = RunData((x[:50], 3.0 * y[:50] + 1.0), x[50:], 3.0 * y[50:] + 1.0, float(np.std(3.0 * y[:50])), 50)
    found = preprocess(data, standardise_target=target)
    np.testing.assert_allclose(found.fit[0].mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(found.fit[0].std(0), [1.0, 1.0, 0.0], atol=1e-12)
    assert float(np.std(found.fit[1])) == pytest.approx(found.scale)
    assert (found.scale == pytest.approx(1.0)) == target
    # Errors in units of the scale are the same either way.
    np.testing.assert_allclose(np.diff(found.y_test) / found.scale, np.diff(data.y_test) / data.scale)
