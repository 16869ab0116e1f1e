"""The commands that are disturbed: a small table, a model of it, and what must hold after a fault."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prismgp.cli import main
from tests.commands import Outcome

OLD = b"the output of an earlier run"
ROWS = 60
INTERRUPTED = "prismgp: interrupted\n"


@dataclass(frozen=True)
class Command:
    """A command line; words in braces are files of the bench."""

    words: str
    output: str
    data: str  # the table it reads

    def argv(self, folder: Path) -> list[str]:
        names = {"csv": "d.csv", "parquet": "d.parquet", "model": "m.prism", "out": self.output}
        return [word.format(**{key: str(folder / name) for key, name in names.items()}) for word in self.words.split()]

    @property
    def has_model(self) -> bool:
        return "{model}" in self.words


_FIT = "fit {%s} -t y --model %s -q -o {out}"
COMMANDS = {
    "fit csv": Command(_FIT % ("csv", "ssgp -p 2"), "o.prism", "d.csv"),
    "fit parquet": Command(_FIT % ("parquet", "ssgp -p 2 --holdout 0.2"), "o.prism", "d.parquet"),
    "predict csv": Command("predict {model} {csv} -q -o {out}", "o.csv", "d.csv"),
    "predict gzip": Command("predict {model} {csv} -q -o {out}", "o.csv.gz", "d.csv"),
    "predict parquet": Command("predict {model} {parquet} -q -o {out}", "o.parquet", "d.parquet"),
    "certify": Command("certify {model} {csv} --only evidence --products 2 -q --json {out}", "o.json", "d.csv"),
    "certify figure": Command("certify {model} {parquet} --products 2 -q --figure {out}", "o.svg", "d.parquet"),
    "report": Command("report {model} {parquet} --no-certificate --rows 20 -q -o {out}", "o.html", "d.parquet"),
    "suggest": Command("suggest {model} {csv} -k 5 -q -o {out}", "o.csv", "d.csv"),
}
MAIN = ("fit csv", "predict csv", "predict parquet", "certify", "report", "suggest")


def make_table(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a, b, k = rng.normal(size=rows), rng.uniform(size=rows), rng.choice(["x", "y", "z"], rows)
    return pd.DataFrame({"a": a, "b": b, "k": k, "y": np.sin(a) + b + (k == "x") + 0.1 * rng.normal(size=rows)})


def make_bench(folder: Path) -> Path:
    """The table as CSV and as Parquet, and a model of it."""
    table = make_table()
    table.to_csv(folder / "d.csv", index=False)
    table.to_parquet(folder / "d.parquet", index=False)
    argv = ["fit", folder / "d.csv", "-t", "y", "--model", "ssgp", "-p", "2", "-q", "-o", folder / "m.prism"]
    assert main([str(each) for each in argv]) == 0
    return folder


def run(argv: list[str]) -> Outcome:
    """Run a command in this process; what it prints is kept in memory, as files may be what is disturbed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    return Outcome(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Bench:
    """A folder with the table, the model and old outputs, for one fault."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self.folder, self.spool = folder, spool

    def run(self, name: str, *more: str) -> Outcome:
        return run([*COMMANDS[name].argv(self.folder), *more])

    def prepare(self, name: str) -> Path:
        """Put an old output in place; its path."""
        path = self.folder / COMMANDS[name].output
        path.write_bytes(OLD)
        return path

    @contextmanager
    def unharmed(self, *changed: str) -> Iterator[None]:
        """Nothing in the folder is another after the block but what the fault itself changes; no leftovers."""
        before = contents(self.folder)
        yield
        after = contents(self.folder)
        for name in changed:
            before.pop(name, None)
            after.pop(name, None)
        assert sorted(after) == sorted(before), "something was left behind, or is gone"
        assert after == before, "an old file is not as it was"
        assert list(self.spool.iterdir()) == [], "a temporary file was left behind"


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bench(tmp_path_factory.mktemp("origin"))


@pytest.fixture
def bench(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    folder, spool = tmp_path / "bench", tmp_path / "spool"
    shutil.copytree(origin, folder)
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    return Bench(folder, spool)


@pytest.fixture(scope="session")
def sizes(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Bytes of every output of a run that is left alone."""
    folder = tmp_path_factory.mktemp("sizes")
    shutil.copytree(origin, folder, dirs_exist_ok=True)
    found = {}
    for name, command in COMMANDS.items():
        outcome = run(command.argv(folder))
        assert outcome.code in (0, 1), outcome
        found[name] = (folder / command.output).stat().st_size
        os.unlink(folder / command.output)
    return found


def fail_at(function: Callable[..., object], error: Exception, call: int = 1) -> Callable[..., object]:
    """The function, which raises the error at one of its calls."""
    calls = 0

    def wrapped(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return function(*args, **options)

    return wrapped


assert sys.platform != "win32", "the faults are those of Unix"
