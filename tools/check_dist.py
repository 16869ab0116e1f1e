"""Build wheel and source archive, check what they contain, and try the wheel in an empty environment.

    python tools/check_dist.py

The wheel is built from the unpacked source archive, so that archive is complete. The environment gets the wheel and its
dependencies at the versions of ``constraints.txt``, and nothing else. Archives are left in ``dist``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
SNIPPET = """
import numpy as np
import prismgp
from prismgp import SSGPRegressor

rng = np.random.default_rng(0)
x = rng.uniform(-3, 3, (200, 1))
y = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(200)
mean, std = SSGPRegressor(8, random_state=0).fit(x, y).predict(x, return_std=True)
assert abs(mean - np.sin(x[:, 0])).max() < 0.3 and (std > 0).all()
np.savetxt("rows.csv", np.column_stack([x, y]), delimiter=",", header="x,y", comments="")
print("prismgp", prismgp.__version__, "from", prismgp.__file__)
"""


def run(*words: object, cwd: Path = ROOT) -> str:
    """Run a command and show it; what it printed."""
    argv = [str(word) for word in words]
    print("$", *(word if "\n" not in word else "..." for word in argv), flush=True)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(argv, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"failed with status {done.returncode}: {' '.join(argv[:4])}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The source archive, and the wheel made from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", DIST]
    run(*hatch, "-t", "sdist")
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    run(*hatch, "-t", "wheel", cwd=unpacked)
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Only the package in the wheel; no results and no caches in either."""
    with tarfile.open(sdist) as archive:
        source = [name.partition("/")[2] for name in archive.getnames()]
    installed = zipfile.ZipFile(wheel).namelist()
    _refuse("the wheel", (name for name in installed if not name.startswith(("prismgp/", "prismgp-"))))
    unwanted = ("experiments/results/", "docs/_build", "docs/api/", "__pycache__", ".venv", "demo/", "runs/")
    for what, names in ((sdist.name, source), (wheel.name, installed)):
        _refuse(what, (name for name in names if any(part in name for part in unwanted)))
    for needed in ("src/prismgp/__init__.py", "experiments/__main__.py", "tests/conftest.py", "Makefile", "LICENSE"):
        if needed not in source:
            raise SystemExit(f"{sdist.name}: {needed} is missing")
    for path in (sdist, wheel):
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


def _refuse(what: str, names: Iterable[str]) -> None:
    if found := sorted(names):
        raise SystemExit(f"{what} must not contain {', '.join(found[:5])}")


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install into an empty environment, then use it from Python and from the command line."""
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    python, prismgp = scripts / "python", scripts / "prismgp"
    constraints = ["--quiet", "--constraint", ROOT / "constraints.txt"]
    run(python, "-m", "pip", "install", *constraints, "--upgrade", "pip")
    run(python, "-m", "pip", "install", *constraints, wheel)
    work = folder / "work"
    work.mkdir()
    printed = run(python, "-c", SNIPPET, cwd=work)
    if str(environment) not in printed:
        raise SystemExit("the snippet did not use the installed package")
    run(prismgp, "--version", cwd=work)
    run(prismgp, "fit", "rows.csv", "--target", "y", "-p", "8", "-o", "model.prism", "-q", cwd=work)
    run(prismgp, "predict", "model.prism", "rows.csv", "-o", "out.csv", "-q", cwd=work)
    lines = (work / "out.csv").read_text().splitlines()
    if len(lines) != 201:
        raise SystemExit(f"prismgp predict wrote {len(lines)} lines, not 201")


def main() -> None:
    """Build, check, try."""
    with tempfile.TemporaryDirectory(prefix="prismgp-dist-") as name:
        folder = Path(name)
        (folder / "source").mkdir()
        sdist, wheel = build(folder / "source")
        check_contents(sdist, wheel)
        try_wheel(wheel, folder)
    print("both archives are good")


if __name__ == "__main__":
    main()
