"""Shards: parts of the rows that a task of a cluster loads for itself, from a recipe that is small."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from prismgp._types import AnyArray
from prismgp._validate import check_cells
from prismgp.data._encoded import EncodedRows
from prismgp.data._source import ArraySource, Block, Selection, Source, rechunked
from prismgp.exceptions import DataError

__all__ = ["FileRecipe", "PartitionRecipe", "Recipe", "SelectedRecipe", "Shard"]


class Recipe(Protocol):
    """How a task gets at the rows of a shard; pickled with every task."""

    @property
    def name(self) -> str:
        """What messages call the shard."""
        ...

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        """The rows, where the task runs.

        Parameters
        ----------
        parts : sequence
            Values of the Dask objects that belong to the shard.
        n_rows : int or None
            Rows of the shard, where known; a pass that counts does not need them.
        """
        ...


class Shard:
    """A recipe, the Dask objects it needs, and the number of rows, where known."""

    def __init__(self, recipe: Recipe, parts: tuple[Any, ...] = (), n_rows: int | None = None) -> None:
        self.recipe, self.parts, self.n_rows = recipe, parts, n_rows


class _FileRows(Source):
    """Rows of a part of a file."""

    def __init__(self, table: EncodedRows, n_rows: int, *, single: bool) -> None:
        self.table, self.n_rows, self.single = table, n_rows, single
        self.n_inputs, self.n_outputs = len(table.encoder.feature_names), len(table.targets)

    def blocks(self, rows: int) -> Iterator[Block]:
        return rechunked(self.table.blocks(rows), rows)

    @property
    def rows_read(self) -> int:
        return self.table.rows_read

    @property
    def unseen(self) -> Counter[str]:
        return self.table.unseen


class FileRecipe:
    """Row groups of a Parquet file, or a text file.

    Parameters
    ----------
    table : EncodedRows
        Of one file.
    single : bool
        Whether one target makes a one-dimensional y.
    """

    def __init__(self, table: EncodedRows, *, single: bool) -> None:
        self._table, self._single = table, single

    @property
    def name(self) -> str:
        (file,) = self._table.files.files
        groups = file.row_groups
        return str(file.path) if groups is None else f"{file.path}, row groups {groups.start} to {groups.stop - 1}"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        for file in self._table.files.files:
            if not os.path.exists(file.path):
                raise DataError(
                    f"{file.path}: there is no such file on {socket.gethostname()}, where a worker looked for it; "
                    "every worker must reach the files by the same path, as on a shared file system"
                )
        return _FileRows(self._table, n_rows or 0, single=self._single)


class PartitionRecipe:
    """A partition of Dask arrays or frames.

    Parameters
    ----------
    number : int
        Of the partition, from 0.
    width : int
        Inputs.
    outputs : int
        Targets; 0: there is no y.
    single : bool
    """

    def __init__(self, number: int, width: int, outputs: int, *, single: bool) -> None:
        self._number, self._width, self._outputs, self._single = number, width, outputs, single

    @property
    def name(self) -> str:
        return f"partition {self._number} (counting from 0)"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        x = _numbers(parts[0], "X", self._width)
        y = _numbers(parts[1], "y", self._outputs) if self._outputs else np.empty((len(x), 0))
        if len(x) != len(y):
            raise DataError(
                f"X has {len(x):,} rows and y has {len(y):,}; partitions of X and y must hold the same rows"
            )
        if n_rows is not None and len(x) != n_rows:
            raise DataError(f"there are {len(x):,} rows, where there were {n_rows:,}; the collection must not change")
        source = ArraySource(x, y)
        source.single = self._single
        return source


def _numbers(part: Any, what: str, width: int) -> AnyArray:
    """A partition as checked floats, (n, width)."""
    values: AnyArray
    try:
        if hasattr(part, "to_numpy"):
            values = part.to_numpy()
            if values.dtype.kind not in "fiub":  # nullable columns come as objects
                values = part.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            values = np.asarray(part)
        values = values if values.dtype in (np.float64, np.float32) else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as numbers: {error}") from error
    values = values[:, None] if values.ndim == 1 else values
    if values.shape[1] != width:
        raise DataError(f"{what} has {values.shape[1]} columns; the first partition promised {width}")
    check_cells(values, part, what)
    return values


class SelectedRecipe:
    """Some rows of another shard.

    Parameters
    ----------
    recipe : Recipe
    n_rows : int
        Of that shard.
    rows : ndarray of int
        Increasing, counted from its first row.
    """

    def __init__(self, recipe: Recipe, n_rows: int, rows: AnyArray) -> None:
        self._recipe, self._n_rows = recipe, n_rows
        # It goes with every task: one bit for each row, or the indices where they are shorter.
        self._packed = len(rows) * 64 > n_rows
        self._rows = np.packbits(_mask(rows, n_rows)) if self._packed else rows

    @property
    def name(self) -> str:
        return self._recipe.name

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        rows = np.flatnonzero(np.unpackbits(self._rows, count=self._n_rows)) if self._packed else self._rows
        whole = self._recipe.open(parts, self._n_rows)
        chosen = Selection(whole, rows)
        chosen.single = whole.single
        return chosen


def _mask(rows: AnyArray, n_rows: int) -> AnyArray:
    mask = np.zeros(n_rows, dtype=bool)
    mask[rows] = True
    return mask
