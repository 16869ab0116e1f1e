"""Weights and known noise variances of rows: the columns of tables that hold them, and few rows with copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array
from prismgp.core.few_rows import FEW_ROWS
from prismgp.data.sources import ArraySource, Source
from prismgp.exceptions import DataError


@dataclass(frozen=True)
class NoiseColumns:
    """Names of the columns of a table that say how noisy its rows are."""

    weight: str | None = None
    variance: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.weight, self.variance) if name is not None]

    @property
    def n_noise(self) -> int:
        """Columns behind the targets."""
        return 2 if self.variance is not None else 1 if self.weight is not None else 0

    def check(self, targets: Sequence[Any], inputs: Sequence[str] = ()) -> None:
        """Refuse what a source with these targets, and these inputs where they are chosen, cannot have."""
        if self.names and not targets:
            raise DataError("weight and noise belong to the target; name it too, e.g. from_parquet(path, target=...)")
        for name in self.names:
            if name in targets or name in inputs or self.names.count(name) > 1:
                raise DataError(f"column {name!r} holds weights or noise variances of the rows, and nothing else")
        if self.variance is not None and len(targets) > 1:
            raise DataError(
                f"{self.variance!r} holds the known noise variances of one target, and there are {len(targets)}; "
                "fit a model for each of them"
            )

    def arrange(self, y: Array, q: int, numbers: AnyArray, path: str) -> Array:
        """Targets and the columns of these names, (n, q + len(names)), as weights and variances behind the targets.

        ``numbers`` are those of the rows in the table, for the error about a negative number.
        """
        bad = np.argwhere(y[:, q:] < 0)
        if len(bad):
            row, column = bad[0]
            raise DataError(
                f"{path}: {self.names[column]!r} holds {y[row, q + column]:g} in row {numbers[row]:,} (from 1 on); "
                f"{'weights' if self.names[column] == self.weight else 'variances'} must not be negative"
            )
        if self.weight is None:
            y = np.insert(y, q, 1.0, axis=1)
        return y


def merge_copies(source: Source) -> Source:
    """Few rows with weights or with copies among them: each distinct row once, with the sum of its weights, sorted.

    So a row that is repeated and one that has a weight give the same fit, to the last bit, where searches and
    subsamples would tell them apart. From ``FEW_ROWS`` observations on, rows stay as they are.
    """
    if not isinstance(source, ArraySource) or source.n_rows >= FEW_ROWS:
        return source
    noise = source.noise
    weight = np.ones(source.n_rows) if noise is None else noise[:, 0]
    known = np.empty((source.n_rows, 0)) if noise is None else noise[:, 1:]
    labels = np.empty((source.n_rows, 0)) if source.labels is None else source.labels[:, None]
    everything = np.concatenate([source.x, source.targets, known, labels], 1, dtype=np.float64)
    _, first, group = np.unique(everything, axis=0, return_index=True, return_inverse=True)
    if weight.sum() >= FEW_ROWS or (noise is None and len(first) == source.n_rows):
        return source
    rows = source.take(first)
    columns = np.stack([np.bincount(group.ravel(), weight), *known[first].T], 1)
    return ArraySource(rows.x, rows.targets, rows.labels).with_noise(columns)
