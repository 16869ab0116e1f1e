"""``fuzz``: files that hypothesis mutates byte by byte, read as model files, checkpoints and tables.

Whatever the bytes are, a file is read, or refused by an error of PrismGP: no other error, no crash, no code that runs,
and no more memory than twice the file and a constant. Targets run in a process of their own. The bytes are written to a
file before they are read, so that those of a crash are known; what fails is made smaller by hypothesis and stored.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from experiments.machine import peak_bytes, reset_peak, usable_cores
from experiments.plan import positive, positive_number, say
from experiments.results import RUNS
from experiments.robustness.targets import TARGETS, Target
from prismgp.exceptions import PrismGPError

__all__ = ["add_options", "fuzz", "read_once", "run"]

_EXAMPLES = 400  # of one call of hypothesis, after which it draws anew
_CONSTANT = 64 * 2**20  # bytes beside twice the file
# What no file may make a process do; modules of the library are loaded when they are needed, which runs their code.
_FORBIDDEN = (
    *("exec", "compile", "pickle.find_class", "marshal.loads", "os.system", "os.exec", "os.posix_spawn", "os.fork"),
    *("subprocess.Popen", "socket.connect", "socket.bind", "ctypes.dlopen", "shutil.rmtree"),
)


class CodeRunError(BaseException):
    """A file has made the process do what no file may."""


class _Watch:
    """Raises while it is on and the process does something forbidden; hooks cannot be removed, so there is one."""

    def __init__(self) -> None:
        self.on = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, details: Any) -> None:
        if self.on and event in _FORBIDDEN and not _is_import():
            self.on = False
            raise CodeRunError(f"{event} {details!r:.200}")


def _is_import() -> bool:
    """Whether a module is being loaded now."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if "importlib._bootstrap" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


_watch: _Watch | None = None


def read_once(target: Target, data: bytes, folder: Path) -> str | None:
    """Let a target read the bytes; what is wrong with how it ends, None if nothing is."""
    global _watch
    _watch = _watch or _Watch()
    path = folder / target.file
    path.write_bytes(data)
    before = reset_peak()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _watch.on = True
            try:
                target.read(path)
            finally:
                _watch.on = False
        except PrismGPError as error:
            if "\n" in str(error):
                return f"the message has several lines: {error}"
        except OSError as error:
            if error.filename is None:
                return f"the message names no file: {error}"
        except CodeRunError as error:
            return f"code was run: {error}"
        except Exception:  # noqa: BLE001  whatever it is, it is what is looked for
            return " | ".join(traceback.format_exc().strip().splitlines()[-5:])
    used = peak_bytes() - before
    if used > 2 * len(data) + _CONSTANT:
        return f"{used:,} bytes of memory for a file of {len(data):,}"
    return None


def fuzz(target: Target, seconds: float, seed: int, keep: Path) -> tuple[int, list[str]]:
    """Read mutations for some seconds; how many, and what failed. Inputs that fail are stored in the folder."""
    corpus = target.corpus()
    end, count, rounds, found = time.monotonic() + seconds, 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for data in corpus:  # loads everything that good files need
            wrong = read_once(target, data, folder)
            if wrong is not None:
                raise AssertionError(f"{target.name}: a good file is refused: {wrong}")
        while time.monotonic() < end:
            own, failing = _one_call(target, corpus, folder, end, 1_000_003 * seed + rounds)
            count, rounds = count + own, rounds + 1
            if failing is not None:
                data, wrong = failing
                found.append(f"{target.name}: {wrong:.400} ({_store(keep, target, data, wrong)})")
    return count, found


