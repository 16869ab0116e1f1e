"""From tables with named columns of numbers and text to the model's matrix, the same way every time.

What was learned from the training table, the inputs, their order and the categories of text columns,
is remembered with the model, so that later tables are encoded alike whatever else they hold.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prismgp._types import Array
from prismgp.data._columns import BOOLEAN, CATEGORY, NUMBER, ArrowColumn, listed, to_numbers, to_text, unusable
from prismgp.data._schema import InputColumn, check_unique, is_clean_text, parse_column, plural
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Encoded", "TableEncoder", "missing_error", "unseen_message"]


class Encoded(NamedTuple):
    """An encoded batch.

    Attributes
    ----------
    values : ndarray, (n, d)
        Not finite where an input is missing or infinite.
    missing : dict
        Missing or infinite cells by column; only columns that have any.
    unseen : dict
        Cells with a category that training did not have, by column; only columns that have any.
    """

    values: Array
    missing: dict[str, int]
    unseen: dict[str, int]

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Rows without a missing input, (n,)."""
        complete: npt.NDArray[np.bool_] = np.asarray(np.isfinite(self.values).all(axis=1))
        return complete


@dataclass(frozen=True)
class TableEncoder:
    """Encodes tables as the training table was.

    Numbers and booleans become float64; text and categories become one indicator column per
    category. A category unseen in training has all indicators at zero.

    Attributes
    ----------
    columns : tuple of InputColumn
    target : str or None
        The column that was learned; not needed at prediction.
    """

    columns: tuple[InputColumn, ...]
    target: str | None = None

    @classmethod
    def numeric(cls, names: Iterable[str], target: str | None = None) -> TableEncoder:
        """The encoder of a purely numeric table."""
        return cls(tuple(InputColumn(name, NUMBER) for name in names), target)

    # -- names -----------------------------------------------------------------------------------

    @property
    def input_names(self) -> list[str]:
        """Raw input columns, in order."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Encoded columns, in order: the column's name, or ``column=value`` for a category."""
        return [name for column in self.columns for name in column.features]

    def missing_columns(self, names: Collection[str]) -> list[str]:
        """Inputs that are not among the names."""
        there = set(names)
        return [name for name in self.input_names if name not in there]

    # -- encoding --------------------------------------------------------------------------------

    def examine(self, data: pa.Table | pa.RecordBatch, *, first_row: int = 0) -> Encoded:
        """Encode a batch and count its missing and unseen cells, without complaining about them.

        Parameters
        ----------
        data : pyarrow.Table or RecordBatch
            Columns beyond the inputs are ignored.
        first_row : int, default 0
            Where the batch starts in its file, for messages.

        Raises
        ------
        DataError
            For absent or duplicate columns and cells that cannot be of the column's kind.
        """
        absent = self.missing_columns(data.schema.names)
        if absent:
            raise DataError(f"{plural(absent, 'input column')} missing: {listed(absent)}")
        check_unique([name for name in data.schema.names if name in set(self.input_names)], "column")
        # Filled column by column, so in that order; whoever computes with rows brings them together anyway.
        values = np.zeros((data.num_rows, len(self.feature_names)), order="F")
        missing: dict[str, int] = {}
        unseen: dict[str, int] = {}
        at = 0
        for column in self.columns:
            block = values[:, at : at + len(column.features)]
            at += block.shape[1]
            cells = data.column(data.schema.get_field_index(column.name))
            if column.kind == CATEGORY:
                strange = _one_hot(column, cells, block)
                if strange:
                    unseen[column.name] = strange
            else:
                block[:, 0] = to_numbers(column.name, cells, boolean=column.kind == BOOLEAN, first_row=first_row)
            finite = np.isfinite(block[:, 0])
            if not finite.all():
                missing[column.name] = int((~finite).sum())
        return Encoded(values, missing, unseen)

    def encode(self, data: pa.Table | pa.RecordBatch) -> tuple[Array, dict[str, int]]:
        """Encode a batch.

        Returns
        -------
        values : ndarray, (n, d)
        unseen : dict
            Cells with a category that training did not have, by column.

        Raises
        ------
        DataError
            As :meth:`examine`, and when an input is missing or infinite.
        """
        encoded = self.examine(data)
        if encoded.missing:
            raise missing_error(encoded.missing)
        return encoded.values, encoded.unseen

    def accepts(self, frame: Any) -> bool:
        """Whether this is a pandas or polars frame or an Arrow table that has all raw input columns."""
        if isinstance(frame, pa.Table | pa.RecordBatch):
            names = frame.schema.names
        elif _is_frame(frame):
            names = frame.columns
        else:
            return False
        return not self.missing_columns(names)

    def encode_frame(self, frame: Any) -> pd.DataFrame:
        """Encode a frame that :meth:`accepts` takes; warns about unseen categories."""
        import pandas as pd

        values, unseen = self.encode(_to_arrow(frame, self.input_names))
        for name, count in unseen.items():
            warnings.warn(unseen_message(name, count), PrismGPWarning, stacklevel=4)
        return pd.DataFrame(values, columns=self.feature_names, copy=False)

    # -- model files -----------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        columns = [
            {"name": column.name, "kind": column.kind, "categories": list(column.categories)} for column in self.columns
        ]
        return {"target": self.target, "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableEncoder:
        """Read what :meth:`to_dict` wrote.

        Raises
        ------
        ModelFileError
            For anything else: the data comes from files that nobody vouches for.
        """
        if not isinstance(data, dict) or set(data) != {"target", "columns"}:
            raise ModelFileError("the table description is not an object with 'target' and 'columns'")
        target, columns = data["target"], data["columns"]
        if target is not None and not is_clean_text(target):
            raise ModelFileError("the table's target is not a name")
        if not isinstance(columns, list) or not columns:
            raise ModelFileError("the table's columns are not a list of at least one")
        encoder = cls(tuple(parse_column(item) for item in columns), target)
        names = encoder.input_names
        if len(set(names)) < len(names) or len(set(encoder.feature_names)) < len(encoder.feature_names):
            raise ModelFileError("the table names a column twice")
        if target in names:
            raise ModelFileError("the table's target is among its inputs")
        return encoder


def unseen_message(name: str, count: int) -> str:
    """The warning about categories that training did not have."""
    return f"column {name!r}: {count:,} value(s) unseen in training, encoded as none of the known categories"


def missing_error(counts: dict[str, int], *, option: str = "--drop-missing") -> DataError:
    """The complaint about missing cells, every affected column with its count."""
    found = [f"{name!r} ({count:,})" for name, count in counts.items() if count]
    return DataError(
        f"missing or infinite values in {plural(found, 'column')} {', '.join(found)}; "
        f"leave these rows out with {option}, or fill the values first"
    )


def _one_hot(column: InputColumn, cells: ArrowColumn, block: Array) -> int:
    """Fill the zeroed block with indicators, NaN where the cell is missing; returns the number of unseen cells."""
    text = to_text(column.name, cells)
    known = pa.array(column.categories, pa.large_string())
    code = pc.fill_null(pc.index_in(text, value_set=known), -1)
    codes = np.asarray(code).astype(np.intp)
    hit = np.flatnonzero(codes >= 0)
    block[hit, codes[hit]] = 1.0
    missing = unusable(text)
    block[missing] = np.nan
    return int(len(codes) - len(hit) - missing.sum())


def _is_frame(frame: Any) -> bool:
    return _is_of("pandas", frame) or _is_of("polars", frame)


def _is_of(library: str, frame: Any) -> bool:
    loaded = sys.modules.get(library)  # without it there can be no frame of it
    return loaded is not None and isinstance(frame, loaded.DataFrame)


def _to_arrow(frame: Any, names: list[str]) -> pa.Table:
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame
    if not _is_of("pandas", frame):
        return frame.select(names).to_arrow()
    chosen = frame[names]
    check_unique([str(name) for name in chosen.columns], "column")
    try:
        return pa.Table.from_pandas(chosen, preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"a column cannot be read as numbers or text: {'; '.join(map(str, error.args))}") from error
