"""Files of models with neighbours: exact, mapped instead of read, and safe to read whatever they hold."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import prismgp
from prismgp.core.kernels import KERNELS, Parameters
from prismgp.core.models import Standardiser
from prismgp.exceptions import ModelFileError, PrismGPError
from prismgp.model import FittedModel, file_bytes, load_model, save_model
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.model import NeighborModel
from prismgp.prism.local import LocalMixture, NeighborExpert, View, evaluate, make_local, start_lengthscales
from tests.model.test_io import rewritten
from tests.prism.small import assert_same_predictions, data, model

ROWS = 150
VIEWS = [View(residual=residual, latent=latent) for residual in (True, False) for latent in (True, False)]
STATUS = {"rows": ROWS, "stages": []}


def zeros(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def neighbors(n=ROWS, d=2, q=1, dtype=torch.float32, k=7, seed=0):
    """A model of neighbours alone, with parameters of no fit."""
    rng = np.random.default_rng(seed)
    params = Parameters(rng.normal(size=d) * 0.3, np.zeros(q), np.full(q, -3.0), rng.normal(size=q))
    x, y = torch.as_tensor(rng.normal(size=(n, d))).to(dtype), torch.as_tensor(rng.normal(size=(n, q)))
    gp = LocalGP(KERNELS["matern32"], params, x, y, k)
    return FittedModel(
        "neighbors",
        NeighborModel(gp, -12.5),
        Standardiser(np.ones(d), np.full(d, 2.0), np.ones(q), np.ones(q), np.zeros(q)),
        "matern32",
        1 if q == 1 else 2,
        -12.5,
        input_lengthscale=params.lengthscale,
        status={**STATUS, "rows": n},
        arguments={"kernel": "matern32", "device": "cpu", "dtype": "float64"},
    )


def beside(fit, x, y, *, rows=ROWS, weights=(0.0, 0.4, 0.3, 0.2, 0.1)):
    """The mixture of a fit, with four neighbour GPs on some of its rows."""
    whole = fit.model_
    base, y = whole.predictor, whole.target_to_model(np.atleast_2d(y.T).T[:rows])
    seen = evaluate(base, whole.to_model(x[:rows]))
    near = []
    for k, view in enumerate(VIEWS):
        gp = make_local(view, seen, y, KERNELS["rbf"], start_lengthscales(base, np.ones(x.shape[1]), view), 5 + k)
        gp = gp.with_parameters(replace(gp.params, log_noise=gp.params.log_noise - k))
        near.append(NeighborExpert(view, replace(gp, degrees=np.inf if view.residual else 3.0 + k)))
    predictor = LocalMixture(base, tuple(near), np.array(weights), np.full(y.shape[1], 1.3))
    return replace(whole, predictor=predictor, arguments=fit.get_params())


def assert_same(a, b, x):
    for got, expected in zip(a.predict(x), b.predict(x), strict=True):
        np.testing.assert_array_equal(got, expected)
    rngs = np.random.default_rng(3), np.random.default_rng(3)
    np.testing.assert_array_equal(a.sample(x[:9], 2, rngs[0]), b.sample(x[:9], 2, rngs[1]))
    np.testing.assert_array_equal(a.covariance(x[:9])[1], b.covariance(x[:9])[1])


# -- exact -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", [1, 2])
def test_neighbors_alone(tmp_path, q, dtype):
    saved = neighbors(q=q, dtype=dtype)
    save_model(saved, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    gp, expected = loaded.predictor.gp, saved.predictor.gp
    assert (gp.coordinates.dtype, gp.kernel, gp.n_neighbors) == (dtype, expected.kernel, 7)
    assert torch.equal(gp.coordinates, expected.coordinates)
    assert loaded.log_evidence == saved.log_evidence
    assert_same(loaded, saved, np.random.default_rng(1).normal(size=(50, 2)))


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("rows", [ROWS, 40])
def test_neighbors_beside_a_mixture(request, tmp_path, rows, q):
    fit, x, y = request.getfixturevalue("fitted" if q == 1 else "fitted_two")
    saved = beside(fit, x, y, rows=rows)
    save_model(saved, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert [each.view for each in loaded.predictor.near] == VIEWS
    for got, expected in zip(loaded.predictor.near, saved.predictor.near, strict=True):
        assert got.gp.coordinates.is_contiguous()
        assert got.gp.coordinates.dtype == torch.float32
        assert torch.equal(got.gp.coordinates, expected.gp.coordinates)
        assert torch.equal(got.gp.targets, expected.gp.targets)
    assert_same(loaded, saved, x)
    # What neighbour GPs share is in the file once: the widest coordinates, residuals and targets.
    arrays = safetensors.torch.load((tmp_path / "m").read_bytes())
    assert {name for name in arrays if "coordinates" in name} == {"near.coordinates.0"}
    assert {name for name in arrays if "targets" in name} == {"near.targets.0", "near.targets.1"}
    near = loaded.predictor.near
    assert near[1].gp.coordinates is near[3].gp.coordinates
    assert near[0].gp.targets is near[1].gp.targets


@pytest.mark.slow
def test_fits_with_neighbors(tmp_path):
    x, y = data(200)
    fit = model(local="always").fit(x, y)
    assert isinstance(fit.model_.predictor, LocalMixture)
    fit.save(tmp_path / "m")
    other = prismgp.load(tmp_path / "m")
    assert other.fit_status_ == fit.fit_status_
    assert_same_predictions(other, fit, x)
    for each in (fit, other):
        each.partial_fit(x[:7] + 0.1, y[:7])
    assert_same_predictions(other, fit, x)
    other.save(tmp_path / "again")
    assert_same_predictions(prismgp.load(tmp_path / "again"), fit, x)


def test_coordinates_that_differ_are_kept_apart(tmp_path, fitted):
    saved = beside(*fitted)
    near = list(saved.predictor.near)
    moved = near[3].gp.coordinates.clone()
    moved[0, 0] += 1.0
    near[3] = NeighborExpert(near[3].view, replace(near[3].gp, coordinates=moved))
    saved = replace(saved, predictor=replace(saved.predictor, near=tuple(near)))
    save_model(saved, tmp_path / "m")
    assert_same(load_model(tmp_path / "m"), saved, fitted[1])


@pytest.mark.parametrize("change", [{"log_noise": -40.0}, {"log_lengthscale": -500.0}, {"mean": 1e200}])
def test_what_could_not_be_read_is_not_written(tmp_path, change):
    saved = neighbors()
    (name, value), params = *change.items(), saved.predictor.params
    gp = saved.predictor.gp.with_parameters(replace(params, **{name: np.full_like(getattr(params, name), value)}))
    with pytest.raises(PrismGPError, match="cannot hold"):
        save_model(replace(saved, predictor=NeighborModel(gp, 0.0)), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_size_is_known_before(tmp_path, fitted):
    for saved in (neighbors(), beside(*fitted), fitted[0].model_):
        saved = replace(saved, arguments=saved.arguments or fitted[0].get_params())
        save_model(saved, tmp_path / "m")
        assert file_bytes(saved) == (tmp_path / "m").stat().st_size


# -- mapped ----------------------------------------------------------------------------------------

LARGE = 40_000  # rows of eight coordinates: 1.3 MB, and 2.6 MB for eight targets


def large(tmp_path):
    saved = neighbors(LARGE, 8, 8, k=3)
    save_model(saved, tmp_path / "m")
    return saved, np.random.default_rng(1).normal(size=(20, 8))


def is_mapped(tensor, name):
    """Whether the numbers lie in a map of a file of that name."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return name in line
    return False


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell")
def test_large_tensors_are_views_of_the_file(tmp_path):
    saved, _ = large(tmp_path)
    gp = load_model(tmp_path / "m").predictor.gp
    assert is_mapped(gp.coordinates, str(tmp_path / "m"))
    assert is_mapped(gp.targets, str(tmp_path / "m"))
    assert not is_mapped(saved.predictor.gp.targets, str(tmp_path / "m"))


