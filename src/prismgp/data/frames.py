"""Frames of Python: pandas, polars and Arrow tables, read as table files are."""

from __future__ import annotations

import datetime as dt
import sys
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from prismgp._validate import sparse_error
from prismgp.data.cells import absent_error, check_unique, is_numeric
from prismgp.data.encoder import TableBatch, TableEncoder
from prismgp.data.scan import TableScan
from prismgp.exceptions import DataError

if TYPE_CHECKING:
    import pandas as pd


def is_frame(data: Any) -> bool:
    """Whether this is a pandas or polars frame or an Arrow table."""
    return isinstance(data, pa.Table | pa.RecordBatch) or _is("pandas", data) or _is("polars", data)


def _is(library: str, data: Any) -> bool:
    loaded = sys.modules.get(library)  # without it there can be no frame of it
    return loaded is not None and isinstance(data, loaded.DataFrame)


def has_plain_types(frame: Any) -> bool:
    """Whether all columns of a pandas or Dask frame have NumPy types of numbers or booleans; missing cells are NaN."""
    return all(getattr(kind, "kind", "O") in "fiub" for kind in frame.dtypes)


def needs_encoder(frame: Any) -> bool:
    """Whether a frame holds anything but numbers and booleans, or a missing cell."""
    if _is("pandas", frame):
        return not has_plain_types(frame) or bool(frame.isna().to_numpy().any())
    return any(not _is_plain(column) for column in to_arrow(frame).columns)


def _is_plain(column: Any) -> bool:
    kind = column.type
    if not (is_numeric(kind) or pa.types.is_boolean(kind)) or column.null_count:
        return False
    return not pa.types.is_floating(kind) or not pc.any(pc.is_nan(column)).as_py()


def frame_encoder(frame: Any, *, warn: bool = True) -> TableEncoder:
    """Decide how the columns of a frame are read; ``warn`` of text that reads as numbers or dates."""
    return TableScan(to_arrow(frame)).encoder(warn=warn)


def to_arrow(frame: Any, names: list[str] | None = None) -> pa.Table:
    """The named columns of a frame, or all of them, as an Arrow table."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if isinstance(frame, pa.Table):
        return frame if names is None else frame.select(names)
    columns = [str(name) for name in frame.columns]
    chosen = columns if names is None else names
    check_unique([name for name in columns if name in set(chosen)], "column")
    absent = [name for name in chosen if name not in columns]
    if absent:
        raise absent_error(absent, columns)
    if not _is("pandas", frame):
        return _from_polars(frame.select(chosen))
    places = [columns.index(name) for name in chosen]
    return pa.table({name: _to_column(name, frame.iloc[:, k]) for name, k in zip(chosen, places, strict=True)})


def _from_polars(frame: Any) -> pa.Table:
    """A polars frame, some of whose types Arrow does not know."""
    try:
        return frame.to_arrow()
    except pa.ArrowException:
        for name, column in zip(frame.columns, frame, strict=True):
            try:
                column.to_arrow()
            except pa.ArrowException as error:
                remedy = f"cast it, e.g. pl.col({name!r}).cast(pl.Float64)"
                raise DataError(f"column {name!r} holds {column.dtype}, which Arrow does not know; {remedy}") from error
        raise


def _to_column(name: str, series: Any) -> Any:
    """A pandas column; what Arrow does not know, such as intervals, or objects of several kinds, as text."""
    if getattr(series.dtype, "kind", "O") == "c":
        raise DataError(f"Complex data not supported: column {name!r}; pass real and imaginary parts apart")
    if isinstance(series.dtype, sys.modules["pandas"].SparseDtype):
        raise sparse_error([name])
    if isinstance(series.dtype, sys.modules["pandas"].PeriodDtype):
        series = series.dt.to_timestamp()
    if series.dtype == object and (times := _to_times(series)) is not None:
        return times
    try:
        column = pa.Array.from_pandas(series)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not isinstance(kind, pa.BaseExtensionType):
            return column
    except (pa.ArrowException, TypeError, ValueError):
        pass
    values = [None if missing else str(value) for value, missing in zip(series, series.isna(), strict=True)]
    return pa.array(values, pa.large_string())


def _to_times(series: Any) -> Any:
    """Objects that are times, or times and dates, by the wall clock of each; None for anything else.

    Arrow would take the first cell for the type of all, and drop the times of day where it is a date.
    """
    missing = series.isna().to_numpy()
    known = series.to_numpy()[~missing]
    if not (len(known) and isinstance(known[0], dt.date)):
        return None
    if not (all(isinstance(each, dt.date) for each in known) and any(isinstance(each, dt.datetime) for each in known)):
        return None
    cells = (None if gap else _wall_clock(each) for each, gap in zip(series, missing, strict=True))
    return pa.array(cells, pa.timestamp("us"), size=len(series))


def _wall_clock(time: dt.date) -> dt.datetime:
    if isinstance(time, dt.datetime):
        return dt.datetime.combine(time.date(), time.time())
    return dt.datetime(time.year, time.month, time.day)


def column_names(frame: Any) -> list[str]:
    """Names of the columns of a frame, as text."""
    names = frame.schema.names if isinstance(frame, pa.Table | pa.RecordBatch) else frame.columns
    return [str(name) for name in names]


def input_columns(encoder: TableEncoder, frame: Any) -> pa.Table:
    """The columns of a frame that the encoder reads; it may be without those that a model ignores."""
    names = column_names(frame)
    absent = encoder.missing_columns(names)
    if absent:
        raise absent_error(absent, names)
    return to_arrow(frame, encoder.present_columns(names) or names[:1])  # one, if only its rows count


def read_frame(encoder: TableEncoder, frame: Any, *, infinite: str = "error") -> tuple[pd.DataFrame, TableBatch]:
    """A frame of one number for each cell of the columns that the encoder knows, and what was found in them.

    ``infinite`` numbers are an error, or "missing".
    """
    import pandas as pd  # start-up weight: predictions from files do without

    batch = encoder.read(input_columns(encoder, frame), infinite=infinite)
    names = [name for name in frame.columns if str(name) in set(encoder.input_names)] if _is("pandas", frame) else []
    # The frame's own names, which may be numbers; in the order of the encoder.
    own = {str(name): name for name in names}
    integers = bool(names) and all(isinstance(name, Integral) for name in names)
    rest = {name: int(name) if integers and name.isdecimal() else name for name in encoder.input_names}
    columns = [own.get(name, rest[name]) for name in encoder.input_names]
    return pd.DataFrame(batch.values, columns=columns, copy=False), batch
