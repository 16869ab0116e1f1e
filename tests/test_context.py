"""Checkpoints: a fit that was killed goes on, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import prismgp
from prismgp import PrismGPRegressor, SSGPRegressor, load
from prismgp import checkpoint as module
from prismgp.checkpoint import Checkpoint
from prismgp.context import FitContext
from prismgp.core.rows import Codec, Ending
from prismgp.estimators import sources
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning
from prismgp.model.save import predictor_tensors
from prismgp.neighbors import fit as fit_module
from tests.killed_fits import MODELS, data

pytestmark = pytest.mark.usefixtures("short_fits")  # as in the processes that are killed


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A folder with models of fits that were killed several times and of others that were not; how often each was."""
    folder = tmp_path_factory.mktemp("killed")
    path = os.pathsep.join([str(Path(prismgp.__file__).parents[1]), str(Path(__file__).parents[1])])
    argv = [sys.executable, "-m", "tests.killed_fits", str(folder)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[SSGPRegressor, bytes]:
    """A fit with every result in its checkpoint, and the bytes of that."""
    path = tmp_path_factory.mktemp("finished") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WRITE_SECONDS", 0.0)
        model = MODELS["ssgp"](path).fit(*data())
    return model, path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_killed_fits_end_alike(killed: tuple[Path, dict[str, int]], kind: str) -> None:
    """Twenty real SIGKILLs in all, at random moments; the model is the same to the last bit."""
    folder, happened = killed
    assert happened[kind] > 0
    x, _ = data()
    plain = load(folder / f"{kind}-undisturbed.prism")
    resumed = load(folder / f"{kind}.prism")
    for mine, theirs in zip(plain.predict(x, return_std=True), resumed.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert plain.log_evidence_ == resumed.log_evidence_
    assert plain.n_iter_ == resumed.n_iter_
    states = [predictor_tensors(each.model_.predictor) for each in (plain, resumed)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor.cpu(), states[1][name].cpu()), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_checkpoint_changes_nothing(tmp_path: Path, killed: tuple[Path, dict[str, int]], kind: str) -> None:
    x, y = data()
    with_one = MODELS[kind](tmp_path / "c").fit(x, y)
    np.testing.assert_array_equal(with_one.predict(x), load(killed[0] / f"{kind}-undisturbed.prism").predict(x))
    with_one.save(tmp_path / "m.prism")
    assert str(tmp_path).encode() not in (tmp_path / "m.prism").read_bytes()


@pytest.mark.slow
def test_a_finished_fit_is_only_recalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed twice: not the evidence, not a step of a network, not a pass over the rows."""
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr("prismgp._system.os.fsync", lambda _: None)  # hundreds of them take their time
    x, y = data()
    model = MODELS["joint"](tmp_path / "c")
    before = model.fit(x, y).predict(x)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("prismgp.core.evidence.SpectralEvidence.value_and_gradient", forbidden)
    monkeypatch.setattr("prismgp.core.exact.ExactEvidence.value_and_gradient", forbidden)
    monkeypatch.setattr("prismgp.prism.joint.run_training", forbidden)
    monkeypatch.setattr("prismgp.prism.experts.MapStatistics.over", forbidden)
    np.testing.assert_array_equal(model.fit(x, y).predict(x), before)


def test_other_data_settings_and_code_are_refused(
    tmp_path: Path, finished: tuple[SSGPRegressor, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data()
    path = tmp_path / "c"
    _, content = finished
    path.write_bytes(content)
    changed = x.copy()
    changed[-1, 2] += 1e-9
    for other in (changed, x[::-1], x[:-1]):
        with pytest.raises(DataError, match=r"other data.*remove the file"):
            MODELS["ssgp"](path).fit(other, y[: len(other)])
    with pytest.raises(DataError, match=r"n_frequencies=8 \(here 9\)"):
        SSGPRegressor(9, random_state=0, checkpoint=path).fit(x, y)
    with pytest.raises(DataError, match=r"random_state=0 \(here 1\)"):
        SSGPRegressor(8, random_state=1, checkpoint=path).fit(x, y)
    with pytest.raises(DataError, match="estimator='SSGPRegressor'"):
        PrismGPRegressor(8, random_state=0, checkpoint=path).fit(x, y)
    monkeypatch.setattr(sources, "digest_code", lambda: "other")
    with pytest.raises(DataError, match="of a fit by a different version of the code; remove the file"):
        MODELS["ssgp"](path).fit(x, y)
    monkeypatch.setattr(sources, "__version__", "99")
    with pytest.raises(DataError, match=r"of a fit by version '\S+' of PrismGP \(here '99'\); remove the file"):
        MODELS["ssgp"](path).fit(x, y)
    monkeypatch.undo()
    assert path.read_bytes() == content
    SSGPRegressor(8, random_state=0, checkpoint=path, verbose=1).fit(x, y)  # what has no effect may differ


def test_bad_arguments(tmp_path: Path) -> None:
    x, y = data()
    with pytest.raises(DataError, match="random_state to be a number"):
        SSGPRegressor(4, checkpoint=tmp_path / "c").fit(x, y)
    with pytest.raises(DataError, match="must be a path or None"):
        SSGPRegressor(4, random_state=0, checkpoint=3).fit(x, y)


@pytest.mark.parametrize(
    "how", ["empty", "text", "truncated", "flipped header", "flipped number", "version", "foreign entry", "model"]
)
def test_damaged_files_are_refused(tmp_path: Path, finished: tuple[SSGPRegressor, bytes], how: str) -> None:
    x, y = data()
    path = tmp_path / "c"
    model, content = finished
    path.write_bytes(content)
    if how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("not a checkpoint")
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped header":
        path.write_bytes(content[:3] + b"\xff" + content[4:])
    elif how == "flipped number":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif how == "model":
        model.save(path)
    else:
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["prismgp_checkpoint"])
        if how == "version":
            about["format_version"] = 99
        else:
            about["entries"] = {}
        tensors, text = safetensors.torch.load(content), json.dumps(about)
        metadata = {"prismgp_checkpoint": text, "sha256": module.digest_contents(text, tensors)}
        path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))
    with pytest.raises(ModelFileError, match="remove the file"):
        MODELS["ssgp"](path).fit(x, y)


def test_a_full_disk_does_not_end_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    path = tmp_path / "c"
    one = Checkpoint(path, {"a": 1})
    one.put("x", lambda: ({"t": torch.arange(3.0)}, {"k": 1}))
    content = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(PrismGPWarning, match="No space left"):
        one.put("y", lambda: ({"t": torch.arange(4.0)}, {}))
    one.put("z", lambda: ({}, {}))  # said once
    one.close()
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_evaluations_that_no_longer_fit_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine arithmetic may differ in the last bit: then the fit computes for itself."""
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    kept = Checkpoint(tmp_path / "c")
    first = FitContext(checkpoint=kept)
    for k in range(3):
        first.evaluate(9, np.array([float(k)]), lambda k=k: (float(k), np.array([-float(k)])))
    again = FitContext(checkpoint=kept)
    again.evaluate(9, np.array([0.0]), lambda: pytest.fail("known"))
    value, gradient = again.evaluate(9, np.array([1.0]), lambda: pytest.fail("known"))
    assert (value, gradient.tolist()) == (1.0, [-1.0])
    assert again.evaluate(9, np.array([2.0 + 1e-15]), lambda: (7.0, np.empty(0)))[0] == 7.0
    # What follows a difference is the fit's own.
    third = FitContext(checkpoint=kept)
    for k in range(2):
        third.evaluate(9, np.array([float(k)]), lambda: pytest.fail("known"))
    assert third.evaluate(9, np.array([2.0 + 1e-15]), lambda: pytest.fail("known"))[0] == 7.0


def test_a_result_replaces_what_was_kept_on_the_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    codec = Codec(lambda found: ({"t": torch.tensor(found)}, {}), lambda saved: float(saved[0]["t"]))
    kept = Checkpoint(tmp_path / "c")
    context = FitContext(checkpoint=kept)
    part = context.part("view").part("0")
    part.evaluate(9, np.array([1.0]), lambda: (2.0, np.empty(0)))
    assert kept.get("view/0/evaluations") is not None
    assert context.recall("view", lambda: 3.0, codec) == 3.0
    assert kept.get("view/0/evaluations") is None
    assert FitContext(checkpoint=kept).recall("view", lambda: pytest.fail("known"), codec) == 3.0
    ended = FitContext(checkpoint=kept, ending=Ending(0.0))
    with ended.ending.catch_end():
        ended.ending.check()
    assert ended.recall("view", lambda: 4.0, codec) == 4.0  # at other parameters, and not to be stored
    assert FitContext(checkpoint=kept).recall("view", lambda: pytest.fail("known"), codec) == 3.0


@pytest.mark.slow
def test_size_does_not_grow_with_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    sizes = []
    for n in (500, 5_000):
        rng = np.random.default_rng(1)
        x = rng.standard_normal((n, 3))
        path = tmp_path / str(n)
        SSGPRegressor(8, random_state=0, checkpoint=path, max_iter=20).fit(x, np.sin(x[:, 0]))
        sizes.append(path.stat().st_size)
    assert max(sizes) < 150_000


def test_entries_that_are_not_as_they_should_be_are_refused(
    tmp_path: Path, finished: tuple[SSGPRegressor, bytes]
) -> None:
    """Behind a valid checksum, as a hostile writer could make them."""
    x, y = data()
    for how in ("no numbers", "sizes", "statistics"):
        path = tmp_path / how
        path.write_bytes(finished[1])
        with safetensors.safe_open(path, framework="pt") as file:
            text = file.metadata()["prismgp_checkpoint"]
        tensors = safetensors.torch.load(finished[1])
        name = next(each for each in tensors if each.endswith("evaluations:numbers"))
        if how == "no numbers":
            del tensors[name]
        elif how == "sizes":
            tensors[name] = tensors[name][:-1].clone()
        else:
            about = json.loads(text)
            about["entries"]["statistics"]["blocks"] = 7
            text = json.dumps(about)
        metadata = {"prismgp_checkpoint": text, "sha256": module.digest_contents(text, tensors)}
        path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))
        with pytest.raises(ModelFileError, match=rf"{how}: '.*' is not usable \(.*\); remove the file"):
            MODELS["ssgp"](path).fit(x, y)


@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
def test_neighbours_of_a_mixture_are_not_learned_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that ends in the middle of learning a view goes on from there, with the evaluations it has made."""
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr("prismgp._system.os.fsync", lambda _: None)  # hundreds of them take their time
    x, y = data()
    evaluate = fit_module.log_density_and_gradient

    def fit(path: Path | None, last: int | None = None) -> tuple[int, np.ndarray | None]:
        """How often the density of neighbours is evaluated, until an interrupt if there is one; predictions."""
        count = 0

        def counted(*args: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == last:
                raise KeyboardInterrupt
            return evaluate(*args, **options)

        monkeypatch.setattr(fit_module, "log_density_and_gradient", counted)
        try:
            return count, PrismGPRegressor(2, random_state=0, checkpoint=path).fit(x, y).predict(x)
        except KeyboardInterrupt:
            return count, None
        finally:
            counts.append(count)

    counts: list[int] = []
    _, expected = fit(None)
    half = counts[0] // 2
    assert fit(tmp_path / "c", half)[1] is None
    _, found = fit(tmp_path / "c")
    np.testing.assert_array_equal(found, expected)
    assert counts == [counts[0], half, counts[0] - half + 1]  # the one that was interrupted is done again
