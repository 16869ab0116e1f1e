"""Model files: exact round trips, atomic writes, and ModelFileError for everything else."""

from __future__ import annotations

import json
import os
import pickle
import struct

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import prismgp
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.exceptions import ModelFileError, PrismGPWarning
from prismgp.model.container import ZEROS, digest_place, read_tensors, write_tensors


def fitted(kind="ssgp", *, outputs=1, names=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x[:, 0] + rng.normal(size=60) if outputs == 1 else rng.normal(size=(60, outputs))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]) if names else x
    model = {
        "ssgp": SSGPRegressor(5, random_state=0, kernel="matern32"),
        "single": SSGPRegressor(5, random_state=0, dtype="float32"),
        "learned": SSGPRegressor(3, random_state=0, learn_frequencies=True),
        "wide": SSGPRegressor(64, random_state=0, max_iter=5),  # memory order decides how its products round
        "exact": ExactGPRegressor(lengthscale=[1.0, 2.0, 3.0]),
    }[kind]
    return model.fit(frame, y), frame


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["ssgp", "single", "learned", "wide", "exact"])
def test_round_trip_is_exact(tmp_path, kind, outputs):
    model, x = fitted(kind, outputs=outputs, names=True)
    model.save(tmp_path / "m.prism")
    other = prismgp.load(tmp_path / "m.prism")
    assert type(other) is type(model)
    for got, expected in zip(other.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(other.sample_y(x, 3, random_state=1), model.sample_y(x, 3, random_state=1))
    for name in ("lengthscale_", "signal_variance_", "noise_variance_", "mean_", "log_evidence_", "feature_names_in_"):
        np.testing.assert_array_equal(getattr(other, name), getattr(model, name))
    assert other.fit_status_ == model.fit_status_
    assert other.history_ == model.history_
    assert other.get_params() == model.get_params()


def test_updates_go_on_after_loading(tmp_path):
    model, x = fitted()
    model.save(tmp_path / "m.prism")
    other = prismgp.load(tmp_path / "m.prism")
    model.partial_fit(x[:7], np.zeros(7))
    other.partial_fit(x[:7], np.zeros(7))
    np.testing.assert_array_equal(model.predict(x), other.predict(x))


def test_saving_a_loaded_model_gives_the_same_bytes_of_content(tmp_path):
    model, x = fitted()
    model.save(tmp_path / "a")
    prismgp.load(tmp_path / "a").save(tmp_path / "b")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "b").predict(x), model.predict(x))


def test_unfitted_models_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        SSGPRegressor().save(tmp_path / "m.prism")
    assert list(tmp_path.iterdir()) == []


def test_write_is_atomic(tmp_path, monkeypatch):
    model, _ = fitted()
    path = tmp_path / "m.prism"
    model.save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            model.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.prism"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_gpu_model_loads_without_a_gpu(tmp_path, monkeypatch):
    model, x = fitted()
    expected = model.predict(x)
    model.set_params(device="cuda")
    model.save(tmp_path / "m.prism")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(PrismGPWarning, match="runs on the CPU"):
        other = prismgp.load(tmp_path / "m.prism")
    np.testing.assert_array_equal(other.predict(x), expected)
    assert prismgp.load(tmp_path / "m.prism", device="cpu").device == "cpu"


