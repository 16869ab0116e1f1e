"""Sources as arguments of estimators, which scikit-learn's validation does not know; and checkpoints of their fits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.base import BaseEstimator

from prismgp._types import AnyArray, Array
from prismgp._validate import check_fit_data, check_inputs, check_row_noise, refuse_lazy
from prismgp._version import __version__
from prismgp.checkpoint import Checkpoint
from prismgp.data import (
    ArraySource,
    MappedSource,
    Source,
    TableEncoder,
    collection_source,
    frame_encoder,
    is_collection,
    is_frame,
    missing_error,
    needs_encoder,
    plural,
    prefetch,
    quote_names,
    read_frame,
    warn_unseen,
)
from prismgp.data.encodings import BOOLEAN
from prismgp.data.frames import column_names, to_arrow
from prismgp.exceptions import DataError

# Parameters that do not change the costly results in a checkpoint, which a fit that ends early shares with a full one.
_WITHOUT_EFFECT = ("verbose", "checkpoint", "max_seconds", "on_interrupt")
_BACKGROUND_ROWS = 512
_LONG = 16  # numbers; longer arrays are told apart by a digest
Labels = Callable[[int, int], AnyArray | None]  # from n and d to the clusters of the rows, if given


def no_labels(n: int, d: int) -> None:
    """Return None: no clusters are given."""


def as_source(
    estimator: BaseEstimator,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    noise_variance: Any = None,
    *,
    reset: bool = False,
) -> tuple[Any, Any]:
    """Convert Dask collections to one source, which holds targets, weights and noise variances of its rows too.

    Anything else is returned as it is. ``reset``: the rows are those of a fit.
    """
    refuse_lazy(X)
    if is_collection(X):
        encoder = None if reset else getattr(estimator, "table_encoder_", None)
        if encoder is None and not reset and hasattr(X, "columns"):
            encoder = _numbers_encoder(estimator, column_names(X))
        missing = getattr(estimator, "missing", None)
        if missing == "drop" and not reset:  # as for frames and arrays, only in a fit
            missing = "impute"
        return collection_source(X, y, sample_weight, noise_variance, encoder=encoder, missing=missing), None
    given = [
        name
        for name, value in (("sample_weight", sample_weight), ("noise_variance", noise_variance))
        if value is not None
    ]
    if isinstance(X, Source) and given:
        raise DataError(
            f"{' and '.join(given)} beside a source, which holds them itself; name the columns where the source is "
            'made, e.g. from_parquet(path, target=..., weight="w", noise="v")'
        )
    return X, y


def apply_where_rows_are(estimator: BaseEstimator, source: Source, method: str, **options: Any) -> Any:
    """Apply a method to the rows, shard by shard where they are; an array, or a tuple of arrays, of n entries."""
    parts = _match_columns(estimator, source).map(partial(getattr(estimator, method), **options))
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


# -- rows of a fit -------------------------------------------------------------------------------


def adopt_source(estimator: BaseEstimator, source: Source, y: Any, *, needs_target: bool = True) -> Source:
    """Check and encode a source to be fitted; names and number of its columns become the estimator's.

    Small ones come into memory.
    """
    _check_targets(source, y, needs_target=needs_target)
    estimator.n_features_in_ = source.n_inputs
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)
    rows = source.load() if source.small else source
    if isinstance(rows, ArraySource) and rows.n_noise:
        rows = ArraySource(rows.x, rows.targets, rows.labels).with_noise(rows.noise)
    encoder = source.encoder
    if encoder is None and np.isnan(source.moments[0].largest_magnitude).any():
        encoder = _encoder_of_numbers(estimator, source.n_inputs)
    return rows if encoder is None else learn_rows(estimator, rows, encoder)


def _encoder_of_numbers(estimator: Any, width: int) -> TableEncoder:
    """Make the encoder for rows of ``width`` numbers, some of which are missing."""
    names = getattr(estimator, "feature_names_in_", None)
    columns = [f"x{k}" for k in range(width)] if names is None else [str(name) for name in names]
    return TableEncoder.numeric(columns, positional=names is None)


def learn_rows(estimator: BaseEstimator, rows: Source, encoder: TableEncoder) -> Source:
    """Encode the rows of a fit; what the encoder learns from them becomes the estimator's."""
    estimator.table_encoder_ = encoder.learn(rows)
    return encode_rows(rows, estimator.table_encoder_, training=True)


