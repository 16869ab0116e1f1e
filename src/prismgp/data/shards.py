"""Shards of rows on a cluster: parts of the rows, each described by a small loader, which tasks load for themselves."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from prismgp._types import AnyArray
from prismgp._validate import check_cells
from prismgp.data.encoder import TableEncoder, missing_error
from prismgp.data.frames import input_columns, to_arrow
from prismgp.data.reader import NoiseColumns, TableReader
from prismgp.data.sources import ArraySource, Block, Selection, Source, rechunk
from prismgp.exceptions import DataError


class ShardLoader(Protocol):
    """How a task loads the rows of a shard; pickled with every task."""

    @property
    def name(self) -> str:
        """The shard in messages."""

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        """Open the rows in the process of the task.

        ``parts`` are the values of the Dask objects that belong to the shard. A pass that counts the rows does not
        need ``n_rows``.
        """


@dataclass
class Shard:
    """A part of the rows."""

    loader: ShardLoader
    parts: tuple[Any, ...] = ()  # the Dask objects that the loader needs
    n_rows: int | None = None  # if known


class FileRows(Source):
    """Rows of a part of a file."""

    def __init__(self, reader: TableReader, n_rows: int, *, single: bool) -> None:
        self.reader, self.n_rows, self.single = reader, n_rows, single
        self.encoder = reader.encoder
        self.n_inputs, self.n_outputs = len(reader.encoder.columns), len(reader.targets)
        self.n_noise = reader.noise.n_noise

    def blocks(self, rows: int) -> Iterator[Block]:
        return rechunk(((block.x, block.y) for block in self.reader.blocks(rows)), rows)


@dataclass(frozen=True)
class FileLoader:
    """Loads row groups of a Parquet file, or a text file."""

    reader: TableReader  # of one file
    single: bool  # whether one target makes a one-dimensional y

    @property
    def name(self) -> str:
        return self.reader.files.path

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        for file in self.reader.files.files:
            if not os.path.exists(file.path):
                raise DataError(
                    f"{file.path}: there is no such file on {socket.gethostname()}, where a worker looked for it; "
                    "every worker must reach the files by the same path, as on a shared file system"
                )
        return FileRows(self.reader, n_rows or 0, single=self.single)


class PartitionRows(ArraySource):
    """Rows of a partition, with the number of cells by column that hold a category unknown to the encoder."""

    unseen: Counter[str]


@dataclass(frozen=True)
class PartitionLoader:
    """Loads a partition of Dask arrays or frames."""

    number: int  # of the partition, from 0
    width: int  # inputs
    outputs: int  # targets; 0: there is no y
    single: bool
    noise: NoiseColumns = field(default_factory=NoiseColumns)  # what the parts behind y are
    missing: str = "error"  # what to do with rows in which an input is missing
    encoder: TableEncoder | None = None  # how a frame is read; None: there are only numbers

    @property
    def name(self) -> str:
        return f"partition {self.number} (counting from 0)"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        x, incomplete, unseen = self._read(parts[0])
        y = _to_floats(parts[1], "y", self.outputs) if self.outputs else np.empty((len(x), 0))
        if len(x) != len(y):
            raise DataError(
                f"X has {len(x):,} rows and y has {len(y):,}; partitions of X and y must hold the same rows"
            )
        if self.noise.names:
            y = self._with_noise(y, parts[2:])
        kept = np.ones(len(x), dtype=bool) if self.missing != "drop" else ~incomplete
        if self.noise.names:  # without the rows of weight zero
            kept &= y[:, self.outputs] > 0
        if not kept.all():
            x, y = x[kept], y[kept]
        if n_rows is not None and len(x) != n_rows:
            raise DataError(f"there are {len(x):,} rows, where there were {n_rows:,}; the collection must not change")
        source = PartitionRows(x, y, n_noise=self.noise.n_noise)
        source.single, source.encoder, source.unseen = self.single, self.encoder, Counter(unseen)
        return source

    def _read(self, part: Any) -> tuple[AnyArray, AnyArray, dict[str, int]]:
        """A number for each cell, (n, width), rows in which one is missing, and counts of unknown categories."""
        if self.encoder is None:
            x = _to_floats(part, "X", self.width, missing=self.missing)
            return x, np.asarray(np.isnan(x).any(axis=1)), {}
        # Folds by the number in the partition: that in the whole collection is not known here.
        infinite = "missing" if self.missing == "drop" else "error"
        batch = self.encoder.read(input_columns(self.encoder, part), infinite=infinite)
        if self.missing == "error" and batch.missing:
            raise missing_error(batch.missing)
        return batch.values, batch.incomplete, batch.unseen

    def _with_noise(self, y: AnyArray, parts: Sequence[Any]) -> AnyArray:
        """Targets with weights and variances behind them."""
        given = dict(zip(self.noise.names, parts, strict=True))
        for name, part in given.items():
            if len(part) != len(y):
                raise DataError(
                    f"{name} has {len(part):,} rows and X has {len(y):,}; their partitions must hold the same rows"
                )
        columns = [_to_floats(part, name, 1) for name, part in given.items()]
        y = np.concatenate([y, *columns], 1, dtype=np.float64)
        return self.noise.arrange(y, self.outputs, np.arange(1, len(y) + 1), self.name)


class TablePart(ArraySource):
    """A partition of a frame, not yet converted."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__(np.empty((table.num_rows, 0)), np.empty((table.num_rows, 0)))
        self.table = table


