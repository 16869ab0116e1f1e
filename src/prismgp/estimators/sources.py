"""Sources as arguments of estimators, which scikit-learn's validation does not know; and checkpoints of their fits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from prismgp._types import AnyArray
from prismgp._version import __version__
from prismgp.context import Checkpoint
from prismgp.data import ArraySource, Source, collection_source, is_collection, prefetch
from prismgp.exceptions import DataError

_WITHOUT_EFFECT = ("verbose", "checkpoint")  # on the result of a fit
_LONG = 16  # numbers; longer arrays are told apart by a digest


def as_source(X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> tuple[Any, Any]:
    """Dask collections as one source, and nothing beside it; all else passes.

    A source holds weights and noise variances of its rows itself.
    """
    if is_collection(X):
        return collection_source(X, y, sample_weight, noise_variance), None
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
    """An array, or a tuple of arrays, with an entry for each row, computed shard by shard where the rows are.

    The inputs of the source are those of the estimator.
    """
    parts = source.map(partial(getattr(estimator, method), **options))
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def adopt_source(estimator: BaseEstimator, source: Source, y: Any, *, needs_target: bool = True) -> Source:
    """A source to be fitted: names and number of its inputs become the estimator's; small ones come into memory."""
    _check_targets(source, y, needs_target=needs_target)
    estimator.n_features_in_ = source.n_inputs
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)
    if source.encoder is not None:
        estimator.table_encoder_ = source.encoder
    if not source.small:
        return source
    rows = source.load()
    return ArraySource(rows.x, rows.targets, rows.labels).with_noise(rows.noise) if rows.n_noise else rows


def match_source(estimator: BaseEstimator, source: Source, y: Any = None, *, needs_target: bool = False) -> Source:
    """A source for an estimator that is fitted: the inputs must be those it knows, and are encoded as it does."""
    _check_targets(source, y, needs_target=needs_target)
    encoder = getattr(estimator, "table_encoder_", None)
    if source.encoder is not None and encoder is not None:
        return source.encode_with(encoder)
    known = getattr(estimator, "feature_names_in_", None)
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
    return source


def input_blocks(estimator: Any, X: Any, rows: int) -> AnyArray | Iterator[AnyArray]:
    """Checked inputs of an estimator that is fitted: one array, or blocks of so many rows of a source."""
    if isinstance(X, Source):
        return (x for x, _ in prefetch(match_source(estimator, X).blocks(rows)))
    checked: AnyArray = estimator.read_inputs(X)
    return checked


def encode_frame(estimator: BaseEstimator, X: Any) -> Any:
    """Raw columns of a table that the estimator has learned to encode, as its inputs; all else passes."""
    encoder = getattr(estimator, "table_encoder_", None)
    return encoder.encode_frame(X) if encoder is not None and encoder.accepts(X) else X


def forget_fit(estimator: BaseEstimator) -> None:
    """Drop everything learned: a fit that fails or is interrupted must not leave half of an older one."""
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
    """The checkpoint that the estimator's ``checkpoint`` names, if it names one, begun or continued."""
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
    return Checkpoint(path, {"estimator": name, "prismgp": __version__, **identity, **rows})


def _identify(value: Any) -> Any:
    """An argument as JSON that differs where the argument does."""
    if isinstance(value, str | bool | int | float | None):
        return value
    if hasattr(value, "get_params"):
        return f"{type(value).__name__}{value.get_params()!r}"
    array = np.asarray(value)
    if array.dtype == object or array.size > _LONG:
        return hashlib.sha256(repr(value).encode() if array.dtype == object else array.tobytes()).hexdigest()[:16]
    return array.tolist()
