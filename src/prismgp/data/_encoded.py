"""Rows of table files, encoded as they are read: inputs and targets as the model wants them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from prismgp._types import Array
from prismgp.data._columns import NUMBER, empty_column, to_numbers, unusable
from prismgp.data._folder import TableFiles
from prismgp.data._source import Block
from prismgp.data._table import TableEncoder, missing_error, unseen_message
from prismgp.exceptions import DataError, PrismGPWarning

__all__ = ["EncodedRows", "warn_unseen"]

_COUNTED_ROWS = 65_536


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
    truths : collection of str
        Targets that a text file spells as true and false.

    Attributes
    ----------
    rows_read : int
        Rows of the files, those with missing values too; known after a pass.
    unseen : Counter
        Cells with a category that the encoder does not know, by column; known after a pass.
    """

    def __init__(
        self,
        files: TableFiles,
        encoder: TableEncoder,
        targets: list[str],
        *,
        missing: str,
        first_row: int = 0,
        truths: Collection[str] = (),
    ) -> None:
        self.files, self.encoder, self.targets, self.missing = files, encoder, targets, missing
        self.first_row, self.truths = first_row, truths
        self.rows_read = 0
        self.unseen = Counter[str]()

    def blocks(self, rows: int) -> Iterator[Block]:
        """Encoded rows, (n, d) and (n, q), float64, in blocks as they come, of about ``rows``."""
        count, unseen = 0, Counter[str]()
        for table in self._tables(rows):
            encoded = self.encoder.examine(table, first_row=self.first_row + count)
            unseen.update(encoded.unseen)
            x, y = encoded.values, self._target_values(table, self.first_row + count)
            if not encoded.missing and np.isfinite(y).all():
                yield x, y
            elif self.missing == "drop":
                complete = encoded.complete & np.isfinite(y).all(1)
                yield x[complete], y[complete]
            else:
                raise self._missing_error()
            count += table.num_rows
        self.rows_read, self.unseen = count, unseen

    def _tables(self, rows: int) -> Iterator[pa.Table]:
        """Inputs and targets, null where a text file spells a missing value."""
        files = self.files
        names = [*self.encoder.input_names, *self.targets]
        # Numbers are converted by the reader; truths and categories are left to the encoder.
        texts = {column.name for column in self.encoder.columns if column.kind != NUMBER}.union(self.truths)
        numbers = [name for name in names if name not in texts]
        for batch in files.raw_batches(rows, columns=names, numbers=numbers):
            if not batch.num_rows:
                continue
            table = pa.Table.from_batches([batch])
            if files.is_text and texts:
                cells = files.cells(table, [name for name in names if name in texts])
                for name in cells.schema.names:
                    table = table.set_column(table.schema.get_field_index(name), name, cells[name])
            yield table

    def _target_values(self, table: pa.Table, first: int) -> Array:
        if not self.targets:
            return np.empty((table.num_rows, 0))
        return np.stack([to_numbers(name, table[name], boolean=True, first_row=first) for name in self.targets], axis=1)

    def _missing_error(self) -> DataError:
        """The complaint about missing cells, of which there is at least one; counts them all."""
        counts, rows = Counter[str](), 0
        for table in self._tables(_COUNTED_ROWS):
            rows += table.num_rows
            for name in table.schema.names:
                counts[name] += int(unusable(table[name]).sum())
        for name, count in counts.items():
            if count == rows:
                return empty_column("the target" if name in self.targets else "column", name, rows)
        return missing_error(dict(counts), option='--drop-missing (in Python: missing="drop")')


def warn_unseen(unseen: Counter[str]) -> None:
    """Say which columns have values that the encoder does not know."""
    for name, count in unseen.items():
        warnings.warn(unseen_message(name, count), PrismGPWarning, stacklevel=3)
