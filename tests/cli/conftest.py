"""A small table with text, a fitted model, and a way to run the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prismgp.cli import main
from tests.commands import Run, assert_refused, make_run


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""
    return make_run(main, capfd)


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Run a command that must fail with one line; returns the line."""
    return lambda *argv: assert_refused(run(*argv))


def make_frame(n: int, seed: int) -> pd.DataFrame:
    """Numbers, a boolean, a text column, a column that is no input, and a target that depends on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"row, {index}" for index in range(n)],
            "size": rng.uniform(0, 4, n),
            "grade": rng.choice(["low", "mid", "high"], n),
            "count": rng.integers(0, 9, n),
            "flag": rng.random(n) < 0.5,
        }
    )
    signal = np.sin(2 * frame["size"]) + (frame["grade"] == "high") + 0.1 * frame["count"] + 0.3 * frame["flag"]
    return frame.assign(price=signal + 0.1 * rng.standard_normal(n))


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    return make_frame(150, seed=0)


@pytest.fixture(scope="session")
def model(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model fitted by the command from a CSV file."""
    folder = tmp_path_factory.mktemp("model")
    frame.to_csv(folder / "train.csv", index=False)
    path = folder / "model.prism"
    argv = [
        "fit",
        str(folder / "train.csv"),
        "--model",
        "ssgp",
        "-t",
        "price",
        "-p",
        "8",
        "--exclude",
        "id",
        "-q",
        "-o",
        str(path),
    ]
    assert main(argv) == 0
    return path


@pytest.fixture
def fresh(tmp_path: Path) -> pd.DataFrame:
    """New rows, without the target."""
    return make_frame(40, seed=1).drop(columns="price")