def encode_rows(rows: Source, encoder: TableEncoder, *, training: bool = False) -> Source:
    """Encode rows, as they are read, as inputs of a model."""
    if encoder.is_identity:
        return rows
    encoded = MappedSource(rows, encoder.encode_training if training else encoder.encode, encoder.n_features)
    return encoded.load().with_labels(rows.labels) if rows.in_memory else encoded


def adopt_rows(estimator: Any, X: Any, y: Any, noise: tuple[Any, Any], labels: Labels) -> tuple[Source, int]:
    """Check arrays or frames to be fitted, encode them if they are not just numbers; also the dimension of y.

    ``noise`` are weights and known noise variances of the rows; ``labels`` returns the clusters of n rows with d
    inputs, if they are given.
    """
    encoder = batch = None
    infinite = "missing" if estimator.missing == "drop" else "error"
    if is_frame(X) and needs_encoder(X):
        encoder = frame_encoder(X)
        X, batch = read_frame(encoder, X, infinite=infinite)
        if estimator.missing == "error" and batch.missing:
            raise missing_error(batch.missing)
    x, target = check_fit_data(estimator, X, y, allow_nan=estimator.missing != "error", infinite=infinite)
    columns_of_noise, own_labels = check_row_noise(*noise, len(x), target.size // len(target)), labels(*x.shape)
    incomplete: AnyArray = np.asarray(np.isnan(x).any(axis=1) if batch is None else batch.incomplete)
    if estimator.missing == "drop" and incomplete.any():
        if incomplete.all():
            raise DataError(
                f"every one of the {len(x):,} rows has a missing value; exclude the emptiest columns, or use "
                'missing="impute"'
            )
        x, target = x[~incomplete], target[~incomplete]
        columns_of_noise = None if columns_of_noise is None else columns_of_noise[~incomplete]
        own_labels = None if own_labels is None else own_labels[~incomplete]
        incomplete = np.zeros(0, dtype=bool)
    if encoder is None and incomplete.any():
        encoder = _encoder_of_numbers(estimator, x.shape[1])
    rows = ArraySource(x, target.reshape(len(target), -1), own_labels).with_noise(columns_of_noise)
    return (rows if encoder is None else learn_rows(estimator, rows, encoder)), target.ndim


def draw_background(source: Source, encoder: TableEncoder | None) -> Array:
    """Draw a random sample of the rows of a fit, (m, d), in which no cell is missing.

    Missing numbers are replaced by those of other rows. Predictions take the values of unknown cells from this sample
    (``model/unknown.py``).
    """
    size = min(source.n_rows, _BACKGROUND_ROWS)
    # In C order, as in model files: sums and products in another order are rounded differently.
    x = np.array(source.subsamples([size], np.random.default_rng(0))[0].x, dtype=np.float64, order="C")
    for indicator in np.unique(encoder.indicators) if encoder is not None else ():
        known = np.flatnonzero(x[:, indicator] == 0.0)
        if indicator < 0 or not len(known):
            continue
        own = np.flatnonzero(encoder.indicators == indicator) if encoder is not None else np.empty(0, np.intp)
        missing = np.flatnonzero(x[:, indicator] != 0.0)
        donors = known[np.arange(len(missing)) % len(known)]
        x[np.ix_(missing, own)] = x[np.ix_(donors, own)]
        x[missing, indicator] = 0.0
    return x


# -- rows for an estimator that is fitted --------------------------------------------------------


def match_source(
    estimator: BaseEstimator, source: Source, y: Any = None, *, needs_target: bool = False, training: bool = False
) -> Source:
    """Check and encode a source for a fitted estimator: the columns must be those of the fit.

    ``training``: the rows are those of the fit.
    """
    _check_targets(source, y, needs_target=needs_target)
    rows, encoder = _match_columns(estimator, source), getattr(estimator, "table_encoder_", None)
    if encoder is None:
        return rows
    return encode_rows(rows, encoder.learn_folds(rows) if training else encoder, training=training)


def _match_columns(estimator: BaseEstimator, source: Source) -> Source:
    encoder = getattr(estimator, "table_encoder_", None)
    if source.encoder is not None and encoder is not None:
        return source if source.encoder.columns == encoder.columns else source.encode_with(encoder)
    if source.encoder is not None and not source.encoder.is_numeric:
        raise _numbers_only_error(source.encoder.non_numeric_names)
    known = getattr(estimator, "feature_names_in_", None)
    if source.encoder is not None and (numbers := _numbers_encoder(estimator, source.encoder.input_names)) is not None:
        return source.encode_with(numbers)
    if known is not None and source.feature_names is not None and list(known) != source.feature_names:
        raise DataError(
            f"the inputs of {source!r} are {', '.join(source.feature_names)}; the model was fitted with "
            f"{', '.join(map(str, known))}, in that order"
        )
    if source.n_inputs != estimator.n_features_in_:
        raise DataError(
            f"{source!r} has {source.n_inputs} inputs, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input"
        )
    if encoder is not None and not encoder.is_numeric:
        raise DataError(f"{source!r} holds numbers only; the model was fitted with text or times: pass frames or files")
    return source


def _numbers_encoder(estimator: BaseEstimator, names: list[str]) -> TableEncoder | None:
    """The encoder by which a model of numbers reads a table whose columns differ only in those that it ignores."""
    known, model = getattr(estimator, "feature_names_in_", None), getattr(estimator, "model_", None)
    if known is None or model is None or names == list(known):
        return None
    encoder = TableEncoder.numeric(known, kind=BOOLEAN).ignore(model.standardiser.constant_inputs)
    own, needed = ([name for name in each if name not in encoder.ignored] for each in (names, known))
    return encoder if own == needed else None


def match_rows(
    estimator: Any,
    X: Any,
    y: Any,
    noise: tuple[Any, Any] = (None, None),
    labels: Labels = no_labels,
    *,
    training: bool = False,
) -> tuple[Source, int]:
    """Check and encode arrays or frames for a fitted estimator; also returns the dimension of y."""
    encoder = getattr(estimator, "table_encoder_", None)
    X, allow_nan = _read(estimator, X)
    x, target = check_fit_data(estimator, X, y, reset=False, allow_nan=allow_nan)
    rows = ArraySource(x, target.reshape(len(target), -1), labels(*x.shape))
    rows = rows.with_noise(check_row_noise(*noise, rows.n_rows, rows.n_outputs))
    if encoder is None:
        return rows, target.ndim
    return encode_rows(rows, encoder.learn_folds(rows) if training else encoder, training=training), target.ndim


def match_inputs(estimator: Any, X: Any) -> AnyArray:
    """Check and encode inputs for a fitted estimator; not finite where a cell is unknown."""
    encoder = getattr(estimator, "table_encoder_", None)
    X, allow_nan = _read(estimator, X)
    x = check_inputs(estimator, X, allow_nan=allow_nan)
    return x if encoder is None or encoder.is_identity else encoder.encode(x)


def _allows_nan(estimator: Any) -> bool:
    return getattr(estimator, "missing", "error") != "error"


def _read(estimator: Any, X: Any) -> tuple[Any, bool]:
    """Read a frame by the estimator's encoder; return anything else as it is. Also whether cells may be NaN."""
    encoder = getattr(estimator, "table_encoder_", None)
    if not is_frame(X):
        if encoder is not None and not encoder.is_numeric:
            raise DataError("the model was fitted with text or times: pass a frame with the columns of the fit")
        return X, _allows_nan(estimator)
    if encoder is None or encoder.positional:
        others = [] if not needs_encoder(X) else frame_encoder(X, warn=False).non_numeric_names
        if others:
            raise _numbers_only_error(others)
        return _add_ignored(estimator, X), _allows_nan(estimator)
    frame, batch = read_frame(encoder, X)
    # The encoder has found the columns; that their names are no text is not known after loading.
    frame.columns = getattr(estimator, "feature_names_in_", list(range(frame.shape[1])))
    if not _allows_nan(estimator) and batch.missing:
        raise missing_error(batch.missing)
    warn_unseen(batch.unseen)
    return frame, True  # remaining missing cells are in columns that the model ignores


def _add_ignored(estimator: Any, frame: Any) -> Any:
    """A frame of numbers, with missing columns added if the model ignores them."""
    model, names = getattr(estimator, "model_", None), getattr(estimator, "feature_names_in_", None)
    if model is None or names is None or model.encoder is not None:
        return frame
    there, units = set(column_names(frame)), model.standardiser
    absent = [k for k in np.flatnonzero(units.constant_inputs) if names[k] not in there]
    if not absent:
        return frame
    table = to_arrow(frame)
    order = table.column_names
    for k in absent:
        order.insert(min(int(k), len(order)), names[k])
        table = table.append_column(names[k], pa.repeat(float(units.x_shift[k]), table.num_rows))
    return table.select(order).to_pandas()


def _numbers_only_error(names: list[str]) -> DataError:
    return DataError(
        f"{plural(names, 'column')} {quote_names(names)}: text or times; the model was fitted with numbers: convert "
        "the cells to numbers, or fit a model to a table that has text or times in these columns"
    )


def input_blocks(estimator: Any, X: Any, rows: int) -> AnyArray | Iterator[AnyArray]:
    """Check inputs of a fitted estimator; return one array, or blocks of this number of rows of a source."""
    if isinstance(X, Source):
        return (x for x, _ in prefetch(match_source(estimator, X).blocks(rows)))
    return match_inputs(estimator, X)


# -- the rest ------------------------------------------------------------------------------------


def forget_fit(estimator: BaseEstimator) -> None:
    """Delete all learned attributes, so that a fit that fails leaves nothing of an older one."""
    for name in list(vars(estimator)):
        if name.endswith("_") and not name.startswith("_"):
            delattr(estimator, name)


def _check_targets(source: Source, y: Any, *, needs_target: bool) -> None:
    if y is not None:
        raise DataError("y is given beside a source, which holds the targets itself; leave y out")
    if needs_target and not source.n_outputs:
        raise DataError(
            f"{source!r} has no target; name it where the source is made, e.g. from_parquet(path, target=...)"
        )


def open_checkpoint(model: BaseEstimator, source: Source) -> Checkpoint:
    """Begin or continue the checkpoint that the estimator's ``checkpoint`` names, if it names one."""
    path = model.checkpoint
    if path is None:
        return Checkpoint()
    name = type(model).__name__
    if not isinstance(path, str | PathLike):
        raise DataError(f"{name}: checkpoint={path!r} must be a path or None")
    if not isinstance(model.random_state, Integral):
        raise DataError(f"{name}: a checkpoint needs random_state to be a number, so that draws can be repeated")
    arguments = {key: value for key, value in model.get_params(deep=False).items() if key not in _WITHOUT_EFFECT}
    identity = {key: _identify(value) for key, value in arguments.items()}
    rows = {"rows": source.n_rows, "inputs": source.n_inputs, "outputs": source.n_outputs, "data": source.digest}
    code = {"prismgp": __version__, "code": digest_code()}
    return Checkpoint(path, {"estimator": name, **code, **identity, **rows})


@cache
def digest_code() -> str:
    """Compute a digest of the source of PrismGP: different code might compute other results than a checkpoint holds."""
    found, root = hashlib.sha256(), Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        found.update(f"{file.relative_to(root).as_posix()} ".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _identify(value: Any) -> Any:
    """Convert an argument to JSON that differs where the argument does."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if hasattr(value, "get_params"):
        return f"{type(value).__name__}{value.get_params()!r}"
    array = np.asarray(value)
    if array.dtype == object or array.size > _LONG:
        return hashlib.sha256(repr(value).encode() if array.dtype == object else array.tobytes()).hexdigest()[:16]
    return array.tolist()
