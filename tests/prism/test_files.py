"""Model files of PrismGPRegressor: exact, and safe to read whatever they hold."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import prismgp
from prismgp import PrismGPRegressor
from prismgp.exceptions import DataError, ModelFileError
from tests.model.test_io import rewritten
from tests.prism.small import assert_same_predictions, data, has_members, model

# -- exact -----------------------------------------------------------------------------------------


FILES = {
    "joint": {},
    "hard": {"gating": "hard", "hidden": (8, 6)},
    "none": {"gating": "none", "noise_model": "constant"},
    "no layers": {"hidden": []},
    "float32": {"dtype": "float32", "kernel": "matern52"},
    "paper": {"recipe": "paper"},
    "paper latent": {"recipe": "paper", "output": "latent", "dtype": "float32", "kernel": "matern12"},
}


@pytest.mark.slow
@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("case", list(FILES))
def test_files_are_exact(tmp_path, case, q):
    x, y = data(80, q=q)
    frame = pd.DataFrame(x, columns=["a", "b"])
    fit = model(**FILES[case]).fit(frame, y)
    assert has_members(fit) or "paper" in case
    fit.save(tmp_path / "m")
    other = prismgp.load(tmp_path / "m")
    assert type(other) is PrismGPRegressor
    assert_same_predictions(other, fit, frame)
    np.testing.assert_array_equal(other.log_density(frame, y), fit.log_density(frame, y))
    np.testing.assert_array_equal(other.sample_y(frame, 3, random_state=1), fit.sample_y(frame, 3, random_state=1))
    np.testing.assert_array_equal(other.predict(frame, return_cov=True)[1], fit.predict(frame, return_cov=True)[1])
    names = ("lengthscale_", "signal_variance_", "noise_variance_", "mean_", "frequencies_", "log_evidence_")
    for name in (*names, "feature_names_in_"):
        np.testing.assert_array_equal(getattr(other, name), getattr(fit, name))
    assert other.fit_status_ == fit.fit_status_
    assert other.history_ == fit.history_
    assert {**other.get_params(), "hidden": None} == {**fit.get_params(), "hidden": None}
    fit.partial_fit(frame[:7], y[:7])
    other.partial_fit(frame[:7], y[:7])
    assert_same_predictions(other, fit, frame)


def test_number_of_steps_survives_a_file(fitted, tmp_path):
    fit, _, _ = fitted
    fit.save(tmp_path / "m")
    assert prismgp.load(tmp_path / "m").n_iter_ == fit.n_iter_


def test_files_hold_what_was_fitted(tmp_path):
    x, y = data(80)
    fit = model().fit(x, y)
    expected = fit.predict(x)
    fit.set_params(kernel="matern12", n_frequencies=9, gating="none", hidden=3, latent_dim=5)
    fit.save(tmp_path / "m")
    loaded = prismgp.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(x), expected)
    assert (loaded.kernel, loaded.n_frequencies) == ("rbf", 4)


def test_many_components_can_be_saved(tmp_path):
    x, y = data(80)
    fit = model(n_components=150).fit(x, y)
    assert has_members(fit)
    fit.save(tmp_path / "m")
    assert_same_predictions(prismgp.load(tmp_path / "m"), fit, x)


def test_save_refuses_arguments_a_file_could_not_be_read_with(fitted, tmp_path):
    fit = pickle.loads(pickle.dumps(fitted[0]))
    fit.set_params(n_members=0)
    with pytest.raises(DataError, match="n_members"):
        fit.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


# -- hostile ---------------------------------------------------------------------------------------


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def expert_of(config):
    return config["state"]["experts"][0]


HOSTILE = {
    "kind": (lambda c: expert_of(c).update(kind="os.system"), None, "kind"),
    "kind of a list": (lambda c: expert_of(c).update(kind=["revised"]), None, "kind"),
    "gating": (lambda c: expert_of(c).update(detail="evil"), None, "gating"),
    "no experts": (lambda c: c["state"].update(experts=[]), None, "experts"),
    "experts dict": (lambda c: c["state"].update(experts={"0": 1}), None, "experts"),
    "experts text": (lambda c: c["state"].update(experts=["a"] * 4), None, "usable"),
    "too many experts": (lambda c: c["state"].update(experts=[{}] * 5_000), None, "experts"),
    "no state": (lambda c: c.pop("state"), None, "'state'"),
    "rows text": (lambda c: expert_of(c).update(rows="many"), None, "range"),
    "inputs": (lambda c: c.update(inputs=3), None, "shape"),
    "outputs": (lambda c: c.update(outputs=2, target_ndim=2), None, "shape"),
    "recipe": (lambda c: c["arguments"].update(recipe="evil"), None, "recipe"),
    "stages": (lambda c: c["fit_status"].update(stages=3), None, "stages"),
    "stages of numbers": (lambda c: c["fit_status"].update(stages=[3]), None, "stages"),
    "history": (lambda c: c.update(history=[]), None, "history"),
    "negative weights": (None, lambda t: t["weights"].mul_(-1.0), "weights"),
    "weights too large": (None, lambda t: t["weights"].mul_(1.1), "weights"),
    "weights shape": (None, lambda t: t.update(weights=zeros(7)), "shape"),
    "no weights": (None, lambda t: t.pop("weights"), "weights"),
    "temperature": (None, lambda t: t["temperature"].zero_(), "temperature"),
    "noise factor": (None, lambda t: t["e0.noise_scale"].zero_(), "noise factor"),
    "no latent head": (None, lambda t: t.pop("e0.map.latent_head.bias"), "latent_head"),
    "no latent weights": (None, lambda t: t.pop("e0.map.latent_head.weight"), "latent_head"),
    "no statistics": (None, lambda t: t.pop("e0.moments"), "moments"),
    "statistics shape": (None, lambda t: t.update({"e0.moments": zeros(3, 3)}), "shape"),
    "statistics not symmetric": (None, lambda t: t["e0.moments"][0, 1].add_(1e3), "range"),
    "no posterior": (None, lambda t: t.pop("e0.weight_mean"), "weight_mean"),
    "posterior shape": (None, lambda t: t.update({"e0.inverse_root": zeros(1, 3, 3)}), "shape"),
    "posterior infinite": (None, lambda t: t["e0.inverse_root"].fill_(float("inf")), "finite"),
    "posterior out of range": (
        None,
        lambda t: t["e0.weight_mean"].fill_(1e308),
        "predictions of the model are not finite",
    ),
    "no evidence": (lambda c: expert_of(c).pop("log_evidence"), None, "log_evidence"),
    "evidence text": (lambda c: expert_of(c).update(log_evidence="high"), None, "range"),
    "statistics nan": (None, lambda t: t["e0.moments"].fill_(float("nan")), "finite"),
    "layer shape": (None, lambda t: t.update({"e0.map.layers.0.weight": zeros(8, 5)}), "shape"),
    "empty layer": (None, lambda t: t.update({"e0.map.latent_head.bias": zeros(0)}), "empty"),
    "frequencies shape": (None, lambda t: t.update({"e0.map.frequencies": zeros(4, 9)}), "shape"),
    "frequencies scalar": (None, lambda t: t.update({"e0.map.frequencies": zeros(())}), "usable"),
    "length-scale": (None, lambda t: t["e0.log_lengthscale"].fill_(1e4), "out of range"),
    "length-scales shape": (None, lambda t: t.update({"e0.log_lengthscale": zeros(9)}), "length-scales"),
    "plain shape": (None, lambda t: t.update({"e3.map.w": zeros(3)}), "kind"),
    "plain inputs": (None, lambda t: t.update({"e3.map.w": zeros(3, 4)}), "inputs"),
    "no plain": (None, lambda t: t.pop("e3.map.w"), "w"),
    "informed inputs": (None, lambda t: t.update({"e2.map.w": zeros(3, 4)}), "inputs"),
    "no level": (None, lambda t: t.pop("e2.map.level"), "level"),
    "no network beside the plain one": (None, lambda t: t.pop("e2.map.network.latent_head.bias"), "latent_head"),
    "scale zero": (None, lambda t: t["s.x_scale"].zero_(), "scale"),
}


# A file must not be able to ask for more memory than it has: these few bytes ask for terabytes.
GREEDY = {
    "frequencies": lambda t: t.update({"e0.map.frequencies": zeros(10**12, 0)}),
    "layers": lambda t: t.update({"e0.map.layers.0.bias": zeros(10**6), "e0.map.layers.1.bias": zeros(10**6)}),
    "clusters": lambda t: t.update({"e0.map.prior.log_widths": zeros(10**6), "e0.map.latent_head.bias": zeros(3)}),
}


GREEDY_PAPER = {
    "networks": lambda t: t.update({"e0.map.vae.encoder.head_weight": zeros(1, 10**12, 0)}),
    "prior": lambda t: t.update({"e0.map.vae.prior.directions": zeros(0, 10**12)}),
}


HOSTILE_PAPER = {
    "output": (lambda c: expert_of(c).update(detail="evil"), None, "re-configuration"),
    "columns": (lambda c: expert_of(c).update(detail="latent"), lambda t: t.update({"e0.map.w": zeros(5, 4)}), "fit"),
    "scale": (None, lambda t: t["e0.map.scale"].mul_(-1.0), "scale"),
    "shift": (None, lambda t: t.update({"e0.map.shift": zeros(7)}), "shape"),
    "no network": (None, lambda t: t.pop("e0.map.vae.encoder.head_weight"), "Reconfigurer"),
    "network shape": (None, lambda t: t.update({"e0.map.vae.decoder.head_bias": zeros(1)}), "usable|shape"),
}


@pytest.fixture(scope="module")
def file_bytes(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    fit, x, y = fitted
    names = ["member 0", "member 1", "ssgp with learned noise", "ssgp"]
    assert [expert.name for expert in fit.model_.predictor.experts] == names
    fit.save(folder / "joint")
    model(recipe="paper").fit(x, y).save(folder / "paper")
    return {name: (folder / name).read_bytes() for name in ("joint", "paper")}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_files(file_bytes, tmp_path, case):
    edit, tensors, message = HOSTILE[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes["joint"], edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(tmp_path / "m")


@pytest.mark.parametrize("case", list(HOSTILE_PAPER))
def test_hostile_files_of_the_paper_recipe(file_bytes, tmp_path, case):
    edit, tensors, message = HOSTILE_PAPER[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes["paper"], edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("recipe", "case"), [*(("joint", case) for case in GREEDY), *(("paper", case) for case in GREEDY_PAPER)]
)
def test_greedy_files(file_bytes, tmp_path, recipe, case):
    tensors = {**GREEDY, **GREEDY_PAPER}[case]
    (tmp_path / "m").write_bytes(rewritten(file_bytes[recipe], None, tensors=tensors))
    with pytest.raises(ModelFileError):
        prismgp.load(tmp_path / "m")


def test_untouched_contents_still_load(file_bytes, tmp_path):
    """The tests above refuse because of what they change."""
    for data_ in file_bytes.values():
        (tmp_path / "m").write_bytes(rewritten(data_, None))
        prismgp.load(tmp_path / "m")
