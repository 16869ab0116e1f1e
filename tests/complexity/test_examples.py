"""The example on masked kernel matrices runs, and shows what it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "masked_kernel.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("masked_kernel", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["masked_kernel"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["masked_kernel"]


@pytest.mark.slow
def test_masked_kernel(example, tmp_path, capsys):
    found = example.run(example.QUICK)
    for bound, one in found.items():
        masked, plain = one["draws"].T
        assert np.all(masked < 0.1 * bound)  # Theorem 2, masked
        assert plain.max() > bound  # and not plain
        assert one["wide"].min() > bound  # nor for twice the length-scales
        assert one["sizes"].corrected.p <= one["sizes"].printed.p < one["sizes"].plain.p
        low, high = one["conditions"].box_factors
        assert low < 1.0 < high < 2.0
    example.print_tables(found)
    assert "masked mean (max)" in capsys.readouterr().out
    example.draw_figure(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000
