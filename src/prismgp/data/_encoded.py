"""Rows of table files, encoded as they are read: inputs and targets as the model wants them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.data._columns import NUMBER, empty_column, to_numbers, unusable
from prismgp.data._folder import TableFiles
from prismgp.data._source import Block
from prismgp.data._table import TableEncoder, missing_error, unseen_message
from prismgp.exceptions import DataError, PrismGPWarning

__all__ = ["EncodedRows", "warn_unseen"]


class EncodedRows:
    """Reads and encodes; it can be pickled, and then reads where it has been sent.

    Parameters
    ----------
    files : TableFiles
    encoder : TableEncoder
    targets : list of str
    missing : {"error", "drop"}
    first_row : int, default 0
        Where the rows begin in their file, for messages.

    Attributes
    ----------
    rows_read : int
        Rows of the files, those with missing values too; known after a pass.
    unseen : Counter
        Cells with a category that the encoder does not know, by column; known after a pass.
    """

    def __init__(
        self, files: TableFiles, encoder: TableEncoder, targets: list[str], *, missing: str, first_row: int = 0
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, targets, missing
        self.first_row = first_row
        self.rows_read = 0
        self.unseen = Counter[str]()

    def blocks(self, rows: int) -> Iterator[Block]:
        """Encoded rows, (n, d) and (n, q), float64, in blocks as they come, of about ``rows``."""
        encoder, files = self.encoder, self.files
        names = [*encoder.input_names, *self.targets]
        numbers = [column.name for column in encoder.columns if column.kind == NUMBER]
        count, unseen = 0, Counter[str]()
        for batch in files.raw_batches(rows, columns=names, numbers=[*numbers, *self.targets]):
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            if files.is_text:
                table = self._with_nulls(table)
            encoded = encoder.examine(table, first_row=self.first_row + count)
            unseen.update(encoded.unseen)
            x = encoded.values
            y = self._target_values(table, self.first_row + count)
            complete = np.asarray(np.isfinite(x).all(1) & np.isfinite(y).all(1))
            if complete.all():
                yield x, y
            elif self.missing == "drop":
                yield x[complete], y[complete]
            else:
                raise self._missing_error(names)
            count += batch.num_rows
        self.rows_read, self.unseen = count, unseen

    def _with_nulls(self, table: pa.Table) -> pa.Table:
        """Null where a text column spells a missing value; numbers have been converted already."""
        texts = [column.name for column in self.encoder.columns if column.kind != NUMBER]
        if not texts:
            return table
        cells = self.files.cells(table, texts)
        for name in texts:
            table = table.set_column(table.schema.get_field_index(name), name, cells[name])
        return table

    def _target_values(self, table: pa.Table, first: int) -> Array:
        if not self.targets:
            return np.empty((table.num_rows, 0))
        return np.stack([to_numbers(name, table[name], first_row=first) for name in self.targets], axis=1)

    def _missing_error(self, names: list[str]) -> DataError:
        """The complaint about missing cells, of which there is at least one; counts them all."""
        counts, rows = Counter[str](), 0
        for batch in self.files.raw_batches(65_536, columns=names):
            table = self.files.cells(pa.Table.from_batches([batch]), names)
            rows += batch.num_rows
            for name in names:
                counts[name] += int(unusable(_as_read(table[name], self.files.is_text)).sum())
        for name, count in counts.items():
            if count == rows:
                return empty_column("the target" if name in self.targets else "column", name, rows)
        return missing_error(dict(counts), option='--drop-missing (in Python: missing="drop")')


def _as_read(column: Any, is_text: bool) -> Any:
    """Cells of a text file are missing where they are empty, or spell what is not a finite number."""
    if not is_text:
        return column
    odd = pa.array(["inf", "+inf", "-inf", "infinity", "+infinity", "-infinity", "nan"], pa.string())
    spelled = pc.is_in(pc.utf8_lower(pc.utf8_trim_whitespace(column)), value_set=odd)
    return pc.if_else(spelled, pa.scalar(None, pa.string()), column)


def warn_unseen(unseen: Counter[str]) -> None:
    """Say which columns have values that the encoder does not know."""
    for name, count in unseen.items():
        warnings.warn(unseen_message(name, count), PrismGPWarning, stacklevel=3)
