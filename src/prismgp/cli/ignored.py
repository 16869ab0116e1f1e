"""Why a model ignores columns of its table, by what its file says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEARLY_CONSTANT = "constant, or next to it"


def why_ignored(column: Mapping[str, Any]) -> str:
    """The reason, for a column of which all inputs are ignored, as ``TableEncoder.to_dict`` describes it."""
    encoding, levels = column["encoding"], len(column["categories"])
    if "seen" in encoding:  # an indicator for each level; missing cells are the one after the last
        only = encoding["seen"] if len(encoding["seen"]) == 1 else None
        return NEARLY_CONSTANT if only is None else "all missing" if only == [levels] else "constant"
    if "counts" in encoding:  # rows of each level, and of missing cells
        counts = {count for count in encoding["counts"] if count}
        if counts == {1.0} and not encoding["counts"][-1]:
            return "every value occurs once"
        return "its values tell nothing about the target"
    return NEARLY_CONSTANT