def _one_call(
    target: Target, corpus: list[bytes], folder: Path, end: float, seed: int
) -> tuple[int, tuple[bytes, str] | None]:
    """One call of hypothesis: how many files were read, and the smallest that failed, with what is wrong."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as with_seed

    from experiments.robustness.mutations import mutations

    count, failing = 0, None

    @with_seed(seed)
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(mutations(corpus))
    def check(mutated: bytes) -> None:
        nonlocal count, failing
        if time.monotonic() > end and failing is None:
            return
        count += 1
        data = target.seal(mutated)
        wrong = read_once(target, data, folder)
        if wrong is not None:
            failing = data, wrong
            raise AssertionError(wrong.split(" | ")[-1])

    try:
        check()
    except Exception:
        if failing is None:
            raise
    return count, failing


def _store(keep: Path, target: Target, data: bytes, wrong: str) -> Path:
    keep.mkdir(parents=True, exist_ok=True)
    path = keep / f"{target.name}-{hashlib.sha256(data).hexdigest()[:12]}{Path(target.file).suffix}"
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(wrong + "\n", encoding="utf-8")
    return path


# -- the command -----------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--seconds", type=positive_number, default=1800.0, metavar="S", help="default: %(default)g")
    parser.add_argument("--targets", default=",".join(TARGETS), metavar="A,B,...", help="default: %(default)s")
    parser.add_argument("--jobs", type=positive, default=usable_cores(), metavar="N", help="processes (default: cores)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--input", type=Path, metavar="FILE", help="read this file once, as a stored failure")
    parser.add_argument(
        "-o", "--results", type=Path, default=RUNS / "fuzz", metavar="FOLDER", help="of inputs that fail"
    )


def run(args: argparse.Namespace) -> int:
    """Fuzz all targets side by side; 1 if anything fails."""
    from experiments.plan import known_names, parse_names

    names = known_names(parse_names(args.targets), TARGETS, "--targets")
    if args.input is not None:
        return _read_input(args.input, names)
    rounds = -(-len(names) // args.jobs)
    seconds = args.seconds / rounds
    say(f"{len(names)} targets, {seconds:.0f} s each, {args.jobs} at a time")
    context = multiprocessing.get_context("spawn")
    failures: list[str] = []
    for k in range(rounds):
        running = []
        for name in names[k * args.jobs : (k + 1) * args.jobs]:
            mine, theirs = context.Pipe(duplex=False)
            arguments = (theirs, name, seconds, args.seed, args.results)
            process = context.Process(target=_work, args=arguments)
            process.start()
            theirs.close()
            running.append((name, process, mine))
        for name, process, pipe in running:
            failures += _collect(name, process, pipe, args.results)
    for each in failures:
        print(each)
    print(f"{len(failures)} failures" + (f"; inputs are in {args.results}" if failures else ""))
    return 1 if failures else 0


def _read_input(path: Path, names: list[str]) -> int:
    name = path.name.split("-")[0] if len(names) > 1 else names[0]
    with tempfile.TemporaryDirectory() as folder:
        wrong = read_once(TARGETS[name], path.read_bytes(), Path(folder))
    print(wrong or "nothing is wrong")
    return 1 if wrong else 0


def _work(pipe: Any, name: str, seconds: float, seed: int, keep: Path) -> None:
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=f"prismgp-fuzz-{name}-")
    tempfile.tempdir = os.environ["TMPDIR"]
    pipe.send(os.environ["TMPDIR"])
    pipe.send(fuzz(TARGETS[name], seconds, seed, keep))


def _collect(name: str, process: Any, pipe: Any, keep: Path) -> list[str]:
    """What a process found; of one that crashed, the input it was reading is stored."""
    import shutil

    folder = None
    try:
        folder = Path(pipe.recv())
        count, found = pipe.recv()
        print(f"{name:12} {count:9,} files read, {len(found)} failures")
        return list(found)
    except EOFError:
        process.join()
        wrong = f"the process ended with code {process.exitcode}"
        last = next(iter(folder.rglob(TARGETS[name].file)), None) if folder is not None else None
        place = None if last is None else _store(keep, TARGETS[name], last.read_bytes(), wrong)
        return [f"{name}: {wrong} ({place})"]
    finally:
        process.join()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
