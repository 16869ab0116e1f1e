"""The sample page and the report about a small model, made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from prismgp.cli import main
from prismgp.report import to_html

from . import sample

# Names and values that a careless page would run, or a careless figure would set as a formula.
EVIL_NAME, EVIL_VALUE = "<b>cost</b> $x_1$ {{ 7*7 }}", "</td><script>alert(1)</script>"
LONG_NAME = "a_very_long_name_of_a_column_that_no_phone_can_show_in_one_line"


@pytest.fixture(scope="session")
def html() -> str:
    return to_html(sample.page())


def make_frame(n: int, seed: int) -> pd.DataFrame:
    """Numbers, text, times, missing cells, columns that mean nothing, and names that need to be escaped."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            EVIL_NAME: rng.uniform(0, 4, n),
            "kind": rng.choice(["plain", EVIL_VALUE, "=1+1"], n, p=[0.6, 0.3, 0.1]),
            "flag": rng.random(n) < 0.5,
            "when": pd.Timestamp("2024-01-01 08:30") + pd.to_timedelta(rng.integers(0, 400, n), unit="D"),
            LONG_NAME: np.where(rng.random(n) < 0.1, np.nan, rng.standard_normal(n)),
        }
    )
    signal = np.sin(2 * frame[EVIL_NAME]) + 2.0 * (frame["kind"] == EVIL_VALUE)
    return frame.assign(price=1000 + 100 * (signal + 0.1 * rng.standard_normal(n)))


@pytest.fixture(scope="session")
def fitted_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``train.csv``, ``test.csv`` and ``model.prism``, fitted with --holdout 0.25 --seed 3."""
    folder = tmp_path_factory.mktemp("report")
    make_frame(240, 0).to_csv(folder / "train.csv", index=False)
    make_frame(150, 1).to_csv(folder / "test.csv", index=False)
    fit = ["fit", folder / "train.csv", "-t", "price", "--model", "ssgp", "-p", 16, "--holdout", 0.25, "--seed", 3]
    assert main([str(each) for each in [*fit, "-q", "-o", folder / "model.prism"]]) == 0
    return folder


@pytest.fixture(scope="session")
def model_html(fitted_files: Path) -> str:
    """The page of `prismgp report` about the held-out rows."""
    page = fitted_files / "held-out.html"
    words = ["report", fitted_files / "model.prism", fitted_files / "train.csv", "--holdout", 0.25, "--seed", 3]
    assert main([str(each) for each in [*words, "-q", "-o", page]]) == 0
    return page.read_text(encoding="utf-8")
