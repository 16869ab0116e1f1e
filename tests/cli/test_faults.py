"""A few of the faults of ``make test-faults``, one of each kind, in the ordinary run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from prismgp._locks import Lock
from prismgp.data.tables import TableFile
from prismgp.model import container
from tests.cli.conftest import Run
from tests.cli.test_interrupts import signal_at

OLD = b"the output of an earlier run"
unix = pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "o.csv"
    path.write_bytes(OLD)
    return path


def check_refused(found: Any, output: Path, *parts: str) -> None:
    assert (found.code, found.out) == (2, "")
    assert found.err.count("\n") == 1
    for part in parts:
        assert part in found.err
    assert output.read_bytes() == OLD
    assert list(output.parent.glob(".*")) == []


@unix
def test_a_full_disk(run: Run, model: Path, frame: Any, output: Path) -> None:
    """By a limit on the size of files, which the system enforces wherever the write is."""
    import resource

    frame.to_csv(output.with_name("d.csv"), index=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, before[1]))
    try:
        found = run("predict", model, output.with_name("d.csv"), "-o", output, "-q")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check_refused(found, output, str(output), "File too large: at least ", " bytes are needed, ")


def test_a_csv_that_grows(run: Run, model: Path, frame: Any, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = output.with_name("d.csv")
    frame.to_csv(data, index=False)
    original = TableFile.raw_batches

    def raw_batches(self: TableFile, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in original(self, *args, **options):
            yield batch
            with data.open("a") as file:
                file.write("half a row")

    monkeypatch.setattr(TableFile, "raw_batches", raw_batches)
    found = run("predict", model, data, "-o", output, "-q")
    check_refused(found, output, str(data), "the file has changed while it was in use")


def test_a_model_that_changes(run: Run, model: Path, frame: Any, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, own = output.with_name("d.csv"), output.with_name("m.prism")
    frame.to_csv(data, index=False)
    own.write_bytes(model.read_bytes())
    digest = container.digest_file

    def change(*args: Any) -> bytes:
        found: bytes = digest(*args)
        os.utime(own, ns=(1, 1))
        return found

    monkeypatch.setattr(container, "digest_file", change)
    found = run("predict", own, data, "-o", output, "-q")
    check_refused(found, output, str(own), "the file was changed while it was read")


@unix
def test_sigterm(run: Run, model: Path, frame: Any, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame.to_csv(output.with_name("d.csv"), index=False)
    place = "prismgp.data.text:TextWriter.write"
    signal_at(monkeypatch, place, 1, signal.SIGTERM)
    assert run("predict", model, output.with_name("d.csv"), "-o", output) == (130, "", "prismgp: interrupted\n")
    assert output.read_bytes() == OLD
    assert sorted(path.name for path in output.parent.iterdir()) == ["d.csv", "o.csv"]


def test_too_little_memory(run: Run, model: Path, frame: Any, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes. Error code 12")

    frame.to_csv(output.with_name("d.csv"), index=False)
    monkeypatch.setattr("prismgp.model.fitted.FittedModel.predict_interval", fails)
    found = run("predict", model, output.with_name("d.csv"), "-o", output)
    check_refused(found, output, "the command needs more memory than there is (a piece of 80 bytes was refused)")


def test_two_fits_with_one_checkpoint(run: Run, frame: Any, output: Path) -> None:
    frame.to_csv(output.with_name("d.csv"), index=False)
    checkpoint = output.with_name("c")
    with Lock(checkpoint):
        found = run("fit", output.with_name("d.csv"), "-t", "price", "-o", output, "--checkpoint", checkpoint)
    check_refused(found, output, f"{checkpoint}: is in use by process {os.getpid()} ")
