"""What is fuzzed: good files to begin with, a way to read one, and what makes a mutation pass the first check."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor, load
from prismgp.exceptions import PrismGPError

__all__ = ["TARGETS", "Target"]

_ZEROS = b"0" * 64


@dataclass(frozen=True)
class Target:
    """Something that reads files of others."""

    name: str
    file: str  # its name
    corpus: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    seal: Callable[[bytes], bytes] = lambda data: data  # corrects the checksum, as a hostile writer would


@cache
def _rows() -> tuple[pd.DataFrame, np.ndarray[Any, np.dtype[np.float64]]]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "b": rng.uniform(size=40), "k": rng.choice(["x", "y"], 40)})
    return frame, np.sin(frame["a"].to_numpy()) + (frame["k"] == "x").to_numpy()


@cache
def _models() -> list[bytes]:
    frame, y = _rows()
    small = {"max_iter": 2, "random_state": 0}
    network = {"hidden": 4, "max_steps": 2, "n_members": 1, **small}
    models = (
        SSGPRegressor(2, **small).fit(frame, y),
        SSGPRegressor(2, gating="hard", n_components=2, **small).fit(frame, y),
        ExactGPRegressor(**small).fit(frame[["a", "b"]], y),
        NeighborGPRegressor(n_neighbors=4, **small).fit(frame, y),
        PrismGPRegressor(2, local="always", **network).fit(frame, y),
    )
    return [_bytes_of(model.save) for model in models]


def _bytes_of(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _read_model(path: Path) -> object:
    """A model that is loaded predicts, or says why it cannot."""
    model = load(path, device="cpu")
    frame, _ = _rows()
    return model.predict(
        frame.head(3) if model.model_.encoder is not None else frame[["a", "b"]].head(3), return_std=True
    )


def _seal_model(data: bytes) -> bytes:
    """The digest of a file stands in its header, and counts as zeros."""
    at = data.find(b'"sha256":"')
    if at < 0 or len(data) < at + 74:
        return data
    at += 10
    blank = data[:at] + _ZEROS + data[at + 64 :]
    return blank[:at] + hashlib.sha256(blank).hexdigest().encode() + blank[at + 64 :]


# -- checkpoints -----------------------------------------------------------------------------------


def _fit(path: Path) -> object:
    x = np.linspace(0, 1, 30)[:, None]
    return SSGPRegressor(2, max_iter=2, random_state=0, checkpoint=path).fit(x, np.sin(5 * x[:, 0]))


@cache
def _checkpoints() -> list[bytes]:
    return [_bytes_of(_fit)]


def _read_checkpoint(path: Path) -> object:
    """A fit that continues from it."""
    try:
        return _fit(path)
    finally:
        assert not path.with_name(f".{path.name}.lock").exists(), "the lock was left behind"


def _seal_checkpoint(data: bytes) -> bytes:
    """With the checksum of what it holds, where it can be read at all."""
    import safetensors.torch

    from prismgp.checkpoint import digest_contents  # the same, as a hostile writer would have it

    try:
        size = int.from_bytes(data[:8], "little")
        text = json.loads(data[8 : 8 + size])["__metadata__"]["prismgp_checkpoint"]
        tensors = safetensors.torch.load(data)
        return safetensors.torch.save(tensors, {"prismgp_checkpoint": text, "sha256": digest_contents(text, tensors)})
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        return data


# -- tables ----------------------------------------------------------------------------------------


@cache
def _tables() -> tuple[list[bytes], list[bytes]]:
    frame, y = _rows()
    table = frame.assign(
        y=y,
        t=pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(40), unit="D"),
        m=[None if k % 5 == 0 else f"{k},{k}" for k in range(40)],
        n=[None if k % 7 == 0 else float(k) for k in range(40)],
    )
    text = table.to_csv(index=False)
    texts = [text.encode(), text.replace(",", ";").encode("utf-16"), text.replace("\n", "\r\n").encode()]
    parquets = []
    for options in ({}, {"compression": "zstd"}, {"compression": None, "write_page_checksum": True}):
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False, row_group_size=16, **options)
        parquets.append(buffer.getvalue())
    return texts, parquets


def _read_table(path: Path) -> object:
    """As a fit and a prediction read it."""
    from prismgp.data import from_csv, from_parquet

    read = from_csv if path.suffix == ".csv" else from_parquet
    source = read(path, target="y")
    rows = source.load()
    if not len(rows.x):
        raise PrismGPError("no rows")
    return source.encoder.learn(source).encode(rows.x)


TARGETS = {
    target.name: target
    for target in (
        Target("model", "m.prism", _models, _read_model, _seal_model),
        Target("damaged", "m.prism", _models, _read_model),
        Target("checkpoint", "c", _checkpoints, _read_checkpoint, _seal_checkpoint),
        Target("csv", "d.csv", lambda: _tables()[0], _read_table),
        Target("parquet", "d.parquet", lambda: _tables()[1], _read_table),
    )
}