def test_models_outlive_their_files(tmp_path):
    saved, x = large(tmp_path)
    path = tmp_path / "m"
    first = load_model(path)
    save_model(neighbors(LARGE, 8, 8, k=3, seed=1), path)  # renamed over it
    second = load_model(path)
    path.unlink()
    assert_same(first, saved, x)
    assert_same(second, neighbors(LARGE, 8, 8, k=3, seed=1), x)


def test_models_can_replace_their_own_file(tmp_path):
    saved, x = large(tmp_path)
    save_model(load_model(tmp_path / "m"), tmp_path / "m")
    assert_same(load_model(tmp_path / "m"), saved, x)


def test_writes_do_not_reach_the_file(tmp_path):
    large(tmp_path)
    before = (tmp_path / "m").read_bytes()
    load_model(tmp_path / "m").predictor.gp.targets.zero_()
    assert (tmp_path / "m").read_bytes() == before


def test_copies_are_of_the_model_alone(tmp_path):
    saved, x = large(tmp_path)
    loaded = load_model(tmp_path / "m")
    data_ = pickle.dumps(loaded.predictor.gp)
    assert len(data_) < (tmp_path / "m").stat().st_size + 10_000
    for gp in (pickle.loads(data_), copy.deepcopy(loaded.predictor.gp)):
        assert_same(replace(loaded, predictor=NeighborModel(gp, 0.0)), saved, x)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_loading_and_saving_take_little_memory(tmp_path):
    """A file of 120 MB; anonymous memory, which the system cannot drop, grows by a fraction of it."""
    save_model(neighbors(10**6, 14, 8, k=3), tmp_path / "m")
    code = f"""
import re, threading, time
from prismgp.model import load_model, save_model
def anon(): return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
start = most = anon()
done = False
def watch():
    global most
    while not done:
        most = max(most, anon())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
model = load_model({str(tmp_path / "m")!r})
save_model(model, {str(tmp_path / "n")!r})
done = True
thread.join()
print(most - start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40e6 < (tmp_path / "m").stat().st_size / 3
    assert (tmp_path / "m").read_bytes() == (tmp_path / "n").read_bytes()


# -- hostile ---------------------------------------------------------------------------------------


def near_of(config):
    return config["state"]["near"][0]


COORDINATES, TARGETS = "near.coordinates.0", "near.targets.0"

BOTH = {
    "no list": (lambda c: c["state"].update(near=3), None, "neighbour GPs"),
    "empty list": (lambda c: c["state"].update(near=[]), None, "neighbour GPs"),
    "list of numbers": (lambda c: c["state"].update(near=[1]), None, "neighbour GPs"),
    "too many": (lambda c: c["state"].update(near=[near_of(c)] * 1_000), None, "neighbour GPs"),
    "kernel": (lambda c: near_of(c).update(kernel="evil"), None, "kernel"),
    "kernel list": (lambda c: near_of(c).update(kernel=["rbf"]), None, "kernel"),
    "no kernel": (lambda c: near_of(c).pop("kernel"), None, "kernel"),
    "degrees too few": (lambda c: near_of(c).update(degrees=2.0), None, "degrees"),
    "no degrees": (lambda c: near_of(c).update(degrees=0.0), None, "degrees"),
    "degrees an integer": (lambda c: near_of(c).update(degrees=7), None, "degrees"),
    "degrees text": (lambda c: near_of(c).update(degrees="many"), None, "degrees"),
    "degrees beyond all bounds": (lambda c: near_of(c).update(degrees=1e200), None, "degrees"),
    "neighbours zero": (lambda c: near_of(c).update(n_neighbors=0), None, "n_neighbors"),
    "neighbours negative": (lambda c: near_of(c).update(n_neighbors=-3), None, "n_neighbors"),
    "neighbours true": (lambda c: near_of(c).update(n_neighbors=True), None, "n_neighbors"),
    "neighbours text": (lambda c: near_of(c).update(n_neighbors="5"), None, "n_neighbors"),
    "neighbours fraction": (lambda c: near_of(c).update(n_neighbors=2.5), None, "n_neighbors"),
    "no neighbours": (lambda c: near_of(c).pop("n_neighbors"), None, "n_neighbors"),
    "which rows": (lambda c: near_of(c).update(coordinates=99), None, "which rows"),
    "which rows text": (lambda c: near_of(c).update(coordinates="0"), None, "which rows"),
    "which targets": (lambda c: near_of(c).update(targets=-1), None, "which rows"),
    "no coordinates": (None, lambda t: t.pop(COORDINATES), "coordinates"),
    "no targets": (None, lambda t: t.pop(TARGETS), "targets"),
    "no rows": (None, lambda t: t.update({COORDINATES: t[COORDINATES][:0], TARGETS: t[TARGETS][:0]}), "no rows|shape"),
    "coordinates number": (None, lambda t: t.update({COORDINATES: zeros(())}), "shape"),
    "coordinates vector": (None, lambda t: t.update({COORDINATES: zeros(ROWS)}), "shape"),
    "coordinates narrow": (None, lambda t: t.update({COORDINATES: t[COORDINATES][:, :1].contiguous()}), "shape"),
    "coordinates wide": (None, lambda t: t.update({COORDINATES: torch.cat([t[COORDINATES]] * 2, 1)}), "shape"),
    "coordinates nan": (None, lambda t: t[COORDINATES][3, 1].fill_(float("nan")), "finite"),
    "coordinates infinite": (None, lambda t: t[COORDINATES][3, 1].fill_(float("inf")), "finite"),
    "coordinates int": (None, lambda t: t.update({COORDINATES: t[COORDINATES].int()}), "type"),
    "coordinates half": (None, lambda t: t.update({COORDINATES: t[COORDINATES].half()}), "type"),
    "coordinates far": (None, lambda t: t.update({COORDINATES: t[COORDINATES].double() * 1e200}), "range"),
    "targets float32": (None, lambda t: t.update({TARGETS: t[TARGETS].float()}), "float64"),
    "targets short": (None, lambda t: t.update({TARGETS: t[TARGETS][1:].clone()}), "shape"),
    "targets wide": (None, lambda t: t.update({TARGETS: zeros(ROWS, 3)}), "shape"),
    "targets nan": (None, lambda t: t[TARGETS].fill_(float("nan")), "finite"),
    "targets huge": (None, lambda t: t[TARGETS].fill_(1e308), "range"),
}
ALONE = {
    "two": (lambda c: c["state"].update(near=[near_of(c)] * 2), None, "expected one neighbour GP, found 2"),
    "no state": (lambda c: c["state"].clear(), None, "near"),
    "rows": (lambda c: (c.update(rows=99), c["fit_status"].update(rows=99)), None, "99"),
    "inputs": (lambda c: c.update(inputs=3), None, "shape"),
    "dtype": (lambda c: c["arguments"].update(dtype="evil"), None, "evil"),
    "length-scale": (None, lambda t: t["p.log_lengthscale"].fill_(-1e4), "out of range"),
    "small length-scale": (None, lambda t: t["p.log_lengthscale"].fill_(-600.0), "range"),
    "noise": (None, lambda t: t["p.log_noise"].fill_(-600.0), "noise"),
    "mean": (None, lambda t: t["p.mean"].fill_(1e300), "range"),
    "parameters float32": (None, lambda t: t.update({"p.mean": t["p.mean"].float()}), "float64"),
}
BESIDE = {
    "degrees of a residual view": (lambda c: near_of(c).update(degrees=5.0, residual=True), None, "degrees"),
    "view": (lambda c: near_of(c).update(latent=1), None, "not three booleans"),
    "no view": (lambda c: near_of(c).pop("residual"), None, "residual"),
    "other view": (lambda c: near_of(c).update(latent=False), None, "shape"),
    "weights negative": (None, lambda t: t["near.weights"].copy_(torch.tensor([-0.1, 0.5, 0.3, 0.2, 0.1])), "weights"),
    "weights too large": (None, lambda t: t["near.weights"].mul_(1.1), "weights"),
    "weights shape": (None, lambda t: t.update({"near.weights": zeros(2)}), "shape"),
    "no weights": (None, lambda t: t.pop("near.weights"), "weights"),
    "temperature": (None, lambda t: t["near.temperature"].zero_(), "temperature"),
    "temperature shape": (None, lambda t: t.update({"near.temperature": zeros(3)}), "shape"),
    "no parameters": (None, lambda t: t.pop("near.2.log_signal"), "log_signal"),
    "length-scales": (None, lambda t: t.update({"near.1.log_lengthscale": zeros(9)}), "shape"),
    "length-scale": (None, lambda t: t["near.0.log_lengthscale"].fill_(1e4), "out of range"),
    "weights float32": (None, lambda t: t.update({"near.weights": t["near.weights"].float()}), "float64"),
    "more rows": (
        None,
        lambda t: t.update(
            {name: torch.cat([t[name]] * 2) for name in t if "coordinates" in name or "targets" in name}
        ),
        "more neighbours",
    ),
}


@pytest.fixture(scope="module")
def files(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    save_model(neighbors(), folder / "alone")
    save_model(beside(*fitted), folder / "beside")
    return {name: (folder / name).read_bytes() for name in ("alone", "beside")}


@pytest.mark.parametrize(
    ("kind", "case"),
    [(kind, case) for kind, own in (("alone", ALONE), ("beside", BESIDE)) for case in (*BOTH, *own)],
)
def test_hostile_files(files, tmp_path, kind, case):
    edit, tensors, message = {**BOTH, **(ALONE if kind == "alone" else BESIDE)}[case]
    (tmp_path / "m").write_bytes(rewritten(files[kind], edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("degrees", [2.0, 1e200, math.nan, -math.inf])
def test_a_file_that_could_not_be_read_is_not_written(tmp_path, degrees):
    saved = neighbors()
    predictor = replace(saved.predictor, gp=replace(saved.predictor.gp, degrees=degrees))
    with pytest.raises(PrismGPError, match="degrees of freedom"):
        save_model(replace(saved, predictor=predictor), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_greedy_numbers_of_neighbours(tmp_path):
    saved = neighbors(20_000, 1, k=5)
    save_model(saved, tmp_path / "m")
    changed = rewritten((tmp_path / "m").read_bytes(), lambda c: near_of(c).update(n_neighbors=10**12))
    (tmp_path / "m").write_bytes(changed)
    with pytest.raises(ModelFileError, match="20,000 neighbours"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize("kind", ["alone", "beside"])
def test_untouched_contents_still_load(files, tmp_path, kind):
    """The tests above refuse because of what they change."""
    (tmp_path / "m").write_bytes(rewritten(files[kind], None))
    load_model(tmp_path / "m")


def test_hostile_headers(files, tmp_path):
    """Shapes and places that a parser could fall for, behind a valid checksum."""
    import hashlib

    from prismgp.model.container import ZEROS, digest_place

    original = files["alone"]
    size = int.from_bytes(original[:8], "little")
    cases = {
        "gap": lambda h: h["p.mean"].update(data_offsets=[h["p.mean"]["data_offsets"][0] + 8] * 2),
        "shape": lambda h: h[TARGETS].update(shape=[ROWS, 2]),
        "negative": lambda h: h[TARGETS].update(shape=[-1, -ROWS]),
        "true": lambda h: h["p.mean"].update(shape=[True]),
        "huge": lambda h: h[TARGETS].update(shape=[2**62, 4]),
        "text": lambda h: h[TARGETS].update(shape="ab"),
        "offsets": lambda h: h[TARGETS].update(data_offsets=[0]),
        "beyond": lambda h: h[TARGETS].update(data_offsets=[10**9, 10**9 + 8 * ROWS]),
        "overlap": lambda h: h.update(other=dict(h[TARGETS])),
        "missing": lambda h: h.pop(TARGETS),
        "more keys": lambda h: h[TARGETS].update(code="x"),
        "entry": lambda h: h.update({TARGETS: 3}),
        "type list": lambda h: h[TARGETS].update(dtype=["F64"]),
        "no metadata": lambda h: h["__metadata__"].pop("prismgp"),
        "metadata number": lambda h: h["__metadata__"].update(prismgp=3),
    }
    for edit in cases.values():
        header = json.loads(original[8 : 8 + size])
        header["__metadata__"]["sha256"] = ZEROS.decode()
        edit(header)
        body = json.dumps(header, separators=(",", ":")).encode()
        out = bytearray(len(body).to_bytes(8, "little") + body + original[8 + size :])
        out[digest_place(out)] = hashlib.sha256(out).hexdigest().encode()
        (tmp_path / "m").write_bytes(out)
        with pytest.raises(ModelFileError):
            load_model(tmp_path / "m")
