"""Mutated files: a few seconds of every target, and proof that what is looked for would be found."""

from __future__ import annotations

import math
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from experiments.robustness import fuzz as module
from experiments.robustness.fuzz import read_once
from experiments.robustness.mutations import mutations
from experiments.robustness.targets import TARGETS, Target
from prismgp import SSGPRegressor
from prismgp.exceptions import DataError, ModelFileError


def target(read: object) -> Target:
    return Target("test", "f", lambda: [b"good"], read)  # type: ignore[arg-type]


@settings(max_examples=60)
@given(mutations([b"0123456789" * 5, b"another file"]))
def test_mutations_are_bytes(data: bytes) -> None:
    assert isinstance(data, bytes)
    assert len(data) < 200_000


def test_what_is_looked_for_is_found(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> object:
            return os.getcwd, ()

    bomb = pickle.dumps(Bomb())

    def refuse(_: Path) -> None:
        raise ModelFileError("no")

    def lines(_: Path) -> None:
        raise DataError("two\nlines")

    def large(_: Path) -> int:
        return int(np.ones(10**7 * 2).sum())

    assert read_once(target(Path.read_bytes), b"x", tmp_path) is None
    assert read_once(target(refuse), b"x", tmp_path) is None
    assert "several lines" in str(read_once(target(lines), b"x", tmp_path))
    assert "ZeroDivisionError" in str(read_once(target(lambda _: 1 // 0), b"x", tmp_path))
    found = read_once(target(lambda path: pickle.loads(path.read_bytes())), bomb, tmp_path)
    assert "code was run: pickle.find_class" in str(found)
    assert "code was run: compile" in str(read_once(target(lambda path: exec(path.read_text())), b"1", tmp_path))  # noqa: S102
    if Path("/proc/self/clear_refs").exists():
        assert "bytes of memory for a file of 1" in str(read_once(target(large), b"x", tmp_path))


def test_failures_are_made_small_and_stored(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        if b"\xff" in path.read_bytes():
            raise KeyError("found")

    own, folder = target(read), tmp_path / "read"
    folder.mkdir()
    count, failing = module._one_call(own, own.corpus(), folder, math.inf, 0)  # without a clock
    assert failing is not None
    data, wrong = failing
    assert count > 1
    assert "KeyError: 'found'" in wrong
    assert b"\xff" in data
    assert len(data) <= 5  # of the file, and the byte
    path = module._store(tmp_path / "kept", own, data, wrong)
    assert path.read_bytes() == data
    assert "KeyError" in path.with_suffix(".txt").read_text()


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    x = np.linspace(0, 1, 20)
    frame = pd.DataFrame({"a": x, "b": x**2, "k": ["x", "y"] * 10})
    path = tmp_path_factory.mktemp("model") / "m.prism"
    SSGPRegressor(2, optimize=False, random_state=0).fit(frame, x).save(path)
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model", "damaged", "csv", "parquet"])
def test_every_target_for_a_moment(name: str, tmp_path: Path, small_model: bytes) -> None:
    """Mutations that do not depend on the clock, so that a failure can be repeated."""
    own, rng = TARGETS[name], np.random.default_rng(zlib.crc32(name.encode()))
    for data in own.corpus()[:2] if name in ("csv", "parquet") else [small_model]:
        read_once(own, data, tmp_path)  # loads what good files need
        for _ in range(25):
            mutated = bytearray(data)
            for place in rng.integers(0, len(data), 3):
                mutated[place] = rng.integers(256)
            del mutated[len(mutated) - int(rng.integers(0, 40)) :]
            assert read_once(own, own.seal(bytes(mutated)), tmp_path) is None
