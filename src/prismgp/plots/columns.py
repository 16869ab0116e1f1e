"""Rows of the user's table, column by column, whatever a model's encoder makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from prismgp._types import AnyArray
from prismgp.data import InputColumn, Source, TableEncoder, is_collection, is_frame
from prismgp.data.cells import absent_error, to_numbers, to_seconds
from prismgp.data.encodings import NUMBER, TIME
from prismgp.data.frames import to_arrow
from prismgp.exceptions import DataError


class InputTable:
    """Rows of a table, column by column, in a form that the estimator takes.

    Parameters
    ----------
    estimator : fitted regressor of this library
    X : array-like or frame, (n, d)
        A frame with the columns of the table that the model was fitted on is encoded by the model.

    Attributes
    ----------
    rows : DataFrame or ndarray, (n, d)
    names : list of str
    """

    def __init__(self, estimator: Any, X: Any) -> None:
        if isinstance(X, Source) or is_collection(X):
            raise DataError("displays take arrays and frames, not sources of rows; load some rows into a frame")
        encoder: TableEncoder | None = getattr(estimator, "table_encoder_", None)
        # Arrays, and frames for a model that has no encoder, are numbers as they are.
        self.encoder = encoder = None if encoder is None or encoder.positional or not is_frame(X) else encoder
        self.rows: Any
        if is_frame(X) and not isinstance(X, pd.DataFrame):  # polars, Arrow
            table = X.to_arrow() if hasattr(X, "to_arrow") else X
            # Arrow's own types: a whole number beside a missing cell stays one.
            X = table.to_pandas(types_mapper=pd.ArrowDtype) if encoder is not None else table.to_pandas()
        if encoder is not None:
            names = [str(name) for name in X.columns]
            absent = encoder.missing_columns(names)
            if absent:
                raise absent_error(absent, names)
            # A column that the model ignores may be absent.
            X = X[[name for wanted in encoder.input_names for name in X.columns if str(name) == wanted]]
        if isinstance(X, pd.DataFrame):
            self.rows = X
            self.names = [str(name) for name in self.rows.columns]
        else:
            self.rows = np.asarray(X)
            if self.rows.ndim != 2:
                raise DataError(f"X has {self.rows.ndim} dimension(s); rows and columns are needed")
            known = getattr(estimator, "feature_names_in_", None)
            count = self.rows.shape[1]
            self.names = [f"column {j}" for j in range(count)] if known is None else [str(name) for name in known]
        if not len(self.rows):
            raise DataError("there are no rows to show")

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, name: Any) -> int:
        """Position of a column, by its name or its position."""
        if isinstance(name, str) and name in self.names:
            return self.names.index(name)
        if isinstance(name, int | np.integer) and not isinstance(name, bool) and 0 <= name < len(self.names):
            return int(name)
        shown = ", ".join(map(repr, self.names[:8])) + (", ..." if len(self.names) > 8 else "")
        raise DataError(f"{name!r} is not a column; the columns are {shown}")

    def take(self, rows: Any) -> Any:
        """Some rows, in the form that the estimator takes."""
        return self.rows.iloc[rows] if isinstance(self.rows, pd.DataFrame) else self.rows[rows]

    def cells(self, column: int) -> Any:
        """One column, a Series."""
        return self.rows.iloc[:, column] if isinstance(self.rows, pd.DataFrame) else pd.Series(self.rows[:, column])

    def replace(self, rows: Any, column: int, sources: Any) -> Any:
        """Some rows, with the cells of one column taken from other rows."""
        chosen = self.take(rows)
        if isinstance(chosen, pd.DataFrame):
            chosen = chosen.copy()
            chosen.isetitem(column, self.rows.iloc[sources, column].array)
        else:
            chosen[:, column] = self.rows[sources, column]
        return chosen

    def scale(self, column: int) -> AnyArray | None:
        """The cells as numbers or dates, (n,), NaN or NaT where one is missing; None where they are categories."""
        cells = self.cells(column)
        if self.encoder is not None:
            known = {each.name: each for each in self.encoder.columns}
            return _read_scale(known[self.names[column]], cells)
        kind = pd.api.types
        if kind.is_bool_dtype(cells.dtype):
            return None
        if kind.is_numeric_dtype(cells.dtype):
            return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
        if kind.is_datetime64_any_dtype(cells.dtype) or str(cells.dtype).startswith(("timestamp", "date")):
            return np.asarray(pd.to_datetime(cells, utc=True).dt.tz_localize(None).to_numpy(dtype="datetime64[ns]"))
        return None


def _read_scale(column: InputColumn, cells: Any) -> AnyArray | None:
    """By what the encoder has learned the column to be: text may spell numbers or times."""
    if column.kind not in (NUMBER, TIME):
        return None
    values = to_arrow(cells.to_frame(column.name), [column.name]).column(0)
    if column.kind == NUMBER:
        return to_numbers(column.name, values)
    seconds = to_seconds(column.name, values, of_day=True)
    found = np.full(len(seconds), np.datetime64("NaT"), dtype="datetime64[us]")
    known = np.isfinite(seconds)
    found[known] = np.rint(seconds[known] * 1e6).astype(np.int64).astype("datetime64[us]")
    return found


def sample_rows(n: int, most: int, rng: np.random.Generator) -> AnyArray:
    """Return the numbers of all rows, or of a random choice of them, in order."""
    return np.arange(n) if n <= most else np.sort(rng.permutation(n)[:most])
