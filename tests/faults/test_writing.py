"""Faults while outputs are written: full disks, quotas, read-only folders, errors of the device."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands import assert_refused
from tests.faults.commands import COMMANDS, MAIN, Bench, fail_at, run

SHARES = (0.0, 0.01, 0.5, 0.99)  # of the output that fit on the disk
# Where a write can fail, and with what; a full disk is often noticed by fsync only, and a disk with errors becomes
# read-only at any moment.
PLACES = {
    "a temporary file": ("prismgp._system.tempfile.mkstemp", (errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENOSPC)),
    "fsync": ("prismgp._system.os.fsync", (errno.ENOSPC, errno.EIO)),
    "rename": ("prismgp._system.Path.replace", (errno.EROFS, errno.EIO, errno.ENOSPC)),
}
ERRORS = [(place, number) for place, (_, numbers) in PLACES.items() for number in numbers]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may be larger; the system's own error, wherever in a library the write is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", COMMANDS)
def test_full_after_some_bytes(bench: Bench, sizes: dict[str, int], name: str, share: float) -> None:
    output = bench.prepare(name)
    with bench.unharmed():
        with largest_file(int(share * sizes[name])):
            outcome = bench.run(name)
        needed = "at least" if share else str(output)  # where nothing could be written, nothing is known
        assert_refused(outcome, str(output), needed, "bytes" if share else "File too large")


@pytest.mark.parametrize("name", ["fit csv", "certify", "report"])
@pytest.mark.parametrize("missing", [1, 10**6])
def test_too_little_room_is_noticed_before(
    bench: Bench, sizes: dict[str, int], name: str, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the size is known, the message says how many bytes are needed, and nothing is written."""
    free = sizes[name] // missing // 2  # sizes differ by some bytes, as outputs hold times and paths
    output = bench.prepare(name)
    real = os.statvfs(bench.folder)
    values = list(real)
    values[4] = free // real.f_frsize  # blocks that are free for this user
    monkeypatch.setattr("prismgp._system.os.statvfs", lambda _: os.statvfs_result(values))
    with bench.unharmed():
        outcome = bench.run(name)
    assert_refused(outcome, str(output), "No space left on device: at least ", " bytes are needed, ", " are free")
    needed = re.search(r"at least ([\d,]+) bytes", outcome.err)
    assert needed is not None
    assert abs(int(needed[1].replace(",", "")) - sizes[name]) < 1_000


@pytest.mark.parametrize(("place", "number"), ERRORS)
@pytest.mark.parametrize("name", MAIN)
def test_errors_of_the_system(
    bench: Bench, name: str, place: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = bench.prepare(name)
    target = PLACES[place][0]
    original = {"mkstemp": tempfile.mkstemp, "fsync": os.fsync, "replace": Path.replace}[target.rpartition(".")[2]]
    monkeypatch.setattr(target, fail_at(original, OSError(number, os.strerror(number))))
    with bench.unharmed():
        outcome = bench.run(name)
    assert_refused(outcome, str(output), os.strerror(number))


@pytest.mark.parametrize("name", ["fit csv", "predict csv", "report"])
def test_a_folder_that_is_read_only(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noticed before any work."""
    output = bench.prepare(name)
    monkeypatch.setattr("prismgp.cli.common.os.access", lambda *_: False)
    with bench.unharmed():
        assert_refused(bench.run(name), str(output), "cannot be written to")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_checkpoint_that_cannot_be_written(bench: Bench, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit goes on, and says so once."""
    checkpoint = bench.folder / "c"
    monkeypatch.setattr("prismgp.checkpoint.WRITE_SECONDS", 0.0)
    calls = []

    def failing(path: Path, size: int = 0) -> object:
        calls.append(path)
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("prismgp.checkpoint.atomic_path", failing)
    with bench.unharmed("o.prism"):
        outcome = bench.run("fit csv", "--checkpoint", str(checkpoint))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.count("\n") == 1
    assert f"{checkpoint} could not be written: {os.strerror(number)}" in outcome.err
    assert len(calls) > 1


# -- standard output --------------------------------------------------------------------------------

CHILD = "import sys; from prismgp.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("words", ["predict {m} {d} -q -o -", "info {m}", "predict {m} {d} -o {o}"])
def test_standard_output_that_is_full(bench: Bench, words: str) -> None:
    """A real process: what it prints on is a device without room."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    names = {"m": bench.folder / "m.prism", "d": bench.folder / "d.csv", "o": bench.folder / "o.csv"}
    argv = [word.format(**names) for word in words.split()]
    env = {**os.environ, "TMPDIR": str(bench.spool)}
    with bench.unharmed("o.csv"), open("/dev/full", "wb") as full:
        child = subprocess.run(
            [sys.executable, "-c", CHILD, *argv], stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False
        )
    assert child.returncode == 2, child
    assert child.stderr == "prismgp: error: standard output: No space left on device\n"


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_spool_that_is_full(bench: Bench, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is copied to a temporary file, which the message names."""
    data = bench.folder / "d.csv"
    with data.open("rb") as file, bench.unharmed():
        monkeypatch.setattr("sys.stdin", open(file.fileno(), closefd=False))  # noqa: SIM115
        argv = COMMANDS["predict csv"].argv(bench.folder)
        argv[2] = "-"
        with largest_file(int(share * data.stat().st_size)):
            outcome = run(argv)
    assert_refused(outcome, str(bench.spool), "a copy of standard input", "bytes")
