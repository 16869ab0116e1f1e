"""Too little memory: a limit of the process, a limit of the container, and allocations that fail."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from prismgp import _system
from tests.commands import assert_refused
from tests.faults.commands import COMMANDS, MAIN, OLD, Bench, fail_at, make_table, run

# A process that has loaded everything and computed nothing; it forks a child for every order, which is cheap. The
# child limits its address space, as ulimit -v does, to what it has now and some more.
SERVER = """
import io, json, os, resource, sys
from contextlib import redirect_stderr, redirect_stdout
import matplotlib.figure, matplotlib.backends.backend_svg, jinja2, pandas
import prismgp.cli.fit, prismgp.cli.predict, prismgp.cli.certify, prismgp.cli.report, prismgp.cli.suggest
from prismgp.cli import main

def size():
    for line in open("/proc/self/status"):
        if line.startswith("VmSize"):
            return 1024 * int(line.split()[1])

print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        limit = size() + order["more"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(order["argv"])
        os.write(write, json.dumps([code, out.getvalue(), err.getvalue()]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found = answer.read()
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([status, json.loads(found or "null")]), flush=True)
"""
MEGABYTES = (0, 16, 64, 250, 260, 320, 512)


@pytest.fixture(scope="module")
def limited() -> Iterator[Callable[[list[str], int], tuple[int, Any]]]:
    """Run a command in a process that may allocate so many bytes more; its wait status, and code, stdout and stderr."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"

    def call(argv: list[str], more: int) -> tuple[int, Any]:
        server.stdin.write(json.dumps({"argv": argv, "more": more}) + "\n")  # type: ignore[union-attr]
        server.stdin.flush()  # type: ignore[union-attr]
        status, found = json.loads(server.stdout.readline())  # type: ignore[union-attr]
        return status, found

    yield call
    server.stdin.close()
    server.wait(30)
    server.stdout.close()


@pytest.mark.parametrize("megabytes", MEGABYTES)
@pytest.mark.parametrize("name", MAIN)
def test_a_limit_of_the_process(bench: Bench, limited: Any, name: str, megabytes: int) -> None:
    """Whatever the limit is: the right result, or one line that says that memory does not suffice."""
    output = bench.prepare(name)
    with bench.unharmed(COMMANDS[name].output):
        status, found = limited(COMMANDS[name].argv(bench.folder), megabytes * 2**20)
    assert status == 0, f"the process crashed (wait status {status})"
    code, out, err = found
    if code == 0:
        assert output.read_bytes() != OLD
        return
    assert (code, out) == (2, ""), found
    assert err.startswith("prismgp: error: "), err
    assert err.count("\n") == 1, err
    assert "memory" in err, err
    assert output.read_bytes() == OLD


@pytest.mark.parametrize("rows", [4_000, 6_000])
def test_an_exact_fit_is_refused_before_it_allocates(bench: Bench, limited: Any, rows: int) -> None:
    data, output = bench.folder / "large.csv", bench.folder / "o.prism"
    make_table(rows).to_csv(data, index=False)
    output.write_bytes(OLD)
    argv = ["fit", str(data), "-t", "y", "--model", "exact", "-q", "-o", str(output)]
    with bench.unharmed():
        status, (code, _, err) = limited(argv, 300 * 2**20)
    assert (status, code) == (0, 2)
    assert f"an exact GP on {rows:,} rows needs about" in err
    assert "are available on cpu" in err


# -- containers ------------------------------------------------------------------------------------


def container(folder: Path, version: int, group: str, limit: str, used: int, cached: int) -> tuple[Path, Path]:
    """The files of a container with a limit."""
    root = folder / "cgroup"
    place = root / ("" if version == 2 else "memory") / group.lstrip("/")
    place.mkdir(parents=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (place / names[0]).write_text(f"{limit}\n")
    (place / names[1]).write_text(f"{used}\n")
    inactive = "inactive_file" if version == 2 else "total_inactive_file"
    (place / "memory.stat").write_text(f"anon 1\n{inactive} {cached}\n")
    own = folder / "own"
    own.write_text(f"0::{group}\n" if version == 2 else f"9:cpu:/\n4:memory:{group}\n0::/\n")
    return root, own


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", ["/", "/a/b"])
@pytest.mark.parametrize("name", ["exact", "ssgp"])
def test_a_limit_of_the_container(
    bench: Bench, tmp_path: Path, version: int, group: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exact fit is refused before the kernel would kill it; an SSGP has room."""
    files = container(tmp_path, version, group, str(400 * 2**20), 200 * 2**20, 2**18)
    original = _system.bytes_within_cgroup
    monkeypatch.setattr(_system, "bytes_within_cgroup", lambda: original(*files))
    assert _system.available_bytes(torch.device("cpu")) == 200 * 2**20 + 2**18
    data = bench.folder / "large.csv"
    make_table(4_000).to_csv(data, index=False)
    output = bench.prepare("fit csv")
    options = ["-p", "2"] if name == "ssgp" else []
    with bench.unharmed("o.prism"):
        outcome = run(["fit", str(data), "-t", "y", "--model", name, *options, "-q", "-o", str(output)])
    if name == "ssgp":
        assert outcome.code == 0
        return
    assert_refused(outcome, "an exact GP on 4,000 rows needs about", "200.2 MiB are available")
    assert output.read_bytes() == OLD


# -- allocations that fail -------------------------------------------------------------------------

TORCH = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "80000000000 bytes. Error code 12 (Cannot allocate memory)"
)
ERRORS = {
    "torch": TORCH,
    "numpy": np._core._exceptions._ArrayMemoryError((10**9,), np.dtype(float)),  # type: ignore[attr-defined]
    "arrow": pa.ArrowMemoryError("malloc of size 1000000000000 failed"),
    "python": MemoryError(),
}
PLACES = {
    "fit csv": ("prismgp.core.fit", "exact_start"),
    "predict csv": ("prismgp.model.fitted.FittedModel", "predict_interval"),
    "predict parquet": ("prismgp.data.tables.TableFile", "raw_batches"),
    "certify": ("prismgp.cli.certify", "certify"),
    "report": ("prismgp.cli.report", "examine"),
    "suggest": ("prismgp.cli.suggest", "select_rows"),
}


@pytest.mark.parametrize("library", ERRORS)
@pytest.mark.parametrize("name", PLACES)
def test_an_allocation_that_fails(bench: Bench, name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every library has its own error; the command's is the same."""
    home, attribute = PLACES[name]
    bench.prepare(name)
    with monkeypatch.context() as patch:
        patch.setattr(f"{home}.{attribute}", fail_at(lambda *_, **__: None, ERRORS[library]))
        with bench.unharmed():
            outcome = bench.run(name)
    assert_refused(outcome, "needs more memory than there is", "are available")
    if library == "torch":
        assert "a piece of 80000000000 bytes was refused" in outcome.err


def test_other_errors_stay_what_they_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismgp.cli.predict.load_model", fail_at(print, RuntimeError("a mistake")))
    with pytest.raises(RuntimeError, match="a mistake"):
        bench.run("predict csv")
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
