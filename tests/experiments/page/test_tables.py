"""Tables of the experiments."""

from __future__ import annotations

import pytest

from experiments.page import best_cells, markdown_table
from prismgp.exceptions import DataError


def test_the_best_of_every_group() -> None:
    values = [0.3, 0.2, 0.2, None, 5.0, 4.0, float("nan"), 1.0]
    groups = ["a", "a", "a", "a", "b", "b", "b", "alone"]
    assert best_cells({2: values}, groups) == {(1, 2), (2, 2), (5, 2)}
    assert best_cells({1: [3.0, 1.0], 2: [-3.0, -1.0]}) == {(1, 1), (0, 2)}
    assert best_cells({1: [1.0]}) == frozenset()
    with pytest.raises(DataError, match="2 values for 3 rows"):
        best_cells({1: [1.0, 2.0]}, ["a", "b", "c"])


def test_a_table_in_markdown() -> None:
    assert markdown_table(["a", "b"], [["x", "1"], ["y", "2"]]) == "| a | b |\n| --- | --- |\n| x | 1 |\n| y | 2 |"