@dataclass(frozen=True)
class FrameLoader:
    """Loads a partition of a Dask frame, to find out what its columns hold."""

    number: int

    @property
    def name(self) -> str:
        return f"partition {self.number} (counting from 0)"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> TablePart:  # noqa: ARG002
        return TablePart(to_arrow(parts[0]))


def _to_floats(part: Any, what: str, width: int, *, missing: str = "error") -> AnyArray:
    """Convert a partition to checked floats, (n, width), with NaN in rows that are to be dropped."""
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
    if missing == "drop" and np.isinf(values).any():
        values = np.where(np.isinf(values), np.nan, values)
    check_cells(values, part, what, allow_nan=missing != "error")
    return values


class SelectionLoader:
    """Loads some rows of another shard, which has ``n_rows``; ``rows`` are increasing, counted from its first row."""

    def __init__(self, loader: ShardLoader, n_rows: int, rows: AnyArray) -> None:
        self._loader, self._n_rows = loader, n_rows
        # Sent with every task: one bit for each row, or the indices if that is shorter.
        self._packed = len(rows) * 64 > n_rows
        self._rows = rows
        if self._packed:
            mask = np.zeros(n_rows, dtype=bool)
            mask[rows] = True
            self._rows = np.packbits(mask)

    @property
    def name(self) -> str:
        return self._loader.name

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:  # noqa: ARG002
        rows = np.flatnonzero(np.unpackbits(self._rows, count=self._n_rows)) if self._packed else self._rows
        return Selection(self._loader.open(parts, self._n_rows), rows)


class ValueSource(ArraySource):
    """A value computed from rows that stay on a worker, in place of these rows."""

    def __init__(self, value: Any, first_row: int) -> None:
        super().__init__(np.empty((0, 0)), np.empty((0, 0)))
        self.value, self.first_row = value, first_row


@dataclass(frozen=True)
class ValueLoader:
    """Loads a result that the workers keep: the part is an ``Outcome``, a value or an error."""

    number: int
    first_row: int

    @property
    def name(self) -> str:
        return f"part {self.number} (counting from 0) of the rows in memory"

    def open(self, parts: Sequence[Any], n_rows: int | None) -> ValueSource:  # noqa: ARG002
        return ValueSource(parts[0].get(), self.first_row)


@dataclass(frozen=True)
class PersistedLoader:
    """Loads rows that the workers keep."""

    values: ShardLoader
    single: bool
    n_noise: int
    encoder: TableEncoder | None

    @property
    def name(self) -> str:
        return self.values.name

    def open(self, parts: Sequence[Any], n_rows: int | None) -> Source:
        kept = self.values.open(parts, n_rows)
        assert isinstance(kept, ValueSource)
        source = ArraySource(*kept.value, n_noise=self.n_noise)
        source.single, source.encoder = self.single, self.encoder
        return source
