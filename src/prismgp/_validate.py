"""Validation: what users pass in becomes a float array here, or an error that says what is wrong.

scikit-learn's own validation runs first, so its conventions hold. When it objects, the data is
searched for the first offending cell, and the error names the column, the row and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prismgp._system import is_device, unknown_device
from prismgp._types import AnyArray
from prismgp.exceptions import DataError, DataTypeError

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


_NUMPY_DTYPES = [np.float64, np.float32]
_IMPUTE = 'drop these rows or impute them first (the regressors do, with missing="drop" or "impute")'
_ENCODE = "encode it as numbers, or pass a frame to a regressor, which encodes text as categories"
_FRAME = "pass a frame, whose times are encoded"
LARGEST_CELL = 1e150  # squares of larger values leave the range of float64
TOO_LARGE = f"values beyond {LARGEST_CELL:g} cannot be squared in float64: rescale the column or drop the row"


def check_fit_data(
    estimator: BaseEstimator, x: Any, y: Any, *, reset: bool = True, allow_nan: bool = False, infinite: str = "error"
) -> tuple[AnyArray, AnyArray]:
    """Validate training data; returns X (n, d) and y as passed, (n,) or (n, q), both float.

    ``allow_nan``: X may have missing cells, which become NaN; ``infinite="missing"``: and infinite ones, likewise.
    """
    from sklearn.utils.validation import validate_data  # start-up weight: predictions from files do without

    x, y = _to_array(x), _to_array(y)
    _refuse_times({"X": x, "y": y})
    try:
        options = {"dtype": _NUMPY_DTYPES, "multi_output": True, "y_numeric": True}
        finite = False if infinite == "missing" else "allow-nan" if allow_nan else True
        clean_x, clean_y = validate_data(estimator, x, y, reset=reset, ensure_all_finite=finite, **options)
        if clean_y.dtype not in _NUMPY_DTYPES:
            clean_y = clean_y.astype(np.float64)
    except (ValueError, TypeError) as error:
        allowed = {"allow_nan": allow_nan, "allow_inf": infinite == "missing"}
        raise _explain(error, {"X": x, "y": y}, **allowed) from error
    if infinite == "missing" and np.isinf(clean_x).any():
        clean_x = np.where(np.isinf(clean_x), np.nan, clean_x)
    _check_range(clean_x, x, "X")
    _check_range(clean_y, y, "y")
    return clean_x, clean_y


def check_inputs(estimator: BaseEstimator, x: Any, *, reset: bool = False, allow_nan: bool = False) -> AnyArray:
    """Validate inputs alone, at prediction or for a transformer; returns X (n, d)."""
    from sklearn.utils.validation import validate_data  # start-up weight: predictions from files do without

    x = _to_array(x)
    _refuse_times({"X": x})
    try:
        finite = "allow-nan" if allow_nan else True
        clean: AnyArray = validate_data(estimator, x, reset=reset, dtype=_NUMPY_DTYPES, ensure_all_finite=finite)
    except (ValueError, TypeError) as error:
        raise _explain(error, {"X": x}, allow_nan=allow_nan) from error
    _check_range(clean, x, "X")
    return clean


def check_cells(clean: AnyArray, original: Any, what: str, *, allow_nan: bool = False) -> None:
    """Refuse cells, (n, d), that are infinite, too large to be squared, or missing unless that is allowed.

    ``original`` is what they were made from, which may know the names of its columns; ``what`` is "X" or "y".
    """
    if np.isinf(clean).any() if allow_nan else not np.isfinite(clean).all():
        options = {"allow_nan": allow_nan}
        found = _first_bad_cell(original, what, **options) or _first_bad_cell(clean, what, **options)
        raise found or DataError(f"{what} holds cells that are missing or infinite")
    _check_range(clean, original, what)


def check_row_noise(sample_weight: Any, noise_variance: Any, n: int, n_outputs: int) -> AnyArray | None:
    """Check weights and known noise variances, if any, of n rows; returns (n, 1) or (n, 2), float64.

    None where all weights are one, or not given, and there are no variances.
    """
    weights = _check_row_numbers("sample_weight", sample_weight, n, "0 leaves a row out")
    variances = _check_row_numbers("noise_variance", noise_variance, n, "0 stands for an error that is not known")
    if variances is not None and n_outputs > 1:
        raise DataError(
            f"noise_variance is for one target, and y has {n_outputs} columns; fit a regressor for each of them, "
            "e.g. by a loop over the columns"
        )
    if weights is not None and not (weights > 0).any():
        raise DataError("sample_weight is zero for every row; at least one weight must not be zero")
    if variances is None or not variances.any():
        return None if weights is None or (weights == 1.0).all() else weights[:, None]
    return np.stack([np.ones(n) if weights is None else weights, variances], 1)


def _check_row_numbers(name: str, values: Any, n: int, zero: str) -> AnyArray | None:
    """Check that there are finite numbers of at least zero, one for each of n rows."""
    if values is None:
        return None
    values = _to_array(values)
    try:
        if _holds_times(values):
            raise TypeError
        clean = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        found = _first_bad_cell(values, "X")
        raise DataError(f"{name} must hold numbers" + ("" if found is None else f": {found}")) from error
    if clean.ndim == 0 and name == "sample_weight":
        clean = np.full(n, clean)  # as scikit-learn takes it
    if clean.shape != (n,):
        raise DataError(f"{name} has shape {clean.shape}; it must hold one number for each of the {n:,} rows")
    bad = ~((clean >= 0.0) & (clean <= LARGEST_CELL))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"{name} holds {float(clean[row])!r} at row {row} (counting from 0); it must be a finite number of at "
            f"least 0: {zero}"
        )
    return clean


def refuse_lazy(data: Any) -> None:
    """Refuse a lazy frame of polars, which has no rows yet."""
    if type(data).__name__ == "LazyFrame" and hasattr(data, "collect"):
        raise DataError("a polars LazyFrame has no rows yet; pass the frame that .collect() returns")


def sparse_error(names: Sequence[Any]) -> DataError:
    """The error for columns of a pandas frame that hold sparse values."""
    first = names[0]
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return DataError(f"column {str(first)!r}{more} is sparse; make it dense, e.g. X[{first!r}].sparse.to_dense()")


def _to_array(data: Any) -> Any:
    """Convert a torch tensor, or an array with a mask, to an array; return anything else as it is."""
    refuse_lazy(data)
    if isinstance(data, np.ma.MaskedArray):
        return _unmask(data)
    if not callable(getattr(data, "columns", None)) and len(getattr(data, "columns", (None,))) == 0:
        raise DataError("the frame has no columns; it needs at least one, of numbers")
    sparse = [name for name, kind in _pandas_types(data) if type(kind).__name__ == "SparseDtype"]
    if sparse:
        raise sparse_error(sparse)
    if not isinstance(data, torch.Tensor):
        return data
    dense = data.detach().to_dense() if data.layout != torch.strided else data.detach()
    return (dense.float() if dense.dtype == torch.bfloat16 else dense).cpu().numpy()


def _pandas_types(frame: Any) -> list[tuple[Any, Any]]:
    types: Any = getattr(frame, "dtypes", None)
    return list(types.items()) if hasattr(types, "items") and hasattr(frame, "columns") else []


def _unmask(data: Any) -> AnyArray:
    """An array with NaN where a cell is masked, or None if it holds no numbers: what is under a mask does not count."""
    if not np.ma.is_masked(data):
        return np.asarray(np.ma.getdata(data))
    if data.dtype.kind in "biuf":
        return np.asarray(data.astype(np.result_type(data.dtype, np.float32)).filled(np.nan))
    return np.asarray(data.astype(object).filled(None))


def _refuse_times(data: dict[str, Any]) -> None:
    """Refuse what NumPy would make ticks of, and of a missing time the smallest integer."""
    for what, table in data.items():
        if _holds_times(table) and (found := _first_bad_cell(table, what)) is not None:
            raise found


def _holds_times(table: Any) -> bool:
    """Whether all cells are dates, times or durations, by their type."""
    try:
        return np.asarray(table[:1]).dtype.kind in "mM"
    except (LookupError, TypeError, ValueError, NotImplementedError):  # no array, which is said elsewhere
        return False


def _check_range(clean: AnyArray, original: Any, what: str) -> None:
    # Not by the comparison alone: NaN, where it is allowed, would hide what is too large.
    if clean.size and (np.isnan(clean).any() or max(float(clean.max()), -float(clean.min())) > LARGEST_CELL):
        rows = clean.reshape(len(clean), -1)
        found = np.argwhere(np.abs(rows) > LARGEST_CELL)
        if not len(found):
            return
        row, column = found[0]
        raise DataError(
            f"{_column_name(original, what, int(column))} holds {rows[row, column]:g} at row {row} (counting from 0); "
            f"{TOO_LARGE}"
        )


def _explain(error: Exception, data: dict[str, Any], **allowed: bool) -> DataError:
    """Return the same error, naming the first bad cell if there is one; NaN and infinity may be allowed in X."""
    for what, table in data.items():
        found = _first_bad_cell(table, what, **allowed if what == "X" else {})
        if found is not None:
            return found
    kind = DataTypeError if isinstance(error, TypeError) else DataError
    return kind(str(error))


def _first_bad_cell(table: Any, what: str, *, allow_nan: bool = False, allow_inf: bool = False) -> DataError | None:
    if table is None or hasattr(table, "tocsr"):
        return None
    try:
        cells = np.asarray(table)
    except (ValueError, TypeError):
        return None
    if cells.ndim == 0 or cells.ndim > 2 or cells.size == 0:
        return None
    cells = cells.reshape(len(cells), -1)
    for column in range(cells.shape[1]):
        found = _first_bad_value(cells[:, column], allow_nan=allow_nan, allow_inf=allow_inf)
        if found is None:
            continue
        row, value, trouble, remedy, wrong_type = found
        if what == "y" and remedy in (_IMPUTE, _ENCODE, _FRAME):  # what is done with inputs
            remedy = "leave such rows out" if remedy == _IMPUTE else "a regression target must be numeric"
        message = (
            f"{trouble}: {_column_name(table, what, column)} holds {value!r} at row {row} (counting from 0); {remedy}"
        )
        return DataTypeError(message) if wrong_type else DataError(message)
    return None


def _first_bad_value(column: AnyArray, *, allow_nan: bool, allow_inf: bool) -> tuple[int, Any, str, str, bool] | None:
    """Find the first bad cell of a column: row, value, trouble, remedy, and whether it is a type error."""
    if column.dtype.kind == "c" and np.iscomplex(column).any():
        row = int(np.flatnonzero(np.iscomplex(column))[0])
        return row, complex(column[row]), "Complex data not supported", "pass real and imaginary parts apart", False
    if column.dtype.kind == "c":
        return 0, complex(column[0]), "Complex data not supported", "pass the real part", False
    if column.dtype.kind in "biu":
        return None
    if column.dtype.kind in "Mm":
        return 0, str(column[0]), "dates and times are not numbers", _FRAME, False
    for row, value in enumerate(column.tolist()):
        if isinstance(value, complex):
            return row, value, "Complex data not supported", "pass real and imaginary parts apart", False
        try:
            number = float(value)
        except ValueError:
            return row, value, f"could not convert string to float: {value!r}", _ENCODE, False
        except TypeError:
            if value is None or type(value).__name__ in ("NAType", "NaTType"):
                if allow_nan:
                    continue
                return row, value, "input contains NaN (a missing value)", _IMPUTE, False
            trouble = "argument must be a string or a real number"
            return row, value, trouble, "every cell must be a number", True
        if np.isnan(number):
            if allow_nan:
                continue
            return row, value, "input contains NaN (a missing value)", _IMPUTE, False
        if np.isinf(number) and not allow_inf:
            return row, value, "input contains inf (infinity)", "drop the row or clip the value", False
    return None


def _column_name(table: Any, what: str, column: int) -> str:
    names = getattr(table, "columns", None)
    if what == "y" and names is None:
        name = getattr(table, "name", None)
        return f"target {name!r}" if name is not None else f"target column {column}"
    if names is not None and not callable(names) and len(names) > column:
        return f"{'target' if what == 'y' else 'column'} {str(names[column])!r}"
    return f"column {column}"


def check_number(
    estimator: str,
    name: str,
    value: Any,
    *,
    low: float,
    strict: bool = False,
    integer: bool = False,
    optional: bool = False,
) -> None:
    """Check that a constructor argument is a number of at least ``low`` (above it when strict)."""
    if optional and value is None:
        return
    kind = Integral if integer else Real
    ok = isinstance(value, kind) and not isinstance(value, bool)
    if not ok or not np.isfinite(value) or value < low or (strict and value == low):
        what = "an integer" if integer else "a number"
        raise DataError(f"{estimator}: {name}={value!r} must be {what} {'above' if strict else 'of at least'} {low:g}")


def check_choice(estimator: str, name: str, value: Any, choices: Sequence[str]) -> None:
    """Check that a constructor argument is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise DataError(f"{estimator}: {name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}")


def check_device(estimator: str, value: Any) -> None:
    """Check that a constructor argument names a device, which need not be present: a model is loaded without it."""
    if not is_device(value):
        raise DataError(f"{estimator}: {unknown_device(value)}")


def check_output(owner: str, output: Any, count: int) -> None:
    """Check the number of an output, of which there are ``count``."""
    check_number(owner, "output", output, low=0, integer=True)
    if output >= count:
        raise DataError(f"output={output}, but y has {count} column(s); the first is 0")


def check_levels(q: Any) -> list[float]:
    """Check the probabilities at which quantiles are computed."""
    try:
        levels = np.asarray(q, dtype=np.float64)
    except (TypeError, ValueError):
        levels = np.empty(0)
    if levels.ndim != 1 or not levels.size or not ((levels > 0.0) & (levels < 1.0)).all():
        raise DataError(f"q={q!r:.80} must be a sequence of numbers between 0 and 1, such as [0.05, 0.5, 0.95]")
    return [float(level) for level in levels]
