"""The Reconfigurer: what it learns, interrupts, unusual data, and its state."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from prismgp import Reconfigurer
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.vae import VAETraining

# -- training ------------------------------------------------------------------------------------


def small(**arguments):
    return Reconfigurer(**{"n_components": 3, "latent_dim": 2, "max_steps": 10, "random_state": 0, **arguments})


@pytest.fixture(scope="module")
def blobs():
    """Three clusters, and the cluster of each row."""
    truth = np.repeat(np.arange(3), [70, 100, 130])
    return 4 * np.eye(3)[truth] + 0.5 * np.random.default_rng(0).normal(size=(300, 3)), truth


@pytest.fixture(scope="module")
def trained(blobs):
    """Trained until the clusters are found: for tests of what is learned."""
    return small(max_steps=900, batch_size=64).fit(blobs[0])


@pytest.fixture(scope="module")
def quick(blobs):
    """Trained for a few steps."""
    return small().fit(blobs[0])


@pytest.mark.slow
def test_blobs_become_clusters(blobs, trained):
    (x, truth), model = blobs, trained
    assert adjusted_rand_score(truth, model.predict(x)) > 0.8
    assert model.history_["smallest_separation"][0] < 1.0
    assert model.history_["smallest_separation"][-1] > 8.0
    # Separated in the latent space itself, not by name only.
    z = model.transform(x)
    centres = np.stack([z[truth == c].mean(0) for c in range(3)])
    within = max(z[truth == c].std() for c in range(3))
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2)[np.triu_indices(3, 1)]
    assert gaps.min() > within


@pytest.mark.slow
def test_training_improves_on_held_out_rows(blobs, trained):
    model = trained
    history = model.history_
    assert history["held_out_objective"][-1] > history["held_out_objective"][0] + 50
    assert history["reconstruction"][-1] > history["reconstruction"][0] + 0.5
    assert min(history["marginal_kl"]) > -0.3  # an estimate of something that is not negative
    lengths = {len(column) for column in history.values()}
    assert len(lengths) == 1
    assert history["step"] == sorted(set(history["step"]))
    assert all(sum(sizes) == model.fit_status_["held_out_rows"] == 30 for sizes in history["cluster_sizes"])
    np.testing.assert_allclose(model.responsibilities(blobs[0]).sum(1), 1.0)


@pytest.mark.slow
def test_same_seed_same_bits(blobs):
    x = blobs[0]
    first, second = (small(max_steps=30).fit(x) for _ in range(2))
    np.testing.assert_array_equal(first.transform(x), second.transform(x))
    assert first.history_["objective"] == second.history_["objective"]
    assert not np.array_equal(small(random_state=1).fit(x).transform(x), first.transform(x))


@pytest.mark.slow
def test_interrupt_keeps_the_best_state(blobs, monkeypatch):
    x = blobs[0]
    calm = small(max_steps=50).fit(x)
    original = torch.optim.Adam.step
    count = 0

    def impatient(self, *arguments, **keywords):
        nonlocal count
        count += 1
        if count == 61:
            raise KeyboardInterrupt
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.Adam, "step", impatient)
    with pytest.warns(PrismGPWarning, match="interrupted after 60 steps; the state of step 50 is kept"):
        stopped = small(max_steps=100, on_interrupt="keep").fit(x)
    assert stopped.fit_status_["interrupted"]
    assert stopped.n_iter_ == 60
    np.testing.assert_array_equal(stopped.transform(x), calm.transform(x))


def test_an_interrupt_after_the_last_step(blobs, monkeypatch):
    def interrupt(*_, **__):  # when a check is shown, the one after the last step
        raise KeyboardInterrupt

    monkeypatch.setattr("prismgp.context.tqdm.set_postfix_str", interrupt)
    with pytest.warns(PrismGPWarning, match="the fit was interrupted after 20 steps; the state of step"):
        stopped = small(max_steps=20, on_interrupt="keep").fit(blobs[0])
    assert stopped.fit_status_["interrupted"]


def test_patience_stops_and_restores_the_best(blobs, monkeypatch):
    x = blobs[0]
    # Nothing after the start is better.
    monkeypatch.setattr(VAETraining, "learning_rate", 0.0)
    model = small(max_steps=500, patience=60).fit(x)
    assert (model.fit_status_["steps"], model.fit_status_["best_step"]) == (60, 0)
    assert "no better objective" in model.fit_status_["message"]


def test_not_a_number_ends_the_training(blobs, monkeypatch):
    monkeypatch.setattr(VAETraining, "learning_rate", 1e30)
    model = small(max_steps=200).fit(blobs[0])
    assert "range of floating-point numbers" in model.fit_status_["message"]
    assert np.isfinite(model.transform(blobs[0])).all()
    assert np.isfinite(model.history_["objective"]).all()


# -- hostile and unusual data --------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 11])
def test_few_rows(n):
    x = np.random.default_rng(0).normal(size=(n, 4))
    for output in ("latent", "reconstruction"):
        out = small(output=output).fit_transform(x)
        assert out.shape == (n, 2 if output == "latent" else 4)
        assert np.isfinite(out).all()


def test_constant_columns_do_no_harm():
    x = np.random.default_rng(0).normal(size=(50, 3))
    x[:, 1] = 1e6
    model = small(output="reconstruction").fit(x)
    out = model.transform(x)
    np.testing.assert_array_equal(out[:, 1], 1e6)
    assert np.abs(out[:, [0, 2]]).max() < 100
    other = x.copy()
    other[:, 1] = -3.0
    np.testing.assert_allclose(model.transform(other), out, rtol=1e-10, atol=1e-10)
    everything = small(output="reconstruction").fit_transform(np.full((20, 2), 7.0))
    np.testing.assert_array_equal(everything, 7.0)


@pytest.mark.parametrize("fit", ["quick", pytest.param("trained", marks=pytest.mark.slow)])
def test_values_far_from_the_training_rows_stay_finite(request, fit):
    far = np.array([[1e140, 0.0, 0.0], [-1e140, 1e9, 0.0]])
    model = request.getfixturevalue(fit)
    assert np.isfinite(model.transform(far)).all()
    np.testing.assert_allclose(model.responsibilities(far).sum(1), 1.0)


@pytest.mark.slow
def test_reconstruction_is_in_the_users_units(blobs, trained):
    x, model = blobs[0], trained
    out = model.set_params(output="reconstruction").transform(x)
    model.set_params(output="latent")
    # A good part of the spread, most of which is between the blobs, is found again.
    assert np.square(out - x).mean() < 0.3 * np.square(x - x.mean(0)).mean()


def test_float32_pandas_and_chunks(blobs, quick, monkeypatch):
    x, model = blobs[0], quick
    single = model.transform(x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, model.transform(x), rtol=1e-4, atol=1e-4)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    named = small().fit(frame)
    # The memory order of a frame changes the last bit of the columns' means.
    np.testing.assert_allclose(named.transform(frame), model.transform(x), rtol=1e-9, atol=1e-12)
    assert list(named.get_feature_names_out()) == ["reconfigurer0", "reconfigurer1"]
    named.set_params(output="reconstruction")
    assert list(named.get_feature_names_out()) == ["a", "b", "c"]
    assert list(named.set_output(transform="pandas").transform(frame).columns) == ["a", "b", "c"]
    monkeypatch.setattr("prismgp.estimators.transformers.CHUNK_ROWS", 7)
    np.testing.assert_allclose(model.transform(x), single, rtol=1e-4, atol=1e-4)
    assert model.predict(x).shape == (300,)


def test_read_only_and_fortran_rows(blobs, quick):
    x = np.asfortranarray(blobs[0])
    x.flags.writeable = False
    np.testing.assert_allclose(small().fit_transform(x), quick.transform(blobs[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_components": 0},
        {"latent_dim": 1.5},
        {"alpha": -1.0},
        {"beta": math.nan},
        {"output": "x"},
        {"max_steps": 0},
        {"patience": 0},
        {"device": "tpu"},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(DataError, match=next(iter(wrong))):
        small(**wrong).fit(np.ones((3, 2)))