def rewritten(data, edit, *, tensors=None):
    """A file with a valid checksum and edited contents: what a hostile writer could make."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    config = json.loads(header["__metadata__"]["prismgp"])
    arrays = safetensors.torch.load(bytes(data))
    if edit:
        edit(config)
    if tensors:
        tensors(arrays)
    metadata = {"prismgp": json.dumps(config), "sha256": ZEROS.decode()}
    out = bytearray(safetensors.torch.save(arrays, metadata=metadata))
    import hashlib

    out[digest_place(out)] = hashlib.sha256(out).hexdigest().encode()
    return bytes(out)


HOSTILE = {
    "wrong version": (lambda c: c.update(format_version=6), None, "format version 6"),
    "version text": (lambda c: c.update(format_version="1"), None, "format version"),
    "unknown estimator": (lambda c: c.update(estimator="os.system"), None, "unknown"),
    "unknown argument": (lambda c: c["arguments"].update(shell="rm"), None, "shell"),
    "missing key": (lambda c: c.pop("rows"), None, "rows"),
    "rows text": (lambda c: c.update(rows="many"), None, "rows"),
    "rows negative": (lambda c: c.update(rows=-1), None, "rows"),
    "inputs huge": (lambda c: c.update(inputs=10**12), None, "shape"),
    "frequencies huge": (lambda c: c["arguments"].update(n_frequencies=10**12), None, "shape"),
    "outputs": (lambda c: c.update(outputs=2), None, "outputs"),
    "names": (lambda c: c.update(feature_names=["a"]), None, "feature names"),
    "kernel": (lambda c: c["arguments"].update(kernel="evil"), None, "kernel"),
    "status": (lambda c: c.update(fit_status=3), None, "usable"),
    "table": (lambda c: c.update(table=[1, 2]), None, "table|usable"),
    "tensor missing": (None, lambda t: t.pop("weight_mean"), "weight_mean"),
    "tensor shape": (None, lambda t: t.update(weight_mean=torch.zeros(3, dtype=torch.float64)), "shape"),
    "tensor nan": (None, lambda t: t["weight_mean"].fill_(float("nan")), "finite"),
    "tensor type": (None, lambda t: t.update(weight_mean=t["weight_mean"].float()), "float64"),
    "scale zero": (None, lambda t: t["s.x_scale"].zero_(), "scale"),
}


GATED = {
    "clusters missing": (lambda c: c["state"].pop("clusters"), None, "clusters"),
    "clusters text": (lambda c: c["state"].update(clusters="3"), None, "not a positive integer"),
    "clusters zero": (lambda c: c["state"].update(clusters=0), None, "not a positive integer"),
    "clusters huge": (lambda c: c["state"].update(clusters=10**12), None, "shape"),
    "gate status": (lambda c: c["state"].update(gate=3), None, "usable"),
    "rows negative": (lambda c: c["state"].update(cluster_rows=[70, -5, -5]), None, "rows of the clusters"),
    "rows missing": (lambda c: c["state"].update(cluster_rows=[60]), None, "rows of the clusters"),
    "rows of others": (lambda c: c["state"].update(cluster_rows=[1, 1, 1]), None, "rows of the clusters"),
    "rows text": (lambda c: c["state"].update(cluster_rows="abc"), None, "rows of the clusters"),
    "other kind": (lambda c: c["arguments"].update(gating="soft"), None, "shape"),
    "no kind": (lambda c: c["arguments"].update(gating="none"), None, "shape"),
    "unknown kind": (lambda c: c["arguments"].update(gating="evil"), None, "gating"),
    "centres missing": (None, lambda t: t.pop("gate.centres"), "gate.centres"),
    "offsets": (None, lambda t: t.update({"gate.offsets": torch.zeros(2, dtype=torch.float64)}), "shape"),
    "roots": (None, lambda t: t["gate.roots"].fill_(float("inf")), "finite"),
}


@pytest.mark.parametrize("case", list(GATED))
def test_hostile_gates(tmp_path, case):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    path = tmp_path / "m.prism"
    SSGPRegressor(3, gating="hard", n_components=3, optimize=False, random_state=0).fit(x, x[:, 0]).save(path)
    edit, tensors, message = GATED[case]
    path.write_bytes(rewritten(path.read_bytes(), edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_contents(tmp_path, case):
    model, _ = fitted()
    path = tmp_path / "m.prism"
    model.save(path)
    edit, tensors, message = HOSTILE[case]
    path.write_bytes(rewritten(path.read_bytes(), edit, tensors=tensors))
    with pytest.raises(ModelFileError, match=message):
        prismgp.load(path)


class _Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["PRISMGP_BOMB"],)


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("PRISMGP_BOMB", str(tmp_path / "exploded"))
    for name, data in {"pickle": pickle.dumps(_Bomb()), "empty": b"", "text": b"hello world" * 10}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelFileError, match=name):
            prismgp.load(tmp_path / name)
    torch.save({"bomb": _Bomb()}, tmp_path / "torch")
    with pytest.raises(ModelFileError):
        prismgp.load(tmp_path / "torch")
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(ModelFileError, match="No such file"):
        prismgp.load(tmp_path / "absent")
    with pytest.raises(ModelFileError, match="directory"):
        prismgp.load(tmp_path)


def test_oversized_and_nested_headers(tmp_path):
    path = tmp_path / "m.prism"
    for data in (
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**9) + b" " * 1000,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
    ):
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            prismgp.load(path)
    # Deep nesting behind a valid checksum must not exhaust the stack.
    import hashlib

    header = b'{"__metadata__":{"sha256":"' + ZEROS + b'","prismgp":"' + b"[" * 200_000 + b'"}}'
    data = bytearray(struct.pack("<Q", len(header)) + header)
    data[digest_place(data)] = hashlib.sha256(data).hexdigest().encode()
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        prismgp.load(path)


@pytest.mark.slow
def test_two_thousand_mutations(tmp_path):
    """Every single damaged file is refused with ModelFileError; none loads, none raises anything else."""
    model, _ = fitted()
    path = tmp_path / "m.prism"
    model.save(path)
    original = path.read_bytes()
    header_end = 8 + int.from_bytes(original[:8], "little")
    rng = np.random.default_rng(0)
    refused = 0
    for k in range(2000):
        data = bytearray(original)
        kind = k % 5
        # Half of the damage goes into the header, where parsers live.
        place = int(rng.integers(header_end if k % 2 else len(data)))
        if kind == 0:
            data[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place : place + 1] = rng.bytes(int(rng.integers(2, 20)))
        elif kind == 3:
            del data[place : place + int(rng.integers(1, 9))]
        else:
            data[place : place + 8] = rng.bytes(8)
        assert bytes(data) != original
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            prismgp.load(path)
        refused += 1
    assert refused == 2000
    path.write_bytes(original)
    prismgp.load(path)


@pytest.mark.slow
def test_every_byte_of_the_header_is_guarded(tmp_path):
    model, _ = fitted()
    path = tmp_path / "m.prism"
    model.save(path)
    original = path.read_bytes()
    header_end = 8 + int.from_bytes(original[:8], "little")
    for place in range(0, header_end, 3):
        data = bytearray(original)
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(ModelFileError):
            prismgp.load(path)


def test_tensors_that_repeat_one_number_are_saved(tmp_path):
    """Their strides are zero, so that they have no bytes of their own."""
    tensors = {"a": torch.tensor(2.0, dtype=torch.float64).expand(5), "b": torch.empty(0, 3, dtype=torch.float64)}
    write_tensors(tmp_path / "m", "{}", tensors)
    text, found = read_tensors(tmp_path / "m")
    assert text == "{}"
    assert found["a"].tolist() == [2.0] * 5
